"""The worker's half of judging: load the candidate, draw the inputs, run it, leave the raw bytes. No opinion.

Each run gets the same input buffers with fresh contents, and outputs full of a byte pattern. A journal line
before and after each run tells the judge what was going on when the process died.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torch_forge.graphs.execute import callable_for
from torch_forge.graphs.place import NAN_BYTE, PLAIN_BYTE, ZONE_BYTES, Placed, place
from torch_forge.graphs.subjects import Buffers, PythonSubject, Run, Unfit, open_subject
from torch_forge.records.codec import from_plain
from torch_forge.records.tensors import TensorSpec, contiguous
from torch_forge.validation.cases import Case
from torch_forge.validation.conditions import Conditions
from torch_forge.validation.traces import Snapshot, held_bytes, leaked

JOURNAL = "journal.jsonl"
PATTERNS = (NAN_BYTE, PLAIN_BYTE)
"""What outputs are full of before the first and the second run."""
_HEAD_START_CYCLES = 2_000_000
"""The stream is kept busy this long (1 ms) before the inputs are written: a launch on any other stream comes too early."""
_REMEMBERED = 4
"""Distinct results of one case kept to recognise equal ones, in copies of the outputs."""
KEPT = 3
"""Results of the first cases that are looked at again after all others."""
REPEATS = 8
"""Further runs on the inputs of the first case."""
_LEAK_CALLS, _LEAK_S, _LEAK_LOOKS = 240, 0.5, 4
"""At most so many calls, and about so long, are spent on looking for a leak, in so many portions."""


def run_candidate(payload: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Run every config on every case; results are files and journal lines in ``scratch``.

    payload: ``library``, ``device``, ``threads``, ``workspace_bytes``, ``configs``, ``cases`` (``case`` and ``dims`` each),
    ``conditions``, ``closely`` (whether the first case is repeated, early results are looked at again, and traces are),
    ``call`` (None for a native kernel, else as in ``PythonSubject``), ``own_work`` (whether torch's operators are refused).
    """
    device = torch.device(payload["device"])
    torch.set_num_threads(1)  # no pool of torch's own before threads are counted
    with _own_stream(device) as stream, (scratch / JOURNAL).open("a", buffering=1) as journal:
        try:
            bench = _Bench(payload, device, stream, scratch)
        except Unfit as refused:
            for config in payload["configs"]:
                _note(journal, case=0, config=config, event="end", **_refusal(refused))
            return {"finished": True}
        if payload["closely"]:
            _note(journal, case=0, config=payload["configs"][0], event="begin")
            _note(journal, event="traces", found=bench.traces())
        torch.set_num_threads(payload["threads"])
        for number in range(len(payload["cases"])):
            case = bench.use(number)
            for config in payload["configs"] if not case.misaligned else [0]:
                _note(journal, case=number, config=config, event="begin")
                _note(journal, case=number, config=config, event="end", **bench.run(number, config))
        for (number, config), kept in bench.late():
            _note(journal, case=number, config=config, event="late", kept=kept)
        if payload["closely"]:
            _note(journal, event="traces", found=bench.left_behind())
    return {"finished": True}


def _note(journal: Any, **entry: Any) -> None:
    journal.write(json.dumps(entry) + "\n")


@contextmanager
def _own_stream(device: torch.device) -> Iterator[torch.cuda.Stream | None]:
    """A stream that does not wait for the default one, current on the device; None on the CPU."""
    if device.type != "cuda":
        yield None
        return
    torch.cuda.set_device(device)
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        yield stream


