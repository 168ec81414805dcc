"""The loops that runs use, over tables, and whether their tokens follow the target's rows.

Algorithm, drafter, rule, rows and stop rule are the real ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from spsbench.axes import MODIFIED_REJECTION
from spsbench.decode.algorithms import start
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.decode.sampling import UniformStream
from spsbench.decode.stopping import StopRule
from spsbench.drafters.model import ModelDrafter
from spsbench.drafters.registry import build_rule
from spsbench.law.enumeration import TableModel
from spsbench.law.evidence import evidence
from spsbench.records import Interval, SamplingParams, Spec
from spsbench.stats.acceptance import acceptance
from spsbench.stats.bootstrap import pooled_ratio
from spsbench.stats.evidence_stats import FALSE_ALARM, g_statistic, survival
from spsbench.stats.losslessness import ALARM, evidence_of
from spsbench.summary_types import Acceptance, Evidence
from spsbench.whatif.bench.forced import NullDecoder
from spsbench.whatif.simulate.tables import Contexts, Floats, Integers, Tables

SEQUENCE = 128
"""Tokens of a simulated sequence: those of Figure 1 in Chen et al. 2023."""

CPU = torch.device("cpu")

PAPERS_RULE = Spec(MODIFIED_REJECTION)


class ChainModel(TableModel):
    """A table [S, V] of probabilities as a language model: logits are its logarithms, in float64."""

    def __init__(self, contexts: Contexts, rows: Floats) -> None:
        super().__init__(lambda tokens: rows[contexts.of(tokens)].tolist(), rows.shape[1])
        self._contexts = contexts
        self._by_context = torch.from_numpy(rows).log().unbind(0)

    def _logits(self, context: tuple[int, ...]) -> torch.Tensor:
        # Not remembered by the whole text, of which there are too many.
        return self._by_context[self._contexts.of(context)]


@dataclass(frozen=True, slots=True)
class Text:
    """One simulated sequence: ``SEQUENCE`` tokens after a context."""

    start: int
    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class Simulated:
    """The loops of one K; ``by_sequence`` [sequences] is how many each sequence took."""

    k: int
    texts: tuple[Text, ...]
    loops: int
    tokens_per_loop: Interval
    by_sequence: Floats
    acceptance: Acceptance


@dataclass(frozen=True, slots=True)
class Sampler:
    """What decodes; ``fault`` is the wrong sampler that is planted, one of ``verify.controls``."""

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
    import pandas as pd

    target, draft = (ChainModel(tables.contexts, rows) for rows in (tables.target, tables.draft))
    drafter = ModelDrafter(draft, sampler.sampling, CPU)
    # The loops find modified rejection by its module, where a fault may be planted in its place.
    accept = None if sampler.rule.name == MODIFIED_REJECTION else build_rule(sampler.rule).accept
    successors: list[list[int]] = tables.contexts.successors(tables.vocab_size).tolist()
    chances: list[float] = expected.tolist()
    stop = StopRule(NullDecoder().decode, (), frozenset(), SEQUENCE, fixed_length=True)
    texts: list[Text] = []
    rows: list[tuple[float, ...]] = []
    with _planted(sampler.fault, target), torch.inference_mode():
        for number in range(sequences):
            # Of the seed, S, K and the sequence's number alone.
            generator = np.random.default_rng([sampler.seed, len(starts), k, number])
            begin = int(generator.choice(len(starts), p=starts))
            uniforms, prompt = (
                UniformStream(int(generator.integers(2**63)), CPU),
                tables.contexts.tokens_of(begin),
            )
            loops = start(target, drafter, prompt, k, sampler.sampling, uniforms, accept)
            context, tokens = begin, list[int]()
            for loop in loops(Stopwatch(FakeClock())):
                kept, reason = stop.cut(tokens, loop.tokens)
                assert loop.draft is not None
                drafted = loop.draft.tokens.tolist()
                tested = min(loop.accepted + 1, len(drafted))
                beta_sum = sum(chances[at] for at in _path(successors, context, drafted)[:tested])
                rows.append((number, len(drafted), loop.accepted, kept, tested, beta_sum))
                tokens += loop.tokens[:kept]
                if reason is not None:
                    break
                context = _path(successors, context, loop.tokens)[-1]
            texts.append(Text(begin, tokens))
            tick()
    columns = ["example_id", "drafted", "accepted", "emitted", "tested", "beta_sum"]
    table = pd.DataFrame(rows, columns=columns)
    by_sequence = table.groupby("example_id", sort=True)["accepted"]
    counts = np.asarray(by_sequence.size(), dtype=np.float64)
    lengths = counts + np.asarray(by_sequence.sum(), dtype=np.float64)
    found = acceptance(table, k)
    assert found is not None
    return Simulated(k, tuple(texts), len(table), pooled_ratio(lengths, counts), counts, found)


def _path(successors: Sequence[Sequence[int]], context: int, tokens: Sequence[int]) -> list[int]:
    """A context and those after each of the tokens."""
    path = [context]
    for token in tokens:
        path.append(successors[path[-1]][token])
    return path


def _planted(fault: str | None, target: ChainModel) -> AbstractContextManager[None]:
    if fault is None:
        return nullcontext()
    from spsbench.verify.controls import planted

    return planted(fault, target)


@dataclass(frozen=True, slots=True)
class Cell:
    """A token in a context, and how often it came."""

    context: int
    token: int
    seen: int
    expected: float


@dataclass(frozen=True, slots=True)
class LawCheck:
    """What the tokens say about the sampler; impossible ones have probability 0 under the target."""

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
    matter. So the counts of each context are a separate test, and G and its degrees of freedom are sums.
    """
    successors: list[list[int]] = tables.contexts.successors(tables.vocab_size).tolist()
    paths = [np.asarray(_path(successors, text.start, text.tokens[:-1])) for text in texts]
    counts = np.zeros(tables.target.shape, dtype=np.int64)
    for path, text in zip(paths, texts, strict=True):
        np.add.at(counts, (path, np.asarray(text.tokens)), 1)
    parts = [
        g_statistic(Counter(dict(enumerate(seen.tolist()))), law.tolist())
        for seen, law in zip(counts, tables.target, strict=True)
        if seen.any()
    ]
    g, freedom = math.fsum(g for g, _, _ in parts), sum(df for _, df, _ in parts)
    impossible = sum(out for *_, out in parts)
    found = _evidence(tables, texts, paths, seed)
    p_value = survival(g, freedom)
    follows = p_value >= FALSE_ALARM and not impossible and found["verdict"] != ALARM
    return LawCheck(
        int(counts.sum()), g, freedom, p_value, impossible, found, _worst(tables, counts), follows
    )


