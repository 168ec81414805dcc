"""How often tokens followed contexts: of a corpus, in sorted arrays; of the current sequence, in counters."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class Followers(NamedTuple):
    """What followed a context.

    Attributes:
        tokens: [n] distinct token ids.
        counts: [n] how often each, at least 1.
    """

    tokens: Integers
    counts: Integers


NONE = Followers(np.empty(0, np.int64), np.empty(0, np.int64))


class _Level(NamedTuple):
    """All contexts of one length.

    Attributes:
        keys: [c] sorted; a context is its first tokens' index one level below, times V, plus its last token.
        starts: [c+1] where each context's followers begin.
        followers: of all contexts, one behind the other.
    """

    keys: Integers
    starts: Integers
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
        self.unigrams: Integers = np.bincount(flat, minlength=vocab_size)
        self._levels: list[_Level] = []
        context = np.zeros(len(flat), np.int64)  # of each place: the index of the context before it
        for length in range(1, order):
            at = np.flatnonzero(depth >= length)
            keys, index = np.unique(context[at - 1] * vocab_size + flat[at - 1], return_inverse=True)
            context = np.zeros_like(context)
            context[at] = index
            self._levels.append(self._level(keys, index, flat[at]))

    def followers(self, context: Sequence[int]) -> Followers:
        """Of a context of 1 to order - 1 tokens."""
        index = 0
        for token, level in zip(context, self._levels, strict=False):
            key = index * self._vocab_size + token
            index = int(np.searchsorted(level.keys, key))
            if index == len(level.keys) or level.keys[index] != key:
                return NONE
        level = self._levels[len(context) - 1]
        own = slice(level.starts[index], level.starts[index + 1])
        return Followers(level.followers.tokens[own], level.followers.counts[own])

    def _level(self, keys: Integers, index: Integers, following: Integers) -> _Level:
        pairs, counts = np.unique(index * self._vocab_size + following, return_counts=True)
        starts = np.searchsorted(pairs, np.arange(len(keys) + 1) * self._vocab_size)
        return _Level(keys, starts, Followers(pairs % self._vocab_size, counts))


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
        """Count a token behind the others."""
        for context in self._contexts():
            self._counts[context][token] += 1
        self.tokens.append(token)

    def pop(self) -> int:
        """Take the last token back, and out of the counts."""
        token = self.tokens.pop()
        for context in self._contexts():
            counts = self._counts[context]
            counts[token] -= 1
            if not counts[token]:
                del counts[token]
        return token

    def followers(self, context: Sequence[int]) -> Followers:
        """Of a context of 1 to order - 1 tokens."""
        counts = self._counts.get(tuple(context))
        if not counts:
            return NONE
        return Followers(np.array([*counts], np.int64), np.array([*counts.values()], np.int64))

    def _contexts(self) -> list[tuple[int, ...]]:
        return [tuple(self.tokens[-length:]) for length in self._lengths if length <= len(self.tokens)]
