"""A module imports from lower floors only, or from its own package."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import spsbench

PACKAGE = Path(spsbench.__file__).resolve().parent

FLOORS: dict[str, float] = {
    "": 0,  # spsbench itself: the version
    "faces": 0,
    "base": 0.5,
    "config": 1,
    "decode": 1,
    "law": 1.5,
    "models": 2,
    "parts.judge": 2,
    "store": 2,
    "parts.external": 2.5,  # engines of others: what the core's own need of them is below it
    "drafters": 3,
    "tasks": 3,
    "engines": 4,
    "stats": 5,
    "testing": 6,  # what tests of other packages import
    "report": 6,
    "runner": 7,
    "cli": 8,
    "api": 8.5,
    "parts.verify": 9,
    "parts.audit": 9.2,  # draws what verify judges
    "parts.whatif": 9.4,  # judges texts as an audit does, and plants what verify plants
    "parts.distill": 9.6,  # times forwards as a forecast does
    "parts.paper": 9.6,
    "parts.export": 9.6,
    "parts.load": 9.6,
    "__main__": 10,
}

HEAVY = ("torch", "transformers", "pandas", "scipy", "datasets")


def room(module: str) -> str:
    """``spsbench.decode.sampling`` is in the room ``decode``; the package itself in the room ``""``.

    A part is a room of its own; ``spsbench.parts`` holds nothing.
    """
    names = module.split(".")[1:3]
    return ".".join(names if names[:1] == ["parts"] else names[:1])


def imports(source: str) -> Iterator[str]:
    """Every module of this package that a source imports, at any depth; relative imports are a fault."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "spsbench")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "write imports in full"
            if node.module == "spsbench":
                yield from (f"spsbench.{alias.name}" for alias in node.names)
            elif (node.module or "").startswith("spsbench."):
                yield str(node.module)


def faults(importer: str, source: str) -> list[str]:
    """Imports in ``source`` that lead up or sideways."""
    found = []
    for module in imports(source):
        own, other = room(importer), room(module)
        if other.startswith("__") and other != "__main__":
            other = ""  # e.g. spsbench.__version__
        if other not in FLOORS:
            found.append(f"{importer} imports {module}, which has no floor")
        elif other != own and FLOORS[other] >= FLOORS[own] > 0:
            found.append(f"{importer} (floor {FLOORS[own]}) imports {module} (floor {FLOORS[other]})")
        elif FLOORS[own] == 0 and FLOORS[other] > 0:
            found.append(f"{importer} (floor 0) imports {module}")
    return found


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    paths = sorted(PACKAGE.rglob("*.py"))
    names = [".".join(("spsbench", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in paths]
    return dict(zip((name.removesuffix(".__init__") for name in names), paths, strict=True))


def test_every_module_has_a_floor() -> None:
    homeless = [name for name in modules() if room(name) not in (*FLOORS, "parts")]
    assert homeless == []


def test_imports_lead_down() -> None:
    found = [
        fault
        for name, path in modules().items()
        if room(name) in FLOORS
        for fault in faults(name, path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_the_check_sees_upward_sideways_and_late_imports() -> None:
    assert faults("spsbench.decode.a", "from spsbench.store import RunStore")
    assert faults("spsbench.tasks.a", "import spsbench.drafters.model")
    assert faults("spsbench.models.a", "def f():\n    from spsbench.cli import main")
    assert faults("spsbench.base.records", "from spsbench.decode.clock import Clock")
    assert faults("spsbench.cli.a", "from spsbench import nowhere")
    good = (
        "from spsbench.decode.b import c",
        "from spsbench import __version__",
        "from spsbench.base import axes",
    )
    assert not faults("spsbench.decode.a", "\n".join(good))


def imported_by(module: str, watched: Sequence[str]) -> str:
    """Which of these modules a new process has imported behind one of ours."""
    code = f"import sys, {module}; print(sorted(set({tuple(watched)}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_command_line_imports_nothing_heavy() -> None:
    assert imported_by("spsbench.cli.main", (*HEAVY, "numpy")) == "[]"


def test_what_a_run_plans_with_imports_no_requests() -> None:
    """0.1 s, and a run fetches nothing from an index and asks no server."""
    assert imported_by("spsbench.runner", ["requests"]) == "[]"
