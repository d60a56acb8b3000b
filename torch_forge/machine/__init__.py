"""The machine: processes, locks, compilers, devices and shared libraries. The only part that touches them."""
