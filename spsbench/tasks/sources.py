"""Rows of data from files and from the hub, each knowing its place, and what is wrong with them."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from spsbench.base.environment import little_memory
from spsbench.base.errors import SpsbenchError, UnavailableError, UsageError, first_line
from spsbench.base.files import open_file, opened
from spsbench.tasks.spec import HubSource

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DataRow:
    """One record with its place, e.g. ``line 3 of news.jsonl``, for error messages."""

    place: str
    fields: Mapping[str, Any]


def row_of(place: str, fields: Mapping[str, Any]) -> DataRow:
    """A record in which a value that pandas wrote as NaN is missing."""
    missing = [name for name, value in fields.items() if isinstance(value, float) and math.isnan(value)]
    return DataRow(place, {**fields, **dict.fromkeys(missing)} if missing else fields)


def bad_data(message: str, remedy: str) -> UnavailableError:
    return UnavailableError(message, flag="--data", remedy=remedy)


def misfit(where: str, value: Any, kind: str) -> UnavailableError:
    """The error for a value of another kind than is read there."""
    return bad_data(f"{where} holds {value!r:.60} instead of {kind}.", _CORRECT)


_EXACT = 2.0**53


def required_column(row: DataRow, *names: str) -> str:
    """The text in the first of the columns ``names`` that the row has: what a model is shown, or scored by.

    ``a.b`` is the field ``b`` of the column ``a``. A number is refused: it may be a token id, a flag or
    another column, and no model would say so.
    """
    return _text(row, *_first_of(row, names))


def required_label(row: DataRow, *names: str) -> str:
    """As ``required_column``, but a number becomes text: an id, a category, a value within a template.

    A column of whole numbers with a gap comes from pandas as floats: 1.0 is read as ``1``.
    """
    name, value = _first_of(row, names)
    whole = isinstance(value, float) and value.is_integer() and abs(value) < _EXACT
    number = int(value) if whole else value
    return _text(row, name, str(number) if _is_number(number) else value)


def _first_of(row: DataRow, names: Sequence[str]) -> tuple[str, Any]:
    found = _columns(row, names)
    if not found:
        wanted = " or ".join(repr(name) for name in names)
        known = ", ".join(row.fields) or "none"
        raise bad_data(
            f"{row.place} has no column {wanted} (its columns: {known}).", "Add or rename the column."
        )
    return found[0]


def _text(row: DataRow, name: str, value: Any) -> str:
    if not isinstance(value, str):
        remedy = f'Write it as text, "{value}", or correct the row.' if _is_number(value) else _CORRECT
        raise bad_data(f"{row.place}: column {name!r} holds {value!r:.60} instead of text.", remedy)
    if not value.strip():
        raise bad_data(f"{row.place}: column {name!r} is empty.", "Fill it in or remove the row.")
    return well_formed(value, row)


_CORRECT = "Correct the row."


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def well_formed(text: str, row: DataRow) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        raise bad_data(
            f"{row.place}: character {problem.start + 1} is half of a surrogate pair, "
            f"\\u{ord(text[problem.start]):04x}.",
            "Correct the row.",
        ) from problem
    return text


def _columns(row: DataRow, names: Sequence[str]) -> list[tuple[str, Any]]:
    """Those of the columns that a row has, perhaps within another one, with their values."""
    found = []
    for name in names:
        outer, _, inner = name.partition(".")
        within = row.fields.get(outer)
        if name in row.fields:
            found.append((name, row.fields[name]))
        elif inner and isinstance(within, Mapping) and inner in within:
            found.append((name, within[inner]))
    return found


def is_blank(row: DataRow, *names: str, missing: bool = False) -> bool:
    """Whether the first of the columns ``names`` that the row has holds no text but white space; a row that
    has none of them, or nothing in it, as ``missing`` says."""
    value = next((value for _, value in _columns(row, names)), None)
    return missing if value is None else isinstance(value, str) and not value.strip()


def distinct(
    items: Iterable[tuple[T, DataRow]], name: Callable[[T], str] = attrgetter("example_id")
) -> list[T]:
    """What was made of rows; two rows with one id are refused: samples are kept, resumed and paired by it."""
    seen: dict[str, DataRow] = {}
    made = []
    for one, row in items:
        if name(one) in seen:
            raise bad_data(
                f"{row.place} repeats the id {name(one)!r} of {seen[name(one)].place}.",
                "Give every row its own id.",
            )
        seen[name(one)] = row
        made.append(one)
    return made


_ENDINGS = (".jsonl", ".jsonl.gz", ".csv", ".parquet")
_FORMS = f"{', '.join(_ENDINGS)} or a directory saved by datasets"


def unknown_ending(path: Path, flag: str, remedy: str) -> UsageError:
    """Return the error for a file whose name does not say how it is read."""
    ending = f"the unknown ending {path.suffix}" if path.suffix else "no ending"
    return UsageError(f"the name of {path} has {ending}.", flag=flag, remedy=remedy)


def read_rows(path: Path, split: str) -> list[DataRow]:
    """All rows of a file, or of one split of a saved directory."""
    if not path.exists():
        remedy = "Give official, mini or the path of a data file."
        raise UnavailableError(f"{path} does not exist.", flag="--data", remedy=remedy)
    if path.is_dir():
        rows = list(_saved_rows(path, split))
    elif not path.name.endswith(_ENDINGS):
        raise unknown_ending(path, "--data", f"Give {_FORMS}.")
    elif path.suffix == ".csv":
        rows = list(_csv_rows(path))
    elif path.suffix == ".parquet":
        rows = list(parquet_rows(path))
    else:
        rows = list(_json_rows(path))
    if not rows:
        raise bad_data(f"{path} holds no row.", "Give a file with at least one example.")
    return rows


def sibling(path: Path, split: str, other: str) -> list[DataRow] | None:
    """Rows of another split that lie beside a local path, for exemplars; None if there are none.

    For ``news.jsonl`` and the split ``train`` that is ``news_train.jsonl``, for a saved directory its split.
    """
    if path.is_dir():
        return read_rows(path, other) if split != other and (path / other).is_dir() else None
    stem, dot, ending = path.name.partition(".")
    beside = path.with_name(f"{stem}_{other}{dot}{ending}")
    return read_rows(beside, other) if beside.is_file() else None


def _json_rows(path: Path) -> Iterator[DataRow]:
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
            raise bad_data(f"{place} is not a JSON object.", "Write one JSON object per line.")
        yield row_of(place, fields)


def read_text(path: Path) -> str:
    """The text of a UTF-8 file; UnavailableError if it is unreadable or is in another encoding."""
    try:
        with open_file(path) as file:
            return file.read().decode("utf-8-sig")
    except OSError as error:
        raise bad_data(f"{path} is unreadable ({error}).", "Check the file and its permissions.") from error
    except UnicodeDecodeError as error:
        raise bad_data(f"{path} is not UTF-8 ({error.reason}).", "Convert the file to UTF-8.") from error


def line_rows(path: Path, column: str) -> Iterator[DataRow]:
    """Read each line of a text file as a row of one column; empty lines are left out."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            yield DataRow(f"line {number} of {path}", {column: line.removesuffix("\r")})


