"""The list of system calls that are allowed, as a BPF program for ``seccomp(2)``.

A call that is not on the list fails with EPERM, as if the kernel lacked the right, and one that opens
or inspects a path or a file with ENOENT; one of another architecture (or of x32) ends the process. The
numbers of x86-64 are from ``asm/unistd_64.h``, those of aarch64 from ``asm-generic/unistd.h``; the latter
are UNTRIED: no such machine was at hand.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from spsbench.parts.judge.inside import kernel


@dataclass(frozen=True)
class SyscallTable:
    """One architecture: how the kernel names it (``AUDIT_ARCH_*`` of ``linux/audit.h``), and its numbers;
    ``judged`` are calls allowed with some arguments, see ``_RULES``."""

    audit_arch: int
    allowed: dict[str, int]
    judged: dict[str, int]
    own_process: dict[str, int]
    looks: dict[str, int]


# fmt: off
_X86_64 = SyscallTable(
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
_AARCH64 = SyscallTable(
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


def table() -> SyscallTable:
    machine = platform.machine()
    if machine not in TABLES:
        raise OSError(f"no table of system calls for {machine}")
    return TABLES[machine]


_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_OFFSET, _ARCH_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_X32_BIT = 0x40000000
_MODE_FILTER = 2
_INSTRUCTION = struct.Struct("HBBI")
_OWN_PROCESS = -3  # the instruction that compares with it

_FUTEX_PRIVATE = 0x80
_O_ASYNC = 0o20000
_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL, _F_DUPFD_CLOEXEC = 0, 1, 2, 3, 4, 1030
_TCGETS, _TIOCGWINSZ, _FIOCLEX = 0x5401, 0x5413, 0x5451

Instruction = tuple[int, int, int, int]
"""(code, jump if true, jump if false, k) of ``struct sock_filter``."""

_ALLOWED = (_RETURN, 0, 0, _ALLOW)


def prepare(table: SyscallTable) -> bytes:
    """Build the filter without the process that it is for, which ``Filter.install`` fills in."""
    program = [
        (_LOAD, 0, 0, _ARCH_OFFSET),
        (_JUMP_EQUAL, 1, 0, table.audit_arch),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
        (_JUMP_AT_LEAST, 0, 1, _X32_BIT),
        (_RETURN, 0, 0, _KILL_PROCESS),
    ]
    for number in table.allowed.values():
        program += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    for name, number in table.judged.items():
        program += _block(number, _RULES[name])
    for number in table.looks.values():
        program += _block(number, [_refuse(errno.ENOENT)])
    own = list(table.own_process.values())
    program += [(_JUMP_EQUAL, len(own) - place, 0, number) for place, number in enumerate(own)]
    program += [_refuse(errno.EPERM), _argument(0), (_JUMP_EQUAL, 1, 0, 0)]  # the process: _OWN_PROCESS
    program += [_refuse(errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in program)


class Filter:
    """The filter of ``table``, put together once for any number of processes without new privileges."""

    def __init__(self, table: SyscallTable) -> None:
        code = prepare(table)
        self._own_process = len(code) + _OWN_PROCESS * _INSTRUCTION.size
        self._code = ctypes.create_string_buffer(code, len(code))
        # struct sock_fprog: the length, padding, a pointer.
        header = struct.pack("HxxxxxxP", len(code) // _INSTRUCTION.size, ctypes.addressof(self._code))
        option, mode = ctypes.c_int(kernel.PR_SET_SECCOMP), ctypes.c_ulong(_MODE_FILTER)
        nothing = ctypes.c_ulong(0)
        self._install = kernel.prepared("prctl", option, mode, ctypes.c_char_p(header), nothing, nothing)

    def install(self, own_pid: int) -> None:
        """Lock this process, for good, into the calls of the table; signals reach ``own_pid`` alone."""
        _INSTRUCTION.pack_into(self._code, self._own_process, _JUMP_EQUAL, 1, 0, own_pid)
        self._install()


def _block(number: int, rule: Sequence[Instruction]) -> list[Instruction]:
    return [(_JUMP_EQUAL, 0, len(rule), number), *rule]


def _refuse(number: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def _argument(index: int) -> Instruction:
    # The low half; the kernel takes these arguments as 32 bits. Both architectures are little-endian.
    return (_LOAD, 0, 0, _ARGUMENTS_OFFSET + 8 * index)


def _if_one_of(index: int, values: Sequence[int]) -> list[Instruction]:
    rule = [_argument(index)]
    for value in values:
        rule += [(_JUMP_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
    return [*rule, _refuse(errno.EPERM)]


def _if_any_bit(index: int, bits: int, met: Instruction, otherwise: Instruction) -> list[Instruction]:
    return [_argument(index), (_JUMP_ANY_BIT, 0, 1, bits), met, otherwise]


def _fcntl() -> list[Instruction]:
    # F_SETOWN with O_ASYNC would send SIGIO to any process of the user, without kill().
    set_flags = _if_any_bit(2, _O_ASYNC, _refuse(errno.EPERM), _ALLOWED)
    plain = _if_one_of(1, (_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_DUPFD_CLOEXEC))
    return [_argument(1), (_JUMP_EQUAL, 0, len(set_flags), _F_SETFL), *set_flags, *plain]


_RULES = {
    "ioctl": _if_one_of(1, (_TCGETS, _TIOCGWINSZ, _FIOCLEX)),
    "fcntl": _fcntl(),
    "prlimit64": _if_one_of(0, (0,)),
    "sched_getaffinity": _if_one_of(0, (0,)),  # of another process it reveals whether there is one
    # Processes that share a page of a library could wake each other, and count who waits.
    "futex": _if_any_bit(1, _FUTEX_PRIVATE, _ALLOWED, _refuse(errno.EPERM)),
    # Its flags lie behind a pointer; if it seems not to exist, the C library uses clone().
    "clone3": [_refuse(errno.ENOSYS)],
}
