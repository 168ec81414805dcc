"""The encoder-decoder pair lies in ``training/``, and is a package of its own beside a wheel of spsbench."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from support.commandline import Cli, call

from spsbench.base import paths

ROOT = Path(__file__).parents[2]
HOW = "`pip install ./training` in a checkout of spsbench"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where packages would lie if spsbench came from its wheel, without the pair."""
    package = tmp_path / "spsbench"
    package.mkdir()
    for folder in ("mini", "drafts"):
        (package / folder).symlink_to(ROOT / "spsbench" / folder)
    (package / "_data").mkdir()
    for folder in ("tasks", "configs"):
        (package / "_data" / folder).symlink_to(ROOT / folder)
    monkeypatch.setattr(paths, "_PACKAGE", package)
    return tmp_path


def test_a_checkout_has_it() -> None:
    assert paths.mini_dir("mini_t5") == ROOT / "training/mini_t5/pair"
    assert paths.way_to_install("mini_t5") is None


def test_without_it_the_command_is_told(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(installed)
    for asked in (
        ("run", "--pair", "mini-t5"),
        ("run", "xsum", "--target", "embedded:mini-t5/target", "--drafter", "lookup"),
        ("run", "wmt-mini", "--pair", "mini"),
    ):
        done = call(*asked, "--out", "run")
        assert done.code == 3
        assert HOW in " ".join(done.err.split()), asked
    assert paths.way_to_install("embedded:mini/target") is None
    assert paths.way_to_install("org/mini-t5") is None


@pytest.mark.thorough
def test_without_it_the_doctor_finds_nothing_broken(installed: Path, cli: Cli) -> None:
    done = cli("doctor", "--json")
    assert done.code == 0, done.err
    checks = {check["what"]: check for check in json.loads(done.out)}
    for what in ("pair mini-t5", "data wmt-mini mini", "data cnndm-mini mini"):
        assert checks[what]["state"] == "absent"
        assert HOW in checks[what]["detail"]
    assert checks["pair mini"]["state"] == "ok"


def test_beside_a_wheel_it_is_found(installed: Path) -> None:
    beside = installed / "spsbench_mini_t5"
    beside.symlink_to(ROOT / "training/mini_t5/pair")
    assert paths.embedded_dir("embedded:mini-t5/target") == beside / "target"
    assert paths.way_to_install("mini_t5") is None


def test_its_package_takes_the_place_that_is_looked_at() -> None:
    settings = tomllib.loads((ROOT / "training/pyproject.toml").read_text())
    wheel = settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"mini_t5/pair": paths._APART["mini_t5"]}
    assert (ROOT / "training/mini_t5/pair/target/model.safetensors").is_file()


@pytest.mark.thorough
def test_its_wheel_holds_the_pair(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT / "training", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    pair = ROOT / "training/mini_t5/pair"
    expected = {f"spsbench_mini_t5/{path.relative_to(pair)}" for path in pair.rglob("*") if path.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == expected
