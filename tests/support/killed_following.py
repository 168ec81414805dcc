"""Follow a log in this folder, killed so often as it has written down where it is, and continued to its end.

    python tests/support/killed_following.py KILLS LOG

Prints {"kills": those that hit, "code": how the last following ended}. The attempts are forked: see
``killing``.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from support.killing import IMPORTED, forked


def follow(log: str) -> int:
    """The command; its exit code."""
    from spsbench.cli.main import main

    return main(["audit", "--follow", log, "--quiet"])


def survive(kills: int, log: str) -> dict[str, int]:
    """Kill each attempt as soon as the state is newer than it was; let the one after the last kill end."""
    for name in (*IMPORTED, "spsbench.parts.audit.command_texts", "spsbench.parts.audit.follow"):
        importlib.import_module(name)
    state, hit = Path(f"{log}.audit.json"), 0

    def written_ns() -> int:
        return state.stat().st_mtime_ns if state.exists() else 0

    while True:
        before, most = written_ns(), kills - hit

        def is_due(before: int = before, most: int = most) -> bool:
            return most > 0 and written_ns() > before

        code = forked(lambda: follow(log), is_due)
        if code is not None:
            return {"kills": hit, "code": code}
        hit += 1


if __name__ == "__main__":
    print(json.dumps(survive(int(sys.argv[1]), sys.argv[2])))
