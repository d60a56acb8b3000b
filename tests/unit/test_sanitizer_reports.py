"""What sanitizers print, in a line. The compute-sanitizer texts were written after the formats in NVIDIA's manual, with our
kernels' names; the AddressSanitizer ones are shortened reports of GCC 12 and clang 17.
"""

from __future__ import annotations

import pytest

from torch_forge.records.outcomes import Crashed, Refused, TimedOut
from torch_forge.validation.sanitizer_reports import Buffer, device_report, host_finding, read_notes
from torch_forge.validation.sanitizer_verdict import of_builds, of_tool

NOTES = """ready 0
run 0
tensor 0x7f0000000000 4096 input 0
tensor 0x7f0000002000 16 output 0
tensor (nil) 0 workspace 0
launch 0
code 0
launch 1
code 0
run 1
tensor 0x7f1000000000 400 input 0
tensor 0x7f1000002000 400 input 1
tensor 0x7f1000004000 400 output 0
tensor (nil) 0 workspace 0
launch 0
"""
DONE = NOTES + "code 0\nlaunch 1\ncode 0\ndone 0\n"
CASES = ("shifted", "special")


def test_notes_tell_how_far_it_came():
    notes = read_notes(NOTES)
    assert (notes.ready, notes.done, notes.run, notes.launches, notes.failed) == (True, False, 1, 2, "")
    assert notes.buffers[1] == Buffer("input 1", 0x7F1000002000, 400)
    assert read_notes(DONE).done


def test_lines_that_are_no_notes_are_left_out():
    spoiled = "\x00\x01 rubbish\ntensor 12 x input 0\nrun one\nready\n" + NOTES + "code\ntensor 0x12 99 elsewhere 3\n"
    assert read_notes(spoiled) == read_notes(NOTES)


ASAN_READ = """=================================================================
==77==ERROR: AddressSanitizer: use-after-poison on address 0x7f1000002190 at pc 0x7f2b bp 0x7ffd sp 0x7ffd
READ of size 4 at 0x7f1000002190 thread T1
    #0 0x7f2b10 in rows(float const*, float*) [clone ._omp_fn.0] /tmp/s/kernel.cpp:12
    #1 0x7f2b11 in GOMP_parallel (/usr/lib/libgomp.so.1+0x1)

Address 0x7f1000002190 is a wild pointer inside of access range of size 0x000000000004.
SUMMARY: AddressSanitizer: use-after-poison /tmp/s/kernel.cpp:12 in rows(float const*, float*) [clone ._omp_fn.0]
"""
ASAN_SEGV = """AddressSanitizer:DEADLYSIGNAL
==78==ERROR: AddressSanitizer: SEGV on unknown address 0x000000000010 (pc 0x7f5a bp 0x7ffc sp 0x7ffc T0)
==78==The signal is caused by a WRITE memory access.
==78==Hint: address points to the zero page.
    #0 0x7f5a in forge_launch /tmp/s/kernel.cpp:9:5
    #1 0x55d0 in run(int) (/tmp/s/driver+0x12)
"""
ASAN_STACK = """==79==ERROR: AddressSanitizer: stack-overflow on address 0x7ffe1000 (pc 0x7f5a bp 0x7ffe sp 0x7ffe T0)
    #0 0x7f5a in down /tmp/s/kernel.cpp:3
"""
ASAN_FREE = """=80=ERROR: AddressSanitizer: attempting free on address which was not malloc()-ed: 0x7f1000002004 in thread T0
    #0 0x7f5a in __interceptor_free ../../../../src/libsanitizer/asan/asan_malloc_linux.cpp:52
    #1 0x7f5b in forge_launch /tmp/s/kernel.cpp:30
"""
ASAN_BARE = """==81==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000000010 at pc 0x1 bp 0x2 sp 0x3
WRITE of size 16 at 0x602000000010 thread T0
    #0 0x7f5a in helper (/tmp/s/kernel.so+0x1139)
"""
UBSAN = "kernel.cpp:21:9: runtime error: signed integer overflow: 2147483647 + 1 cannot be represented in type 'int'\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ASAN_READ, "reads 4 bytes 0 bytes past the end of input 1 (use-after-poison), kernel.cpp:12"),
        (ASAN_SEGV, "SEGV when writing 0x000000000010, kernel.cpp:9"),
        (ASAN_STACK, "stack-overflow, kernel.cpp:3"),
        (ASAN_FREE, "attempting free on address which was not malloc()-ed, kernel.cpp:30"),
        (ASAN_BARE, "writes 16 bytes (heap-use-after-free), in helper"),
        (UBSAN, "signed integer overflow: 2147483647 + 1 cannot be represented in type 'int', kernel.cpp:21"),
        (UBSAN + ASAN_READ, "signed integer overflow: 2147483647 + 1 cannot be represented in type 'int', kernel.cpp:21"),
        (ASAN_READ + UBSAN, "reads 4 bytes 0 bytes past the end of input 1 (use-after-poison), kernel.cpp:12"),
        ("it prints a lot\nerror: nothing\n", ""),
    ],
    ids=["read", "fault", "stack", "free", "no line", "undefined", "undefined first", "address first", "its own words"],
)
def test_a_host_report_in_a_line(text: str, words: str):
    assert host_finding(text, read_notes(NOTES)) == words


