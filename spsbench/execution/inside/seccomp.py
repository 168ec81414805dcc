"""The list of system calls that are allowed, as a BPF program for ``seccomp(2)``.

A call that is not on the list fails with EPERM, as if the kernel lacked the right; one of another
architecture (or of x32) ends the process.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Sequence

from spsbench.execution.inside import kernel
from spsbench.execution.inside.syscalls import Table

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_OFFSET, _ARCH_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_X32_BIT = 0x40000000
_MODE_FILTER = 2
_INSTRUCTION = struct.Struct("HBBI")

# O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_APPEND, O_ASYNC and __O_TMPFILE: the same on both architectures.
_WRITING_FLAGS = 0o1 | 0o2 | 0o100 | 0o1000 | 0o2000 | 0o20000 | 0o20000000
_O_ASYNC = 0o20000
_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL, _F_DUPFD_CLOEXEC = 0, 1, 2, 3, 4, 1030
_TCGETS, _TIOCGWINSZ, _FIOCLEX = 0x5401, 0x5413, 0x5451

Instruction = tuple[int, int, int, int]
"""(code, jump if true, jump if false, k) of ``struct sock_filter``."""


def prepare(table: Table) -> bytes:
    """The part of the filter that is the same for every process, which takes time to put together."""
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
    return _packed(program)


def install(prepared: bytes, table: Table, own_pid: int) -> None:
    """Lock this process, for good, into the calls of ``table``; signals reach ``own_pid`` alone.

    Raises:
        OSError: the kernel has no seccomp filters, or refuses.
    """
    own = [i for number in table.own_process.values() for i in _block(number, _if_one_of(0, (own_pid,)))]
    code = prepared + _packed([*own, _refuse(errno.EPERM)])
    buffer = ctypes.create_string_buffer(code, len(code))
    # struct sock_fprog: the length, padding, a pointer.
    header = struct.pack("HxxxxxxP", len(code) // _INSTRUCTION.size, ctypes.addressof(buffer))
    kernel.no_new_privileges()
    kernel.prctl(kernel.PR_SET_SECCOMP, _MODE_FILTER, ctypes.c_char_p(header))


def _packed(program: Sequence[Instruction]) -> bytes:
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in program)


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


def _if_no_bit(index: int, bits: int) -> list[Instruction]:
    return [_argument(index), (_JUMP_ANY_BIT, 0, 1, bits), _refuse(errno.EPERM), (_RETURN, 0, 0, _ALLOW)]


def _fcntl() -> list[Instruction]:
    # F_SETOWN with O_ASYNC would send SIGIO to any process of the user, without kill().
    set_flags = _if_no_bit(2, _O_ASYNC)
    plain = _if_one_of(1, (_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_DUPFD_CLOEXEC))
    return [_argument(1), (_JUMP_EQUAL, 0, len(set_flags), _F_SETFL), *set_flags, *plain]


_RULES = {
    "open": _if_no_bit(1, _WRITING_FLAGS),
    "openat": _if_no_bit(2, _WRITING_FLAGS),
    "ioctl": _if_one_of(1, (_TCGETS, _TIOCGWINSZ, _FIOCLEX)),
    "fcntl": _fcntl(),
    "prlimit64": _if_one_of(0, (0,)),
    # Its flags lie behind a pointer; told that it does not exist, the C library uses clone().
    "clone3": [_refuse(errno.ENOSYS)],
}
