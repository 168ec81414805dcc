"""Suffix decoding: draft what followed the longest earlier occurrence of the text's end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from typing import NamedTuple

import torch
from torch import Tensor

from spsbench.base.errors import UsageError
from spsbench.base.plugins import Options
from spsbench.decode.protocols import Drafter
from spsbench.decode.rejection import Draft
from spsbench.drafters.forced import ForcedDrafts, ForcedText, by_proposals
from spsbench.drafters.registry import TREE, Context
from spsbench.drafters.shape import Shape, shape_of
from spsbench.drafters.tree import merged


class Match(NamedTuple):
    """Where the end of a text occurs in another place.

    Attributes:
        length: how many of its last tokens do.
        behind: index of the token that follows there; of the first such place.
    """

    length: int
    behind: int


class SuffixAutomaton:
    """The smallest automaton that knows every substring of a text (Blumer et al. 1985).

    A state stands for substrings that end in the same places. A token costs amortised constant time and
    adds at most two states.

    Attributes:
        text: the tokens so far.
    """

    def __init__(self) -> None:
        self.text: list[int] = []
        # Of each state: its longest substring's length, the state of its longest suffix that also ends
        # elsewhere, where its first occurrence ends, and the state that each next token leads to.
        self._length = [0]
        self._link = [-1]
        self._behind = [0]
        self._next: list[dict[int, int]] = [{}]
        self._last = 0

    def extend(self, token: int) -> None:
        self.text.append(token)
        state = self._new(self._length[self._last] + 1, len(self.text), {})
        at = self._last
        while at >= 0 and token not in self._next[at]:
            self._next[at][token] = state
            at = self._link[at]
        self._link[state] = 0 if at < 0 else self._own_successor(at, token)
        self._last = state

    def repeated(self) -> Iterator[Match]:
        """The suffixes of the text that occurred before, the longest first; one may overlap with itself."""
        state = self._link[self._last]
        return self.matches(state, self._length[state])

    def matches(self, state: int, length: int) -> Iterator[Match]:
        """Yield a state's substring and its suffixes that also occur elsewhere, each at its first place."""
        while state > 0:
            yield Match(length, self._behind[state])
            state = self._link[state]
            length = self._length[state]

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """Read a token of another text: the state and length of its longest suffix that occurs in this one.

        Args:
            state: before it; 0 at the beginning.
            length: of the suffix that stood there; 0 at the beginning.
            token: what comes next.
        """
        while state > 0 and token not in self._next[state]:
            state = self._link[state]
            length = self._length[state]
        if token in self._next[state]:
            return self._next[state][token], length + 1
        return 0, 0

    def _own_successor(self, at: int, token: int) -> int:
        """Split off where the state also stands for longer substrings.

        It is split off where it also stands for longer substrings.
        """
        state = self._next[at][token]
        if self._length[state] == self._length[at] + 1:
            return state
        split = self._new(self._length[at] + 1, self._behind[state], dict(self._next[state]))
        self._link[split] = self._link[state]
        self._link[state] = split
        while at >= 0 and self._next[at].get(token) == state:
            self._next[at][token] = split
            at = self._link[at]
        return split

    def _new(self, length: int, behind: int, following: dict[int, int]) -> int:
        self._length.append(length)
        self._link.append(-1)
        self._behind.append(behind)
        self._next.append(following)
        return len(self._length) - 1


_SEPARATOR = -1  # no token's id, so that nothing is matched across it or proposed past it


class SuffixDrafter:
    """Copies what followed the longest suffix of the sequence that occurred before, at its first place.

    Like prompt lookup without a limit on n, in amortised constant time a token: one suffix automaton reads
    prompt and output as they are decided. With ``across`` a second one holds the outputs of earlier
    sequences (after SuffixDecoding, Oliaro et al. 2024); the longer match wins, of equal ones the
    sequence's own. Copies are point masses, and may be shorter than K or empty.

    With ``across`` a proposal depends on all sequences that this drafter has seen: on the order of prompts,
    on shards and on resuming. The output's law does not, the tokens drawn and their speed do. An output is
    kept as it was decoded, with what the last loop wrote after its end.

    A tree has what followed shorter suffixes too, the longer ones first.

    Args:
        min_length: the shortest match that is copied from, at least 1.
        across: whether earlier outputs count.
        shape: of trees; None for chains.
        depth: of a dynamic tree.
    """

    def __init__(self, min_length: int, across: bool, shape: Shape | None = None, depth: int = 0) -> None:
        self._shape, self._depth = shape, depth
        self._min_length = min_length
        self._across = across
        self._own = SuffixAutomaton()
        self._earlier = SuffixAutomaton()
        self._prompt_length = 0
        self._state = self._length = (
            0  # state and length of the longest suffix that occurs in earlier outputs
        )

    def begin(self, prompt: Sequence[int]) -> None:
        """Add the last output to the earlier ones, and read the prompt."""
        if self._across:
            self._keep(self._own.text[self._prompt_length :])
        self._own = SuffixAutomaton()
        self._state = self._length = 0
        self._prompt_length = len(prompt)
        self._read(prompt)

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        """Copy up to k tokens; no random numbers are used."""
        self._read(tokens)
        if self._shape is not None:
            return merged(self._continuations(self._shape.depth(self._depth)), self._shape, k, u)
        copied = next(self._continuations(k), ())
        return Draft(torch.tensor(copied, dtype=torch.int64, device=u.device), None)

    def forced(self, text: ForcedText, k: int) -> ForcedDrafts:
        """See ``forced.forced``; not with ``across``, where proposals depend on the order of all texts.

        Raises:
            UsageError: ``across`` is on.
        """
        if self._across:
            raise UsageError(
                "suffix:across=true cannot be replayed: it proposes what earlier sequences of the run wrote.",
                flag="--drafter",
                remedy="Use across=false, or measure it with spsbench run.",
            )
        return by_proposals(self, text, k)

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Read the decided tokens; nothing that could be rejected is ever read."""
        self._read(tokens)

    def _read(self, tokens: Sequence[int]) -> None:
        for token in tokens[len(self._own.text) :]:
            self._own.extend(token)
            self._state, self._length = self._earlier.step(self._state, self._length, token)

    def _keep(self, output: Sequence[int]) -> None:
        for token in [*output, _SEPARATOR] if output else ():
            self._earlier.extend(token)

    def _continuations(self, k: int) -> Iterator[Sequence[int]]:
        """Of each match, the longest first; nothing where an output ended there."""
        own_matches = ((match, self._own.text) for match in self._own.repeated())
        earlier = self._earlier.matches(self._state, self._length)
        others = ((match, self._earlier.text) for match in earlier)
        for (length, behind), text in merge(own_matches, others, key=lambda place: -place[0].length):
            if length < self._min_length:
                return
            copied = text[behind : behind + k]
            copied = copied[: copied.index(_SEPARATOR)] if _SEPARATOR in copied else copied
            if copied:
                yield copied


def build(options: Options, context: Context) -> Drafter:
    shape = shape_of(str(options[TREE]), "--tree")
    return SuffixDrafter(int(options["min_length"]), bool(options["across"]), shape, context.k)
