"""Why a graph has no loop form: one exception, raised deep in the lowering and turned into a value at its top."""


class Unlowerable(Exception):
    """The message is the reason, for people."""
