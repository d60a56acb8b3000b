"""The binary gate: what a built kernel imports, runs while loading and hides is named, in an honest one there is nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import programs
from tests.support.launching import INCLUDE
from tests.support.llm import SIGNATURE, source
from torch_forge.generation.templates.engine import candidates
from torch_forge.validation.static.binary import binary_findings, binary_reasons
from torch_forge.validation.static.elf import read_library
from torch_forge.validation.static.finding import Finding
from torch_forge.validation.static.machine_code import instruction_length, system_calls

GXX = ("g++", "-O3", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fno-gnu-unique", "-std=c++20", "-fPIC", "-w")
LINK = ("-shared", "-Wl,--as-needed", "-fopenmp")
ON_X86 = pytest.mark.skipif(not Path("/lib64/ld-linux-x86-64.so.2").exists(), reason="x86-64 machine code")


def built(code: str, folder: Path, *flags: str) -> Path:
    """A library as the build makes it."""
    file = folder / "main.cpp"
    file.write_text(code)
    library = file.with_suffix(".so")
    command = [*GXX, f"-I{INCLUDE}", str(file), *LINK, *flags, "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


def found(code: str, folder: Path, *flags: str) -> list[Finding]:
    return binary_findings(built(code, folder, *flags), "cpu", source_bytes=len(code))


HONEST = r"""
#include "forge.h"
#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>
#include <omp.h>
static thread_local std::vector<float> scratch;
__attribute__((target_clones("avx2", "default"))) static void scale(float* y, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;
}
""" + SIGNATURE + r""" {
  try {
    static std::vector<int> once(100);
    static std::mutex guard;
    scratch.resize(dims[0]);
    std::unordered_map<std::string, int> names;
    names[std::to_string(dims[0])] = 3;
    std::map<int, std::function<float(float)>> table{{1, [](float v) { return std::exp(v); }}};
    std::vector<std::thread> team;
    for (int k = 0; k < 2; ++k) team.emplace_back([&] { std::lock_guard<std::mutex> hold(guard); scratch.at(1) = 2; });
    for (auto& t : team) t.join();
    float* y = (float*)out[0].data;
    const float* x = (const float*)in[0].data;
    scale(y, x, dims[0]);
#pragma omp parallel for schedule(dynamic, 64) num_threads((int)threads)
    for (int64_t i = 0; i < dims[0]; ++i) y[i] = std::erf(x[i]) + table[1](std::tgamma(x[i])) + once[0];
    std::stable_sort(y, y + dims[0]);
    if (names.size() > 9) throw std::runtime_error("never");
    return __builtin_cpu_supports("avx2") ? omp_get_max_threads() * 0 : 0;
  } catch (const std::exception&) {
    return FORGE_UNSUPPORTED;
  }
}
"""  # fmt: skip


@ON_X86
@pytest.mark.compiler
def test_an_honest_kernel_with_much_of_the_library_passes(tmp_path: Path):
    assert [f for f in found(HONEST, tmp_path) if f.rule != "resolver"] == []
    assert binary_reasons(tmp_path / "main.so", "cpu") == []


SPREAD = {
    "softmax_f32": lambda: programs.ROW_BUILDERS["softmax_f32"](4, 1024),
    "cumsum_f32": lambda: programs.ROW_BUILDERS["cumsum_f32"](4, 1024),
    "swiglu_f16": lambda: programs.FLAT_BUILDERS["swiglu_f16"](20_011),
    "gather": lambda: programs.GRID_BUILDERS["gather"](7, 45),
}


@pytest.mark.compiler
@pytest.mark.parametrize("name", SPREAD)
def test_templates_have_nothing_to_name(name: str, tmp_path: Path):
    case = SPREAD[name]()
    code = candidates(case.problem, case.lowered, programs.cpu_device())[0].source
    library = built(code, tmp_path, "-march=native")
    assert binary_findings(library, "cpu", source_bytes=len(code)) == []


def body(text: str, before: str = "") -> str:
    return source(f"{text}\n  return 0;", before)


REJECTED = {
    "system": (body('system("id");', "#include <stdlib.h>\n"), "import", "system"),
    "files": (body('fopen("x", "r");', "#include <stdio.h>\n"), "import", "fopen"),
    "lookup": (body('dlsym(0, "x");', "#include <dlfcn.h>\n"), "import", "dlsym"),
    "printing": (body('puts("x");', "#include <stdio.h>\n"), "import", "puts"),
    "stream": (body("std::cout << 1;", "#include <iostream>\n"), "import", "_ZSt4cout"),
    "allocation": (body("*(void* volatile*)out[0].data = malloc(4);", "#include <stdlib.h>\n"), "import", "malloc"),
    "torch": (body("at::relu(1);", "namespace at { int relu(int); }\n"), "import", "_ZN2at4reluEi"),
    "stranger": (body("unheard_of();", 'extern "C" void unheard_of();\n'), "import", "unheard_of"),
    "cuda": (body("cudaGetLastError();", 'extern "C" int cudaGetLastError();\n'), "import", "cudaGetLastError"),
    "syscall": (body("syscall(39);", "#include <unistd.h>\n"), "import", "syscall"),
    "constructor": (
        body("", "static volatile int a;\n__attribute__((constructor)) static void early() { a = 1; }\n"),
        "constructor", "early",
    ),
    "constructor in a guise": (
        body("", "static volatile int a;\n__attribute__((constructor)) static void frame_dummy() { a = 1; }\n"),
        "constructor", "frame_dummy",
    ),
    "destructor": (
        body("", "static volatile int a;\n__attribute__((destructor)) static void late() { a = 1; }\n"),
        "constructor", "late",
    ),
    "start-up code": (
        body("", 'asm(".section .init,\\"ax\\"\\n.rept 64\\nnop\\n.endr\\n.previous\\n");\n'), "constructor", ".init",
    ),
    "resolver": (
        body("chosen();", 'static void a() {}\nextern "C" { void (*pick())() { return a; }\n'
             'void chosen() __attribute__((ifunc("pick"))); }\n'),
        "resolver", "chosen",
    ),
    "code section": (
        body("f();", '__attribute__((section("extra"), noinline)) static void f() { asm(""); }\n'), "section", "extra",
    ),
    "hidden code": (
        body("((void (*)())(uintptr_t)code)();", '__attribute__((section(".text#"))) static const char code[] = {15, 5};\n'),
        "hidden code", "code",
    ),
    "stand-in": (body("", 'extern "C" int close(int) { return 0; }\n'), "export", "close"),
    "other new": (
        body("", "#include <cstddef>\nstatic char b[9];\nvoid* operator new(std::size_t) { return b; }\n"),
        "export", "_Znwm",
    ),
    "no entry point": (source().replace("forge_launch", "forge_lunch"), "entry point", "forge_launch"),
}  # fmt: skip


@pytest.mark.compiler
@pytest.mark.parametrize("name", REJECTED)
def test_bright_lines_reject(name: str, tmp_path: Path):
    code, rule, what = REJECTED[name]
    findings = [f for f in found(code, tmp_path) if f.rejects and f.rule == rule]
    assert any(what in f.what for f in findings), found(code, tmp_path)


LINKED = {
    "library": (("-Wl,--no-as-needed", "-ldl", "-lresolv"), "needed", "libresolv"),
    "path beside the library": (("-Wl,-rpath,$ORIGIN/lib",), "search path", "$ORIGIN"),
    "executable stack": (("-Wl,-z,execstack",), "memory", "stack"),
    "rewritten code": (("-Wl,-z,notext", "-fno-pic", "-mcmodel=large"), "loader", "DT_"),
    "stripped start-up": (("-s",), "constructor", "without a name"),
}
STARTS = body(
    "static int local; *(void* volatile*)out[0].data = (void*)&local;",
    "static volatile int a;\n__attribute__((constructor)) static void early() { a = 1; }\n",
)


@ON_X86
@pytest.mark.compiler
@pytest.mark.parametrize("name", LINKED)
def test_what_the_linker_can_be_told(name: str, tmp_path: Path):
    flags, rule, what = LINKED[name]
    findings = [f for f in found(STARTS, tmp_path, *flags) if f.rejects and f.rule == rule]
    assert any(what in f.what for f in findings), found(STARTS, tmp_path, *flags)


NOTED = {
    "clock": (body("clock_gettime(0, 0);", "#include <time.h>\n"), "import"),
    "assertion": (body("assert(threads > 0);", "#include <assert.h>\n"), "import"),
    "thread": (body("std::thread([] {}).detach();", "#include <thread>\n"), "import"),
    "static object": (body("", "#include <map>\nstatic std::map<int, int> a{{1, 2}};\n"), "initialiser"),
    "much memory": (body("kept[0] = 1;", "volatile float kept[1 << 20];\n"), "state"),
    "much data": (
        body("*(float*)out[0].data = bank[dims[0]];", """