def lines(*texts: str) -> str:
    return "".join(f"========= {t}\n" if t else "=========\n" for t in ("COMPUTE-SANITIZER", *texts))


CLEAN = lines("ERROR SUMMARY: 0 errors")
OVER_READ = lines(
    "Invalid __global__ read of size 4 bytes",
    "    at scale(const float *, float *, long)+0x90 in /build/cuda.cu:7",
    "    by thread (100,0,0) in block (0,0,0)",
    "    Address 0x7f1000002190 is out of bounds",
    "    and is 1 bytes after the nearest allocation at 0x7f1000002000 of size 400 bytes",
    "    Saved host backtrace up to driver entry point at kernel launch time",
    "        Host Frame: forge_launch in cuda.cu:12 [0xacd4] in kernel.so",
    "",
    "Invalid __global__ read of size 4 bytes",
    "    at scale(const float *, float *, long)+0x90 in /build/cuda.cu:7",
    "    by thread (101,0,0) in block (0,0,0)",
    "",
    "ERROR SUMMARY: 2 errors",
)
OLDER = lines(
    "Invalid __shared__ write of size 16 bytes",
    "    at tile(float *):0x160 in cuda.cu:6",
    "    by thread (0,0,0) in block (3,0,0)",
    "    Address 0x4001 is misaligned",
    "",
    "ERROR SUMMARY: 1 error",
)
MISALIGNED = lines(
    "Invalid __global__ read of size 16 bytes",
    "    at scale(const float4 *, float *)+0x160 in cuda.cu:6",
    "    by thread (0,0,0) in block (0,0,0)",
    "    Address 0x7f1000002004 is misaligned",
    "    and is inside the nearest allocation at 0x7f1000002000 of size 404 bytes",
    "",
    "ERROR SUMMARY: 1 error",
)
RACE = lines(
    "Error: Race reported between Write access at sums(float *, int)+0x90 in /build/cuda.cu:41",
    "    and Read access at sums(float *, int)+0x100 in /build/cuda.cu:51 [508 hazards]",
    "",
    "RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)",
)
RACE_WARNING = lines(
    "Warning: Race reported between Read access at sums(float *, int)+0x90 in cuda.cu:41",
    "    and Write access at sums(float *, int)+0x100 in cuda.cu:51 [32 hazards]",
    "",
    "RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)",
)
UNINITIALISED = lines(
    "Uninitialized __global__ memory read of size 4 bytes",
    "    at sums(float *, int)+0x60",
    "    by thread (122,0,0) in block (0,0,0)",
    "    Address 0x7f1000004008",
    "",
    "ERROR SUMMARY: 1 error",
)
DIVERGENT = lines(
    "Barrier error detected. Divergent thread(s) in block.",
    "    at sums(float *, int)+0x11f0 in cuda.cu:42",
    "    by thread (32,0,0) in block (0,0,0)",
    "",
    "ERROR SUMMARY: 1 error",
)
NOT_HERE = lines(
    "Error: Device not supported. Please refer to the 'Supported Devices' section of the manual",
    "Target application returned an error",
    "ERROR SUMMARY: 0 errors",
)
NOT_TRACKED = lines(
    "Internal Sanitizer Error: The Sanitizer encountered an error while launching sums and didn't track the launch. "
    "Errors might go undetected. (Unable to allocate enough memory to perform the requested operation)",
    "ERROR SUMMARY: 0 errors",
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            OVER_READ,
            (
                "Invalid __global__ read of size 4 bytes, in scale(const float *, float *, long) (cuda.cu:7), "
                "thread (100,0,0) in block (0,0,0), 0 bytes past the end of input 1"
            ),
        ),
        (OLDER, "Invalid __shared__ write of size 16 bytes, in tile(float *) (cuda.cu:6), thread (0,0,0) in block (3,0,0)"),
        (
            MISALIGNED,
            (
                "Invalid __global__ read of size 16 bytes, in scale(const float4 *, float *) (cuda.cu:6), "
                "thread (0,0,0) in block (0,0,0), in input 1 at byte 4 (misaligned)"
            ),
        ),
        (
            RACE,
            (
                "Race reported between Write access at sums(float *, int) (cuda.cu:41) "
                "and Read access at sums(float *, int) (cuda.cu:51)"
            ),
        ),
        (
            UNINITIALISED,
            (
                "Uninitialized __global__ memory read of size 4 bytes, in sums(float *, int), "
                "thread (122,0,0) in block (0,0,0), in output 0 at byte 8"
            ),
        ),
        (
            DIVERGENT,
            (
                "Barrier error detected. Divergent thread(s) in block., in sums(float *, int) (cuda.cu:42), "
                "thread (32,0,0) in block (0,0,0)"
            ),
        ),
        (CLEAN, ""),
        (RACE_WARNING, ""),
        (lines("ERROR SUMMARY: 3 errors"), "an error without a report"),
    ],
    ids=["read", "older form", "misaligned", "race", "uninitialised", "barrier", "clean", "race warning", "no report"],
)
def test_a_device_report_in_a_line(text: str, words: str):
    report = device_report(text, read_notes(NOTES).buffers)
    assert (report.finding, report.complete, report.broken) == (words, True, "")


