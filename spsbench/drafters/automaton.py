"""A suffix automaton that grows with a text: every place where a suffix occurred before, in linear memory."""

from __future__ import annotations

from typing import NamedTuple


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
        """The index behind the first occurrence of a state's substrings."""
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
