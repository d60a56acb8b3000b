"""Profile and regions to a ranked list of what is worth a kernel, with a reason for everything left."""
