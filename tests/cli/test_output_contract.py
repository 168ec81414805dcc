"""Results on stdout, everything else on stderr; ``--json`` and ``--quiet`` mean the same in every command."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.commandline import BRIEF, SMALL, Result, call

from spsbench.cli import main
from spsbench.parts.verify.effort import Finding

SAMPLE = {"task_id": "MiniEval/0", "completion": "    return 1\n"}
ELSEWHERE = {"advise": "test_advise", "get": "test_get", "merge": "test_merge", "replay": "test_replay"}
"""Commands that need more than a moment; their own tests look at both options."""


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What takes minutes answers at once; what prints its answer is the command's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    found = Finding("analytic", True, "0 of 1 differ", "0.1", {})
    monkeypatch.setattr("spsbench.parts.verify.verification.findings", lambda *_: iter([found]))
    if "paper" in main.COMMANDS:
        paper = importlib.import_module("spsbench.parts.paper.command")
        monkeypatch.setattr(
            paper,
            "reproduce_chen",
            lambda params: paper.keep_page({"complete": True}, "page", "page", tmp_path, params),
        )
    if "distill" in main.COMMANDS:
        made = SimpleNamespace(record={}, recipe=SimpleNamespace(kind="model"), held_out=[], folder=tmp_path)
        answer = (made, [], "spsbench run --draft FOLDER")
        monkeypatch.setattr("spsbench.parts.distill.command._draft_with_card", lambda *_: answer)
    Path("texts.jsonl").write_text(json.dumps({"prompt_ids": [5, 6], "completion_ids": [7]}) + "\n")


def typed(command: str, run: Path) -> list[str]:
    """A quick way to call a command that succeeds."""
    small = [*map(str, BRIEF), *SMALL, "--no-proof", "--no-score"]
    return {
        "run": ["run", "xsum", *small, "--k", "1"],
        "sweep-k": ["sweep-k", "xsum", *small, "--k", "0,1"],
        "paper": ["paper"],
        "bench": ["bench", "--k", "1", "--context", "16", "--seconds", "0.05", "--threads", "1"],
        "simulate": [
            "simulate",
            "--tokens",
            "128",
            "--k",
            "1",
            "--source",
            "dirichlet:vocabulary=4",
            "--contexts",
            "1",
        ],
        "verify": ["verify", "--effort", "reduced", "--sampling", "greedy", "--threads", "1"],
        "audit": ["audit", "texts.jsonl", "--temperature", "1"],
        "compare": ["compare", str(run), str(run)],
        "report": ["report", str(run)],
        "export": ["export", str(run), "--to", "lm-eval"],
        "trace": ["trace", "The bridge", "--max-new-tokens", "4", "--threads", "1"],
        "distill": ["distill", "--target", "embedded:mini/target", "--out", "y"],
        "list": ["list", "rules"],
        "score": ["score", str(run)],
        "doctor": ["doctor"],
    }[command]


COMMANDS = [name for names in main.PANELS.values() for name in names if name not in ELSEWHERE]


@pytest.fixture
def run(finished: tuple[Path, Result], tmp_path: Path) -> Path:
    """A finished run that may be written to."""
    return Path(shutil.copytree(finished[0], tmp_path / "copied"))


@pytest.fixture
def asked(run: Path) -> Callable[..., Result]:
    def ask(command: str, *flags: str) -> Result:
        result = call(*typed(command, run), *flags)
        assert result.code == 0, result.err
        return result

    return ask


def parsed(result: Result) -> Any:
    return json.loads(result.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@pytest.mark.thorough_but("[run]", "[verify]")
@pytest.mark.parametrize("command", COMMANDS)
def test_quiet_prints_nothing_and_with_json_json_alone(command: str, asked: Callable[..., Result]) -> None:
    silent = asked(command, "--quiet")
    assert (silent.out, silent.err) == ("", "")
    both = asked(command, "--quiet", "--json")
    assert both.err == ""
    assert parsed(both) is not None


@pytest.mark.thorough_but("[report]", "[compare]", "[list]")
@pytest.mark.parametrize("command", ["simulate", "compare", "report", "list", "doctor", "distill", "paper"])
def test_json_alone_is_on_stdout_and_people_get_tables(command: str, asked: Callable[..., Result]) -> None:
    assert parsed(asked(command, "--json")) is not None
    shown = asked(command).out
    assert shown.strip()
    with pytest.raises(json.JSONDecodeError):
        json.loads(shown)


@pytest.mark.thorough_but("environment0")
@pytest.mark.parametrize("environment", [{"LANG": "C", "LC_ALL": "C", "COLUMNS": "40"}, {"NO_COLOR": "1"}])
def test_a_pipe_gets_no_escape_codes(environment: dict[str, str], run: Path, tmp_path: Path) -> None:
    import os
    import subprocess
    import sys

    root = Path(__file__).resolve().parents[2]
    for arguments in (["run", "--help"], ["list", "rules"], ["rnu"]):
        done = subprocess.run(
            [sys.executable, "-m", "spsbench", *arguments],
            capture_output=True,
            cwd=tmp_path,
            check=False,
            env={**os.environ, "PYTHONPATH": str(root), **environment},
        )
        assert b"\x1b" not in done.stdout + done.stderr
        assert b"Traceback" not in done.stderr
        assert done.returncode == (2 if arguments == ["rnu"] else 0)
