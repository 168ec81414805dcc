"""The simulation as facts for JSON, and as tables, sentences and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from spsbench.drafters import rule_kind
from spsbench.law import EXACT
from spsbench.parts.whatif.messages import simulation as says
from spsbench.parts.whatif.simulate.loops import PAPERS_RULE, SEQUENCE, LawCheck
from spsbench.parts.whatif.simulate.study import Point, Question, World
from spsbench.report import NOTHING, Drawing, Plate, Table, escape, interval, number, printed, right, style
from spsbench.stats import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def facts(question: Question, worlds: Sequence[World]) -> dict[str, Any]:
    """Return everything as JSON."""
    sampler, language = question.sampler, question.language
    about = {
        "source": question.source.name,
        "synthetic": True,
        **{name: getattr(language, name) for name in ("vocabulary", "sharpness", "variation", "stay")},
        "alpha_asked": question.alpha,
        "cost": question.cost,
        "operations": question.operations,
        "sequences": question.sequences,
        "seed": sampler.seed,
        "sampling": sampler.sampling.record(),
        "rule": str(sampler.rule),
        "lossless": _claims_lossless(question),
        "fault": sampler.fault,
        "tree": None if sampler.tree is None else str(sampler.tree),
        "siblings": None if sampler.tree is None else sampler.siblings,
        "worlds": [_world_facts(question, world) for world in worlds],
    }
    return plain(about)


def _world_facts(question: Question, world: World) -> dict[str, Any]:
    return {
        "classes": world.classes,
        "contexts": world.contexts,
        "closeness": {question.source.option.replace("_", "-"): world.closeness},
        "alpha_leviathan": world.alpha,
        "alpha_deviation": world.deviation,
        "expected_acceptance": world.accepts,
        "minimum_gain": world.minimum_gain,
        "best_k": {
            "formula": world.best_k(lambda point: point.formula),
            "exact": world.best_k(lambda point: point.exact),
            "simulated": world.best_k(lambda point: point.simulated.tokens_per_loop.estimate),
        },
        "formula_p_value": world.formula_fits,
        "exact_p_value": world.exact_fits,
        "rows": [
            {
                "k": point.k,
                "loops": point.simulated.loops,
                "tokens_per_loop": asdict(point.simulated.tokens_per_loop),
                "formula": point.formula,
                "exact": point.exact,
                "reason": point.reason,
                "r_prime": asdict(point.r_prime),
                "loop_time": point.cost,
                "sequence_time": dict(zip(("mean", "sd"), point.sequence_time, strict=True)),
                "speedup": asdict(point.speedup),
                "formula_speedup": None if point.formula is None else point.formula / point.cost,
                "exact_speedup": None if point.exact is None else point.exact / point.cost,
                "operations_factor": point.operations_factor,
                "formula_operations_factor": point.formula_operations_factor,
                "enumerated": None if point.enumerated is None else point.enumerated._asdict(),
                "acceptance": point.simulated.acceptance,
            }
            for point in world.points
        ],
        "law": asdict(world.law),
    }


def page(question: Question, worlds: Sequence[World], plates: Sequence[Plate]) -> str:
    """Return the page in Markdown, with the figures that lie beside it."""
    lines = [f"# {escape(title(question))}"]
    for plate in plates:
        lines += ["", f"![{escape(plate.title)}]({plate.name}.svg)", "", escape(plate.caption)]
    for world in worlds:
        lines += ["", f"## {escape(heading(question, world))}", "", *lengths(world).as_markdown()]
        lines += ["", *factors(world).as_markdown(), ""]
        lines += [f"* {escape(sentence)}" for sentence in conclusions(question, world)]
    return "\n".join([*lines, "", says.SYNTHETIC, ""])


def screen(question: Question, worlds: Sequence[World]) -> RenderableType:
    """Return the same for a terminal."""
    parts: list[RenderableType] = [Text(title(question), style="bold")]
    for world in worlds:
        parts += ["", Text(heading(question, world), style="bold"), ""]
        parts += [lengths(world).as_rich(), "", factors(world).as_rich(), ""]
        parts += [Text(str(sentence)) for sentence in conclusions(question, world)]
    return Group(*parts, "", says.SYNTHETIC)


def title(question: Question) -> str:
    """Return what was simulated, in a line."""
    language, sampler = question.language, question.sampler
    rule = "" if sampler.rule == PAPERS_RULE else f", {sampler.rule}"
    fault = "" if sampler.fault is None else f", planted fault {sampler.fault}"
    fault += (
        "" if sampler.tree is None else f", tree {str(sampler.tree).replace('-', ',')}, {sampler.siblings}"
    )
    return (
        f"Simulation, {question.source.name}, V = {language.vocabulary}, c = {question.cost:.3f}, "
        f"{question.sequences} sequences a K{rule}{fault}"
    )


def _name(world: World) -> str:
    return "one row everywhere" if world.contexts == 1 else f"{world.contexts} contexts"


def heading(question: Question, world: World) -> str:
    """Return which tables were used, and how close the draft is."""
    option = question.source.option.replace("_", " ")
    closeness = "" if question.source.name == "table" else f"{option} {world.closeness:.4g}, "
    text = f"{_name(world).capitalize()}: {closeness}alpha {world.alpha:.4f}"
    if world.contexts > 1:
        text += f", which varies by {world.deviation:.3f} from token to token"
    if world.accepts is not None and abs(world.accepts - world.alpha) > 1e-9:
        text += f"; the rule accepts {world.accepts:.4f}"
    return text


def lengths(world: World) -> Table:
    """Return the table of tokens per loop: simulated, by the formula and exact."""
    titles = [right("tokens/loop", note="95%"), right("formula"), right("exact"), right("difference")]
    rows = [
        [
            str(point.k),
            interval(point.simulated.tokens_per_loop),
            number(point.formula, 2),
            number(point.exact, 2),
            NOTHING if expected is None else f"{point.simulated.tokens_per_loop.estimate - expected:+.2f}",
            point.reason,
        ]
        for point in world.points
        for expected in (point.exact if point.formula is None else point.formula,)
    ]
    return Table([right("K"), *titles, right("reason")], rows)


def factors(world: World) -> Table:
    """Return the table of acceptance under its exact names, and the gain."""
    titles = [right("K"), right("r_prime"), right("alpha_beta"), right("speedup", note="95%")]
    rows = [
        [
            str(point.k),
            number(point.simulated.acceptance["r_prime"], 3),
            number(point.simulated.acceptance["alpha_beta"], 3),
            interval(point.speedup, "x"),
            NOTHING if point.formula is None else f"{point.formula / point.cost:.2f}x",
            f"{point.operations_factor:.2f}x",
        ]
        for point in world.points
    ]
    return Table([*titles, right("formula"), right("operations")], rows)


def conclusions(question: Question, world: World) -> Iterator[object]:
    """The best K, the bound, the formula's fit and the law of the tokens."""
    by_k = {point.k: point for point in world.points}
    planned = world.best_k(lambda point: point.formula)
    best_k = world.best_k(lambda point: point.simulated.tokens_per_loop.estimate)
    drawn = by_k[best_k].speedup if best_k else None
    if world.accepts is None or planned is None:
        yield says.BestWithoutFormula(best_k, drawn)
    else:
        formula = by_k[planned].formula if planned else None
        theory = None if formula is None else formula / by_k[planned].cost
        yield says.BestK(planned, theory, best_k, drawn)
        yield says.LeviathansBound(world.accepts, question.cost, world.minimum_gain)
        if world.formula_fits is not None:
            yield says.FormulaFits(world.formula_fits, world.exact_fits)
    for point in world.points:
        if point.enumerated is not None:
            length, share, apart = point.enumerated
            yield says.LoopsEnumerated(point.k, length, share, 0.0 if apart < EXACT else apart)
    yield tokens_tested(question, world.law)


