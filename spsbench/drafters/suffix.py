"""Suffix decoding: draft what followed the longest earlier occurrence of the text's end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spsbench.decode.protocols import Drafter
from spsbench.decode.rejection import Draft
from spsbench.drafters.forced import Forced, ForcedText, by_proposals
from spsbench.drafters.registry import Context
from spsbench.errors import UsageError
from spsbench.plugins import Options


class Match(NamedTuple):
    """Where the end of a text occurs in another place.

    Attributes:
        length: how many of its last tokens do; 0 if none.
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
        """Append one token."""
        self.text.append(token)
        state = self._new(self._length[self._last] + 1, len(self.text), {})
        at = self._last
        while at >= 0 and token not in self._next[at]:
            self._next[at][token] = state
            at = self._link[at]
        self._link[state] = 0 if at < 0 else self._exact(at, token)
        self._last = state

    def repeated(self) -> Match:
        """The longest suffix of the text that occurred before; it may overlap with itself."""
        state = self._link[self._last]
        return Match(self._length[state], self._behind[state]) if state > 0 else Match(0, 0)

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

    def behind(self, state: int) -> int:
        """The index after the first occurrence of a state's substrings."""
        return self._behind[state]

    def _exact(self, at: int, token: int) -> int:
        """The state that ``token`` leads to from ``at``; split off where it also stands for longer ones."""
        found = self._next[at][token]
        if self._length[found] == self._length[at] + 1:
            return found
        split = self._new(self._length[at] + 1, self._behind[found], dict(self._next[found]))
        self._link[split], self._link[found] = self._link[found], split
        while at >= 0 and self._next[at].get(token) == found:
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

    Args:
        min_length: the shortest match that is copied from, at least 1.
        across: whether earlier outputs count.
    """

    def __init__(self, min_length: int, across: bool) -> None:
        self._min_length = min_length
        self._across = across
        self._own = SuffixAutomaton()
        self._earlier = SuffixAutomaton()
        self._prompt_length = 0
        self._state = self._length = 0  # of the longest suffix that occurs in earlier outputs

    def begin(self, prompt: Sequence[int]) -> None:
        """Put the last output to the earlier ones, and read the prompt."""
        if self._across:
            self._keep(self._own.text[self._prompt_length :])
        self._own = SuffixAutomaton()
        self._state = self._length = 0
        self._prompt_length = len(prompt)
        self._read(prompt)

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        """Copy up to k tokens; the numbers are left alone."""
        self._read(tokens)
        return Draft(torch.tensor(self._copied(k), dtype=torch.int64, device=u.device), None)

    def forced(self, text: ForcedText, k: int) -> Forced:
        """See ``forced.forced``; not with ``across``, where proposals depend on the order of all texts.

        Raises:
            UsageError: ``across`` is on.
        """
        if self._across:
            raise UsageError(
                "suffix:across=true cannot be replayed: it proposes what earlier sequences of the run wrote.",
                flag="--drafter",
                remedy="Take across=false, or measure it with spsbench run.",
            )
        return by_proposals(self, text, k)

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Read what was decided; nothing is ever read that could be taken back."""
        self._read(tokens)

    def _read(self, tokens: Sequence[int]) -> None:
        for token in tokens[len(self._own.text) :]:
            self._own.extend(token)
            self._state, self._length = self._earlier.step(self._state, self._length, token)

    def _keep(self, output: Sequence[int]) -> None:
        for token in [*output, _SEPARATOR] if output else ():
            self._earlier.extend(token)

    def _copied(self, k: int) -> list[int]:
        """What followed the longest match; where that was the end of its output, the other match's."""
        own = self._own.repeated()
        places = [(own.length, self._own.text, own.behind)]
        places.append((self._length, self._earlier.text, self._earlier.behind(self._state)))
        for length, text, behind in sorted(places, key=lambda place: -place[0]):
            if length >= self._min_length:
                copied = text[behind : behind + k]
                copied = copied[: copied.index(_SEPARATOR)] if _SEPARATOR in copied else copied
                if copied:
                    return copied
        return []


def build(options: Options, context: Context) -> Drafter:
    return SuffixDrafter(int(options["min_length"]), bool(options["across"]))
