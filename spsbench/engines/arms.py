"""Which arms a configuration asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from math import inf
from typing import Any

from spsbench.base.axes import (
    BEAM,
    EAGER,
    FIXED,
    MODEL,
    MODIFIED_REJECTION,
    OPENAI,
    OWN_RULE,
    RECOMMENDED,
    RELEASE,
    WORKER,
)
from spsbench.base.errors import UsageError
from spsbench.base.plugins import unknown
from spsbench.base.records import Arm, BeamParams, Processing, SamplingParams, Spec
from spsbench.config import RunConfig
from spsbench.config.models import MOST_ARMS
from spsbench.drafters.registry import (
    DRAFTERS,
    TREE,
    drafter_kind,
    parts_of,
    policy_kind,
    rule_kind,
    shape_in,
    siblings_of,
)
from spsbench.drafters.shape import Shape, shape_of
from spsbench.engines.messages import NoGraphs
from spsbench.parts.external.registry import NAMED, find_peer
from spsbench.tasks.catalogue import load_task
from spsbench.tasks.task import Task

GRAPHED = "graphed"

ENGINES = {
    EAGER: ("ars", "sps", "draft"),
    GRAPHED: ("ars", "sps", "draft"),
    "hf-generate": ("ars", "draft"),
    "hf-assisted": ("sps",),
    "hf-prompt-lookup": ("sps",),
}
"""The methods that each engine knows. One that knows a method only in part is not listed with it."""

FIXED_DRAFTING = {
    GRAPHED: (MODEL, MODIFIED_REJECTION),
    "hf-assisted": (MODEL, MODIFIED_REJECTION),
    "hf-prompt-lookup": ("lookup", "sample-and-compare"),
}
"""Drafter and rule of the engines that have but one of each."""

PEER_METHODS = ("ars", "sps")
"""What an engine of others is asked for: it is given a target, perhaps a draft, and has a rule of its own."""

PEER_DRAFTING = (MODEL, OWN_RULE)

BATCHED = (EAGER, GRAPHED)
"""Engines that decode several sequences at once."""


Drafting = tuple[Spec, Spec, Spec, int]
"""Drafter, rule, policy and K of a speculative arm."""

TaskAndArms = tuple[Task, tuple[Arm, ...]]
"""What a configuration stands for before a model is found."""


def task_and_arms(config: RunConfig, recommended: SamplingParams | None = None) -> TaskAndArms:
    """Return the task and every arm: by engine, sampling and batch, first ArS, then SpS, then the draft
    alone.

    K = 0 stands for ArS; there is no SpS arm without a draft. A policy other than fixed decides how many
    tokens a loop drafts, so it has one arm, at the largest K. ``recommended`` is the target's own sampling;
    until the target is found any stands in its place.
    """
    task = load_task(config.task, unsafe_exec=config.unsafe_exec, extract=config.extract, turns=config.turns)
    for engine in config.engines:
        _require_known_engine(engine)
    names = [BEAM if Spec.parse(name).name == BEAM else name for name in config.samplings or ()]
    names = names or [task.default_sampling]
    if names.count(BEAM) > 1:
        why = f"{BEAM} is named twice."
        remedy = "Measure the second search in a run of its own."
        raise UsageError(why, flag="--sampling", remedy=remedy)
    known = {RECOMMENDED: recommended or SamplingParams(), **task.samplings}
    for name in names:
        if name not in (*known, BEAM):
            raise unknown(name, (*known, BEAM), "--sampling")
    sampled = [name for name in names if name != BEAM]
    drafting = tuple(islice(_ways_of_drafting(config), MOST_ARMS + 1))
    _require_few(len(config.engines) * len(sampled) * len(config.batches) * max(len(drafting), 1))
    _refuse_warping_of_greedy(config, [known[name] for name in sampled])
    arms = [
        replace(arm, batch=batch)
        for engine in config.engines
        for name in sampled
        for batch in sorted(config.batches)
        for arm in _arms_of(config, engine, drafting, name, _overridden(known[name], config))
    ]
    if (params := _beam_params(config)) is not None:
        searches = [(Spec(MODEL), Spec(MODIFIED_REJECTION), Spec(FIXED), k) for k in sorted(config.ks) if k]
        arms += _arms_of(config, EAGER, searches, f"{BEAM}({params.width})", SamplingParams(beam=params))
    if not arms:
        why = "no arm remains: K = 0 needs the method ars, and each engine runs certain methods only."
        raise UsageError(why, flag="--arms", remedy="Add ars or the engine eager, or give a K above 0.")
    _require_followed_policy(config, arms)
    _require_trees(config, arms)
    _require_speedup_for_until(config, arms)
    _refuse_processing_in_other_engines(config, arms)
    if max(config.batches) > 1:
        for arm in arms:
            _require_batchable(arm, max(config.batches))
    return task, tuple(arms)


def _require_few(arms: int) -> None:
    if arms > MOST_ARMS:
        raise UsageError(
            f"the run would have {arms:,} arms or more, and at most {MOST_ARMS:,} are measured at once.",
            flag="--arms",
            remedy="Name fewer values of K, drafters, rules, policies, samplings, batches or engines.",
        )


def methods_of(engine: str) -> tuple[str, ...]:
    """The methods that a built-in or external engine knows."""
    return ENGINES.get(engine, PEER_METHODS)


def is_peer(arm: Arm) -> bool:
    """Return whether an external engine answers for an arm, in its own process."""
    return arm.engine not in ENGINES


def is_repeatable(arm: Arm) -> bool:
    """Return whether an arm's sequences can be timed again: what it drafts needs none of those before."""
    return arm.method != "sps" or is_peer(arm) or not drafter_kind(arm.drafter.name).outlives(arm.drafter)


