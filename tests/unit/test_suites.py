"""The suites: the workloads are what they say, and a run reports both peers and the bound in the published form."""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from torch_forge.errors import CaptureError, UsageError
from torch_forge.records.device import DeviceInfo
from torch_forge.records.outcomes import ErrorStats
from torch_forge.records.session import RegionResult
from torch_forge.suites import cpu, functions, ops
from torch_forge.suites.results import Row, group_means, means_text, row_text
from torch_forge.suites.run import add_arguments, report, run, run_command, workloads

DEVICE = DeviceInfo("cpu", 0, "a CPU", "avx2", 2, 1 << 34, 1 << 15, 1 << 25, 10.0, 1e11, ())


def region(**changes) -> RegionResult:
    values = dict(
        name="softmax", problem="p", workload="w", calls=1, share=1.0, eager_us=200.0, inductor_us=150.0, forge_us=100.0,
        bound_us=50.0, verdict="installed", why="2x", origin="template", error=ErrorStats(1e-8, 1e-7, (0,)),
        eager_error=ErrorStats(2e-8, 1e-7, (0,)), from_cache=False, outcomes={}, seconds=1.0,
    )  # fmt: skip
    return RegionResult(**{**values, **changes})


def row(group="mem", eager=200.0, inductor=150.0, forge=100.0, verdict="installed", why="") -> Row:
    return Row("a", group, eager, inductor, forge, 50.0, verdict, "template", None, None, why)


def test_the_suites_have_the_promised_sizes():
    groups = [w.group for w in ops.WORKLOADS]
    assert [groups.count(g) for g in ("mem", "lat", "gemm")] == [24, 5, 6]
    assert len(cpu.WORKLOADS) >= 12
    assert {a.dtype for w in cpu.WORKLOADS for a in w.args} == {"float32", "bfloat16"}
    assert all(1 << 20 <= max(a.nbytes for a in w.args) <= 64 << 20 for w in cpu.WORKLOADS)


@pytest.mark.parametrize("suite", [ops, cpu], ids=["ops", "cpu"])
def test_names_are_unique(suite):
    assert len({w.name for w in suite.WORKLOADS}) == len(suite.WORKLOADS)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("softmax_bf16_16384x4096", 268435456),
        ("add_rmsnorm_bf16_16384x4096", 536879104),
        ("cross_entropy_bf16_8192x128256", 2101411844),
        ("int8_rowquant_bf16_16384x4096", 201392128),
        ("moe_gate_top2_bf16_65536x64", 39845888),
        ("mlp_swiglu_decode_bf16_8x4096x14336", 352452608),
    ],
)
def test_unavoidable_traffic(name: str, expected: int):
    assert workloads("ops", [name])[0].min_bytes == expected


@pytest.mark.parametrize("workload", ops.WORKLOADS + cpu.WORKLOADS, ids=lambda w: w.name)
def test_every_workload_runs_on_its_shapes(workload):
    assert workload.min_bytes > 0


def test_arguments_are_drawn_from_the_seed_and_the_users_generator_is_untouched():
    workload = workloads("cpu", ["masked_scaled_softmax*"])[0]
    before = torch.get_rng_state()
    first, second, other = (workload.make("cpu", seed=s)[1] for s in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], other[0])
    assert sorted(first[1].unique().tolist()) == pytest.approx([-3.0e38, 0.0])


def _kl(student, teacher):
    p, q = torch.softmax(teacher, -1), torch.softmax(student, -1)
    return (p * (p.log() - q.log())).sum() / len(p)


def _top2(logits):
    best = logits.sort(-1, descending=True).values[:, :2]
    return torch.softmax(best, -1)


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        (functions.gelu_erf_chain, (torch.linspace(-4, 4, 9),), torch.nn.functional.gelu),
        (functions.gelu_tanh_chain, (torch.linspace(-4, 4, 9),), lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
        (
            functions.rms_norm,
            (torch.randn(3, 8), torch.ones(8)),
            lambda x, w: torch.nn.functional.rms_norm(x, (8,), w, 1e-6),
        ),
        (functions.kl_divergence, (torch.randn(3, 8), torch.randn(3, 8)), _kl),
        (functions.gate_top2, (torch.randn(5, 4),), _top2),
        (
            functions.quantize_rows,
            (torch.tensor([[127.0, -63.5, 1.0]]),),
            lambda _: torch.tensor([[127, -64, 1]], dtype=torch.int8),
        ),
    ],
    ids=["gelu erf", "gelu tanh", "rms_norm", "kl", "top2", "int8"],
)
def test_functions_compute_what_their_names_say(function, args, expected):
    got = function(*args)
    torch.testing.assert_close(got[0] if isinstance(got, tuple) else got, expected(*args))


def test_rotary_keeps_lengths_and_turns_nothing_at_angle_zero():
    query, key = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 3, 8)
    angle = torch.rand(2, 3, 4).repeat(1, 1, 2)
    turned, _ = functions.rotary(query, key, angle.cos(), angle.sin())
    torch.testing.assert_close(turned.norm(dim=-1), query.norm(dim=-1))
    same, _ = functions.rotary(query, key, torch.ones_like(angle), torch.zeros_like(angle))
    assert torch.equal(same, query)


def test_causal_convolution_does_not_look_ahead():
    x, weight, bias = torch.randn(1, 2, 6), torch.randn(2, 1, 4), torch.randn(2)
    changed = x.clone()
    changed[..., 4:] += 1
    before, after = (functions.causal_conv_silu(t, weight, bias) for t in (x, changed))
    assert torch.equal(before[..., :4], after[..., :4])
    assert not torch.equal(before[..., 4:], after[..., 4:])


