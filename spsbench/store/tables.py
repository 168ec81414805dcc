"""The four tables of a run: one row per sample, per loop, per traced token and per emitted token.

Built by column with numpy, because a long run has ten million loops. Both ways to a frame, from the journal
and from Parquet, pass through the same Arrow tables and therefore agree to the dtype.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from spsbench.base import axes
from spsbench.base.environment import little_memory
from spsbench.base.errors import UsageError
from spsbench.base.files import ordinary, replacing
from spsbench.base.records import UNRANKED, TokenEvidence
from spsbench.store.checks import unsound_column
from spsbench.store.codec import (
    EVIDENCE_KINDS,
    FIELDS,
    LATER_LOOP_COLUMNS,
    LOOP_KINDS,
    TRACE_KINDS,
    unpack_evidence,
)
from spsbench.store.journal import Row

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

NAMES = ("samples", "loops", "tokens", "evidence")
_SAMPLE_ORDER = (
    "example_id",
    "sample_index",
    "arm",
    "order",
    "prompt_tokens",
    "new_tokens",
    "finish_reason",
    "prefill_s",
    "decode_s",
    "token_ids",
    "text",
    "scores",
    "losslessness",
    "error",
    "condition",
    "conditions",
    "category",
    "hypotheses",
    "latency_s",
    "wave",
)
_SAMPLE_KINDS = {"new_tokens": "int32", "timings": "map"} | {
    name: "string" if field.kind in ("text", "hypotheses") else field.kind
    for name, field in FIELDS.items()
    if name not in ("loops", "trace", "token_evidence")  # which have tables of their own
}
SAMPLE_COLUMNS = {name: _SAMPLE_KINDS[name] for name in dict.fromkeys((*_SAMPLE_ORDER, *_SAMPLE_KINDS))}
# What runs of the first versions lack; a sample without it was measured under the only conditions there were.
_LATER: dict[str, Any] = {"conditions": None, "timings": None} | {
    name: field.without for name, field in FIELDS.items() if field.later and name in SAMPLE_COLUMNS
}
_OF_CONVERSATIONS = ("conversation", "turn", "prompt_ids")
"""Columns that are there where a run asked later turns."""
_OPTIONAL = _LATER.keys() | LATER_LOOP_COLUMNS
_KEY = ("example_id", "sample_index", "arm")
_TIMED = ("attempt", "order", "prefill_s", "decode_s", "new_tokens", "condition", "conditions", "error")
_STAMP = b"spsbench_journal_blake2b"
_SEAL = b"spsbench_tables_blake2b"
"""Of ``arms.parquet``, which is written last: hashes of the other tables' files, as JSON."""


class JournalState(NamedTuple):
    """What the journals hold: a hash of their bytes, and how many there are."""

    stamp: str
    size_bytes: int


def state_of(journals: Sequence[Path]) -> JournalState:
    """Read the journals whole; a size would say nothing of a line that was changed in place."""
    known = [path for path in journals if path.exists()]
    digests = []
    for path in known:
        with open(path, "rb", opener=ordinary) as file:
            digests.append(f"{path.name} {_digest(file)}")
    return JournalState(", ".join(digests), sum(path.stat().st_size for path in known))


def _digest(file: BinaryIO) -> str:
    return hashlib.file_digest(file, partial(hashlib.blake2b, digest_size=32)).hexdigest()  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Frames:
    """The tables of a run as pandas frames, with the columns of the run directory's contract.

    Attributes:
        arms: one row per arm: its place on every axis (``spsbench.base.axes``), by the name that the other
            tables have in ``arm``.
        samples: one row per sequence in order of measurement, failed ones included (``error`` is then not
            null). ``order`` is the place among the arms of the same prompt and sample. ``token_ids`` holds
            lists, ``scores`` and ``losslessness`` dictionaries (``losslessness`` None if not kept).
            ``hypotheses`` is what a beam search finished, as JSON (``Hypothesis``), best first.
            ``latency_s`` and ``wave`` are of batches, see ``Generation`` and ``Sample``, as for ``unread``.
            ``timings`` are the decoding seconds by attempt of a sequence that was timed several times,
            ``decode_s`` their mean; ``attempt`` the first of those that count.
        loops: one row per loop, in order within each sample; NaN where an engine cannot see a phase, and in
            ``comm_s`` where the target was not split over processes. Where later turns were asked
            ``conversation`` names the first, null of the first itself.
        evidence: one row per emitted token that was read again, see ``TokenEvidence``; NaN where a row is
            not known. ``position`` counts in the output.
    """

    arms: pd.DataFrame
    samples: pd.DataFrame
    loops: pd.DataFrame
    tokens: pd.DataFrame
    evidence: pd.DataFrame


