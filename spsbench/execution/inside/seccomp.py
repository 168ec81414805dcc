"""The list of system calls that are allowed, as a BPF program for ``seccomp(2)``.

A call that is not on the list fails with EPERM, as if the kernel lacked the right, and one that opens
or inspects a path or a file with ENOENT; one of another architecture (or of x32) ends the process.
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
_OWN_PROCESS = -3  # the instruction that compares with it

_FUTEX_PRIVATE = 0x80
_O_ASYNC = 0o20000
_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL, _F_DUPFD_CLOEXEC = 0, 1, 2, 3, 4, 1030
_TCGETS, _TIOCGWINSZ, _FIOCLEX = 0x5401, 0x5413, 0x5451

Instruction = tuple[int, int, int, int]
"""(code, jump if true, jump if false, k) of ``struct sock_filter``."""

_ALLOWED = (_RETURN, 0, 0, _ALLOW)


def prepare(table: Table) -> bytes:
    """The filter, but for the process that it is for, which ``Filter.install`` fills in."""
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

    def __init__(self, table: Table) -> None:
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
