"""System-call filters, assembled here: a classic BPF program looks at number and arguments and says yes or an error.

Two filters, one upon the other. The first keeps a process from the network, from other processes and from the kernel's
rarely used corners, and still lets compilers work. The second, put on before a candidate is loaded, takes away new programs
and processes too, and whatever changes files without opening them. Threads are left: OpenMP needs them.
"""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch_forge.machine.sandbox.syscalls import AARCH64, LAST_KNOWN, MACHINE, X86_64, call, numbers

_AUDIT_ARCH: Mapping[str, int] = {X86_64: 0xC000003E, AARCH64: 0xC00000B7}
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_EQUAL, _GREATER, _ANY_BIT = 0x15, 0x25, 0x45
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_SET_MODE_FILTER, _ALL_THREADS = 1, 1

_NEW_NAMESPACES = 0x7E020080
"""CLONE_NEW* for mount, cgroup, uts, ipc, user, pid, net and time namespaces."""
_THREAD = 0x00010000
_PRCTL_REFUSED = (1, 4, 35, 0x59616D61)
"""PR_SET_PDEATHSIG (it dies with its parent), PR_SET_DUMPABLE, PR_SET_MM, PR_SET_PTRACER."""
_TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI, TIOCLINUX: typing into a terminal that the process shares."""

NEVER = (
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease", "kcmp", "pidfd_open",
    "pidfd_getfd", "pidfd_send_signal", "perf_event_open", "keyctl", "add_key", "request_key", "bpf", "userfaultfd",
    "io_uring_setup", "io_uring_enter", "io_uring_register", "mount", "umount2", "pivot_root", "chroot", "move_mount",
    "open_tree", "open_tree_attr", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "setns", "unshare",
    "open_by_handle_at", "name_to_handle_at", "kexec_load", "kexec_file_load", "init_module", "finit_module",
    "delete_module", "swapon", "swapoff", "reboot", "syslog", "acct", "quotactl", "quotactl_fd", "settimeofday",
    "clock_settime", "adjtimex", "clock_adjtime", "sethostname", "setdomainname", "iopl", "ioperm", "modify_ldt",
    "fanotify_init", "lookup_dcookie", "nfsservctl", "vhangup", "uselib", "lsm_set_self_attr", "migrate_pages",
    # No name service is asked with these gone: glibc then reads its files. Sockets that are open already stay usable.
    "socket", "connect", "bind", "listen", "accept", "accept4",
)  # fmt: skip
NOT_FOR_CANDIDATES = (
    "execve", "execveat", "fork", "vfork", "setsid", "setpgid", "tkill",
    # Landlock governs opening only, and a file of the user's can be spoiled by less.
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime", "utimes", "futimesat",
    "utimensat", "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr", "fremovexattr",
    "removexattrat", "file_setattr",
)  # fmt: skip

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, constant."""


def tooled(pid: int, machine: str = MACHINE) -> bytes:
    """The first filter, for the process ``pid`` (as it sees itself) and all that it starts."""
    program = _Program(machine)
    program.refuse(NEVER)
    program.refuse(["clone3"], errno.ENOSYS)  # its flags are behind a pointer; libc falls back to clone
    program.refuse_bits("clone", 0, _NEW_NAMESPACES)
    program.refuse_values("prctl", 0, _PRCTL_REFUSED)
    program.refuse_values("ioctl", 1, _TERMINAL_INPUT)
    # A pair of datagram sockets could still send to any socket that has a name.
    program.refuse_others("socketpair", 1, (socket.SOCK_STREAM, socket.SOCK_SEQPACKET), mask=0xF)
    program.refuse_others("prlimit64", 0, (0, pid))
    return program.assembled()


def bare(pid: int, machine: str = MACHINE) -> bytes:
    """The second filter, for a process that runs a candidate and nothing else."""
    program = _Program(machine)
    program.refuse(NOT_FOR_CANDIDATES)
    program.refuse_without("clone", 0, _THREAD)
    for name in ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
        program.refuse_others(name, 0, (pid,))
    return program.assembled()


def install(program: bytes) -> None:
    """Put a filter on all threads of this process. Needs ``no_new_privs``. Raises OSError."""
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    other = call("seccomp", _SET_MODE_FILTER, _ALL_THREADS, header)
    if other:
        raise OSError(errno.EBUSY, f"seccomp: thread {other} could not take the filter over")


@dataclass
class _Program:
    """A list of rules; the first that speaks about a call decides, and what none speaks about is allowed."""

    machine: str
    rules: list[Instruction] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._numbers = numbers(self.machine)

    def refuse(self, names: Iterable[str], error: int = errno.EPERM) -> None:
        for name in names:
            if name in self._numbers:
                self.rules += [(_EQUAL, 0, 1, self._numbers[name]), _answer(error)]

    def refuse_values(self, name: str, argument: int, values: Iterable[int]) -> None:
        tests = [t for v in values for t in ((_EQUAL, 0, 1, v), _answer(errno.EPERM))]
        self._about(name, argument, [*tests, _answer(0)])

    def refuse_others(self, name: str, argument: int, values: Iterable[int], mask: int = 0) -> None:
        masked = [(_AND, 0, 0, mask)] if mask else []
        tests = [t for v in values for t in ((_EQUAL, 0, 1, v), _answer(0))]
        self._about(name, argument, [*masked, *tests, _answer(errno.EPERM)])

    def refuse_bits(self, name: str, argument: int, bits: int) -> None:
        self._about(name, argument, [(_ANY_BIT, 0, 1, bits), _answer(errno.EPERM), _answer(0)])

    def refuse_without(self, name: str, argument: int, bits: int) -> None:
        self._about(name, argument, [(_ANY_BIT, 1, 0, bits), _answer(errno.EPERM), _answer(0)])

    def _about(self, name: str, argument: int, tests: list[Instruction]) -> None:
        """The low half of the argument is all that the kernel reads of those that rules speak about."""
        low = _ARGUMENTS + 8 * argument
        self.rules += [(_EQUAL, 0, 1 + len(tests), self._numbers[name]), (_LOAD, 0, 0, low), *tests]

    def assembled(self) -> bytes:
        program: list[Instruction] = [
            (_LOAD, 0, 0, _ARCH),
            (_EQUAL, 1, 0, _AUDIT_ARCH[self.machine]),
            (_RETURN, 0, 0, _KILL_PROCESS),  # another instruction set has other numbers
            (_LOAD, 0, 0, _NUMBER),
            (_GREATER, 0, 1, LAST_KNOWN),
            _answer(errno.ENOSYS),
            *self.rules,
            _answer(0),
        ]
        return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def _answer(error: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | error if error else _ALLOW)
