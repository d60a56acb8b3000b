"""What the engine hands out: records that hold together, the same every time."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tests.support import programs
from torch_forge.generation.templates.engine import candidates, index_limit
from torch_forge.records.kernels import Origin
from torch_forge.records.program import Lowered

CASES = {
    **{name: (lambda b=builder: b(6, 48)) for name, builder in programs.ROW_BUILDERS.items()},
    **{name: (lambda b=builder: b(100)) for name, builder in programs.FLAT_BUILDERS.items()},
    **{name: (lambda b=builder: b(6, 48)) for name, builder in programs.GRID_BUILDERS.items()},
    "group_norm": lambda: programs.group_norm(4, 6, 48),
    "scalar": programs.scalar,
}
DEVICES = {"cpu": programs.cpu_device(), "cuda": programs.cuda_device()}


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("build", CASES.values(), ids=CASES)
def test_candidates_hold_together(build, device):
    case = build()
    found = candidates(case.problem, case.lowered, device)
    assert found
    assert len({c.digest for c in found}) == len(found)
    for c in found:
        assert (c.backend, c.origin, c.problem, c.program) == (
            device.type,
            Origin.TEMPLATE,
            case.problem.digest,
            case.lowered.program.digest,
        )
        assert 1 <= len(c.configs) <= 6
        assert c.configs[0].align_bytes <= 8
        assert all(c.statics[p] == case.lowered.value(p) for p in c.statics)
        assert re.match(r"// forge: index_bits=(32|64)\n", c.source)
        assert max(map(len, c.source.splitlines())) < 400


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("build", CASES.values(), ids=CASES)
def test_the_same_request_gives_the_same_bytes(build, device):
    first, second = build(), build()
    a = candidates(first.problem, first.lowered, device)
    b = candidates(second.problem, second.lowered, device)
    assert [c.source for c in a] == [c.source for c in b]


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_another_number_of_rows_is_the_same_kernel(device):
    """The outermost size is never compiled in: one build serves every batch size."""
    small, large = (programs.rms_norm(rows, 48) for rows in (600, 700))
    sources = [{c.source for c in candidates(case.problem, case.lowered, device)} for case in (small, large)]
    assert sources[0] == sources[1]


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_pointwise_also_comes_without_statics(device):
    case = programs.bias_add(6, 48)
    found = candidates(case.problem, case.lowered, device)
    assert [sorted(c.statics) for c in found] == [["p1"], []]


def test_large_tensors_are_indexed_in_64_bits():
    case = programs.softmax(4, 8)
    wide = dataclasses.replace(case.problem.graph.inputs[0], shape=(2**29, 8), stride=(8, 1))
    graph = dataclasses.replace(case.problem.graph, inputs=(wide,))
    problem = dataclasses.replace(case.problem, graph=graph)
    lowered = Lowered(case.lowered.program, (2**29, 8, 8, 8))
    for device in DEVICES.values():
        c = candidates(problem, lowered, device)[0]
        assert c.source.startswith("// forge: index_bits=64")
        assert index_limit(c) > 2**40
    assert index_limit(candidates(case.problem, case.lowered, DEVICES["cuda"])[0]) < 2**31


def test_large_results_get_a_streaming_config_on_the_cpu():
    case = programs.gelu(5000)
    (cached,) = candidates(case.problem, case.lowered, programs.cpu_device())
    (streamed,) = candidates(case.problem, case.lowered, programs.cpu_device(l2_bytes=1000))
    assert [c.params["stream"] for c in cached.configs] == [0]
    assert [c.params["stream"] for c in streamed.configs] == [0, 1]


def test_long_rows_are_streamed_on_cuda():
    case = programs.logsumexp(2, 200_000)
    assert [c.author for c in candidates(case.problem, case.lowered, programs.cuda_device())] == ["row_stream"]


def test_origin_is_passed_on():
    case = programs.gelu(5)
    (c,) = candidates(case.problem, case.lowered, programs.cpu_device(), origin=Origin.SHIPPED)
    assert c.origin is Origin.SHIPPED