def build_tables(rows: Iterable[Row]) -> dict[str, Any]:
    """Return the Arrow tables by name, from checked rows that are consumed one at a time."""
    import pyarrow as pa

    samples: dict[str, list[Any]] = {name: [] for name in SAMPLE_COLUMNS}
    loops = _Blocks(LOOP_KINDS)
    tokens = _Blocks(TRACE_KINDS)
    evidence = _Blocks(EVIDENCE_KINDS)
    for row in rows:
        for name, values in samples.items():
            values.append(_cell(row, name))
        index = len(samples["example_id"]) - 1
        try:
            loops.add(index, row["loops"])
            tokens.add(index, row["trace"])
            if (read := unpack_evidence(row.get("token_evidence"), len(ids := row["token_ids"]))) is not None:
                known = {name: getattr(read, name) for name in TokenEvidence.__slots__}
                evidence.add(index, {"position": range(len(ids)), "token_id": ids} | known)
        except (ValueError, TypeError, OverflowError) as problem:
            key = row["example_id"], row["sample_index"], row["arm"]
            raise UsageError(f"the journal's sample {key} is damaged ({problem}).", flag="RUN") from problem
    arrays = {}
    for name, kind in SAMPLE_COLUMNS.items():
        column: Iterable[Any] = samples[name]
        if kind == "map":
            column = (None if cell is None else [*cell.items()] for cell in samples[name])
        try:
            arrays[name] = pa.array(column, type=_arrow_type(kind))
        except (ValueError, TypeError, OverflowError) as problem:
            raise UsageError(f"a sample in the journal is damaged ({problem}).", flag="RUN") from problem
    if all(name is None for name in samples["conversation"]):
        arrays = {name: column for name, column in arrays.items() if name not in _OF_CONVERSATIONS}
    table = pa.table(arrays)
    return {
        "samples": table,
        "loops": loops.table(table, numbered=True),
        "tokens": tokens.table(table),
        "evidence": _with_unknown_ranks(evidence.table(table)),
    }


def _with_unknown_ranks(table: Any) -> Any:
    """Null in place of ``UNRANKED``, so that nobody counts with it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ranks = table["draft_rank"]
    known = pc.if_else(pc.equal(ranks, UNRANKED), pa.scalar(None, ranks.type), ranks)
    return table.set_column(table.schema.get_field_index("draft_rank"), "draft_rank", known)


def _cell(row: Row, name: str) -> Any:
    if name == "new_tokens":
        return len(row["token_ids"])
    if name == "hypotheses" and row.get(name) is not None:
        return json.dumps(row[name])
    return row.get(name, _LATER[name]) if name in _LATER else row[name]


def write_tables(directory: Path, tables: dict[str, Any], arms: Sequence[Row], state: JournalState) -> None:
    """Write the tables as Parquet, each atomically; ``state`` is that of the journal they show.

    ``arms.parquet`` is for other readers, since here ``run.json`` says what the arms are; and it seals the
    others.
    """
    import pyarrow.parquet as pq

    digests: dict[str, str] = {}
    tables = {**tables, "arms": arms_table(arms)}
    for name in (*NAMES, "arms"):
        metadata = {_STAMP: state.stamp} | ({_SEAL: json.dumps(digests)} if name == "arms" else {})
        path = directory / f"{name}.parquet"
        # Open files, since pyarrow takes no path that is not UTF-8.
        with replacing(path) as file:
            pq.write_table(
                tables[name].replace_schema_metadata(metadata),
                file,
                compression="zstd",
                write_page_checksum=True,
            )
        with open(path, "rb", opener=ordinary) as file:
            digests[name] = _digest(file)


def write_timings(directory: Path, rows: Iterable[tuple[Row, bool]]) -> None:
    """Write ``timings.parquet``: each journal line's times, and whether it counts."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {name: SAMPLE_COLUMNS[name] for name in (*_KEY, *_TIMED)}
    columns: dict[str, list[Any]] = {name: [] for name in (*kinds, "counts")}
    for row, counts in rows:
        for name in kinds:
            value: Any = (row.get("attempt") or 1) if name == "attempt" else _cell(row, name)
            columns[name].append([*value.items()] if kinds[name] == "map" and value is not None else value)
        columns["counts"].append(counts)
    types = {name: _arrow_type(kind) for name, kind in kinds.items()} | {"counts": pa.bool_()}
    table = pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
    with replacing(directory / "timings.parquet") as file:
        pq.write_table(table, file, compression="zstd", write_page_checksum=True)


