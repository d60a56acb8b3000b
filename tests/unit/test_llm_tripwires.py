"""What a model's source may not contain, and what honest kernels do contain."""

from __future__ import annotations

import pytest

from tests.support.llm import cuda, make_problem, source
from torch_forge.generation.llm.tripwires import tripped
from torch_forge.generation.naive_source import example_source

CUDA_HONEST = source(
    "k<<<256, 256, 0, (cudaStream_t)stream>>>((const float*)in[0].data); return (int)cudaGetLastError();",
    before="""#include <cuda_bf16.h>
#include <cooperative_groups.h>
#include <cstdint>
// system("rm"), at::relu and getenv() in a comment harm nobody
__device__ float cube(float x) { return x * x * x; }
__global__ void k(const float* x) {
  float y; asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(y) : "l"(x));
  __syncthreads(); y = __shfl_xor_sync(0xffffffff, y, 1) % 2 ? cube(y) : y;
}
""",
)


@pytest.mark.parametrize("code", [CUDA_HONEST, example_source(make_problem(), "cuda")], ids=["cuda", "example"])
def test_honest_cuda_passes(code: str):
    assert tripped(code, cuda().type) == []


def test_honest_cpp_passes():
    before = "#include <immintrin.h>\n#include <thread>\n#include <vector>\n#define N 1'000 /* # include */\n"
    assert tripped(source("std::vector<std::thread> t; return t.empty() ? 0 : 1;", before), "cpu") == []


@pytest.mark.parametrize(
    ("code", "word"),
    [
        (source(before="#include <torch/extension.h>\n"), "torch/extension.h"),
        (source(before="#include <ATen/ATen.h>\n"), "ATen"),
        (source(before='#include "/etc/passwd"\n'), "/etc/passwd"),
        (source(before="#/**/include <dlfcn.h>\n"), "dlfcn.h"),
        (source(before="#define H <dlfcn.h>\n#include H\n"), "#include H"),
        (source(before='#inc\\\nlude "secret"\n'), "secret"),
        (source(before="#/*\n*/include <dlfcn.h>\n"), "dlfcn.h"),
        (source(before='const char* a = "/*";\n#include <dlfcn.h>\nconst char* b = "*/";\n'), "dlfcn.h"),
        (source("at::relu(x); return 0;"), "calls torch"),
        (source("return cublasSgemm(h);"), "library"),
        (source("thrust :: sort(a, b); return 0;"), "library"),
        (source('system ("id"); return 0;'), "processes"),
        (source("sys\\\ntem(c); return 0;"), "processes"),
        (source("return dlsym(h, s) != 0;"), "loads code"),
        (source("return socket(1, 2, 3);"), "network"),
        (source('return fopen("/proc/self/maps", "r") != 0;'), "/proc/"),
        (source("std::ofstream f; return 0;"), "files"),
        (source("return getenv(n) != 0;"), "environment"),
        (source("extern char** environ; return 0;"), "environment"),
        (source('asm(".incbin \\"x\\""); return 0;'), ".incbin"),
        (source('asm("nop"); return 0;'), "assembly"),
        (source(before="__attribute__((constructor)) static void f() {}\n"), "outside forge_launch"),
        (source("float* p; cudaMalloc(&p, 4); return 0;"), "allocates"),
        (source("cudaDeviceSynchronize(); return 0;"), "synchronises"),
        (source(before="#define J(a, b) a##b\n"), "pastes"),
        (source('printf("best"); return 0;'), "prints"),
    ],
    ids=lambda value: value if " " not in value and len(value) < 25 else None,
)
def test_shortcuts_are_named(code: str, word: str):
    assert any(word in reason for reason in tripped(code, "cpu")), tripped(code, "cpu")
