"""Read data from a path: JSON lines, Parquet, or a directory that ``datasets`` saved."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spsbench.errors import UnavailableError, UsageError
from spsbench.tasks.rows import Row, bad_data

_FORMS = ".jsonl, .jsonl.gz, .parquet or a directory saved by datasets"


def read_rows(path: Path, split: str) -> list[Row]:
    """All rows of a file, or of one split of a saved directory.

    Args:
        path: a ``.jsonl``, ``.jsonl.gz`` or ``.parquet`` file, or a directory written by
            ``save_to_disk``.
        split: which split to take if the directory holds several.

    Raises:
        UnavailableError: nothing is there, or it is unreadable, malformed, not UTF-8 or empty;
            the message names the line.
        UsageError: the file has another form.
    """
    if not path.exists():
        raise UnavailableError(
            f"there is no {path}.", flag="--data", remedy="Give official, mini or the path of a data file."
        )
    rows = list(_reader(path, split))
    if not rows:
        raise bad_data(f"{path} holds no row.", "Give a file with at least one example.")
    return rows


def sibling_train(path: Path, split: str) -> list[Row] | None:
    """Rows of the train data that lie beside a local path, for an exemplar; None if there are none.

    For ``news.jsonl`` that is ``news_train.jsonl``, for a saved directory its split ``train``.
    """
    if path.is_dir():
        return read_rows(path, "train") if split != "train" and (path / "train").is_dir() else None
    stem, dot, ending = path.name.partition(".")
    beside = path.with_name(f"{stem}_train{dot}{ending}")
    return read_rows(beside, "train") if beside.is_file() else None


def _reader(path: Path, split: str) -> Iterator[Row]:
    if path.is_dir():
        return _saved_rows(path, split)
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        return _json_rows(path)
    if path.suffix == ".parquet":
        return parquet_rows(path)
    raise UsageError(f"{path} is of no known form.", flag="--data", remedy=f"Give {_FORMS}.")


def _json_rows(path: Path) -> Iterator[Row]:
    for number, line in enumerate(_lines(path), start=1):
        place = f"line {number} of {path}"
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            fields = json.loads(text) if text.strip() else None
        except UnicodeDecodeError as error:
            raise bad_data(f"{place} is not UTF-8 ({error.reason}).", "Convert the file to UTF-8.") from error
        except (ValueError, RecursionError) as error:
            raise bad_data(f"{place} is not JSON ({error}).", "Write one JSON object per line.") from error
        if fields is None and not text.strip():
            continue
        if not isinstance(fields, dict):
            raise bad_data(f"{place} is no JSON object.", "Write one JSON object per line.")
        yield Row(place, fields)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from file
    except (OSError, EOFError, zlib.error) as error:
        raise bad_data(f"{path} is unreadable ({error}).", "Check the file and its permissions.") from error


def parquet_rows(path: Path, row_group: int | None = None) -> Iterator[Row]:
    """Rows of a Parquet file, or of one of its row groups.

    Raises:
        UnavailableError: the file is no intact Parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            table = file.read() if row_group is None else file.read_row_group(row_group)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise bad_data(
            f"{path} is no readable Parquet file ({reason}).", "Fetch or write it again."
        ) from error
    for number, fields in enumerate(table.to_pylist(), start=1):
        yield Row(f"row {number} of {path}", fields)


def _saved_rows(path: Path, split: str) -> Iterator[Row]:
    import datasets

    try:
        saved: Any = datasets.load_from_disk(str(path))
    except Exception as error:  # datasets raises what the broken part raised, of any type
        raise bad_data(
            f"{path} is no directory saved by datasets ({type(error).__name__}: {error}).", f"Give {_FORMS}."
        ) from error
    if isinstance(saved, datasets.DatasetDict):
        if split not in saved:
            raise bad_data(
                f"{path} has no split {split!r} (it has {', '.join(saved)}).", "Save that split too."
            )
        saved = saved[split]
    for number, fields in enumerate(saved, start=1):
        yield Row(f"row {number} of {path}", fields)
