"""Beam searches that the models of a run cannot make."""

from __future__ import annotations

from collections.abc import Sequence

from spsbench.errors import UsageError
from spsbench.models.causal_lm import attention_window
from spsbench.models.pair import PairSource
from spsbench.records import Arm


def require_searchable(arms: Sequence[Arm], source: PairSource, longest: int) -> None:
    """Refuse searches that the models cannot make."""
    searched = [params for arm in arms if (params := arm.sampling.beam) is not None]
    if not searched:
        return
    for params in searched:
        for flag, beams in (("--beams", params.width), ("--draft-beams", params.draft_width)):
            if beams > source.vocab_size:
                raise UsageError(
                    f"{beams} beams are more than the vocabulary's {source.vocab_size} tokens.",
                    flag=flag,
                    remedy="Give fewer.",
                )
    windows = [attention_window(part.config) for part in (source.target, source.draft)]
    narrowest = min((window for window in windows if window is not None), default=longest)
    if narrowest < longest:
        raise UsageError(
            f"attention over a window of {narrowest} tokens does not fit a tree of beams, and prompts with "
            f"outputs have up to {longest}.",
            flag="--sampling",
            remedy="Choose another sampling, shorter outputs, or models with full attention.",
        )