def test_a_run_reports_peers_bound_and_errors_in_the_published_form():
    chosen = workloads("cpu", ["softmax_f32_2048x1024"])
    rows = list(run(chosen, DEVICE, lambda fn, args: SimpleNamespace(region=region())))
    plain = json.loads(report(rows, DEVICE, command="bench").to_json())
    assert set(plain) == {"device", "torch", "date", "command", "copy_gb_per_s", "workloads"}
    assert plain["workloads"] == [
        {
            "name": "softmax_f32_2048x1024", "group": "mem", "eager_us": 200.0, "inductor_us": 150.0, "forge_us": 100.0,
            "bound_us": pytest.approx(2 * 2048 * 1024 * 4 / 10e9 * 1e6), "verdict": "installed", "origin": "template",
            "error_vs_fp64": 1e-8, "eager_error_vs_fp64": 2e-8,
        }
    ]  # fmt: skip


def test_a_workload_that_cannot_be_captured_is_a_failed_row_and_the_run_goes_on():
    def forge(fn, args):
        if fn is functions.softmax:
            raise CaptureError("no graph")
        return SimpleNamespace(region=region())

    rows = list(run(workloads("cpu", ["softmax_f32_2048x1024", "rmsnorm_f32_128x2048"]), DEVICE, forge))
    assert [(r.verdict, r.why) for r in rows] == [("failed", "no graph"), ("installed", "2x")]


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(UsageError) as caught:
        workloads("cpu", ["nonsense"])
    assert "rmsnorm_f32_128x2048" in caught.value.advice


@pytest.mark.parametrize("calls_before_interrupt", [5, 1], ids=["whole", "interrupted"])
def test_the_file_always_holds_the_rows_so_far(tmp_path, calls_before_interrupt: int):
    calls = iter(range(calls_before_interrupt))

    def forge(fn, args):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return SimpleNamespace(region=region())

    parser, path, said = ArgumentParser(), tmp_path / "new" / "cpu.json", []
    add_arguments(parser)
    options = parser.parse_args(["--suite", "cpu", "--only", "softmax_f32_2048*", "rmsnorm_f32_128*", "--json", str(path)])
    try:
        run_command(
            options, command="bench --suite cpu", say=said.append, open_forge=lambda where, _: nullcontext((DEVICE, forge))
        )
    except KeyboardInterrupt:
        assert calls_before_interrupt == 1
    plain = json.loads(path.read_text())
    assert len(plain["workloads"]) == min(2, calls_before_interrupt)
    assert plain["command"] == "bench --suite cpu"
    assert plain["copy_gb_per_s"] == DEVICE.copy_gb_per_s
    assert any("installed; geomean 2.00x over eager" in line for line in said)


MISSING = ("rmsnorm_f32_128x2048", "rope_f32_2x16x512x64")


def resume(path, *arguments: str, device: DeviceInfo = DEVICE) -> None:
    parser = ArgumentParser()
    add_arguments(parser)
    options = parser.parse_args(["--suite", "cpu", "--resume", "--json", str(path), *arguments])
    forged = SimpleNamespace(region=region(forge_us=50.0))
    opened = nullcontext((device, lambda fn, args: forged))
    run_command(options, command="again", say=lambda _: None, open_forge=lambda where, _: opened)


@pytest.mark.parametrize(
    ("arguments", "new"),
    [
        ([], set(MISSING)),
        (["--only", *MISSING[:1]], set(MISSING[:1])),
        (["--only", "softmax_f32_2048x1024"], {"softmax_f32_2048x1024"}),
    ],
    ids=["what is missing", "one that is missing", "one that is named runs again"],
)
def test_a_run_goes_on_from_its_file(tmp_path, arguments: list[str], new: set[str]):
    path = tmp_path / "cpu.json"
    there = [replace(row(), name=w.name) for w in cpu.WORKLOADS if w.name not in MISSING]
    path.write_text(report(there, DEVICE, command="first").to_json())
    resume(path, *arguments)
    after = {r["name"]: r["forge_us"] for r in json.loads(path.read_text())["workloads"]}
    assert after.keys() == {r.name for r in there} | new
    assert {name for name, us in after.items() if us == 50.0} == new


def test_figures_of_two_machines_do_not_mix(tmp_path):
    path = tmp_path / "cpu.json"
    path.write_text(report([row()], DEVICE, command="first").to_json())
    with pytest.raises(UsageError, match="was made on a CPU"):
        resume(path, device=replace(DEVICE, name="another CPU"))
    path.write_text("[]")
    with pytest.raises(UsageError, match="holds no results"):
        resume(path)


@pytest.mark.parametrize(
    ("rows", "eager", "inductor", "best", "bound"),
    [
        ([row()], 2.0, 1.5, 1.5, 2.0),
        ([row(), row(eager=800.0)], 4.0, 1.5, 1.5, 2.0),
        ([row(verdict="kept", forge=300.0)], 1.0, 0.75, 0.75, 4.0),
        ([row(inductor=None)], 2.0, None, 2.0, 2.0),
        ([row(eager=None, inductor=None, forge=None, verdict="failed")], None, None, None, None),
    ],
    ids=["one", "geometric", "kept counts as eager", "no inductor", "failed"],
)
def test_group_means(rows, eager, inductor, best, bound):
    (means,) = group_means(rows)
    got = (means.over_eager, means.over_inductor, means.over_best, means.of_bound)
    for value, expected in zip(got, (eager, inductor, best, bound), strict=True):
        assert (value is None) == (expected is None)
        assert value is None or math.isclose(value, expected)


def test_groups_stay_apart_and_the_text_says_what_was_not_measured():
    means = group_means([row(), row(group="lat", inductor=None)])
    assert [m.group for m in means] == ["mem", "lat"]
    assert "-x over inductor" in means_text(means[1])
    assert row_text(row(verdict="kept", why="as fast")).endswith("kept: as fast")