def item_rows(path: Path) -> Iterator[DataRow]:
    """Read the objects of a JSON list as rows."""
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise bad_data(
            f"{path} is not JSON ({error}).", "Correct it, or call a file of JSON lines .jsonl."
        ) from error
    if not isinstance(content, list):
        raise bad_data(f"{path} is not a JSON list.", "Write a list of objects.")
    for number, item in enumerate(content, start=1):
        if not isinstance(item, dict):
            raise bad_data(f"item {number} of {path} is not an object.", "Write a list of objects.")
        yield row_of(f"item {number} of {path}", item)


def _csv_rows(path: Path) -> Iterator[DataRow]:
    """The first line names the columns."""
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        for fields in reader:
            place = f"line {reader.line_num} of {path}"
            if None in fields or None in fields.values():
                raise bad_data(
                    f"{place} has more or fewer values than the first line has columns.", "Correct the line."
                )
            yield DataRow(place, fields)
    except csv.Error as error:
        raise bad_data(
            f"line {reader.reader.line_num} of {path} is not CSV ({error}).", "Correct it."
        ) from error


def read_aligned(paths: Sequence[Path], columns: Sequence[str]) -> list[DataRow]:
    """One row per line of aligned text files, of which line n of each belongs together (sacrebleu, Moses)."""
    named = ",".join(map(str, paths))
    if len(paths) != len(columns):
        raise UsageError(
            f"{named} names {len(paths)} files, and the task reads {len(columns)} columns "
            f"({', '.join(columns)}).",
            flag="--data",
            remedy="Give one file of lines per column, in this order, with commas between them.",
        )
    files: list[list[str]] = []
    for path in paths:
        if not path.is_file():
            raise bad_data(
                f"{path} does not exist.", "Give the paths of text files with a comma between them."
            )
        # Line feeds alone end a line: a text may hold other separators, which str.splitlines would follow.
        text = read_text(path).removesuffix("\n")
        files.append([line.removesuffix("\r") for line in text.split("\n")])
        if files[-1] == [""]:
            raise bad_data(f"{path} holds no line.", "Give a file with at least one.")
    if len({len(lines) for lines in files}) > 1:
        counts = ", ".join(f"{path} has {len(lines)}" for path, lines in zip(paths, files, strict=True))
        raise bad_data(
            f"the files are not aligned: they differ in their number of lines ({counts}).",
            "Give files of which line n of each belongs together.",
        )
    return [
        DataRow(f"line {number} of {named}", {"id": str(number), **dict(zip(columns, texts, strict=True))})
        for number, texts in enumerate(zip(*files, strict=True), start=1)
    ]


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with opened(path) as file:
            yield from file
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise bad_data(f"{path} is unreadable ({reason}).", "Check the file and its permissions.") from error


