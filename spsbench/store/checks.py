"""What a line of the journal may hold: each number of its kind and within its bounds, or it is damaged.

The bounds follow from the records' types, so that a new field has some. Two things are no damage. NaN says
of a few fields that an engine does not see them (``_UNSEEN``). A sum of evidence that is NaN or infinite is
an alarm (``stats.evidence_stats``): our own arithmetic may have made it, and a sequence whose line is refused
would be made again without a word.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, NamedTuple, get_args

from spsbench.base.errors import as_typed
from spsbench.base.records import (
    BEAM_CLOSEST,
    RESCORED,
    UNRANKED,
    UNREAD,
    Fate,
    Hypothesis,
    Loop,
    TracedToken,
)
from spsbench.store.codec import FIELDS, LATER_LOOP_COLUMNS, Field, unpack_evidence
from spsbench.store.journal import Row

_LARGEST_INT = 2**31 - 1
_LONGEST_S = 1e9
_LARGEST = 1e15
"""Of sums and of what a machine counts."""
_LARGEST_SCORE = 1e100
"""Of a metric, which may be a user's own; its square is still a number."""
_ROUNDING = 1e-5
"""By how much float32 may pass a bound."""


class NumberBounds(NamedTuple):
    """What a number may be.

    Attributes:
        whole: an integer alone.
        null: None says that it was not seen.
        unseen: so does NaN.
    """

    least: float = 0.0
    most: float = _LARGEST
    whole: bool = False
    null: bool = False
    unseen: bool = False

    def admits(self, value: Any) -> bool:
        if value is None:
            return self.null
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return False
        return self.least <= value <= self.most or (self.unseen and value != value)

    @property
    def described(self) -> str:
        """In a few words, for a message."""
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} from {self.least:g} to {self.most:g}" + (" or null" if self.null else "")


_SECONDS = NumberBounds(most=_LONGEST_S)
_PROBABILITY = NumberBounds(most=1.0 + _ROUNDING)
_INDEX = NumberBounds(most=_LARGEST_INT, whole=True)
_COUNTED = NumberBounds()
_SIGNED = NumberBounds(least=-_LARGEST)
_SCORE = NumberBounds(-_LARGEST_SCORE, _LARGEST_SCORE)

_UNSEEN = ("beta_sum", "loop_s")
"""Of a loop: NaN where an engine does not report them, and of trees."""

_PROBABILITIES = ("target_prob", "draft_prob", "u")
_OF_EVIDENCE = {
    "log_target": NumberBounds(-math.inf, _ROUNDING, unseen=True),
    "log_draft": NumberBounds(-math.inf, _ROUNDING, unseen=True),
    "draft_rank": NumberBounds(UNRANKED, _LARGEST_INT, whole=True),
    "draft_max": NumberBounds(0.0, 1.0 + _ROUNDING, unseen=True),
    "draft_entropy": NumberBounds(-_ROUNDING, unseen=True),
}


def _bounds_of(name: str, kind: str) -> NumberBounds:
    """By a field's name and type; text has none and is looked at by itself."""
    null = "None" in kind
    if "int" in kind:
        return _INDEX._replace(null=null)
    known = _SECONDS if name.endswith("_s") else _PROBABILITY if name in _PROBABILITIES else NumberBounds()
    return known._replace(null=null, unseen=name in _UNSEEN)


def _columns_of(record: type) -> dict[str, NumberBounds]:
    kinds = {field.name: str(field.type) for field in fields(record)}
    return {name: _bounds_of(name, kind) for name, kind in kinds.items() if name not in ("fate", "siblings")}


OF_LOOPS = _columns_of(Loop)
OF_TRACE = _columns_of(TracedToken)
_FATES = frozenset(get_args(Fate))
_SIBLINGS = re.compile(r"(\d+(,\d+)*)?")

_HOLDS: dict[str, Any] = {"string": str, "text": str, "map": dict, "list": list}
"""The types of JSON; text may hold what cannot be stored, names never do."""

_FROM_ONE = ("attempt", "turn")

_OF_FIELDS = {
    name: (_SECONDS if field.kind == "float64" else _INDEX._replace(least=float(name in _FROM_ONE)))._replace(
        null=field.null
    )
    for name, field in FIELDS.items()
    if field.kind in ("int32", "float64")
}
_WHOLE, _NUMBERS = frozenset({int}), frozenset({int, float})


