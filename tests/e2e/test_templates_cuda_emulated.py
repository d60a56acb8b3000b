"""The CUDA templates run thread by thread on the CPU: every config gives the right values, no barrier is missed.

What this cannot show is speed and what ptxas makes of it; tests/gpu does that.
"""

from __future__ import annotations

import pytest
import torch

from tests.support import programs
from tests.support.launching import EMULATED, Kernel, build, outputs_for, run_all_configs
from torch_forge.generation.templates.engine import candidates

pytestmark = pytest.mark.compiler

MISALIGNED, TRAP = 9002, 9003
BAD_CONFIG = 2
DEVICE = programs.cuda_device()

CASES = {
    "warps share a block": lambda: programs.softmax(9, 64),
    "odd row": lambda: programs.softmax(3, 77, torch.bfloat16),
    "rows at odd strides": lambda: programs.softmax(4, 64, stride=65),
    "two results": lambda: programs.add_layer_norm(3, 320, torch.bfloat16),
    "rounding points": lambda: programs.rms_norm(3, 512),
    "quotient of the row": lambda: programs.group_norm(3, 4, 24),
    "positions, NaN first": lambda: programs.argmax(3, 150),
    "scan between reductions": lambda: programs.cumsum_normalised(3, 333),
    "gathered element": lambda: programs.cross_entropy(5, 136),
    "truth and counts": lambda: programs.row_any(3, 96),
    "mask by position": lambda: programs.causal_softmax(9, 40),
    "rows of a table": lambda: programs.embed_norm(6, 32),
    "flat, partial vector": lambda: programs.swiglu(2051),
    "two spaces": lambda: programs.two_parts(700, 33),
    "inner broadcast": lambda: programs.bias_add(7, 48),
    "uneven concatenation": lambda: programs.concat(5, 16, 7),
    "across the input": lambda: programs.transposed(20, 24),
    "no elements": lambda: programs.bias_add(4, 0),
    "no loop": programs.scalar,
}


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_every_config_of_every_candidate(make, tmp_path):
    case = make()
    failures = [
        failure
        for candidate in candidates(case.problem, case.lowered, DEVICE)
        for failure in run_all_configs(case, candidate, Kernel(build(candidate.source, tmp_path, EMULATED, suffix=".cu")))
    ]
    assert not failures


def test_misaligned_tensors_fall_back(tmp_path):
    """The emulator refuses a misaligned vector access, so this shows that none is made."""
    case = programs.swiglu(515)
    (candidate,) = candidates(case.problem, case.lowered, DEVICE)
    kernel = Kernel(build(candidate.source, tmp_path, EMULATED, suffix=".cu"))
    for config in range(len(candidate.configs)):
        for which in range(3):
            tensors = [t.clone() for t in (*case.inputs, *outputs_for(case))]
            tensors[which] = torch.cat((tensors[which][:1], tensors[which]))[1:]
            assert kernel(tensors[:2], tensors[2:], case.lowered.values, config=config) == 0, (config, which)
            torch.testing.assert_close(tensors[2].double(), case.expected[0], rtol=1e-2, atol=1e-2)


def test_an_index_outside_the_table_stops_the_launch(tmp_path):
    case = programs.gather(6, 8)
    kernel = Kernel(build(candidates(case.problem, case.lowered, DEVICE)[0].source, tmp_path, EMULATED, suffix=".cu"))
    ids, table = case.inputs
    for bad in (50, -51):
        wrong = ids.clone()
        wrong[3] = bad
        assert kernel([wrong, table], outputs_for(case), case.lowered.values) == TRAP


def test_an_unknown_config_is_refused(tmp_path):
    case = programs.gelu(5)
    kernel = Kernel(build(candidates(case.problem, case.lowered, DEVICE)[0].source, tmp_path, EMULATED, suffix=".cu"))
    for config in (-1, 6, 99):
        assert kernel(case.inputs, outputs_for(case), case.lowered.values, config=config) == BAD_CONFIG
