"""Models tuned for real on the CPU: faster or left alone, the same numbers, the same module, and a way back."""

from __future__ import annotations

import copy
import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_forge
from tests.support.tuning import every_right_kernel_wins
from torch_forge.errors import UsageError
from torch_forge.pipeline import TuneResult
from torch_forge.records.session import SessionReport
from torch_forge.report.files import load
from torch_forge.settings import Settings

pytestmark = pytest.mark.compiler


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.float()
        return self.weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Net(nn.Module):
    """Mostly memory-bound, so that there is something to gain on a CPU."""

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.first, self.second = Norm(width), Norm(width)
        self.head = nn.Linear(width, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        y = self.second(F.gelu(self.first(x)) * x + x)
        return {"y": y, "logits": self.head(y[:8])}


X = (1024, 1024)


@pytest.fixture(scope="module", autouse=True)
def no_clock_decides() -> Iterator[None]:
    with every_right_kernel_wins():
        yield


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings.resolve(
        {"TORCH_FORGE_TIMING": "brief"},
        cache_dir=tmp_path_factory.mktemp("cache"),
        budget_s=90.0,
        progress="off",
        peers="eager",
    )


@pytest.fixture(scope="module")
def tuned(settings: Settings) -> Iterator[tuple[Net, TuneResult, torch.Tensor, dict[str, torch.Tensor]]]:
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(*X)
    with torch.no_grad():
        want = copy.deepcopy(model)(x)
        before = torch.get_rng_state()
        result = torch_forge.autotune(model, x, settings=settings)
        assert torch.equal(torch.get_rng_state(), before)
    assert model.calls.item() == 0
    yield model, result, x, want
    result.revert()


def test_report_tells_what_was_done(tuned: tuple[Net, TuneResult, torch.Tensor, dict[str, torch.Tensor]]) -> None:
    _, result, _, _ = tuned
    report = result.report
    assert [r.verdict for r in report.regions].count("installed") >= 1, result.summary()
    assert report.check is not None
    assert report.check.accepted, report.check.why
    assert report.check.engaged >= 1
    assert report.check.output_error <= 2.0
    assert "installed" in result.summary()


def test_tuned_model_is_right_and_the_same_module(
    tuned: tuple[Net, TuneResult, torch.Tensor, dict[str, torch.Tensor]],
) -> None:
    model, _, x, want = tuned
    with torch.no_grad():
        got = model(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert type(model) is Net
    assert list(model.state_dict()) == ["calls", "first.weight", "second.weight", "head.weight", "head.bias"]
    with torch.no_grad():
        short = torch.randn(3, X[1])
        assert torch.equal(model(short)["y"], copy.deepcopy(model)(short)["y"])


def test_new_weights_are_used(tuned: tuple[Net, TuneResult, torch.Tensor, dict[str, torch.Tensor]]) -> None:
    model, _, x, _ = tuned
    plain = copy.deepcopy(model)
    with torch.no_grad():
        for m in (model, plain):
            m.first.weight.mul_(3.0)
        torch.testing.assert_close(model(x)["y"], plain(x)["y"], rtol=1e-4, atol=1e-5)


def test_report_is_saved_and_read_back(
    tuned: tuple[Net, TuneResult, torch.Tensor, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    _, result, _, _ = tuned
    path = result.save(tmp_path / "report.json")
    assert isinstance(load(path), SessionReport)
    assert json.loads(path.read_text())["model"] == "Net"
    assert "| region" in result.save(tmp_path / "report.md").read_text()


WORK = (
    "search.trials.build_many", "search.decide.build_glue", "search.trials.Bench", "search.decide.peers",
    "search.forge.Judge", "machine.workers.WorkerPool.start", "machine.workers.WorkerPool.run",
)  # fmt: skip
"""What compiles, judges, times or starts a worker."""


def test_second_run_comes_from_the_cache(
    tuned: tuple[Net, TuneResult, torch.Tensor, dict[str, torch.Tensor]], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a second run builds, judges and times nothing")

    for name in WORK:
        monkeypatch.setattr(f"torch_forge.{name}", never)
    torch.manual_seed(1)
    other, x = Net().eval(), torch.randn(*X)
    with torch.no_grad():
        result = torch_forge.autotune(other, x, settings=settings)
    assert result.report.regions
    assert all(r.from_cache for r in result.report.regions)
    result.revert()
    assert other._compiled_call_impl is None


def test_a_class_can_be_decorated(
    tuned: tuple[Net, TuneResult, torch.Tensor, dict[str, torch.Tensor]], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FORGE_CACHE_DIR", str(settings.cache_dir))

    @torch_forge.optimize
    class Decorated(Net):
        pass

    assert isinstance(Decorated, type)
    model, x = Decorated().eval(), torch.randn(*X)
    with torch.no_grad():
        got = model(x)
        assert model._compiled_call_impl is not None
        torch.testing.assert_close(got["y"], copy.deepcopy(model)(x)["y"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        pytest.param(None, "NoneType", id="none"),
        pytest.param("text", "str", id="text"),
        pytest.param(torch.utils.data.TensorDataset(torch.zeros(2)), "TensorDataset", id="data set"),
    ],
)
def test_a_sample_of_the_wrong_type_says_what_to_pass(sample: object, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        torch_forge.autotune(Net(), sample)
    assert caught.value.advice


class Uncapturable(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy() * 2) if float(x.sum()) > 1e9 else x * 2


def test_no_compiler_leaves_the_model_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings.resolve({"TORCH_FORGE_TIMING": "brief"}, cache_dir=tmp_path, cxx="/nonexistent/g++", progress="off")
    model, x = Net().eval(), torch.randn(*X)
    with torch.no_grad():
        result = torch_forge.autotune(model, x, settings=settings)
        assert torch.equal(model(x)["y"], copy.deepcopy(model)(x)["y"])
    assert model._compiled_call_impl is None
    assert any("/nonexistent/g++" in note for note in result.report.notes)
    assert sum("/nonexistent/g++" in r.message for r in caplog.records) == 1


def test_a_model_that_breaks_the_graph_still_runs(settings: Settings) -> None:
    model, x = Uncapturable().eval(), torch.ones(64, 64)
    with torch.no_grad():
        result = torch_forge.autotune(model, x, settings=settings)
        assert torch.equal(model(x), x * 2)
    result.revert()


class TwoRegions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle = Norm(512), nn.Linear(512, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.middle(self.first(x)).tanh() * 0.5) + 1


def test_ctrl_c_keeps_what_was_won(settings: Settings) -> None:
    def interrupt(event: Mapping[str, Any]) -> None:
        if event["event"] == "region" and event["index"] == 2:
            signal.raise_signal(signal.SIGINT)

    model, x = TwoRegions().eval(), torch.randn(2048, 512)
    with torch.no_grad():
        want = model(x)
        result = torch_forge.autotune(model, x, settings=settings, progress=interrupt)
        torch.testing.assert_close(model(x), want, rtol=1e-4, atol=1e-5)
    assert not result.report.complete
    assert any("interrupted" in note for note in result.report.notes)
    assert len(result.report.regions) == 1
    result.revert()