def check_sample(row: Row) -> None:
    """Raise ValueError for a row that is not a sample; it says which field is damaged."""
    for name, field in FIELDS.items():
        _check_field(name, field, row)
    for name in ("token_ids", "prompt_ids"):
        _check_column(row.get(name) or [], _INDEX, name)
    for name, value in row["scores"].items():
        _require(value, _SCORE, f"scores.{name}")
    for name, value in row["conditions"].items():
        _require(value, _COUNTED, f"conditions.{name}")
    tokens = len(row["token_ids"])
    if tokens and row["error"] is None and not row["decode_s"] > 0:
        raise ValueError("decode_s is 0 of an output with tokens")
    loops = _check_columns(row["loops"], OF_LOOPS, LATER_LOOP_COLUMNS, "loops")
    trace = _check_columns(row["trace"], OF_TRACE, frozenset(), "trace")
    _check_texts(loops.get("siblings"), lambda text: _SIBLINGS.fullmatch(text) is not None, "loops.siblings")
    _check_texts(trace.get("fate"), _FATES.__contains__, "trace.fate")
    _check_evidence(row.get("token_evidence"), tokens)
    _check_hypotheses(row.get("hypotheses") or [])
    _check_losslessness(row["losslessness"] or {}, tokens, _most_decisions(loops, tokens))


def check_scores(row: Row) -> None:
    """Raise ValueError for a row that gives no scores to a sample."""
    for name in ("example_id", "sample_index", "arm"):
        _check_field(name, FIELDS[name], row)
    _check_field("scores", FIELDS["scores"], row)
    for name, value in row["scores"].items():
        _require(value, _SCORE, f"scores.{name}")


def _check_field(name: str, field: Field, row: Row) -> None:
    """Look at the type of a field, and at the value of a number."""
    if name not in row and not field.later:
        raise ValueError(f"{name} is missing")
    value = field.of(row, name)
    if (bounds := _OF_FIELDS.get(name)) is not None:
        _require(value, bounds, name)
    elif value is None:
        _refuse_unless(field.null, name, value)
    elif field.kind in _HOLDS:
        _refuse_unless(isinstance(value, _HOLDS[field.kind]), name, value)


def _require(value: Any, bounds: NumberBounds, name: str) -> None:
    if not bounds.admits(value):
        raise ValueError(f"{name} is {as_typed(value)}, it must be {bounds.described}")


def _refuse_unless(right: bool, name: str, value: Any) -> None:
    if not right:
        raise ValueError(f"{name} is {as_typed(value)}")


def _check_column(values: Any, bounds: NumberBounds, name: str) -> None:
    """Look at many values: at each only where a glance at all of them finds something."""
    _refuse_unless(isinstance(values, list), name, values)
    known = [value for value in values if value is not None] if bounds.null else values
    if not known or (
        {*map(type, known)} <= (_WHOLE if bounds.whole else _NUMBERS) and _within(known, bounds.most)
    ):
        return
    for place, value in enumerate(values):
        _require(value, bounds, f"{name}[{place}]")


def _within(values: list[float], most: float) -> bool:
    """Whether all are from 0 to ``most``; False also where that takes a look at each."""
    if not min(values) >= 0 or not max(values) <= most:
        return False
    total = sum(values)
    return total == total  # the sum of NaN is NaN


def _check_columns(
    columns: Any, bounds: Mapping[str, NumberBounds], later: Iterable[str], name: str
) -> dict[str, Any]:
    """Look at records by column, all of one length; return the columns."""
    if columns is None:
        return {}
    _refuse_unless(isinstance(columns, dict), name, columns)
    for column, own in bounds.items():
        if column not in columns and column not in later:
            raise ValueError(f"{name}.{column} is missing")
        if not (columns.get(column) is None and own.null):
            _check_column(columns.get(column), own, f"{name}.{column}")
    lengths = {column: len(values) for column, values in columns.items() if isinstance(values, list)}
    if len({*lengths.values()}) > 1:
        usual, _ = Counter(lengths.values()).most_common(1)[0]
        other = next(column for column, length in lengths.items() if length != usual)
        raise ValueError(f"{name}.{other} has {lengths[other]} values, the other columns {usual}")
    found: dict[str, Any] = columns
    return found


def _check_texts(values: Any, known: Callable[[str], object], name: str) -> None:
    for value in values or ():
        _refuse_unless(value is None or (isinstance(value, str) and bool(known(value))), name, value)