def _worst(tables: Tables, counts: Integers) -> tuple[Cell, ...]:
    """The three cells that are farthest from the target's row."""
    expected = counts.sum(axis=1, keepdims=True) * tables.target
    spread = np.sqrt(np.maximum(expected * (1.0 - tables.target), 1e-12))
    # One token more or less, in a cell where hardly any is expected, is not far.
    away = np.maximum(np.abs(counts - expected) - 1.0, 0.0) / spread
    places = zip(*np.unravel_index(np.argsort(away, axis=None)[::-1][:3], counts.shape), strict=True)
    return tuple(Cell(int(s), int(x), int(counts[s, x]), float(expected[s, x])) for s, x in places)


def _evidence(tables: Tables, texts: Sequence[Text], paths: Sequence[Integers], seed: int) -> Evidence:
    """That of a run, of tokens whose rows are known."""
    import pandas as pd

    target, draft = torch.from_numpy(tables.target), torch.from_numpy(tables.draft)
    generator = torch.Generator().manual_seed(seed)
    sums = []
    for text, path in zip(texts, paths, strict=True):
        tokens, rows = torch.tensor(text.tokens), torch.from_numpy(path)
        drawn = torch.rand(len(tokens), generator=generator)
        sums.append(evidence(tokens, target[rows], draft[rows], drawn))
    samples = pd.DataFrame(
        {
            "example_id": range(len(texts)),
            "new_tokens": [len(text.tokens) for text in texts],
            "finish_reason": "length",
            "error": None,
            "losslessness": sums,
        }
    )
    found = evidence_of(samples)
    assert found is not None
    return found
