"""Times of operations from torch's profiler, laid over the list of operations that ``observe`` saw.

The profiler's events form a tree: ``linear`` > ``addmm`` > ``copy_``. An operation that the observer saw gets the time of
its whole subtree, and nothing below it is counted again; what lies above only gets what it launched itself. So the
times of one run never add up to more than was measured.
"""

from __future__ import annotations

import importlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch._C._autograd import DeviceType, _profiler_enabled, _supported_activities
from torch.autograd import profiler as autograd_profiler

from torch_forge.profiling.observe import Seen

MARK = "torch_forge: one run"
"""Names the event that spans one run; outside the model, so the model is not altered."""

OTHER_KERNELS = "other kernels"
"""Stands in for the operation where there is none."""

Run = list[tuple[Seen, float]]
"""The operations of one run in order, with their microseconds."""


def reason_against_tracing(device: torch.device) -> str:
    """Why the profiler cannot be used now, or nothing."""
    if autograd_profiler._is_profiler_enabled or _profiler_enabled():
        return "another profiler is running"
    if device.type == "cuda" and torch.profiler.ProfilerActivity.CUDA not in _supported_activities():
        return "torch's profiler cannot see the GPU (no CUPTI)"
    return ""


def traced(prepare: Callable[[], Callable[[], object]], runs: int, device: torch.device, seen: Sequence[Seen]) -> list[Run]:
    """Profile ``runs`` runs in one session, after one that is thrown away.

    prepare: makes ready for a run, which it returns; only the run itself is measured.
    The first run of a session is not reliable: device events get lost while the profiler starts.
    """
    with _session(device) as session:
        for _ in range(runs + 1):
            run = prepare()
            with torch.profiler.record_function(MARK):
                run()
    listed = getattr(session, "function_events", None)  # the older collector's
    events = session.events() if listed is None else listed
    marks = [e for e in events if e.name == MARK and e.device_type == DeviceType.CPU][1:]
    names = {s.op for s in seen}
    kernels = [e for e in events if e.device_type != DeviceType.CPU and not e.is_user_annotation]
    return [overlay([*_run_events(mark, names, device), *_other_kernels(mark, kernels)], seen) for mark in marks]


def _session(device: torch.device) -> Any:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cpu":
        # The older collector gives the same events and does not start the device tracer, which fills stderr with log
        # lines. It is to go one day; then the newer one does.
        with suppress(ImportError):
            return importlib.import_module("torch.autograd.profiler_legacy").profile(record_shapes=True)
    else:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    # There is one cycle, so nothing accumulates; torch 2.11 warns of lost cycles without it.
    return torch.profiler.profile(activities=activities, record_shapes=True, acc_events=True)


def _other_kernels(mark: Any, kernels: Sequence[Any]) -> Iterator[tuple[Seen, float]]:
    """Kernels that no operation of the run launched: Triton and CUDA code called from Python, and other threads' work.

    The run waits for the device before it ends, so that every kernel lies within its span.
    """
    span = mark.time_range
    all_us = sum(k.time_range.elapsed_us() for k in kernels if span.start <= k.time_range.start <= span.end)
    other_us = all_us - sum(_total_kernel_us(child) for child in mark.cpu_children)
    if other_us > 0.1:  # not a rounding error: kernels take microseconds
        yield Seen(OTHER_KERNELS, (), ""), other_us


def _run_events(event: Any, names: set[str], device: torch.device) -> Iterator[tuple[Seen, float]]:
    for child in event.cpu_children:
        op = child.name.replace("::", ".")
        if op in names if names else _has_kernel(child.name):
            yield Seen(op, _event_shapes(child), ""), _total_us(child, device)
            continue
        below = list(_run_events(child, names, device))
        if not below and _has_kernel(child.name):  # the observed run took another path here
            below = [(Seen(op, _event_shapes(child), ""), _total_us(child, device))]
        elif device.type != "cpu" and (own_us := _kernel_us(child)) > 0:
            # A composite operation costs the CPU only dispatching; on the GPU it may launch a kernel of its own.
            below.append((Seen(op, _event_shapes(child), ""), own_us))
        yield from below


def _total_us(event: Any, device: torch.device) -> float:
    """Time of an event and all below it."""
    return float(event.cpu_time_total) if device.type == "cpu" else _total_kernel_us(event)


def _total_kernel_us(event: Any) -> float:
    return _kernel_us(event) + sum(_total_kernel_us(child) for child in event.cpu_children)


def _kernel_us(event: Any) -> float:
    """Device time of what an event itself launched.

    From the list of kernels: the ready-made sums have had several names, and they count an annotation's own span on the
    device, which is listed like a kernel, on top of the kernels in it.
    """
    return float(sum(kernel.duration for kernel in event.kernels if kernel.name != event.name))


def _event_shapes(event: Any) -> tuple[tuple[int, ...], ...]:
    """Without zero-dimensional tensors, which the profiler shows like numbers."""
    return tuple(tuple(shape) for shape in event.input_shapes or () if shape and all(type(n) is int for n in shape))


def _has_kernel(name: str) -> bool:
    """Whether an operation has a kernel of its own under some overload; without an observation, this finds the leaves."""
    schemas = torch._C._jit_get_schemas_for_operator(name) if "::" in name else []
    full = [f"{name}.{s.overload_name}" if s.overload_name else name for s in schemas if "out" not in s.overload_name]
    known = [each for each in full if torch._C._dispatch_has_kernel(each)]  # some exist for TorchScript only
    return any(not torch._C._dispatch_has_kernel_for_dispatch_key(each, "CompositeImplicitAutograd") for each in known)


def overlay(run: Run, seen: Sequence[Seen]) -> Run:
    """Give each timed operation the shapes and module of the observed one: the k-th ``gelu`` is the k-th ``gelu``.

    Where the numbers of calls differ, the profiler's own shapes stay, and the module if only one class makes such calls.
    """
    by_op: dict[str, list[Seen]] = defaultdict(list)
    for each in seen:
        by_op[each.op].append(each)
    timed_calls = Counter(each.op for each, _ in run)
    position: Counter[str] = Counter()
    result: Run = []
    for each, us in run:
        known = by_op[each.op]
        if len(known) == timed_calls[each.op]:
            each = known[position[each.op]]
            position[each.op] += 1
        elif len(modules := {k.module for k in known}) == 1:
            each = Seen(each.op, each.shapes, modules.pop())
        result.append((each, us))
    return result
