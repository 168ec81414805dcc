"""Files of others say how much there is of a thing: what is beyond a bound is refused by its field."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.base.files import LONGEST_LINE_BYTES
from spsbench.config.files import read_yaml
from spsbench.parts.judge import samples
from spsbench.store import foreign
from spsbench.tasks.sources import read_rows


def counts(**changes: Any) -> foreign.FileContent:
    """Of a request as vLLM records it: two loops, of which one kept three drafts."""
    stats: dict[str, Any] = {
        "num_spec_steps": 2,
        "num_draft_tokens": 8,
        "num_accepted_draft_tokens": 3,
        "num_spec_tokens": 4,
        "acceptance_histogram": {"0": 1, "3": 1},
    }
    found = foreign.FileContent(foreign.GUIDELLM)
    foreign._add_vllm_record(stats | changes, 5, "", found)
    return found


def test_a_histogram_is_read() -> None:
    assert counts().counts[0].accepted == 3


@pytest.mark.parametrize("key", ["30000000", "1001"])
def test_no_lookahead_is_so_long(key: str) -> None:
    with pytest.raises(ValueError, match="kept, at most 1,000 are read"):
        counts(acceptance_histogram={"0": 1, key: 1})


def test_no_count_has_so_many_digits() -> None:
    with pytest.raises(ValueError, match="a count has 401 digits, at most 15 are read"):
        counts(acceptance_histogram={"0": 1, str(10**400): 1})
    with pytest.raises(ValueError, match="num_spec_steps has 401 digits, at most 15 are read"):
        counts(num_spec_steps=10**400)


@pytest.mark.parametrize("value", [".nan", ".inf"])
def test_a_published_length_is_a_number(value: str, tmp_path: Path) -> None:
    path = tmp_path / "curve.yaml"
    path.write_text(f"acceptance_length:\n  model: {{1: 1.8, 2: {value}}}\n")
    with pytest.raises(UnavailableError, match=r"has (nan|inf) at K = 2: a number at a K to 1,000"):
        foreign.read(path, foreign.PUBLISHED, "FILE")


def test_yaml_that_grows_by_aliases_is_refused(tmp_path: Path) -> None:
    levels = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 12)]
    path = tmp_path / "laughs.yaml"
    path.write_text("\n".join(levels))
    with pytest.raises(UsageError, match="it has more than 16 aliases"):
        read_yaml(path, "--config")
    path.write_text("a: &a [1]\nb: *a\n")
    assert read_yaml(path, "--config") == {"a": [1], "b": [1]}
    assert json.dumps(read_yaml(path, "--config"))


Reader = Callable[[Path], object]
READERS: dict[str, Reader] = {
    "samples": lambda path: list(samples.rows(path, "SAMPLES")),
    "outputs of an engine": lambda path: list(foreign.documents(path, "FILE")),
    "data of a task": lambda path: read_rows(path, "test"),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_what_unpacks_without_end_is_refused(read: Reader, tmp_path: Path) -> None:
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(gzip.compress((b" " * 1000 + b"\n") * (1 << 17)))
    with pytest.raises(UnavailableError, match="it unpacks to more than 100 times its size"):
        read(path)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_line_without_end_is_refused(read: Reader, tmp_path: Path) -> None:
    path = tmp_path / "line.jsonl"
    path.write_bytes(b'{"id": 1}\n' + b" " * (LONGEST_LINE_BYTES + 1))
    with pytest.raises(UnavailableError, match="it has a line of more than 64 MB"):
        read(path)


def test_long_lines_and_dense_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    long = json.dumps({"text": "x" * (LONGEST_LINE_BYTES - 100)})
    path.write_text(f"{long}\n" * 2)
    assert [number for number, _ in samples.rows(path, "SAMPLES")] == [1, 2]
    dense = tmp_path / "rows.jsonl.gz"
    dense.write_bytes(gzip.compress(json.dumps({"text": "x" * (1 << 25)}).encode()))
    assert [number for number, _ in samples.rows(dense, "SAMPLES")] == [1]
