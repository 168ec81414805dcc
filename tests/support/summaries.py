"""Summaries written by hand: nothing here was measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

MakeRow = Callable[..., dict[str, Any]]
MakeSummary = Callable[..., dict[str, Any]]

SCALARS = {
    "r_prime": 0.672,
    "mean_acceptance_length": 3.362,
    "draft_acceptance_rate": 0.590,
    "alpha_tested": 0.801,
    "alpha_beta": 0.803,
    "alpha_leviathan": None,
    "alpha_iid": 0.8,
    "tokens_per_target_call": 3.21,
    "acceptance_per_position": [0.8, 0.64, 0.51, 0.41],
    "conditional_acceptance": [0.8, 0.8, 0.8, None],
}


def _row(method: str = "sps", k: int = 4, sampling: str = "nucleus", **changes: Any) -> dict[str, Any]:
    speculative = method == "sps"
    row: dict[str, Any] = {
        "arm": f"{method}{k}-{sampling}",
        "method": method,
        "k": k,
        "engine": "eager",
        "sampling": sampling,
        "sequences": 50,
        "prompts": 50,
        "tokens": 1_500,
        "failed": 0,
        "missing": 0,
        "metrics": {"rouge2": 0.114 if speculative else 0.112},
        "ms_per_token": 7.52 if speculative else 14.1,
        "end_to_end_ms_per_token": 9.0,
        "baseline": None if method == "ars" else f"ars0-{sampling}",
        "speedup": None if method == "ars" else {"ratio": 1.92, "low": 1.85, "high": 1.99},
        "end_to_end_speedup": None if method == "ars" else {"ratio": 1.71, "low": 1.65, "high": 1.78},
        "speedup_halves": None if method == "ars" else [1.9, 1.94],
        "share_slower": None if method == "ars" else 0.04,
        "paired_prompts": None if method == "ars" else 50,
        "drifted": False,
        "acceptance": {**SCALARS, "macro": dict(SCALARS)} if speculative else None,
        "acceptance_z": 0.2 if speculative else None,
        "tokens_per_loop": 3.21 if speculative else 1.0,
        "loop_time": {f"{phase}_ms": 2.0 for phase in ("draft", "verify", "sample", "other", "loop")},
        "verification_rule": "modified rejection" if speculative else None,
        "peak_memory_bytes": 512 * 2**20,
        "target_mode": "eager",
        "draft_mode": "eager" if speculative else None,
    }
    return row | changes


def _summary(*rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "schema_version": 1,
        "task": "xsum",
        "task_label": "xsum-mini (synthetic)",
        "synthetic": True,
        "pair": "mini",
        "data": "mini",
        "headline_metric": None,
        "rows": list(rows) or [_row("ars", 0), _row()],
        "parity": None,
        "losslessness": None,
        "complete": True,
        "warnings": [],
    }
    return summary | changes


def _verdict(**changes: Any) -> dict[str, Any]:
    row = _row()
    even = {"measured_alpha": 0.8, "alpha": 0.4, "measured_c": 0.12, "c": 0.5, "k": 20, "k_found": True}
    found = {name: row[name] for name in ("arm", "method", "k", "engine", "sampling", "speedup")}
    found |= {"batch": 1, "outcome": "pays", "candidates": 1, "prompts": 50, "others": [], "elsewhere": None}
    found |= {"end_to_end": row["end_to_end_speedup"], "binding": "drafting", "break_even": even}
    return (
        found | {"tail_s": {name: {"p90": s, "p99": s} for name, s in (("chosen", 1), ("ars", 2))}} | changes
    )


@pytest.fixture
def make_row() -> MakeRow:
    return _row


@pytest.fixture
def make_verdict() -> Callable[..., dict[str, Any]]:
    return _verdict


@pytest.fixture
def make_summary() -> MakeSummary:
    return _summary


@pytest.fixture
def failed_row() -> dict[str, Any]:
    """An arm of which no sequence finished."""
    nothing = ("ms_per_token", "end_to_end_ms_per_token", "speedup", "end_to_end_speedup", "share_slower")
    more = ("acceptance", "acceptance_z", "tokens_per_loop", "loop_time", "peak_memory_bytes")
    empty = {
        "sequences": 0,
        "prompts": 0,
        "tokens": 0,
        "failed": 50,
        "metrics": {},
        "speedup_halves": [None, None],
    }
    return _row("sps", 11, **dict.fromkeys((*nothing, *more)), **empty)


def _kind(**changes: Any) -> dict[str, Any]:
    """One kind of evidence without a blemish."""
    leakage = {"estimate": 0.001, "low": -0.0012, "high": 0.0032, "bound": 0.00281, "standard_error": 0.0011}
    kind = {
        "sequences": 50,
        "share": 1.0,
        "prompts": 50,
        "tokens": 1_500,
        "positions": 1_200,
        "drafted_positions": 1_000,
        "impossible": 0,
        "edge": 0,
        "greedy": False,
        "leakage": leakage,
        "log_score": {"z": 0.4, "p_value": 0.69, "variance": "between prompts"},
        "transform": {"chi_square": 8.0, "p_value": 0.534, "cells": [120.0] * 10},
        "log10_e_value": -0.7,
        "log10_e_values": {"mixture_0.1": -3.0, "transform": -0.2},
        "verdict": "ok",
        "reasons": [],
    }
    return kind | changes


def _judged_arm(**changes: Any) -> dict[str, Any]:
    row = {name: _row()[name] for name in ("arm", "method", "k", "engine", "sampling")}
    found = {"verdict": "ok", "bound": 0.00281, "reasons": [], "acceptance_z": 0.2, "identity": None}
    return row | found | {"self_consistency": _kind(), "rescored": _kind(sequences=12, share=0.24)} | changes


def _comparison(**changes: Any) -> dict[str, Any]:
    comparison = {
        "arm": "sps4-nucleus",
        "baseline": "ars0-nucleus",
        "sampling": "nucleus",
        "prompts": 50,
        "baseline_mean": 0.3,
        "arm_mean": 0.302,
        "difference": 0.002,
        "low": -0.01,
        "high": 0.014,
        "margin": 0.01,
        "margin_rule": "5% of the target-draft gap",
        "normalised_difference": -0.01,
        "tost_p_value": 0.09,
        "standard_deviation": 0.1,
        "minimum_detectable_difference": 0.046,
        "prompts_needed": 1_083,
        "verdict": "inconclusive",
        "reason": None,
        "solved": None,
    }
    return comparison | changes


@pytest.fixture
def make_kind() -> MakeRow:
    return _kind


@pytest.fixture
def make_judged_arm() -> MakeRow:
    return _judged_arm


@pytest.fixture
def make_comparison() -> MakeRow:
    return _comparison
