from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from tests.support.sessions import cpu_device
from tests.support.tiny_models import Block, DictNet, Hoarder, tiny_llama
from tests.unit.test_profiling_state import fingerprint, random_states
from torch_forge.errors import UsageError
from torch_forge.profiling.observe import Seen, observed
from torch_forge.profiling.profile import lost_times, profile
from torch_forge.profiling.trace import overlay, reason_against_tracing
from torch_forge.profiling.workload import Call, Workload
from torch_forge.records.profile import OpCost, Profile

X = torch.randn(64, 32)
GRAD_MODES = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}


def costs(profile: Profile) -> dict[str, OpCost]:
    return {c.op: c for c in profile.ops}


@pytest.mark.parametrize("mode", GRAD_MODES)
def test_operations_are_those_of_a_graph_in_every_grad_mode(mode):
    with GRAD_MODES[mode]():
        found = costs(profile(Block().eval(), Call((X,)), cpu_device()))
    expected = {"aten.addmm", "aten.native_layer_norm", "aten.gelu", "aten._softmax"}
    assert expected <= found.keys()
    assert not found.keys() & {"aten.linear", "aten.layer_norm", "aten.softmax", "aten.batch_norm", "aten.equal"}
    assert found["aten.addmm"].shapes == ((32,), (64, 32), (32, 32))
    assert {c.op: c.module for c in found.values() if c.op in expected} == {
        "aten.addmm": "Linear", "aten.native_layer_norm": "LayerNorm", "aten.gelu": "Block", "aten._softmax": "Block",
    }  # fmt: skip


def test_figures_are_of_one_run_and_add_up():
    shared = nn.GELU()
    found = profile(nn.Sequential(shared, shared, shared), Call((X,)), cpu_device(), runs=2)
    assert found.device == cpu_device().key
    assert [(c.op, c.calls) for c in found.ops] == [("aten.gelu", 3)]
    assert found.total_us == pytest.approx(sum(c.self_us for c in found.ops))
    assert 0 < found.total_us <= found.wall_us


def test_nested_operations_are_counted_once():
    found = profile(lambda x: x.mean(), Call((X,)), cpu_device())
    assert [c.op for c in found.ops] == ["aten.mean"]  # not the sum and the division inside it


def test_list_and_scalar_tensor_arguments_keep_their_shapes():
    found = costs(profile(lambda x, s: torch.cat([x, x]) * s, Call((X, torch.tensor(2.0))), cpu_device()))
    assert found["aten.cat"].shapes == ((64, 32), (64, 32))
    assert found["aten.mul"].shapes == ((128, 32), ())


@pytest.mark.parametrize("model", [Block().train(), Hoarder()], ids=lambda m: type(m).__name__)
def test_profiling_leaves_no_trace(model):
    hooks = dict(torch.nn.modules.module._global_forward_hooks)
    before, states, x = fingerprint(model), random_states(), X.clone()
    profile(model, Call((x,)), cpu_device(), note=lambda _: None)
    assert fingerprint(model) == before
    assert random_states() == states
    assert torch.equal(x, X)
    assert dict(torch.nn.modules.module._global_forward_hooks) == hooks


def test_nothing_is_kept_alive():
    refs = []

    def run(x):
        result = x + 1
        refs.append(weakref.ref(result))
        return result

    profile(run, Call((X,)), cpu_device())
    gc.collect()
    assert refs
    assert not [r for r in refs if r() is not None]


def test_another_profiler_means_timing_one_by_one_with_one_note():
    notes = []
    with torch.autograd.profiler_legacy.profile():
        assert reason_against_tracing(torch.device("cpu")) == "another profiler is running"
        found = costs(profile(Block().eval(), Call((X,)), cpu_device(), note=notes.append))
    assert notes == ["operations were timed one by one, which overstates small ones: another profiler is running"]
    assert found["aten.addmm"].module == "Linear"
    assert found["aten.addmm"].self_us > 0


