"""Reads the data folders: what torch_forge knows, and the kernels that ship with it. No decisions."""