def tokens_tested(question: Question, law: LawCheck) -> says.TokensTested:
    """What the tokens show about the sampler."""
    leakage = law.evidence["leakage"]
    lossy = "" if _claims_lossless(question) else "lossy by design"
    return says.TokensTested(
        law.tokens,
        law.g,
        law.freedom,
        law.p_value,
        None if leakage is None else (leakage["estimate"], leakage["low"], leakage["high"]),
        law.evidence["log10_e_value"],
        [] if law.follows else [says.CellSeen(*astuple(cell)) for cell in law.worst],
        lossy if question.sampler.fault is None else "a planted fault",
    )


def _claims_lossless(question: Question) -> bool:
    return question.sampler.fault is None and rule_kind(question.sampler.rule.name).lossless


_FORMULA_DASH = (0, (5, 2))
_APART = 0.12
"""Between marks of the same K, in units of K."""


def plates(question: Question, worlds: Sequence[World]) -> list[Plate]:
    """Return Figure 1 of Chen et al. 2023 for any alpha, c and K, and the speedup."""
    with style.quiet():
        return [printed(draw(question, worlds)) for draw in (_figure1, _speedup)]


def _figure1(question: Question, worlds: Sequence[World]) -> Drawing:
    """Draw tokens per loop and time against K, as Figure 1 of Chen et al. 2023."""
    figure, (time, share, loop) = style.stamped_sheet(title(question), True, (1, 1, 1), 3.1)
    ks = [0, *question.ks]
    time.set_title(f"Time for {SEQUENCE} tokens")
    time.set_ylabel("time (target steps)")
    time.plot(0, SEQUENCE, "o", color=style.FAINT)
    for index, world in enumerate(worlds):
        means, deviations = zip(*(point.sequence_time for point in world.points), strict=True)
        _bars(time, worlds, index, means, [deviations, deviations])
        formula = [SEQUENCE * point.cost / point.formula if point.formula else None for point in world.points]
        _line(time, worlds, index, formula, _FORMULA_DASH)
    share.plot(0, 1, "o", color=style.FAINT)
    _lengths(share, worlds, "r'", "(accepted + 1) / (K + 1)", lambda point: point.k + 1)
    loop.set_title("Loop time")
    loop.set_ylabel("time (target steps)")
    loop.plot(ks, [1.0 + k * question.cost for k in ks], color=style.INK, marker="o", markersize=3.8)
    return _with_axes_and_legend(
        "figure1",
        "Figure 1 of Chen et al. 2023, simulated",
        str(says.Figure1Caption(SEQUENCE)),
        figure,
        ks,
        worlds,
    )