def without_graphs(arm: Arm) -> NoGraphs | None:
    """Return which feature of an arm the engine ``graphed`` lacks; None if it runs the arm."""
    if arm.sampling.beam is not None:
        return NoGraphs("a search with beams")
    if arm.sampling.process is not None:
        return NoGraphs(arm.sampling.process.described)
    if arm.method == "sps":
        drafter, rule = FIXED_DRAFTING[GRAPHED]
        named = {"drafter": (arm.drafter, drafter), "rule": (arm.rule, rule), "policy": (arm.policy, FIXED)}
        for what, (spec, captured) in named.items():
            if spec != Spec(captured):
                return NoGraphs(f"the {what} {spec}")
    return None


def is_lossless(arm: Arm) -> bool:
    """Return whether a speculative arm's rule keeps the law.

    An external engine counts as lossless; its texts must show it.
    """
    return is_peer(arm) or rule_kind(arm.rule.name).lossless


def _require_known_engine(engine: str) -> None:
    if engine in ENGINES:
        return
    try:
        find_peer(engine)
    except UsageError as error:
        if ":" in engine or engine.partition(RELEASE)[0] in NAMED:  # a command, or an engine's options
            raise
        remedy = f', or give {WORKER}"COMMAND" or {OPENAI}URL'
        raise unknown(engine, [*ENGINES, *NAMED], "--engine", remedy) from error


def _require_speedup_for_until(config: RunConfig, arms: Sequence[Arm]) -> None:
    baselines = {arm.sampling_name for arm in arms if arm.method == "ars"}
    speculative = {arm.sampling_name for arm in arms if arm.method == "sps"}
    if config.precision is not None and (not speculative or speculative - baselines):
        raise UsageError(
            f"{config.until_ci} is about speedups, and the run lacks "
            f"{'an ArS arm to compare with' if speculative else 'an SpS arm'}.",
            flag="--until",
            remedy="Run with --arms ars,sps and a K above 0, or stop by --limit or a time, as --until 5min.",
        )


