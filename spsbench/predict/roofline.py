"""The ceiling: what memory bandwidth alone allows, and how near each arm comes.

At batch size 1 a forward reads every weight once, so bytes over bandwidth is a floor for its time
whatever the code. Chen et al. 2023 remark that SpS beats the ceiling of ArS. An ArS arm far above its
floor is a weak baseline, and a speedup over it says little. Weights that fit in the last-level cache
are not read from memory at all: what a loop saves there is dispatch, and no such floor exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from spsbench.axes import identity, series
from spsbench.law.theory import union_share
from spsbench.stats.bootstrap import ratio
from spsbench.stats.speedup import finished
from spsbench.summary_types import ArmCeiling, ArmRow, CacheBytes, Ceiling, ModelBytes, Regime

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
    """Floors of every ArS and SpS arm.

    Args:
        info: of ``summarise``; ``models`` with ``target`` and ``draft``, each with ``forward_bytes``
            of one row (or ``parameters`` and ``dtype``, which counts an untied input embedding too) and
            optionally ``kv_bytes_per_token`` and, of a mixture, ``experts`` (``bytes``, ``count``,
            ``per_token``); ``bandwidth_bytes_per_s``, ``cache_bytes`` and ``cache_shared``, all optional.

    Returns:
        ``regime``, the bytes and the bandwidth it rests on, ``weak_baseline`` (None if not known) and
        ``best_speedup`` that bytes allow and ``beats_ars_ceiling``; null where unknown. None without
    """
    models = info.get("models") or {}
    target, draft = (_forward_bytes(models.get(role) or {}) for role in ("target", "draft"))
    if target is None:
        return None
    bandwidth, cache = info.get("bandwidth_bytes_per_s"), info.get("cache_bytes")
    regime = _regime(target + (draft or 0.0), bandwidth, cache)
    known = float(bandwidth) if regime == BANDWIDTH_BOUND and bandwidth else None
    sizes: ModelBytes = {"target": target, "draft": draft}
    target_kv, draft_kv = (_kv_bytes(models.get(role) or {}) for role in ("target", "draft"))
    kv: CacheBytes = {"target": target_kv, "draft": draft_kv}
    arms: list[ArmCeiling] = []
    for group in series(rows):
        arms += _group(group, by_arm, sizes, kv, known, (models.get("target") or {}).get("experts"))
    weak = [arm["share"] < WEAK_SHARE for arm in arms if arm["method"] == "ars" and arm["share"] is not None]
    return {
        "regime": regime,
        "bandwidth_bytes_per_s": bandwidth,
        "cache_bytes": cache,
        "cache_shared": info.get("cache_shared"),
        "forward_bytes": sizes,
        "kv_bytes_per_token": kv,
        "weak_baseline": any(weak) if weak else None,
        "arms": arms,
    }


def weak_baseline(found: Ceiling | None) -> float | None:
    """The share of its floor that the weakest ArS arm reaches, if that is too little; else None."""
    if not found or not found["weak_baseline"]:
        return None
    shares = [arm["share"] for arm in found["arms"] if arm["method"] == "ars" and arm["share"] is not None]
    return min(shares)


def _regime(weights: float, bandwidth: float | None, cache: float | None) -> Regime:
    if cache is not None and weights <= cache:
        return DISPATCH_BOUND
    return UNKNOWN if bandwidth is None else BANDWIDTH_BOUND


def _forward_bytes(model: Mapping[str, Any]) -> float | None:
    """Bytes of weights that one forward reads, as given, or all parameters at the dtype's width."""
    if model.get("forward_bytes") is not None:
        return float(model["forward_bytes"])
    width = _WIDTHS.get(str(model.get("dtype")))
    parameters = model.get("parameters")
    return None if width is None or parameters is None else float(parameters) * width


def _kv_bytes(model: Mapping[str, Any]) -> float:
    return float(model.get("kv_bytes_per_token") or 0.0)


def _group(
    group: Sequence[ArmRow],
    by_arm: Mapping[str, pd.DataFrame],
    sizes: ModelBytes,
    kv: CacheBytes,
    bandwidth: float | None,
    experts: Mapping[str, Any] | None,
) -> list[ArmCeiling]:
    """The arms of one sampling and engine, against the floor of ArS at the arm's own context."""
    found: list[ArmCeiling] = []
    for row in group:
        if row["method"] not in ("ars", "sps") or row["arm"] not in by_arm or row["ms_per_token"] is None:
            continue
        context = _mean_context(by_arm[row["arm"]])
        rows = row["batch"]  # each is charged with its part of the weights that a forward reads
        target = (sizes["target"] + _more_experts(experts, rows)) / rows + kv["target"] * context
        draft = None if sizes["draft"] is None else sizes["draft"] / rows + kv["draft"] * context
        verify = (sizes["target"] + _more_experts(experts, rows * (row["k"] + 1))) / rows
        loop = _loop_bytes(row, verify + kv["target"] * context, draft)
        ars_floor = None if bandwidth is None else 1e3 * target / bandwidth
        floor = None if loop is None or bandwidth is None else 1e3 * loop / bandwidth
        found.append(
            {
                **identity(row),
                "bytes_per_token": loop,
                "ms_per_token": row["ms_per_token"],
                "floor_ms_per_token": floor,
                "share": None if floor is None else ratio(floor, row["ms_per_token"]),
                "best_speedup": None if loop is None else ratio(target, loop),
                "ars_floor_ms_per_token": ars_floor,
                "beats_ars_ceiling": None if ars_floor is None else row["ms_per_token"] < ars_floor,
            }
        )
    return found


def _loop_bytes(row: ArmRow, target: float, draft: float | None) -> float | None:
    """Bytes per emitted token: a loop's forwards of the draft and one of the target, over its tokens."""
    if row["method"] == "ars":
        return target
    if draft is None or not row["tokens_per_loop"]:
        return None
    return (row["draft_forwards"] * draft + target) / row["tokens_per_loop"]


def _more_experts(experts: Mapping[str, Any] | None, rows: int) -> float:
    """Bytes of experts that so many rows read beyond those of one row."""
    if not experts:
        return 0.0
    one, block = (union_share(experts["count"], experts["per_token"], n) for n in (1, rows))
    return float(experts["bytes"] * (block - one))


def _mean_context(samples: pd.DataFrame) -> float:
    """Tokens in the cache when a token is generated, on average over the tokens."""
    done = finished(samples)
    lengths = done["new_tokens"].astype("float64")
    if not lengths.sum():
        return 0.0
    held = done["prompt_tokens"].astype("float64") + (lengths - 1.0) / 2.0
    return float((held * lengths).sum() / lengths.sum())
