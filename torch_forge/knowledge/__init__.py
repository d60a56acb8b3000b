"""Reads the data folders and holds the roofline: what torch_forge knows, and the kernels that ship with it. No decisions."""