struct Bank { uint32_t at[1 << 14]; constexpr Bank() : at() { uint32_t x = 1;
  for (auto& a : at) { x ^= x << 13; x ^= x >> 17; x ^= x << 5; a = x; } }
  constexpr uint32_t operator[](int64_t k) const { return at[k]; } };
static constexpr Bank bank;
"""),
        "data",
    ),
    "absolute search path": (body(""), "search path"),
}  # fmt: skip


@pytest.mark.compiler
@pytest.mark.parametrize("name", NOTED)
def test_what_proves_nothing_is_a_note(name: str, tmp_path: Path):
    code, rule = NOTED[name]
    findings = found(code, tmp_path, *(["-Wl,-rpath,/opt/lib"] if "path" in name else []))
    assert [f.rule for f in findings if not f.rejects] == [rule], findings
    assert [f for f in findings if f.rejects] == []


def test_what_is_no_library_is_refused(tmp_path: Path):
    (tmp_path / "a.so").write_bytes(b"\x7fELF" + bytes(60))
    (tmp_path / "b.so").write_text("/* linker script */")
    for name in ("a.so", "b.so"):
        assert [f.rule for f in binary_findings(tmp_path / name, "cpu")] == ["object"]


@ON_X86
@pytest.mark.compiler
def test_a_system_call_is_told_from_a_constant(tmp_path: Path):
    calls = found(body('long r; asm volatile("syscall" : "=a"(r) : "a"(39) : "rcx", "r11");'), tmp_path)
    assert [(f.rule, f.what, f.rejects) for f in calls] == [("system call", "forge_launch", True)]
    constant = found(body("*(int64_t*)out[0].data = dims[0] * 0x1234050f1234;"), tmp_path)
    assert [(f.rule, f.what, f.rejects) for f in constant] == [("system call", "forge_launch", False)]


def test_system_calls_of_other_processors():
    assert list(system_calls(bytes.fromhex("1f2003d5 010000d4 0f050f05"), [0], "AArch64")) == [(4, True)]
    assert list(system_calls(b"\x0f\x05", [0], "RISC-V")) == []


@pytest.mark.parametrize(
    ("code", "length"),
    [
        ("c3", 1), ("0f05", 2), ("b8 01000000", 5), ("48b8 0102030405060708", 10), ("66b8 0100", 4), ("f3c3", 2),
        ("8b 44 24 08", 4), ("8b 04 25 00000000", 7), ("8b 05 00000000", 6), ("f6 00 01", 3), ("f6 10", 2),
        ("f7 c0 01000000", 6), ("c5f877", 3), ("c5fc1000", 4), ("c4e27db800", 5), ("c4e37d064011 01", 7),
        ("62f17c48104001", 7), ("62f37d4825c0ff", 7), ("660f3a0fc1 08", 6), ("0f1f440000", 5), ("e8 00000000", 5),
        ("a1 0000000000000000", 9), ("c8 000000", 4), ("06", None), ("48", None), ("8b", None),
    ],
)  # fmt: skip
def test_lengths_of_instructions(code: str, length: int | None):
    data = bytes.fromhex(code)
    assert instruction_length(data, 0) == length


@ON_X86
@pytest.mark.compiler
@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
@pytest.mark.parametrize("march", ["x86-64", "x86-64-v4"])
def test_lengths_agree_with_a_disassembler(march: str, tmp_path: Path):
    case = programs.ROW_BUILDERS["add_layer_norm_bf16"](4, 1024)
    code = candidates(case.problem, case.lowered, programs.cpu_device())[0].source
    library = built(code, tmp_path, f"-march={march}")
    text = read_library(library).section(".text")
    assert text is not None
    listing = subprocess.run(
        ["objdump", "-d", "-j", ".text", "--insn-width=16", str(library)], capture_output=True, text=True, check=True
    ).stdout
    rows = re.findall(r"^\s*([0-9a-f]+):\t((?:[0-9a-f]{2} )+)", listing, re.MULTILINE)
    assert len(rows) > 200
    for address, shown in rows:
        assert instruction_length(text.data, int(address, 16) - text.address) == len(shown.split()), (address, shown)


CUDA = (
    """#include "forge.h"