def _check_evidence(packed: Any, tokens: int) -> None:
    _refuse_unless(packed is None or isinstance(packed, str), "token_evidence", packed)
    evidence = unpack_evidence(packed, tokens)
    if evidence is None:
        return
    for name, bounds in _OF_EVIDENCE.items():
        column: array[Any] = getattr(evidence, name)
        # A glance first, as in ``_check_column``; -inf is the logarithm of 0.
        if not (
            column and min(column) >= bounds.least and max(column) <= bounds.most and _has_no_nan(column)
        ):
            for place, value in enumerate(column):
                _require(value, bounds, f"token_evidence.{name}[{place}]")


def _has_no_nan(column: array[Any]) -> bool:
    """Of NaN neither the least nor the largest says anything."""
    return not math.isnan(math.fsum(column))


def _check_hypotheses(rows: Any) -> None:
    _refuse_unless(isinstance(rows, list), "hypotheses", rows)
    for place, row in enumerate(rows):
        name = f"hypotheses[{place}]"
        _refuse_unless(isinstance(row, dict), name, row)
        for field in fields(Hypothesis):
            if field.name not in row:
                raise ValueError(f"{name}.{field.name} is missing")
        tokens = row["tokens"]  # a tuple before it is written
        _check_column([*tokens] if isinstance(tokens, tuple) else tokens, _INDEX, f"{name}.tokens")
        for number in ("score", "log_prob"):
            _require(row[number], _SIGNED, f"{name}.{number}")
        _refuse_unless(isinstance(row["reason"], str), f"{name}.reason", row["reason"])


# --- tables ---

_OF_TABLES: dict[str, dict[str, NumberBounds]] = {
    "samples": {**_OF_FIELDS, "token_ids": _INDEX, "scores": _SCORE, "conditions": _COUNTED},
    "loops": OF_LOOPS,
    "tokens": OF_TRACE,
    "evidence": _OF_EVIDENCE,
}
_ALWAYS = ("sample_index", "prompt_tokens", "prefill_s", "decode_s")


def unsound_column(name: str, table: Any) -> str | None:
    """Return a column of an Arrow table with a number that no line may hold; None where all may be.

    What engines do not see is null there.
    """
    for column, bounds in _OF_TABLES[name].items():
        if column in table.column_names and not _holds(table[column], bounds, null=column not in _ALWAYS):
            return column
    return None


def _holds(values: Any, bounds: NumberBounds, *, null: bool) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not null and values.null_count:
        return False
    if pa.types.is_map(values.type):
        values = pa.chunked_array([chunk.items for chunk in values.chunks], values.type.item_type)
    elif pa.types.is_list(values.type):
        values = pc.list_flatten(values)
    ends = pc.min_max(values).as_py()
    if ends["min"] is None:
        return True
    if pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
        return bounds.unseen
    return bool(bounds.least <= ends["min"] and ends["max"] <= bounds.most)


# --- sums of evidence ---

_CELLS = [f"transform_{cell}" for cell in range(10)]
_BETS = [f"log_e_{name}" for name in ("power_0.8", "power_1.25")]
_DRAFT_BETS = [f"log_e_mixture_{share}" for share in (0.02, 0.1, 0.5)]
_LEAKAGE = ["leak_score", "leak_information", "leak_var"]


class _Together(NamedTuple):
    """Sums that are made together (``law.evidence``): where one is the others are, since each can alarm."""

    head: str
    others: frozenset[str]

    def check(self, sums: Row) -> bool:
        """Return whether they are there; raise ValueError if only some are."""
        if self.head in sums:
            if not self.others <= sums.keys():
                lacking = min(self.others - sums.keys())
                raise ValueError(f"{_of_losslessness(lacking)} is missing beside {self.head}")
            return True
        if not self.others.isdisjoint(sums):
            raise ValueError(
                f"{_of_losslessness(self.head)} is missing beside {min(self.others & sums.keys())}"
            )
        return False


class _Kind(NamedTuple):
    """The sums of one kind of evidence: from the loops' own rows, or from an independent forward's.

    Attributes:
        text, draft: of all tokens, and of the draft's rows beside them.
        of_tokens: what no more tokens than there are can come to.
        not_negative: variances and such.
    """

    text: _Together
    draft: _Together
    of_tokens: tuple[str, ...]
    not_negative: tuple[str, ...]

    @classmethod
    def of(cls, prefix: str) -> _Kind:
        def own(*names: str) -> tuple[str, ...]:
            return tuple(prefix + name for name in names)

        text = own("impossible", "log_score", "log_score_var", *_BETS, *_CELLS)
        draft = own("overlap", "overlap_positions", *_LEAKAGE, *_DRAFT_BETS)
        return cls(
            _Together(f"{prefix}positions", frozenset(text)),
            _Together(f"{prefix}drafted_positions", frozenset(draft)),
            own(
                "positions",
                "impossible",
                "edge",
                "drafted_positions",
                "overlap",
                "overlap_positions",
                *_CELLS,
            ),
            own(*(f"{name}_{part}" for name in ("leak", "leak_all") for part in ("information", "var")))
            + own("log_score_var"),
        )


