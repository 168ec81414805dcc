"""What a wheel holds and weighs, which versions are pinned, and what type checkers see."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Collection
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import spsbench

ROOT = Path(__file__).parents[2]

LARGEST_BYTES = 22_000_000
"""The embedded pair and the head weigh 17.9 MB compressed; all else 1.6 MB."""

DATA = {"tasks": "spsbench/_data/tasks", "configs": "spsbench/_data/configs", "spsbench": "spsbench"}
"""Folders of the repository that a wheel holds, and where."""

IGNORED = ("__pycache__", ".pyc")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


def expected() -> set[str]:
    """Every file of the folders that belong into a wheel, by its place there."""
    return {
        f"{place}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, place in DATA.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not any(part in str(path) for part in IGNORED)
    }


def faults(names: Collection[str], size: int) -> list[str]:
    """What is wrong with a wheel of these names and this size in bytes."""
    own = {name for name in names if not name.startswith(f"spsbench-{spsbench.__version__}.dist-info/")}
    found = [f"missing: {name}" for name in sorted(expected() - own)]
    found += [f"does not belong: {name}" for name in sorted(own - expected())]
    return found + ([f"too large: {size:,} bytes"] if size > LARGEST_BYTES else [])


@pytest.mark.thorough
def test_a_wheel_holds_the_package_and_its_data_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert faults(archive.namelist(), wheel.stat().st_size) == []


def test_a_wheel_that_is_wrong_is_found() -> None:
    names = expected() | {f"spsbench-{spsbench.__version__}.dist-info/METADATA"}
    weights, task = "spsbench/mini/target/model.safetensors", "spsbench/_data/tasks/xsum.yaml"
    assert {weights, task, "spsbench/drafts/smollm2/head/model.safetensors", "spsbench/py.typed"} <= names
    assert faults(names, 10) == []
    assert faults(names - {weights, task}, 10) == [f"missing: {task}", f"missing: {weights}"]
    assert faults(names | {"tests/store/test_store.py"}, 10) == ["does not belong: tests/store/test_store.py"]
    assert faults(names, 40_000_000) == ["too large: 40,000,000 bytes"]


def declared() -> dict[str, list[Requirement]]:
    """Requirements by extra; those of every installation under ``""``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"]} | project["optional-dependencies"]
    return {name: [Requirement(line) for line in lines] for name, lines in groups.items()}


def pins() -> dict[str, str]:
    lines = (
        line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] not in ("", "#")
    )
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def test_every_requirement_has_a_lower_bound_or_is_a_stub_and_a_pin_within_its_range() -> None:
    known = pins()
    for group, requirements in declared().items():
        for requirement in requirements:
            name = canonicalize_name(requirement.name)
            if name == "spsbench":
                continue
            assert name in known, f"{name} ({group}) is not in constraints.txt"
            assert requirement.specifier.contains(known[name]), f"{requirement} does not allow {known[name]}"
            assert requirement.specifier or name.endswith("-stubs") or name.startswith("types-")


def test_whatever_the_extras_bring_is_pinned() -> None:
    """Also what their packages require, as installed here."""
    known, groups = pins(), declared()
    del groups["gpu"]  # a package that requires nothing, installed where there is a GPU alone
    waiting = [r for group in groups.values() for r in group if r.name != "spsbench"]
    seen: set[str] = set()
    for requirement in waiting:
        name = canonicalize_name(requirement.name)
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        waiting += [Requirement(line) for line in metadata.requires(name) or ()]
    assert len(seen) > 60
    assert sorted(seen - set(known) - {"setuptools"}) == []


FACES = sorted(path.parent for path in (ROOT / "spsbench").rglob("__init__.pyi"))


@pytest.mark.parametrize("folder", FACES, ids=lambda folder: folder.relative_to(ROOT).as_posix())
def test_a_face_has_what_its_stub_says(folder: Path) -> None:
    """A stub names each thing where it is defined, under its own name; nothing has the name of a module."""
    package = ".".join(folder.relative_to(ROOT).parts)
    stub = ast.parse((folder / "__init__.pyi").read_text())
    imported = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    face, names = (
        importlib.import_module(package),
        [(node, alias) for node in imported for alias in node.names],
    )
    assert names
    for node, alias in names:
        assert alias.asname == alias.name
        if node.module == package:
            assert (folder / f"{alias.name}.py").is_file()
            continue
        found = getattr(importlib.import_module(str(node.module)), alias.name)
        assert getattr(face, alias.name) is found
        assert not (folder / f"{alias.name}.py").exists()


def test_a_face_has_nothing_else() -> None:
    with pytest.raises(AttributeError, match="has no attribute"):
        importlib.import_module("spsbench.models").no_such_name  # noqa: B018
