"""Whether the simulated tokens follow the target's rows, by the statistics of a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from spsbench.law.evidence import Sums, evidence
from spsbench.simulate.loops import Text
from spsbench.simulate.tables import Integers, Tables
from spsbench.stats.g_test import FALSE_ALARM, g_statistic, survival
from spsbench.stats.losslessness import ALARM, evidence_of
from spsbench.summary_types import Evidence

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Cell:
    """A token in a context, and how often it came."""

    context: int
    token: int
    seen: int
    expected: float


@dataclass(frozen=True, slots=True)
class LawCheck:
    """What the tokens say about the sampler.

    Attributes:
        impossible: tokens of probability 0 under the target.
    """

    tokens: int
    g: float
    freedom: int
    p_value: float
    impossible: int
    evidence: Evidence
    worst: tuple[Cell, ...]
    follows: bool


def check(tables: Tables, texts: Sequence[Text], seed: int) -> LawCheck:
    """Hold texts against the target's rows, whatever made them.

    Behind a context the next token follows the target's row there, and how the context came about does not
    matter. So the counts of each context are a separate test.
    """
    paths = list(_paths(tables, texts))
    counts = np.zeros(tables.target.shape, dtype=np.int64)
    for path, text in zip(paths, texts, strict=True):
        np.add.at(counts, (path, np.asarray(text.tokens)), 1)
    g, freedom, impossible = _tested(tables, counts)
    found = _evidence(tables, texts, paths, seed)
    p_value = survival(g, freedom)
    follows = p_value >= FALSE_ALARM and not impossible and found["verdict"] != ALARM
    worst = _worst(tables, counts)
    return LawCheck(int(counts.sum()), g, freedom, p_value, impossible, found, worst, follows)


def _paths(tables: Tables, texts: Sequence[Text]) -> Iterator[Integers]:
    """[n] the context before each token of each text."""
    successors = tables.contexts.successors(tables.vocab_size)
    for text in texts:
        path = [text.start]
        for token in text.tokens[:-1]:
            path.append(int(successors[path[-1], token]))
        yield np.asarray(path)


def _tested(tables: Tables, counts: Integers) -> tuple[float, int, int]:
    """G and its degrees of freedom over all contexts, and impossible tokens."""
    parts = [
        g_statistic(Counter(dict(enumerate(seen.tolist()))), law.tolist())
        for seen, law in zip(counts, tables.target, strict=True)
        if seen.any()
    ]
    return math.fsum(g for g, _, _ in parts), sum(df for _, df, _ in parts), sum(out for *_, out in parts)


def _worst(tables: Tables, counts: Integers) -> tuple[Cell, ...]:
    totals = counts.sum(axis=1, keepdims=True)
    expected = totals * tables.target
    spread = np.sqrt(np.maximum(expected * (1.0 - tables.target), 1e-12))
    # One token more or less, in a cell where hardly any is expected, is not far.
    away = np.maximum(np.abs(counts - expected) - 1.0, 0.0) / spread
    order = np.argsort(away, axis=None)[::-1][:_SHOWN]
    places = zip(*np.unravel_index(order, counts.shape), strict=True)
    return tuple(Cell(int(s), int(x), int(counts[s, x]), float(expected[s, x])) for s, x in places)


def _evidence(tables: Tables, texts: Sequence[Text], paths: Sequence[Integers], seed: int) -> Evidence:
    import pandas as pd

    target, draft = torch.from_numpy(tables.target), torch.from_numpy(tables.draft)
    generator = torch.Generator().manual_seed(seed)

    def sums(text: Text, path: Integers) -> Sums:
        tokens, rows = torch.tensor(text.tokens), torch.from_numpy(path)
        return evidence(tokens, target[rows], draft[rows], torch.rand(len(tokens), generator=generator))

    told = [sums(text, path) for text, path in zip(texts, paths, strict=True)]
    samples = pd.DataFrame(
        {
            "example_id": range(len(texts)),
            "new_tokens": [len(text.tokens) for text in texts],
            "finish_reason": "length",
            "error": None,
            "losslessness": told,
        }
    )
    found = evidence_of(samples)
    assert found is not None
    return found
