"""The ``ops`` suite: 35 workloads at the sizes of large models, for a GPU.

24 bound by memory traffic, 5 by the launch (decoding one token), 6 with matrix products. Names and shapes are fixed:
figures of different days are compared by name.
"""

from __future__ import annotations

from torch_forge.suites import functions as f
from torch_forge.suites.workload import Arg, Workload

F32, F16 = "float32", "float16"
TOKENS, WIDTH = 16384, 4096
"""Rows and columns of most workloads: a batch of tokens of an 8-billion-parameter model."""


def _activations(dtype: str = "bfloat16") -> Arg:
    return Arg((TOKENS, WIDTH), dtype)


def _rotary_args(batch: int, sequence: int) -> tuple[Arg, ...]:
    angles = Arg((batch, sequence, 128))
    return Arg((batch, 32, sequence, 128)), Arg((batch, 8, sequence, 128)), angles, angles


_VECTOR = Arg((WIDTH,))

MEMORY = (
    Workload("softmax_bf16_16384x4096", "mem", f.softmax, (_activations(),)),
    Workload("softmax_f32_4096x32768", "mem", f.softmax, (Arg((4096, 32768), F32),)),
    Workload("layernorm_bf16_16384x4096", "mem", f.layer_norm, (_activations(), _VECTOR, _VECTOR)),
    Workload("rmsnorm_hf_bf16_16384x4096", "mem", f.rms_norm, (_activations(), _VECTOR)),
    Workload("add_rmsnorm_bf16_16384x4096", "mem", f.add_rms_norm, (_activations(), _activations(), _VECTOR)),
    Workload("newgelu_f32_16384x4096", "mem", f.gelu_tanh_chain, (_activations(F32),)),
    Workload("swiglu_bf16_8192x14336", "mem", f.swiglu, (Arg((8192, 14336)), Arg((8192, 14336)))),
    Workload("bias_gelu_residual_bf16_16384x4096", "mem", f.bias_gelu_residual, (_activations(), _VECTOR, _activations())),
    Workload("rope_hf_bf16_4x32x4096x128", "mem", f.rotary, _rotary_args(4, 4096)),
    Workload(
        "cross_entropy_bf16_8192x128256",
        "mem",
        f.cross_entropy,
        (Arg((8192, 128256)), Arg((8192,), "int64", "index", high=128256)),
    ),
    # The name says 8x320x64x64; the shape is larger so that it does not fit into the L2 cache.
    Workload(
        "groupnorm_silu_f16_8x320x64x64",
        "mem",
        f.group_norm_silu,
        (Arg((16, 320, 128, 128), F16), Arg((320,), F16), Arg((320,), F16)),
    ),
    Workload(
        "batchnorm_relu_eval_f16_64x256x56x56",
        "mem",
        f.batch_norm_relu,
        (
            Arg((64, 256, 56, 56), F16),
            Arg((256,), F32),
            Arg((256,), F32, "positive"),
            Arg((256,), F32),
            Arg((256,), F32),
        ),
    ),
    Workload("cumsum_f32_16384x4096", "mem", f.cumulative_sum, (_activations(F32),)),
    Workload("logsumexp_f32_16384x8192", "mem", f.logsumexp, (Arg((16384, 8192), F32),)),
    Workload("sum_dim0_f32_32768x4096", "mem", f.column_sum, (Arg((32768, 4096), F32),)),
    Workload("mse_loss_f32_64M", "mem", f.mse_loss, (Arg((8192, 8192), F32), Arg((8192, 8192), F32))),
    Workload(
        "masked_scaled_softmax_bf16_8x16x1024x1024",
        "mem",
        f.scaled_masked_softmax,
        (Arg((8, 16, 1024, 1024)), Arg((8, 1, 1024, 1024), fill="mask")),
    ),
    Workload("int8_rowquant_bf16_16384x4096", "mem", f.quantize_rows, (_activations(),)),
    # 65536 rows, although the name says 32768.
    Workload("l2_normalize_f32_32768x1024", "mem", f.l2_normalize, (Arg((65536, 1024), F32),)),
    # The bound counts the whole word table; 32768 random words touch about two thirds of it.
    Workload(
        "bert_embed_ln_bf16",
        "mem",
        f.embed_and_norm,
        (
            Arg((64, 512), "int64", "index", high=30522),
            Arg((64, 512), "int64", "index", high=2),
            Arg((30522, 1024)),
            Arg((512, 1024)),
            Arg((2, 1024)),
            Arg((1024,)),
            Arg((1024,)),
        ),
    ),
    Workload(
        "causal_conv1d_silu_bf16_8x4096x2048",
        "mem",
        f.causal_conv_silu,
        (Arg((8, 4096, 2048)), Arg((4096, 1, 4)), Arg((4096,))),
    ),
    Workload("permute_contig_f16_32x128x128x256", "mem", f.channels_first, (Arg((32, 128, 128, 256), F16),)),
    # 262144 rows, although the name says 65536.
    Workload("moe_gate_top2_bf16_65536x64", "mem", f.gate_top2, (Arg((262144, 64)),)),
    Workload("kl_div_f32_8192x32000", "mem", f.kl_divergence, (Arg((8192, 32000), F32), Arg((8192, 32000), F32))),
)

LATENCY = (
    Workload("rmsnorm_hf_bf16_1x4096", "lat", f.rms_norm, (Arg((1, 4096)), _VECTOR)),
    Workload("add_rmsnorm_bf16_8x4096", "lat", f.add_rms_norm, (Arg((8, 4096)), Arg((8, 4096)), _VECTOR)),
    Workload("swiglu_bf16_8x14336", "lat", f.swiglu, (Arg((8, 14336)), Arg((8, 14336)))),
    Workload("rope_hf_bf16_8x32x1x128", "lat", f.rotary, _rotary_args(8, 1)),
    Workload("softmax_f32_8x32000", "lat", f.softmax, (Arg((8, 32000), F32),)),
)

MATRIX = (
    Workload("gemv_bf16_1x4096x14336", "gemm", f.linear, (Arg((1, 4096)), Arg((14336, 4096)))),
    Workload("linear_bf16_16x4096x14336", "gemm", f.linear, (Arg((16, 4096)), Arg((14336, 4096)))),
    Workload(
        "mlp_swiglu_decode_bf16_8x4096x14336",
        "gemm",
        f.swiglu_mlp,
        (Arg((8, 4096)), Arg((14336, 4096)), Arg((14336, 4096)), Arg((4096, 14336))),
    ),
    Workload("matmul_f32_2048", "gemm", f.matmul, (Arg((2048, 2048), F32), Arg((2048, 2048), F32))),
    Workload("linear_gelu_bf16_8192x4096x4096", "gemm", f.linear_gelu, (Arg((8192, 4096)), Arg((4096, 4096)), _VECTOR)),
    Workload("bmm_small_bf16_4096x64x64x64", "gemm", f.batched_matmul, (Arg((4096, 64, 64)), Arg((4096, 64, 64)))),
)

WORKLOADS = MEMORY + LATENCY + MATRIX
