"""How much the package weighs, room by room: lines, and how many of them are work.

    python -m benchmarks.weight            # the table
    python -m benchmarks.weight --write    # what tests/test_weight.py lets no room exceed

A statement line is a line of a function's body that is neither blank nor part of a docstring.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "tests" / "weight.json"
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def statements(source: str) -> int:
    """Statement lines of a module."""
    body: set[int] = set()
    prose: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body.update(range(node.body[0].lineno, (node.end_lineno or 0) + 1))
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            prose.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    blank = {number for number, line in enumerate(source.splitlines(), 1) if not line.strip()}
    return len(body - prose - blank)


def weigh(package: Path = ROOT / "spsbench") -> dict[str, dict[str, int]]:
    """Files, lines and statement lines of every room; modules beside the rooms are ``.``."""
    rooms: dict[str, dict[str, int]] = defaultdict(lambda: {"files": 0, "lines": 0, "statements": 0})
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        source = path.read_text(encoding="utf-8")
        room = rooms[inside.parts[0] if len(inside.parts) > 1 else "."]
        room["files"] += 1
        room["lines"] += len(source.splitlines())
        room["statements"] += statements(source)
    return dict(rooms)


def main() -> None:
    """Print the table; with ``--write`` keep it."""
    rooms = weigh()
    whole = {key: sum(room[key] for room in rooms.values()) for key in ("files", "lines", "statements")}
    for name, room in [*sorted(rooms.items(), key=lambda item: -item[1]["lines"]), ("all", whole)]:
        share = room["statements"] / max(room["lines"], 1)
        print(f"{name:12} {room['files']:4} files {room['lines']:6,} lines {share:5.1%} statements")
    if "--write" in sys.argv:
        RECORD.write_text(json.dumps(rooms, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
