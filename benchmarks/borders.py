"""What crosses the borders of the package: between its rooms, and between its core and its parts.

    python -m benchmarks.borders            # the table
    python -m benchmarks.borders --write    # what tests/project/test_borders.py lets no change exceed

Counted by reading: ``from spsbench.X import name`` at any depth, each (file, name) once. A room is a folder
of the package, or a module beside them; a part, which a user could do without, is a folder of ``parts``.
The core is the rest.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "tests" / "project" / "borders.json"

PARTS = ("judge", "external", "verify", "audit", "whatif", "paper", "distill", "export", "load")

CORE = "core"


class Import(NamedTuple):
    """A name that a module takes from another one."""

    by: str
    of: str
    name: str


def modules(package: Path) -> dict[str, Path]:
    """Every module by its name without the package's, ``""`` for the package itself."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        name = ".".join(path.relative_to(package).with_suffix("").parts)
        found[name.removesuffix("__init__").removesuffix(".")] = path
    return found


@cache
def trees(package: Path) -> dict[str, ast.Module]:
    """Every module's tree; a package is read once in a process."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in modules(package).items()}


def offered(init: Path, own: str) -> dict[str, str]:
    """The names that a package offers, with where they are defined: by its stub, else by what it imports."""
    stub = init.with_suffix(".pyi")
    source = (stub if stub.exists() else init).read_text(encoding="utf-8")
    found = (node for node in ast.parse(source).body if isinstance(node, ast.ImportFrom))
    return {
        alias.asname or alias.name: str(node.module).removeprefix(f"{own}.")
        for node in found
        for alias in node.names
    }


def faces(package: Path) -> dict[str, dict[str, str]]:
    """What each package offers, see ``offered``."""
    inits = {name: path for name, path in modules(package).items() if path.name == "__init__.py"}
    return {name: offered(path, package.name) for name, path in inits.items()}


@cache
def imports(package: Path) -> tuple[Import, ...]:
    """Every import of the package from itself; a module that its room offers counts as a name of the room."""
    known, own = modules(package), package.name
    offers = faces(package)
    found = []
    for module, tree in trees(package).items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            if node.module != own and not node.module.startswith(f"{own}."):
                continue
            base = node.module[len(own) + 1 :]
            for alias in node.names:
                inner = f"{base}.{alias.name}".lstrip(".")
                is_module = inner in known and alias.name not in offers.get(base, ())
                found.append(Import(module, inner if is_module else base, "" if is_module else alias.name))
    return tuple(found)


def room(module: str) -> str:
    """The folder of a module, or the module itself; each part is a room."""
    names = module.split(".")
    return ".".join(names[: 2 if names[0] == "parts" else 1])


def part(module: str) -> str:
    """The part that a module belongs to; ``CORE`` for the rest."""
    return room(module).removeprefix("parts.") if module.startswith("parts.") else CORE


def needs(package: Path = ROOT / "spsbench") -> dict[str, set[str]]:
    """Who imports each part: other parts, and the core. What nobody imports can be deleted."""
    found = {(part(each.by), part(each.of)) for each in imports(package)}
    return {name: {by for by, of in found if of == name != by} for name in PARTS}


BY_STRING = re.compile(rf"(?:{'|'.join(PARTS)})(?:\.\w+)+:\w+")
"""How a name of a part is written that is imported when it is needed, see ``spsbench.base.parts``."""


def circles(arrows: set[tuple[str, str]]) -> list[str]:
    """What leads back to itself, each circle by all that is on it."""
    reached = set(arrows)
    while (
        more := {(one, end) for one, middle in reached for start, end in arrows if start == middle} - reached
    ):
        reached |= more
    found = {
        tuple(sorted(other for start, other in reached if start == one and (other, one) in reached))
        for one, end in reached
        if one == end
    }
    return sorted(", ".join(names) for names in found)


def file_arrows(package: Path) -> set[tuple[str, str]]:
    """Which file takes from which other; a name that a face offers is of the file that defines it."""
    offers = faces(package)
    arrows = {(each.by, offers.get(each.of, {}).get(each.name, each.of)) for each in imports(package)}
    return {(by, of) for by, of in arrows if by != of}


FEWEST_WORDS = 5
"""Of a string that counts as a sentence."""

MESSAGES = "messages"
"""The file of a room, or of a part, that has its sentences."""

_NO_MESSAGES = {"Error", "why", "remedy", "Field", "option", "setting", "_clash"}
"""Whose strings are none: they say what an error is about and its remedy, or are options or their help."""


def _taker(node: ast.AST) -> str | None:
    """What takes the strings in a node: an error, the function that is called, a variable or a keyword."""
    match node:
        case ast.Raise():
            return "Error"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return "Error" if name.endswith("Error") else name
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.keyword(arg=str(name)):
            return name
    return None


def sentences(package: Path) -> Counter[str]:
    """How many sentences each module has outside the rooms' files of messages, docstrings left out."""
    found: Counter[str] = Counter()

    def count(module: str, node: ast.AST) -> None:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_docstring or _taker(node) in _NO_MESSAGES:
            return
        text = None
        if isinstance(node, ast.JoinedStr):
            text = " ".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        if text is not None and len(re.findall(r"[A-Za-z][A-Za-z'-]*", text)) >= FEWEST_WORDS:
            found[module] += text.count(" ") >= FEWEST_WORDS - 1
        if text is None:
            for child in ast.iter_child_nodes(node):
                count(module, child)

    for module, tree in trees(package).items():
        if MESSAGES not in module.split("."):
            count(module, tree)
    return found


def counts(package: Path = ROOT / "spsbench") -> dict[str, int | list[str]]:
    """Everything that is recorded."""
    found = set(imports(package))
    crossing = {each for each in found if room(each.by) != room(each.of)}
    arrows = {(room(each.by), room(each.of)) for each in crossing}
    sources = [path.read_text(encoding="utf-8") for path in modules(package).values()]
    classes = Counter(
        node.name
        for tree in trees(package).values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    offers = faces(package)
    crossing_names = {(offers.get(each.of, {}).get(each.name, each.of), each.name) for each in crossing}
    taken = {(each.of, each.name) for each in found if part(each.by) == CORE != part(each.of)}
    record: dict[str, int | list[str]] = {
        "names that the core takes from parts": len(taken),
        "names of parts by string": len({name for source in sources for name in BY_STRING.findall(source)}),
        "circles of rooms": circles(arrows),
        "circles of files": circles(file_arrows(package)),
        "arrows between rooms": len(arrows),
        "names over borders": len(crossing_names),
        "options by string": sum(len(re.findall(r"\bparams\[", source)) for source in sources),
        "classes defined twice": sum(count > 1 for count in classes.values()),
        "sentences outside files of messages": sentences(package).total(),
    }
    for name in PARTS:
        used = {each.of for each in found if part(each.by) == name and part(each.of) == CORE}
        record[f"files of the core that {name} takes from"] = len(used)
    return record


def main() -> None:
    """Print the table, or write the record."""
    found = counts()
    if "--write" in sys.argv:
        RECORD.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    for name, value in found.items():
        print(f"{name:45} {value if isinstance(value, int) else ', '.join(value) or 'none'}")


if __name__ == "__main__":
    main()
