"""The loops that runs use, over tables, and whether their tokens follow the target's rows.

Algorithm, drafter, rule, rows and stop rule are the real ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from spsbench.base import MODIFIED_REJECTION, Floats, Interval, Ints, SamplingParams, Spec
from spsbench.decode import (
    Accept,
    Drafter,
    FakeClock,
    Node,
    StopRule,
    Stopwatch,
    UniformStream,
    start,
    start_tree,
)
from spsbench.drafters import ModelDrafter, ModelTreeDrafter, Shape, Siblings, build_rule
from spsbench.law import (
    Scene,
    TableModel,
    TableTree,
    law_of_drafts,
    law_of_loop,
    most_tokens,
    sums_of,
    target_law,
    worst_difference,
)
from spsbench.parts.verify.tree_faults import FAULTS
from spsbench.parts.whatif.bench.forced import NullDecoder
from spsbench.parts.whatif.simulate.tables import Contexts, Tables, in_the_long_run
from spsbench.stats import (
    ALARM,
    FALSE_ALARM,
    acceptance_by_name,
    evidence_of,
    g_statistic,
    pooled_ratio,
    survival,
)
from spsbench.store import Acceptance, Evidence

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


class ChainTree(TableTree):
    """The same as a ``TreeModel``."""

    def __init__(self, table: ChainModel) -> None:
        super().__init__(table)
        self._table = table

    def score(self, nodes: Sequence[Node]) -> torch.Tensor:
        return torch.stack([self._table._logits((*self._prompt, *node.tokens())) for node in nodes])


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
    tree: Shape | None = None
    siblings: Siblings = "without"

    @property
    def together(self) -> bool:
        """Whether tokens are judged together, so that no chance of acceptance belongs to a context."""
        return self.tree is not None or self.rule.name in ("block", "traversal")

    @property
    def accept(self) -> Accept:
        """The rule, or a planted one of trees."""
        return FAULTS[self.fault].rule if self.fault in FAULTS else build_rule(self.rule).accept

    def drafter(self, draft: ChainModel) -> Drafter:
        """Return a new drafter."""
        if self.tree is None:
            return ModelDrafter(draft, self.sampling, CPU)
        kind = FAULTS[self.fault].drafter if self.fault in FAULTS else ModelTreeDrafter
        return kind(ChainTree(draft), self.sampling, self.tree, self.siblings)

    def nodes(self, k: int) -> int:
        """Return the most tokens of a draft."""
        return k if self.tree is None else self.tree.nodes


MOST_EXACT = 300
"""V to the power of a draft's tokens, times contexts, that are enumerated; V is 4 at most."""


class Exact(NamedTuple):
    """Of every loop that tables allow: tokens per loop in the long run, the share of what the best lossless
    rule gains over one token (means over the target's text), and the largest total variation from it."""

    tokens_per_loop: float
    share_of_optimum: float
    variation: float


def exact(tables: Tables, text: Floats, k: int, sampler: Sampler) -> Exact | None:
    """Enumerate the loops after each context; None where they are too many, or a fault is not one of trees.

    Args:
        text: [S] share of the positions of a target's text after each context.
    """
    size = tables.vocab_size
    count = tables.contexts.count
    nodes = sampler.nodes(k)
    many = size > 4 or size**nodes * count > MOST_EXACT
    if many or (sampler.fault is not None and sampler.fault not in FAULTS):
        return None
    target, draft = (ChainModel(tables.contexts, rows) for rows in (tables.target, tables.draft))
    ends = np.zeros((count, count))
    best = np.zeros(count)
    apart = 0.0
    lengths = np.zeros(count)
    make = partial(sampler.drafter, draft)
    for begin in range(count):
        prompt = tables.contexts.tokens_of(begin)
        depth = k if sampler.tree else None
        scene = Scene(target, make, sampler.accept, prompt, nodes, sampler.sampling, depth=depth)
        for tokens, chance in law_of_loop(scene).items():
            lengths[begin] += chance * len(tokens)
            ends[begin, tables.contexts.of((*prompt, *tokens))] += chance
        best[begin] = most_tokens(law_of_drafts(scene), target_law(scene, prompt, k + 1), size)
        apart = max(apart, worst_difference(scene).variation)
    return Exact(
        in_the_long_run(text, ends, lengths), float(text @ (lengths - 1) / (text @ (best - 1))), apart
    )


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
    drafter = sampler.drafter(draft)
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
            uniforms = UniformStream(int(generator.integers(2**63)), CPU)
            prompt = tables.contexts.tokens_of(begin)
            nodes = sampler.nodes(k)
            if sampler.tree is None:
                loops = start(target, drafter, prompt, nodes, sampler.sampling, uniforms, accept)
            else:
                tree_target = ChainTree(target)
                loops = start_tree(
                    tree_target, drafter, prompt, nodes, sampler.sampling, uniforms, sampler.accept
                )
            context, tokens = begin, list[int]()
            for loop in loops(Stopwatch(FakeClock())):
                kept, reason = stop.cut(tokens, loop.tokens)
                assert loop.draft is not None
                drafted = loop.draft.tokens.tolist()
                tested = min(loop.accepted + 1, k)
                beta_sum = math.nan
                if not sampler.together:
                    beta_sum = sum(
                        chances[at] for at in _contexts_along(successors, context, drafted)[:tested]
                    )
                rows.append((number, len(drafted), loop.accepted, kept, tested, beta_sum))
                tokens += loop.tokens[:kept]
                if reason is not None:
                    break
                context = _contexts_along(successors, context, loop.tokens)[-1]
            texts.append(Text(begin, tokens))
            tick()
    columns = ["example_id", "drafted", "accepted", "emitted", "tested", "beta_sum"]
    table = pd.DataFrame(rows, columns=columns)
    by_sequence = table.groupby("example_id", sort=True)["accepted"]
    counts = np.asarray(by_sequence.size(), dtype=np.float64)
    lengths = counts + np.asarray(by_sequence.sum(), dtype=np.float64)
    acceptance = acceptance_by_name(table, k)
    assert acceptance is not None
    return Simulated(k, tuple(texts), len(table), pooled_ratio(lengths, counts), counts, acceptance)


