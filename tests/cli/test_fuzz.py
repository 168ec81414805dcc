"""Whatever is fed in: an answer or a sentence with a remedy, never a fault of spsbench's own."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.commandline import Result, call

from spsbench.base.errors import UsageError
from spsbench.base.paths import data_dir, mini_dir
from spsbench.config import resolve
from spsbench.report.figures import Gallery

HF = mini_dir() / "data"
unchecked = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
few = settings(max_examples=25, suppress_health_check=unchecked)

odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 5),
    st.sampled_from(
        [10**30, -0.0, float("nan"), float("inf"), 1e-320, "", "\0", "é" * 3, "1/0", "../..", "[", "eager"]
    ),
    st.lists(st.integers(-1, 2), max_size=2),
    st.dictionaries(st.sampled_from(["id", "name", "top_p", "x"]), st.integers(-1, 2), max_size=2),
)


@st.composite
def changed(draw: Callable[..., Any], whole: Any) -> Any:
    """A copy with one value, however deep, replaced, removed or joined by another."""
    whole = copy.deepcopy(whole)
    place = whole
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return draw(odd)
        key = draw(st.sampled_from(keys))
        if isinstance(place[key], dict | list) and place[key] and draw(st.booleans()):
            place = place[key]
            continue
        match draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace":
                place[key] = draw(odd)
            case "remove":
                del place[key]
            case _ if isinstance(place, dict):
                place[draw(st.sampled_from(["extra", "k", "pair"]))] = draw(odd)
            case _:
                place.append(draw(odd))
        return whole


@st.composite
def torn(draw: Callable[..., Any], content: bytes) -> bytes:
    """The bytes cut off, or with a few of them overwritten."""
    place = draw(st.integers(0, max(len(content) - 1, 0)))
    if draw(st.booleans()):
        return content[:place]
    return content[:place] + draw(st.binary(min_size=1, max_size=3)) + content[place + 1 :]


def sound(result: Result) -> None:
    assert "fault of spsbench" not in result.err, result.err
    assert result.code in (0, 2, 3, 4, 5, 130) or "error:" in result.err


@pytest.fixture(autouse=True)
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is fuzzed is reading; nothing that was read is carried out."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise UsageError("everything was read.")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("spsbench.runner.execution", refuse)
    monkeypatch.setattr("spsbench.parts.judge.judge_all", refuse)
    monkeypatch.setattr("spsbench.models.loading.load", refuse)
    monkeypatch.setattr("spsbench.report.figures.draw", lambda measured, **_: Gallery((), ()))


SETTINGS = yaml.safe_load(resolve({"limit": 1}).to_yaml())
TASK = yaml.safe_load((data_dir("tasks") / "humaneval.yaml").read_text())
ARTICLES = [json.loads(line) for line in (HF / "xsum.jsonl").read_text().splitlines()[:3]]
SAMPLES = [
    {"task_id": "MiniEval/0", "completion": "    return 1\n"},
    {"task_id": "MiniEval/1", "completion": ""},
]
TEXTS = [
    {"prompt_ids": [5, 6], "completion_ids": [7], "sampling": {"top_p": 0.5}},
    {"prompt": "a", "completion": "b"},
]


@few
@given(content=changed(SETTINGS))
def test_settings(content: Any) -> None:
    Path("config.yaml").write_text(yaml.safe_dump(content))
    sound(call("run", "--config", "config.yaml"))


@few
@given(content=changed(TASK))
def test_tasks(content: Any) -> None:
    Path("task.yaml").write_text(yaml.safe_dump(content))
    sound(call("run", "task.yaml", "--data", "mini", "--limit", "1", "--no-score"))


@few
@given(rows=changed(ARTICLES))
def test_data(rows: Any) -> None:
    rows = rows if isinstance(rows, list) else [rows]
    Path("data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sound(call("run", "--data", "data.jsonl"))


@few
@given(rows=changed(SAMPLES))
def test_samples_to_judge(rows: Any) -> None:
    rows = rows if isinstance(rows, list) else [rows]
    Path("samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    problems = HF / "humaneval.jsonl"
    sound(call("score", "samples.jsonl", "--problem-file", problems, "--ignore-missing"))


@few
@given(rows=changed(TEXTS))
def test_texts_to_audit(rows: Any) -> None:
    rows = rows if isinstance(rows, list) else [rows]
    Path("texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sound(call("audit", "texts.jsonl"))


JOURNALS = ("samples.jsonl", "scores.jsonl", "prompts.jsonl")
WHOLE = ("run.json", "summary.json", "config.yaml")
TABLES = ("samples.parquet", "loops.parquet", "tokens.parquet", "evidence.parquet")


@pytest.mark.thorough_but(2)
@pytest.mark.parametrize("name", [*WHOLE, *JOURNALS, *TABLES])
@settings(few, max_examples=4)
@given(data=st.data())
def test_run_directories(finished: tuple[Path, Result], name: str, data: st.DataObject) -> None:
    """One file of a run is damaged byte-wise, or, where it is JSON, in its meaning."""
    run = Path("run")
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(finished[0], run)
    content = (run / name).read_bytes()
    if name.endswith(".json") and data.draw(st.booleans()):
        content = json.dumps(data.draw(changed(json.loads(content)))).encode()
    elif name in JOURNALS and data.draw(st.booleans()):
        rows = data.draw(changed([json.loads(line) for line in content.splitlines()]))
        content = b"".join(
            json.dumps(row).encode() + b"\n" for row in (rows if isinstance(rows, list) else [rows])
        )
    else:
        content = data.draw(torn(content))
    (run / name).write_bytes(content)
    sound(call("report", run))
