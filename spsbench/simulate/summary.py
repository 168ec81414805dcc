"""The simulation as facts for JSON, and as tables and sentences for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from spsbench.decode.rules import rule_kind
from spsbench.records import Interval
from spsbench.report.figures.style import Plate
from spsbench.report.tables import Table, right
from spsbench.report.wording import escape, interval, number
from spsbench.simulate.law import LawCheck
from spsbench.simulate.loops import PAPERS_RULE
from spsbench.simulate.study import Point, Question, World
from spsbench.stats.bootstrap import plain

_SAME = 1e-9


def facts(question: Question, worlds: Sequence[World]) -> dict[str, Any]:
    """Everything, as JSON."""
    sampler, language = question.sampler, question.language
    about = {
        "source": question.source.name,
        "synthetic": True,
        "vocabulary": language.vocabulary,
        "sharpness": language.sharpness,
        "variation": language.variation,
        "stay": language.stay,
        "alpha_asked": question.alpha,
        "cost": question.cost,
        "operations": question.operations,
        "sequences": question.sequences,
        "seed": sampler.seed,
        "sampling": sampler.sampling.record(),
        "rule": str(sampler.rule),
        "lossless": _claims_lossless(question),
        "fault": sampler.fault,
        "worlds": [_world(question, world) for world in worlds],
    }
    return plain(about)


def _world(question: Question, world: World) -> dict[str, Any]:
    return {
        "classes": world.classes,
        "contexts": world.contexts,
        "closeness": {question.source.option.removeprefix("--"): world.closeness},
        "alpha_leviathan": world.alpha,
        "alpha_deviation": world.deviation,
        "expected_acceptance": world.accepts,
        "minimum_gain": world.minimum_gain,
        "best_k": {
            "formula": world.best_k(lambda point: point.formula),
            "exact": None if _inexact(world) else world.best_k(lambda point: point.exact or 0.0),
            "simulated": world.best_k(lambda point: point.simulated.tokens_per_loop.estimate),
        },
        "formula_p_value": world.formula_fits,
        "exact_p_value": world.exact_fits,
        "rows": [_row(point) for point in world.points],
        "law": asdict(world.law),
    }


def _inexact(world: World) -> bool:
    return any(point.exact is None for point in world.points)


def _row(point: Point) -> dict[str, Any]:
    mean, deviation = point.sequence_time
    exact = point.exact
    return {
        "k": point.k,
        "loops": point.simulated.loops,
        "tokens_per_loop": asdict(point.simulated.tokens_per_loop),
        "formula": point.formula,
        "exact": exact,
        "reason": point.reason,
        "r_prime": asdict(point.r_prime),
        "loop_time": point.cost,
        "sequence_time": {"mean": mean, "sd": deviation},
        "speedup": asdict(point.speedup),
        "formula_speedup": point.formula / point.cost,
        "exact_speedup": None if exact is None else exact / point.cost,
        "operations_factor": point.operations_factor,
        "formula_operations_factor": point.formula_operations_factor,
        "acceptance": point.simulated.acceptance,
    }


def page(question: Question, worlds: Sequence[World], plates: Sequence[Plate]) -> str:
    """The same in Markdown, with the figures that lie beside it."""
    lines = [f"# {escape(title(question))}"]
    for plate in plates:
        lines += ["", f"![{escape(plate.title)}]({plate.name}.svg)", "", escape(plate.caption)]
    for world in worlds:
        lines += ["", f"## {escape(heading(question, world))}", "", *lengths(world).as_markdown()]
        lines += ["", *factors(world).as_markdown(), ""]
        lines += [f"* {escape(sentence)}" for sentence in sentences(question, world)]
    return "\n".join([*lines, "", NOTE, ""])


NOTE = "Synthetic: no model was run, and a loop takes c for each draft token and 1 for the target."
"""What is to be known of every figure here."""


def title(question: Question) -> str:
    """What was simulated, in a line."""
    language, sampler = question.language, question.sampler
    rule = "" if sampler.rule == PAPERS_RULE else f", {sampler.rule}"
    fault = "" if sampler.fault is None else f", planted fault {sampler.fault}"
    return (
        f"Simulation, {question.source.name}, V = {language.vocabulary}, c = {question.cost:.3f}, "
        f"{question.sequences} sequences a K{rule}{fault}"
    )


def name_of(world: World) -> str:
    """One of the simulated pairs of tables."""
    return "one row everywhere" if world.contexts == 1 else f"{world.contexts} contexts"


def heading(question: Question, world: World) -> str:
    """Which tables, and how close the draft is."""
    option = question.source.option.removeprefix("--").replace("-", " ")
    found = name_of(world).capitalize()
    found += f": {option} {world.closeness:.4g}, alpha {world.alpha:.4f}"
    if world.contexts > 1:
        found += f", which varies by {world.deviation:.3f} from token to token"
    if abs(world.accepts - world.alpha) > _SAME:
        found += f"; the rule accepts {world.accepts:.4f}"
    return found


def lengths(world: World) -> Table:
    """Tokens per loop: simulated, by the formula and exact."""
    titles = [right("tokens/loop", note="95%"), right("formula"), right("exact"), right("difference")]
    rows = [
        [
            str(point.k),
            interval(point.simulated.tokens_per_loop),
            f"{point.formula:.2f}",
            "-" if point.exact is None else f"{point.exact:.2f}",
            f"{point.simulated.tokens_per_loop.estimate - point.formula:+.2f}",
            point.reason,
        ]
        for point in world.points
    ]
    return Table([right("K"), *titles, right("reason")], rows)


def factors(world: World) -> Table:
    """Acceptance under its exact names, and what it gains."""
    titles = [
        right("K"),
        right("r_prime"),
        right("alpha_beta"),
        right("speedup", note="95%"),
        right("formula"),
        right("operations"),
    ]
    rows = [
        [
            str(point.k),
            number(point.simulated.acceptance["r_prime"], 3),
            number(point.simulated.acceptance["alpha_beta"], 3),
            interval(point.speedup, "x"),
            f"{point.formula / point.cost:.2f}x",
            f"{point.operations_factor:.2f}x",
        ]
        for point in world.points
    ]
    return Table(titles, rows)


def sentences(question: Question, world: World) -> list[str]:
    """The best K, the bound, the formula's fit and the law of the tokens."""
    lines = [_best(world), _bound(question, world)]
    if (fit := _fit(world)) is not None:
        lines.append(fit)
    return [*lines, law_sentence(question, world.law)]


