"""Rows of the journal, its token evidence and prompts, to and from JSON.

Evidence stands in the line and not in its own journal: then one write makes a sequence and its
evidence durable, and neither can be there without the other. A line has about a hundred bytes a token;
packed evidence adds 8 under a narrow nucleus and 23 at temperature 1 (embedded pair), about 27 where
nothing repeats.

Loops and traces are kept by column: half the bytes and a tenth of the time of one object per loop. Seconds
are rounded to the nanosecond, which is what the clock resolves.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from spsbench.base.errors import UsageError
from spsbench.base.files import ordinary, write_text
from spsbench.base.records import Generation, Hypothesis, Loop, Prompt, Sample, TokenEvidence, TracedToken
from spsbench.store.journal import Row
from spsbench.store.shape import fault_of


class Field(NamedTuple):
    """How a field of a ``Sample`` (or of its ``Generation``) stands in a line of the journal and in a table.

    Attributes:
        kind: what JSON holds, and the type of the table's column; see ``checks`` and ``tables``.
        null: it may be None.
        later: lines of the first versions lack it, which means ``without``.
        sparse: a line without a value leaves it out.
    """

    kind: str
    null: bool = False
    later: bool = False
    without: Any = None
    sparse: bool = False

    def of(self, row: Row, name: str) -> Any:
        return row.get(name, self.without) if self.later else row[name]


OF_SAMPLE = {
    "example_id": Field("string"),
    "arm": Field("string"),
    "sample_index": Field("int32"),
    "prompt_tokens": Field("int32"),
    "order": Field("int32"),
    "scores": Field("map"),
    "conditions": Field("map"),
    "condition": Field("int32", later=True, without=0),
    "category": Field("text", null=True, later=True, sparse=True),
    "wave": Field("string", null=True, later=True, sparse=True),
    "unread": Field("text", null=True, later=True, sparse=True),
    "attempt": Field("int32", null=True, later=True, sparse=True),
    "conversation": Field("string", null=True, later=True, sparse=True),
    "turn": Field("int32", null=True, later=True, sparse=True),
    "prompt_ids": Field("list", null=True, later=True, sparse=True),
    "error": Field("text", null=True),
}
OF_GENERATION = {
    "finish_reason": Field("string"),
    "text": Field("text"),
    "losslessness": Field("map", null=True),
    "prefill_s": Field("float64"),
    "decode_s": Field("float64"),
    "token_ids": Field("list"),
    "loops": Field("loops", null=True),
    "trace": Field("trace", null=True),
    "token_evidence": Field("evidence", null=True, later=True),
    "latency_s": Field("float64", null=True, later=True, sparse=True),
    "hypotheses": Field("hypotheses", null=True, later=True, sparse=True),
}
FIELDS = OF_SAMPLE | OF_GENERATION
"""In the order of a line."""

_KNOWN_KINDS = {
    **dict.fromkeys(("int", "array[int]"), "int32"),
    **dict.fromkeys(("Fate", "str | None"), "string"),
    "array[float]": "float32",
}


def _kinds(record: type) -> dict[str, str]:
    return {field.name: _KNOWN_KINDS.get(str(field.type), "float64") for field in fields(record)}


LOOP_KINDS = _kinds(Loop)
TRACE_KINDS = _kinds(TracedToken)
_EVIDENCE = _kinds(TokenEvidence)
EVIDENCE_KINDS = {"position": "int32", "token_id": "int32", **_EVIDENCE}
LATER_LOOP_COLUMNS = frozenset(field.name for field in fields(Loop) if field.default is not MISSING)
"""What only some loops have, e.g. of a split target; a line of the journal without any leaves it out."""

_DIGITS = 9
_WIDTH_BYTES = 4


def pack_evidence(evidence: TokenEvidence | None) -> str | None:
    """Pack the columns one after another, four little-endian bytes a value, by zlib and base64."""
    if evidence is None:
        return None
    values = b"".join(_little_endian(getattr(evidence, name)).tobytes() for name in _EVIDENCE)
    return b64encode(zlib.compress(values)).decode()


def unpack_evidence(packed: str | None, tokens: int) -> TokenEvidence | None:
    """Return what ``pack_evidence`` packed for so many tokens; ValueError if damaged or of another number."""
    if packed is None:
        return None
    width = tokens * _WIDTH_BYTES
    values = _inflate(packed, width * len(_EVIDENCE))
    if len(values) != width * len(_EVIDENCE):
        raise ValueError(f"token_evidence is not of {tokens} tokens")
    columns: dict[str, array[Any]] = {}
    for place, (name, kind) in enumerate(_EVIDENCE.items()):
        columns[name] = array("i" if kind == "int32" else "f")
        columns[name].frombytes(values[place * width : (place + 1) * width])
    return TokenEvidence(**{name: _little_endian(column) for name, column in columns.items()})


def _inflate(packed: str, due: int) -> bytes:
    """Inflate at most one byte more than is due: a damaged line must not fill the memory."""
    inflater = zlib.decompressobj()
    try:
        values = inflater.decompress(b64decode(packed, validate=True), due + 1)
    except (ValueError, zlib.error) as problem:
        raise ValueError(f"token_evidence ({problem})") from problem
    if not inflater.eof and len(values) <= due:
        raise ValueError("token_evidence is cut short")
    return values


def _little_endian(values: array[Any]) -> array[Any]:
    """The array itself, or on a big-endian machine a copy with its bytes swapped."""
    if sys.byteorder == "little":
        return values
    swapped = values[:]
    swapped.byteswap()
    return swapped


def encode_sample(sample: Sample) -> Row:
    """Return a sample as a row; everything in it is JSON."""
    row: Row = {}
    for name, field in FIELDS.items():
        owner = sample if name in OF_SAMPLE else sample.generation
        value = getattr(owner, "tokens" if name == "token_ids" else name)
        if value is not None and field.kind in _ENCODED:
            value = _ENCODED[field.kind](value)
        if not (value is None and field.sparse):
            row[name] = value
    return row


def decode_sample(row: Row) -> Sample:
    values = {name: field.of(row, name) for name, field in FIELDS.items()}
    for name, field in FIELDS.items():
        if values[name] is not None and field.kind in _DECODED:
            values[name] = _DECODED[field.kind](values[name])
    of_generation = {name: values.pop(name) for name in OF_GENERATION}
    tokens = of_generation.pop("token_ids")
    of_generation["token_evidence"] = unpack_evidence(of_generation["token_evidence"], len(tokens))
    return Sample(generation=Generation(tokens, **of_generation), **values)


def _hypotheses(rows: list[Row]) -> list[Hypothesis]:
    return [
        Hypothesis(tuple(row["tokens"]), float(row["score"]), float(row["log_prob"]), row["reason"])
        for row in rows
    ]


def _by_column(records: list[Any], names: Mapping[str, str]) -> dict[str, list[Any] | None]:
    """A column without any value is None."""
    columns: dict[str, list[Any] | None] = {}
    for name in names:
        values = [getattr(record, name) for record in records]
        if name.endswith("_s"):
            values = [None if value is None else round(float(value), _DIGITS) for value in values]
        empty = all(value is None for value in values)
        if not (empty and name in LATER_LOOP_COLUMNS):
            columns[name] = None if values and empty else values
    return columns


def _records(columns: dict[str, list[Any] | None], names: Mapping[str, str]) -> zip[tuple[Any, ...]]:
    count = len(next(values for values in columns.values() if values is not None))
    filled = ([None] * count if columns.get(name) is None else columns[name] or [] for name in names)
    return zip(*filled, strict=True)


_ENCODED: dict[str, Callable[[Any], Any]] = {
    # Without lone surrogates, which neither UTF-8 nor Parquet can hold.
    "text": lambda text: text.encode("utf-8", "replace").decode(),
    "float64": lambda seconds: round(float(seconds), _DIGITS),
    "loops": lambda loops: _by_column(loops, LOOP_KINDS),
    "trace": lambda tokens: _by_column(tokens, TRACE_KINDS),
    "evidence": pack_evidence,
    "hypotheses": lambda found: [asdict(one) for one in found],
}
_DECODED: dict[str, Callable[[Any], Any]] = {
    "loops": lambda columns: [Loop(*values) for values in _records(columns, LOOP_KINDS)],
    "trace": lambda columns: [TracedToken(*values) for values in _records(columns, TRACE_KINDS)],
    "hypotheses": _hypotheses,
}

_PROMPT_NAMES = {"text": "prompt", "ids": "prompt_ids"}
"""Fields of a ``Prompt`` that have another name in ``prompts.jsonl``."""

_IN_EVERY_LINE = ("example_id", "text", "ids", "reference", "truncated_tokens")
"""The other fields came later and are missing in earlier runs, and where they say nothing."""


def encode_prompt(prompt: Prompt) -> Row:
    """Return a prompt as a line of ``prompts.jsonl``; newer fields only where they are not usual."""
    row = {}
    for field in fields(Prompt):
        value = getattr(prompt, field.name)
        if field.name in _IN_EVERY_LINE or value != field.default:
            row[_PROMPT_NAMES.get(field.name, field.name)] = (
                list(value) if isinstance(value, tuple) else value
            )
    return row


def decode_prompt(row: Row) -> Prompt:
    """Return the prompt of a line of ``prompts.jsonl``; KeyError or TypeError if it is not one."""
    values: dict[str, Any] = {}
    for field in fields(Prompt):
        name = _PROMPT_NAMES.get(field.name, field.name)
        value: Any = row[name] if field.name in _IN_EVERY_LINE or name in row else field.default
        values[field.name] = tuple(value) if "tuple" in str(field.type) else value
    return Prompt(**values)


def write_prompts(path: Path, prompts: Sequence[Prompt]) -> None:
    """Write all prompts, one line each, atomically."""
    write_text(path, "".join(json.dumps(encode_prompt(prompt)) + "\n" for prompt in prompts))


def read_prompts(path: Path) -> list[Prompt]:
    try:
        with open(path, "rb", opener=ordinary) as file:
            return [_prompt_of_line(number, line) for number, line in enumerate(file, start=1)]
    except OSError as problem:
        why = f"{path} cannot be read ({problem.strerror})."
        raise UsageError(why, flag="RUN", remedy="Restore the file.") from problem
    except ValueError as problem:
        remedy = "Restore the file, or remove it and resume the run, which writes it again."
        raise UsageError(f"{path} is damaged ({problem}).", flag="RUN", remedy=remedy) from problem


_PROMPT_TYPES = get_type_hints(Prompt)


def _prompt_of_line(number: int, line: bytes) -> Prompt:
    """ValueError with the line's number and the field that is not of its type."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"line {number}: {problem}") from problem
    if not isinstance(row, dict):
        raise ValueError(f"line {number} is not an object")
    for field in fields(Prompt):
        name = _PROMPT_NAMES.get(field.name, field.name)
        if name not in row and field.name in _IN_EVERY_LINE:
            raise ValueError(f"line {number} has no {name}")
        if name in row and (fault := fault_of(row[name], _PROMPT_TYPES[field.name], name)):
            raise ValueError(f"line {number}: {fault}")
    ids = row["prompt_ids"]
    if ids and not 0 <= min(ids) <= max(ids) < 1 << 31:
        raise ValueError(f"line {number}: prompt_ids has a number that is no token's")
    for name in ("example_id", "conversation"):
        (row.get(name) or "").encode()  # an id of half a character can stand in no table
    return decode_prompt(row)


def merge_prompts(path: Path, old: Sequence[Prompt], new: Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts of a continued run, perhaps with other limits: the old ones, then the added ones."""
    known = {prompt.example_id: prompt for prompt in old}
    for prompt in new:
        before = known.setdefault(prompt.example_id, prompt)
        if before != prompt:
            why = f"example {prompt.example_id!r} has another prompt or reference than in {path}."
            raise UsageError(why, flag="--out", remedy="The data has changed: name another directory.")
    return list(known.values())
