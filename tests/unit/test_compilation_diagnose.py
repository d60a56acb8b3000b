"""What a compiler's log says: the lines that matter, whose fault it is, and what it used."""

from __future__ import annotations

import pytest

from torch_forge.compilation.build import failed_command, identifier, resources
from torch_forge.compilation.diagnose import environmental, root_cause, was_killed

UNDECLARED = "'n' was not declared in this scope"
COMMAND = "/usr/bin/g++ -MMD -I/x -O3 -DERROR=1 -c /s/main.cpp -o main.o"
GCC = f"""[1/2] {COMMAND}
FAILED: main.o
{COMMAND}
/s/main.cpp: In function 'int forge_launch(const ForgeTensor*)':
/s/main.cpp:12:9: error: 'n' was not declared in this scope
   12 |   for (; n; ) // killed
      |          ^
/s/main.cpp:12:9: error: 'n' was not declared in this scope
/s/main.cpp:19:1: error: expected '}}' at end of input
ninja: build stopped: subcommand failed.
"""
NVCC = """FAILED: [code=1] cuda.cuda.o
/opt/bin/nvcc -c /s/cuda.cu -o cuda.cuda.o
/s/cuda.cu(7): warning #177-D: variable "unused" was declared but never referenced
/s/cuda.cu(9): error: identifier "blockIdy" is undefined
    int i = blockIdy.x;
            ^
1 error detected in the compilation of "/s/cuda.cu".
"""
PTXAS = "ptxas error   : Entry function '_Z1kv' uses too much shared data (0x20000 bytes, 0xc000 max)\n"
LINKER = """/usr/bin/ld: main.o: in function `forge_launch':
main.cpp:(.text+0x5): undefined reference to `helper()'
collect2: error: ld returned 1 exit status
"""
HOST = """In file included from /opt/cuda/include/cuda_runtime.h:82,
                 from <command-line>:
/opt/cuda/include/crt/host_config.h:143:2: error: #error -- unsupported GNU version! gcc later than 12 is not supported!
  143 | #error -- unsupported GNU version! gcc versions later than 12 are not supported!
      |  ^~~~~
"""


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (GCC, [f"/s/main.cpp:12:9: error: {UNDECLARED}", "/s/main.cpp:19:1: error: expected '}' at end of input"]),
        (NVCC, ['/s/cuda.cu(9): error: identifier "blockIdy" is undefined']),
        (PTXAS, [PTXAS.strip()]),
        (LINKER, ["main.cpp:(.text+0x5): undefined reference to `helper()'"]),
        (HOST, [HOST.splitlines()[2]]),
        ("/s/k.so: undefined symbol: cudaFoo\n", ["/s/k.so: undefined symbol: cudaFoo"]),
        ("strange\nends here\n", ["ends here"]),
        ("", [""]),
        ("x.cpp:1:1: error: " + "y" * 9999, ["x.cpp:1:1: error: " + "y" * 382]),
    ],
    ids=["g++", "nvcc", "ptxas", "linker", "host compiler", "loader", "no error", "empty", "long line"],
)  # fmt: skip
def test_root_cause(log: str, expected: list[str]):
    assert root_cause(log).splitlines() == expected or (expected == [""] and root_cause(log) == "")


@pytest.mark.parametrize(
    ("log", "advice"),
    [
        (HOST, "CXX"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_130'\n", "TORCH_CUDA_ARCH_LIST"),
        ("nvcc fatal   : Failed to preprocess host compiler properties.\n", "CXX"),
        ("/tmp/a.s: Assembler messages:\nas: main.o: No space left on device\n", "TORCH_FORGE_CACHE_DIR"),
        ("/s/main.cpp:1:10: fatal error: cstdint: No such file or directory\n", "Reinstall"),
        ("g++: fatal error: cannot execute 'cc1plus': execvp: No such file or directory\n", "installed only in part"),
        ("g++: fatal error: cannot execute 'as': vfork: Resource temporarily unavailable\n", "MAX_JOBS"),
        ("/usr/bin/ld: cannot find -lcudart: No such file or directory\n", "CUDA runtime"),
        ("OSError: [Errno 28] No space left on device: '/s/main.cpp'\n", "TORCH_FORGE_CACHE_DIR"),
    ],
    ids=["host", "arch", "ccbin", "disk", "headers", "cc1plus", "fork", "libcudart", "disk, from Python"],
)
def test_the_machine_is_to_blame(log: str, advice: str):
    assert advice in (environmental(log) or "")


@pytest.mark.parametrize(
    "log",
    [
        GCC,
        NVCC,
        PTXAS,
        LINKER,
        "/s/main.cpp:1:2: error: #error No space left on device\n",
        '/s/cuda.cu(3): error: static assertion failed with "host_config.h: unsupported GNU version!"\n',
        "/s/main.cpp:2:2: error: #error nvcc fatal   : Unsupported gpu architecture\n",
        "/s/main.cpp:1:10: fatal error: torch/extension.h: No such file or directory\n",
        "  3 | // No space left on device\n",
        "",
    ],
    ids=["g++", "nvcc", "ptxas", "linker", "quotes disk", "quotes host", "quotes arch", "own include", "excerpt", "empty"],
)
def test_the_candidate_is_to_blame(log: str):
    assert environmental(log) is None


@pytest.mark.parametrize(
    ("log", "killed"),
    [
        ("g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n", True),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)\n", True),
        ("FAILED: [code=137] main.o\n", True),
        ("cc1plus: out of memory allocating 65536 bytes\n", True),
        (GCC, False),
        ("nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)\n", False),
    ],
    ids=["g++", "nvcc", "ninja", "own limit", "plain error", "compiler crash"],
)
def test_memory_ran_out(log: str, killed: bool):
    assert was_killed(log) is killed
    assert (failed_command(log)[1] == -9) is killed


@pytest.mark.parametrize(
    ("log", "program", "status"),
    [(GCC, "/usr/bin/g++", 1), (NVCC, "/opt/bin/nvcc", 1), ("", None, 1)],
    ids=["old ninja", "new", "none"],
)
def test_the_command_that_failed(log: str, program: str | None, status: int):
    command, exit_status = failed_command(log)
    assert (command[:1] or (None,))[0] == program
    assert exit_status == status


def test_resources_are_the_largest_over_all_kernels():
    log = """ptxas info    : Compiling entry function '_Z1av' for 'sm_90a'
    0 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 4096 bytes smem, 352 bytes cmem[0]
ptxas info    : Compiling entry function '_Z1bv' for 'sm_90a'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers
"""
    assert resources(log) == {"registers": 255, "smem_bytes": 4096, "spill_bytes": 12}
    assert resources(GCC) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("rms_norm", "rms_norm"), ("aten.gelu/8x8", "aten_gelu_8x8"), ("3d", "k3d"), ("", "k"), ("\u00e9", "k_")],
)
def test_identifier(text: str, expected: str):
    assert identifier(text) == expected