def _contexts_along(successors: Sequence[Sequence[int]], context: int, tokens: Sequence[int]) -> list[int]:
    path = [context]
    for token in tokens:
        path.append(successors[path[-1]][token])
    return path


def _planted(fault: str | None, target: ChainModel) -> AbstractContextManager[None]:
    if fault is None or fault in FAULTS:
        return nullcontext()
    from spsbench.parts.verify.controls import planted

    return planted(fault, target)


@dataclass(frozen=True, slots=True)
class LawCell:
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
    worst: tuple[LawCell, ...]
    follows: bool


def check(tables: Tables, texts: Sequence[Text], seed: int) -> LawCheck:
    """Test texts against the target's rows, whatever wrote them.

    Behind a context the next token follows the target's row there, and how the context came about does not
    matter. So the counts of each context are a separate test, and G and its degrees of freedom are sums.
    """
    successors: list[list[int]] = tables.contexts.successors(tables.vocab_size).tolist()
    paths = [np.asarray(_contexts_along(successors, text.start, text.tokens[:-1])) for text in texts]
    counts = np.zeros(tables.target.shape, dtype=np.int64)
    for path, text in zip(paths, texts, strict=True):
        np.add.at(counts, (path, np.asarray(text.tokens)), 1)
    parts = [
        g_statistic(Counter(dict(enumerate(seen.tolist()))), law.tolist())
        for seen, law in zip(counts, tables.target, strict=True)
        if seen.any()
    ]
    g = math.fsum(g for g, _, _ in parts)
    freedom = sum(df for _, df, _ in parts)
    impossible = sum(out for *_, out in parts)
    evidence = _evidence_of_known_rows(tables, texts, paths, seed)
    p_value = survival(g, freedom)
    follows = p_value >= FALSE_ALARM and not impossible and evidence["verdict"] != ALARM
    return LawCheck(
        int(counts.sum()), g, freedom, p_value, impossible, evidence, _farthest_cells(tables, counts), follows
    )


def _farthest_cells(tables: Tables, counts: Ints) -> tuple[LawCell, ...]:
    expected = counts.sum(axis=1, keepdims=True) * tables.target
    spread = np.sqrt(np.maximum(expected * (1.0 - tables.target), 1e-12))
    # One token more or less, in a cell where hardly any is expected, is not far.
    away = np.maximum(np.abs(counts - expected) - 1.0, 0.0) / spread
    places = zip(*np.unravel_index(np.argsort(away, axis=None)[::-1][:3], counts.shape), strict=True)
    return tuple(LawCell(int(s), int(x), int(counts[s, x]), float(expected[s, x])) for s, x in places)


def _evidence_of_known_rows(
    tables: Tables, texts: Sequence[Text], paths: Sequence[Ints], seed: int
) -> Evidence:
    """As a run has it."""
    import pandas as pd

    target, draft = torch.from_numpy(tables.target), torch.from_numpy(tables.draft)
    generator = torch.Generator().manual_seed(seed)
    sums = []
    for text, path in zip(texts, paths, strict=True):
        tokens = torch.tensor(text.tokens)
        rows = torch.from_numpy(path)
        drawn = torch.rand(len(tokens), generator=generator)
        sums.append(sums_of(tokens, target[rows], draft[rows], drawn))
    samples = pd.DataFrame(
        {
            "example_id": range(len(texts)),
            "new_tokens": [len(text.tokens) for text in texts],
            "finish_reason": "length",
            "error": None,
            "losslessness": sums,
        }
    )
    evidence = evidence_of(samples)
    assert evidence is not None
    return evidence
