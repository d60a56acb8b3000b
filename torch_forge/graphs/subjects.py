"""What is being judged, as something that turns inputs into outputs: a native kernel, or a Python file.

Runs in the worker only. A Python candidate brings its own results; they must be plain tensors of exactly eager's form, and
are copied into the same poisoned regions that a native kernel writes into, so that everything after that is one path.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_forge.graphs.place import Placed
from torch_forge.machine.launch import Launch
from torch_forge.machine.loader import load_kernel
from torch_forge.machine.sandbox.lock import lock_down
from torch_forge.records.tensors import TensorSpec

Run = Callable[[Sequence[torch.Tensor]], int]
"""Fills the output tensors; the return code of ``forge_launch``."""
ENTRIES = ("ModelNew", "candidate")
"""What a Python file may define: a module class, or a function of the reference's arguments."""


class Unfit(Exception):  # noqa: N818 (a verdict on its way, no error of ours)
    """A result that is not what eager would return, whatever its values."""

    def __init__(self, gate: str, reason: str) -> None:
        super().__init__(reason)
        self.gate, self.reason = gate, reason


@dataclass(frozen=True)
class Buffers:
    """Inputs in place, and what the outputs will be."""

    inputs: Sequence[Placed]
    specs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    dims: Sequence[int]
    workspace: int
    """Address or 0."""
    stream: int


class NativeSubject:
    """A shared library with ``forge_launch``."""

    returned: tuple[torch.Tensor, ...] = ()
    """Tensors of the candidate's own; a native kernel has none."""

    def __init__(self, library: str) -> None:
        self._address = load_kernel(library)

    def bound(self, to: Buffers, config: int, threads: int) -> Run:
        return Launch(
            self._address,
            [(s, p.tensor.data_ptr()) for s, p in zip(to.specs, to.inputs, strict=True)],
            to.outputs,
            to.dims,
            config=config,
            threads=threads,
            workspace=to.workspace,
            stream=to.stream,
        )


