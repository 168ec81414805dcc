"""``spsbench simulate``: no model at all, theory against simulation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from spsbench.base import (
    CHAIN,
    MODIFIED_REJECTION,
    TREE_RULE,
    UsageError,
    make_folder,
    require_makeable,
    unknown,
)
from spsbench.cli import Common, asks, option, options, present, say, values
from spsbench.config import refuse_together
from spsbench.parts.verify.effort import TREE_FAULTS

if TYPE_CHECKING:
    from spsbench.base import Spec
    from spsbench.drafters import Shape, Siblings
    from spsbench.parts.whatif.simulate.study import Question
    from spsbench.parts.whatif.simulate.tables import Source


ALPHA = 0.8
COST = 1.8 / 14.1
OPERATIONS = 4.0 / 70.0
"""c and c^ of Chen et al. 2023: 1.8 and 14.1 ms a token, 4 and 70 billion parameters. Alpha is round."""

FAULTS = (
    *("lecture-test", "inverted-ratio", "no-residual", "unscaled-residual", "bonus-from-draft"),
    *("row-off-by-one", "residual-row", "one-uniform", "constant-uniform", "lenience"),
)
"""Wrong samplers of ``verify --control all`` that are wrong on tables, too, which have no caches."""


FACTS_FILE = "simulation.json"
"""A folder that has it holds a simulation, and may be written again."""

TARGET = "The target"

OF_TARGET = ("vocabulary", "sharpness", "variation", "stay")
"""Options of a source that say what the target is like."""

_TABLE_SAYS = "the table says what both models are."


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(Common):
    """The options of ``simulate``."""

    alpha: str | None = option(
        "--alpha A", "Acceptance probability of a draft token, above 0 and below 1. Default: 0.8."
    )
    cost: str | None = option(
        "--cost C", "c, time of a draft forward over a target forward. Default: 1.8/14.1, from Chen et al."
    )
    k: str | None = option("--k LIST", "Lookahead: 4, 2,4 or 1..8. Default: 1..8; with --formula 0..7.")
    source: str | None = option(
        "--source NAME",
        "dirichlet, temperature or ngram. In place of --alpha it may say how close the draft is: "
        "dirichlet:concentration=20 (larger is closer), temperature:draft_temperature=0.5 (1 is the "
        "target), ngram:dependence=0.3 (share of the target's row that depends on two tokens). Of "
        "the target: vocabulary=32, sharpness=2 (standard deviation of the logits), variation=0.9 "
        "(how unequal easy and hard contexts are, 0 to 0.99), stay=0.95 (chance that easy stays "
        'easy and hard hard). Or a file of both models: {"target": [[...]], "draft": [[...]]}, one '
        "row everywhere or one after each token. Default: dirichlet.",
    )
    rule: str | None = option(
        "--rule NAME",
        "What accepts draft tokens, see `spsbench list rules`. Default: modified-rejection; of trees "
        "recursive-rejection.",
        options.Panel.DRAFTING,
    )
    tree: str | None = option(
        "--tree SHAPE",
        "Drafts are trees with so many siblings by depth: 4,2,1. Behind it how they are chosen: "
        "4,2,1:siblings=without (replacement), independent or top (the most probable). Default: "
        "chain; siblings without, k-seq: independent.",
        options.Panel.DRAFTING,
    )
    fault: str | None = option(
        "--fault NAME",
        f"Inject a faulty sampler: {', '.join(FAULTS)}; or one of block verification and trees with "
        f"its own drafts: {', '.join(map(repr, TREE_FAULTS))}.",
        options.Panel.DRAFTING,
    )
    tokens: str | None = option("--tokens N", "Tokens for each K, in sequences of 128. Default: 6400.")
    seed: str | None
    formula: bool = option("--formula", "Print only what the formula predicts; nothing is simulated.")
    out: Path | None = option(
        "--out DIR", "Write figures, Markdown and JSON there. Default: nothing is written."
    )
    contexts: str | None = option(
        "--contexts LIST",
        "Classes of tokens that a row depends on; 1 is the same row everywhere. Default: 1,32; ngram: 8.",
        TARGET,
    )
    operations: str | None = option(
        "--operations C",
        "c^, operations of a draft forward over a target forward. Default: 4/70, from Chen et al.",
        TARGET,
    )
    temperature: str | None
    top_p: str | None
    top_k: str | None


@asks(SimulateOptions, needed="rule tree")
def simulate(wanted: SimulateOptions) -> None:
    """Compare theory with simulated loops; target and draft are random tables, no model is needed.

    Example: spsbench simulate --alpha 0.8 --cost 0.13 --k 1..8
    """
    (show_formula if wanted.formula else simulate_loops)(wanted)


def show_formula(wanted: SimulateOptions) -> None:
    """Print expected tokens per loop and speedup for every K, and the best K."""
    from rich.console import Group

    from spsbench.config import parse_ks
    from spsbench.law import minimum_gain
    from spsbench.parts.whatif.messages.simulation import FORMULA_ALONE
    from spsbench.report import Table, right
    from spsbench.stats import KS, leviathan

    alpha = values.between(wanted.alpha, "--alpha", 0, 1, ALPHA)
    c = values.number(wanted.cost, "--cost", 0, COST)
    gain = minimum_gain(alpha, c)  # checks both
    loop = leviathan(alpha, c)
    best = loop.best_k(KS)
    by_k = {k: (loop.tokens(k), loop.speedup(k)) for k in parse_ks(wanted.k or "0..7")}
    facts = {
        "alpha": alpha,
        "c": c,
        "best_k": best,
        "best_speedup": loop.speedup(best),
        "minimum_gain": gain,
        "rows": [{"k": k, "tokens_per_loop": n, "speedup": factor} for k, (n, factor) in by_k.items()],
    }
    rows = [[str(k), f"{n:.3f}", f"{factor:.2f}x"] for k, (n, factor) in by_k.items()]
    table = Table([*map(right, ("K", "tokens/loop", "speedup"))], rows)
    answer = f"Best: K={best} with {facts['best_speedup']:.2f}x."
    screen = Group(table.as_rich(), "", answer, FORMULA_ALONE)
    present(lambda: facts, lambda: screen, json=wanted.json, quiet=wanted.quiet)


def simulate_loops(wanted: SimulateOptions) -> None:
    """Simulate what was asked for, print it and write it."""
    if wanted.out is not None:
        _require_folder(wanted.out)
    question = _checked_question(wanted)
    from spsbench.base import write_json, write_text
    from spsbench.cli import watching
    from spsbench.parts.whatif.simulate.study import prepare, study
    from spsbench.parts.whatif.simulate.summary import facts, page, plates, screen
    from spsbench.report import save

    pairs = prepare(question)
    if (folder := wanted.out) is not None:  # before anything is simulated
        make_folder(folder, "--out")
    total = len(question.classes) * len(question.ks) * question.sequences
    with watching(quiet=wanted.quiet, moving=True) as watcher:
        watcher.stage(f"Simulating {total:,} sequences", total)
        worlds = study(question, pairs, watcher.step)
    loops = sum(point.simulated.loops for world in worlds for point in world.points)
    say(f"{loops:,} loops simulated", quiet=wanted.quiet)
    if folder is not None:
        drawn = plates(question, worlds)
        for plate in drawn:
            save(plate, folder)
        write_json(folder / FACTS_FILE, facts(question, worlds))
        write_text(folder / "simulation.md", page(question, worlds, drawn))
        say(f"Figures, page and JSON are in {folder}", quiet=wanted.quiet)
    present(
        lambda: facts(question, worlds),
        lambda: screen(question, worlds),
        json=wanted.json,
        quiet=wanted.quiet,
    )


def _require_folder(out: Path) -> None:
    """Refuse a folder that cannot be made, or holds something else."""
    require_makeable(out, "--out")
    if out.is_dir() and any(out.iterdir()) and not (out / FACTS_FILE).is_file():
        remedy = "Name a directory that is empty or does not exist."
        raise UsageError(f"{out} is not empty and holds no simulation.", flag="--out", remedy=remedy)


def _checked_question(wanted: SimulateOptions) -> Question:
    from spsbench.base import Spec
    from spsbench.parts.whatif.simulate.tables import SOURCES, Language, read_table

    named = Spec.parse(wanted.source or "dirichlet")
    size = None
    typed = {name: str(value) for name, value in named.options}
    flag = f"--source {named.name}"
    contexts = wanted.contexts
    alpha: float | None = None
    distance: float | None = 0.0
    if named.name not in SOURCES and (named.name.endswith(".json") or Path(named.name).is_file()):
        if typed:
            raise UsageError(_TABLE_SAYS, flag=flag, remedy=f"Leave {next(iter(typed))} out.")
        refuse_together("simulate", {**vars(wanted), "table": named.name})
        source, *table = read_table(Path(named.name))
        contexts, size = map(str, table)
    elif named.name in SOURCES:
        source = SOURCES[named.name]
        alpha, distance = _alpha_or_distance(named, wanted.alpha, source)
    else:
        raise unknown(named.name, SOURCES, "--source", more=", or a JSON file")
    language = Language(
        vocabulary=int(
            values.number(size or typed.get("vocabulary"), f"{flag}:vocabulary", 2, 32, whole=True)
        ),
        sharpness=values.between(typed.get("sharpness"), f"{flag}:sharpness", 0, 50, 2.0),
        variation=values.between(typed.get("variation"), f"{flag}:variation", 0, 0.99, 0.9),
        stay=values.between(typed.get("stay"), f"{flag}:stay", 0, 1, 0.95),
        seed=values.seed(wanted.seed),
    )
    classes = _classes(contexts, source, language.vocabulary)
    operations = values.number(wanted.operations, "--operations", 0, OPERATIONS)
    tokens = int(values.number(wanted.tokens, "--tokens", 1, 6400, whole=True))
    cost = values.number(wanted.cost, "--cost", 0, COST)
    sampling = values.sampling(wanted)
    if sampling.greedy:
        why = "a greedy target leaves nothing to chance, got 0."
        raise UsageError(why, flag="--temperature", remedy="Give a temperature above 0.")
    rule = _possible_rule(wanted)
    tree, siblings = _shape_and_siblings(
        wanted, rule, min(language.vocabulary, sampling.top_k or language.vocabulary)
    )
    ks = _ks(wanted.k) if tree is None else (tree.depth(0),)
    for each in classes:
        source.require_possible(replace(language, classes=each), distance)
    # torch comes with these: all that was typed has been checked by now.
    from spsbench.parts.whatif.simulate.loops import Sampler
    from spsbench.parts.whatif.simulate.study import Question

    sampler = Sampler(sampling, rule, wanted.fault, language.seed, tree, siblings)
    return Question(source, language, classes, alpha, distance, ks, cost, operations, tokens, sampler)


def _ks(text: str | None) -> tuple[int, ...]:
    from spsbench.config import parse_ks

    ks = parse_ks(text or "1..8")
    if 0 in ks:
        remedy = "Give a K from 1 on, e.g. 1..8; 0 is ArS, one token a loop."
        raise UsageError("a simulated loop drafts at least one token, got 0.", flag="--k", remedy=remedy)
    return tuple(sorted(ks))


def _alpha_or_distance(named: Spec, alpha: str | None, source: Source) -> tuple[float | None, float | None]:
    for name, value in named.options:
        flag = f"--source {source.name}:{name}"
        if name in OF_TARGET:
            continue
        if name != source.option:
            raise unknown(name, [source.option, *OF_TARGET], f"--source {source.name}", sort="option")
        if alpha is not None:
            raise UsageError(
                "both say how close the draft is.", flag="--alpha", remedy=f"Leave it or {name} out."
            )
        return None, source.distance(values.between(str(value), flag, *_LIMITS[name]))
    chosen = values.between(alpha, "--alpha", 0, 1, ALPHA)
    if chosen in (0.0, 1.0):
        raise UsageError(
            f"no draft is solved for at {alpha}, where {'everything' if chosen else 'nothing'} is accepted.",
            flag="--alpha",
            remedy="Give a number above 0 and below 1, or --formula.",
        )
    return chosen, None


_LIMITS = {
    "concentration": (1e-6, 1e7, 20.0),
    "draft_temperature": (1e-3, 1e3, 0.5),
    "dependence": (0.0, 1.0, 0.3),
}
"""The least, the most, and an example."""


def _classes(text: str | None, source: Source, vocabulary: int) -> tuple[int, ...]:
    if text is None:
        return (min(8, vocabulary),) if source.order == 2 else tuple(dict.fromkeys((1, min(32, vocabulary))))
    return values.counts(text, "--contexts", "Give one or several: 1,32.")


def _possible_rule(wanted: SimulateOptions) -> Spec:
    from spsbench.base import Spec
    from spsbench.drafters import rule_kind

    text, fault = wanted.rule, wanted.fault
    usual = MODIFIED_REJECTION if fault or wanted.tree in (None, CHAIN) else TREE_RULE
    if text in FAULTS and text != "lenience":
        remedy = f"Give --fault {text}."
        raise UsageError(f"{text} is a planted fault, not a rule.", flag="--rule", remedy=remedy)
    rule = Spec.parse(text or usual)
    rule_kind(rule.name).settled(rule)
    if fault is not None and fault not in (*FAULTS, *TREE_FAULTS):
        raise unknown(fault, (*FAULTS, *TREE_FAULTS), "--fault")
    if fault is not None and rule.name != MODIFIED_REJECTION:
        raise UsageError(
            f"{fault} is a fault of {MODIFIED_REJECTION if fault in FAULTS else 'a rule of its own'}, "
            f"and the rule is {rule}.",
            flag="--fault",
            remedy="Leave --rule out.",
        )
    return rule


_SIBLINGS: tuple[Siblings, ...] = ("without", "independent", "top")


def _shape_and_siblings(wanted: SimulateOptions, rule: Spec, support: int) -> tuple[Shape | None, Siblings]:
    """Without a shape drafts are chains; ``support`` is how many tokens a row has."""
    from spsbench.base import K_SEQ, Spec
    from spsbench.drafters import Shape, rule_kind, shape_of

    flag = "--tree"
    named = Spec.parse(wanted.tree or CHAIN)
    fault = wanted.fault
    how = dict(named.options)
    chosen = None if "siblings" not in how else str(how.pop("siblings"))
    if how:
        raise unknown(next(iter(how)), ["siblings"], flag, sort="option")
    shape = shape_of(named.name, flag)
    if (shape or chosen) and fault is not None:
        raise UsageError(f"{fault} has its own drafts.", flag=flag, remedy="Leave it or --fault out.")
    if fault in TREE_FAULTS:
        from spsbench.parts.verify.tree_faults import FAULTS as PLANTED

        planted = PLANTED[fault]
        return Shape(tuple(planted.branching)), planted.siblings
    if shape is None:
        if chosen is not None:
            raise UsageError(
                "a chain has no siblings.", flag=flag, remedy="Give a tree, e.g. 2,1:siblings=top."
            )
        return None, "without"
    name = chosen or ("independent" if rule.name == K_SEQ else "without")
    siblings = next((sibling for sibling in _SIBLINGS if sibling == name), None)
    if siblings is None:
        raise unknown(name, _SIBLINGS, f"{flag} siblings")
    rule_kind(rule.name).require_tree(siblings)
    if wanted.k is not None:
        raise UsageError("a tree has its own depth.", flag="--k", remedy="Leave --k or --tree out.")
    if shape.dynamic:
        raise UsageError("tables draw static trees.", flag=flag, remedy="Give siblings by depth, e.g. 4,2,1.")
    if siblings != "independent" and max(shape.branching) > support:
        raise UsageError(
            f"{max(shape.branching)} different siblings, and a row has {support} tokens.",
            flag=flag,
            remedy="Give fewer siblings, a larger vocabulary, or siblings=independent.",
        )
    return shape, siblings
