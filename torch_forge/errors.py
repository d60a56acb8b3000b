"""Every way in which torch_forge itself can fail, each with an exit code and advice.

A candidate kernel that does not compile, mismatches, crashes or hangs is not an error: it is a value
(``records.outcomes``). These classes are for a machine that cannot do its work and for misuse.
"""

from __future__ import annotations


class ForgeError(Exception):
    """Base class. ``str(error)`` says what happened; ``advice`` says what to do."""

    exit_code = 1
    advice = ""

    def __init__(self, message: str, *, advice: str | None = None) -> None:
        super().__init__(message)
        if advice is not None:
            self.advice = advice

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), str(self), self.advice))

    def explain(self) -> str:
        """The message and, on its own line, the advice."""
        return f"{self}\n{self.advice}" if self.advice else str(self)


def _rebuild(cls: type[ForgeError], message: str, advice: str) -> ForgeError:
    return cls(message, advice=advice)


class UsageError(ForgeError):
    """The caller's arguments cannot be used."""

    exit_code = 2


class DeviceError(ForgeError):
    """The named device does not exist or cannot be used."""

    exit_code = 3
    advice = "Use 'cpu' or a CUDA device that `torch-forge doctor` lists."


class ToolchainError(ForgeError):
    """No compiler for this backend, or one that cannot run."""

    exit_code = 4
    advice = "`torch-forge doctor` shows which compilers were found, why one was refused and what to install."


class CaptureError(ForgeError):
    """The model or function could not be turned into a graph."""

    exit_code = 5
    advice = (
        "The model keeps running as it was. Run it once under torch.compile(fullgraph=True) to see where its graph breaks, "
        "or decorate the hot sub-modules with @torch_forge.optimize instead."
    )


class CacheError(ForgeError):
    """The cache directory cannot be read or written, or is not safe to trust."""

    exit_code = 6
    advice = (
        "Set TORCH_FORGE_CACHE_DIR to a directory that only you can write to; `torch-forge cache info` shows the one in use."
    )


class WorkerError(ForgeError):
    """The worker machinery itself (not a candidate) failed."""

    exit_code = 7
    advice = "`torch-forge doctor` checks that worker processes can be started on this machine."


class RecordError(ForgeError):
    """A stored record is malformed, from another version, or has unknown fields."""

    exit_code = 8


class SandboxError(ForgeError):
    """Candidate code cannot be confined as it must be, so it was not run."""

    exit_code = 10
    advice = "`torch-forge doctor` shows which layers of the sandbox work on this machine, and what to do about the others."


class LLMError(ForgeError):
    """The language model could not be reached, refused, or its budget is spent."""

    exit_code = 9
    advice = "Check the provider name and its API key variable; tuning goes on with templates only."
