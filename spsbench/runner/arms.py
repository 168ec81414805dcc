"""Which arms a configuration asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches

from spsbench.config import RunConfig
from spsbench.errors import UsageError
from spsbench.records import Arm, SamplingParams

ENGINES = {
    "eager": ("ars", "sps", "draft"),
    "graphed": ("ars", "sps", "draft"),
    "hf-generate": ("ars", "draft"),
    "hf-assisted": ("sps",),
    "hf-prompt-lookup": ("sps",),
}
"""The methods that each engine knows. One that knows a method only in part is not listed with it."""


def arms_of(config: RunConfig, known: Mapping[str, SamplingParams], default: str) -> tuple[Arm, ...]:
    """Every arm of a run: by engine and sampling, ArS first, then SpS by K, then the draft alone.

    K = 0 stands for ArS; there is no SpS arm without a draft.

    Args:
        config: the run's settings.
        known: the task's samplings by name.
        default: the sampling that is used unless the configuration names others.

    Raises:
        UsageError: an unknown sampling or engine, or no arm at all.
    """
    _known("--engine", config.engines, tuple(ENGINES))
    names = config.samplings or (default,)
    _known("--sampling", names, tuple(known))
    arms = tuple(
        arm
        for engine in config.engines
        for name in names
        for arm in _under(config, engine, name, _overridden(known[name], config))
    )
    if not arms:
        raise UsageError(
            "no arm is left: K = 0 leaves none without ars, and an engine only runs the methods it knows.",
            flag="--arms",
            remedy="Add ars or the engine eager, or give a K above 0.",
        )
    return arms


def _under(config: RunConfig, engine: str, name: str, sampling: SamplingParams) -> Iterator[Arm]:
    methods = [method for method in config.methods if method in ENGINES[engine]]
    if "ars" in methods:
        yield Arm("ars", 0, engine, name, sampling)
    if "sps" in methods:
        for k in sorted(config.ks):
            if k > 0:
                yield Arm("sps", k, engine, name, sampling)
    if "draft" in methods:
        yield Arm("draft", 0, engine, name, sampling)


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


def _known(flag: str, names: tuple[str, ...], known: tuple[str, ...]) -> None:
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"Did you mean {close[0]}? " if close else ""
            raise UsageError(
                f"{name!r} is unknown.", flag=flag, remedy=f"{hint}Choose from {', '.join(known)}."
            )
