"""``run FILE`` does what the file is meant for: prompts, or the data of a task."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from spsbench.base.errors import UsageError
from spsbench.cli.settings import task_file
from spsbench.tasks.messages import FileRead
from spsbench.tasks.prompts import layout_of

PROBLEM = {"task_id": "T/0", "prompt": "def f():", "entry_point": "f", "test": "def check(f): ..."}
KINDS = {
    "prompt": ({"id": "1", "prompt": "Hello"}, None),
    "chat": ({"messages": [{"role": "user", "content": "Hello"}]}, None),
    "spec-bench": ({"question_id": 1, "category": "c", "turns": ["Hello"]}, None),
    "news": ({"id": "1", "document": "It rained.", "summary": "Rain."}, "xsum"),
    "cnn": ({"article": "It rained.", "highlights": "Rain."}, "cnndm"),
    "humaneval": (PROBLEM, "humaneval"),
    "prompt-with-document": ({"prompt": "Sum up.", "document": "It rained.", "summary": "Rain."}, None),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".json", ".parquet"])
def test_the_first_record_decides(kind: str, ending: str, tmp_path: Path) -> None:
    record, task = KINDS[kind]
    path = tmp_path / f"my file ü{ending}"
    if ending == ".json":
        path.write_text(json.dumps([record]))
    elif ending == ".parquet":
        import pandas as pd

        pd.DataFrame([record]).to_parquet(path)
    else:
        text = (json.dumps(record) + "\n").encode()
        path.write_bytes(gzip.compress(text) if ending.endswith(".gz") else text)
    assert layout_of(str(path)).task == task


def test_nothing_after_the_first_line_is_read(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'\n{"prompt": "Hello"}\n{"document": "x", "summary": "y"}\n\xff not even text')
    assert layout_of(str(path)) == FileRead(str(path), None, ("prompt",))


def test_a_data_file_stands_for_its_task_and_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "news.jsonl"
    path.write_text(json.dumps(KINDS["news"][0]))
    assert task_file(str(path), quiet=False) == {"task": "xsum", "data": str(path)}
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"Reading {path} as data of xsum (document, summary), like `xsum --data {path}`.\n"
    assert task_file(str(path), quiet=True) == {"task": "xsum", "data": str(path)}
    assert capsys.readouterr().err == ""


def test_lines_of_text_are_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("Hello\n")
    assert task_file(str(path), quiet=False) == {}
    assert capsys.readouterr().err == f"Reading {path} as prompts, one a line.\n"


def test_another_file_is_refused_with_the_fields_expected(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"text": "Hello", "label": 1}')
    with pytest.raises(UsageError) as raised:
        task_file(str(path), quiet=True)
    text = str(raised.value)
    assert text.startswith(f"TASK: {path} holds neither prompts nor a task's data (its fields: label, text).")
    for expected in (
        "prompt, messages, turns, conversations",
        "document, summary",
        "task_id, prompt, entry_point",
    ):
        assert expected in text


@pytest.mark.parametrize("name", ["xsum", "no-such-file.jsonl", "file.py:TASK", None])
def test_what_is_not_a_file_stays_as_typed(name: str | None) -> None:
    assert task_file(name, quiet=False) == {}


def test_what_cannot_be_read_is_left_to_the_reader_of_prompts(tmp_path: Path) -> None:
    path = tmp_path / "torn.jsonl"
    path.write_text('{"prompt": ')
    assert layout_of(str(path)) == FileRead(str(path), None, ())


def test_prompts_as_csv_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "prompts.csv"
    path.write_text("prompt\nWhy?\n")
    with pytest.raises(UsageError, match=r"prompts\.csv holds prompts as CSV, which is not read"):
        layout_of(str(path))
