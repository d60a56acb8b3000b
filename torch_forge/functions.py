"""Functions: ``forge`` tunes one now, ``optimize`` decorates one (or a module class) to use what is known of its calls.

A function is traced on the call's tensors to one ATen graph; its regions are forged like a model's, and what remains
runs as the ATen calls it was. Numbers, strings and other plain arguments are constants of the traced graph.
"""

from __future__ import annotations

import functools
import inspect
import logging
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_forge.dispatch.call import ForgedFunction
from torch_forge.dispatch.graph import substitute
from torch_forge.dispatch.shadow import ShadowGuard, agree
from torch_forge.errors import CaptureError, DeviceError, ForgeError, UsageError
from torch_forge.function_check import FunctionCheck
from torch_forge.generation.llm.author import LLMAuthor
from torch_forge.generation.llm.litellm_client import LiteLLMClient
from torch_forge.graphs.capture import graph_from_fx, name_of, spec_of, trace_specs
from torch_forge.graphs.decompose import before_partition
from torch_forge.graphs.partition import FxRegion, Rejected, regions
from torch_forge.installing import Installed
from torch_forge.pipeline import TuneResult, autotune
from torch_forge.profiling.workload import Call
from torch_forge.records.problem import Policy, Problem
from torch_forge.records.program import NotLowered
from torch_forge.records.session import RegionResult
from torch_forge.report.progress import make_progress
from torch_forge.search.forge import Forged, forge_problem
from torch_forge.search.workshop import Deadline, Workshop
from torch_forge.settings import Settings
from torch_forge.validation.static.source import source_reasons

log = logging.getLogger("torch_forge")


@dataclass(frozen=True)
class Traced:
    """One function at one call, as a graph of its tensors."""

    gm: torch.fx.GraphModule
    problem: Problem
    tensors: tuple[torch.Tensor, ...]
    structure: pytree.TreeSpec
    """Of the function's output."""


class ForgeResult(ForgedFunction):
    """A forged function: call it like the original. ``regions`` and ``region`` say what was decided, ``revert()`` undoes
    it.
    """

    def __init__(self, fn: Callable[..., Any], *, name: str) -> None:
        super().__init__(fn, name=name)
        self.regions: tuple[RegionResult, ...] = ()
        """One per region that was tried."""
        self.region: RegionResult
        """The whole function, measured through the dispatcher against eager and ``torch.compile``."""
        self.notes: tuple[str, ...] = ()
        self._installed: list[Installed] = []

    def revert(self) -> None:
        """From now on this is the original function; its operators are given back."""
        self.remove_all()
        for installed in self._installed:
            installed.release()
        self._installed.clear()


def forge(  # noqa: PLR0913 (options of a public function, all by keyword)
    fn: Callable[..., Any],
    sample: Any,
    *,
    budget: float | None = None,
    policy: str | Policy = Policy.EAGER_EQUIVALENT,
    progress: Any = None,
    llm: str | None = None,
    settings: Settings | None = None,
    shop: Workshop | None = None,
    measure: bool | None = None,
) -> ForgeResult:
    """Forge kernels for one function at one call and return it as a callable that uses them.

    sample: a tensor, a tuple of positional arguments, a dict of keyword arguments, or ``torch_forge.Call``. Every tensor
    that
    the function reads must be among them. llm: a model name for litellm. shop: an open workshop to reuse.
    measure: whether to race the result against eager and ``torch.compile`` now; by default if something new was forged.
    Calls unlike the sample run ``fn`` itself. Raises UsageError for a sample that cannot be used, CaptureError if the
    function cannot be traced.
    """
    if isinstance(fn, torch.nn.Module):
        raise UsageError("forge takes a function", advice="For a module use torch_forge.autotune(model, sample).")
    call = Call.of(sample)
    settings = settings or Settings.resolve(budget_s=budget)
    policy = Policy.of(policy)
    result = ForgeResult(fn, name=getattr(fn, "__name__", type(fn).__name__))
    opened = shop or Workshop.open(
        device_of(call), settings, policy=policy, progress=make_progress(progress or settings.progress)
    )
    try:
        author = LLMAuthor(LiteLLMClient(llm), refuse=source_reasons) if llm else None
        tune_call(result, call, opened, Deadline.after(settings.budget_s), author, measure=measure)
    finally:
        if shop is None:
            opened.progress.close()
            opened.close()
    return result


def device_of(call: Call) -> str:
    """The one device of a call's tensors. Raises UsageError if there are several or none."""
    devices = {str(t.device) for t in call.tensors}
    if len(devices) != 1:
        raise UsageError(
            "the sample has no tensors"
            if not devices
            else f"the sample's tensors are on several devices: {', '.join(sorted(devices))}",
            advice="Pass the tensors that the function computes with, all on one device.",
        )
    return devices.pop()


