"""The four tables of a run: one row per sample, per loop, per traced token and per emitted token.

Built by column with numpy, because a long run has ten million loops. Both ways to a frame, from the journal
and from Parquet, pass through the same Arrow tables and therefore agree to the dtype.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base import axes
from spsbench.base.environment import little_memory
from spsbench.base.errors import SpsbenchError
from spsbench.base.files import ordinary, replacing
from spsbench.base.records import UNRANKED, TokenEvidence
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
# What samples of the first schema repeat of their arm.
_EARLIER = ["method", "engine", "sampling", "k"]
_KEY = ("example_id", "sample_index", "arm")
_TIMED = ("attempt", "order", "prefill_s", "decode_s", "new_tokens", "condition", "conditions", "error")
_STAMP = b"spsbench_journal_bytes"


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
            raise SpsbenchError(f"the journal's sample {key} is damaged ({problem}).") from problem
    arrays = {}
    for name, kind in SAMPLE_COLUMNS.items():
        column: Iterable[Any] = samples[name]
        if kind == "map":
            column = (None if cell is None else [*cell.items()] for cell in samples[name])
        try:
            arrays[name] = pa.array(column, type=_arrow_type(kind))
        except (ValueError, TypeError, OverflowError) as problem:
            raise SpsbenchError(f"a sample in the journal is damaged ({problem}).") from problem
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
    """Return the Arrow table with null in place of ``UNRANKED``, so that nobody counts with it."""
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


def write_tables(directory: Path, tables: dict[str, Any], arms: Sequence[Row], stamp: str) -> None:
    """Write the tables as Parquet, each atomically; ``stamp`` is the state of the journal they show.

    ``arms.parquet`` is for other readers: here ``run.json`` says what the arms are.
    """
    import pyarrow.parquet as pq

    tables = {"arms": arms_table(arms), **tables}
    for name in ("arms", *NAMES):
        # Open files, since pyarrow takes no path that is not UTF-8.
        with replacing(directory / f"{name}.parquet") as file:
            pq.write_table(
                tables[name].replace_schema_metadata({_STAMP: stamp}),
                file,
                compression="zstd",
                write_page_checksum=True,
            )


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


def read_tables(directory: Path, stamp: str | None) -> dict[str, Any] | None:
    """Return the tables from Parquet; None if one is missing, damaged or of another state than ``stamp``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables: dict[str, Any] = {}
    for name in NAMES:
        if name == "evidence" and stamp is None and not (directory / "evidence.parquet").exists():
            continue  # of an earlier version, and no journal to read
        try:
            with open(directory / f"{name}.parquet", "rb", opener=ordinary) as file:
                parquet = pq.ParquetFile(file, page_checksum_verification=True)
                if stamp is not None and parquet.metadata.num_rows > sum(map(int, stamp.split("+"))):
                    return None  # each row is at least a byte of the journal
                with little_memory():
                    table = parquet.read()
            table.validate(full=True)
        except (OSError, ValueError, pa.ArrowException):  # a damaged name cannot even be printed in an error
            return None
        if stamp is not None and (table.schema.metadata or {}).get(_STAMP) != stamp.encode():
            return None
        if not _is_whole(name, table, optional=set(_OF_CONVERSATIONS) if stamp is not None else _OPTIONAL):
            return None
        tables[name] = table
    return tables


def _is_whole(name: str, table: Any, optional: AbstractSet[str]) -> bool:
    """Whether every column is there and of its type: the footer that names them has no checksum."""
    kinds = {field.name: field.type for field in table.schema}
    wanted = _columns(name)
    return wanted.keys() - optional <= kinds.keys() and all(
        kinds[column] == _arrow_type(kind) for column, kind in wanted.items() if column in kinds
    )


def _columns(name: str) -> dict[str, str]:
    """Return the columns that a table always has, and their kinds."""
    if name == "samples":
        return SAMPLE_COLUMNS
    own = {"loops": {"loop": "int32"} | LOOP_KINDS, "tokens": TRACE_KINDS, "evidence": EVIDENCE_KINDS}
    return {column: SAMPLE_COLUMNS[column] for column in _KEY} | own[name]


def arms_table(arms: Sequence[Row]) -> Any:
    """Return ``run.json``'s arms as an Arrow table; the first schema's lack axes, see ``axes.axes``."""
    import pyarrow as pa

    rows = [dict(axes.identity(arm)) for arm in arms]
    kinds = {name: pa.int32() if name in ("batch", "k") else pa.string() for name in ("arm", *axes.AXES)}
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})


def to_frames(tables: dict[str, Any], arms: Sequence[Row]) -> Frames:
    """Return the tables as pandas frames, with the arms' axes."""
    import pandas as pd
    import pyarrow as pa

    samples = tables["samples"].to_pandas(maps_as_pydicts="strict").drop(columns=_EARLIER, errors="ignore")
    lists = [[] if ids is None else ids.tolist() for ids in samples["token_ids"]]
    samples["token_ids"] = pd.Series(lists, index=samples.index, dtype=object)
    for name in _LATER.keys() - {*samples.columns, *_OF_CONVERSATIONS}:
        samples[name] = _LATER[name]
    for name in (name for name, kind in SAMPLE_COLUMNS.items() if kind == "map"):
        samples[name] = pd.Series([*samples[name]], index=samples.index, dtype=object)
    none = pa.schema([(column, _arrow_type(kind)) for column, kind in _columns("evidence").items()])
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
