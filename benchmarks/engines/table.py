"""What was measured as a table: medians over rounds with their range, and whether texts agree."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.engines.rounds import ARS, SPS, Measured, Turn
from spsbench.base.protocol import Answer
from spsbench.report.tables import Table, left, right

_NONE = "–"


def table(found: Measured) -> Table:
    """One row an engine, in the order they were loaded.

    Texts are compared with those of the first engine's ArS, all rounds of a prompt together.
    """
    names = [name for name in found.loaded if name not in found.failed]
    columns = [left("engine"), left("version")]
    columns += [right(f"{method}, ms/token") for method in ("ArS", "SpS")]
    columns += [right("ArS / SpS"), right("tokens/loop")]
    columns += [right("prefill, ms"), right("texts ="), right("SpS texts =")]
    reference = _turns(found, names[0], ARS)[0].answers if names else ()
    return Table(columns, [_row(found, name, reference) for name in names])


def same_text(answer: Answer, reference: Answer) -> bool:
    """Whether two outputs are equal token for token, but for a last one that an engine keeps back."""
    wanted = reference.output_ids
    return answer.output_ids == (wanted[:-1] if answer.hidden_stop else wanted)


def _row(found: Measured, name: str, reference: Sequence[Answer]) -> list[str]:
    ars, sps = (_turns(found, name, method) for method in (ARS, SPS))
    prefill = [ms for turn in ars for answer in turn.answers if (ms := answer.prefill_ms) is not None]
    return [
        name,
        found.loaded[name].version,
        _over_rounds([turn.ms_per_token for turn in ars]),
        _over_rounds([turn.ms_per_token for turn in sps]),
        _over_rounds(_ratios(ars, sps)),
        _tokens_per_loop(sps),
        f"{statistics.median(prefill):.0f}" if prefill else _NONE,
        _equal(ars, reference),
        _equal(sps, reference),
    ]


def _turns(found: Measured, name: str, method: str) -> list[Turn]:
    turns = [turn for turn in found.turns if (turn.engine, turn.method) == (name, method)]
    return sorted(turns, key=lambda turn: turn.round)


def _ratios(ars: Sequence[Turn], sps: Sequence[Turn]) -> list[float | None]:
    """Of the two within each round; none where SpS was not measured."""
    if not sps:
        return []
    pairs = [(one.ms_per_token, other.ms_per_token) for one, other in zip(ars, sps, strict=True)]
    return [a / b if a and b else None for a, b in pairs]


def _over_rounds(values: Sequence[float | None]) -> str:
    """Median, and the range unless there is one round."""
    known = [value for value in values if value is not None]
    if not known:
        return _NONE
    median = f"{statistics.median(known):.2f}"
    return median if len(known) == 1 else f"{median} ({min(known):.2f}–{max(known):.2f})"


def _tokens_per_loop(turns: Sequence[Turn]) -> str:
    answers = [answer for turn in turns for answer in turn.answers]
    counted = [answer.loops for answer in answers if answer.loops is not None]
    if len(counted) < len(answers) or not sum(counted):
        return _NONE
    return f"{sum(answer.decoded or 0 for answer in answers) / sum(counted):.2f}"


def _equal(turns: Sequence[Turn], reference: Sequence[Answer]) -> str:
    """Prompts whose text was the reference's in every round."""
    if not turns:
        return _NONE
    by_prompt = zip(*(turn.answers for turn in turns), strict=True)
    equal = [
        all(same_text(answer, wanted) for answer in answers)
        for answers, wanted in zip(by_prompt, reference, strict=True)
    ]
    return f"{sum(equal)} of {len(equal)}"