@dataclass
class _Bench:
    """Buffers that stay in place while cases and configs change."""

    payload: dict[str, Any]
    device: torch.device
    stream: torch.cuda.Stream | None
    scratch: Path
    pristine: list[Placed] = field(default_factory=list)
    arena: list[Placed] = field(default_factory=list)
    specs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    dims: Sequence[int] = ()
    right: tuple[torch.Tensor, ...] = ()
    seen: list[tuple[list[torch.Tensor], list[str]]] = field(default_factory=list)
    kept: dict[tuple[int, int], tuple[tuple[torch.Tensor, ...], int]] = field(default_factory=dict)
    likely: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.conditions: Conditions = from_plain(Conditions, self.payload["conditions"])
        self.cases: list[tuple[Case, list[int]]] = [(from_plain(Case, e["case"]), e["dims"]) for e in self.payload["cases"]]
        self.arenas: dict[object, list[Placed]] = {}
        self.number = -1
        self.workspace = _workspace(self.payload["workspace_bytes"], self.device)
        self.use(0)
        self.before = Snapshot.take()
        self.subject = open_subject(self.payload, self.device)
        self.threads_changed = torch.get_num_threads() != 1

    def use(self, number: int) -> Case:
        """Draw the inputs of a case; inputs of the first case's layout always lie where they lay before."""
        case, self.dims = self.cases[number]
        if number == self.number:
            return case
        self.number, graph = number, case.problem.graph
        layout = (graph.inputs, case.offsets)
        if layout not in self.arenas:
            while len(self.arenas) > 1:
                self.arenas.popitem()
            self.arenas[layout] = self._blank(graph.inputs, case.offsets)
        self.arena, self.specs, self.outputs = self.arenas[layout], graph.inputs, graph.output_specs
        self.seen = []
        self.pristine = case.draw(self.device, zone=self.conditions.zone)
        self.likely = [_likely_zones(p) for p in self.pristine] if self.conditions.zone == NAN_BYTE else []
        if not self.conditions.poisoned:
            with torch.no_grad():
                self.right = callable_for(graph)(*(p.tensor for p in self.pristine))
        return case

    def _blank(self, specs: Sequence[TensorSpec], offsets: Sequence[int]) -> list[Placed]:
        guarded, zone = self.conditions.guarded, self.conditions.zone
        return [
            place(s, device=self.device, byte=zone, offset_elements=o, guarded=guarded)
            for s, o in zip(specs, offsets, strict=True)
        ]

    def _launch(self, config: int, threads: int) -> Run:
        workspace = self.workspace.data_ptr() if self.workspace is not None else 0
        stream = self.stream.cuda_stream if self.stream is not None else 0
        buffers = Buffers(self.arena, self.specs, self.outputs, self.dims, workspace, stream)
        return self.subject.bound(buffers, config, threads)

    def traces(self) -> list[str]:
        """What one run on one thread leaves behind."""
        launch = self._launch(self.payload["configs"][0], 1)
        self._once(launch, NAN_BYTE)
        if isinstance(self.subject, PythonSubject):
            return []  # what importing and compiling leave behind is not the kernel's
        return self.before.differences(Snapshot.take(), threads=self.device.type == "cpu")

    def left_behind(self) -> list[str]:
        """What all runs together left behind, and whether memory grows from call to call."""
        found = self.before.differences(Snapshot.take(), threads=False)
        if self.threads_changed or torch.get_num_threads() != self.payload["threads"]:
            found.append("the number of torch's threads has changed")
        launch = self._launch(self.payload["configs"][0], self.payload["threads"])
        outputs, _ = self._once(launch, NAN_BYTE)
        tensors = [p.tensor for p in outputs]
        launch(tensors)
        held, calls = [held_bytes(self.device)], 0
        for _ in range(_LEAK_LOOKS):
            calls, end = 0, time.monotonic() + _LEAK_S / _LEAK_LOOKS
            while calls < _LEAK_CALLS // _LEAK_LOOKS and time.monotonic() < end:
                launch(tensors)
                calls += 1
            if self.stream is not None:
                self.stream.synchronize()
            held.append(held_bytes(self.device))
        leak = leaked(held, calls)
        return found + ([leak] if leak else [])

    def run(self, number: int, config: int) -> dict[str, Any]:
        """Two runs with different patterns in the outputs, more for the first case; what the journal is to say."""
        launch = self._launch(config, self.payload["threads"])
        try:
            return self._run(number, config, launch)
        except Unfit as refused:
            return _refusal(refused)

    def _run(self, number: int, config: int, launch: Run) -> dict[str, Any]:
        if isinstance(self.subject, PythonSubject) and number == 0 and self.payload["own_work"]:
            self.subject.watched = True
            self._once(launch, PATTERNS[0])
            self.subject.watched = False
        first, worst = self._once(launch, PATTERNS[0])
        kept, bits = self._inputs_kept(PATTERNS[0]), [_bits(p).clone() for p in first]
        # Read before anything else runs, since a later call may change it.
        names, patterns = [self._keep(first, f"{number}-{config}-0")], [PATTERNS[0]]
        if self.payload["closely"] and number < KEPT:
            held = self.subject.returned or tuple(p.region for p in first)
            self.kept[number, config] = (held, _checksum(held))
        unsteady = None
        for turn in range(1, len(PATTERNS) + (REPEATS if number == 0 and self.payload["closely"] else 0)):
            pattern = PATTERNS[turn % len(PATTERNS)]
            outputs, code = self._once(launch, pattern)
            worst = worst or code
            kept = kept and self._inputs_kept(pattern)
            differs = unsteady is None and not all(torch.equal(_bits(p), b) for p, b in zip(outputs, bits, strict=True))
            unsteady = turn if differs else unsteady
            # The surroundings hold the second pattern, so the second run is handed over whenever it could tell something.
            if differs or (turn == 1 and number == 0):
                names[1:], patterns[1:] = [self._keep(outputs, f"{number}-{config}-1")], [pattern]
        return {"code": worst, "inputs_kept": kept, "files": names, "patterns": patterns, "unsteady": unsteady}

    def late(self) -> Iterator[tuple[tuple[int, int], bool]]:
        """Whether the results of the first cases still are what they were when they were read."""
        for key, (outputs, checksum) in self.kept.items():
            yield key, _checksum(outputs) == checksum

    def _once(self, launch: Run, pattern: int) -> tuple[list[Placed], int]:
        if self.conditions.poisoned and isinstance(self.subject, PythonSubject):
            self._poison_free_memory(pattern)
        guarded = self.conditions.guarded
        outputs = [place(s, device=self.device, byte=pattern, guarded=guarded) for s in self.outputs]
        for placed, value in zip(outputs, self.right, strict=False):
            placed.tensor.copy_(value)
        if self.workspace is not None:
            self.workspace.fill_(pattern)
        if self.stream is not None:
            # Everything that takes the host long is behind us: the launch must come while the stream is still busy.
            torch.cuda._sleep(_HEAD_START_CYCLES)  # type: ignore[no-untyped-call]
        for target, source in zip(self.arena, self.pristine, strict=True):
            target.region.copy_(source.region)
        if pattern == PLAIN_BYTE:
            for target, zones in zip(self.arena, self.likely, strict=False):
                _surround(target.region, *zones)
        code = launch([p.tensor for p in outputs])
        if self.stream is not None:
            self.stream.synchronize()
        return outputs, code

    def _poison_free_memory(self, pattern: int) -> None:
        """Allocators hand out what was freed last; a candidate that allocates its result finds this pattern there."""
        blocks = [place(s, device=self.device, byte=pattern).region for s in self.outputs for _ in range(2)]
        del blocks

    def _inputs_kept(self, pattern: int) -> bool:
        for k, (now, before) in enumerate(zip(self.arena, self.pristine, strict=True)):
            wanted = before.region
            if pattern == PLAIN_BYTE and self.likely:
                wanted = wanted.clone()
                _surround(wanted, *self.likely[k])
            if not torch.equal(now.region, wanted):
                return False
        return True

    def _keep(self, outputs: Sequence[Placed], stem: str) -> list[str]:
        """Write the regions, or name the files of an equal result of this case."""
        for regions, names in self.seen:
            if all(torch.equal(p.region, r) for p, r in zip(outputs, regions, strict=True)):
                return names
        names = [f"{stem}-{k}.bin" for k in range(len(outputs))]
        for name, placed in zip(names, outputs, strict=True):
            placed.region.cpu().numpy().tofile(self.scratch / name)
        if len(self.seen) < _REMEMBERED:
            self.seen.append(([p.region.clone() for p in outputs], names))
        return names


