"""System calls by name: what libc has no function for, and the numbers that a filter compares with.

Numbers from 424 on are the same on every architecture; the older ones are listed for the two that torch is built for.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

X86_64, AARCH64 = "x86_64", "aarch64"
MACHINE = platform.machine()
SUPPORTED = sys.platform == "linux" and MACHINE in {X86_64, AARCH64} and sys.maxsize > 1 << 32
LAST_KNOWN = 470
"""What a newer kernel adds after this is refused unseen."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long

_BOTH = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_open": 434, "clone3": 435,
    "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443, "landlock_create_ruleset": 444,
    "landlock_add_rule": 445, "landlock_restrict_self": 446, "process_mrelease": 448, "fchmodat2": 452,
    "lsm_set_self_attr": 460, "setxattrat": 463, "removexattrat": 466, "open_tree_attr": 467, "file_setattr": 469,
}  # fmt: skip
_X86_64 = {
    "ioctl": 16, "connect": 42, "socket": 41, "accept": 43, "bind": 49, "listen": 50, "socketpair": 53, "clone": 56,
    "fork": 57, "vfork": 58, "execve": 59, "kill": 62, "chmod": 90, "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94,
    "ptrace": 101, "syslog": 103, "setpgid": 109, "setsid": 112, "capset": 126, "rt_sigqueueinfo": 129, "utime": 132,
    "uselib": 134, "vhangup": 153, "modify_ldt": 154, "pivot_root": 155, "prctl": 157, "adjtimex": 159, "chroot": 161,
    "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169,
    "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176,
    "quotactl": 179, "nfsservctl": 180, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197,
    "lremovexattr": 198, "fremovexattr": 199, "tkill": 200, "lookup_dcookie": 212, "clock_settime": 227, "tgkill": 234,
    "utimes": 235, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "migrate_pages": 256,
    "fchownat": 260, "futimesat": 261, "fchmodat": 268, "unshare": 272, "utimensat": 280, "accept4": 288,
    "rt_tgsigqueueinfo": 297, "perf_event_open": 298, "fanotify_init": 300, "prlimit64": 302, "name_to_handle_at": 303,
    "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311,
    "kcmp": 312, "finit_module": 313, "seccomp": 317, "kexec_file_load": 320, "bpf": 321, "execveat": 322,
    "userfaultfd": 323,
}  # fmt: skip
_AARCH64 = {
    "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
    "lookup_dcookie": 18, "ioctl": 29, "umount2": 39, "mount": 40, "pivot_root": 41, "nfsservctl": 42, "chroot": 51,
    "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "vhangup": 58, "quotactl": 60, "utimensat": 88, "acct": 89,
    "capset": 91, "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106, "clock_settime": 112,
    "syslog": 116, "ptrace": 117, "kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "reboot": 142,
    "setpgid": 154, "setsid": 157, "sethostname": 161, "setdomainname": 162, "prctl": 167, "settimeofday": 170,
    "adjtimex": 171, "socket": 198, "socketpair": 199, "bind": 200, "listen": 201, "accept": 202, "connect": 203,
    "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220, "execve": 221, "swapon": 224, "swapoff": 225,
    "migrate_pages": 238, "rt_tgsigqueueinfo": 240, "perf_event_open": 241, "accept4": 242, "prlimit64": 261,
    "fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268,
    "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "seccomp": 277, "bpf": 280,
    "execveat": 281, "userfaultfd": 282, "kexec_file_load": 294,
}  # fmt: skip

_TABLES = {X86_64: {**_X86_64, **_BOTH}, AARCH64: {**_AARCH64, **_BOTH}}


def numbers(machine: str = MACHINE) -> dict[str, int]:
    """Name -> number; a name that an architecture does not have is absent. Raises OSError for other architectures."""
    if machine not in _TABLES:
        raise OSError(f"no table of system calls for {machine}")
    return _TABLES[machine]


def call(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """Make a system call; integers are passed as 64 bits. Raises OSError as the kernel answers."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(_LIBC.syscall(ctypes.c_long(numbers()[name]), *words))
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def prctl(option: int, value: int = 0, third: int = 0) -> int:
    """``prctl`` with zeros for what is left. Raises OSError."""
    return call("prctl", option, value, third, 0, 0)
