"""Which prompts run: a range of them, or some by their ids; and what a user says of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commandline import ALONE, BRIEF, Cli, Result, call
from support.simulated_sweep import sweep
from support.summarised import summarise

from spsbench.cli.runs import _speed_and_losslessness, table

RUN = ("run", "xsum", "--k", "2", "--max-new-tokens", "4", "--no-proof", "--no-score", *ALONE)
SHORT = (*RUN, *BRIEF)


def ids(run: Path) -> list[str]:
    return [json.loads(line)["example_id"] for line in (run / "prompts.jsonl").read_text().splitlines()]


def test_a_range_is_the_same_prompts_as_in_the_whole(cli: Cli, tmp_path: Path) -> None:
    assert cli(*SHORT, "--limit", "5", "--out", "whole").code == 0
    assert cli(*SHORT, "--limit", "3-5", "--out", "range").code == 0
    assert ids(tmp_path / "range") == ids(tmp_path / "whole")[2:]


def test_prompts_are_chosen_by_id_whatever_the_protocol_allows(cli: Cli, tmp_path: Path) -> None:
    assert cli(*RUN, "--id", "mini-xsum-344,mini-xsum-7", "--out", "run").code == 0
    assert set(ids(tmp_path / "run")) == {"mini-xsum-344", "mini-xsum-7"}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--limit", "5-3"), "100,000,000, or a range from 1 as 10-20, got 5-3"),
        (("--limit", "0-3"), "--limit must be"),
        (("--limit", "900-950"), "900-950 begins after the last of the 400 prompts"),
        (("--id", "mini-xsum-4444"), "has no prompt mini-xsum-4444. Its ids are like mini-xsum-"),
        (("--id", "mini-xsum-7", "--limit", "3"), "--id: mini-xsum-7 is given together with --limit"),
        (("--tag", "gpu"), "--tag must be key=value, got gpu"),
        (("--tag", "1=a"), "--tag"),
    ],
)
def test_what_cannot_be_chosen_is_refused(cli: Cli, asked: tuple[str, ...], said: str) -> None:
    done = cli(*RUN, *asked)
    assert done.code == 2
    assert said in " ".join(done.err.split())


def test_tags_stand_in_every_table_and_are_added_to(cli: Cli, tmp_path: Path) -> None:
    done = cli(*SHORT, "--limit", "2", "--tag", "gpu=a b", "--out", "run")
    assert done.code == 0, done.err
    assert "gpu=a b" in cli("report", "run").out
    assert "Tags: gpu=a b" in (tmp_path / "run" / "report.md").read_text()
    header, first, *_ = cli("report", "run", "--csv").out.splitlines()
    assert dict(zip(header.split(","), first.split(","), strict=False))["tag_gpu"] == "a b"
    assert "gpu=a" in cli("report", "run", "--latex").out
    again = cli("run", "--resume", "run", "--tag", "branch=b", *ALONE)
    assert again.code == 0, again.err
    told = json.loads((tmp_path / "run" / "run.json").read_text())
    assert told["tags"] == {"gpu": "a b", "branch": "b"}
    assert cli(*SHORT, "--limit", "2", "--out", "other").code == 0
    compared = cli("compare", "run", "other", "--json")
    assert json.loads(compared.out)["tags"] == {"a": told["tags"]}


def test_a_folder_of_runs_is_listed(cli: Cli, finished: tuple[Path, Result], tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    (folder / "broken").mkdir(parents=True)
    (folder / "broken" / "run.json").write_text('{"schema_version": 99}')
    (folder / "deep").mkdir()
    (folder / "deep" / "done").symlink_to(finished[0])
    (folder / "half").mkdir()
    for name in ("run.json", "config.yaml"):
        (folder / "half" / name).write_bytes((finished[0] / name).read_bytes())
    (folder / "whole").mkdir()
    for path in finished[0].iterdir():
        if path.is_file():
            (folder / "whole" / path.name).write_bytes(path.read_bytes())
    listed = json.loads(cli("list", "runs", folder, "--json").out)["runs"]
    states = {row["run"]: row["state"] for row in listed}
    assert states["half"] == "unfinished"
    assert states["broken"] == "damaged"
    assert states["whole"] == "complete"
    (whole,) = (row for row in listed if row["run"] == "whole")
    summary = json.loads((finished[0] / "summary.json").read_text())
    assert whole["verdicts"][0]["speedup"] == summary["verdict"][0]["speedup"]
    assert whole["losslessness"] == {"sps-k4-nucleus": "ok"}
    shown = cli("list", "runs", folder)
    assert shown.code == 0
    assert "schema version 99" in " ".join(shown.out.split())


def test_a_listed_arm_has_its_sampling_where_there_are_several() -> None:
    summary = summarise(*sweep(ks=(0, 4)), {})
    (one,) = _speed_and_losslessness(summary)["verdicts"]
    summary["rows"].append({**summary["rows"][0], "sampling": "greedy"})
    (several,) = _speed_and_losslessness(summary)["verdicts"]
    assert (one["name"], several["name"]) == ("SpS (K=4)", "SpS (K=4), nucleus")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("runs", "nowhere"), "nowhere is not a folder"),
        (("runs", "."), "holds no run"),
        (("tasks", "."), "tasks is not in a folder"),
    ],
)
def test_a_folder_without_runs_is_refused(cli: Cli, asked: tuple[str, ...], said: str) -> None:
    done = cli("list", *asked)
    assert done.code == 2
    assert said in done.err


def test_tags_do_not_change_the_hash_of_a_run(cli: Cli) -> None:
    assert cli(*SHORT, "--limit", "2", "--out", "a").code == 0
    assert cli(*SHORT, "--limit", "2", "--tag", "x=y", "--out", "b").code == 0
    hashes = [json.loads(call("report", name, "--json").out)["token_sha256"] for name in "ab"]
    assert hashes[0] == hashes[1] is not None


def test_a_listed_run_names_arms_without_all_their_times() -> None:
    summary = summarise(*sweep(ks=(0, 4)), {})
    assert _speed_and_losslessness(summary)["untimed"] == []
    of = summary["rows"][1]["sequences"]
    summary["rows"][1] |= {"failed": of, "missing": 2, "sequences": 0}
    (untimed,) = _speed_and_losslessness(summary)["untimed"]
    row = {"run": "a", "created_utc": None, "state": "complete", "task": "t", "untimed": [untimed]}
    (shown,) = table([row]).rows
    assert f"{untimed['name']}: failed {of}, not run 2 of {of + 2}" in str(shown[2])
