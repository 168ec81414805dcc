"""Runs with a known truth, made by hand or by a seeded simulation: nothing here was measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

Frame = pd.DataFrame
MakeSamples = Callable[..., Frame]
MakeLoops = Callable[..., Frame]


def _arm_name(method: str, k: int, sampling: str, engine: str) -> str:
    lookahead = f"-k{k}" if method == "sps" else ""
    return f"{method}{lookahead}-{sampling}" + ("" if engine == "eager" else f"@{engine}")


def _samples(
    times_s: Any,
    tokens: Any,
    *,
    method: str = "ars",
    k: int = 0,
    sampling: str = "nucleus",
    engine: str = "eager",
    prefill_s: float = 0.01,
    scores: list[Any] | None = None,
    samples_per_prompt: int = 1,
) -> Frame:
    """One row per sequence: ``times_s`` and ``tokens`` run over prompts, then their samples."""
    n = len(times_s)
    index = np.arange(n)
    return pd.DataFrame(
        {
            "example_id": [f"e{i // samples_per_prompt}" for i in index],
            "sample_index": index % samples_per_prompt,
            "arm": _arm_name(method, k, sampling, engine),
            "method": method,
            "engine": engine,
            "sampling": sampling,
            "k": k,
            "prompt_tokens": 20,
            "new_tokens": np.asarray(tokens, dtype=np.int64),
            "finish_reason": "stop",
            "prefill_s": prefill_s,
            "decode_s": np.asarray(times_s, dtype=np.float64),
            "scores": scores if scores is not None else [{"rouge2": 0.4}] * n,
            "error": pd.Series([None] * n, dtype=object),
            "order": (index + (method != "ars")) % 2,
        }
    )


def _loops(
    accepted: Any, *, k: int = 4, alpha: float = 0.8, prompts: Any = None, arm: str = "sps-k4-nucleus"
) -> Frame:
    """Loops that drafted K tokens each; beta is ``alpha`` at every tested position."""
    accepted = np.asarray(accepted, dtype=np.int64)
    n = len(accepted)
    tested = np.minimum(accepted + 1, k)
    return pd.DataFrame(
        {
            "example_id": ["e0"] * n if prompts is None else prompts,
            "sample_index": 0,
            "arm": arm,
            "loop": np.arange(n),
            "drafted": k,
            "accepted": accepted,
            "emitted": accepted + 1,
            "tested": tested,
            "beta_sum": alpha * tested,
            "truncated": 0,
            "draft_s": 0.002,
            "verify_s": 0.005,
            "sample_s": 0.001,
            "other_s": 0.0005,
            "loop_s": 0.0085,
        }
    )


@pytest.fixture
def make_samples() -> MakeSamples:
    return _samples


@pytest.fixture
def make_loops() -> MakeLoops:
    return _loops


@pytest.fixture
def simulate_accepted() -> Callable[[float, int, int, int], np.ndarray]:
    """``(alpha, k, loops, seed) -> accepted`` [loops]: independent tests that pass with alpha."""

    def simulate(alpha: float, k: int, loops: int, seed: int) -> np.ndarray:
        passed = np.random.default_rng(seed).random((loops, k)) < alpha
        return np.cumprod(passed, axis=1).sum(axis=1)

    return simulate
