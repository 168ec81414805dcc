"""An n-gram model as the draft: counted, interpolated, and sampled like any other model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spsbench.decode import sampling as law
from spsbench.decode.protocols import Drafter
from spsbench.decode.rejection import Draft
from spsbench.drafters.counts import CorpusCounts, SequenceCounts
from spsbench.drafters.kind import Context, DrafterKind
from spsbench.errors import UsageError
from spsbench.plugins import Options
from spsbench.records import SamplingParams


class NgramDrafter:
    """Samples K tokens from an n-gram model with the same warping as the target's (Leviathan et al. 2022).

    Interpolated after Witten and Bell: behind a context that c tokens followed, t of them distinct, each
    token has (its count + t times its probability one order lower) / (c + t). Below the unigram lies the
    uniform distribution, so that no token has probability 0 before warping.

    With ``adapt`` the sequence is counted too, drafted tokens included as long as they may stand: a row
    is a function of the corpus and of the tokens before it, wherever loops begin and end.

    Args:
        corpus: counts of other text.
        order: n; 1 is a unigram.
        adapt: whether the sequence counts.
        sampling: of the target.
    """

    def __init__(self, corpus: CorpusCounts, order: int, adapt: bool, sampling: SamplingParams) -> None:
        self._corpus = corpus
        self._order = order
        self._adapt = adapt
        self._sampling = sampling
        self._own = SequenceCounts(order)
        self._unigrams = corpus.unigrams

    def begin(self, prompt: Sequence[int]) -> None:
        """Forget the last sequence and count the prompt."""
        self._own = SequenceCounts(self._order)
        self._unigrams = self._corpus.unigrams.copy()
        self._count(prompt)

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        """Sample k tokens on the host, where the counts are."""
        self._count(tokens)
        recent = self._context(tokens)
        numbers, picks, rows = u.cpu(), [], []
        for i in range(k):
            logits = torch.from_numpy(self._row(recent)).log().to(u.dtype).unsqueeze(0)
            rows.append(law.warp(logits, self._sampling))
            picks.append(int(law.draw(rows[-1], numbers[i : i + 1])))
            self._count([picks[-1]], behind=True)
            recent = self._context([*recent, picks[-1]])
        return Draft(torch.tensor(picks, device=u.device), torch.cat(rows).to(u.device))

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Take rejected tokens out of the counts."""
        while len(self._own.tokens) >= len(tokens):
            self._unigrams[self._own.pop()] -= 1

    def _count(self, tokens: Sequence[int], behind: bool = False) -> None:
        """Count what is new in a sequence, or all of it ``behind`` what was counted."""
        if not self._adapt:
            return
        for token in tokens if behind else tokens[len(self._own.tokens) :]:
            self._own.append(token)
            self._unigrams[token] += 1

    def _context(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens[max(len(tokens) - self._order + 1, 0) :]

    def _row(self, recent: Sequence[int]) -> NDArray[np.float64]:
        """[V] probabilities behind a context of at most order - 1 tokens, before warping.

        Every order's counts are scaled by what the higher ones leave and added to one dense unigram row.
        """
        left = 1.0
        parts = []
        for start in range(len(recent)):
            seen = [counts.followers(recent[start:]) for counts in (self._corpus, self._own)]
            total = sum(int(part.counts.sum()) for part in seen)
            if total:
                known, own = (part.tokens for part in seen)
                distinct = len(known) + int(np.isin(own, known, invert=True).sum())
                parts += [(part, left / (total + distinct)) for part in seen]
                left *= distinct / (total + distinct)
        row = self._unigram() * left
        for part, scale in parts:
            row[part.tokens] += part.counts * scale
        return row

    def _unigram(self) -> NDArray[np.float64]:
        """[V] the unigram's probabilities over the uniform floor."""
        size = len(self._unigrams)
        distinct = max(int(np.count_nonzero(self._unigrams)), 1)  # of nothing counted the floor is left
        total = int(self._unigrams.sum())
        return np.asarray((self._unigrams + distinct / size) / (total + distinct), dtype=np.float64)


def _of_order(order: int, options: Options, context: Context) -> Drafter:
    if order < 1:
        raise UsageError(
            f"ngram:order={order} is not valid.", flag="--drafter", remedy="Give an order of at least 1."
        )
    counts = CorpusCounts(context.corpus(), order, context.vocab_size)
    return NgramDrafter(counts, order, bool(options["adapt"]), context.sampling)


KIND = DrafterKind(
    name="ngram",
    summary="An n-gram model of the run's prompts and the sequence so far, sampled (Leviathan et al. 2022).",
    build=lambda options, context: _of_order(int(options["order"]), options, context),
    options={"order": 3, "adapt": True},
)
UNIGRAM = DrafterKind(
    name="unigram",
    summary="The n-gram drafter of order 1: token frequencies alone.",
    build=lambda options, context: _of_order(1, options, context),
    options={"adapt": True},
)
BIGRAM = DrafterKind(
    name="bigram",
    summary="The n-gram drafter of order 2 (Leviathan et al. 2022, Table 3).",
    build=lambda options, context: _of_order(2, options, context),
    options={"adapt": True},
)