_KINDS = (_Kind.of(""), _Kind.of(RESCORED))

_DECIDED = "decisions"
_CONTRADICTED = f"{_DECIDED}_contradicted"
_SOME = (_CONTRADICTED, *(f"{_DECIDED}_{name}" for name in ("rounding", "open", "recorded")))
"""Parts of all decisions; the first is always told."""

_ROWS = tuple(
    _Together(rows, frozenset((f"{rows}_apart", f"{rows}_beyond")))
    for rows in (f"{_DECIDED}_rows_{role}" for role in ("target", "draft"))
)
_EACH = 5
"""Of a position a draft's pick, its test, its end and a draw are decided, of a loop the draft's length."""


def _most_decisions(loops: Mapping[str, Any], tokens: int) -> float:
    """That an output can have; of a tree all nodes are decided, emitted or not."""
    drafted, nodes = loops.get("drafted") or [], loops.get("nodes")
    if nodes is not None:
        drafted = [max(own, more or 0) for own, more in zip(drafted, nodes, strict=True)]
    return float(_EACH * (tokens + len(drafted) + sum(drafted)))


def _check_losslessness(sums: Row, tokens: int, most_decisions: float) -> None:
    """Look at the sums of a sequence; one that is not finite is for ``stats.evidence_stats`` to say."""
    for name, value in sums.items():
        if not isinstance(value, float) or not -_LARGEST <= value <= _LARGEST:
            if isinstance(value, float) and not math.isfinite(value):
                continue
            _require(value, _SIGNED, _of_losslessness(name))
    _at_most(sums, UNREAD, 1)
    _at_most(sums, BEAM_CLOSEST, _LARGEST)
    for kind in _KINDS:
        _check_kind(kind, sums, tokens)
    _check_decisions(sums, tokens, most_decisions)


def _of_losslessness(name: str) -> str:
    return f"losslessness.{name}"


def _at_most(sums: Row, name: str, most: float) -> None:
    """Demand a number from 0 to ``most``; what is not there or not finite is not judged."""
    value = sums.get(name)
    if value is None or 0.0 <= value <= most or not math.isfinite(value) or not math.isfinite(most):
        return
    # Sums of distances may pass a bound by rounding, and a decision's distance may be -1e-17.
    _require(value, NumberBounds(-1e-12, most + _ROUNDING * (1 + most)), _of_losslessness(name))


def _check_kind(kind: _Kind, sums: Row, tokens: int) -> None:
    if not kind.text.check(sums):
        if kind.draft.check(sums):
            raise ValueError(f"{_of_losslessness(kind.text.head)} is missing beside {kind.draft.head}")
        return
    kind.draft.check(sums)
    for name in kind.of_tokens:
        _at_most(sums, name, tokens)
    for name in kind.not_negative:
        _at_most(sums, name, _LARGEST)


def _check_decisions(sums: Row, tokens: int, most: float) -> None:
    """Look at what became of the decisions, and of the rows that they were derived from."""
    if _DECIDED in sums:
        if _CONTRADICTED not in sums:
            raise ValueError(f"{_of_losslessness(_CONTRADICTED)} is missing beside {_DECIDED}")
        _at_most(sums, _DECIDED, most)
        for name in _SOME:
            _at_most(sums, name, sums[_DECIDED])
        _at_most(sums, f"{_DECIDED}_closest", 1.0)
    elif some := next((name for name in _SOME if name in sums), None):
        raise ValueError(f"{_of_losslessness(_DECIDED)} is missing beside {some}")
    for together in _ROWS:
        rows, measured = together.head, f"{together.head}_measured"
        if together.check(sums):
            _at_most(sums, rows, tokens)
            for name in together.others:  # total variation is at most 1
                _at_most(sums, name, sums[rows])
        elif measured in sums:
            raise ValueError(f"{_of_losslessness(rows)} is missing beside {measured}")
        if f"{rows}_blocks" in sums and measured not in sums:
            raise ValueError(f"{_of_losslessness(measured)} is missing beside {rows}_blocks")
        _at_most(sums, measured, tokens)
        _at_most(sums, f"{rows}_blocks", sums.get(measured, 0.0))
