"""The source gate: what a kernel has no reason to contain is named, what honest kernels contain is not."""

from __future__ import annotations

import pytest

from tests.support import programs
from tests.support.kernels import HEAD
from tests.support.llm import make_problem, source
from torch_forge.generation.naive_source import example_source
from torch_forge.generation.templates.engine import candidates
from torch_forge.validation.static.finding import Finding, rejecting
from torch_forge.validation.static.source import source_findings, source_reasons

HONEST_CUDA = source(
    "auto f = (void (*)(const float*))k; cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 17);\n"
    "  k<<<256, 256, 0, (cudaStream_t)stream>>>((const float*)in[0].data); return f ? (int)cudaGetLastError() : 1;",
    before="""#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cooperative_groups.h>
#include <cuda/pipeline>
#include <cstdint>
// system("rm"), at::relu, 100%: and getenv() in a comment harm nobody; neither does don't.
#if 0
  printf("debug %d", 1);
#endif
#define LOG(f, ...) log_to(f, ##__VA_ARGS__)
#define CHECK(x) do { if ((x) != cudaSuccess) return 3; } while (0)
extern __shared__ float smem[];
__device__ float cube(float x) { return x * x * x; }
__global__ void __launch_bounds__(256) k(const float* x) {
  float y; asm volatile("{\\n .reg .pred p; @p ld.global.nc.f32 %0, [%1];\\n}" : "=f"(y) : "l"(x));
  auto pipe = cuda::make_pipeline(); pipe.producer_acquire(); pipe.close();
  asm("cp.async.wait_group 0;" ::: "memory");
  __syncthreads(); y = __shfl_xor_sync(0xffffffff, y, 1) % 2 ? cube(y) : y;
  const int cin = 3, cout = 4; float signal = y * cin * cout; smem[0] = signal;
}
extern "C" __global__ void late(float*);
extern "C" __global__ void late(float* p) { *p = 1; }
""",
)
HONEST_CPP = source(
    "std::vector<std::thread> t; const float* read = (const float*)in[0].data; float write = read[0]; t.at(0).join();\n"
    '  asm volatile("" ::: "memory"); long n = 1\'000; return std::remove(t.begin(), t.end(), n) == t.end() ? 0 : 1;',
    before="""#include <immintrin.h>
#include <thread>
#include <vector>
#include <map>
#include <math.h>
#define N 1'000 /* # include */
#pragma GCC optimize("O3")
#pragma omp declare simd
static float kill(float x) { return x > 0 ? x : 0; }
static std::map<int, float (*)(float)> table = {{0, kill}};
enum { kTag = 'x' };
struct alignas(64) Row { float open[4]; __attribute__((aligned(32))) float close; };
typedef float (*Scalar)(float);
static Scalar chosen = &kill;
extern "C" { static int helper(int a) { return a; } }
_Pragma("GCC ivdep")
""",
)


@pytest.mark.parametrize(
    ("code", "backend"),
    [
        (HONEST_CUDA, "cuda"),
        (HONEST_CPP, "cpu"),
        (example_source(make_problem(), "cuda"), "cuda"),
        (example_source(make_problem(), "cpu"), "cpu"),
    ],
    ids=["cuda", "cpp", "cuda example", "cpp example"],
)
def test_honest_kernels_pass(code: str, backend: str):
    assert [str(f) for f in source_findings(code, backend) if f.rejects] == []


def test_templates_pass_without_a_note():
    for device in (programs.cpu_device(), programs.cpu_device(l2_bytes=1), programs.cuda_device()):
        for case in (
            *(build(4, 1024) for build in programs.ROW_BUILDERS.values()),
            *(build(20_011) for build in programs.FLAT_BUILDERS.values()),
            *(build(7, 45) for build in programs.GRID_BUILDERS.values()),
        ):
            for candidate in candidates(case.problem, case.lowered, device):
                assert source_findings(candidate.source, device.type) == []


def test_headers_that_only_declare_are_notes():
    findings = source_findings(HEAD, "cpu")
    assert [(f.rule, f.what, f.rejects) for f in findings] == [("include", "#include <unistd.h>", False)]