#include <cuda_runtime.h>
#include <cassert>
#include <cstdio>
__global__ void k(float* x) { x[threadIdx.x] = sinf(x[0]) / x[1]; %s }
"""
    + SIGNATURE
    + " { k<<<1, 32, 0, (cudaStream_t)stream>>>((float*)out[0].data); %s return (int)cudaGetLastError(); }\n"
)
CUDA_CASES = {
    "honest": ("", "", []),
    "device printf": ('printf("%f", x[0]);', "", ["vprintf"]),
    "device heap": ("float* p = (float*)malloc(8); if (p) { p[0] = x[1]; x[2] = p[1]; free(p); }", "", ["free", "malloc"]),
    "host heap": ("", "void* p; cudaMalloc(&p, 8);", ["cudaMalloc"]),
    "waiting": ("", "cudaStreamSynchronize((cudaStream_t)stream);", ["cudaStreamSynchronize"]),
}


def cuda_library(code: str, folder: Path, *flags: str) -> Path:
    """With the CUDA runtime as a library of its own, as the build makes it."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(nvcc).exists():
        pytest.skip("nvcc is not on PATH")
    (folder / "kernel.cu").write_text(code)
    compile_flags = ("-std=c++17", "-O3", "-lineinfo", "--compiler-options", "-fPIC", f"-I{INCLUDE}", "-c", *flags)
    subprocess.run([nvcc, *compile_flags, str(folder / "kernel.cu"), "-o", str(folder / "kernel.o")], check=True)
    library = folder / "kernel.so"
    subprocess.run([nvcc, "-shared", "-cudart", "shared", str(folder / "kernel.o"), "-o", str(library)], check=True)
    return library


