"""The last gate: the whole model, forged against eager, in numbers and in time, in the user's own process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_forge.benchmarking.model import time_models
from torch_forge.dispatch.graph import ModelInstall
from torch_forge.installing import Installed
from torch_forge.profiling.holdings import tensors_of
from torch_forge.profiling.state import State, preserved
from torch_forge.profiling.workload import Workload
from torch_forge.records.problem import Policy
from torch_forge.records.session import ModelCheck
from torch_forge.search.workshop import Workshop

HARM = 0.97
"""A whole model measured below this is put back, however wide the interval."""
ERROR_LIMIT = 2.0
"""Forged error against the higher-precision run, in multiples of eager's own."""
_WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float64,
    torch.float64: torch.float64,
}


def check_model(workload: Workload, install: ModelInstall, installed: Installed, shop: Workshop) -> ModelCheck:
    """Compare outputs, count engaged kernels, time both sides interleaved; accepted if right and not slower."""
    model = workload.target
    assert isinstance(model, torch.nn.Module)
    call = workload.call
    with preserved(model, call.args, call.kwargs) as state:
        eager = _fresh(state, workload, model._call_impl)
        forged = _fresh(state, workload, install)
        want = tensors_of(eager())
        forged()  # compiles
        before = installed.calls
        got = tensors_of(forged())
        engaged = installed.calls - before
        error, wrong = _output_error(workload, state, want, got, shop.policy)
        del want, got
        timed = time_models(
            _plain(workload, model._call_impl),
            _plain(workload, install),
            device=_where(shop),
            budget_s=min(20.0, max(2.0, shop.settings.budget_s / 10)),
        )
    accepted, why = _verdict(wrong, engaged, timed.speedup, timed.low, timed.high)
    return ModelCheck(
        eager_ms=timed.eager_ms,
        forge_ms=timed.forge_ms,
        speedup=timed.speedup,
        speedup_low=timed.low,
        speedup_high=timed.high,
        output_error=error,
        engaged=engaged,
        accepted=accepted,
        why=why,
    )


def _where(shop: Workshop) -> str:
    return f"cuda:{shop.device.index}" if shop.device.type == "cuda" else "cpu"


def _fresh(state: State, workload: Workload, target: Callable[..., Any]) -> Callable[[], Any]:
    """A call that starts from the user's state every time: buffers, random numbers, caches in the arguments."""

    def run() -> Any:
        state.rewind()
        call = workload.call.isolated()
        return target(*call.args, **call.kwargs)

    return run


def _plain(workload: Workload, target: Callable[..., Any]) -> Callable[[], Any]:
    """The bare call, for timing: what it leaves behind is put right at the end, outside the measured time."""

    def run() -> Any:
        call = workload.call.isolated()
        return target(*call.args, **call.kwargs)

    return run


def _verdict(wrong: str, engaged: int, speedup: float, low: float, high: float) -> tuple[bool, str]:
    """Whether the kernels stay, and why. speedup, low, high: of the whole model, with its 95 % interval."""
    if wrong:
        return False, wrong
    if engaged == 0:
        return False, "no forged kernel was called: the model takes another path when it runs than when it was captured"
    if high < 1.0 or speedup < HARM:
        return False, f"the whole model got slower ({speedup:.2f}x), so it was put back"
    if low < 1.0:
        return True, f"right, but no measurable change end to end ({speedup:.2f}x, {low:.2f} to {high:.2f})"
    return True, f"{speedup:.2f}x end to end"


def _output_error(
    workload: Workload, state: State, eager: Sequence[torch.Tensor], forged: Sequence[torch.Tensor], policy: Policy
) -> tuple[float, str]:
    """Worst ratio of forged error to eager error over the outputs, and what is wrong, if anything is."""
    if len(eager) != len(forged) or any(
        a.shape != b.shape or a.dtype != b.dtype for a, b in zip(eager, forged, strict=False)
    ):
        return float("inf"), "the forged model returns other shapes or types than eager"
    if policy is Policy.BITWISE:
        same = all(torch.equal(a, b) for a, b in zip(eager, forged, strict=True))
        return (0.0, "") if same else (float("inf"), "outputs differ from eager's bits")
    wide = _wider_outputs(workload, state)
    worst = 0.0
    for k, (a, b) in enumerate(zip(eager, forged, strict=True)):
        if not a.is_floating_point():
            continue
        if not torch.equal(torch.isfinite(a), torch.isfinite(b)):
            return float("inf"), f"output {k}: NaN or infinity where eager has a number, or the reverse"
        reference = wide[k] if wide is not None else a
        worst = max(worst, _ratio(a, b, reference))
    if worst > ERROR_LIMIT:
        return (
            worst,
            f"outputs are {worst:.1f} times as far from the higher-precision result as eager's, more than {ERROR_LIMIT:g}",
        )
    return worst, ""


def _ratio(eager: torch.Tensor, forged: torch.Tensor, reference: torch.Tensor) -> float:
    """RMS error of forged over RMS error of eager, the latter at least half a unit in the last place of the output's
    scale.
    """
    keep = torch.isfinite(eager)
    r = reference.double()[keep]
    if r.numel() == 0:
        return 0.0
    scale = r.square().mean().sqrt().item()
    own = (eager.double()[keep] - r).square().mean().sqrt().item()
    ours = (forged.double()[keep] - r).square().mean().sqrt().item()
    # Without a wider run, eager is the reference; depth lets rounding grow to some tens of units.
    floor = scale * torch.finfo(eager.dtype).eps * (0.5 if reference is not eager else 16.0)
    return ours / max(own, floor, 1e-300)


def _wider_outputs(workload: Workload, state: State) -> list[torch.Tensor] | None:
    """The model in the next wider float type on the same inputs; None where that does not work."""
    model = workload.target
    assert isinstance(model, torch.nn.Module)
    kinds = {p.dtype for p in model.parameters() if p.is_floating_point()}
    if len(kinds) != 1 or not _memory_allows(model):
        return None
    wider = _WIDER.get(next(iter(kinds)))
    if wider is None:
        return None
    state.rewind()
    call = workload.call.isolated()

    def widen(leaf: Any) -> Any:
        return leaf.to(wider) if isinstance(leaf, torch.Tensor) and leaf.dtype in kinds else leaf

    args, kwargs = pytree.tree_map(widen, (call.args, dict(call.kwargs)))
    try:
        return tensors_of(copy.deepcopy(model).to(wider)(*args, **kwargs))
    except (
        RuntimeError,
        TypeError,
        ValueError,
        NotImplementedError,
    ):  # the model may insist on its own type: eager is the reference then
        return None


def _memory_allows(model: torch.nn.Module) -> bool:
    """Whether a copy of the weights in the wider type fits beside the model."""
    need = sum(p.numel() * p.element_size() for p in model.parameters()) * 3
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return need < free
    return need < 8 << 30
