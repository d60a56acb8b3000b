"""The ``cpu`` suite: what the CPU backend is for. 1 to 64 MB, float32 and bfloat16, no matrix products.

The small ones fit into a last-level cache, the large ones do not, so both regimes of a CPU kernel are measured.
"""

from __future__ import annotations

from torch_forge.suites import functions as f
from torch_forge.suites.workload import Arg, Workload

F32, BF16 = "float32", "bfloat16"


def _image_norm(channels: int, side: int) -> tuple[Arg, ...]:
    scale = Arg((channels,), F32)
    return Arg((8, channels, side, side), F32), scale, Arg((channels,), F32, "positive"), scale, scale


WORKLOADS = (
    Workload("softmax_f32_2048x1024", "mem", f.softmax, (Arg((2048, 1024), F32),)),
    Workload("softmax_f32_256x32000", "mem", f.softmax, (Arg((256, 32000), F32),)),
    Workload("softmax_bf16_8192x512", "mem", f.softmax, (Arg((8192, 512), BF16),)),
    Workload(
        "masked_scaled_softmax_f32_2x8x512x512",
        "mem",
        f.scaled_masked_softmax,
        (Arg((2, 8, 512, 512), F32), Arg((2, 1, 512, 512), F32, "mask")),
    ),
    Workload("rmsnorm_f32_128x2048", "mem", f.rms_norm, (Arg((128, 2048), F32), Arg((2048,), F32))),
    Workload("rmsnorm_f32_2048x2048", "mem", f.rms_norm, (Arg((2048, 2048), F32), Arg((2048,), F32))),
    Workload("rmsnorm_bf16_2048x4096", "mem", f.rms_norm, (Arg((2048, 4096), BF16), Arg((4096,), BF16))),
    Workload(
        "add_layernorm_f32_2048x768",
        "mem",
        f.add_layer_norm,
        (Arg((2048, 768), F32), Arg((2048, 768), F32), Arg((768,), F32), Arg((768,), F32)),
    ),
    Workload("gelu_tanh_f32_2048x3072", "mem", f.gelu_tanh_chain, (Arg((2048, 3072), F32),)),
    Workload("gelu_erf_f32_1024x3072", "mem", f.gelu_erf_chain, (Arg((1024, 3072), F32),)),
    Workload("swiglu_f32_1024x5632", "mem", f.swiglu, (Arg((1024, 5632), F32), Arg((1024, 5632), F32))),
    Workload("swiglu_bf16_1024x8192", "mem", f.swiglu, (Arg((1024, 8192), BF16), Arg((1024, 8192), BF16))),
    Workload(
        "bias_gelu_residual_f32_2048x1024",
        "mem",
        f.bias_gelu_residual,
        (Arg((2048, 1024), F32), Arg((1024,), F32), Arg((2048, 1024), F32)),
    ),
    Workload(
        "rope_f32_2x16x512x64",
        "mem",
        f.rotary,
        (Arg((2, 16, 512, 64), F32), Arg((2, 4, 512, 64), F32), Arg((2, 512, 64), F32), Arg((2, 512, 64), F32)),
    ),
    Workload("l2_normalize_f32_8192x768", "mem", f.l2_normalize, (Arg((8192, 768), F32),)),
    Workload("logsumexp_f32_1024x8192", "mem", f.logsumexp, (Arg((1024, 8192), F32),)),
    Workload("int8_rowquant_f32_2048x2048", "mem", f.quantize_rows, (Arg((2048, 2048), F32),)),
    Workload(
        "groupnorm_silu_f32_4x320x32x32",
        "mem",
        f.group_norm_silu,
        (Arg((4, 320, 32, 32), F32), Arg((320,), F32), Arg((320,), F32)),
    ),
    Workload("batchnorm_relu_f32_8x64x56x56", "mem", f.batch_norm_relu, _image_norm(64, 56)),
)
