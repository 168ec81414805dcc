"""Run directories from strangers: nothing beside them is written, imported, started or waited for."""

from __future__ import annotations

import csv
import io
import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from support.commandline import BRIEF, SMALL, Cli, Result

from spsbench.base.errors import UnavailableError
from spsbench.base.paths import data_dir
from spsbench.tasks.sources import parquet_rows


@pytest.fixture
def received(finished: tuple[Path, Result], tmp_path: Path) -> Path:
    """A run to be changed."""
    return shutil.copytree(finished[0], tmp_path / "received")


def link(place: Path, victim: Path) -> None:
    place.symlink_to(victim)


def second_name(place: Path, victim: Path) -> None:
    place.hardlink_to(victim)


def pipe(place: Path, victim: Path) -> None:
    os.mkfifo(place)


SCORE, REPORT, PAGE, RESUME = (
    ("score",),
    ("report",),
    ("report", "--html"),
    ("run", "--limit", "2", "--resume"),
)


@pytest.mark.thorough_but("command0-", "command13", "command14")
@pytest.mark.parametrize(
    ("command", "name", "plant"),
    [
        (REPORT, "summary.json", link),
        (REPORT, "report.md", pipe),
        (REPORT, "figures", link),
        (REPORT, "figures/tails.svg", link),
        (REPORT, "run.json", pipe),
        (PAGE, "report.html", link),
        (SCORE, "scores.jsonl", link),
        (SCORE, "scores.jsonl", second_name),
        (SCORE, "scores.jsonl", pipe),
        (SCORE, "samples.jsonl", link),
        (SCORE, ".spsbench.lock", link),
        (SCORE, "prompts.jsonl", pipe),
        (SCORE, "config.yaml", pipe),
        (RESUME, "samples.jsonl", second_name),
        (SCORE, "samples.jsonl.torn", link),
        (RESUME, "samples.parquet", link),
        (RESUME, "config.yaml", link),
    ],
)
def test_links_and_pipes_are_refused(
    cli: Cli,
    received: Path,
    tmp_path: Path,
    drawn: None,
    command: tuple[str, ...],
    name: str,
    plant: Callable[..., None],
) -> None:
    place, victim = received / name, tmp_path / "victim"
    kept = place.read_bytes() if place.is_file() else b"mine\n"
    if name == "samples.jsonl.torn":
        (received / "samples.jsonl").write_bytes(b"{half\n" + (received / "samples.jsonl").read_bytes())
    if name == "figures":
        shutil.rmtree(place, ignore_errors=True)
        victim.mkdir()
    else:
        place.parent.mkdir(exist_ok=True)
        place.unlink(missing_ok=True)
        victim.write_bytes(kept)
    plant(place, victim)
    answer = cli(*command, received)
    assert "is a link or no ordinary file" in answer.err or "has a second name" in answer.err, answer
    assert answer.code == (0 if command == REPORT and name != "run.json" else 2), answer.err
    assert [*victim.iterdir()] == [] if victim.is_dir() else victim.read_bytes() == kept