def read_tables(directory: Path, state: JournalState | None) -> dict[str, Any] | None:
    """Return the tables from Parquet; None if one is missing, damaged, or not what was made of the journal.

    Args:
        state: of the journal; None if there is none, where the tables are all that is left of a run.

    Raises:
        UsageError: there is no journal, and a table is damaged or missing, or holds a number that no line of
            one may hold.
    """
    import pyarrow as pa

    paths = {name: directory / f"{name}.parquet" for name in NAMES}
    is_last = state is None and any(path.exists() for path in paths.values())
    seal = None if state is None else _seal(directory, state.stamp)
    optional = _OPTIONAL if state is None else set(_OF_CONVERSATIONS)
    # Each row is at least a byte of the journal.
    most_rows = math.inf if state is None else state.size_bytes
    tables: dict[str, Any] = {}
    for name, path in paths.items():
        if name == "evidence" and state is None and not path.exists():
            continue  # there is no journal to read, and the other tables hold without it
        try:
            with open(path, "rb", opener=ordinary) as file:
                if seal is not None and _digest(file) != seal.get(name):
                    return None
                tables[name] = _whole(name, _table_of_file(file, most_rows), optional)
        except (OSError, ValueError, pa.ArrowException) as problem:
            if not is_last:
                return None
            # A damaged name of Arrow's cannot even be printed.
            why = f" ({problem})" if isinstance(problem, _DamagedTable) else ""
            why = f"damaged{why}" if path.exists() else "missing, as is samples.jsonl"
            remedy = "Restore the file, or samples.jsonl beside it."
            raise UsageError(f"{path} is {why}.", flag="RUN", remedy=remedy) from None
    return tables


class _DamagedTable(ValueError):
    """What is wrong with a table, in words."""


def _whole(name: str, table: Any, optional: AbstractSet[str]) -> Any:
    if table is None or not _is_whole(name, table, optional):
        raise _DamagedTable("it lacks a column, or has one of another type")
    if (column := unsound_column(name, table)) is not None:
        raise _DamagedTable(f"its column {column} holds what is no such number")
    return table


def _table_of_file(file: BinaryIO, most_rows: float) -> Any:
    """None if it has more rows."""
    import pyarrow.parquet as pq

    file.seek(0)
    parquet = pq.ParquetFile(file, page_checksum_verification=True)
    if parquet.metadata.num_rows > most_rows:
        return None
    with little_memory():
        table = parquet.read()
    table.validate(full=True)
    return table