def trace(fn: Callable[..., Any], call: Call, policy: Policy) -> Traced:
    """The graph of ``fn`` at ``call``. Raises CaptureError."""
    leaves, structure_in = pytree.tree_flatten((call.args, dict(call.kwargs)))
    positions = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    structure: list[pytree.TreeSpec] = []

    def flat(*tensors: torch.Tensor) -> tuple[Any, ...]:
        filled = list(leaves)
        for k, t in zip(positions, tensors, strict=True):
            filled[k] = t
        args, kwargs = pytree.tree_unflatten(filled, structure_in)
        outputs, out_structure = pytree.tree_flatten(fn(*args, **kwargs))
        structure.append(out_structure)
        return tuple(outputs)

    tensors = tuple(leaves[k] for k in positions)
    specs = [spec_of(t) for t in tensors]
    gm = trace_specs(flat, specs, device=tensors[0].device.type, decompositions=before_partition())
    graph = graph_from_fx(gm)
    return Traced(gm, Problem(name_of(graph), graph, policy), tensors, structure[-1])


def tune_call(
    result: ForgeResult,
    call: Call,
    shop: Workshop,
    deadline: Deadline,
    author: LLMAuthor | None,
    *,
    measure: bool | None = None,
) -> None:
    """Forge the regions of one call and, if the whole gains, serve that call with them."""
    traced = trace(result.reference, call, shop.policy)
    found, rejected = regions(traced.gm, policy=shop.policy)
    forged, installed = _forge_regions(traced, found, rejected, shop, deadline, author)
    result.regions += tuple(f.result for f in forged)
    run = _runner(traced, found, installed) if len(installed) else None
    parts = tuple(f.result for f in forged)
    check = FunctionCheck(result.name, result.reference, call, traced, parts, tuple(rejected), shop)
    fresh = run is not None and not all(p.from_cache for p in parts)
    result.region = check.result(run, measure=fresh if measure is None else measure)
    if run is None or result.region.verdict != "installed":
        installed.release()
        _remember_loss(result.region, found, shop)
        return
    result._installed.append(installed)
    every = shop.settings.shadow_every
    shadow = ShadowGuard(every, agree) if every > 0 else None
    result.add(call.args, call.kwargs, run, structure=traced.structure, shadow=shadow)


def _remember_loss(whole: RegionResult, found: list[FxRegion], shop: Workshop) -> None:
    """A function that is one region lost as a whole: the next run need not race it again."""
    if shop.cache is not None and len(found) == 1 and whole.forge_us is not None:
        problem = found[0].problem
        shop.cache.keep(shop.key(problem), problem.workload, replace(whole, name=problem.name, workload=problem.workload))


def _forge_regions(
    traced: Traced,
    found: list[FxRegion],
    rejected: list[Rejected],
    shop: Workshop,
    deadline: Deadline,
    author: LLMAuthor | None,
) -> tuple[list[Forged], Installed]:
    """Decide about every region; without any, an LLM may try the function as one problem."""
    installed = Installed(shop)
    forged: list[Forged] = []
    distinct = list({r.problem.workload: r for r in found}.values())
    for position, region in enumerate(distinct):
        shop.progress.region(region.problem.name, position + 1, len(distinct))
        decided = forge_problem(
            region.problem, region.lowered, shop, deadline=deadline, author=author, against_inductor=len(distinct) > 1
        )
        forged.append(decided)
        installed.add(decided)
    tried = {region.problem.workload for region in distinct}
    if author is not None and not len(installed) and traced.problem.workload not in tried:
        reasons = tuple(r.why for r in rejected) or ("no template region",)
        decided = forge_problem(traced.problem, NotLowered(reasons), shop, deadline=deadline, author=author)
        forged.append(decided)
        installed.add(decided)
    return forged, installed


def _runner(traced: Traced, found: list[FxRegion], installed: Installed) -> Callable[..., Any]:
    """The function with its forged regions, from flat tensors to flat outputs."""
    whole = installed.operator(traced.problem.workload)
    if whole is not None:
        return whole
    replacements = [(r, op) for r in found if (op := installed.lookup(r)) is not None]
    gm = substitute(traced.gm, replacements)
    single = _single_operator(gm)
    return single if single is not None else gm.forward


def _single_operator(gm: torch.fx.GraphModule) -> Callable[..., Any] | None:
    """The operator itself where it is all that is left, its arguments in order: one call less."""
    calls = [n for n in gm.graph.nodes if n.op == "call_function"]
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    if len(calls) != 1 or list(calls[0].args) != placeholders:
        return None
    output = next(n for n in gm.graph.nodes if n.op == "output").args[0]
    return calls[0].target if list(output) == [calls[0]] else None  # type: ignore[return-value, arg-type]


