"""Records as rows of the journal and back.

Loops and traces are kept by column: half the bytes and a tenth of the time of one object per loop. Seconds
are rounded to the nanosecond, which is what the clock resolves.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from spsbench.records import Generation, Loop, Prompt, Sample, TracedToken
from spsbench.store import token_evidence
from spsbench.store.journal import Row

LOOP_COUNTS = ("drafted", "accepted", "emitted", "tested", "truncated")
LOOP_COLUMNS = tuple(field.name for field in dataclasses.fields(Loop))
TRACE_COLUMNS = tuple(field.name for field in dataclasses.fields(TracedToken))

_NAMES = ("example_id", "arm", "method", "engine", "sampling")
_COUNTS = ("sample_index", "k", "prompt_tokens", "order")
_SECONDS = ("prefill_s", "decode_s")
_MAPPINGS = ("scores", "conditions")
_DIGITS = 9


def encode_sample(sample: Sample) -> Row:
    """A sample as a row; everything in it is JSON."""
    generation = sample.generation
    row: Row = {name: getattr(sample, name) for name in (*_NAMES, *_COUNTS, *_MAPPINGS)}
    row["condition"] = sample.condition
    row["error"] = None if sample.error is None else _storable(sample.error)
    row |= {"finish_reason": generation.finish_reason, "text": _storable(generation.text)}
    row["losslessness"] = generation.losslessness
    row |= {name: round(float(getattr(generation, name)), _DIGITS) for name in _SECONDS}
    row["token_ids"] = generation.tokens
    row["loops"] = None if generation.loops is None else _columns(generation.loops, LOOP_COLUMNS)
    row["trace"] = None if generation.trace is None else _columns(generation.trace, TRACE_COLUMNS)
    row["token_evidence"] = token_evidence.pack(generation.token_evidence)
    return row


def decode_sample(row: Row) -> Sample:
    """The sample of a checked row."""
    loops, trace = row["loops"], row["trace"]
    generation = Generation(
        tokens=row["token_ids"],
        text=row["text"],
        loops=None if loops is None else [Loop(*values) for values in _records(loops, LOOP_COLUMNS)],
        prefill_s=row["prefill_s"],
        decode_s=row["decode_s"],
        finish_reason=row["finish_reason"],
        trace=None if trace is None else [TracedToken(*values) for values in _records(trace, TRACE_COLUMNS)],
        losslessness=row["losslessness"],
        token_evidence=token_evidence.unpack(row.get("token_evidence"), len(row["token_ids"])),
    )
    fields = {name: row[name] for name in (*_NAMES, *_COUNTS, *_MAPPINGS, "error")}
    return Sample(generation=generation, condition=row.get("condition", 0), **fields)


def check_sample(row: Row) -> None:
    """Raise ValueError, KeyError or TypeError for a row that is no sample."""
    _require(all(isinstance(row[name], str) for name in (*_NAMES, "finish_reason", "text")), "text")
    _require(all(type(row[name]) is int for name in _COUNTS), "count")
    _require(type(row.get("condition", 0)) is int, "condition")
    _require(all(isinstance(row[name], (int, float)) for name in _SECONDS), "seconds")
    _require(all(isinstance(row[name], dict) for name in _MAPPINGS), "mapping")
    _require(row["error"] is None or isinstance(row["error"], str), "error")
    _require(row["losslessness"] is None or _are_numbers(row["losslessness"]), "losslessness")
    _require(isinstance(row["token_ids"], list), "token_ids")
    _check_columns(row["loops"], LOOP_COLUMNS)
    _check_columns(row["trace"], TRACE_COLUMNS)
    token_evidence.unpack(row.get("token_evidence"), len(row["token_ids"]))


def _are_numbers(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return all(number is None or isinstance(number, (int, float)) for number in value.values())


def check_scores(row: Row) -> None:
    """Raise ValueError or KeyError for a row that gives no scores to a sample."""
    names = isinstance(row["example_id"], str) and isinstance(row["arm"], str)
    _require(names and type(row["sample_index"]) is int, "key")
    _require(isinstance(row["scores"], dict), "scores")


def encode_prompt(prompt: Prompt) -> Row:
    """A prompt as a line of ``prompts.jsonl``; ``chat`` is told only where it is true."""
    return {
        "example_id": prompt.example_id,
        "prompt": prompt.text,
        "prompt_ids": list(prompt.ids),
        "reference": prompt.reference,
        "truncated_tokens": prompt.truncated_tokens,
        **({"chat": True} if prompt.chat else {}),
    }


def decode_prompt(row: Row) -> Prompt:
    """The prompt of a line of ``prompts.jsonl``; KeyError or TypeError if it is none."""
    return Prompt(
        example_id=row["example_id"],
        text=row["prompt"],
        ids=tuple(row["prompt_ids"]),
        reference=row["reference"],
        truncated_tokens=row["truncated_tokens"],
        chat=row.get("chat", False),
    )


def _storable(text: str) -> str:
    """Text without lone surrogates, which neither UTF-8 nor Parquet can hold."""
    return text.encode("utf-8", "replace").decode()


def _columns(records: list[Any], names: tuple[str, ...]) -> dict[str, list[Any] | None]:
    """Records by column; a column without any value is None."""
    columns: dict[str, list[Any] | None] = {}
    for name in names:
        values = [getattr(record, name) for record in records]
        if name.endswith("_s"):
            values = [None if value is None else round(float(value), _DIGITS) for value in values]
        columns[name] = None if values and all(value is None for value in values) else values
    return columns


def _records(columns: dict[str, list[Any] | None], names: tuple[str, ...]) -> zip[tuple[Any, ...]]:
    count = len(next(values for values in columns.values() if values is not None))
    filled = ([None] * count if columns[name] is None else columns[name] or [] for name in names)
    return zip(*filled, strict=True)


def _check_columns(columns: Any, names: tuple[str, ...]) -> None:
    if columns is None:
        return
    values = [columns[name] for name in names]
    lengths = {len(column) for column in values if column is not None}
    _require(
        len(lengths) == 1 and all(column is None or isinstance(column, list) for column in values), "columns"
    )


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)
