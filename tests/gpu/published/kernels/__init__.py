"""One file each: ``KERNEL``."""
