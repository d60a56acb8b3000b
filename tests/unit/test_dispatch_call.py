"""ForgedFunction: known calls are served, every other call is the original's, whatever is asked of it.

``run`` marks what it returns (``MARK``), so a test sees who served a call; where values must agree it computes the same.
"""

from __future__ import annotations

import copy
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torch_forge.dispatch.call import MOST_SEEN, ForgedFunction, native_guard
from torch_forge.dispatch.shadow import ShadowGuard
from torch_forge.errors import UsageError

MARK = 1000.0


def scale(x: Tensor, y: Tensor) -> Tensor:
    """Doc of the original."""
    return x * y + 1


def forged_scale(x: Tensor, y: Tensor) -> Tensor:
    return scale(x, y) + MARK


def is_forged(result: Tensor) -> bool:
    return bool(result.detach().abs().max() > MARK / 2)


@pytest.fixture
def pair() -> tuple[Tensor, Tensor]:
    return torch.rand(4, 3), torch.rand(4, 3)


@pytest.fixture
def forged(pair: tuple[Tensor, Tensor]) -> ForgedFunction:
    function = ForgedFunction(scale, name="scale")
    function.add(pair, {}, forged_scale)
    return function


class FunctionWatcher(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class DispatchWatcher(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Subclass(Tensor):
    pass


@contextmanager
def dual_level() -> Iterator[None]:
    with forward_ad.dual_level():
        yield


def test_a_known_call_is_served_cold_and_warm(forged: ForgedFunction, pair: tuple[Tensor, Tensor]) -> None:
    for _ in range(3):
        assert torch.equal(forged(*pair), forged_scale(*pair))
    assert forged(*(t.clone() for t in pair)) is not None
    assert forged.seen == {}


OTHER_INPUTS: dict[str, Callable[[Tensor, Tensor], tuple[Any, ...]]] = {
    "shape": lambda x, y: (x[:2], y[:2]),
    "broadcast": lambda x, y: (x, y[0]),
    "transposed": lambda x, y: (x.t().contiguous().t(), y),
    "every-second": lambda x, y: (torch.rand(4, 6)[:, ::2], y),
    "expanded": lambda x, y: (x[:, :1].expand(4, 3), y),
    "row-stride": lambda x, y: (torch.rand(4, 5)[:, :3], y),
    "double": lambda x, y: (x.double(), y.double()),
    "mixed": lambda x, y: (x, y.half()),
    "complex": lambda x, y: (x.to(torch.complex64), y),
    "integer": lambda x, y: (x.int(), y.int()),
    "number": lambda x, y: (x, 2.0),
    "meta": lambda x, y: (x.to("meta"), y.to("meta")),
    "sparse": lambda x, y: (x.to_sparse(), y),
    "subclass": lambda x, y: (x.as_subclass(Subclass), y),
    "empty": lambda x, y: (x[:0], y[:0]),
    "scalar-tensor": lambda x, y: (x[0, 0], y[0, 0]),
}


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("change", OTHER_INPUTS.values(), ids=OTHER_INPUTS)
def test_other_inputs_are_the_originals(
    forged: ForgedFunction, pair: tuple[Tensor, Tensor], change: Callable[..., tuple[Any, ...]], warm: bool
) -> None:
    if warm:
        forged(*pair)
    args = change(*pair)
    try:
        expected = scale(*args)
    except RuntimeError as error:
        message = str(error)
        with pytest.raises(RuntimeError, match=re.escape(message)):
            forged(*args)
        return
    actual = forged(*args)
    assert type(actual) is type(expected)
    assert (actual.shape, actual.dtype, actual.device, actual.layout) == (
        expected.shape, expected.dtype, expected.device, expected.layout,
    )  # fmt: skip
    if actual.device.type != "meta":
        assert torch.equal(actual.to_dense(), expected.to_dense())


AMBIENTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "function-mode": FunctionWatcher,
    "dispatch-mode": DispatchWatcher,
    "fake-mode": lambda: FakeTensorMode(allow_non_fake_inputs=True),
    "forward-ad": dual_level,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "default-device": lambda: torch.device("cpu"),
}


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("ambient", AMBIENTS.values(), ids=AMBIENTS)
def test_a_watched_call_is_the_originals(
    forged: ForgedFunction, pair: tuple[Tensor, Tensor], ambient: Callable[[], AbstractContextManager[Any]], warm: bool
) -> None:
    ran: list[str] = []
    forged.add(pair, {}, lambda x, y: ran.append("forged") or scale(x, y))  # type: ignore[func-returns-value]
    if warm:
        forged(*pair)
        ran.clear()
    with ambient():
        forged(*pair)
    assert ran == []
    forged(*pair)
    assert ran == ["forged"]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_functional_transforms_see_the_original(forged: ForgedFunction, warm: bool) -> None:
    x, y = torch.rand(5, 4, 3), torch.rand(4, 3)
    if warm:
        forged(y, y)
    assert torch.equal(torch.vmap(forged, in_dims=(0, None))(x, y), scale(x, y))
    gradient = torch.func.grad(lambda a: forged(a, y).sum())(x[0])
    assert torch.equal(gradient, y)
    assert torch.allclose(torch.func.jvp(forged, (x[0], y), (torch.ones_like(y), torch.zeros_like(y)))[1], y)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")
def test_dual_tensors_keep_their_tangent(forged: ForgedFunction, pair: tuple[Tensor, Tensor]) -> None:
    forged(*pair)
    with forward_ad.dual_level():
        out = forged(forward_ad.make_dual(pair[0], torch.ones(4, 3)), pair[1])
        assert torch.equal(forward_ad.unpack_dual(out).tangent, pair[1])


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_tracing_and_export_record_the_original(forged: ForgedFunction, pair: tuple[Tensor, Tensor]) -> None:
    forged(*pair)
    assert torch.equal(torch.jit.trace(forged.__call__, pair, check_trace=False)(*pair), scale(*pair))

    class Wrapper(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            result: Tensor = forged(x, y)
            return result

    for strict in (False, True):
        program = torch.export.export(Wrapper(), pair, strict=strict)
        assert {str(n.target).split(".")[0] for n in program.graph.nodes if n.op == "call_function"} == {"aten"}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles_without_a_graph_break(forged: ForgedFunction, pair: tuple[Tensor, Tensor], backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, y: forged(x, y) * 2, fullgraph=True, backend=backend)
    assert torch.equal(compiled(*pair), scale(*pair) * 2)
    x = pair[0].clone().requires_grad_()
    compiled(x, pair[1]).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, pair[1] * 2)
    assert torch.equal(torch.compile(forged, fullgraph=True, backend=backend)(*pair), scale(*pair))


def test_autocast_is_part_of_the_key(pair: tuple[Tensor, Tensor]) -> None:
    forged = ForgedFunction(scale, name="scale")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        forged.add(pair, {}, forged_scale)
        assert all(is_forged(forged(*pair)) for _ in range(2))
    assert not is_forged(forged(*pair))
    with torch.autocast("cpu", dtype=torch.float16):
        assert not is_forged(forged(*pair))


def test_keywords_containers_and_scalars_are_told_apart() -> None:
    def mix(x: Tensor, pair: tuple[Tensor, dict[str, Tensor]], *, alpha: float = 1.0, mode: str | None = None) -> Tensor:
        return x + pair[0] * alpha - pair[1]["b"]

    x, a, b = torch.rand(3, 2).unbind(0)
    forged = ForgedFunction(mix, name="mix")
    forged.add((x, (a, {"b": b})), {"alpha": 2.0, "mode": None}, lambda x, a, b: mix(x, (a, {"b": b}), alpha=2.0) + MARK)
    assert is_forged(forged(x, (a, {"b": b}), alpha=2.0, mode=None))
    assert is_forged(forged(x, (a, {"b": b}), mode=None, alpha=2.0))
    assert not is_forged(forged(x, (a, {"b": b}), alpha=3.0, mode=None))
    assert not is_forged(forged(x, (a, {"b": b}), alpha=2, mode=None))
    assert not is_forged(forged(x, [a, {"b": b}], alpha=2.0, mode=None))
    assert not is_forged(forged(x, (a, {"b": b}), alpha=2.0, mode="other"))
    assert not is_forged(forged(x, (a, {"b": b})))
    assert len(forged.seen) == 5


@pytest.mark.parametrize(
    ("known", "called"),
    [(0.0, -0.0), (1, True), (1, 1.0), (float("nan"), float("nan"))],
    ids=["zeros", "bool", "float", "nan"],
)
def test_scalars_that_compare_equal_are_not_one_case(known: Any, called: Any) -> None:
    x = torch.rand(3)
    forged = ForgedFunction(lambda x, s: x, name="f")
    forged.add((x, known), {}, lambda x: x + MARK)
    assert not is_forged(forged(x, called))


def test_outputs_take_the_users_structure(pair: tuple[Tensor, Tensor]) -> None:
    def stats(x: Tensor, y: Tensor) -> dict[str, Any]:
        return {"sum": x + y, "rest": [x - y, None, 3]}

    forged = ForgedFunction(stats, name="stats")
    structure = pytree.tree_structure(stats(*pair))
    forged.add(pair, {}, lambda x, y: (x + y + MARK, x - y, None, 3), structure=structure)
    for args in (pair, pair, tuple(t.clone().requires_grad_() for t in pair)):
        out = forged(*args)
        assert is_forged(out["sum"])
        assert torch.equal(out["rest"][0], pair[0] - pair[1])
        assert out["rest"][1:] == [None, 3]


class Holder:
    def __init__(self, offset: float) -> None:
        self.offset = offset

    def method(self, x: Tensor) -> Tensor:
        return x + self.offset

    forged_method = ForgedFunction(method, name="method")


def test_works_as_a_method_and_never_confuses_two_objects() -> None:
    x = torch.rand(3)
    assert torch.equal(Holder(2.0).forged_method(x), x + 2)
    assert torch.equal(Holder(3.0).forged_method(x), x + 3)
    assert isinstance(Holder.forged_method, ForgedFunction)
    with pytest.raises(UsageError, match="cannot be recognised"):
        Holder.forged_method.add((Holder(1.0), x), {}, lambda x: x)


def test_looks_like_the_original(forged: ForgedFunction) -> None:
    assert (forged.__name__, forged.__doc__, forged.__wrapped__) == ("scale", "Doc of the original.", scale)  # type: ignore[attr-defined]
    assert "1 known calls" in repr(forged)


def test_an_error_of_the_original_is_raised_once(pair: tuple[Tensor, Tensor]) -> None:
    calls = []

    def fails(x: Tensor) -> Tensor:
        calls.append(1)
        raise RuntimeError("of the original")

    forged = ForgedFunction(fails, name="fails")
    for _ in range(4):
        with pytest.raises(RuntimeError, match="of the original"):
            forged(pair[0])
    assert len(calls) == 4


def test_an_unknown_case_is_served_once_it_is_added(pair: tuple[Tensor, Tensor]) -> None:
    forged = ForgedFunction(scale, name="scale")
    for _ in range(4):
        assert not is_forged(forged(*pair))
    forged.add(pair, {}, forged_scale)
    assert is_forged(forged(*pair))


def test_remove_and_remove_all_restore_the_original(forged: ForgedFunction, pair: tuple[Tensor, Tensor]) -> None:
    key = forged.add(pair, {}, forged_scale)
    assert is_forged(forged(*pair))
    forged.remove(key)
    assert torch.equal(forged(*pair), scale(*pair))
    forged.add(pair, {}, forged_scale)
    assert is_forged(forged(*pair))
    forged.remove_all()
    assert torch.equal(forged(*pair), scale(*pair))


def test_unknown_calls_are_counted_up_to_a_limit(forged: ForgedFunction, pair: tuple[Tensor, Tensor]) -> None:
    for n in range(1, MOST_SEEN + 10):
        forged(torch.rand(n, 1), torch.rand(1))
    forged(torch.rand(1, 1), torch.rand(1))
    assert len(forged.seen) == MOST_SEEN
    assert max(forged.seen.values()) == 2
    for _ in range(3):
        assert torch.equal(forged(*pair), forged_scale(*pair))
        forged(torch.rand(1, 1), torch.rand(1))
    assert max(forged.seen.values()) == 5
    (first, *_) = forged.seen
    assert first.leaves[0] == ((1, 1), (1, 1), torch.float32, torch.device("cpu"))


def test_many_known_shapes(pair: tuple[Tensor, Tensor]) -> None:
    forged = ForgedFunction(scale, name="scale")
    inputs = [(torch.rand(n, 2), torch.rand(n, 2)) for n in range(1, 30)]
    for args in inputs:
        forged.add(args, {}, forged_scale)
    assert all(is_forged(forged(*args)) for _ in range(2) for args in inputs)


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_a_kernel_that_fails_is_dropped_and_reported_once(
    pair: tuple[Tensor, Tensor], warm: bool, caplog: pytest.LogCaptureFixture
) -> None:
    failing = not warm

    def run(x: Tensor, y: Tensor) -> Tensor:
        if failing:
            raise RuntimeError("torch_forge::scale: the kernel refused these inputs")
        return forged_scale(x, y)

    forged = ForgedFunction(scale, name="scale")
    forged.add(pair, {}, run)
    if warm:
        forged(*pair)
        failing = True
    for _ in range(3):
        assert torch.equal(forged(*pair), scale(*pair))
    assert len(forged) == 0
    assert len(caplog.records) == 1
    assert "the kernel refused" in caplog.text


@pytest.mark.parametrize("error", [IndexError, torch.OutOfMemoryError], ids=lambda e: e.__name__)
def test_a_bad_index_or_full_memory_is_not_the_kernels_fault(pair: tuple[Tensor, Tensor], error: type[Exception]) -> None:
    def run(x: Tensor, y: Tensor) -> Tensor:
        raise error("of the kernel")

    forged = ForgedFunction(scale, name="scale")
    forged.add(pair, {}, run)
    assert torch.equal(forged(*pair), scale(*pair))
    assert len(forged) == 1


@pytest.mark.parametrize(
    ("every_n", "wrong_from", "expected"),
    [(1, 0, [False] * 4), (1, 2, [True, True, False, False]), (2, 1, [True, True, False, False])],
    ids=["first-call", "third-call", "between-checks"],
)
def test_shadow_drops_a_kernel_at_its_first_disagreement(
    pair: tuple[Tensor, Tensor], every_n: int, wrong_from: int, expected: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    def run(x: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return scale(x, y) + (0.5 if calls > wrong_from else 0.0)

    forged = ForgedFunction(scale, name="scale")
    agree = ShadowGuard(every_n, lambda found, wanted: all(map(torch.equal, found, wanted)))
    forged.add(pair, {}, run, shadow=agree)
    served = []
    for _ in range(4):
        forged(*pair)
        served.append(len(forged) == 1)
    assert served == expected
    assert torch.equal(forged(*pair), scale(*pair))
    assert len(caplog.records) == 1


def test_shadow_needs_a_positive_period() -> None:
    with pytest.raises(UsageError):
        ShadowGuard(0, lambda found, wanted: True)


def test_two_instances_do_not_share_cases(forged: ForgedFunction, pair: tuple[Tensor, Tensor]) -> None:
    other = ForgedFunction(scale, name="other")
    assert is_forged(forged(*pair))
    assert not is_forged(other(*pair))


decorated = ForgedFunction(scale, name="decorated")
decorated.__qualname__ = "decorated"


def test_copies_and_pickles(forged: ForgedFunction, pair: tuple[Tensor, Tensor]) -> None:
    forged(*pair)
    twin = copy.deepcopy(forged)
    assert is_forged(twin(*pair))
    twin.remove_all()
    assert is_forged(forged(*pair))
    loaded = pickle.loads(pickle.dumps(forged))
    assert torch.equal(loaded(*pair), scale(*pair))
    decorated.__module__ = __name__
    assert pickle.loads(pickle.dumps(decorated)) is decorated


def test_threads_may_call_while_cases_come_and_go(pair: tuple[Tensor, Tensor]) -> None:
    forged = ForgedFunction(scale, name="scale")
    right = (scale(*pair), forged_scale(*pair))
    wrong: list[Tensor] = []
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            out = forged(*pair)
            if not any(torch.equal(out, r) for r in right):
                wrong.append(out)

    workers = [threading.Thread(target=call) for _ in range(3)]
    for worker in workers:
        worker.start()
    for _ in range(200):
        forged.add(pair, {}, forged_scale)
        forged.remove_all()
    stop.set()
    for worker in workers:
        worker.join()
    assert wrong == []


GUARDED: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "plain": nullcontext,
    "autocast": lambda: torch.autocast("cpu"),
    "inference": torch.inference_mode,
    "dispatch-mode": DispatchWatcher,
}


@pytest.mark.parametrize("ambient", GUARDED.values(), ids=GUARDED)
def test_the_native_guard_sees_dispatch_state(
    pair: tuple[Tensor, Tensor], ambient: Callable[[], AbstractContextManager[Any]]
) -> None:
    guard = native_guard(pair)
    assert guard is not None
    with ambient():
        assert guard(*pair) is (ambient is nullcontext)


def test_without_a_native_guard_calls_are_only_slower(
    forged: ForgedFunction, pair: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch._C._dynamo.guards, "TensorGuards")
    assert native_guard(pair) is None
    assert all(is_forged(forged(*pair)) for _ in range(3))
