"""Templates on a real GPU: every family right and at odd sizes, then through streams, graphs and a whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torch_forge
from tests.unit.test_lowering import CASES
from torch_forge.compilation.build import build_many
from torch_forge.compilation.jobs import build_jobs
from torch_forge.functions import trace
from torch_forge.generation.templates.engine import candidates
from torch_forge.graphs.lower import lower
from torch_forge.profiling.workload import Call
from torch_forge.records.kernels import Built, Candidate
from torch_forge.records.outcomes import Passed
from torch_forge.records.problem import Policy
from torch_forge.records.program import Lowered
from torch_forge.search.workshop import Workshop
from torch_forge.settings import Settings
from torch_forge.validation.judge import Judge

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    settings = Settings.resolve({}, cache_dir=tmp_path_factory.mktemp("cache"), budget_s=60.0, peers="eager")
    with Workshop.open("cuda", settings) as opened:
        yield opened


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def test_every_lowering_case_is_right_in_every_config(shop: Workshop) -> None:
    """All the small graphs of the lowering tests, built together, each config judged on the GPU."""
    judges: dict[str, tuple[str, Judge]] = {}
    proposed: list[Candidate] = []
    for name, (fn, make, _) in CASES.items():
        torch.manual_seed(0)
        problem = trace(fn, Call(tuple(t.cuda() for t in make())), Policy.EAGER_EQUIVALENT).problem
        lowered = lower(problem)
        assert isinstance(lowered, Lowered), name
        judge = Judge(problem, lowered=lowered, device=shop.device, pool=shop.pool, settings=shop.settings, seed=0)
        for candidate in candidates(problem, lowered, shop.device):
            judges[candidate.digest] = name, judge
            proposed.append(candidate)
    assert shop.can_build()
    assert shop.toolchain is not None
    jobs = build_jobs(shop.settings)
    failures: list[str] = []
    for candidate, built in build_many(
        proposed, shop.toolchain, shop.pool, staging_root=shop.staging, timeout_s=120, jobs=jobs
    ):
        name, judge = judges[candidate.digest]
        if not isinstance(built, Built):
            failures.append(f"{name}, {candidate.author}: {built}")
            continue
        for config, verdict in judge.verdicts(built).items():
            if not isinstance(verdict, Passed):
                failures.append(f"{name}, {candidate.author} config {config}: {verdict}")
    assert not failures, "\n".join(f[:600] for f in failures)


SHAPES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], torch.dtype]] = {
    "short odd rows": (lambda x: F.softmax(x, -1), ((513, 67),), torch.float32),
    "long rows": (lambda x: F.softmax(x, -1), ((200, 50257),), torch.bfloat16),
    "very long rows": (lambda x: torch.logsumexp(x, -1), ((200, 300001),), torch.float32),
    "layer norm f16": (lambda x, w, b: F.layer_norm(x, (1000,), w, b), ((333, 1000), (1000,), (1000,)), torch.float16),
    "rms norm": (rms_norm, ((777, 4096), (4096,)), torch.bfloat16),
    "odd pointwise": (lambda a, b: F.silu(a) * b, ((1031, 777), (1031, 777)), torch.bfloat16),
    "scan": (lambda x: torch.cumsum(x, -1), ((257, 4099),), torch.float32),
}


@pytest.mark.parametrize("name", SHAPES)
def test_odd_sizes_are_right(shop: Workshop, name: str) -> None:
    fn, shapes, dtype = SHAPES[name]
    args = tuple(torch.randn(s, device="cuda", dtype=dtype) for s in shapes)
    forged = torch_forge.forge(fn, args, shop=shop)
    assert forged.region.verdict in ("installed", "kept"), forged.region.why
    assert forged.regions[0].forge_us is not None, forged.regions[0].why
    if forged.region.verdict == "installed":
        assert forged.region.error is not None
        assert forged.region.eager_error is not None
        assert forged.region.error.rms <= 3 * forged.region.eager_error.rms + 1e-7


def test_streams_graphs_and_misaligned_views(shop: Workshop) -> None:
    x, w = (
        torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16),
        torch.rand(4096, device="cuda", dtype=torch.bfloat16),
    )
    fast = torch_forge.forge(rms_norm, (x, w), shop=shop)
    assert len(fast) == 1, fast.region.why
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        y = x * 1
        torch.cuda._sleep(10_000_000)
        y.mul_(2)
        z = fast(y, w)
    torch.cuda.current_stream().wait_stream(side)
    torch.testing.assert_close(z, rms_norm(x * 2, w))
    graph = torch.cuda.CUDAGraph()
    static = x.clone()
    fast(static, w)
    with torch.cuda.graph(graph):
        out = fast(static, w)
    for seed in range(2):
        static.copy_(torch.randn(4096, 4096, device="cuda", generator=torch.Generator("cuda").manual_seed(seed)))
        graph.replay()
        torch.testing.assert_close(out, rms_norm(static, w))
    base = torch.randn(4096 * 4096 + 1, device="cuda").bfloat16()
    shifted = base[1:].view(4096, 4096)
    torch.testing.assert_close(fast(shifted, w), rms_norm(shifted, w))


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(1024), torch.nn.Linear(1024, 4096), torch.nn.Linear(4096, 1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x)))).softmax(-1)


def test_a_model_is_tuned_in_place(shop: Workshop, tmp_path: Any) -> None:
    model, x = Block().cuda().half().eval(), torch.randn(4096, 1024, device="cuda", dtype=torch.float16)
    with torch.no_grad():
        want = model(x)
        result = torch_forge.autotune(model, x, settings=shop.settings, progress="off")
        assert result.report.check is not None, result.summary()
        torch.testing.assert_close(model(x), want, rtol=1e-2, atol=1e-2)
    result.revert()
