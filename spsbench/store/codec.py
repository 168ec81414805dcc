"""Rows of the journal, its token evidence and prompts, to and from JSON.

Evidence stands in the line and not in its own journal: then one write makes a sequence and its
evidence durable, and neither can be there without the other. A line has about a hundred bytes a token;
packed evidence adds 8 under a narrow nucleus and 23 at temperature 1 (embedded pair), about 27 where
nothing repeats.

Loops and traces are kept by column: half the bytes and a tenth of the time of one object per loop. Seconds
are rounded to the nanosecond, which is what the clock resolves.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import zlib
from array import array
from base64 import b64decode, b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spsbench.errors import UsageError
from spsbench.files import ordinary, write_text
from spsbench.records import (
    UNRANKED,
    Generation,
    Hypothesis,
    Loop,
    Prompt,
    Sample,
    TokenEvidence,
    TracedToken,
)
from spsbench.store.journal import Row

EVIDENCE_COLUMNS = tuple(field.name for field in dataclasses.fields(TokenEvidence))
EVIDENCE_KINDS = {
    "position": "int32",
    "token_id": "int32",
    **{name: "int32" if name == "draft_rank" else "float32" for name in EVIDENCE_COLUMNS},
}
_WIDTH_BYTES = 4


def pack_evidence(evidence: TokenEvidence | None) -> str | None:
    """The columns one after another, four bytes a value in little-endian order, by zlib and base64."""
    if evidence is None:
        return None
    values = b"".join(_little(getattr(evidence, name)).tobytes() for name in EVIDENCE_COLUMNS)
    return b64encode(zlib.compress(values)).decode()


def unpack_evidence(packed: str | None, tokens: int) -> TokenEvidence | None:
    """What ``pack`` made of so many tokens; ValueError if it is damaged or of another number."""
    if packed is None:
        return None
    due = tokens * _WIDTH_BYTES * len(EVIDENCE_COLUMNS)
    values = _inflated(packed, due)
    if len(values) != due:
        raise ValueError(f"token_evidence is not of {tokens} tokens")
    width = tokens * _WIDTH_BYTES
    starts = ((i * width, name) for i, name in enumerate(EVIDENCE_COLUMNS))
    return TokenEvidence(**{name: _array(name, values[start : start + width]) for start, name in starts})


def evidence_columns(packed: str | None, token_ids: list[int]) -> dict[str, Any] | None:
    """The rows of a sequence by column; None if there is no evidence."""
    evidence = unpack_evidence(packed, len(token_ids))
    if evidence is None:
        return None
    told = {name: getattr(evidence, name) for name in EVIDENCE_COLUMNS}
    return {"position": range(len(token_ids)), "token_id": token_ids} | told


def with_unknown_ranks(table: Any) -> Any:
    """The Arrow table with null in place of ``UNRANKED``, so that nobody counts with it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ranks = table["draft_rank"]
    known = pc.if_else(pc.equal(ranks, UNRANKED), pa.scalar(None, ranks.type), ranks)
    return table.set_column(table.schema.get_field_index("draft_rank"), "draft_rank", known)


def _inflated(packed: str, due: int) -> bytes:
    """Never more than a byte above what is due: a damaged line must not fill the memory."""
    inflater = zlib.decompressobj()
    try:
        values = inflater.decompress(b64decode(packed, validate=True), due + 1)
    except zlib.error as problem:
        raise ValueError(f"token_evidence ({problem})") from problem
    if not inflater.eof and len(values) <= due:
        raise ValueError("token_evidence is cut short")
    return values


def _array(name: str, values: bytes) -> array[Any]:
    found: array[Any] = array("i" if EVIDENCE_KINDS[name] == "int32" else "f")
    found.frombytes(values)
    return _little(found)


def _little(values: array[Any]) -> array[Any]:
    """The array itself, or where the machine is big-endian a copy with its bytes swapped."""
    if sys.byteorder == "little":
        return values
    swapped = values[:]
    swapped.byteswap()
    return swapped


LOOP_COUNTS = ("drafted", "accepted", "emitted", "tested", "truncated")
LOOP_COLUMNS = tuple(field.name for field in dataclasses.fields(Loop))
LATER_LOOP_COLUMNS = frozenset({"comm_s"})
"""What only loops of a split target have; a line of the journal without any of it does not name it."""

TRACE_COLUMNS = tuple(field.name for field in dataclasses.fields(TracedToken))

_NAMES = ("example_id", "arm")
_CATEGORY = "category"
HYPOTHESES = "hypotheses"
LATENCY, WAVE = "latency_s", "wave"
_COUNTS = ("sample_index", "prompt_tokens", "order")
_SECONDS = ("prefill_s", "decode_s")
_MAPPINGS = ("scores", "conditions")
_DIGITS = 9


