"""Arms of beam search: what a configuration asks for, and what is refused of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spsbench.axes import BEAM, EAGER, FIXED, MODEL, MODIFIED_REJECTION
from spsbench.config import RunConfig
from spsbench.errors import UsageError
from spsbench.records import Arm, BeamParams, SamplingParams, Spec

USUAL_BEAMS = 4
"""The width of a search that does not say its own, as T5's and BART's authors use for summaries."""

_WIDER = 2
"""How many more beams the draft has unless a run says so."""


def beam_arms(config: RunConfig, ks: Sequence[int]) -> Iterator[Arm]:
    """Exact beam search, its speculation at each K, and the draft's own search, as the methods say."""
    params = _params(config)
    name, sampling = f"{BEAM}({params.width})", SamplingParams(beam=params)
    if "ars" in config.methods:
        yield Arm("ars", 0, EAGER, name, sampling)
    if "sps" in config.methods:
        for k in ks:
            yield Arm("sps", k, EAGER, name, sampling)
    if "draft" in config.methods:
        yield Arm("draft", 0, EAGER, name, sampling)


def require_beams_used(config: RunConfig) -> None:
    """Refuse settings of a beam search where no sampling is one."""
    for flag, value in _given(config):
        raise UsageError(
            f"{value} is of a beam search, and no sampling is {BEAM}.",
            flag=flag,
            remedy=f"Add --sampling {BEAM}, or leave it out.",
        )


def refuse_beams(config: RunConfig, command: str) -> None:
    """Refuse beam search in a command that needs samples."""
    if BEAM in (config.samplings or ()):
        raise UsageError(
            f"{BEAM} searches and samples nothing, and {command} is about samples.",
            flag="--sampling",
            remedy=f"Choose another sampling; `spsbench run --sampling {BEAM}` compares both searches.",
        )
    require_beams_used(config)


def _params(config: RunConfig) -> BeamParams:
    """The search that a configuration describes."""
    _refuse_sampling(config)
    _refuse_drafting(config)
    width = config.beams or USUAL_BEAMS
    draft_width = config.draft_beams or width + _WIDER
    if draft_width < width:
        raise UsageError(
            f"{draft_width} beams of the draft cannot hold the target's {width}.",
            flag="--draft-beams",
            remedy=f"Give {width} or more.",
        )
    penalty = 1.0 if config.length_penalty is None else config.length_penalty
    return BeamParams(width, draft_width, penalty, config.early_stopping)


def _refuse_sampling(config: RunConfig) -> None:
    for flag, value in (
        ("--temperature", config.temperature),
        ("--top-p", config.top_p),
        ("--top-k", config.top_k),
    ):
        if value is not None:
            raise UsageError(
                f"{value} changes a distribution, and a beam search samples from none.",
                flag=flag,
                remedy=f"Leave it out, or measure {BEAM} in a run of its own.",
            )


def _refuse_drafting(config: RunConfig) -> None:
    """Only the draft model can search ahead, always K steps, in our own loop."""
    needed = (
        ("--engine", config.engines, EAGER),
        ("--drafter", config.drafters, MODEL),
        ("--rule", config.rules, MODIFIED_REJECTION),
        ("--policy", config.policies, FIXED),
    )
    for flag, given, name in needed:
        if name not in [Spec.parse(text).name for text in given]:
            raise UsageError(
                f"{', '.join(given)} cannot search with beams.",
                flag=flag,
                remedy=f"Add {name}, or leave the sampling {BEAM} out.",
            )


def _given(config: RunConfig) -> Iterator[tuple[str, object]]:
    """What was set of a beam search, by the flag that sets it."""
    values = {
        "--beams": config.beams,
        "--draft-beams": config.draft_beams,
        "--length-penalty": config.length_penalty,
        "--set early_stopping": config.early_stopping or None,
    }
    yield from ((flag, value) for flag, value in values.items() if value is not None)