REJECTED = [
    (source(before="#include <torch/extension.h>\n"), "include", "<torch/extension.h>"),
    (source(before="#include <ATen/ATen.h>\n"), "include", "is torch"),
    (source(before='#include "/etc/passwd"\n'), "include", "/etc/passwd"),
    (source(before='#include "../../secret"\n'), "include", "secret"),
    (source(before="#/**/include <dlfcn.h>\n"), "include", "dlfcn.h"),
    (source(before="#define H <dlfcn.h>\n#include H\n"), "include", "#include H"),
    (source(before='#inc\\\nlude "secret"\n'), "include", "secret"),
    (source(before="#/*\n*/include <dlfcn.h>\n"), "include", "dlfcn.h"),
    (source(before='const char* a = "/*";\n#include <dlfcn.h>\nconst char* b = "*/";\n'), "include", "dlfcn.h"),
    (source(before='#define X " /*\n#include <dlfcn.h>\n#define Y */\n'), "include", "dlfcn.h"),
    (source(before='auto s = R"x(a )\\\nx" )x";\n#include <dlfcn.h>\nauto t = ")x";\n'), "include", "dlfcn.h"),
    (source(before='#if __has_include("/etc/shadow")\n#endif\n'), "include", "__has_include"),
    (source(before='#embed "/etc/shadow"\n'), "directive", "#embed"),
    (source(before='# 7 "other.cpp"\n'), "directive", "#7"),
    (source(before="#pragma weak system\n"), "pragma", "#pragma weak"),
    (source(before='_Pragma("redefine_extname exp system")\n'), "pragma", "redefine_extname"),
    (source(before='#pragma GCC dependency "/etc/shadow"\n'), "pragma", "looks for files"),
    (source(before="#define J(a, b) a##b\n"), "pasting", "a ## b"),
    (source(before="#define J(b) sys##b\n"), "pasting", "could be syscall"),
    (source(before="#define J(a) cudaDevice ## a\n"), "pasting", "cudaDeviceSynchronize"),
    (source(before="#define J(a, b) get ## a ## v\n"), "pasting", "getenv"),
    (source(before="#define J(a, b) a %:%: b\n"), "pasting", "pastes"),
    ("\ufeff#include <dlfcn.h>\n" + source(), "include", "dlfcn.h"),
    (source(before="%:include <math.h>\n"), "disguise", "%:"),
    (source("sys\\\ntem(c); return 0;"), "disguise", "splits a word"),
    (source("sys\\  \ntem(c); return 0;"), "processes", "system"),
    (source("\\u0073ystem(c); return 0;"), "disguise", "by its number"),
    (source("int a??(1??); return 0;"), "disguise", "trigraph"),
    (source("// hidden ??/\nreturn 0;"), "disguise", "??/"),
    (source("// a\rsystem(c);\n return 0;"), "disguise", "control character"),
    (source("/* \u202e */ return 0;"), "disguise", "invisible"),
    (source("at::relu(x); return 0;"), "library", "calls torch"),
    (source("using namespace torch; return 0;"), "library", "calls torch"),
    (source("return cublasSgemm(h);"), "library", "cublasSgemm"),
    (source("thrust :: sort(a, b); return 0;"), "library", "thrust"),
    (source("sgemm_(a); return 0;"), "library", "sgemm_"),
    (source('system ("id"); return 0;'), "processes", "system"),
    (source("auto f = fork; return f();"), "processes", "fork"),
    (source(before="#define S system\n"), "processes", "system"),
    (source("return kill(1, 9);"), "processes", "kill"),
    (source("return dlsym(h, s) != 0;"), "loading", "dlsym"),
    (source("return _DYNAMIC[0].d_tag;"), "loading", "_DYNAMIC"),
    (source("return socket(1, 2, 3);"), "network", "socket"),
    (source('return fopen("x", "r") != 0;'), "files", "fopen"),
    (source("std::ofstream f; return 0;"), "files", "ofstream"),
    (source("return ::open(p, 0);"), "files", "open"),
    (source('const char* p = "/proc/self/maps"; return p != 0;'), "literal", "/proc/"),
    (source("return getenv(n) != 0;"), "environment", "getenv"),
    (source("extern char** environ; return 0;"), "environment", "environ"),
    (source("mprotect(p, 1, 7); return 0;"), "memory", "mprotect"),
    (source("dup(0); return 0;"), "memory", "dup"),
    (source('printf("best"); return 0;'), "prints", "printf"),
    (source("std::cout << 1; return 0;"), "prints", "cout"),
    (source("exit(0);"), "prints", "exit"),
    (source("return __builtin_return_address(0) != 0;"), "inside", "__builtin_return_address"),
    (source("float* p; cudaMalloc(&p, 4); return 0;"), "allocation", "cudaMalloc"),
    (source("auto f = &cudaFree; return 0;"), "allocation", "cudaFree"),
    (source("return malloc(4) != 0;"), "allocation", "malloc"),
    (source("cudaDeviceSynchronize(); return 0;"), "synchronises", "cudaDeviceSynchronize"),
    (source("cudaSetDevice(1); return 0;"), "synchronises", "cudaSetDevice"),
    (source("cudaGraphLaunch(g, s); return 0;"), "contract", "cudaGraphLaunch"),
    (source("cudaGetDriverEntryPoint(name, &f, 0, 0); return 0;"), "contract", "cudaGetDriverEntryPoint"),
    (source("cuLaunchKernel(f); return 0;"), "contract", "cuLaunchKernel"),
    (source("cudaProfilerStart(); return 0;"), "contract", "cudaProfilerStart"),
    (source(before="__attribute__((constructor)) static void f() {}\n"), "attribute", "outside forge_launch"),
    (source(before="[[gnu::__destructor__]] static void f() {}\n"), "attribute", "destructor"),
    (source(before="#define EARLY constructor\n__attribute__((EARLY)) static void f() {}\n"), "attribute", "constructor"),
    (source(before='__attribute__((section(".text#"))) static const char code[] = {1};\n'), "attribute", "section"),
    (source(before='static int f(int) __attribute__((alias("g")));\n'), "attribute", "alias"),
    (source(before='int f(const char*) asm("system");\n'), "asm label", '"system"'),
    (source(before='extern "C" double other(double);\n'), "extern", "other"),
    (source(before='extern "C" {\nint mine(int a) { return a; }\nvoid theirs(void);\n}\n'), "extern", "theirs"),
    (source(before="extern const char bank[];\n"), "extern", "bank"),
    (source("((void (*)(int))0x401000)(1); return 0;"), "cast", "turns an integer"),
    (source("((void (*)(int))(uintptr_t)code)(1); return 0;"), "cast", "turns an integer"),
    (source("reinterpret_cast<void (*)()>(base + 64)(); return 0;"), "cast", "turns an integer"),
    (source("using F = void (*)(); ((F)(base + 64))(); return 0;"), "cast", "turns an integer"),
    (source('asm(".incbin \\"x\\""); return 0;'), "literal", ".incbin"),
    (source('asm("nop; .byte 15, 5"); return 0;'), "assembly", ".byte"),
    (source('asm volatile("lock; syscall" ::: "memory"); return 0;'), "assembly", "enters the system"),
    (source('asm("\\x73yscall"); return 0;'), "assembly", "enters the system"),
    (source('asm("mov %%fs:0, %0" : "=r"(p)); return 0;'), "assembly", "thread's own data"),
    (source('asm(R"(call somewhere)"); return 0;'), "assembly", "calls from inside"),
    (source(before='#define A(x) asm("int $0x80")\n'), "assembly", "enters the system"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "rule", "word"), REJECTED, ids=[f"{r[1]}-{k}" for k, r in enumerate(REJECTED)])
