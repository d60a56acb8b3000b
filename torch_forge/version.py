"""The version, once: read by setup.py as text and by everyone else as a name. Imports nothing."""

__version__ = "0.1.0"
