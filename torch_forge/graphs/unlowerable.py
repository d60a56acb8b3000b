"""Why a graph has no loop form: one exception, raised deep in the lowering and turned into a value at its top."""


class UnlowerableError(Exception):
    """The message is the reason, for people."""
