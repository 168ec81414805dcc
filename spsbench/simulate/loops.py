"""The loops that runs use, over tables: algorithm, drafter, rule, rows and stop rule are the real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from spsbench.axes import MODIFIED_REJECTION
from spsbench.bench.forced import NullDecoder
from spsbench.decode.algorithms import DecodedLoop, start
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.decode.rules import build_rule
from spsbench.decode.sampling import UniformStream
from spsbench.decode.stopping import StopRule
from spsbench.drafters.model import ModelDrafter
from spsbench.records import Interval, SamplingParams, Spec
from spsbench.simulate.model import ChainModel
from spsbench.simulate.tables import Floats, Tables
from spsbench.stats.acceptance import acceptance
from spsbench.stats.bootstrap import pooled_ratio
from spsbench.summary_types import Acceptance

SEQUENCE = 128
"""Tokens of a simulated sequence: those of Figure 1 in Chen et al. 2023."""

CPU = torch.device("cpu")

PAPERS_RULE = Spec(MODIFIED_REJECTION)


@dataclass(frozen=True, slots=True)
class Text:
    """One simulated sequence.

    Attributes:
        tokens: ``SEQUENCE`` tokens after it.
    """

    start: int
    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class Simulated:
    """The loops of one K.

    Attributes:
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
        fault: the wrong sampler that is planted, one of ``verify.controls``; None for the right one.
    """

    sampling: SamplingParams
    rule: Spec = PAPERS_RULE
    fault: str | None = None
    seed: int = 0


def simulate(
    tables: Tables,
    starts: Floats,
    expected: Floats,
    k: int,
    sequences: int,
    sampler: Sampler,
    tick: Callable[[], None] = lambda: None,
) -> Simulated:
    """Decode sequences at one K.

    Args:
        starts: [S] probabilities of the context that a sequence begins in.
        expected: [S] chance that the rule accepts a draft token, for the records.
    """
    target, draft = tables.models()
    drafter = ModelDrafter(draft, sampler.sampling, CPU)
    # The loops find modified rejection by its module, where a fault may be planted in its place.
    accept = None if sampler.rule.name == MODIFIED_REJECTION else build_rule(sampler.rule).accept
    notes = _Notes(tables, expected)
    with _planted(sampler.fault, target), torch.inference_mode():
        for begin, seed in _beginnings(starts, k, sequences, sampler.seed):
            uniforms, prompt = UniformStream(seed, CPU), tables.contexts.tokens_of(begin)
            loops = start(target, drafter, prompt, k, sampler.sampling, uniforms, accept)
            notes.take(begin, loops(Stopwatch(FakeClock())))
            tick()
    return _gathered(k, notes)


class _Notes:
    """What is kept of the loops: texts, and one row a loop as ``stats.acceptance`` takes them."""

    def __init__(self, tables: Tables, expected: Floats) -> None:
        self._successors: list[list[int]] = tables.contexts.successors(tables.vocab_size).tolist()
        self._expected: list[float] = expected.tolist()
        self._stop = StopRule(NullDecoder().decode, (), frozenset(), SEQUENCE, fixed_length=True)
        self.texts: list[Text] = []
        self.rows: list[tuple[float, ...]] = []

    def take(self, begin: int, loops: Iterator[DecodedLoop]) -> None:
        """Follow the loops of a sequence to its end."""
        context, tokens = begin, list[int]()
        for loop in loops:
            kept, reason = self._stop.cut(tokens, loop.tokens)
            assert loop.draft is not None
            drafted = loop.draft.tokens.tolist()
            tested = min(loop.accepted + 1, len(drafted))
            beta_sum = sum(self._expected[at] for at in self._path(context, drafted)[:tested])
            self.rows.append((len(self.texts), len(drafted), loop.accepted, kept, tested, beta_sum))
            tokens += loop.tokens[:kept]
            if reason is not None:
                break
            context = self._path(context, loop.tokens)[-1]
        self.texts.append(Text(begin, tokens))

    def _path(self, context: int, tokens: Sequence[int]) -> list[int]:
        """A context and those after each of the tokens."""
        path = [context]
        for token in tokens:
            path.append(self._successors[path[-1]][token])
        return path


def _planted(fault: str | None, target: ChainModel) -> AbstractContextManager[None]:
    if fault is None:
        return nullcontext()
    from spsbench.verify.controls import planted

    return planted(fault, target)


def _beginnings(starts: Floats, k: int, sequences: int, seed: int) -> Iterator[tuple[int, int]]:
    """(context, seed) of each sequence; they depend on the seed, S, K and the sequence's number alone."""
    for number in range(sequences):
        generator = np.random.default_rng([seed, len(starts), k, number])
        yield int(generator.choice(len(starts), p=starts)), int(generator.integers(2**63))


def _gathered(k: int, notes: _Notes) -> Simulated:
    import pandas as pd

    columns = ["example_id", "drafted", "accepted", "emitted", "tested", "beta_sum"]
    table = pd.DataFrame(notes.rows, columns=columns)
    by_sequence = table.groupby("example_id", sort=True)["accepted"]
    counts = np.asarray(by_sequence.size(), dtype=np.float64)
    lengths = counts + np.asarray(by_sequence.sum(), dtype=np.float64)
    found = acceptance(table, k)
    assert found is not None
    return Simulated(k, tuple(notes.texts), len(table), pooled_ratio(lengths, counts), counts, found)
