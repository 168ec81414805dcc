"""The run folder: what a run writes, and what is made of a folder that an earlier version wrote."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.commandline import ALONE, BRIEF, call
from support.drawing import all_figures, unprinted
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from spsbench.store import RunStore
from spsbench.testing import FakeClock

FOLDER = Path(__file__).with_name("folder")
"""Two drafters and two samplings, simulated: nothing in it was measured."""


class Text(SingleFileSnapshotExtension):
    """A snapshot that is read as a page."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return Path(shutil.copytree(FOLDER, tmp_path / "run"))


MACHINE = ("environment", "ceiling", "bandwidth_bytes_per_s", "cache_bytes", "conditions")
"""Keys whose values are there or not, as the machine can tell."""


def shape(value: Any) -> Any:
    """Keys and types of a JSON value; of a list the shapes that its entries have."""
    if isinstance(value, dict):
        return {
            key: "of the machine" if key in MACHINE else shape(entry) for key, entry in sorted(value.items())
        }
    if isinstance(value, list):
        return sorted({json.dumps(shape(entry), sort_keys=True) for entry in value})
    return "number" if type(value) in (int, float) else type(value).__name__


def rounded(value: Any) -> Any:
    """A JSON value whose numbers have the digits that every processor gives."""
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def test_a_line_of_the_journal_is_written_as_it_was_read(folder: Path, tmp_path: Path) -> None:
    with RunStore.open(folder) as store:
        samples, info, prompts = list(store.samples()), store.run_info(), list(store.prompts())
    with RunStore.create(tmp_path / "again", identity={}, config={}, info=info, prompts=prompts) as again:
        for sample in samples:
            again.append(sample)
    for name in ("samples.jsonl", "prompts.jsonl"):
        assert (tmp_path / "again" / name).read_bytes() == (FOLDER / name).read_bytes()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The screen, and the page that the same command writes."""
    folder = shutil.copytree(FOLDER, tmp_path_factory.mktemp("pages") / "run")
    with pytest.MonkeyPatch.context() as patch, all_figures(), unprinted():
        patch.chdir(folder.parent)
        patch.setenv("COLUMNS", "80")
        done = call("report", folder)
    assert done.code == 0, done.err
    return {"screen": done.out, "markdown": (folder / "report.md").read_text()}


@pytest.mark.parametrize("form", ["screen", "csv", "latex", "json", "markdown"])
def test_what_is_printed_of_it(
    form: str, folder: Path, pages: dict[str, str], snapshot: SnapshotAssertion
) -> None:
    if form in pages:
        page = pages[form]
    else:
        done = call("report", folder, f"--{form}")
        assert done.code == 0, done.err
        page = done.out
    if form == "json":
        page = json.dumps(rounded(json.loads(page)), indent=1)
    assert page == snapshot(extension_class=Text)


def test_keys_and_types_of_a_new_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion, drawn: None
) -> None:
    monkeypatch.setattr("spsbench.runner.engines.SystemClock", FakeClock)
    small = ("--limit", "2", "--max-new-tokens", "12", "--k", "2", "--set", "trace=1")
    arguments = [entry for entry in ALONE if entry not in ("--no-score", "--no-proof")]
    run = tmp_path / "run"
    done = call("run", "xsum", *BRIEF, *small, *arguments, "--drafter", "model,lookup", "--out", run)
    assert done.code == 0, done.err
    names = ("run.json", "summary.json")
    found = {name: shape(json.loads((run / name).read_text())) for name in names}
    lines = (run / "samples.jsonl").read_text().splitlines()
    found["samples.jsonl"] = shape([json.loads(line) for line in lines])
    found |= {file.name: str(pq.read_schema(file).remove_metadata()) for file in run.rglob("*.parquet")}
    files = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    found["files"] = sorted(name for name in files if not re.search(r"\.lock$", name))
    assert found == snapshot(extension_class=JSONSnapshotExtension)