# --- the decorator --------------------------------------------------------------------------------------------------


def optimize(
    target: Any = None, *, tune: str = "never", budget: float | None = None, policy: str | Policy = Policy.EAGER_EQUIVALENT
) -> Any:
    """Decorate a function or an ``nn.Module`` class: known calls run forged kernels, unknown ones run eager, bit for bit.

    tune: ``never`` uses what the cache holds (filled by ``autotune``, ``forge`` or ``torch-forge build-cache``) and notes
    unknown calls in
    ``.seen``; ``first`` tunes at the first call of each kind, within ``budget`` seconds.
    Usable bare (``@optimize``) and with arguments (``@optimize(tune="first")``). Raises UsageError for anything else.
    """
    if tune not in ("never", "first"):
        raise UsageError(f"tune={tune!r} is not known", advice="Use 'never' or 'first'.")
    options = _Options(tune, budget, Policy.of(policy))
    if target is None:
        return functools.partial(_decorate, options=options)
    return _decorate(target, options=options)


@dataclass(frozen=True)
class _Options:
    tune: str
    budget: float | None
    policy: Policy

    def settings(self) -> Settings:
        return Settings.resolve(budget_s=self.budget)


def _decorate(target: Any, *, options: _Options) -> Any:
    if inspect.isclass(target) and issubclass(target, torch.nn.Module):
        return _decorate_class(target, options)
    if callable(target) and not inspect.isclass(target):
        return OptimizedFunction(target, options)
    raise UsageError(f"cannot optimize {target!r}", advice="Decorate a function or a torch.nn.Module class.")


MAX_CALLS = 32
"""Kinds of calls that one decorated function looks up or tunes; later ones run eager."""


class OptimizedFunction(ForgeResult):
    """A decorated function: looks an unknown kind of call up in the cache once, or tunes it once."""

    def __init__(self, fn: Callable[..., Any], options: _Options) -> None:
        super().__init__(fn, name=getattr(fn, "__name__", type(fn).__name__))
        self._options = options
        self._looked_up = 0

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        known = len(self._seen)
        result = super().__call__(*args, **kwargs)
        if len(self._seen) > known and self._looked_up < MAX_CALLS:
            self._looked_up += 1
            self._learn(Call(args, kwargs))
        return result

    def _learn(self, call: Call) -> None:
        """Look the call up, or tune it; whatever goes wrong leaves it eager, with one line in the log."""
        settings = self._options.settings()
        if settings.disabled or not call.tensors:
            return
        deadline = Deadline.after(settings.budget_s if self._options.tune == "first" else 0.0)
        try:
            with Workshop.open(device_of(call), settings, policy=self._options.policy) as shop:
                if self._options.tune == "never":
                    shop.toolchain = None
                tune_call(self, call, shop, deadline, None)
        except (CaptureError, UsageError, DeviceError) as error:
            log.info("%s stays eager for this call: %s", self.name, error)
        except ForgeError as error:
            log.warning("%s stays eager for this call: %s", self.name, error.explain())


_TUNED: weakref.WeakKeyDictionary[torch.nn.Module, TuneResult | None] = weakref.WeakKeyDictionary()
"""Instances of decorated classes that have seen their first call; not kept on the instance, whose state is the user's."""


def _decorate_class(cls: type[torch.nn.Module], options: _Options) -> type[torch.nn.Module]:
    """Instances tune themselves at the first call if asked to, else use what the cache holds; the class stays the same
    class.
    """
    original = cls.__call__

    @functools.wraps(original)
    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling() and self not in _TUNED:
            _TUNED[self] = None  # while tuning calls the module
            _TUNED[self] = _tune_instance(self, args, kwargs, options)
        return original(self, *args, **kwargs)

    cls.__call__ = call  # type: ignore[method-assign]
    return cls


def _tune_instance(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: _Options
) -> TuneResult | None:
    settings = options.settings()
    if settings.disabled:
        return None
    try:
        return autotune(
            module,
            Call(args, kwargs),
            policy=options.policy,
            progress="off",
            settings=settings,
            only_cached=options.tune == "never",
        )
    except (UsageError, DeviceError) as error:
        log.info("%s stays eager: %s", type(module).__name__, error)
    except ForgeError as error:
        log.warning("%s stays eager: %s", type(module).__name__, error.explain())
    return None


__all__ = ["ForgeResult", "OptimizedFunction", "forge", "optimize"]
