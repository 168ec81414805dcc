"""The ceiling: what memory bandwidth alone allows, and how near each arm comes.

At batch size 1 a forward reads every weight once, so bytes over bandwidth is a floor for its time
whatever the code. Chen et al. 2023 remark that SpS beats the ceiling of ArS. An ArS arm far above its
floor is a weak baseline, and a speedup over it says little. Weights that fit in the last-level cache
are not read from memory at all: what a loop saves there is dispatch, and no such floor exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from spsbench.base.axes import identity, series
from spsbench.law.theory import union_share
from spsbench.stats.bootstrap import ratio
from spsbench.stats.speedup import finished
from spsbench.store.summary_types import ArmCeiling, ArmRow, Ceiling, ModelBytes, Regime

if TYPE_CHECKING:
    import pandas as pd


WEAK_SHARE = 0.5
"""ArS below this share of its floor is a weak baseline."""

BANDWIDTH_BOUND: Final = "bandwidth-bound"
DISPATCH_BOUND: Final = "dispatch-bound"
UNKNOWN: Final = "unknown"

_WIDTHS = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def ceiling(
    by_arm: Mapping[str, pd.DataFrame], rows: Sequence[ArmRow], info: Mapping[str, Any]
) -> Ceiling | None:
    """Return floors of every ArS and SpS arm; null where unknown.

    Args:
        info: of ``summarise``; ``models`` with ``target`` and ``draft``, each with ``forward_bytes``
            of one row (or ``parameters`` and ``dtype``, which counts an untied input embedding too) and
            optionally ``kv_bytes_per_token`` and, of a mixture, ``experts`` (``bytes``, ``count``,
            ``per_token``); ``bandwidth_bytes_per_s``, ``cache_bytes`` and ``cache_shared``, all optional.
    """
    models = info.get("models") or {}
    target_model, draft_model = (models.get(role) or {} for role in ("target", "draft"))
    target, draft = _forward_bytes(target_model), _forward_bytes(draft_model)
    if target is None:
        return None
    bandwidth, cache = info.get("bandwidth_bytes_per_s"), info.get("cache_bytes")
    bound_by = regime(target + (draft or 0.0), bandwidth, cache)
    known = float(bandwidth) if bound_by == BANDWIDTH_BOUND and bandwidth else None
    sizes: ModelBytes = {"target": target, "draft": draft}
    kv: dict[str, float] = {
        "target": float(target_model.get("kv_bytes_per_token") or 0.0),
        "draft": float(draft_model.get("kv_bytes_per_token") or 0.0),
    }
    arms = [
        _arm(row, _mean_context(by_arm[row["arm"]]), sizes, kv, known, target_model.get("experts"))
        for row in (row for group in series(rows) for row in group)
        if row["method"] in ("ars", "sps") and row["arm"] in by_arm and row["ms_per_token"] is not None
    ]
    weak = [arm["share"] < WEAK_SHARE for arm in arms if arm["method"] == "ars" and arm["share"] is not None]
    return {
        "regime": bound_by,
        "bandwidth_bytes_per_s": bandwidth,
        "cache_bytes": cache,
        "cache_shared": info.get("cache_shared"),
        "forward_bytes": sizes,
        "kv_bytes_per_token": kv,
        "weak_baseline": any(weak) if weak else None,
        "arms": arms,
    }


def regime(read_bytes: float, bandwidth: float | None, cache: float | None) -> Regime:
    """Return whether what both models read comes from memory or stays in the last-level cache."""
    if cache is not None and read_bytes <= cache:
        return DISPATCH_BOUND
    return UNKNOWN if bandwidth is None else BANDWIDTH_BOUND


def weak_baseline(ceiling: Ceiling | None) -> float | None:
    """Return the share of its floor that the weakest ArS arm reaches, if it is too small; else None."""
    if not ceiling or not ceiling["weak_baseline"]:
        return None
    shares = [arm["share"] for arm in ceiling["arms"] if arm["method"] == "ars" and arm["share"] is not None]
    return min(shares)


def _forward_bytes(model: Mapping[str, Any]) -> float | None:
    """Of the weights that one forward reads, as given, or all parameters at the dtype's width."""
    if model.get("forward_bytes") is not None:
        return float(model["forward_bytes"])
    width = _WIDTHS.get(str(model.get("dtype")))
    parameters = model.get("parameters")
    return None if width is None or parameters is None else float(parameters) * width


def _arm(
    row: ArmRow,
    context: float,
    sizes: ModelBytes,
    kv: dict[str, float],
    bandwidth: float | None,
    experts: Mapping[str, Any] | None,
) -> ArmCeiling:
    """Compare an arm with the floor of ArS at the arm's own context, in tokens.

    A token of ArS reads the target once; one of SpS its share of a loop's forwards of the draft and one of
    the target. Each row of a batch is charged with its part of the weights that a forward reads.
    """
    batch, ms = row["batch"], row["ms_per_token"]
    assert ms is not None
    ars = (sizes["target"] + _further_expert_bytes(experts, batch)) / batch + kv["target"] * context
    read: float | None = ars if row["method"] == "ars" else None
    if row["method"] == "sps" and sizes["draft"] is not None and row["tokens_per_loop"]:
        block = (sizes["target"] + _further_expert_bytes(experts, batch * (row["k"] + 1))) / batch
        drafting = row["draft_forwards"] * (sizes["draft"] / batch + kv["draft"] * context)
        read = (drafting + block + kv["target"] * context) / row["tokens_per_loop"]
    ars_floor = None if bandwidth is None else 1e3 * ars / bandwidth
    floor = None if read is None or bandwidth is None else 1e3 * read / bandwidth
    return {
        **identity(row),
        "bytes_per_token": read,
        "ms_per_token": ms,
        "floor_ms_per_token": floor,
        "share": None if floor is None else ratio(floor, ms),
        "best_speedup": None if read is None else ratio(ars, read),
        "ars_floor_ms_per_token": ars_floor,
        "beats_ars_ceiling": None if ars_floor is None else ms < ars_floor,
    }


def _further_expert_bytes(experts: Mapping[str, Any] | None, rows: int) -> float:
    """That so many rows read beyond those of one row."""
    if not experts:
        return 0.0
    one, block = (union_share(experts["count"], experts["per_token"], n) for n in (1, rows))
    return float(experts["bytes"] * (block - one))


def _mean_context(samples: pd.DataFrame) -> float:
    """Tokens in the cache when a token is generated."""
    done = finished(samples)
    lengths = done["new_tokens"].astype("float64")
    if not lengths.sum():
        return 0.0
    held = done["prompt_tokens"].astype("float64") + (lengths - 1.0) / 2.0
    return float((held * lengths).sum() / lengths.sum())
