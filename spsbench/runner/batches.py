"""What is refused of arms with a batch, before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spsbench.axes import BEAM, EAGER, FIXED, MODEL
from spsbench.config import RunConfig
from spsbench.drafters.registry import drafter_kind
from spsbench.errors import UsageError
from spsbench.models.memory import cache_bytes_per_token
from spsbench.models.pair import PairSource
from spsbench.models.weights import computed_width, require_free
from spsbench.records import Arm
from spsbench.runner.backends import GRAPHED

BATCHED = (EAGER, GRAPHED)
"""Engines that decode several sequences at once."""


def require_batchable(arms: Sequence[Arm], config: RunConfig) -> None:
    """Refuse engines, drafters, policies and stopping rules that know one sequence alone.

    Raises:
        UsageError: naming the option and the remedy.
    """
    if max(config.batches) == 1:
        return
    if BEAM in (config.samplings or ()):
        raise _refused(config, "a beam search takes one prompt", "Leave --sampling beam out, or --batch.")
    if config.until is not None:
        raise UsageError(
            f"{config.until} is judged prompt by prompt, and batches are measured in waves of several.",
            flag="--until",
            remedy="Stop by --limit or --budget, or leave --batch out.",
        )
    for arm in arms:
        _require_batchable(arm, config)


def _require_batchable(arm: Arm, config: RunConfig) -> None:
    if arm.engine not in BATCHED:
        raise _refused(config, f"the engine {arm.engine} takes one sequence", f"Use --engine {EAGER}.")
    if arm.method != "sps":
        return
    if arm.policy.name != FIXED:
        raise _refused(config, f"the policy {arm.policy} ends a draft where it likes", "Leave --policy out.")
    if arm.drafter.name != MODEL and drafter_kind(arm.drafter.name).needs_of(arm.drafter):
        raise _refused(
            config,
            f"the drafter {arm.drafter} runs a model for one sequence",
            "Draft with model, or with one that looks at tokens alone: lookup, suffix, ngram.",
        )


def require_batchable_models(arms: Sequence[Arm], source: PairSource) -> None:
    """Refuse encoder-decoders, whose sources would have to be padded.

    Raises:
        UsageError: see there.
    """
    widest = max(arm.batch for arm in arms)
    if widest > 1 and source.target.is_encoder_decoder:
        raise UsageError(
            f"{source.target.name} is an encoder-decoder, and {widest} sequences at once are for decoders.",
            flag="--batch",
            remedy="Give --batch 1.",
        )


def require_room(
    arms: Sequence[Arm], source: PairSource, dtypes: tuple[str, str], device: torch.device, slots: int
) -> None:
    """Refuse batches whose caches do not fit beside the weights.

    Args:
        arms: of the run; the caches of every batch size are there at once.
        source, dtypes, device: of the pair.
        slots: the longest sequence of a row, in tokens.

    Raises:
        UsageError: with both numbers.
    """
    rows = sum({arm.batch for arm in arms if arm.batch > 1})
    if not rows:
        return
    models = [source.target] if all(arm.method == "ars" for arm in arms) else [source.target, source.draft]
    per_token = sum(
        cache_bytes_per_token(model.config, computed_width(model, dtype))
        for model, dtype in zip(models, dtypes, strict=False)
    )
    what = f"the caches of batches of {rows} rows in all, {slots} tokens each,"
    remedy = "Give smaller batches, or --max-new-tokens."
    require_free(rows * slots * per_token, device, what, "--batch", remedy)


def _refused(config: RunConfig, reason: str, remedy: str) -> UsageError:
    return UsageError(f"{max(config.batches)} sequences at once: {reason}.", flag="--batch", remedy=remedy)