def parquet_rows(path: Path, row_group: int | None = None) -> Iterator[DataRow]:
    """Rows of a Parquet file, or of one of its row groups."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_file(path) as opened_file, pq.ParquetFile(opened_file) as file, little_memory():
            table = file.read() if row_group is None else file.read_row_group(row_group)
    except (pa.ArrowException, OSError) as error:
        reason = first_line(error)
        raise bad_data(
            f"{path} is not a readable Parquet file ({reason}).", "Fetch or write it again."
        ) from error
    for number, fields in enumerate(table.to_pylist(), start=1):
        yield row_of(f"row {number} of {path}", fields)


def _saved_rows(path: Path, split: str) -> Iterator[DataRow]:
    import datasets

    try:
        saved: Any = datasets.load_from_disk(str(path))
    except Exception as error:  # datasets raises what the broken part raised, of any type
        raise bad_data(
            f"{path} is not saved by datasets ({type(error).__name__}: {error}).", f"Give {_FORMS}."
        ) from error
    if isinstance(saved, datasets.DatasetDict):
        if split not in saved:
            raise bad_data(
                f"{path} has no split {split!r} (it has {', '.join(saved)}).", "Save that split too."
            )
        saved = saved[split]
    for number, fields in enumerate(saved, start=1):
        yield row_of(f"row {number} of {path}", fields)


@dataclass(frozen=True, slots=True)
class HubData:
    """The split asked for, some rows of the exemplars' split if they were wanted, and the commit of both."""

    repository: str
    revision: str
    rows: list[DataRow]
    train: list[DataRow]


_FLAG = "--data official"


def require_columns(hub: HubData, columns: Iterable[Sequence[str]]) -> None:
    """Refuse published rows without one of the columns, each given by all of its names."""
    for row in (*hub.rows[:1], *hub.train[:1]):
        for names in columns:
            if not _columns(row, names):
                wanted = " or ".join(names)
                raise UnavailableError(
                    f"{hub.repository} at {hub.revision} has no column {wanted} "
                    f"(its columns: {', '.join(row.fields)}).",
                    flag=_FLAG,
                    remedy="Its owners changed it: give the rows as a file with --data FILE, or name the "
                    "column in a task's YAML of your own under data.columns.",
                )


