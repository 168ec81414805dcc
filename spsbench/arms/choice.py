"""Which arms a configuration asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from spsbench.arms.beams import beam_arms, require_beams_used
from spsbench.arms.engines import ENGINES, FIXED_DRAFTING, PEER_DRAFTING, PEER_METHODS
from spsbench.axes import BEAM, EAGER, FIXED
from spsbench.config import RunConfig
from spsbench.decode.rule_kinds import rule_kind
from spsbench.drafters.policy_kinds import policy_kind
from spsbench.drafters.registry import drafter_kind
from spsbench.errors import UsageError
from spsbench.peers.named import NAMED
from spsbench.peers.registry import OPENAI, WORKER, find_peer
from spsbench.plugins import unknown
from spsbench.records import Arm, SamplingParams, Spec


def arms_of(config: RunConfig, known: Mapping[str, SamplingParams], default: str) -> tuple[Arm, ...]:
    """Every arm of a run: by engine, sampling and batch, first ArS, then SpS, then the draft alone.

    K = 0 stands for ArS; there is no SpS arm without a draft. A policy other than fixed decides how many
    tokens a loop drafts, so it has one arm, at the largest K.
    """
    for engine in config.engines:
        _require_engine(engine)
    names = config.samplings or (default,)
    _known("--sampling", names, (*known, BEAM))
    drafting = tuple(_drafting(config))
    sampled = [name for name in names if name != BEAM]
    _require_settings_used(config, [known[name] for name in sampled])
    arms = tuple(
        replace(arm, batch=batch)
        for engine in config.engines
        for name in sampled
        for batch in sorted(config.batches)
        for arm in _under(config, engine, drafting, name, _overridden(known[name], config))
    )
    if BEAM in names:
        arms += tuple(beam_arms(config, sorted(k for k in config.ks if k > 0)))
    else:
        require_beams_used(config)
    if not arms:
        raise UsageError(
            "no arm remains: K = 0 needs the method ars, and each engine runs certain methods only.",
            flag="--arms",
            remedy="Add ars or the engine eager, or give a K above 0.",
        )
    _require_drafting(config, arms)
    return arms


def methods_of(engine: str) -> tuple[str, ...]:
    """The methods that a built-in or external engine knows."""
    return ENGINES.get(engine, PEER_METHODS)


def is_peer(arm: Arm) -> bool:
    """Whether an external engine answers for an arm, in its own process."""
    return arm.engine not in ENGINES


def is_lossless(arm: Arm) -> bool:
    """Whether a speculative arm's rule keeps the law; of an engine of others it is for its texts to show."""
    return is_peer(arm) or rule_kind(arm.rule.name).lossless


def _require_engine(engine: str) -> None:
    """Refuse what is neither a built-in nor an external engine."""
    if engine in ENGINES:
        return
    try:
        find_peer(engine)
    except UsageError as error:
        if ":" in engine or engine in NAMED:  # a command, or an engine's options
            raise
        more = f', or give {WORKER}"COMMAND" or {OPENAI}URL'
        raise unknown(engine, [*ENGINES, *NAMED], "--engine", more) from error


def require_stoppable(config: RunConfig, arms: Sequence[Arm]) -> None:
    """Refuse ``until`` without a speedup to judge, and what ends a run early in a shard."""
    for flag, value in (("--until", config.until), ("--budget", config.budget_s)):
        if value is not None and config.shard is not None:
            raise UsageError(
                f"{value} is given together with shard {config.shard}; shards end at the same prompt.",
                flag=flag,
                remedy="Give --limit in its place, or run without --shard.",
            )
    if config.until is None:
        return
    baselines = {arm.sampling_name for arm in arms if arm.method == "ars"}
    speculative = {arm.sampling_name for arm in arms if arm.method == "sps"}
    if not speculative or speculative - baselines:
        lacking = "an ArS arm to compare with" if speculative else "an SpS arm"
        raise UsageError(
            f"{config.until} is about speedups, and the run lacks {lacking}.",
            flag="--until",
            remedy="Run with --arms ars,sps and a K above 0, or stop by --limit or --budget.",
        )


