"""The worker's half of judging: load the candidate, draw the inputs, run it, leave the raw bytes. No opinion.

Each run gets the same input buffers with fresh contents, and outputs full of a byte pattern. A journal line
before and after each run tells the judge what was going on when the process died.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torch_forge.graphs.inputs import draw_inputs
from torch_forge.graphs.place import NAN_BYTE, PLAIN_BYTE, Placed, place
from torch_forge.machine.launch import Launch
from torch_forge.machine.loader import load_kernel
from torch_forge.records.codec import from_plain
from torch_forge.records.tensors import TensorSpec, contiguous
from torch_forge.validation.cases import Case

JOURNAL = "journal.jsonl"
PATTERNS = (NAN_BYTE, PLAIN_BYTE)
"""What outputs are full of before the first and the second run."""
_HEAD_START_CYCLES = 200_000
"""The stream is kept busy this long before the inputs are written: a launch on any other stream comes too early."""
_REMEMBERED = 4
"""Distinct results of one case kept to recognise equal ones, in copies of the outputs."""


def run_candidate(payload: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Run every config on every case; results are files and journal lines in ``scratch``.

    payload: ``library``, ``device``, ``threads``, ``workspace_bytes``, ``configs``, ``cases`` (``case`` and ``dims`` each).
    """
    device = torch.device(payload["device"])
    with _own_stream(device) as stream, (scratch / JOURNAL).open("a", buffering=1) as journal:
        bench = _Bench(payload, load_kernel(payload["library"]), device, stream, scratch)
        for number, entry in enumerate(payload["cases"]):
            case: Case = from_plain(Case, entry["case"])
            bench.use(case, entry["dims"])
            for config in payload["configs"] if case.offset_elements == 0 else [0]:
                _note(journal, case=number, config=config, event="begin")
                _note(journal, case=number, config=config, event="end", **bench.run(number, config))
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
    address: int
    device: torch.device
    stream: torch.cuda.Stream | None
    scratch: Path
    pristine: list[Placed] = field(default_factory=list)
    arena: list[Placed] = field(default_factory=list)
    specs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    dims: Sequence[int] = ()
    layout: object = None
    seen: list[tuple[list[torch.Tensor], list[str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.workspace = _workspace(self.payload["workspace_bytes"], self.device)

    def use(self, case: Case, dims: Sequence[int]) -> None:
        """Draw the inputs of a case; the buffers stay where they are if the layout is that of the last case."""
        graph = case.problem.graph
        layout = (graph.inputs, case.offset_elements)
        if layout != self.layout:
            shift = case.offset_elements
            self.arena = [place(s, device=self.device, byte=NAN_BYTE, offset_elements=shift) for s in graph.inputs]
        self.layout, self.specs, self.outputs, self.dims = layout, graph.inputs, graph.output_specs, dims
        self.seen = []
        self.pristine = draw_inputs(
            graph,
            seed=case.seed,
            distribution=case.distribution,
            device=self.device,
            offset_elements=case.offset_elements,
        )

    def run(self, number: int, config: int) -> dict[str, Any]:
        """Two runs with different patterns in the outputs; what the journal is to say."""
        launch = Launch(
            self.address,
            [(s, p.tensor.data_ptr()) for s, p in zip(self.specs, self.arena, strict=True)],
            self.outputs,
            self.dims,
            config=config,
            threads=self.payload["threads"],
            workspace=self.workspace.data_ptr() if self.workspace is not None else 0,
            stream=self.stream.cuda_stream if self.stream is not None else 0,
        )
        runs = []
        for pattern in PATTERNS:
            outputs, code = self._once(launch, pattern)
            if code != 0:
                return {"code": code}
            if not self._inputs_kept():
                return {"code": 0, "inputs_kept": False}
            runs.append(outputs)
        steady = all(_same_elements(a, b) for a, b in zip(*runs, strict=True))
        names = [self._keep(runs[0], f"{number}-{config}-0")]
        # The surroundings hold the second pattern, so the second run is handed over whenever it could tell something.
        if not steady or number == 0:
            names.append(self._keep(runs[1], f"{number}-{config}-1"))
        return {"code": 0, "inputs_kept": True, "files": names}

    def _once(self, launch: Launch, pattern: int) -> tuple[list[Placed], int]:
        if self.stream is not None:
            torch.cuda._sleep(_HEAD_START_CYCLES)  # type: ignore[no-untyped-call]
        outputs = [place(s, device=self.device, byte=pattern) for s in self.outputs]
        if self.workspace is not None:
            self.workspace.fill_(pattern)
        for target, source in zip(self.arena, self.pristine, strict=True):
            target.region.copy_(source.region)
        code = launch([p.tensor for p in outputs])
        if self.stream is not None:
            self.stream.synchronize()
        return outputs, code

    def _inputs_kept(self) -> bool:
        return all(torch.equal(a.region, p.region) for a, p in zip(self.arena, self.pristine, strict=True))

    def _keep(self, outputs: Sequence[Placed], stem: str) -> list[str]:
        """Write the regions, or name the files of an equal result of this case."""
        for regions, names in self.seen:
            if all(torch.equal(p.region, r) for p, r in zip(outputs, regions, strict=True)):
                return names
        names = [f"{stem}-{k}.bin" for k in range(len(outputs))]
        for name, placed in zip(names, outputs, strict=True):
            placed.region.cpu().numpy().tofile(self.scratch / name)
        if len(self.seen) < _REMEMBERED:
            self.seen.append(([p.region for p in outputs], names))
        return names


def _same_elements(a: Placed, b: Placed) -> bool:
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.tensor.element_size()]
    return torch.equal(a.tensor.view(bits), b.tensor.view(bits))


def _workspace(nbytes: int, device: torch.device) -> torch.Tensor | None:
    """Scratch memory for the kernel, aligned to 512 bytes."""
    return place(contiguous((nbytes,), "uint8"), device=device, byte=NAN_BYTE).tensor if nbytes else None
