"""Operators in torch and who uses them: load a glue and its kernels, bind cases to them, look them up, take them out.

One operator serves any number of bindings and any number of kernels. A binding that two models share is counted, so that
reverting one model leaves the other's alone. Nothing is ever unloaded: a call may be running in another thread.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_forge.dispatch.glue import NAMESPACE, binding_words, op_name, schema
from torch_forge.errors import ForgeError, UsageError
from torch_forge.machine.loader import load_glue, load_kernel
from torch_forge.records.kernels import Binding
from torch_forge.records.tensors import TensorSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_LOCK = threading.RLock()
_LIBRARIES: dict[str, torch.library.Library] = {}
"""Schemas defined so far, by qualified name; a Library object that is collected takes its definitions with it."""
_OPERATORS: dict[tuple[str, str], _Operator] = {}
"""By qualified name and backend."""
_KERNELS: dict[str, int] = {}
"""Entry points by the SHA-256 of their library."""


class BindError(ForgeError):
    """The operator's library cannot take this binding or cannot be registered."""

    exit_code = 8
    advice = "The glue and this torch_forge do not fit together: remove the cache entry and build again."


@dataclass
class _Operator:
    """One operator on one backend: the loaded glue and what its fake kernel knows."""

    name: str
    input_count: int
    output_count: int
    library: ctypes.CDLL
    bound: dict[int, Binding] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class OpHandle:
    """An operator of ``torch.ops.torch_forge`` and one of its kernels."""

    name: str
    """Qualified: ``torch_forge::softmax_0123``."""
    backend: str
    """``cpu`` or ``cuda``."""
    op: torch._ops.OpOverload
    """Called with the problem's tensors in order; raises RuntimeError if no binding fits them."""
    kernel: int
    """Address of this handle's ``forge_launch``."""
    _operator: _Operator = field(repr=False)

    def bind(self, binding: Binding, kernel: int | None = None, *, device_index: int | None = None) -> int:
        """Serve ``binding`` with a kernel (default: this handle's); the newest of equal bindings wins. Returns its id.

        device_index: only tensors on this CUDA device. Raises BindError.
        """
        operator = self._operator
        counts = (len(binding.inputs), len(binding.outputs))
        if counts != (operator.input_count, operator.output_count):
            raise BindError(f"{self.name} takes {operator.input_count} -> {operator.output_count} tensors, not {counts}")
        words = binding_words(binding, device_index)
        array = (ctypes.c_int64 * len(words))(*words)
        with _LOCK:
            binding_id = int(operator.library.forge_bind(ctypes.c_void_p(kernel or self.kernel), array, len(words)))
            if binding_id < 0:
                raise BindError(f"{self.name} refused a binding of {len(words)} words")
            operator.bound = {**operator.bound, binding_id: binding}
        return binding_id

    def unbind(self, binding_id: int) -> None:
        """Serve this binding no more; an older equal one takes over. Unknown ids are ignored."""
        with _LOCK:
            self._operator.library.forge_unbind(binding_id)
            self._operator.bound = {k: v for k, v in self._operator.bound.items() if k != binding_id}

    @property
    def calls(self) -> int:
        """Calls that the operator has served on this backend, over all its bindings."""
        return int(self._operator.library.forge_served())


def load_op(
    name: str,
    digest: str,
    input_count: int,
    output_count: int,
    backend: str,
    glue_library: Path | str,
    kernel_library: Path | str,
) -> OpHandle:
    """The operator of a problem with one of its kernels loaded; asking again loads nothing.

    The first glue loaded for an operator and backend stays; its own operator name wins over ``name``, which does not
    belong to a problem's identity. Raises LoadError, BindError.
    """
    import torch

    with _LOCK:
        key = (op_name(name, digest), backend)
        operator = _OPERATORS.get(key)
        if operator is None:
            operator = _load_operator(digest, input_count, output_count, backend, Path(glue_library))
            _OPERATORS[key] = operator
        sha256 = hashlib.sha256(Path(kernel_library).read_bytes()).hexdigest()
        if sha256 not in _KERNELS:
            _KERNELS[sha256] = load_kernel(Path(kernel_library))
        overload: Any = getattr(getattr(torch.ops, NAMESPACE), operator.name.partition("::")[2]).default
        return OpHandle(operator.name, backend, overload, _KERNELS[sha256], operator)


def _load_operator(digest: str, input_count: int, output_count: int, backend: str, path: Path) -> _Operator:
    library = load_glue(path)
    _declare(library)
    if library.forge_digest().decode() != digest or library.forge_backend().decode() != backend:
        raise BindError(f"{path} is the glue of another operator, not of {digest} on {backend}")
    name = f"{NAMESPACE}::{library.forge_op_name().decode()}"
    known = _OPERATORS.get((name, backend))
    if known is not None:
        return known
    _define(name, input_count, output_count)
    status = library.forge_register()
    if status != 0:
        raise BindError(f"torch refused to register {name} (step {status})")
    _OPERATORS[name, backend] = operator = _Operator(name, input_count, output_count, library)
    return operator