def _refuse_processing_in_other_engines(config: RunConfig, arms: Sequence[Arm]) -> None:
    process = next((arm.sampling.process for arm in arms if arm.sampling.process is not None), None)
    others = [name for name in config.engines if name != EAGER]
    if process is not None and others:
        raise UsageError(
            f"{process.described}: the engine {others[0]} does not apply it.",
            flag="--engine",
            remedy=f"Run {EAGER}, or leave it out; spsbench audit asks engines for it.",
        )


def _require_trees(config: RunConfig, arms: Sequence[Arm]) -> None:
    """Refuse trees that no arm drafts, and siblings that cannot differ."""
    drafters = {arm.drafter: shape for arm in arms if (shape := shape_in(arm.drafter)) is not None}
    if not drafters and any(shape_of(text, "--tree") for text in config.trees):
        remedy = f"Trees take the method sps, the engine {EAGER} and the policy {FIXED}."
        raise UsageError(f"no arm drafts {'+'.join(config.trees)}.", flag="--tree", remedy=remedy)
    for arm in arms:
        if arm.drafter not in drafters:
            continue
        support = 1 if arm.sampling.greedy else arm.sampling.top_k or inf
        named = dict(arm.drafter.options).get("siblings")
        drawn = siblings_of(arm.drafter) == "without"
        if drafters[arm.drafter].dynamic and named not in (None, "top"):
            why = f"{arm.drafter}: siblings of a dynamic tree are the most probable ones."
            raise UsageError(why, flag="--drafter", remedy="Leave siblings out.")
        if drawn and max(drafters[arm.drafter].branching, default=0) > support:
            raise UsageError(
                f"{arm.drafter} needs more siblings than a row under {arm.sampling_name} has, {support}.",
                flag="--tree",
                remedy=f"Add --drafter {arm.drafter.name}:siblings=top, give fewer, or another --sampling.",
            )


def _require_followed_policy(config: RunConfig, arms: Sequence[Arm]) -> None:
    """Refuse policies that leave no speculative arm, where speculation was asked for."""
    wanted = (
        "sps" in config.methods and any(config.ks) and any("sps" in methods_of(e) for e in config.engines)
    )
    if wanted and FIXED not in config.policies and not any(arm.method == "sps" for arm in arms):
        raise UsageError(
            f"no arm drafts by {', '.join(config.policies)}: a policy needs a drafter that follows "
            "it, and the engine eager.",
            flag="--policy",
            remedy="Add the drafter model, the engine eager, or the policy fixed.",
        )


def _ways_of_drafting(config: RunConfig) -> Iterator[Drafting]:
    """Each name and option is checked."""
    checked = _checked_specs(config.drafters, drafter_kind, "--drafter")
    drafters = [drafter_kind(spec.name).spelled(spec) for spec in checked]
    rules = _checked_specs(config.rules, rule_kind, "--rule")
    policies = _checked_specs(config.policies, policy_kind, "--policy")
    ks = sorted(k for k in config.ks if k > 0)
    shapes = [shape_of(text, "--tree") for text in config.trees]
    shaped = [_drafter_with_trees(drafter, shape) for drafter, shape in product(drafters, shapes)]
    _require_searched(config, shaped)
    _require_judged(shaped, rules)
    judges_trees = {rule: rule_kind(rule.name).trees for rule in rules}
    # Beside rules that take only chains, a rule that takes both is for the trees.
    both = any(map(shape_in, shaped)) and not all(judges_trees.values())
    of_trees = [rule for rule, trees in judges_trees.items() if trees and both]
    for drafter, rule, policy in product(dict.fromkeys(shaped), rules, policies):
        shape = shape_in(drafter)
        if policy.name != FIXED and (shape or not drafter_kind(drafter.name).adaptive):
            continue  # it proposes what it finds, whatever the policy
        if _why_unjudged(drafter, rule) is not None or (shape is None and rule in of_trees):
            continue
        depths = ks if shape is None else sorted({shape.depth(k) for k in ks})
        for k in depths if policy.name == FIXED else ks[-1:]:
            if shape is not None and len(parts := parts_of(drafter)) > 1:
                shape.require_branches(len(parts), k)
            yield drafter, rule, policy, k