def test_compiled_model_is_profiled_without_being_compiled_again():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    model = torch.compile(nn.Sequential(nn.Linear(32, 32), nn.GELU()).eval(), backend=backend)
    notes = []
    found = profile(model, Call((X,)), cpu_device(), note=notes.append)
    assert {"aten.addmm", "aten.gelu"} <= costs(found).keys()
    assert notes == ["the model is already compiled: kernels inside compiled regions are not profiled one by one"]
    assert len(graphs) == 1


def test_exception_of_the_model_passes_through_and_leaves_no_trace():
    model = Block().train()
    before = fingerprint(model)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        profile(model, Call((torch.randn(4, 5),)), cpu_device())
    assert fingerprint(model) == before


def test_model_on_another_device_is_refused():
    with pytest.raises(UsageError, match="the model is on cpu, not on cuda:0") as error:
        profile(Block(), Call((X,)), cpu_device(type="cuda"))
    assert "model.to('cuda:0')" in error.value.advice


def test_model_without_operations():
    found = profile(lambda x: x, Call((X,)), cpu_device())
    assert (found.ops, found.total_us) == ((), 0)


def test_dict_outputs_and_keyword_arguments():
    workload = Workload.of(DictNet(), {"ids": torch.randn(4, 16), "mask": torch.ones(4)})
    found = costs(profile(workload.target, workload.call, cpu_device()))
    assert {"aten.native_layer_norm", "aten.add"} <= found.keys()
    assert found["aten.add"].calls == 2


@pytest.mark.transformers
@pytest.mark.filterwarnings("default")
def test_llama_with_its_cache():
    from transformers import BatchEncoding

    model = tiny_llama()
    ids = torch.randint(0, 128, (1, 16))
    workload = Workload.of(model, BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)}))
    with torch.no_grad():
        found = profile(workload.target, workload.call, cpu_device(), runs=2)
    modules = {c.module for c in found.ops}
    assert {"LlamaRMSNorm", "Linear", "LlamaRotaryEmbedding", "SiLUActivation"} <= modules
    norm = [c for c in found.ops if c.module == "LlamaRMSNorm" and c.op == "aten.rsqrt"]
    assert [(c.calls, c.shapes) for c in norm] == [(5, ((1, 16, 1),))]


def seen(op: str, *shape: int, module: str = "") -> Seen:
    return Seen(op, (shape,), module)


def test_overlay_pairs_the_kth_calls_and_leaves_ops_with_other_counts_alone():
    known = [seen("a", 1, module="M"), seen("a", 2, module="N"), seen("b", 3, module="P"), seen("b", 3, module="P")]
    run = [(seen("b", 9), 1.0), (seen("a"), 2.0), (seen("a"), 3.0)]
    assert overlay(run, known) == [(seen("b", 9, module="P"), 1.0), (known[0], 2.0), (known[1], 3.0)]


A, B = seen("a"), seen("b")


@pytest.mark.parametrize(
    ("runs", "lost"),
    [
        ([[(A, 1.0), (B, 0.0)], [(A, 1.0), (B, 0.0)]], ""),
        ([[(A, 1.0), (B, 0.0)], [(A, 1.0), (B, 2.0)]], "b"),
        ([[(A, 1.0)], [(A, 1.0), (B, 2.0)]], "b"),
        ([[(A, 0.0)], [(A, 0.0)]], "everything"),
        ([[], []], ""),
    ],
    ids=["views have no time", "zero once", "missing once", "all zero", "no operations"],
)
def test_lost_device_times_are_noticed(runs, lost):
    assert lost_times(runs) == lost


def test_observation_in_inference_mode_sees_what_runs():
    with torch.no_grad():
        plain = observed(lambda: Block().train()(X))
    with torch.inference_mode():
        inference = observed(lambda: Block().train()(X))
    assert [s.op for s in inference if s.module == "Dropout"] == [s.op for s in plain if s.module == "Dropout"]


def test_no_output(capfd):
    profile(Block(), Call((X,)), cpu_device())
    assert capfd.readouterr() == ("", "")
