"""Sequences with a known leakage, sampled from random rows and summed by the real ``evidence``."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch

from spsbench.decode.sampling import draw
from spsbench.law.evidence import sums_of

VOCABULARY = 12


def random_rows(n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """[n, V] rows of a target and of a draft that resembles it."""
    logits = 2 * torch.randn(n, VOCABULARY, generator=generator)
    noise = torch.randn(n, VOCABULARY, generator=generator)
    return torch.softmax(logits, -1), torch.softmax(logits + noise, -1)


def sequence(
    n: int, leakage: float, generator: torch.Generator, *, power: float = 1.0, drafted: bool = True
) -> dict[str, float]:
    """Sums of one sequence of (1 - leakage) target^power + leakage draft; every third row undrafted."""
    q, p = random_rows(n, generator)
    law = q.pow(power) / q.pow(power).sum(-1, keepdim=True)
    tokens = draw((1 - leakage) * law + leakage * p, torch.rand(n, generator=generator))
    p[::3] = 0.0
    return sums_of(tokens, q, p if drafted else None, torch.rand(n, generator=generator))


def samples(
    sums: list[dict[str, float] | None], arm: str = "sps-k4-nucleus", tokens: int = 30
) -> pd.DataFrame:
    """One row a sequence, each of its own prompt."""
    n = len(sums)
    return pd.DataFrame(
        {
            "example_id": [f"e{i}" for i in range(n)],
            "sample_index": 0,
            "arm": arm,
            "new_tokens": tokens,
            "finish_reason": "stop",
            "losslessness": pd.Series(sums, dtype=object),
            "error": pd.Series([None] * n, dtype=object),
        }
    )


def run(n: int, leakage: float, seed: int, *, length: int = 30, **law: Any) -> pd.DataFrame:
    """A run of n prompts whose own evidence has the given leakage."""
    generator = torch.Generator().manual_seed(seed)
    return samples([sequence(length, leakage, generator, **law) for _ in range(n)], tokens=length)


def rescored(frame: pd.DataFrame, every: int = 1) -> pd.DataFrame:
    """The same sums once more as if an independent forward had found them, for every n-th sequence."""
    both = [
        sums | {f"rescored_{name}": value for name, value in sums.items()} if i % every == 0 else sums
        for i, sums in enumerate(frame["losslessness"])
    ]
    return frame.assign(losslessness=pd.Series(both, dtype=object, index=frame.index))