def test_logs_of_engines_go_through_no_link(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert cli("run", "xsum", *BRIEF, "--engine", "eager,worker:true", *SMALL, "--out", run).code == 5
    shutil.rmtree(run / "engines")
    (run / "engines").symlink_to(tmp_path)
    assert "is a link or no ordinary file" in cli("run", "--limit", "2", "--resume", run).err
    assert not [*tmp_path.glob("*.log")]


def test_a_link_with_the_name_of_an_unfinished_file_is_not_written_through(
    cli: Cli, received: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("summary.json", "report.md", "samples.parquet"):
        (received / f".{name}.tmp").symlink_to(victim)
    assert cli("score", received).code == cli("report", received).code == 0
    assert victim.read_text() == "mine"


@pytest.mark.parametrize(
    ("key", "value", "command"),
    [
        ("task", "theirs.py:task", SCORE),
        ("task", "theirs.yaml", SCORE),
        ("task", "theirs.py:task", RESUME),
        ("drafters", ["theirs.py:drafter"], RESUME),
        ("engines", ["worker:touch imported"], RESUME),
        ("engines", ["openai:http://127.0.0.1:9/v1"], RESUME),
    ],
)
def test_code_in_somebody_elses_settings_needs_trust(
    cli: Cli, received: Path, key: str, value: object, command: tuple[str, ...]
) -> None:
    Path("theirs.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    shipped = (data_dir("tasks") / "xsum.yaml").read_text()
    Path("theirs.yaml").write_text(f"{shipped}\nmetrics: [theirs.py:metric]\n")
    settings = yaml.safe_load((received / "config.yaml").read_text())
    (received / "config.yaml").write_text(yaml.safe_dump(settings | {key: value}))
    refused = cli(*command, received)
    assert refused.code == 2
    assert "error: --trust: the settings of" in refused.err
    assert not Path("imported").exists()
    trusted = cli(*command, received, "--trust")
    assert "--trust" not in trusted.err
    assert Path("imported").exists() or key == "engines"
    again = cli(*command, received)
    assert "--trust" not in again.err, "what was trusted once is remembered"


def test_what_was_typed_is_trusted(cli: Cli, received: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Now, or when the run began; not in another folder, where a relative name is another file."""
    settings = yaml.safe_load((received / "config.yaml").read_text())
    engine = "worker:touch typed"
    (received / "config.yaml").write_text(yaml.safe_dump(settings | {"engines": [engine]}))
    assert "--trust" not in cli("run", "--resume", received, "--engine", engine).err
    assert "--trust" in cli("run", "--resume", received).err
    cli("run", "xsum", "--engine", engine, "--limit", "1", "--out", "own")
    assert "--trust" not in cli("run", "--resume", received).err
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert "--trust" in cli("run", "--resume", received).err


def rename_example(run: Path, name: str, *files: str) -> None:
    old = json.loads((run / "prompts.jsonl").read_text().splitlines()[0])["example_id"]
    for file in files:
        text = (run / file).read_text()
        (run / file).write_text(text.replace(json.dumps(old), json.dumps(name)))


@pytest.mark.thorough
def test_an_id_of_several_lines_is_shown(cli: Cli, received: Path) -> None:
    rename_example(received, "a\nb\x1b", "prompts.jsonl", "samples.jsonl", "scores.jsonl")
    (received / "tokens.parquet").unlink()
    shown = cli("report", "--html", received)
    assert shown.code == 0, shown.err
    assert "\x1b" not in (received / "report.html").read_text()


def test_a_sample_of_no_prompt_is_not_scored(cli: Cli, received: Path) -> None:
    rename_example(received, "a\nb\x1b", "prompts.jsonl")
    refused = cli("score", received)
    assert refused.code == 2
    assert "which is not one of its prompts" in refused.err


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@A1", "\t=1", "\r=1", "\x1b[31m=1"])
def test_no_cell_of_csv_is_a_formula_or_drives_a_terminal(cli: Cli, received: Path, text: str) -> None:
    told = json.loads((received / "run.json").read_text())
    (received / "run.json").write_text(json.dumps(told | {"task_label": text, "created_utc": text}))
    line = cli("report", "--csv", received).out
    (row, *_) = csv.DictReader(io.StringIO(line))
    assert row["task"][0] in "' "
    assert not set("\x1b\r\t") & set(line)


def test_a_parquet_bomb_is_not_unfolded(cli: Cli, received: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more rows than its journal has bytes, or one text again and again: made anew, or refused."""
    monkeypatch.setattr("spsbench.base.environment.ROOM_BYTES", 1 << 28)
    place = received / "loops.parquet"
    rows = pa.nulls(2_000_000, pa.int32()).fill_null(0)
    columns = {"loop": rows, "example_id": pa.DictionaryArray.from_arrays(rows, pa.array(["a" * 1000]))}
    pq.write_table(pa.table(columns), place, store_schema=False)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert cli("report", received, "--quiet").code == 0
    with pytest.raises(UnavailableError, match="is not a readable Parquet file"):
        next(parquet_rows(place))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 1 << 20
