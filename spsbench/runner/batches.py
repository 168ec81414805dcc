"""What is refused of arms with a batch, before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spsbench.axes import BEAM, EAGER, FIXED, MODEL
from spsbench.config import RunConfig
from spsbench.config.models import ONNXRUNTIME
from spsbench.drafters.registry import drafter_kind
from spsbench.engines.buffer import MOST_BYTES
from spsbench.errors import UsageError
from spsbench.models.memory import cache_bytes_per_token
from spsbench.models.pair import PairSource
from spsbench.models.weights import computed_width, require_free, weight_bytes
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
    if drafter_kind(arm.drafter.name).outlives(arm.drafter):
        raise _refused(
            config,
            f"the drafter {arm.drafter} remembers what was written in a row",
            "Let it forget with each sequence.",
        )
    if arm.drafter.name != MODEL and drafter_kind(arm.drafter.name).needs_of(arm.drafter):
        raise _refused(
            config,
            f"the drafter {arm.drafter} runs a model for one sequence",
            "Draft with model, or with one that looks at tokens alone: lookup, suffix, ngram.",
        )


def require_filled(arms: Sequence[Arm], sequences: int) -> None:
    """Refuse batches that are never full, whose rows would be charged as if they were.

    Args:
        arms: of the run.
        sequences: of each arm, in this shard.

    Raises:
        UsageError: with both numbers.
    """
    widest = max(arm.batch for arm in arms)
    if widest > 1 and sequences < widest:
        raise UsageError(
            f"batches of {widest} are never full with {sequences} sequences an arm.",
            flag="--batch",
            remedy="Raise --limit or --samples, or give a smaller batch.",
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
    arms: Sequence[Arm],
    source: PairSource,
    dtypes: tuple[str, str],
    device: torch.device,
    backend: str,
    slots: int,
) -> None:
    """Refuse batches that do not fit into memory: the models, their weights packed anew for blocks of several
    tokens, the caches of all rows and what is kept of each until its output is done.

    Args:
        arms: of the run; all its batch sizes are there at once.
        source, dtypes, device, backend: of the pair.
        slots: the longest sequence of a row, in tokens.

    Raises:
        UsageError: with both numbers.
    """
    sizes = sorted({arm.batch for arm in arms if arm.batch > 1})
    if not sizes:
        return
    speculates = any(arm.method == "sps" for arm in arms)
    drafts = any(arm.method == "draft" or (arm.method == "sps" and arm.drafter.name == MODEL) for arm in arms)
    models = [source.target, source.draft] if drafts else [source.target]
    weights = sum(
        weight_bytes(model, dtype, flag) or 0
        for model, dtype, flag in zip(models, dtypes, ("--target", "--draft"), strict=False)
    )
    per_token = sum(
        cache_bytes_per_token(model.config, computed_width(model, dtype))
        for model, dtype in zip(models, dtypes, strict=False)
    )
    copies = 1 + (len(sizes) if speculates and backend == ONNXRUNTIME else 0)
    needed = copies * weights + sum(sizes) * slots * per_token + MOST_BYTES
    what = f"the models and caches of {sum(sizes)} rows, {slots} tokens each,"
    require_free(needed, device, what, "--batch", "Give smaller or fewer batches, or --max-new-tokens.")


def _refused(config: RunConfig, reason: str, remedy: str) -> UsageError:
    return UsageError(f"{max(config.batches)} sequences at once: {reason}.", flag="--batch", remedy=remedy)