@pytest.mark.parametrize("text", [NOT_HERE, NOT_TRACKED], ids=["device", "launch"])
def test_a_tool_that_did_not_look_is_no_verdict(text: str):
    report = device_report(text, ())
    assert report.finding == ""
    assert report.broken
    assert of_tool("memcheck", ran(text, DONE), CASES, 9.0) == report.broken


def ran(text: str = "", notes: str = DONE, status: int = 0, timed_out: bool = False) -> dict[str, object]:
    return {"text": text, "notes": notes, "exit_status": status, "timed_out": timed_out, "seconds": 1.0}


@pytest.mark.parametrize(
    ("tool", "record", "answer"),
    [
        ("asan+ubsan", ran(), None),
        ("memcheck", ran(CLEAN), None),
        ("racecheck", ran(RACE_WARNING, status=86), None),
        ("memcheck", ran(""), "it left no summary"),
        ("memcheck", ran("cannot attach", ""), "it cannot work here: cannot attach"),
        ("memcheck", ran("", "failed cudaSetDevice: no device\n"), "it cannot work here: cudaSetDevice: no device"),
        ("memcheck", ran(CLEAN, NOTES + "failed cudaMalloc: out of memory\n"), "cudaMalloc: out of memory"),
        ("memcheck", ran("", NOTES, -9, True), "it came through 1 of 2 cases within 9 s"),
    ],
    ids=["host", "device", "warnings", "no summary", "no start", "no device", "no memory", "slow"],
)
def test_what_is_neither_for_nor_against_the_candidate(tool: str, record, answer):
    assert of_tool(tool, record, CASES, 9.0) == answer


@pytest.mark.parametrize(
    ("tool", "record", "kind", "words"),
    [
        ("memcheck", ran(OVER_READ, NOTES, 86), Refused, "memcheck: Invalid __global__ read .* input 1 (special)"),
        ("asan+ubsan", ran(ASAN_READ, NOTES, 86), Refused, "asan+ubsan: reads 4 bytes .* (special)"),
        (
            "racecheck",
            ran(CLEAN, NOTES + "code 0\nfailed the device ends with: an illegal address\n"),
            Refused,
            "racecheck: the device ends with: an illegal address (special)",
        ),
        ("memcheck", ran(CLEAN, NOTES + "code 3\n"), Refused, "memcheck: forge_launch: it does not serve these inputs"),
        (
            "memcheck",
            ran(CLEAN, NOTES + "code 0\nuntouched 0\nlaunch 1\ncode 0\nuntouched 0\ndone 0\n"),
            Refused,
            "memcheck: it writes nothing to output 0",
        ),
        ("asan+ubsan", ran("", NOTES, -11), Crashed, ""),
        ("asan+ubsan", ran("", NOTES, 0), Crashed, ""),
        ("asan+ubsan", ran("", DONE, 1), Crashed, ""),
        ("memcheck", ran("", "ready 0\nrun 0\nlaunch 0\n", -9, True), TimedOut, ""),
    ],
    ids=["device", "host", "fault", "code", "untouched", "signal", "exit", "exit after all", "hangs"],
)
def test_what_is_held_against_the_candidate(tool: str, record, kind: type, words: str):
    found = of_tool(tool, record, CASES, 9.0)
    assert isinstance(found, kind)
    assert found.gate == "sanitizers"
    begin, _, end = words.partition(" .* ")
    assert not words or (found.reason.startswith(begin) and end in found.reason)


def test_an_output_that_one_of_the_patterns_equals_is_not_untouched():
    notes = NOTES + "code 0\nuntouched 0\nlaunch 1\ncode 0\ndone 0\n"
    assert of_tool("asan+ubsan", ran("", notes), CASES, 9.0) is None


@pytest.mark.parametrize(
    ("driver", "kernel", "kind"),
    [(0, 0, type(None)), (1, 0, str), (1, 1, str), (0, 1, Refused)],
    ids=["built", "driver", "both", "kernel"],
)
def test_only_the_kernels_own_build_is_held_against_it(driver: int, kernel: int, kind: type):
    builds = {"kernel": ran("x.cpp:1:1: error: bad", "", kernel), "driver": ran("ld: cannot find -lasan", "", driver)}
    assert isinstance(of_builds(builds, 9.0), kind)


def test_a_compiler_that_ran_out_of_memory_or_time_is_no_verdict():
    killed = ran("g++: fatal error: Killed signal terminated program cc1plus", "", 1)
    assert isinstance(of_builds({"driver": ran(), "kernel": killed}, 9.0), str)
    assert of_builds({"driver": ran(), "kernel": ran("", "", -9, True)}, 9.0) == "the kernel did not build within 9 s"