def _bits(placed: Placed) -> torch.Tensor:
    """The elements as integers, so that equal means equal bits."""
    return placed.tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[placed.tensor.element_size()])


def _likely_zones(placed: Placed) -> tuple[torch.Tensor, torch.Tensor]:
    """What could stand before and after a tensor in a program: values of its own. Who looks out for NaN there finds none."""
    held = placed.region[ZONE_BYTES : len(placed.region) - ZONE_BYTES]
    if len(held) == 0:
        held = placed.region
    repeated = held[: ZONE_BYTES * (1 + len(held) // ZONE_BYTES)].repeat(1 + ZONE_BYTES // len(held))
    size = placed.tensor.element_size()
    front = repeated[: ZONE_BYTES // size * size]
    return front, repeated[-ZONE_BYTES:] if len(repeated) % size == 0 else front


def _surround(region: torch.Tensor, front: torch.Tensor, back: torch.Tensor) -> None:
    region[:ZONE_BYTES], region[len(region) - ZONE_BYTES :] = front, back


def _refusal(refused: Unfit) -> dict[str, Any]:
    return {"code": 0, "refused": {"gate": refused.gate, "reason": refused.reason}}


def _checksum(tensors: Sequence[torch.Tensor]) -> int:
    total = 0
    for x in tensors:
        total = zlib.crc32(x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data, total)
    return total


def _workspace(nbytes: int, device: torch.device) -> torch.Tensor | None:
    """Scratch memory for the kernel, aligned to 512 bytes."""
    return place(contiguous((nbytes,), "uint8"), device=device, byte=NAN_BYTE).tensor if nbytes else None
