"""The loops that runs use, over tables: engine, drafter, rule, stop rule and records are the real ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from spsbench.axes import MODIFIED_REJECTION
from spsbench.bench.forced import NullDecoder
from spsbench.decode.clock import FakeClock
from spsbench.decode.rules import build_rule
from spsbench.engines.local import EagerEngine
from spsbench.records import Generation, Interval, Request, SamplingParams, Spec
from spsbench.simulate.tables import ChainModel, Floats, Tables
from spsbench.stats.acceptance import acceptance
from spsbench.stats.bootstrap import pooled_ratio
from spsbench.summary_types import Acceptance

if TYPE_CHECKING:
    import pandas as pd

SEQUENCE = 128
"""Tokens of a simulated sequence: those of Figure 1 in Chen et al. 2023."""

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Text:
    """One simulated sequence.

    Attributes:
        start: the context that it begins in.
        tokens: ``SEQUENCE`` tokens behind it.
    """

    start: int
    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class Simulated:
    """The loops of one K.

    Attributes:
        k: lookahead.
        texts: what they wrote.
        loops: how many.
        tokens_per_loop: accepted tokens + 1 of a loop, before an end cuts it, with the 95% interval over
            sequences.
        by_sequence: [sequences] loops that each sequence took.
        acceptance: every name of it, see ``stats.acceptance``.
    """

    k: int
    texts: tuple[Text, ...]
    loops: int
    tokens_per_loop: Interval
    by_sequence: Floats
    acceptance: Acceptance


@dataclass(frozen=True, slots=True)
class Sampler:
    """What decodes.

    Attributes:
        sampling: of target and draft.
        rule: what decides which draft tokens stand.
        fault: the wrong sampler that is planted, one of ``verify.controls``; None for the right one.
        seed: of every draw.
    """

    sampling: SamplingParams
    rule: Spec = Spec(MODIFIED_REJECTION)
    fault: str | None = None
    seed: int = 0


def simulate(tables: Tables, starts: Floats, k: int, sequences: int, sampler: Sampler) -> Simulated:
    """Decode sequences at one K.

    Args:
        tables: both models, not warped.
        starts: [S] probabilities of the context that a sequence begins in.
        k: lookahead, at least 1.
        sequences: how many, at least 2.
        sampler: what decodes.
    """
    target, draft = tables.models()
    # The loops find modified rejection by its module, where a fault may be planted in its place.
    rule = None if sampler.rule.name == MODIFIED_REJECTION else build_rule(sampler.rule)
    engine = EagerEngine(target, draft, k, NullDecoder(), CPU, FakeClock(), rule)
    texts, generations = [], []
    with _planted(sampler.fault, target):
        for start, seed in _beginnings(starts, k, sequences, sampler.seed):
            request = Request(
                tables.contexts.tokens_of(start), SEQUENCE, (), sampler.sampling, seed, fixed_length=True
            )
            generations.append(engine.generate(request))
            texts.append(Text(start, generations[-1].tokens))
    return _gathered(k, texts, generations)


def _planted(fault: str | None, target: ChainModel) -> AbstractContextManager[None]:
    if fault is None:
        return nullcontext()
    from spsbench.verify.controls import planted

    return planted(fault, target)


def _beginnings(starts: Floats, k: int, sequences: int, seed: int) -> Iterator[tuple[int, int]]:
    """(context, seed) of each sequence; they depend on the root seed, S, K and the sequence's number alone."""
    for number in range(sequences):
        generator = np.random.default_rng([seed, len(starts), k, number])
        yield int(generator.choice(len(starts), p=starts)), int(generator.integers(2**63))


def _gathered(k: int, texts: list[Text], generations: list[Generation]) -> Simulated:
    table = _table(generations)
    by_sequence = table.groupby("example_id", sort=True)
    counts = by_sequence.size().to_numpy(dtype=np.float64)
    lengths = counts + by_sequence["accepted"].sum().to_numpy(dtype=np.float64)
    found = acceptance(table, k)
    assert found is not None
    return Simulated(k, tuple(texts), len(table), pooled_ratio(lengths, counts), counts, found)


def _table(generations: list[Generation]) -> pd.DataFrame:
    """One row a loop, as ``stats.acceptance`` takes them."""
    import pandas as pd

    columns = ("drafted", "accepted", "emitted", "tested", "beta_sum")
    rows = [
        (number, *(getattr(loop, name) for name in columns))
        for number, generation in enumerate(generations)
        for loop in generation.loops or ()
    ]
    return pd.DataFrame(rows, columns=["example_id", *columns])
