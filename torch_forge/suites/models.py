"""Whole models of ``transformers``, random weights, nothing downloaded: what ``autotune`` brings end to end."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from torch_forge.machine.files import atomic_write
from torch_forge.records.codec import to_plain
from torch_forge.records.session import SessionReport
from torch_forge.settings import Settings


@dataclass(frozen=True)
class ModelCase:
    """One model at one batch."""

    name: str
    make: Callable[[str], tuple[torch.nn.Module, Mapping[str, Any]]]
    """From a device to the model in evaluation mode and the keyword arguments of the call."""


def _llama_8b_4_layers(device: str) -> tuple[torch.nn.Module, Mapping[str, Any]]:
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=4,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        rope_theta=500000.0,
    )
    model = _made(lambda: transformers.LlamaForCausalLM(config), torch.bfloat16, device)
    return model, {"input_ids": _ids(128256, (1, 2048), device), "use_cache": False}


def _bert_base(device: str) -> tuple[torch.nn.Module, Mapping[str, Any]]:
    import transformers

    model = _made(lambda: transformers.BertModel(transformers.BertConfig()), torch.float16, device)
    return model, {"input_ids": _ids(30522, (32, 512), device)}


def _llama_small(device: str) -> tuple[torch.nn.Module, Mapping[str, Any]]:
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=8000,
    )
    model = _made(lambda: transformers.LlamaForCausalLM(config), torch.float32, device)
    return model, {"input_ids": _ids(8000, (1, 256), device), "use_cache": False}


def _made(make: Callable[[], torch.nn.Module], dtype: torch.dtype, device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    with torch.device(device):
        return make().to(dtype).eval()


def _ids(high: int, shape: tuple[int, int], device: str) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(0)).to(device)


CASES = {
    "cuda": (ModelCase("llama3_8b_4layers_bf16_1x2048", _llama_8b_4_layers), ModelCase("bert_base_fp16_32x512", _bert_base)),
    "cpu": (ModelCase("llama_small_f32_1x256", _llama_small),),
}
"""Device type -> models of a fitting size."""


def run_models(device: str, *, budget_s: float, path: Path | None, command: str, say: Callable[[str], None]) -> None:
    """Tune each model, print its report, write all of them as JSON."""
    from torch_forge.pipeline import autotune

    reports: list[tuple[str, SessionReport]] = []
    for case in CASES[device.partition(":")[0]]:
        model, kwargs = case.make(device)
        with torch.no_grad():
            result = autotune(model, dict(kwargs), settings=Settings.resolve(budget_s=budget_s), progress="on")
        say(result.summary())
        result.revert()
        reports.append((case.name, result.report))
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, as_json(reports, command))
        del model, kwargs, result


def as_json(reports: Sequence[tuple[str, SessionReport]], command: str) -> str:
    """The published form: who ran what, and each model's whole report."""
    first = reports[0][1]
    plain = {
        "device": first.device.name,
        "torch": first.versions["torch"],
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "copy_gb_per_s": first.device.copy_gb_per_s,
        "models": [{"name": name, "check": to_plain(r.check), "regions": to_plain(r.regions)} for name, r in reports],
    }
    return json.dumps(plain, indent=1, allow_nan=False) + "\n"