def _require_drafting(config: RunConfig, arms: Sequence[Arm]) -> None:
    """Refuse policies that leave no speculative arm, where speculation was asked for."""
    wanted = (
        "sps" in config.methods and any(config.ks) and any("sps" in methods_of(e) for e in config.engines)
    )
    if wanted and FIXED not in config.policies and not any(arm.method == "sps" for arm in arms):
        raise UsageError(
            f"no arm drafts by {', '.join(config.policies)} says: a policy takes a drafter that "
            "heeds it, and the engine eager.",
            flag="--policy",
            remedy="Add the drafter model, the engine eager, or the policy fixed.",
        )


Drafting = tuple[Spec, Spec, Spec, int]
"""Drafter, rule, policy and K of a speculative arm."""


def _drafting(config: RunConfig) -> Iterator[Drafting]:
    """Every way of drafting and accepting that a configuration asks for; each name and option checked."""
    drafters = [_checked(text, drafter_kind, "--drafter") for text in config.drafters]
    rules = [_checked(text, rule_kind, "--rule") for text in config.rules]
    policies = [_checked(text, policy_kind, "--policy") for text in config.policies]
    ks = sorted(k for k in config.ks if k > 0)
    for drafter, rule, policy in product(drafters, rules, policies):
        if policy.name != FIXED and not drafter_kind(drafter.name).adaptive:
            continue  # it proposes what it has, whatever the policy
        for k in ks if policy.name == FIXED else ks[-1:]:
            yield drafter, rule, policy, k


def _checked(text: str, kind_of: Callable[[str, str], Any], flag: str) -> Spec:
    spec = Spec.parse(text)
    kind_of(spec.name, flag).settled(spec, flag)
    return spec


def _under(
    config: RunConfig, engine: str, drafting: Sequence[Drafting], name: str, sampling: SamplingParams
) -> Iterator[Arm]:
    methods = [method for method in config.methods if method in methods_of(engine)]
    if "ars" in methods:
        yield Arm("ars", 0, engine, name, sampling)
    if "sps" in methods:
        offered = drafting if engine == EAGER else _of_engine(engine, drafting)
        for drafter, rule, policy, k in offered:
            yield Arm("sps", k, engine, name, sampling, drafter, rule, policy)
    if "draft" in methods:
        yield Arm("draft", 0, engine, name, sampling)


def _of_engine(engine: str, drafting: Sequence[Drafting]) -> Iterator[Drafting]:
    """What an engine with a drafter and its own rule makes of the Ks that were asked for."""
    drafter, rule = FIXED_DRAFTING.get(engine, PEER_DRAFTING)
    for k in sorted({k for *_, policy, k in drafting if policy.name == FIXED}):
        yield Spec(drafter), Spec(rule), Spec(FIXED), k


def _overridden(sampling: SamplingParams, config: RunConfig) -> SamplingParams:
    """The task's sampling with what the command line sets in its place (greedy has nothing to set)."""
    if sampling.greedy:
        return sampling
    return replace(
        sampling,
        temperature=sampling.temperature if config.temperature is None else config.temperature,
        top_p=sampling.top_p if config.top_p is None else config.top_p,
        top_k=sampling.top_k if config.top_k is None else config.top_k,
    )


def _require_settings_used(config: RunConfig, samplings: Sequence[SamplingParams]) -> None:
    """Refuse a temperature, top-p or top-k where nothing is sampled; of beams see ``arms.beams``."""
    if not samplings or not all(sampling.greedy for sampling in samplings):
        return
    for name in ("temperature", "top_p", "top_k"):
        if (value := getattr(config, name)) is not None:
            raise UsageError(
                f"{value} has no effect: greedy takes the most likely token.",
                flag=f"--{name.replace('_', '-')}",
                remedy="Leave it out, or add --sampling nucleus.",
            )


def _known(flag: str, names: tuple[str, ...], known: tuple[str, ...]) -> None:
    for name in names:
        if name not in known:
            raise unknown(name, known, flag)
