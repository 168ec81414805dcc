"""``spsbench replay``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group

from spsbench.cli import options, values
from spsbench.cli.audit import OF_TEXTS
from spsbench.cli.console import present, say
from spsbench.cli.options import takes
from spsbench.cli.values import pairs_of, sought_of, times_of, written_of
from spsbench.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spsbench.drafters.stopping import StopReader
    from spsbench.records import Interval, Spec
    from spsbench.replay.policies import Choice, Curve, Policies, PolicyCell
    from spsbench.replay.prediction import Even
    from spsbench.replay.study import Study
    from spsbench.replay.texts import Written
    from spsbench.replay.times import Calibration
    from spsbench.report.tables import Heading, Row, Table


def policies_asked(text: str | None, drafters: Sequence[Spec]) -> Policies | None:
    """The policies that ``--policy`` names."""
    from spsbench.records import Spec
    from spsbench.replay.policies import policies_of

    return None if text is None else policies_of([Spec.parse(name) for name in text.split(",")], drafters)


def curves_of(study: Study, policies: Policies | None, readers: Mapping[Spec, StopReader]) -> list[Curve]:
    """Of every drafter that heeds a policy."""
    from spsbench.replay.policies import curve

    if policies is None:
        return []
    return [curve(study, drafter, reader, policies) for drafter, reader in readers.items()]


def curve_facts(found: Sequence[Curve]) -> dict[str, Any]:
    """All of it, for JSON; nothing without policies."""
    return {"policies": [_of_curve(each) for each in found]} if found else {}


def _of_curve(found: Curve) -> dict[str, Any]:
    return {
        "drafter": str(found.drafter),
        "k": found.k,
        "cells": [_of_cell(cell) for cell in found.cells],
        "oracle": _of_cell(found.oracle),
        "choices": [asdict(choice) | {"policy": str(choice.policy)} for choice in found.choices],
        "beyond_ms": {name: asdict(taken) for name, taken in found.beyond_ms.items()},
        "rollouts": found.rollouts,
    }


def _of_cell(cell: PolicyCell) -> dict[str, Any]:
    return asdict(cell) | {"policy": None if cell.policy is None else str(cell.policy)}


def shown_curves(found: Sequence[Curve]) -> Iterator[RenderableType]:
    """For a terminal: a table and sentences for each drafter."""
    for each in found:
        yield from ("", f"{each.drafter}, up to K={each.k}, by policy", "", _curve_table(each).as_rich(), "")
        yield from _sentences(each)


def _curve_table(found: Curve) -> Table:
    from spsbench.report.tables import Heading, Table, left, right

    rows: list[Row | Heading] = []
    before = None
    for cell in (*found.cells, found.oracle):
        name, label = _named(cell)
        if name != before:
            before = name
            rows.append(Heading(name))
        rows.append([label, *_numbers(cell)])
    titles = ("tokens/loop [95%]", "drafted/loop", "ms/token", "speedup [95%]")
    return Table([left(whole=True), *map(right, titles)], rows)


def _named(cell: PolicyCell) -> tuple[str, str]:
    """(name, threshold) of a policy."""
    if cell.policy is None:
        return "oracle", ""
    name, _, threshold = str(cell.policy).partition(":")
    return name, threshold


def _numbers(cell: PolicyCell) -> list[str]:
    from spsbench.report.wording import interval

    told = cell.predicted
    low, high = cell.bounds.low, cell.bounds.high
    between = "" if high - low < 0.005 else f" ({low:.2f}-{high:.2f})"
    return [
        interval(cell.tokens_per_loop),
        f"{cell.drafted_per_loop.estimate:.2f}{between}",
        "" if told is None else f"{told.ms_per_token.estimate:.3g}",
        "" if told is None else interval(told.speedup, "x"),
    ]


def _sentences(found: Curve) -> Iterator[str]:
    for choice in found.choices:
        yield from _judged(choice)
    for cell in found.cells:
        if cell.ran is not None:
            yield f"In the run {cell.policy} emitted {cell.ran.tokens_per_loop:.2f} tokens a loop."
    if found.rollouts:
        yield (
            "Tokens per loop are exact given the texts. What is drafted after rejected tokens is sampled "
            f"({found.rollouts:,} drafts); in brackets its bounds."
        )
    if found.choices:
        yield f"No policy with drafts of up to {found.k} tokens is faster than the oracle."
    if found.beyond_ms:
        costs = ", ".join(f"{name} {_signed(taken)}" for name, taken in found.beyond_ms.items())
        yield f"Beyond a fixed K that drafts as many a loop took here, in ms: {costs}; charged if above 0."


def _judged(choice: Choice) -> Iterator[str]:
    from spsbench.report.wording import interval, interval_percent

    yield (
        f"{choice.policy}, chosen on {choice.chosen_on} prompts: {interval(choice.gain, 'x')} as fast as the "
        f"best fixed K, {choice.fixed_k}, on {choice.judged_on} others."
    )
    if choice.fixed_share is not None and choice.policy_share is not None:
        fixed, own = map(interval_percent, (choice.fixed_share, choice.policy_share))
        yield (
            f"Of the time that the oracle saves there over ArS, fixed K={choice.fixed_k} already saves "
            f"{fixed}, {choice.policy} {own}."
        )


def _signed(value: Interval) -> str:
    ends = "" if value.low is None else f" [{value.low:+.2f}, {value.high:+.2f}]"
    return f"{value.estimate:+.2f}{ends}"


@takes(
    "run drafter draft k policy sampling budget times pair target revision draft_revision temperature "
    "top_p top_k greedy device dtype backend threads",
    {
        options.FIRST: {
            "[RUN]": (
                "Run directory, or another engine's texts as JSON lines (as for `audit`). Default: the "
                "latest in results/."
            ),
            "--draft MODEL...": "Draft model; may be repeated, to compare several.",
            "--k LIST": "Lookahead: 4, 2,4 or 1..8. Default: 1..8.",
            "--sampling NAME": "The run's sampling to replay. Default: its first.",
            "--budget TIME": "Time to spend on timing loops, e.g. 5min; 0 for none. Default: 30.",
            "--times FILE": "Times of another machine: the output of `spsbench bench --json` there.",
        },
        options.SAMPLING: OF_TEXTS,
    },
)
def replay(**params: Any) -> None:
    """Predict the speedup of any drafter and K from texts that the target has written.

    Example: spsbench replay results/RUN --drafter model,lookup --k 1..8
    """
    replay_texts(params["run"], params)


def _source(typed: Path | None) -> Path:
    """The run or file that was typed, or the latest run."""
    from spsbench.paths import results_dir
    from spsbench.store import latest
    from spsbench.store.opening import read_run

    source = typed or latest(results_dir())
    if not source.is_file():
        read_run(source)
    return source


def replay_texts(typed: Path | None, params: Mapping[str, Any]) -> None:
    """Replay drafters over the ArS texts of a run or a file, or of the latest run."""
    quiet = params["quiet"]
    ks, drafters = values.lookaheads(params["k"] or "1..8"), values.drafters(params["drafter"] or "model")
    values.policies(params["policy"])
    values.seconds(params["budget"], 30.0)
    values.readable(params["times"], "--times", "Give what `spsbench bench --json` printed.")
    values.require_machine(params)
    source = _source(typed)
    from spsbench.replay.study import study

    times = times_of(params, 30.0, drafters)
    asked = policies_asked(params["policy"], drafters)
    if asked is not None:
        ks = tuple(range(1, max(ks) + 1))
        _require_one_draft(params["draft"])
    say(f"Reading {source}", quiet=quiet)
    written = written_of(source, params, drafters)
    sought = sought_of(drafters, pairs_of(written, params))
    readers = {} if asked is None else asked.readers(written.config.seed)
    under = () if asked is None else asked.timed
    found = study(
        written, sought, ks, times, lambda text: say(text, quiet=quiet), readers=readers, under=under
    )
    curves = curves_of(found, asked, readers)
    present(
        lambda: _facts(found) | curve_facts(curves),
        lambda: Group(
            *(_title(written), "", _table(found).as_rich(), *shown_curves(curves)),
            *("", *_evens(found), _note(found, times)),
        ),
        json=params["json"],
        quiet=quiet,
    )


def _require_one_draft(drafts: Sequence[str] | None) -> None:
    if drafts and len(drafts) > 1:
        raise UsageError(
            "policies are replayed with one draft.", flag="--policy", remedy="Give --draft once."
        )


def _facts(study: Study) -> dict[str, Any]:
    written = study.written
    return {
        "source": str(written.source),
        "sampling": written.sampling_name,
        "texts": len(written.texts),
        "tokens": written.tokens,
        "cells": [
            {
                "drafter": str(one.cell.drafter),
                "draft": one.cell.draft or None,
                "k": one.cell.k,
                "tokens_per_loop": asdict(one.cell.tokens_per_loop),
                "r_prime": one.cell.r_prime,
                "emitted": one.cell.emitted.tolist(),
                "loops": dict(zip(("p50", "p90", "p99"), one.cell.loops, strict=True)),
                "break_even": None if (even := study.even(one)) is None else asdict(even),
                "predicted": None if (told := study.predicted(one)) is None else asdict(told),
                "measured_tokens_per_loop": one.measured,
            }
            for one in study.found
        ],
    }


def _title(written: Written) -> str:
    return (
        f"{written.label}, {written.sampling_name}: replayed over {len(written.texts)} texts, "
        f"{written.tokens:,} tokens"
    )


def _table(study: Study) -> Table:
    from spsbench.report.tables import Heading, Table, left, right
    from spsbench.report.wording import interval

    rows: list[Row | Heading] = []
    before = None
    for one in study.found:
        if one.cell.name != before:
            before = one.cell.name
            rows.append(Heading(before))
        p50, _, p99 = one.cell.loops
        told = study.predicted(one)
        rows.append(
            [
                f"K={one.cell.k}",
                interval(one.cell.tokens_per_loop),
                "" if one.measured is None else f"{one.measured:.2f}",
                f"{p50}, {p99}",
                "" if told is None else f"{told.ms_per_token.estimate:.3g}",
                "" if told is None else interval(told.speedup, "x"),
            ]
        )
    titles = ("tokens/loop [95%]", "in the run", "loops P50, P99", "ms/token", "speedup [95%]")
    return Table([left(), *map(right, titles)], rows)


def _evens(study: Study) -> list[str]:
    """A line for the fastest K of each drafter: how far it is from break-even."""
    best: dict[str, tuple[float, str]] = {}
    for one in study.found:
        even = study.even(one)
        if one.timed is not None and even is not None:
            taken_s, name = one.timed.mean_s(), one.cell.name
            if name not in best or taken_s < best[name][0]:
                best[name] = taken_s, f"{name}, K={one.cell.k} {_even_words(even)}"
    lines = [line for _, line in best.values()]
    return [*lines, ""] if lines else []


def _even_words(even: Even) -> str:
    """``gains from alpha .31 on, and while drafting a token takes less than .55 ArS steps (now .11).``"""
    if even.alpha is None:
        return f"takes {even.cost:.2f} ArS steps a loop, which no alpha pays for."
    if even.c_allowed is None:
        return f"takes {even.cost:.2f} ArS steps a loop, and gains from alpha {even.alpha:.2f} on."
    return (
        f"gains from alpha {even.alpha:.2f} on, and while drafting a token takes less than "
        f"{even.c_allowed:.2f} ArS steps (now {even.c:.2f})."
    )


def _note(study: Study, times: float | Calibration) -> str:
    told = "Predicted: no sequence was generated for these numbers."
    if study.ars is None:
        return told
    if isinstance(times, float):
        return f"{told} Times are of loops run here."
    forwards = f"Times are of forwards alone, {times.told}, after {times.context:,} tokens of context"
    return f"{told} {forwards}; what else a loop does is not in them."
