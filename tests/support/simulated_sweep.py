"""A sweep over K with a known truth, simulated: nothing here was measured.

Tests are independent with one alpha; a target step takes ``TARGET_S``, a draft step ``DRAFT_S``,
sampling and host ``REST_S`` a loop. Times carry a little noise, so that intervals exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

TARGET_S, DRAFT_S, REST_S = 10e-3, 1e-3, 0.5e-3


def sweep(
    *,
    alpha: float = 0.7,
    ks: Sequence[int] = (0, 1, 2, 4),
    prompts: int = 30,
    tokens: int = 40,
    sampling: str = "nucleus",
    draft_s: float = DRAFT_S,
    seed: int = 0,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Samples and loops of ArS (K = 0) and SpS arms, all outputs ``tokens`` long."""
    samples, loops = _drawn(tuple(ks), alpha, prompts, tokens, sampling, draft_s, seed)
    return samples.copy(), loops.copy()


@cache
def _drawn(
    ks: tuple[int, ...], alpha: float, prompts: int, tokens: int, sampling: str, draft_s: float, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    rng = np.random.default_rng(seed)
    parts = [_sequence(rng, f"e{i}", k, alpha, tokens, sampling, draft_s) for i in range(prompts) for k in ks]
    samples, loops = zip(*parts, strict=True)
    return pd.DataFrame(list(samples)), pd.concat(loops, ignore_index=True)


def _sequence(
    rng: Any, example: str, k: int, alpha: float, tokens: int, sampling: str, draft_s: float
) -> tuple[dict[str, Any], pd.DataFrame]:
    arm = f"sps-k{k}-{sampling}" if k else f"ars-{sampling}"
    accepted = np.cumprod(rng.random((tokens, k)) < alpha, axis=1).sum(axis=1) if k else np.zeros(tokens, int)
    last = int(np.searchsorted(np.cumsum(accepted + 1), tokens))
    accepted = accepted[: last + 1]
    emitted = accepted + 1
    cut = int(emitted.sum() - tokens)
    emitted[-1] -= cut
    n = len(accepted)
    tested = np.minimum(accepted + 1, k)
    noise = rng.lognormal(0, 0.05, n)
    loops = pd.DataFrame(
        {
            "example_id": example,
            "sample_index": 0,
            "arm": arm,
            "loop": np.arange(n),
            "drafted": k,
            "accepted": accepted,
            "emitted": emitted,
            "tested": tested,
            "beta_sum": alpha * tested,
            "truncated": np.where(np.arange(n) == n - 1, cut, 0),
            "draft_s": k * draft_s * noise,
            "verify_s": TARGET_S * noise * (1 + 0.02 * k),
            "sample_s": 0.3e-3 * noise,
            "other_s": REST_S - 0.3e-3,
        }
    )
    loops["loop_s"] = loops[["draft_s", "verify_s", "sample_s", "other_s"]].sum(axis=1)
    return {
        "example_id": example,
        "sample_index": 0,
        "arm": arm,
        "method": "sps" if k else "ars",
        "engine": "eager",
        "sampling": sampling,
        "k": k,
        "prompt_tokens": 20,
        "new_tokens": tokens,
        "finish_reason": "length",
        "prefill_s": 0.01,
        "decode_s": float(loops["loop_s"].sum()) + 1e-4,
        "scores": {"rouge2": 0.3},
        "losslessness": None,
        "error": None,
        "order": 0,
    }, loops
