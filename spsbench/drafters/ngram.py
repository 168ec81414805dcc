"""Unigram, bigram and n-gram drafters, counted from a corpus and the current sequence, with backing off."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spsbench.base.arrays import Floats, Ints
from spsbench.base.plugins import Options
from spsbench.base.records import SamplingParams
from spsbench.decode import rows
from spsbench.decode.protocols import Drafter
from spsbench.decode.rejection import Draft
from spsbench.drafters.forced import by_single_tokens
from spsbench.drafters.registry import Context


class Followers(NamedTuple):
    """What followed a context.

    Attributes:
        tokens: [n] distinct token ids.
        counts: [n] how often each, at least 1.
    """

    tokens: Ints
    counts: Ints


NONE = Followers(np.empty(0, np.int64), np.empty(0, np.int64))


class _Level(NamedTuple):
    """All contexts of one length.

    Attributes:
        keys: [c] sorted; a context is its first tokens' index one level below, times V, plus its last token.
        starts: [c+1] where each context's followers begin.
        followers: of all contexts, one after the other.
    """

    keys: Ints
    starts: Ints
    followers: Followers


class CorpusCounts:
    """What followed each context of a corpus; millions of tokens take tens of bytes each.

    Args:
        sequences: token ids; no context reaches from one into the next.
        order: n of the n-grams: contexts have up to n - 1 tokens.
        vocab_size: V, above every id.

    Attributes:
        unigrams: [V] how often each token occurs.
    """

    def __init__(self, sequences: Sequence[Sequence[int]], order: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        flat = np.fromiter((token for tokens in sequences for token in tokens), np.int64)
        depth = np.fromiter((place for tokens in sequences for place in range(len(tokens))), np.int64)
        self.unigrams: Ints = np.bincount(flat, minlength=vocab_size)
        self._levels: list[_Level] = []
        context = np.zeros(len(flat), np.int64)  # of each place: the index of the context before it
        for length in range(1, order):
            at = np.flatnonzero(depth >= length)
            keys, index = np.unique(context[at - 1] * vocab_size + flat[at - 1], return_inverse=True)
            context = np.zeros_like(context)
            context[at] = index
            pairs, counts = np.unique(index * self._vocab_size + flat[at], return_counts=True)
            starts = np.searchsorted(pairs, np.arange(len(keys) + 1) * self._vocab_size)
            self._levels.append(_Level(keys, starts, Followers(pairs % self._vocab_size, counts)))

    def followers(self, context: Sequence[int]) -> Followers:
        """Return the counts of tokens that followed a context of 1 to order - 1 tokens."""
        index = 0
        for token, level in zip(context, self._levels, strict=False):
            key = index * self._vocab_size + token
            index = int(np.searchsorted(level.keys, key))
            if index == len(level.keys) or level.keys[index] != key:
                return NONE
        level = self._levels[len(context) - 1]
        entries = slice(level.starts[index], level.starts[index + 1])
        return Followers(level.followers.tokens[entries], level.followers.counts[entries])


class SequenceCounts:
    """What followed each context of one sequence, which grows and shrinks at its end.

    Args:
        order: n of the n-grams.

    Attributes:
        tokens: what is counted.
    """

    def __init__(self, order: int) -> None:
        self.tokens: list[int] = []
        self._lengths = range(1, order)
        self._counts: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)

    def append(self, token: int) -> None:
        for context in self._contexts():
            self._counts[context][token] += 1
        self.tokens.append(token)

    def pop(self) -> int:
        """Remove the last token, also from the counts."""
        token = self.tokens.pop()
        for context in self._contexts():
            counts = self._counts[context]
            counts[token] -= 1
            if not counts[token]:
                del counts[token]
        return token

    def followers(self, context: Sequence[int]) -> Followers:
        """Return the counts of tokens that followed a context of 1 to order - 1 tokens."""
        counts = self._counts.get(tuple(context))
        if not counts:
            return NONE
        return Followers(np.array([*counts], np.int64), np.array([*counts.values()], np.int64))

    def _contexts(self) -> list[tuple[int, ...]]:
        return [tuple(self.tokens[-length:]) for length in self._lengths if length <= len(self.tokens)]


class NgramDrafter:
    """Samples K tokens from an n-gram model with the same warping as the target's (Leviathan et al. 2022).

    Interpolated after Witten and Bell: after a context that c tokens followed, t of them distinct, each
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
        self._count(tokens)
        recent = self._context(tokens)
        picks, own_rows = [], []
        for i in range(k):
            logits = torch.from_numpy(self._row(recent)).log().to(u.device, u.dtype).unsqueeze(0)
            own_rows.append(rows.warped(logits, self._sampling))
            picks.append(int(own_rows[-1].draw(u[i : i + 1])))
            self._count([picks[-1]], behind=True)
            recent = self._context([*recent, picks[-1]])
        return Draft(torch.tensor(picks, device=u.device), rows.joined(own_rows))

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Remove rejected tokens from the counts."""
        while len(self._own.tokens) >= len(tokens):
            self._unigrams[self._own.pop()] -= 1

    forced = by_single_tokens

    def _count(self, tokens: Sequence[int], behind: bool = False) -> None:
        """Count the new tokens of a sequence, or all tokens after the ``behind`` counted ones."""
        if not self._adapt:
            return
        for token in tokens if behind else tokens[len(self._own.tokens) :]:
            self._own.append(token)
            self._unigrams[token] += 1

    def _context(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens[max(len(tokens) - self._order + 1, 0) :]

    def _row(self, recent: Sequence[int]) -> Floats:
        """[V] probabilities after a context of at most order - 1 tokens, before warping.

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
        distinct = max(int(np.count_nonzero(self._unigrams)), 1)  # with no counts only the floor remains
        total = int(self._unigrams.sum())
        floor = distinct / len(self._unigrams)
        row: Floats = (self._unigrams + floor) / (total + distinct) * left
        for part, scale in parts:
            row[part.tokens] += part.counts * scale
        return row


def build(options: Options, context: Context) -> Drafter:
    order = int(options["order"])
    counts = CorpusCounts(context.corpus(), order, context.vocab_size)
    return NgramDrafter(counts, order, bool(options["adapt"]), context.sampling)
