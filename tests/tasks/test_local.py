"""Files of rows: each form, and each way of being broken."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.tasks.catalogue import load_task
from spsbench.tasks.sources import read_rows, sibling

ROWS = [{"id": "a", "document": "One.", "summary": "1"}, {"id": "b", "document": "Zwö.", "summary": "2"}]


def fields(path: Path, split: str = "validation") -> list[dict[str, object]]:
    return [dict(row.fields) for row in read_rows(path, split)]


def test_json_lines(write: Callable[..., Path]) -> None:
    path = write(ROWS)
    path.write_text("\ufeff" + path.read_text().replace("}\n", "}\r\n\n"), encoding="utf-8")
    assert fields(path) == ROWS
    assert [row.place for row in read_rows(path, "x")] == [f"line 1 of {path}", f"line 3 of {path}"]


def test_gzip(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(json.dumps(row) for row in ROWS).encode()))
    assert fields(path) == ROWS


def test_parquet(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    assert fields(path) == ROWS
    assert read_rows(path, "x")[1].place == f"row 2 of {path}"


def test_directory_saved_by_datasets(tmp_path: Path) -> None:
    import datasets

    splits = {"validation": datasets.Dataset.from_list(ROWS), "train": datasets.Dataset.from_list(ROWS[:1])}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "both")
    splits["validation"].save_to_disk(tmp_path / "one")
    assert fields(tmp_path / "both") == fields(tmp_path / "one") == ROWS
    train = sibling(tmp_path / "both", "validation", "train")
    assert train is not None
    assert [row.fields for row in train] == ROWS[:1]
    assert sibling(tmp_path / "one", "validation", "train") is None
    with pytest.raises(UnavailableError, match=r"no split 'test' \(it has validation, train"):
        read_rows(tmp_path / "both", "test")


def test_train_file_beside_a_file(write: Callable[..., Path]) -> None:
    path = write(ROWS, "news.jsonl")
    assert sibling(path, "validation", "train") is None
    write(ROWS[:1], "news_train.jsonl")
    train = sibling(path, "validation", "train")
    assert train is not None
    assert [row.fields for row in train] == ROWS[:1]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("x.jsonl", b"", "holds no row"),
        ("x.jsonl", b"\n \n", "holds no row"),
        ("x.jsonl", b'{"id": 1}\n{"id": \n', "line 2 of .* is not JSON"),
        ("x.jsonl", b'{"id": 1}\n[1]\n', "line 2 of .* is not a JSON object"),
        ("x.jsonl", b'{"id": 1}\nnull\n', "line 2 of .* is not a JSON object"),
        ("x.jsonl", b'{"id": 1}\n{"id": "\xe9"}\n', "line 2 of .* is not UTF-8"),
        ("x.jsonl", b"[" * 100_000, "line 1 of .* is not JSON"),
        ("x.jsonl.gz", b"no gzip", "unreadable"),
        ("x.jsonl.gz", gzip.compress(b'{"id": 1}\n' * 1000, mtime=0)[:40], "unreadable"),
        ("x.parquet", b"", "not a readable Parquet"),
        ("x.parquet", b"PAR1 and then nothing", "not a readable Parquet"),
    ],
)
def test_broken_files(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UnavailableError, match=told) as caught:
        read_rows(path, "validation")
    assert caught.value.flag == "--data"
    assert caught.value.remedy


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r".*gone\.jsonl"):
        read_rows(tmp_path / "gone.jsonl", "validation")


def test_a_directory_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="is not saved by datasets"):
        read_rows(tmp_path, "validation")


def test_unknown_form(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("id\n1\n")
    with pytest.raises(UsageError, match="has the unknown ending"):
        read_rows(tmp_path / "x.tsv", "validation")


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("task", "column", "row"),
    [
        ("xsum", "document", {"id": 7, "summary": "s"}),
        ("xsum", "summary", {"id": 7, "document": "d"}),
        ("cnndm", "article", {"id": 7, "highlights": "h"}),
        ("humaneval", "prompt", {"task_id": 7, "entry_point": "f", "canonical_solution": "c", "test": "t"}),
        ("prompts", "prompt", {"id": 7, "category": 3}),
    ],
)
def test_a_number_is_no_text_that_a_model_is_shown_and_may_be_an_id(
    tmp_path: Path, ending: str, task: str, column: str, row: dict[str, object]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def read(value: object) -> list[str]:
        path = tmp_path / f"rows.{ending}"
        rows = [row | {name: place for name in row if "id" in name} | {column: value} for place in (7, 8)]
        if ending == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        else:
            path.write_text("".join(json.dumps(each) + "\n" for each in rows))
        named = str(path) if task == "prompts" else task
        data = "official" if task == "prompts" else str(path)
        return [example.example_id for example in load_task(named).load(data, None, 0).examples]

    assert {*read("def f():\n")} <= {"7", "8"}
    with pytest.raises(UnavailableError, match=rf"1 of .*: column '{column}' holds 3 instead") as caught:
        read(3)
    assert caught.value.remedy == 'Write it as text, "3", or correct the row.'