def _seal(directory: Path, stamp: str) -> dict[str, str]:
    """Hashes of the tables' files if they were made of the journal's present state, else {}."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open(directory / "arms.parquet", "rb", opener=ordinary) as file:
            metadata = pq.ParquetFile(file).schema_arrow.metadata or {}
        seal = json.loads(metadata.get(_SEAL, b"{}"))
    except (OSError, ValueError, RecursionError, pa.ArrowException):
        return {}
    return seal if metadata.get(_STAMP) == stamp.encode() and isinstance(seal, dict) else {}


def _is_whole(name: str, table: Any, optional: AbstractSet[str]) -> bool:
    """Whether every column is there and of its type: the footer that names them has no checksum."""
    kinds = {field.name: field.type for field in table.schema}
    wanted = _columns_of_table(name)
    return wanted.keys() - optional <= kinds.keys() and all(
        kinds[column] == _arrow_type(kind) for column, kind in wanted.items() if column in kinds
    )


def _columns_of_table(name: str) -> dict[str, str]:
    """Those that it always has, and their kinds."""
    if name == "samples":
        return SAMPLE_COLUMNS
    own = {"loops": {"loop": "int32"} | LOOP_KINDS, "tokens": TRACE_KINDS, "evidence": EVIDENCE_KINDS}
    return {column: SAMPLE_COLUMNS[column] for column in _KEY} | own[name]


def arms_table(arms: Sequence[Row]) -> Any:
    import pyarrow as pa

    rows = [dict(axes.identity(arm)) for arm in arms]
    kinds = {name: pa.int32() if name in ("batch", "k") else pa.string() for name in ("arm", *axes.AXES)}
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})


def to_frames(tables: dict[str, Any], arms: Sequence[Row]) -> Frames:
    import pandas as pd
    import pyarrow as pa

    samples = tables["samples"].to_pandas(maps_as_pydicts="strict")
    lists = [[] if ids is None else ids.tolist() for ids in samples["token_ids"]]
    samples["token_ids"] = pd.Series(lists, index=samples.index, dtype=object)
    for name in _LATER.keys() - {*samples.columns, *_OF_CONVERSATIONS}:
        samples[name] = _LATER[name]
    for name in (name for name, kind in SAMPLE_COLUMNS.items() if kind == "map"):
        samples[name] = pd.Series([*samples[name]], index=samples.index, dtype=object)
    none = pa.schema([(column, _arrow_type(kind)) for column, kind in _columns_of_table("evidence").items()])
    evidence = tables.get("evidence") or none.empty_table()
    loops = tables["loops"].to_pandas()
    tokens = tables["tokens"].to_pandas()
    for name in LATER_LOOP_COLUMNS - set(loops.columns):
        loops[name] = float("nan")
    if "conversation" in samples:
        loops["conversation"] = loops["example_id"].map(
            dict(zip(samples["example_id"], samples["conversation"], strict=True))
        )
    return Frames(arms_table(arms).to_pandas(), samples, loops, tokens, evidence.to_pandas())


class _Blocks:
    """Columns that grow by one block of values per sample."""

    def __init__(self, kinds: dict[str, str]) -> None:
        self._kinds = kinds
        self._blocks: dict[str, list[np.ndarray[Any, Any]]] = {name: [] for name in kinds}
        self._lengths: list[int] = []
        self._owners: list[int] = []

    def add(self, owner: int, columns: dict[str, list[Any] | None] | None) -> None:
        """Append the fields of the sample with index ``owner``; None adds nothing."""
        import numpy as np

        if columns is None:
            return
        length = len(next(values for values in columns.values() if values is not None))
        for name, kind in self._kinds.items():
            values = columns.get(name)
            dtype = object if kind == "string" else kind
            block = np.full(length, np.nan) if values is None else np.asarray(values, dtype=dtype)
            self._blocks[name].append(block)
        self._lengths.append(length)
        self._owners.append(owner)

    def table(self, samples: Any, *, numbered: bool = False) -> Any:
        """Return all blocks as an Arrow table, each row with its sample's key.

        With ``numbered`` a row also has its number within the sample.
        """
        import numpy as np
        import pyarrow as pa

        lengths = np.asarray(self._lengths, dtype=np.int64)
        owners = pa.array(np.repeat(np.asarray(self._owners, dtype=np.int64), lengths))
        arrays = {name: samples[name].take(owners) for name in _KEY}
        if numbered:
            starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
            arrays["loop"] = pa.array((np.arange(len(owners)) - starts).astype(np.int32))
        for name, kind in self._kinds.items():
            dtype = object if kind == "string" else kind
            whole = np.concatenate([np.empty(0, dtype), *self._blocks[name]])
            arrays[name] = pa.array(whole, type=_arrow_type(kind), from_pandas=True)
        return pa.table(arrays)


def _arrow_type(kind: str) -> Any:
    import pyarrow as pa

    kinds = {"list": pa.list_(pa.int32()), "map": pa.map_(pa.string(), pa.float64())}
    return kinds.get(kind) or pa.type_for_alias(kind)