@pytest.mark.nvcc(direct=True)
@pytest.mark.parametrize("name", CUDA_CASES)
def test_cuda_on_both_sides(name: str, tmp_path: Path):
    device, host, expected = CUDA_CASES[name]
    code = CUDA.replace("%s", device, 1).replace("%s", host, 1)
    findings = binary_findings(
        cuda_library(code, tmp_path, "-gencode=arch=compute_90,code=sm_90"), "cuda", source_bytes=len(code)
    )
    assert sorted(f.what for f in findings) == expected
    assert all(f.rejects for f in findings)


@pytest.mark.nvcc(direct=True)
def test_a_cuda_template_has_nothing_to_name_and_ptx_is_not_available(tmp_path: Path):
    case = programs.ROW_BUILDERS["softmax_bf16"](4, 1024)
    code = candidates(case.problem, case.lowered, programs.cuda_device())[0].source
    both = ("-gencode=arch=compute_90,code=sm_90", "-gencode=arch=compute_90,code=compute_90")
    library = cuda_library(code, tmp_path, *both)
    assert [(f.rule, f.rejects) for f in binary_findings(library, "cuda", source_bytes=len(code))] == [
        ("device code", False)
    ]
    on_cpu = [f.what for f in binary_findings(library, "cpu") if f.rejects]
    assert "cudaLaunchKernel" in on_cpu
    assert any(what.startswith("libcudart.so") for what in on_cpu)
