"""What a room offers to parts: the names of its stub, ``__init__.pyi``, each imported when it is used."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def face(package: str, file: str) -> tuple[Callable[[str], Any], list[str]]:
    """Return ``__getattr__`` and ``__all__`` for a package with this ``__name__`` and ``__file__``.

    The stub is all that there is to write: type checkers read it, and so does this.
    """
    stub = ast.parse(Path(file).with_name("__init__.pyi").read_text(encoding="utf-8"))
    where = {
        alias.name: str(node.module)
        for node in stub.body
        if isinstance(node, ast.ImportFrom) and node.module != package  # its own modules are found as such
        for alias in node.names
    }

    def find(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(where[name]), name)

    return find, sorted(where)
