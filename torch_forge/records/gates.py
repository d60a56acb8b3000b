"""Every gate between a candidate and the word "accepted", by name, in the order in which they are met.

A verdict names the gate that a candidate failed; a record of a judgement says which gates it met and which were off or not
available. ``docs/trust.md`` explains each; ``tests/zoo`` holds tricks that each must catch.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from torch_forge.errors import UsageError


class Stage(enum.Enum):
    """When a gate is met."""

    BUILT = "built"
    CONTAINED = "contained"
    RIGHT = "right"
    TIMED = "timed"


@dataclass(frozen=True, slots=True)
class Gate:
    """One thing that is demanded."""

    name: str
    stage: Stage
    promise: str
    """What holds of everything that passed, in one line."""
    optional: bool = True
    """False: there is no judging without it."""


GATES: tuple[Gate, ...] = (
    Gate("source", Stage.BUILT, "the source has nothing that a kernel has no reason to contain"),
    Gate("builds", Stage.BUILT, "the compiler accepts it with fixed flags", optional=False),
    Gate("binary", Stage.BUILT, "the built object imports and contains nothing outside the kernel contract"),
    Gate("sandbox", Stage.CONTAINED, "it was built and run without network, foreign files, secrets and new privileges"),
    Gate("survives", Stage.CONTAINED, "it neither crashes, exits nor hangs", optional=False),
    Gate("launches", Stage.RIGHT, "every launch reports success"),
    Gate("keeps inputs", Stage.RIGHT, "inputs and what surrounds them are as before"),
    Gate("stays inside", Stage.RIGHT, "nothing around an output is written"),
    Gate("reads inside", Stage.RIGHT, "what surrounds an input has no influence"),
    Gate("writes everything", Stage.RIGHT, "what an output held before has no influence"),
    Gate("is right", Stage.RIGHT, "every element is as close to float64 as eager's error allows"),
    Gate("special values", Stage.RIGHT, "NaN, infinities, signed zeros and denormals in inputs are treated as in eager"),
    Gate("wide values", Stage.RIGHT, "large, tiny and cancelling inputs are right too"),
    Gate("patterns", Stage.RIGHT, "ties, constant rows, single non-zeros and small integers are right too"),
    Gate("mixed regimes", Stage.RIGHT, "inputs whose head and tail have different scales are right too"),
    Gate("misaligned", Stage.RIGHT, "tensors aligned to one element only are right too"),
    Gate("other sizes", Stage.RIGHT, "other sizes that it claims to serve are right too"),
    Gate("hidden sizes", Stage.RIGHT, "sizes drawn after it was built are right too"),
    Gate("real size", Stage.RIGHT, "the exact workload is right at its full size"),
    Gate("same pointers", Stage.RIGHT, "other bytes under the same pointers give another result, one element is enough"),
    Gate("repeats", Stage.RIGHT, "the same inputs give the same bits, if eager's do"),
    Gate("kept outputs", Stage.RIGHT, "later calls leave earlier results alone"),
    Gate("result form", Stage.RIGHT, "results are plain tensors with eager's shape, strides, type, device and own storage"),
    Gate("own work", Stage.RIGHT, "it calls no operator of torch to compute the result"),
    Gate("leaves no trace", Stage.RIGHT, "threads, descriptors, device memory and torch's global state are as before"),
    Gate("sanitizers", Stage.RIGHT, "sanitizers find no invalid access and no race"),
    Gate("timed outputs", Stage.TIMED, "timed calls, on inputs never seen before, gave right results"),
    Gate("clocks agree", Stage.TIMED, "the time that the worker reports agrees with the judge's own clock"),
    Gate("fair baseline", Stage.TIMED, "eager was as fast beside it as in a process of its own"),
    Gate("possible", Stage.TIMED, "the time is not below what the device can do"),
    Gate("faster", Stage.TIMED, "it is faster than eager beyond the measured noise"),
    Gate("confirmed", Stage.TIMED, "a second process with other inputs finds it faster too"),
)  # fmt: skip
BY_NAME: Mapping[str, Gate] = {g.name: g for g in GATES}


@dataclass(frozen=True)
class GatesRun:
    """Which gates a candidate met."""

    met: tuple[str, ...] = ()
    """In order; the last one may be the one that it failed."""
    off: tuple[str, ...] = ()
    """Switched off by whoever asked."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Not available here: gate -> why."""


def checked_names(names: Collection[str]) -> frozenset[str]:
    """The names of gates to leave out. Raises UsageError on a name that is none, or that cannot be left out."""
    for name in names:
        if name not in BY_NAME:
            raise UsageError(f"there is no gate {name!r}", advice=f"Known: {', '.join(BY_NAME)}.")
        if not BY_NAME[name].optional:
            raise UsageError(f"the gate {name!r} cannot be left out: there is no judging without it")
    return frozenset(names)