def _require_searched(config: RunConfig, drafters: Sequence[Spec]) -> None:
    """Refuse a search with beams where all that is drafted is trees, and trees where nothing is sampled."""
    trees = [drafter for drafter in drafters if shape_in(drafter)]
    alone = len(trees) == len(drafters) or len(config.samplings or ()) == 1
    if config.beam is not None and trees and alone:
        why = f"a search with beams drafts no {shape_in(trees[0])}: its draft searches with beams, too."
        raise UsageError(why, flag="--tree", remedy=f"Leave the tree or the sampling {BEAM} out.")


def _drafter_with_trees(drafter: Spec, shape: Shape | None) -> Spec:
    """One that has its own trees or drafts only chains is refused."""
    if shape is None:
        return drafter
    if TREE not in drafter_kind(drafter.name).options:
        able = [name for name, kind in DRAFTERS.items() if TREE in kind.options]
        remedy = f"Draft with {', '.join(able)}, or leave --tree out."
        raise UsageError(f"{drafter} drafts chains, and {shape} is a tree.", flag="--tree", remedy=remedy)
    if shape_in(drafter) is not None:
        why = f"{drafter} has a tree of its own, and {shape} is another."
        raise UsageError(why, flag="--tree", remedy="Leave one of the two out.")
    options = {TREE: str(shape), **dict(drafter.options)}
    return replace(drafter, options=tuple(sorted(options.items())))


def _why_unjudged(drafter: Spec, rule: Spec) -> UsageError | None:
    if shape_in(drafter) is not None:
        try:
            rule_kind(rule.name).require_tree(siblings_of(drafter))
        except UsageError as error:
            return error
    return None


def _require_judged(drafters: Sequence[Spec], rules: Sequence[Spec]) -> None:
    """Refuse trees that no rule of a run judges, and rules for which there is no draft."""
    pairs = {(drafter, rule): _why_unjudged(drafter, rule) for drafter, rule in product(drafters, rules)}
    for place, named in enumerate((drafters, rules)):
        for one in named:
            errors = [error for pair, error in pairs.items() if pair[place] == one]
            if errors and None not in errors:
                raise next(error for error in errors if error is not None)


def _checked_specs(texts: Sequence[str], kind_of: Callable[[str, str], Any], flag: str) -> list[Spec]:
    specs = [Spec.parse(text) for text in texts]
    kinds = [kind_of(spec.name, flag) for spec in specs]
    for kind, spec in zip(kinds, specs, strict=True):
        kind.settled(spec, flag)
    named = {spec.name: kind.name for kind, spec in zip(kinds, specs, strict=True)}
    declared = Counter(named.values())
    return [  # two files that declare one name are told apart by the files
        replace(spec, called=named[spec.name])
        if ".py:" in spec.name and declared[named[spec.name]] == 1
        else spec
        for spec in specs
    ]


def _arms_of(
    config: RunConfig, engine: str, drafting: Sequence[Drafting], name: str, sampling: SamplingParams
) -> Iterator[Arm]:
    methods = [method for method in config.methods if method in methods_of(engine)]
    if "ars" in methods:
        yield Arm("ars", 0, engine, name, sampling)
    if "sps" in methods:
        if engine != EAGER:
            drafter, rule = FIXED_DRAFTING.get(engine, PEER_DRAFTING)
            ks = sorted({k for own, _, policy, k in drafting if policy.name == FIXED and not shape_in(own)})
            drafting = [(Spec(drafter), Spec(rule), Spec(FIXED), k) for k in ks]
        for own_drafter, own_rule, policy, k in drafting:
            yield Arm("sps", k, engine, name, sampling, own_drafter, own_rule, policy)
    if "draft" in methods:
        yield Arm("draft", 0, engine, name, sampling)


