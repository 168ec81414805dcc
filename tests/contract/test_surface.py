"""What other programs hold on to: commands, exit codes, the engine protocol, names to import and register."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path

import pytest
from support.commandline import ALONE, BRIEF, call
from syrupy.assertion import SnapshotAssertion

import spsbench
from spsbench import testing
from spsbench.cli.main import COMMANDS as CALLED
from spsbench.cli.main import PANELS

COMMANDS = [name for names in PANELS.values() for name in names]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of(command: str, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = call(command, "--help")
    assert done.code == 0
    assert "\n".join(line.rstrip() for line in done.out.splitlines()) == snapshot


@pytest.mark.parametrize("command", [name for name in COMMANDS if hasattr(CALLED[name], "__needed__")])
def test_help_of_every_option(
    command: str, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = call(command, "--help-all")
    assert done.code == 0
    assert "\n".join(line.rstrip() for line in done.out.splitlines()) == snapshot


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("list", "tasks"), 0),
        (("nonsense",), 2),
        (("run", "nonsense"), 2),
        (("run", "--k", "0.5"), 2),
        (("run", "--drafter", "nonsense"), 2),
        (("run", "--target", "/none", "--draft", "/none"), 3),
        (("run", "missing.jsonl"), 3),
        (("report", "missing"), 2),
        (("run", "xsum", *BRIEF, "--limit", "1", "--max-new-tokens", "2", *ALONE, "--expect", "00000000"), 4),
        (("compare", "missing", "missing"), 2),
    ],
)
def test_exit_codes(
    arguments: tuple[object, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert call(*arguments).code == code


@pytest.mark.parametrize(
    ("arguments", "code", "group"),
    [
        (("run", "--drafter", "x"), 2, "spsbench.drafters"),
        (("run", "--rule", "x"), 2, "spsbench.rules"),
        (("run", "--k", "adaptive", "--policy", "x"), 2, "spsbench.policies"),
        (("run", "x"), 2, "spsbench.tasks"),
        (("list", "metrics"), 0, "spsbench.metrics"),
    ],
)
def test_packages_register_in(
    arguments: tuple[str, ...], code: int, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr(metadata, "entry_points", lambda group: asked.append(group) or ())
    assert call(*arguments).code == code
    assert group in asked


WORKER = """\
import json, sys
log = open("heard.jsonl", "a")
for line in sys.stdin:
    log.write(line)
    log.flush()
    asked = json.loads(line)
    if asked["method"] == "describe":
        answer = {"engine": "echo", "version": "1", "protocol": 1}
    elif asked["method"] == "generate":
        answer = {"output_ids": [9] * asked["params"]["max_new_tokens"], "finish": "length"}
    else:
        answer = None
    print(json.dumps({"id": asked["id"], "result": answer}), flush=True)
"""


def test_what_an_engine_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("worker.py").write_text(WORKER)
    engine = f"worker:{sys.executable} worker.py"
    small = ("--limit", "1", "--max-new-tokens", "4", "--k", "2")
    done = call("run", "xsum", *BRIEF, *small, "--engine", f"eager,{engine}", "--out", "run", *ALONE)
    assert done.code == 0, done.err
    assert not json.loads(Path("run/run.json").read_text())["engines_left_out"]
    heard = [json.loads(line) for line in Path("heard.jsonl").read_text().splitlines()]
    assert [(line["method"], sorted(line["params"] or ())) for line in heard] == snapshot


def test_names_to_import(snapshot: SnapshotAssertion) -> None:
    assert {"spsbench": sorted(spsbench.__all__), "spsbench.testing": sorted(testing.__all__)} == snapshot
    assert all(getattr(spsbench, name) for name in spsbench.__all__)
