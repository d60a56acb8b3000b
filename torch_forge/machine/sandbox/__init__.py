"""What keeps foreign code from everything but its own work: layers of the Linux kernel, each of which may be missing."""