def _declare(library: ctypes.CDLL) -> None:
    """C signatures of what ``forge_glue.h`` exports."""
    pointer = ctypes.POINTER(ctypes.c_int64)
    for function in ("forge_op_name", "forge_digest", "forge_backend"):
        getattr(library, function).restype = ctypes.c_char_p
    library.forge_bind.argtypes, library.forge_bind.restype = [ctypes.c_void_p, pointer, ctypes.c_int64], ctypes.c_int64
    library.forge_unbind.argtypes, library.forge_unbind.restype = [ctypes.c_int64], ctypes.c_int
    library.forge_served.restype = ctypes.c_int64
    library.forge_bound.restype = ctypes.c_int64


def _define(name: str, input_count: int, output_count: int) -> None:
    """The schema and the fake kernel, once for all backends."""
    if name in _LIBRARIES:
        return
    import torch

    library = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
    # Compilers must hand over exactly the strides that were traced: bindings compare them.
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
    library.define(schema(name, input_count, output_count), tags=tags)  # type: ignore[no-untyped-call]

    def fake(*inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        return _fake_outputs(name, inputs)

    torch.library.register_fake(name, fake, lib=library)
    _LIBRARIES[name] = library


def _fake_outputs(name: str, inputs: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    """Empty outputs of the binding that fits, on the inputs' device. Raises RuntimeError as the operator itself would."""
    import torch

    device = inputs[0].device
    if any(x.device != device for x in inputs):
        raise RuntimeError(f"{name}: expected all tensors to be on the same device")
    backends = (device.type,) if device.type != "meta" else ("cpu", "cuda")
    for operator in (o for backend in backends if (o := _OPERATORS.get((name, backend))) is not None):
        for binding in reversed(operator.bound.values()):
            if all(_fits(x, spec) for x, spec in zip(inputs, binding.inputs, strict=True)):
                outputs = tuple(
                    torch.empty_strided(s.shape, s.stride, dtype=getattr(torch, s.dtype), device=device)
                    for s in binding.outputs
                )
                return outputs if len(outputs) > 1 else outputs[0]
    shown = ", ".join(f"{tuple(x.shape)} {x.dtype}" for x in inputs)
    raise RuntimeError(f"{name}: no certified binding for these inputs ({shown}); call the original function instead")


def _fits(tensor: Tensor, spec: TensorSpec) -> bool:
    """As ``same_layout`` in ``forge_glue.h``: strides of dimensions of one element, and of empty tensors, do not count."""
    if str(tensor.dtype) != f"torch.{spec.dtype}" or tensor.dim() != len(spec.shape):
        return False
    if any(n != wanted for n, wanted in zip(tensor.shape, spec.shape, strict=True)):
        return False
    strides = zip(spec.shape, tensor.stride(), spec.stride, strict=True)
    return 0 in spec.shape or all(n <= 1 or s == wanted for n, s, wanted in strides)


@dataclass(frozen=True)
class Entry:
    """One workload on one device class, bound."""

    handle: OpHandle
    binding: Binding
    binding_id: int


class Registry:
    """Thread-safe map from (workload, device key) to what serves it; entries are counted by user."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, str], Entry] = {}
        self._users: dict[tuple[str, str], int] = {}

    def lookup(self, workload: str, device: str) -> Entry | None:
        """What serves ``Problem.workload`` on ``DeviceInfo.key``; None if nothing does."""
        return self._entries.get((workload, device))

    def install(
        self, workload: str, device: str, handle: OpHandle, binding: Binding, *, device_index: int | None = None
    ) -> Entry:
        """Bind and enter; if an equal entry exists it is shared. A different one replaces it for all its users."""
        key = (workload, device)
        with self._lock:
            entry = self._entries.get(key)
            wanted = (handle.name, handle.kernel, binding)
            if entry is None or (entry.handle.name, entry.handle.kernel, entry.binding) != wanted:
                replaced, entry = entry, Entry(handle, binding, handle.bind(binding, device_index=device_index))
                self._entries[key] = entry
                if replaced is not None:
                    replaced.handle.unbind(replaced.binding_id)
            self._users[key] = self._users.get(key, 0) + 1
            return entry

    def revert(self, workload: str, device: str) -> None:
        """Undo one ``install``; the binding goes with its last user. Raises UsageError if there is none."""
        key = (workload, device)
        with self._lock:
            if key not in self._entries:
                raise UsageError(f"nothing is installed for workload {workload} on {device}")
            self._users[key] -= 1
            if self._users[key] == 0:
                del self._users[key]
                entry = self._entries.pop(key)
                entry.handle.unbind(entry.binding_id)

    def __len__(self) -> int:
        return len(self._entries)
