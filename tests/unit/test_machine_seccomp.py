"""The filters' programs, run here instruction by instruction, for both machines: who is refused and who is not."""

from __future__ import annotations

import errno
import socket
import struct

import pytest

from torch_forge.machine.sandbox.seccomp import NEVER, NOT_FOR_CANDIDATES, bare, tooled
from torch_forge.machine.sandbox.syscalls import AARCH64, LAST_KNOWN, X86_64, numbers

ARCH = {X86_64: 0xC000003E, AARCH64: 0xC00000B7}
PID = 1234
ALLOWED, KILLED = "allowed", "killed"
THREAD_FLAGS = 0x3D0F00
"""What pthread_create passes to clone."""
FORK_FLAGS = 0x1200011


def answer(program: bytes, machine: str, number: int, *arguments: int) -> str | int:
    """What the kernel would do: ``allowed``, ``killed``, or an errno."""
    data = struct.pack("<IIQ6Q", number, ARCH[machine], 0, *arguments, *[0] * (6 - len(arguments)))
    instructions = list(struct.iter_unpack("HBBI", program))
    at, accumulator = 0, 0
    while True:
        code, if_true, if_false, constant = instructions[at]
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, constant)
        elif code == 0x54:
            accumulator &= constant
        elif code == 0x06:
            kind = constant & 0xFFFF0000
            return {0x7FFF0000: ALLOWED, 0x80000000: KILLED}.get(kind, constant & 0xFFFF)
        else:
            holds = {0x15: accumulator == constant, 0x25: accumulator > constant, 0x45: bool(accumulator & constant)}[code]
            at += if_true if holds else if_false


machines = pytest.mark.parametrize("machine", [X86_64, AARCH64])


@machines
def test_what_is_never_allowed(machine: str):
    for name in NEVER:
        if name in numbers(machine):
            assert answer(tooled(PID, machine), machine, numbers(machine)[name]) == errno.EPERM, name


@machines
def test_what_candidates_are_not_allowed(machine: str):
    for name in NOT_FOR_CANDIDATES:
        if name in numbers(machine):
            assert answer(tooled(PID, machine), machine, numbers(machine)[name]) == ALLOWED, name
            assert answer(bare(PID, machine), machine, numbers(machine)[name]) == errno.EPERM, name


CASES: dict[str, tuple[str, tuple[int, ...], str | int, str | int]] = {
    "a thread": ("clone", (THREAD_FLAGS,), ALLOWED, ALLOWED),
    "a fork": ("clone", (FORK_FLAGS,), ALLOWED, errno.EPERM),
    "a user namespace": ("clone", (FORK_FLAGS | 0x10000000,), errno.EPERM, errno.EPERM),
    "a mount namespace": ("clone", (FORK_FLAGS | 0x20000,), errno.EPERM, errno.EPERM),
    "clone3": ("clone3", (), errno.ENOSYS, ALLOWED),
    "kill itself": ("kill", (PID, 9), ALLOWED, ALLOWED),
    "kill another": ("kill", (PID + 1, 9), ALLOWED, errno.EPERM),
    "kill all": ("kill", (0xFFFFFFFF, 9), ALLOWED, errno.EPERM),
    "abort": ("tgkill", (PID, PID, 6), ALLOWED, ALLOWED),
    "its own limits": ("prlimit64", (0, 7), ALLOWED, ALLOWED),
    "another's limits": ("prlimit64", (PID + 1, 7), errno.EPERM, ALLOWED),
    "survive the parent": ("prctl", (1, 0), errno.EPERM, ALLOWED),
    "be traced": ("prctl", (4, 1), errno.EPERM, ALLOWED),
    "name a thread": ("prctl", (15, 0), ALLOWED, ALLOWED),
    "a pair of streams": ("socketpair", (1, socket.SOCK_STREAM | socket.SOCK_CLOEXEC), ALLOWED, ALLOWED),
    "a pair of datagrams": ("socketpair", (1, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC), errno.EPERM, ALLOWED),
    "type into a terminal": ("ioctl", (0, 0x5412), errno.EPERM, ALLOWED),
    "talk to a device": ("ioctl", (0, 0xC0104600), ALLOWED, ALLOWED),
}


@machines
@pytest.mark.parametrize("case", CASES)
def test_arguments_that_decide(machine: str, case: str):
    """The second filter is never alone: what the first refuses, it need not."""
    name, arguments, first, second = CASES[case]
    number = numbers(machine)[name]
    assert answer(tooled(PID, machine), machine, number, *arguments) == first
    assert answer(bare(PID, machine), machine, number, *arguments) == second


@machines
@pytest.mark.parametrize("build", [tooled, bare])
def test_other_numbers(machine: str, build):
    program = build(PID, machine)
    assert len(program) // 8 <= 4096  # the kernel takes no more
    assert answer(program, machine, LAST_KNOWN + 1) == errno.ENOSYS
    assert answer(program, machine, 1 << 30) == errno.ENOSYS  # the x32 numbers of x86-64
    other = {X86_64: AARCH64, AARCH64: X86_64}[machine]
    assert answer(program, other, 0) == KILLED
    ordinary = {X86_64: (0, 1, 3, 9, 202, 257), AARCH64: (56, 57, 63, 64, 98, 222)}[machine]
    assert {answer(program, machine, n) for n in ordinary} == {ALLOWED}


@machines
def test_high_halves_do_not_help(machine: str):
    """The kernel reads 32 bits of these; a filter that read 64 would be told another number."""
    number = numbers(machine)["kill"]
    assert answer(bare(PID, machine), machine, number, PID + 1 | 1 << 40, 9) == errno.EPERM
    assert answer(tooled(PID, machine), machine, numbers(machine)["prctl"], 1 | 1 << 40) == errno.EPERM
