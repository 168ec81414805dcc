"""``spsbench replay FILE --explain``: which definition a tool's number has, the others, and what follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spsbench.base import Interval
from spsbench.cli import Common, present
from spsbench.law import alpha_iid
from spsbench.parts.whatif.messages import curves as says
from spsbench.report import Table, counted, interval, left, right
from spsbench.stats import interval_of_mean, pooled_ratio
from spsbench.store import Counts, FileContent

if TYPE_CHECKING:
    from rich.console import RenderableType

_FEWEST = 8
"""Requests, for an interval."""


class Definition(NamedTuple):
    """One number that is called acceptance; ``by``: who calls it so."""

    name: str
    formula: str
    by: str
    value: Interval | None


def _ratio_of_sums(pairs: Sequence[tuple[float, float]]) -> Interval | None:
    """With an interval over requests where there are enough."""
    over, under = np.array(pairs, np.float64).reshape(-1, 2).T
    if not under.sum():
        return None
    if len(pairs) >= _FEWEST and over.sum():
        return pooled_ratio(over, under)
    return Interval(float(over.sum() / under.sum()), None, None)


def kept_shares(counts: Sequence[Counts]) -> list[float]:
    """Return the share of loops that kept 1, 2, ... drafts or more; empty where it is unknown."""
    if all(count.kept for count in counts):
        longest = max((len(each.kept) for each in counts), default=0)
        kept = np.sum([np.pad(each.kept, (0, longest - len(each.kept))) for each in counts], axis=0)
        shares: list[float] = (1.0 - np.cumsum(kept)[:-1] / kept.sum()).tolist()
        return shares
    return list(counts[0].rates) if len(counts) == 1 else []


class Lengths(NamedTuple):
    """How long drafts were, where not all were alike.

    Attributes:
        mean: drafted tokens per loop.
        shortest, longest: None where lengths are not counted; the longest then is K.
        offered: loops that kept the drafts before and had a first, second, ... one; empty where lengths are
            not counted.
        kept: those of them that kept it.
    """

    mean: float
    shortest: int | None
    longest: int | None
    offered: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()


def lengths_of(counts: Sequence[Counts], k: int | None) -> Lengths | None:
    """Return the lengths of drafts; None where all are equal, or loops or drafts are not counted."""
    looped = [(count, count.loops) for count in counts if count.loops]
    drafted = [each.drafted for each, _ in looped if each.drafted is not None]
    if not looped or len(drafted) < len(looped):
        return None
    mean = sum(drafted) / sum(loops for _, loops in looped)
    if not all(each.by_length for each, _ in looped):
        same = k is None or all(each.drafted == k * loops for each, loops in looped)
        return None if same else Lengths(mean, None, k)
    widest = max(len(each.by_length) for each, _ in looped)
    table = np.zeros((widest, widest), np.int64)  # [drafted, kept]
    for each, _ in looped:
        for length, kept in enumerate(each.by_length):
            table[length, : length + 1] += np.array([*kept, *[0] * (length + 1 - len(kept))])[: length + 1]
    used = np.flatnonzero(table.sum(1)).tolist()
    if len(used) == 1:
        return None
    places = range(1, used[-1] + 1)
    offered = tuple(int(table[place:, place - 1 :].sum()) for place in places)
    return Lengths(
        mean, used[0], used[-1], offered, tuple(int(table[place:, place:].sum()) for place in places)
    )


def _rejecting_loops(counts: Counts, k: int | None) -> int | None:
    if counts.by_length:
        return sum(sum(kept[:length]) for length, kept in enumerate(counts.by_length))
    if not counts.kept or not counts.loops or k is None or counts.drafted != k * counts.loops:
        return None
    return counts.loops - sum(counts.kept[k:])


def definitions(counts: Sequence[Counts], k: int | None) -> list[Definition]:
    """Return every definition that these counts give, the usual one first."""
    looped = [(count, count.loops) for count in counts if count.loops]
    kept = [(each.accepted, loops, each) for each, loops in looped if each.accepted is not None]
    rejected = [(accepted, each, _rejecting_loops(each, k)) for accepted, _, each in kept]
    tokens_per_loop = _ratio_of_sums([(accepted + loops, loops) for accepted, loops, _ in kept])
    first = kept_shares(counts)[:1]
    every = [
        Definition(
            "tokens per loop",
            "1 + accepted/loops",
            "vLLM, InferenceX, AIPerf token-weighted",
            tokens_per_loop,
        ),
        Definition(
            "accepted drafts/loop",
            "accepted/loops",
            "TensorRT-LLM, forced",
            _ratio_of_sums([(accepted, loops) for accepted, loops, _ in kept]),
        ),
        Definition(
            "share of drafts",
            "accepted/drafted",
            "vLLM in %, llama.cpp, SGLang",
            _ratio_of_sums(
                [
                    (each.accepted, each.drafted)
                    for each in counts
                    if each.accepted is not None and each.drafted is not None
                ]
            ),
        ),
        Definition(
            "share of evaluated",
            "accepted/(accepted + rejecting loops)",
            "ONNX Runtime GenAI",
            _ratio_of_sums(
                [(accepted, accepted + loops) for accepted, _, loops in rejected if loops is not None]
            )
            if all(loops is not None for _, _, loops in rejected)
            else None,
        ),
        Definition(
            "accepted per verified",
            "(accepted + loops)/(drafted + loops)",
            "AIPerf",
            _ratio_of_sums(
                [
                    (accepted + loops, each.drafted + loops)
                    for accepted, loops, each in kept
                    if each.drafted is not None
                ]
            ),
        ),
        Definition(
            "output tokens/loop",
            "output tokens/loops",
            "SGLang accept length",
            _ratio_of_sums([(each.tokens, loops) for each, loops in looped if each.tokens is not None]),
        ),
        Definition(
            "mean of requests",
            "mean of tokens/loop",
            "AIPerf acceptance length",
            interval_of_mean([1 + accepted / loops for accepted, loops, _ in kept])
            if len(kept) > 1
            else None,
        ),
        Definition(
            "first draft kept",
            "kept 1 or more/loops",
            "vLLM position 0",
            Interval(first[0], None, None) if first else None,
        ),
    ]
    if tokens_per_loop is not None and k and lengths_of(counts, k) is None:
        alpha = alpha_iid(tokens_per_loop.estimate, k)
        every += [
            Definition("r'", f"tokens per loop/{k + 1}", "Chen et al. 2023", tokens_per_loop.over(k + 1)),
            Definition("alpha", "if all places alike", "Leviathan et al. 2022", Interval(alpha, None, None)),
        ]
    return [each for each in every if each.value is not None]


def _stated_by_tool(content: FileContent) -> list[Definition]:
    return [
        Definition(each.name, each.formula, each.by, Interval(each.value, None, None))
        for each in content.stated
    ]


def shape(curve: Mapping[int, float]) -> dict[int, str]:
    """Return where a curve of two decimals falls, or steps more than before, by more than rounding.

    Over one set of texts it never falls, where what is accepted does not depend on where a loop began: a
    longer draft from an earlier place ends no earlier. Its steps may grow, which few texts make them do.
    Rounding keeps an order, so that a fall of 0.01 is one; it can make a step that grows by 0.02.
    """
    hundredths = {0: 100} | {k: round(100 * length) for k, length in curve.items()}
    steps = {k: hundredths[k] - hundredths[k - 1] for k in curve if k - 1 in hundredths}
    grows = {k: "step grows" for k, step in steps.items() if k - 1 in steps and step > steps[k - 1] + 2}
    return grows | {k: "falls" for k, step in steps.items() if step < 0}


def explain(path: Path, content: FileContent, wanted: Common) -> None:
    """Print what a file says, and what it cannot say."""
    categories = list(dict.fromkeys(count.category for count in content.counts))
    groups = {"": content.counts}
    if len(categories) > 1:
        groups |= {
            name or "none": [each for each in content.counts if each.category == name] for name in categories
        }
    rows_of = {name: definitions(counts, content.k) for name, counts in groups.items() if counts}
    if content.stated:
        rows_of[""] = [*rows_of.get("", ()), *_stated_by_tool(content)]
    lengths = lengths_of(content.counts, content.k)
    facts = {
        "file": str(path),
        "format": content.form.name,
        "model": next(filter(None, content.models), None),
        "k": content.k,
        "requests": len(content.counts),
        "skipped": content.skipped,
        "definitions": {
            name or "all": [row._asdict() | {"value": asdict(row.value)} for row in rows if row.value]
            for name, rows in rows_of.items()
        },
        "kept": kept_shares(content.counts) if content.counts else [],
        "draft_lengths": None if lengths is None else lengths._asdict(),
        "published": {
            name: {"acceptance_length": curve, "shape": shape(curve)}
            for name, curve in content.published.items()
        },
        "notes": list(content.notes),
        "says": content.says,
        "silent": content.silent,
    }
    present(lambda: facts, lambda: _screen(content, rows_of), json=wanted.json, quiet=wanted.quiet)


def _screen(content: FileContent, definitions: Mapping[str, Sequence[Definition]]) -> RenderableType:
    from rich.console import Group

    model = next(filter(None, content.models), None)
    lengths = lengths_of(content.counts, content.k)
    about = [content.form.name, model, f"K={content.k}" if content.k and lengths is None else None]
    count = (
        counted(len(content.counts), "count")
        if len(content.counts) == 1
        else f"{len(content.counts)} requests"
    )
    parts: list[RenderableType] = [", ".join(filter(None, [*about, count if content.counts else None]))]
    if "" in definitions:
        rows = [
            [definition.name, interval(definition.value), definition.formula, definition.by]
            for definition in definitions[""]
            if definition.value
        ]
        columns = [left("definition"), right("value [95%]"), left("from"), left("so called by")]
        parts += ["", Table(columns, rows).as_rich()]
        if kept := kept_shares(content.counts):
            parts += [
                "",
                (
                    _positions(kept) if lengths is None else _positions_of_varying_drafts(kept, lengths)
                ).as_rich(),
            ]
    if len(definitions) > 1:
        names = list(dict.fromkeys(each.name for rows in definitions.values() for each in rows))[:3]
        cells = []
        for category, rows_of_category in definitions.items():
            if category:
                shown = {row.name: interval(row.value) for row in rows_of_category if row.value is not None}
                cells.append([category, *(shown.get(name, "") for name in names)])
        parts += ["", Table([left("category"), *map(right, names)], cells).as_rich()]
    for name, curve in content.published.items():
        parts += ["", name, "", _published(curve).as_rich()]
    parts += [
        "",
        *map(str, _remarks(content, lengths)),
        f"It says: {content.says}",
        f"It cannot say: {content.silent}",
    ]
    return Group(*parts)


def _positions(kept: Sequence[float]) -> Table:
    before = [1.0, *kept]
    rows = [
        [str(place), f"{share:.3f}", f"{share / above:.3f}" if above else ""]
        for place, (share, above) in enumerate(zip(kept, before, strict=False), start=1)
    ]
    return Table([left("draft"), right("kept, of loops"), right("of those that kept the one before")], rows)


def _positions_of_varying_drafts(kept: Sequence[float], lengths: Lengths) -> Table:
    """Of the loops that had a draft at that place."""
    rows = []
    counts = chain(zip(lengths.offered, lengths.kept, strict=True), repeat((0, 0)))
    for place, (share, (had, stood)) in enumerate(
        zip(kept[: lengths.longest], counts, strict=False), start=1
    ):
        of_those = [f"{stood} of {had}", f"{stood / had:.3f}"] if had else ["", ""]
        rows.append([str(place), f"{share:.3f}", *of_those])
    titles = ("draft", "kept, of loops", "kept, of those that had it", "share")
    return Table([left(titles[0]), *map(right, titles[1:])], rows)


def _published(curve: Mapping[int, float]) -> Table:
    odd = shape(curve)
    rows = []
    for k, length in curve.items():
        step = f"{length - curve.get(k - 1, 1.0):+.2f}" if k - 1 in {0, *curve} else ""
        rows.append([str(k), f"{length:.2f}", step, odd.get(k, "")])
    return Table([left("K"), right("tokens/loop"), right("step"), left("")], rows)


def _remarks(content: FileContent, lengths: Lengths | None) -> Iterator[object]:
    if lengths is not None:
        yield says.KVaries(lengths.shortest, lengths.longest, lengths.mean)
        yield says.COUNTED_WHERE_DRAFTED if lengths.offered else says.LENGTHS_UNKNOWN
    marks = [shape(curve) for curve in content.published.values()]
    falling, growing = (sum(what in mark.values() for mark in marks) for what in ("falls", "step grows"))
    if falling:
        yield says.CurvesFall(falling, len(marks))
    if growing:
        yield says.StepsGrow(growing, len(marks))
    yield from content.notes
    if any(each.loops is None for each in content.counts):
        yield says.LOOPS_UNKNOWN
    for what, count in {**content.skipped, **content.odd}.items():
        yield f"{counted(count, 'request')} {what}."
