"""Who the programs run as: never root with its rights."""

from __future__ import annotations

import os

from spsbench.execution.inside import kernel

NOBODY = 65534


def lower() -> int:
    """Give up root's user id, if this is root, and every capability; the user id that is left.

    Root becomes nobody, where nobody can read the interpreter's library. In a root-only directory
    (``/root/.pyenv``) nobody could import nothing more; then it stays user 0, without capabilities.
    """
    if os.geteuid() == 0 and _nobody_can_read(os.__file__):
        _become_nobody()
    try:
        kernel.drop_capabilities()
    except (OSError, AttributeError):  # no such call on this system: an ordinary user has none
        if os.geteuid() == 0:
            raise
    return os.geteuid()


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _nobody_can_read(path: str) -> bool:
    child = os.fork()
    if child == 0:
        try:
            _become_nobody()
            os.close(os.open(path, os.O_RDONLY))
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0
