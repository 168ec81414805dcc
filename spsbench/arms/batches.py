"""Batches of sequences that a configuration's arms cannot have."""

from __future__ import annotations

from collections.abc import Sequence

from spsbench.arms.engines import BATCHED
from spsbench.axes import BEAM, EAGER, FIXED, MODEL
from spsbench.config import RunConfig
from spsbench.drafters.registry import drafter_kind
from spsbench.errors import UsageError
from spsbench.records import Arm


def require_batchable(arms: Sequence[Arm], config: RunConfig) -> None:
    """Refuse engines, drafters, policies and stopping rules that know one sequence alone."""
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


def _refused(config: RunConfig, reason: str, remedy: str) -> UsageError:
    return UsageError(f"{max(config.batches)} sequences at once: {reason}.", flag="--batch", remedy=remedy)