def _best(world: World) -> str:
    by_k = {point.k: point for point in world.points}
    planned = world.best_k(lambda point: point.formula)
    found = world.best_k(lambda point: point.simulated.tokens_per_loop.estimate)
    theory = f"{by_k[planned].formula / by_k[planned].cost:.2f}x" if planned else "1x, ArS"
    drawn = interval(by_k[found].speedup, "x") if found else "1x, ArS"
    return f"Best K: {planned} by the formula ({theory}), {found} simulated ({drawn})."


def _bound(question: Question, world: World) -> str:
    if world.accepts <= question.cost:
        return f"Leviathan's bound: alpha {world.accepts:.3f} is not above c {question.cost:.3f}; no K gains."
    return f"Leviathan's bound: the best K gains at least (1 + alpha) / (1 + c) = {world.minimum_gain:.2f}x."


def _fit(world: World) -> str | None:
    """Whether formula and exact law fit all K together."""
    if world.formula_fits is None:
        return None
    fits = f"All K together: the formula fits with p = {world.formula_fits:.2g}"
    return fits + ("." if world.exact_fits is None else f", the exact law with p = {world.exact_fits:.2g}.")


def law_sentence(question: Question, law: LawCheck) -> str:
    """What the tokens say about the sampler."""
    found, leakage = law.evidence, law.evidence["leakage"]
    tested = (
        f"{law.tokens:,} tokens: G = {law.g:.0f} on {law.freedom} degrees of freedom, p = {law.p_value:.2g}"
    )
    if leakage is not None:
        share = Interval(leakage["estimate"], leakage["low"], leakage["high"])
        tested += f"; leakage {share.estimate:.1%} [{share.low:.1%}, {share.high:.1%}]"
    tested += f"; e-value 10^{found['log10_e_value']:.1f}. "
    if law.follows:
        return f"{tested}No sign that they do not follow the target."
    cells = ", ".join(
        f"token {cell.token} in context {cell.context} {cell.seen} times, {cell.expected:.0f} expected"
        for cell in law.worst
    )
    return f"{tested}They do NOT follow the target{_excuse(question)}: {cells}."


def _excuse(question: Question) -> str:
    """Why tokens need not follow the target."""
    if question.sampler.fault is not None:
        return " (a planted fault)"
    return "" if _claims_lossless(question) else " (lossy by design)"


def _claims_lossless(question: Question) -> bool:
    sampler = question.sampler
    return sampler.fault is None and rule_kind(sampler.rule.name).lossless
