"""Writes a script that shows a deviation without spsbench, for the engine's issue tracker."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

import spsbench
from spsbench.errors import UsageError
from spsbench.peers.registry import NAMED, OPENAI, WORKER
from spsbench.records import Spec
from spsbench.verify import repro_scripts

_PARTS = Path(repro_scripts.__file__).parent
_INDENT: dict[str, Any] = {"initial_indent": " " * 4, "subsequent_indent": " " * 8} | {
    "break_long_words": False,
    "break_on_hyphens": False,
}
_CASE = "CASE: dict[str, Any] = {}\n"


def require_part(engine: str, flag: str) -> None:
    """Refuse an engine that no script can be written for."""
    if engine.startswith(OPENAI):
        raise UsageError(
            "no script is written for servers.", flag=flag, remedy="Name the engine itself, or a worker."
        )


def part_of(engine: str) -> str:
    """The part of an engine: the name of its module."""
    return "worker" if engine.startswith(WORKER) else NAMED[Spec.parse(engine).name].module


def options_of(engine: str) -> dict[str, Any]:
    """What the part has to know of an engine beside its setting: its command, or its options."""
    if engine.startswith(WORKER):
        return {"command": shlex.join(shlex.split(engine.removeprefix(WORKER)))}
    spec = Spec.parse(engine)
    return {"options": dict(NAMED[spec.name].settled(spec, "--engine"))}


def script(engine: str, title: str, case: Mapping[str, Any]) -> str:
    """The whole script."""
    shared, part = (_Source((_PARTS / f"{name}.py").read_text()) for name in ("common", part_of(engine)))
    told = f"{title}\n\n{part.docstring}\n\nWritten by spsbench {spsbench.__version__}; needs none of it."
    body = shared.body.replace(_CASE, _literal(case))
    return "\n".join(
        [
            f'"""{told}\n"""\n',
            "from __future__ import annotations\n",
            *_imports(shared, part),
            f"\n{body}\n\n\n{part.body}\n\n",
            'if __name__ == "__main__":\n    main(arguments, outputs)\n',
        ]
    )


class _Source:
    """A module, taken apart: its docstring, its imports as (module, name), and the rest."""

    def __init__(self, text: str) -> None:
        tree = ast.parse(text)
        self.docstring = ast.get_docstring(tree) or ""
        found = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        self.imports = {(getattr(node, "module", None), name.name) for node in found for name in node.names}
        behind = max(node.end_lineno or 0 for node in (tree.body[0], *found))
        self.body = "\n".join(text.splitlines()[behind:]).strip()


def _imports(*sources: _Source) -> list[str]:
    """Statements, those of one module together."""
    names: dict[str | None, set[str]] = {}
    for module, name in sorted(set().union(*(source.imports for source in sources)), key=str):
        if module != "__future__":
            names.setdefault(module, set()).add(name)
    plain = [f"import {name}" for name in sorted(names.pop(None, ()))]
    return plain + [
        f"from {module} import {', '.join(sorted(names[module]))}" for module in sorted(names, key=str)
    ]


def _literal(case: Mapping[str, Any]) -> str:
    """The case, a key a line; long values over several."""
    lines = [fill(f"{name!r}: {value!r},", 96, **_INDENT) + "\n" for name, value in case.items()]
    return f"CASE: dict[str, Any] = {{\n{''.join(lines)}}}\n"