def _overridden(sampling: SamplingParams, config: RunConfig) -> SamplingParams:
    """With what the command line sets in its place; greedy takes only processing."""
    none = Processing()
    processing = config.process.processing or none
    changes = {name: getattr(processing, name) for name in config.process.model_dump()}
    process = replace(sampling.process or none, **changes)
    names = () if sampling.greedy else ("temperature", "top_p", "top_k")
    warping = {name: value for name in names if (value := getattr(config, name)) is not None}
    return replace(sampling, process=None if process == none else process, **warping)


def _refuse_warping_of_greedy(config: RunConfig, samplings: Sequence[SamplingParams]) -> None:
    if not samplings or not all(sampling.greedy for sampling in samplings):
        return
    settings = {"--temperature": config.temperature, "--top-p": config.top_p, "--top-k": config.top_k}
    settings |= {f"--process {name}": getattr(config.process, name) for name in ("min_p", "typical_p")}
    for flag, value in settings.items():
        if value is not None:
            raise UsageError(
                f"{value} has no effect: greedy takes the most likely token.",
                flag=flag,
                remedy="Leave it out, or add --sampling nucleus.",
            )


def refuse_beams(config: RunConfig, command: str) -> None:
    """Refuse beam search in a command that needs samples."""
    if config.beam is not None:
        raise UsageError(
            f"{BEAM} searches and samples nothing, and {command} is about samples.",
            flag="--sampling",
            remedy=f"Choose another sampling; `spsbench run --sampling {BEAM}` compares both searches.",
        )


def _beam_params(config: RunConfig) -> BeamParams | None:
    """Only the draft model can search ahead, always K steps, in our own loop."""
    if (beam := config.beam) is None:
        return None
    needed = (
        ("--engine", config.engines, EAGER),
        ("--drafter", config.drafters, MODEL),
        ("--rule", config.rules, MODIFIED_REJECTION),
        ("--policy", config.policies, FIXED),
    )
    for flag, texts, name in needed:
        if name not in [Spec.parse(text).name for text in texts]:
            remedy = f"Add {name}, or leave the sampling {BEAM} out."
            raise UsageError(f"{', '.join(texts)} cannot search with beams.", flag=flag, remedy=remedy)
    draft_width = beam.draft_width or beam.width + 2
    if draft_width < beam.width:
        why = f"{draft_width} beams of the draft cannot hold the target's {beam.width}."
        flag = f"--sampling {BEAM}:draft_width"
        raise UsageError(why, flag=flag, remedy=f"Give {beam.width} or more.")
    return BeamParams(beam.width, draft_width, beam.penalty, beam.early_stopping)


def _require_batchable(arm: Arm, sequences: int) -> None:
    speculative = arm.method == "sps"
    kind = drafter_kind(arm.drafter.name)
    own_model = arm.drafter.name != MODEL and kind.needs_of(arm.drafter)
    why = remedy = None
    if arm.engine not in BATCHED:
        why = f"the engine {arm.engine} takes one sequence"
        remedy = f"Use --engine {EAGER}."
    elif speculative and arm.policy.name != FIXED:
        why = f"the policy {arm.policy} ends each draft at a length of its own"
        remedy = "Leave --policy out."
    elif speculative and kind.outlives(arm.drafter):
        why = f"the drafter {arm.drafter} keeps what earlier sequences taught it"
        remedy = "Let it forget with each sequence."
    elif speculative and shape_in(arm.drafter) is not None:
        why = "a tree of drafts is for one sequence"
        remedy = "Draft chains."
    elif arm.sampling.history is not None:
        why = f"{arm.sampling.described} depends on the tokens before"
        remedy = "Leave out --batch or what depends on them; min_p and typical_p do not."
    elif speculative and own_model:
        why = f"the drafter {arm.drafter} runs a model for one sequence"
        remedy = "Draft with model, or with one that looks at tokens alone: lookup, suffix, ngram."
    if why is not None:
        raise UsageError(f"{sequences} sequences at once: {why}.", flag="--batch", remedy=remedy)