def test_bright_lines_reject_with_a_reason(code: str, rule: str, word: str):
    found = [f for f in rejecting(source_findings(code, "cpu")) if f.rule == rule]
    assert any(word in str(f) for f in found), source_findings(code, "cpu")
    assert all(f.line > 0 for f in found)


NOTED = [
    ("#include <chrono>\n", "return 0;", "include"),
    ("", "std::thread(f).detach(); return 0;", "threads"),
    ("", "return (int)__rdtsc();", "clock"),
    ("", "_mm_setcsr(0x8040); return 0;", "state"),
    ("", "return __TIME__[0];", "build time"),
    ("", 'asm("nop"); return 0;', "assembly"),
    ("typedef void (*F)();\n", "((F)data)(); return 0;", "cast"),
    ("#pragma scop\n", "return 0;", "pragma"),
    ("#define ROW(n) kernel_##n\n", "return 0;", "pasting"),
    ("", "int \u03b1 = 0; return \u03b1;", "disguise"),
]


@pytest.mark.parametrize(("before", "body", "rule"), NOTED, ids=[n[2] for n in NOTED])
def test_what_proves_nothing_is_a_note(before: str, body: str, rule: str):
    findings = source_findings(source(body, before), "cpu")
    assert [f.rule for f in findings if not f.rejects] == [rule]
    assert source_reasons(source(body, before), "cpu") == []


def test_ptx_is_not_host_assembly():
    code = source(
        before='__device__ void f() { asm("call (r), vprintf, (a, b);"); asm(".extern .func g;"); asm("nop;"); }\n'
    )
    assert [f.rule for f in rejecting(source_findings(code, "cuda"))] == ["assembly", "assembly"]


def test_the_function_that_describes_tensors_may_be_fetched():
    code = source('cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &f, 0, 0); return 0;')
    assert [(f.rule, f.rejects) for f in source_findings(code, "cuda")] == [("contract", False)]


def test_findings_are_in_order_and_each_thing_is_told_once():
    code = source("fork(); fork(); return system(c);")
    assert source_findings(code, "cpu") == [
        Finding(4, "processes", "fork", "starts or touches processes"),
        Finding(4, "processes", "system", "starts or touches processes"),
    ]
    assert source_reasons(code, "cpu")[0] == "line 4: `fork` starts or touches processes"
