"""Numbers of the system calls that a program may make, for each architecture.

Everything else is refused. x86-64 from ``asm/unistd_64.h``, aarch64 from ``asm-generic/unistd.h``;
the latter is UNTRIED: no such machine was at hand.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """One architecture: how the kernel names it, and its numbers.

    Attributes:
        audit_arch: ``AUDIT_ARCH_*`` of ``linux/audit.h``.
        judged: calls allowed with some arguments; ``seccomp`` knows which.
    """

    audit_arch: int
    allowed: dict[str, int]
    judged: dict[str, int]
    own_process: dict[str, int]
    looks: dict[str, int]


# fmt: off
_X86_64 = Table(
    0xC000003E,
    {
        "read": 0, "write": 1, "close": 3, "poll": 7, "lseek": 8,
        "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14,
        "rt_sigreturn": 15, "pread64": 17, "readv": 19, "writev": 20, "select": 23,
        "sched_yield": 24, "mremap": 25, "madvise": 28, "dup": 32, "dup2": 33, "pause": 34,
        "nanosleep": 35, "getitimer": 36, "alarm": 37, "setitimer": 38, "getpid": 39, "exit": 60,
        "uname": 63, "getcwd": 79, "gettimeofday": 96, "getrlimit": 97, "getrusage": 98, "times": 100,
        "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110, "sigaltstack": 131,
        "gettid": 186, "time": 201, "getdents64": 217, "restart_syscall": 219,
        "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231,
        "pselect6": 270, "ppoll": 271, "set_robust_list": 273, "dup3": 292, "getcpu": 309, "getrandom": 318,
        "membarrier": 324, "rseq": 334,
    },
    {
        "ioctl": 16, "fcntl": 72, "futex": 202, "sched_getaffinity": 204, "prlimit64": 302, "clone3": 435,
    },
    {"kill": 62, "tkill": 200, "tgkill": 234},
    {
        "open": 2, "stat": 4, "fstat": 5, "lstat": 6, "access": 21, "readlink": 89, "openat": 257,
        "newfstatat": 262, "readlinkat": 267, "faccessat": 269, "statx": 332, "faccessat2": 439,
    },
)
_AARCH64 = Table(
    0xC00000B7,
    {
        "getcwd": 17, "dup": 23, "dup3": 24, "close": 57, "getdents64": 61, "lseek": 62,
        "read": 63, "write": 64, "readv": 65, "writev": 66, "pread64": 67, "pselect6": 72, "ppoll": 73,
        "exit": 93, "exit_group": 94, "futex": 98,
        "set_robust_list": 99, "nanosleep": 101, "getitimer": 102, "setitimer": 103, "clock_gettime": 113,
        "clock_getres": 114, "clock_nanosleep": 115, "sched_yield": 124,
        "restart_syscall": 128, "sigaltstack": 132, "rt_sigaction": 134, "rt_sigprocmask": 135,
        "rt_sigreturn": 139, "times": 153, "uname": 160, "getrlimit": 163, "getrusage": 165, "getcpu": 168,
        "gettimeofday": 169, "getpid": 172, "getppid": 173, "getuid": 174, "geteuid": 175, "getgid": 176,
        "getegid": 177, "gettid": 178, "brk": 214, "munmap": 215, "mremap": 216, "mmap": 222,
        "mprotect": 226, "madvise": 233, "getrandom": 278, "membarrier": 283, "rseq": 293,
    },
    {
        "fcntl": 25, "ioctl": 29, "futex": 98, "sched_getaffinity": 123, "prlimit64": 261, "clone3": 435,
    },
    {"kill": 129, "tkill": 130, "tgkill": 131},
    {
        "faccessat": 48, "openat": 56, "readlinkat": 78, "newfstatat": 79, "fstat": 80, "statx": 291,
        "faccessat2": 439,
    },
)
# fmt: on

TABLES = {"x86_64": _X86_64, "aarch64": _AARCH64}


def table() -> Table:
    """The table of this machine."""
    machine = platform.machine()
    if machine not in TABLES:
        raise OSError(f"no table of system calls for {machine}")
    return TABLES[machine]
