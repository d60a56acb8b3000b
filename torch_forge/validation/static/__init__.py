"""Tripwires: what a source or a built object contains that a kernel has no reason to contain. Nothing is executed.

Text can be disguised, and the sandbox that builds and runs a candidate is what protects the machine. A rule that rejects
is a bright line, with a reason that the author can act on; anything less certain is a note.
"""
