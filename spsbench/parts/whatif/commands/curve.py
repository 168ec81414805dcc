"""``spsbench replay --curve``: the screen, the JSON, and the files that others inject."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.cli import Common, present, say
from spsbench.parts.whatif.curve import WITHIN, AcceptanceCurve, Point, ReadText, by_category
from spsbench.parts.whatif.messages import curves as says
from spsbench.report import Table, counted, interval, left, right

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spsbench.parts.whatif.replay.cells import Sought
    from spsbench.parts.whatif.replay.reading import Replayed
    from spsbench.parts.whatif.replay.texts import Written

NAME = "acceptance"
_QUANTILES = ("p50", "p90", "p99")
_HEAVY = 0.1
"""Share of the tokens: where one prompt has more, resampling prompts says little of the next ones."""


def curves_of(
    written: Written, replayed: Mapping[Sought, Replayed], rules: Sequence[str], ks: Sequence[int]
) -> Iterator[AcceptanceCurve]:
    """Return the curve of every drafter under every rule, over all texts and by category."""
    from spsbench.base import BLOCK
    from spsbench.parts.whatif.replay.cells import under

    for sought, replay in replayed.items():
        texts = [
            ReadText(text.name, text.category, drafts.ratios, drafts.drafted)
            for text, drafts in zip(written.texts, replay.forced, strict=True)
        ]
        for rule in sought.rules or rules:
            yield from by_category(under(sought.name, rule), texts, ks, block=rule == BLOCK)


def show(
    title: str,
    curves: Sequence[AcceptanceCurve],
    folder: Path | None,
    wanted: Common,
    *,
    synthetic: bool = False,
) -> None:
    """Print the curves, and write figure, YAML and JSON where a folder is named."""
    facts = {"source": title, "synthetic": synthetic, "curves": [curve_facts(curve) for curve in curves]}
    if folder:
        _write(folder, title, curves, facts, synthetic=synthetic)
        say(str(says.FilesWritten(NAME, folder)), quiet=wanted.quiet)
    present(lambda: facts, lambda: _screen(title, curves), json=wanted.json, quiet=wanted.quiet)


def curve_facts(curve: AcceptanceCurve) -> dict[str, Any]:
    """Return all of a curve for JSON; ``synthetic_acceptance_rates`` are in vLLM's form."""
    return {
        "name": curve.name,
        "category": curve.category or None,
        "prompts": curve.prompts,
        "texts": curve.texts,
        "tokens": curve.tokens,
        "autocorrelation": {str(lag): value for lag, value in curve.correlation.items()},
        f"prompts_for_{WITHIN:g}": curve.needed,
        "heaviest_prompt": curve.heaviest,
        "points": [
            {
                "k": point.k,
                "acceptance_length": asdict(point.length),
                "synthetic_acceptance_rates": list(point.rates),
                "variance": point.variance,
                "variance_by_mean": point.mean_variance,
                "loops_per_100_tokens": {
                    name: dict(zip(_QUANTILES, values, strict=True))
                    for name, values in asdict(point.tail).items()
                },
            }
            for point in curve.points
        ],
    }


def _screen(title: str, curves: Sequence[AcceptanceCurve]) -> RenderableType:
    from rich.console import Group

    parts: list[RenderableType] = [title]
    for curve in curves:
        parts += ["", _heading(curve), "", _table(curve).as_rich(), "", *map(str, _conclusions(curve))]
    if any(curve.needed for curve in curves):
        parts += ["", says.HOLD_AT_ONCE]
    return Group(*parts)


def _heading(curve: AcceptanceCurve) -> str:
    return f"{_label(curve)}: {counted(curve.prompts, 'prompt')}, {curve.tokens:,} tokens"


def _table(curve: AcceptanceCurve) -> Table:
    rows, before = [], 1.0
    for point in curve.points:
        tail = [f"{each[-1]:.1f}" for each in (point.tail.true, point.tail.by_rates, point.tail.by_mean)]
        step = f"{point.length.estimate - before:+.3f}"
        rows.append([str(point.k), interval(point.length), step, *tail])
        before = point.length.estimate
    titles = ("tokens/loop [95%]", "step", "P99 loops/100", "by rates", "by mean")
    return Table([left("K"), *map(right, titles)], rows)


def shortfall(point: Point) -> tuple[float, float]:
    """Return by how much the P99 of loops is too low if only the distribution, or the mean, is injected."""
    true, rates, mean = (each[-1] for each in (point.tail.true, point.tail.by_rates, point.tail.by_mean))
    return 1 - rates / true, 1 - mean / true


def _conclusions(curve: AcceptanceCurve) -> Iterator[object]:
    worst = max(curve.points, key=lambda point: shortfall(point)[1])
    rates, mean = shortfall(worst)
    yield says.MeanInjected(worst.k, worst.variance, worst.mean_variance, mean, rates)
    if curve.correlation:
        yield says.Autocorrelation(curve.correlation)
    if curve.needed is None:
        yield says.NoIntervalOverPrompts(curve.prompts)
    else:
        yield says.PromptsNeeded(WITHIN, curve.needed)
    if curve.heaviest > _HEAVY:
        yield says.HeavyPrompt(curve.heaviest)


def _write(
    folder: Path, title: str, curves: Sequence[AcceptanceCurve], facts: Mapping[str, Any], *, synthetic: bool
) -> None:
    from spsbench.base import make_folder, replacing
    from spsbench.report import acceptance, save

    make_folder(folder, "--out")
    lines = {_label(curve): {point.k: point.length for point in curve.points} for curve in curves}
    save(acceptance(lines, title, synthetic=synthetic, caption=says.BANDS_HOLD_AT_ONCE), folder)
    for ending, text in (("json", json.dumps(facts, indent=2) + "\n"), ("yaml", _yaml(title, curves))):
        with replacing(folder / f"{NAME}.{ending}", folder) as new:
            new.write(text.encode())


def _label(curve: AcceptanceCurve) -> str:
    return f"{curve.name}, {curve.category}" if curve.category else curve.name


def _yaml(title: str, curves: Sequence[AcceptanceCurve]) -> str:
    """Write the means as InferenceX's golden files have them, and the distribution in vLLM's form."""

    def by_k(value_of: Callable[[Point], str]) -> Iterator[str]:
        for curve in curves:
            yield f"  {json.dumps(_label(curve), ensure_ascii=False)}:"
            yield from (f"    {point.k}: {value_of(point)}" for point in curve.points)

    def mean(point: Point) -> str:
        length = point.length
        ends = "" if length.low is None else f"  # [{length.low:.3f}, {length.high:.3f}]"
        return f"{length.estimate:.3f}{ends}"

    lines = [
        f"# {title}",
        says.YAML_LENGTHS,
        "acceptance_length:",
        *by_k(mean),
        says.YAML_RATES,
        "synthetic_acceptance_rates:",
        *by_k(lambda point: f"[{', '.join(f'{rate:.4f}' for rate in point.rates)}]"),
    ]
    return "\n".join(lines) + "\n"