def _speedup(question: Question, worlds: Sequence[World]) -> Drawing:
    figure, (tokens, gain) = style.stamped_sheet(title(question), True, (1, 1), 3.1)
    gain.axhline(1.0, color=style.FAINT, linewidth=0.9)
    _lengths(tokens, worlds, "Tokens per loop", "tokens per loop", lambda point: 1.0)
    _lengths(gain, worlds, "Speedup, with the chosen c", "speedup (x)", lambda point: point.cost)
    return _with_axes_and_legend(
        "simulation", "Theory against simulation", says.SPEEDUP_CAPTION, figure, question.ks, worlds
    )


def _lengths(
    axes: Axes, worlds: Sequence[World], title: str, label: str, over: Callable[[Point], float]
) -> None:
    """Draw tokens per loop divided by ``over``: simulated, by the formula, and exact where known."""
    axes.set_title(title)
    axes.set_ylabel(label)
    for index, world in enumerate(worlds):
        estimates = [point.simulated.tokens_per_loop.over(over(point)) for point in world.points]
        below = [0.0 if estimate.low is None else estimate.estimate - estimate.low for estimate in estimates]
        above = [0.0 if each.high is None else each.high - each.estimate for each in estimates]
        _bars(axes, worlds, index, [each.estimate for each in estimates], [below, above])
        formula = [None if point.formula is None else point.formula / over(point) for point in world.points]
        _line(axes, worlds, index, formula, _FORMULA_DASH)
        exact = [None if point.exact is None else point.exact / over(point) for point in world.points]
        _line(axes, worlds, index, exact, "-")


def _bars(axes: Axes, worlds: Sequence[World], index: int, means: Sequence[float], ends: Any) -> None:
    look = style.look(index) | {"linestyle": ""}
    places = [point.k + _APART * (2 * index + 1 - len(worlds)) for point in worlds[index].points]
    axes.errorbar(places, means, yerr=np.asarray(ends), elinewidth=0.9, markersize=3.8, **look)


def _line(axes: Axes, worlds: Sequence[World], index: int, values: Sequence[float | None], dash: Any) -> None:
    pairs = zip(worlds[index].points, values, strict=True)
    points = [(point.k, value) for point, value in pairs if value is not None]
    if points:
        axes.plot(*zip(*points, strict=True), color=style.look(index)["color"], linestyle=dash, linewidth=1.2)


def _with_axes_and_legend(
    name: str, title: str, caption: str, figure: Any, ks: Sequence[int], worlds: Sequence[World]
) -> Drawing:
    for axes in figure.axes:
        style.over_k(axes, ks)
        axes.set_ylim(bottom=0)
    looks = [style.look(index) | {"linestyle": ""} for index in range(len(worlds))]
    keys = [style.key(_name(world), **look) for world, look in zip(worlds, looks, strict=True)]
    keys.append(style.key("formula", color=style.INK, linestyle=_FORMULA_DASH, linewidth=1.2))
    if any(point.exact is not None for world in worlds for point in world.points):
        keys.append(style.key("exact", color=style.INK, linewidth=1.2))
    style.legend(figure, keys)
    return Drawing(name, title, caption, figure)
