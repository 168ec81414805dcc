"""Does a server that is running follow the target's distribution? For a pipeline: exit 0 only if it does.

    python examples/audit_server.py http://localhost:8000 --target MODEL --bound 2%

It draws texts from the server until an e-value of 1,000 shows another distribution, or a leakage above the
bound is ruled out. Options after the URL are those of `spsbench audit`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

MEANINGS = {
    "alarm": "does NOT follow the target",
    "quiet": "follows the target as far as this audit sees",
    "undecided": "not clear yet: allow more --texts or more --budget",
    "cannot": "NOT audited: the server cannot run it",
}


def audited(url: str, options: Sequence[str]) -> tuple[int, list[dict[str, Any]]]:
    """The exit code of `spsbench audit` and its rows, one for each setting.

    Exit codes: 0 every setting is quiet, 4 an alarm, 5 one is undecided or cannot be audited (`--in-flight 8`
    of a server with 4 slots), 2 and 3 nothing could be audited.
    """
    command = [sys.executable, "-m", "spsbench", "audit", "--engine", f"openai:{url}", "--json", "--quiet"]
    done = subprocess.run([*command, *options], stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, json.loads(done.stdout)["rows"] if done.stdout.strip() else []


def sentence(row: dict[str, Any]) -> str:
    """One line about one setting."""
    bound = "" if row["bound"] is None else f"; leakage at most {row['bound']:.1%} (95%)"
    return f"{row['setting']}: {MEANINGS[row['decision']]} ({row['texts']} texts{bound})"


def main(given: Sequence[str]) -> int:
    if not given or given[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    code, rows = audited(given[0], given[1:])
    for row in rows:
        print(sentence(row))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
