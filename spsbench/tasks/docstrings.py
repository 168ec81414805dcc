"""Docstrings of the standard library and of installed packages: a first sentence, and what follows it.

Real prose that is on every machine. Source is parsed, never imported, and what is found depends on the
versions of Python and of the packages alone.
"""

from __future__ import annotations

import ast
import platform
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path

from spsbench.base.errors import UnavailableError
from spsbench.tasks.sources import DataRow, bad_data

STDLIB = "stdlib"
"""The standard library among names of packages."""

# Distributors leave these out, or put them into their own packages.
_SPLIT_OFF = {
    "distutils",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "test",
    "tkinter",
    "turtle",
    "turtledemo",
    "venv",
}
_TESTS = re.compile(r"tests?|testing|idle_test|test_.*|.*_test|conftest")

_NAMES = re.compile(r"[A-Za-z_]\w*(\+[A-Za-z_]\w*)*")
_SENTENCE = re.compile(r"[A-Z].*[a-z)\"'`]\.")
_PLAIN_WORD = re.compile(r"[(\"'`]*[A-Za-z]+([-'][A-Za-z]+)*[\"'`]*[.,;:!?)]*")
_DOCTEST = (">>>", "...")

_SUMMARY_WORDS = range(5, 41)
_DOCUMENT_WORDS = range(60, 401)
_DOCUMENT_CHARACTERS = 2400  # with a prompt and an answer in a window of 1,024 tokens
_PLAIN_SHARE = 0.8
_DOCTEST_SHARE = 0.2

_Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def names_in(text: str) -> tuple[str, ...] | None:
    """Read ``stdlib+numpy`` as names, each once and in a fixed order; None if the text is something else."""
    if _NAMES.fullmatch(text) is None:
        return None
    return tuple(sorted(set(text.split("+")), key=lambda name: (name != STDLIB, name)))


def read_docstrings(names: Sequence[str]) -> tuple[list[DataRow], str]:
    """Return (rows with id, document and summary, sorted by id; the versions they are from).

    The summary is the first line, if it is a sentence; the document is the rest, if it is prose of some
    length. A text that was there before, under another id, is left out.
    """
    versions = ", ".join(map(_names_and_versions, names))
    rows = [
        row
        for name in names
        for path, module in _modules_without_tests(name)
        for row in _docstring_rows(path, module)
    ]
    kept, seen = [], set[tuple[str, str]]()
    for row in sorted(rows, key=lambda row: str(row.fields["id"])):
        keys = {(column, " ".join(str(text).lower().split())) for column, text in row.fields.items()}
        if keys.isdisjoint(seen):  # white space and case aside
            kept.append(row)
            seen |= keys
    if not kept:
        raise bad_data(
            f"{'+'.join(names)} has no docstring of a sentence and a text after it.", "Name another package."
        )
    return kept, versions


def _names_and_versions(name: str) -> str:
    """Of the packages that bring a module."""
    if name == STDLIB:
        return f"Python {platform.python_version()}"
    packages = sorted(
        {
            f"{distribution.metadata['Name']} {distribution.version}"
            for distribution in distributions()
            if _brings_package(distribution, name)
        }
    )
    if not packages:
        remedy = f"Install it, or name others by their import name, e.g. {STDLIB}+numpy."
        raise UnavailableError(f"the package {name} is not installed.", flag="--data", remedy=remedy)
    return ", ".join(packages)


def _brings_package(distribution: Distribution, name: str) -> bool:
    """By its installer's record; one file a distribution."""
    tops = (distribution.read_text("top_level.txt") or "").split()
    record = "\n" + (distribution.read_text("RECORD") or "")
    return name in tops or f"\n{name}/" in record or f"\n{name}.py," in record


def _modules_without_tests(name: str) -> Iterator[tuple[Path, str]]:
    """(Source file, module's name)."""
    if name == STDLIB:
        folder = Path(sysconfig.get_path("stdlib"))
        names = sorted(sys.stdlib_module_names - _SPLIT_OFF)
        roots = [root for module in names for root in (folder / module, folder / f"{module}.py")]
    else:
        spec = find_spec(name)
        places = [] if spec is None else spec.submodule_search_locations or [spec.origin or ""]
        roots = [Path(place) for place in places]
    for root in roots:
        single = [root] if root.suffix == ".py" and root.is_file() else []
        for path in sorted(root.rglob("*.py")) if root.is_dir() else single:
            parts = path.relative_to(root.parent).with_suffix("").parts
            if not any(_TESTS.fullmatch(part) for part in parts):
                yield path, ".".join(parts).removesuffix(".__init__")


def _docstring_rows(path: Path, module: str) -> Iterator[DataRow]:
    """Nothing if the file is for another Python, as templates may be."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, OSError):
        return
    for name, docstring in _named_docstrings(tree, module):
        first, _, rest = docstring.partition("\n\n")
        is_sentence = _SENTENCE.fullmatch(first) is not None and len(first.split()) in _SUMMARY_WORDS
        document = rest.strip()
        if is_sentence and _is_prose(document):
            yield DataRow(f"{name} in {path}", {"id": name, "document": document, "summary": first})


def _named_docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """(Qualified name, docstring) of a definition and of all definitions in it."""
    if isinstance(node, _Definition) and (docstring := ast.get_docstring(node)):
        yield name, docstring
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _named_docstrings(child, f"{name}.{child.name}")
        elif isinstance(child, (ast.stmt, ast.ExceptHandler)):
            yield from _named_docstrings(child, name)


def _is_prose(text: str) -> bool:
    """Mostly words, of the right length: no code, table or list of values."""
    words = text.split()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(words) not in _DOCUMENT_WORDS or len(text) > _DOCUMENT_CHARACTERS:
        return False
    plain = sum(_PLAIN_WORD.fullmatch(word) is not None for word in words)
    doctest = sum(line.startswith(_DOCTEST) for line in lines)
    return plain >= _PLAIN_SHARE * len(words) and doctest <= _DOCTEST_SHARE * len(lines)