class PythonSubject:
    """A file with ``ModelNew`` (called as a module; its parameters are the reference's) or a function ``candidate``.

    call: ``arguments`` (one entry per argument: the number of a graph input, or ``{"plain": value}``), ``parameters`` (names
    that the leading graph inputs have in the reference), ``init`` (arguments of ``ModelNew``), ``seed``.
    """

    def __init__(self, path: str, call: Mapping[str, Any], device: torch.device, *, lenient: bool = False) -> None:
        """lenient: results of another form than eager's are taken as they are."""
        self._call, self._device, self._lenient = call, device, lenient
        self.returned: tuple[torch.Tensor, ...] = ()
        self.watched = False
        """Operators of torch are looked out for in the next calls."""
        module = types.ModuleType("candidate")
        module.__file__ = path
        text = Path(path).read_text()
        sys.modules[module.__name__] = module  # dataclasses and typing look a class's module up there
        lock_down()
        exec(compile(text, path, "exec"), module.__dict__)  # noqa: S102 (what is judged; this process is the one to spoil)
        found = next((getattr(module, name) for name in ENTRIES if hasattr(module, name)), None)
        if found is None:
            raise Unfit("result form", f"the file defines none of {', '.join(ENTRIES)}")
        self._function: Callable[..., Any] = self._model(found) if isinstance(found, type) else found

    def _model(self, cls: type) -> Callable[..., Any]:
        with torch.random.fork_rng():
            torch.manual_seed(self._call["seed"])
            model = cls(*self._call["init"]).to(self._device).eval()
        self._state = dict(model.named_parameters()) | dict(model.named_buffers())
        missing = sorted(set(self._call["parameters"]) - set(self._state))
        if missing:
            raise Unfit(
                "result form",
                f"ModelNew has no {', '.join(missing)}: its parameters and buffers must have the reference's names",
            )
        return model  # type: ignore[no-any-return]

    def bound(self, to: Buffers, config: int, threads: int) -> Run:
        del config, threads
        tensors = [p.tensor for p in to.inputs]

        def run(outputs: Sequence[torch.Tensor]) -> int:
            self.load_parameters(tensors)
            results = self.results(tensors)
            try:
                self.returned = fitting(results, to.outputs, tensors, self._device)
            except Unfit:
                if not self._lenient:
                    raise
                self.returned = ()
            for target, value in zip(outputs, results, strict=True):
                target.copy_(value)
            return 0

        return run

    def load_parameters(self, tensors: Sequence[torch.Tensor]) -> None:
        """Write the case's parameters into the module, in place, as an optimiser would."""
        with torch.no_grad():
            for name, value in zip(self._call["parameters"], tensors, strict=False):
                if self._state[name].shape != value.shape:
                    raise Unfit("result form", f"ModelNew's {name} has another shape than the reference's")
                self._state[name].copy_(value)

    def results(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """What the candidate returns for these inputs, flat."""
        arguments = [tensors[a] if isinstance(a, int) else a["plain"] for a in self._call["arguments"]]
        with torch.no_grad():
            if self.watched:
                with OwnWork():  # type: ignore[no-untyped-call]
                    found = self._function(*arguments)
            else:
                found = self._function(*arguments)
        return tuple(found) if isinstance(found, (tuple, list)) else (found,)


Subject = NativeSubject | PythonSubject


def fitting(
    results: Sequence[Any], specs: Sequence[TensorSpec], inputs: Sequence[torch.Tensor], device: torch.device
) -> tuple[torch.Tensor, ...]:
    """The results, each exactly of eager's form. Raises Unfit."""
    if len(results) != len(specs):
        raise Unfit("result form", f"it returns {len(results)} values, the reference {len(specs)}")
    taken = {t.untyped_storage().data_ptr() for t in inputs if t.numel()}
    for k, (result, spec) in enumerate(zip(results, specs, strict=True)):
        if type(result) is not torch.Tensor:
            raise Unfit("result form", f"output {k} is a {type(result).__name__}, not a plain torch.Tensor")
        if vars(result):
            raise Unfit("result form", f"output {k} carries attributes of its own: {', '.join(sorted(vars(result)))}")
        form = (tuple(result.shape), tuple(result.stride()), str(result.dtype).removeprefix("torch."), result.device.type)
        wanted = (spec.shape, spec.stride, spec.dtype, device.type)
        if form != wanted and result.numel():
            raise Unfit("result form", f"output {k} is {_words(*form)}, the reference's is {_words(*wanted)}")
        storage = result.untyped_storage()
        place = storage.data_ptr()
        shares = spec.is_contiguous and storage.nbytes() > spec.numel * spec.itemsize
        if result.numel() and (place in taken or place == 0 or shares):
            raise Unfit("result form", f"output {k} has no storage of its own")
        taken.add(place)
    return tuple(results)


def _words(shape: Sequence[int], stride: Sequence[int], dtype: str, device: str) -> str:
    return f"{dtype}{list(shape)} with strides {list(stride)} on {device}"


_FREE = frozenset(
    {
        "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "zeros", "zeros_like", "new_zeros", "full",
        "full_like", "new_full", "fill_", "zero_", "detach", "alias", "record_stream", "_local_scalar_dense", "is_pinned",
        "arange", "scalar_tensor", "lift_fresh", "set_",
    }
)  # fmt: skip
"""Operators that only make memory, look at it or name it."""


class OwnWork(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operators that compute: a kernel is to do the work, and torch's own operators are the baseline."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        returns_view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        if func.namespace == "aten" and name not in _FREE and not returns_view:
            raise Unfit("own work", f"it calls torch's own operator {func}")
        return func(*args, **(kwargs or {}))


def open_subject(payload: Mapping[str, Any], device: torch.device) -> Subject:
    """Load the candidate: from here on this process is not to be trusted."""
    if payload.get("call") is None:
        return NativeSubject(payload["library"])
    return PythonSubject(payload["library"], payload["call"], device, lenient=payload.get("lenient", False))
