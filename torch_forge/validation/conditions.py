"""Under which conditions a candidate runs. Each one hardens a gate; without the gate, it is relaxed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from torch_forge.graphs.place import NAN_BYTE

_BENIGN = 0x00


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a worker does around the candidate; the judge knows it too, since it looks for the traces."""

    zone: int = NAN_BYTE
    """Byte around inputs: a value that is read there spoils the result."""
    guarded: bool = True
    """On the CPU, an unreadable page follows every tensor."""
    poisoned: bool = True
    """Outputs are full of a pattern beforehand; else they hold the right result, as recycled memory may."""
    shared: bool = True
    """One process, and the same buffers, for all cases; else each case has a process of its own."""


HARD = Conditions()


def conditions(off: Collection[str]) -> Conditions:
    """What is left of the hard conditions without these gates."""
    kept = HARD
    for gate, relaxed in _RELAXED.items():
        if gate in off:
            kept = relaxed(kept)
    return kept


def relaxations(now: Conditions) -> Iterator[tuple[str, Conditions]]:
    """Each gate with the conditions without it: a result that is right only then has failed this gate."""
    for gate, relaxed in _RELAXED.items():
        other = relaxed(now)
        if other != now:
            yield gate, other


_RELAXED: dict[str, Callable[[Conditions], Conditions]] = {
    "same pointers": lambda now: replace(now, shared=False),
    "reads inside": lambda now: replace(now, zone=_BENIGN, guarded=False),
    "writes everything": lambda now: replace(now, poisoned=False),
}
"""The first one is the weakest suspicion to clear: a case that is right when it runs alone."""