def encode_sample(sample: Sample) -> Row:
    """A sample as a row; everything in it is JSON."""
    generation = sample.generation
    row: Row = {name: getattr(sample, name) for name in (*_NAMES, *_COUNTS, *_MAPPINGS)}
    row["condition"] = sample.condition
    row |= {} if sample.category is None else {_CATEGORY: _storable(sample.category)}
    row |= {} if sample.wave is None else {WAVE: sample.wave}
    row["error"] = None if sample.error is None else _storable(sample.error)
    row |= {"finish_reason": generation.finish_reason, "text": _storable(generation.text)}
    row["losslessness"] = generation.losslessness
    row |= {name: round(float(getattr(generation, name)), _DIGITS) for name in _SECONDS}
    row["token_ids"] = generation.tokens
    row["loops"] = None if generation.loops is None else _columns(generation.loops, LOOP_COLUMNS)
    row["trace"] = None if generation.trace is None else _columns(generation.trace, TRACE_COLUMNS)
    row["token_evidence"] = pack_evidence(generation.token_evidence)
    if generation.latency_s is not None:
        row[LATENCY] = round(generation.latency_s, _DIGITS)
    if generation.hypotheses is not None:
        row[HYPOTHESES] = [dataclasses.asdict(found) for found in generation.hypotheses]
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
        token_evidence=unpack_evidence(row.get("token_evidence"), len(row["token_ids"])),
        hypotheses=_hypotheses(row.get(HYPOTHESES)),
        latency_s=row.get(LATENCY),
    )
    fields = {name: row[name] for name in (*_NAMES, *_COUNTS, *_MAPPINGS, "error")}
    later = {"condition": row.get("condition", 0), _CATEGORY: row.get(_CATEGORY), WAVE: row.get(WAVE)}
    return Sample(generation=generation, **later, **fields)


def check_sample(row: Row) -> None:
    """Raise ValueError, KeyError or TypeError for a row that is not a sample."""
    _require(all(isinstance(row[name], str) for name in (*_NAMES, "finish_reason", "text")), "text")
    _require(all(type(row[name]) is int for name in _COUNTS), "count")
    _require(type(row.get("condition", 0)) is int, "condition")
    _require(all(isinstance(row[name], (int, float)) for name in _SECONDS), "seconds")
    _require(all(isinstance(row[name], dict) for name in _MAPPINGS), "mapping")
    _require(row["error"] is None or isinstance(row["error"], str), "error")
    _require(isinstance(row.get(_CATEGORY), (str, type(None))), _CATEGORY)
    _require(isinstance(row.get(WAVE), (str, type(None))), WAVE)
    _require(isinstance(row.get(LATENCY), (int, float, type(None))), LATENCY)
    _require(row["losslessness"] is None or _are_numbers(row["losslessness"]), "losslessness")
    _require(isinstance(row["token_ids"], list), "token_ids")
    _check_columns(row["loops"], LOOP_COLUMNS)
    _check_columns(row["trace"], TRACE_COLUMNS)
    unpack_evidence(row.get("token_evidence"), len(row["token_ids"]))
    _hypotheses(row.get(HYPOTHESES))


def _hypotheses(rows: list[Row] | None) -> list[Hypothesis] | None:
    """What a beam search finished; KeyError or TypeError if a row is not a hypothesis."""
    if rows is None:
        return None
    return [
        Hypothesis(tuple(row["tokens"]), float(row["score"]), float(row["log_prob"]), row["reason"])
        for row in rows
    ]


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
    """A prompt as a line of ``prompts.jsonl``; what came later only where it is not usual."""
    return {
        "example_id": prompt.example_id,
        "prompt": prompt.text,
        "prompt_ids": list(prompt.ids),
        "reference": prompt.reference,
        "truncated_tokens": prompt.truncated_tokens,
        **({"chat": True} if prompt.chat else {}),
        **({} if prompt.category is None else {_CATEGORY: prompt.category}),
        **({"other_references": list(prompt.other_references)} if prompt.other_references else {}),
        **({"begun": True} if prompt.begun else {}),
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
        category=row.get(_CATEGORY),
        other_references=tuple(row.get("other_references", ())),
        begun=row.get("begun", False),
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
        empty = all(value is None for value in values)
        if not (empty and name in LATER_LOOP_COLUMNS):
            columns[name] = None if values and empty else values
    return columns


def _records(columns: dict[str, list[Any] | None], names: tuple[str, ...]) -> zip[tuple[Any, ...]]:
    count = len(next(values for values in columns.values() if values is not None))
    filled = ([None] * count if columns.get(name) is None else columns[name] or [] for name in names)
    return zip(*filled, strict=True)


def _check_columns(columns: Any, names: tuple[str, ...]) -> None:
    if columns is None:
        return
    values = [columns.get(name) if name in LATER_LOOP_COLUMNS else columns[name] for name in names]
    lengths = {len(column) for column in values if column is not None}
    _require(
        len(lengths) == 1 and all(column is None or isinstance(column, list) for column in values), "columns"
    )


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


def write_prompts(path: Path, prompts: Sequence[Prompt]) -> None:
    """Write all prompts, one line each, atomically."""
    write_text(path, "".join(json.dumps(encode_prompt(prompt)) + "\n" for prompt in prompts))


def read_prompts(path: Path) -> list[Prompt]:
    """All prompts in the file."""
    try:
        with open(path, "rb", opener=ordinary) as file:
            return [decode_prompt(json.loads(line)) for line in file]
    except OSError as problem:
        raise UsageError(
            f"{path} cannot be read ({problem.strerror}).", flag="RUN", remedy="Restore the file."
        ) from problem
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise UsageError(
            f"{path} is damaged ({problem}).",
            flag="RUN",
            remedy="Restore the file, or remove it and resume the run, which writes it again.",
        ) from problem


def merge_prompts(path: Path, old: Sequence[Prompt], new: Sequence[Prompt]) -> list[Prompt]:
    """The prompts of a run that goes on, perhaps with other limits: the old ones, then what is added."""
    known = {prompt.example_id: prompt for prompt in old}
    for prompt in new:
        before = known.setdefault(prompt.example_id, prompt)
        if before != prompt:
            raise UsageError(
                f"example {prompt.example_id!r} has another prompt or reference than in {path}.",
                flag="--out",
                remedy="The data has changed: name another directory.",
            )
    return list(known.values())