def fetch(sources: Sequence[HubSource], split: str, *, exemplars: str | None) -> HubData:
    """Data of the first source that has the split.

    Offline, the hub's cache (``HF_HOME``) serves. Of the split ``exemplars`` one file is fetched and one
    row group read: it only has to yield exemplars, and the whole would be hundreds of megabytes.

    Raises:
        UnavailableError: no source has it; the remedy is that of the first fault of the hub or the disk.
    """
    from spsbench.models.downloads import snapshot
    from spsbench.models.hf_errors import failure_of, leave_alone, offline_unless_reached

    tried: dict[str, list[str]] = {}
    remedies = []
    for source in sources:
        root = None
        try:
            with offline_unless_reached():
                root = snapshot(
                    source.repository, source.revision, _patterns(source, split, exemplars), _FLAG
                )
            return _read_snapshot(root, source, split, exemplars)
        except Exception as error:  # the client also raises whatever its HTTP library raised
            failed = error if isinstance(error, SpsbenchError) else failure_of(error)
            reason, remedy = (
                (failed.message.rstrip("."), failed.remedy or "") if failed else _why_not(error, tried)
            )
            if failed and root is None:
                leave_alone(reason)  # another source may be in its cache
            tried.setdefault(reason, []).append(f"{source.repository} at {source.revision}")
            if remedy:
                remedies.append(remedy)
    reasons = [f"{', '.join(names)}: {reason}" for reason, names in tried.items()]
    raise UnavailableError(
        f"the split {split} is unavailable from the hub ({'; '.join(reasons) or 'no source is named'}).",
        flag=_FLAG,
        remedy=f"{remedies[0]} Or give a local file with --data PATH, or use --data mini."
        if remedies
        else "Give a local file with --data PATH, point HF_HOME to a cache that holds the data, go online "
        "(with HF_TOKEN if access is gated), or use --data mini.",
    )


def _patterns(source: HubSource, split: str, exemplars: str | None) -> list[str]:
    names = [f"*{split}*{form}" for form in (".parquet", ".jsonl", ".jsonl.gz")]
    if exemplars is not None:
        names += [f"*{exemplars}{form}" for form in ("/0000.parquet", "-00000-of-*", ".jsonl*")]
    if source.config is not None:
        names = [f"{at}{source.config}/{name}" for at in ("", "*/") for name in names]
    return names


def _read_snapshot(root: Path, source: HubSource, split: str, exemplars: str | None) -> HubData:
    files = _files(root, source.config, split)
    if not files:
        raise UnavailableError(f"has no Parquet or JSON lines file of {split!r}.")
    rows = [row for path in files for row in read_rows(path, split)]
    train: list[DataRow] = []
    if exemplars is not None:
        for path in _files(root, source.config, exemplars)[:1]:
            train = list(parquet_rows(path, 0)) if path.suffix == ".parquet" else read_rows(path, exemplars)
    return HubData(source.repository, root.name, rows, train)


def _files(root: Path, config: str | None, split: str) -> list[Path]:
    """Data files of a split, by its name in the file's or a folder's name, in order."""
    named = re.compile(rf"{re.escape(split)}([-_.]|$)")
    found = []
    for path in (path for form in ("*.parquet", "*.jsonl", "*.jsonl.gz") for path in root.rglob(form)):
        *folders, name = path.relative_to(root).parts
        if (config is None or config in folders) and (split in folders or named.match(name)):
            found.append(path)
    return sorted(found)


def _why_not(error: Exception, tried: Container[str]) -> tuple[str, str]:
    """What a failure to find a dataset says of it after other reasons, and the remedy if there is one."""
    from huggingface_hub import errors

    from spsbench.models.hf_errors import why_offline
    from spsbench.models.messages import GATED

    if isinstance(error, errors.LocalEntryNotFoundError):
        why = why_offline()
        return "not on this machine" + (f" and {why}" if why not in tried else ""), ""
    if isinstance(error, errors.GatedRepoError):
        return "gated", GATED
    if isinstance(error, errors.RevisionNotFoundError):
        return "no such revision", ""
    if isinstance(error, errors.RepositoryNotFoundError):
        return "not found on the hub, or private", ""
    return first_line(error, kind=True), ""
