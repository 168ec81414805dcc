"""What models and memory refuse of arms with a batch, before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spsbench.axes import MODEL
from spsbench.config.models import ONNXRUNTIME
from spsbench.engines.buffer import MOST_BYTES
from spsbench.errors import UsageError
from spsbench.models.memory import cache_bytes_per_token, computed_width, require_free, weight_bytes
from spsbench.models.pair import PairSource
from spsbench.records import Arm


def require_filled(arms: Sequence[Arm], sequences: int) -> None:
    """Refuse batches that are never full, whose rows would be charged as if they were."""
    widest = max(arm.batch for arm in arms)
    if widest > 1 and sequences < widest:
        raise UsageError(
            f"batches of {widest} are never full with {sequences} sequences an arm.",
            flag="--batch",
            remedy="Raise --limit or --samples, or give a smaller batch.",
        )


def require_batchable_models(arms: Sequence[Arm], source: PairSource) -> None:
    """Refuse encoder-decoders, whose sources would have to be padded."""
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
    """Refuse batches that do not fit into memory: the models, their weights packed again for blocks of
    several
    tokens, the caches of all rows and what is kept of each until its output is done.
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
