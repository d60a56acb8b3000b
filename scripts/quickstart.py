#!/usr/bin/env python3
"""The main job: a Llama model goes in, the same model with faster kernels comes out, and a report says why.

The model is the real class from transformers with random weights, so nothing is downloaded; its sizes follow the
device. The second run finds its kernels in the cache.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

CPU_SIZES: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "vocab_size": 8192,
}
GPU_SIZES: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
}
"""The widths of Llama 3 8B; the vocabulary is smaller, or the last product would be half of the time."""
LAYERS = 4
TOKENS = {"cpu": 256, "cuda": 2048}
BUDGET_S = {"cpu": 120.0, "cuda": 180.0}


def build(device: str) -> tuple[Any, Any]:
    """The model on its device, in evaluation, and token ids of shape (1, tokens)."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = GPU_SIZES if device == "cuda" else CPU_SIZES
    config = LlamaConfig(num_hidden_layers=LAYERS, use_cache=False, attn_implementation="sdpa", **sizes)
    with torch.device(device):
        model = LlamaForCausalLM(config).eval()
        ids = torch.randint(config.vocab_size, (1, TOKENS[device]))
    return model.to(torch.bfloat16 if device == "cuda" else torch.float32), ids


def main() -> int:
    """Tune, print the table, write the report; exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: the GPU if there is one")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="time for tuning")
    parser.add_argument(
        "--report", type=Path, default=Path("build/quickstart-report"), metavar="STEM", help="STEM.md, STEM.json"
    )
    arguments = parser.parse_args()

    started = time.monotonic()
    say("importing torch and transformers")
    import torch

    import torch_forge
    from torch_forge.errors import ForgeError

    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    model, ids = build(device)
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    say(f"{type(model).__name__}: {LAYERS} layers, {millions:.0f} million random weights, {ids.numel()} tokens, on {device}")
    try:
        with torch.no_grad():
            result = torch_forge.autotune(model, ids, budget=arguments.budget or BUDGET_S[device])
            model(ids)  # the model itself is changed: nothing else is needed to run the kernels
    except ForgeError as error:
        print(error.explain(), file=sys.stderr)
        return error.exit_code
    print(result.summary())
    arguments.report.parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".md", ".json"):
        path = arguments.report.with_suffix(suffix).resolve()
        result.save(path)
        say(f"report: {path}")
    say(f"done in {time.monotonic() - started:.0f} s; run it again and the kernels come from the cache")
    return 0


def say(message: str) -> None:
    """Progress of the script itself."""
    print(f"-- {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
