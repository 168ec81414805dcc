"""The kernel's locks: the tables of system calls, and what limits do."""

from __future__ import annotations

import platform
import re
import resource
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from spsbench.parts.judge.inside import limits, seccomp
from spsbench.parts.judge.inside.seccomp import TABLES, SyscallTable

HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}
NEVER = set(
    re.findall(
        r"\w+",
        """
        clone clone3 fork vfork execve execveat ptrace socket socketpair connect bind sendmsg
        recvmsg process_vm_readv process_vm_writev memfd_create pidfd_open pidfd_getfd
        pidfd_send_signal prctl seccomp mount unshare setns chroot pivot_root bpf io_uring_setup
        userfaultfd keyctl add_key shmget msgget semget chmod fchmodat unlink unlinkat rename
        renameat2 mkdir mkdirat symlink link truncate ftruncate utimensat setxattr
        rt_sigqueueinfo timer_create setuid setresuid setgroups capset personality openat2
        name_to_handle_at
        """,
    )
)


@pytest.mark.parametrize("machine", sorted(TABLES))
def test_numbers_are_the_kernels(machine: str) -> None:
    header = next((Path(path) for path in HEADERS[machine] if Path(path).exists()), None)
    if header is None:
        pytest.skip("no kernel headers here")
    found = re.findall(r"#define __NR(3264)?_(\w+)\s+(\d+)", header.read_text(encoding="utf-8"))
    numbers = {name: int(number) for _, name, number in found}
    table = TABLES[machine]
    given = {**table.allowed, **table.judged, **table.own_process, **table.looks}
    aliases = {"newfstatat": "fstatat"} if machine == "aarch64" else {}
    wrong = {n: v for n, v in given.items() if numbers.get(aliases.get(n, n)) != v}
    assert wrong == {}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_nothing_that_leads_out_is_allowed(table: SyscallTable) -> None:
    assert not {*table.allowed, *table.looks} & NEVER
    assert set(table.judged) & NEVER == {"clone3"}  # told that it does not exist
    assert set(table.judged) == set(seccomp._RULES)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_path_through_the_filter_ends(table: SyscallTable) -> None:
    code = seccomp.prepare(table)
    program = [struct.unpack_from("HBBI", code, at) for at in range(0, len(code), 8)]
    for number, (kind, if_true, if_false, _) in enumerate(program):
        if kind & 7 == 5:  # a jump
            assert number + 1 + max(if_true, if_false) <= len(program)


LOOKS = """
import ctypes, os, sys
from spsbench.parts.judge.inside import kernel, seccomp
kernel.no_new_privileges()
table, room = seccomp.table(), ctypes.create_string_buffer(512)
AT_FDCWD, AT_EMPTY_PATH = ctypes.c_int(-100), 0x1000

def works(name, *arguments):
    try:
        return kernel.syscall({**table.allowed, **table.judged, **table.looks}[name], *arguments) >= 0
    except FileNotFoundError:
        return False

if sys.argv[1] == "filtered":
    seccomp.Filter(table).install(os.getpid())
print(
    works("openat", AT_FDCWD, b"/dev/null", 0),
    works("fstat", 0, room),
    works("newfstatat", AT_FDCWD, b"/", room, AT_EMPTY_PATH),
    works("newfstatat", AT_FDCWD, b"/", room, 0),
    works("statx", AT_FDCWD, b"/", AT_EMPTY_PATH, 0x7FF, room),
    works("faccessat", AT_FDCWD, b"/", 0),
)
"""


@pytest.mark.parametrize(("how", "works"), [("without", "True"), ("filtered", "False")])
def test_a_filter_lets_nobody_open_or_look_at_a_path(how: str, works: str) -> None:
    if platform.machine() not in TABLES:
        pytest.skip(f"no table for {platform.machine()}")
    done = subprocess.run(
        [sys.executable, "-c", LOOKS, how],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [works] * 6


def test_a_lower_hard_limit_stays() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = (
        "import resource as r\nfrom spsbench.parts.judge.inside import limits\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (20, 20))\nlimits.lower_common(1 << 30)\n"
        "assert r.getrlimit(r.RLIMIT_NOFILE) == (20, 20)\n"
        "assert r.getrlimit(r.RLIMIT_AS) == (1 << 30, 1 << 30)\n"
        "assert r.getrlimit(r.RLIMIT_FSIZE) == (0, 0)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    limits.lower("NOFILE", before[0], hard=False)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
