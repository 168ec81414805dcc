"""Suffix drafting: the longest suffix of the text that occurred before says what comes next."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spsbench.decode.protocols import Drafter
from spsbench.decode.rejection import Draft
from spsbench.drafters.automaton import SuffixAutomaton
from spsbench.drafters.kind import Context, DrafterKind
from spsbench.errors import UsageError
from spsbench.plugins import Options

_SEPARATOR = -1  # no token's id, so that nothing is matched across it or proposed past it


class SuffixDrafter:
    """Copies what followed the longest suffix of the sequence that occurred before, at its first place.

    Like prompt lookup without a limit on n, in amortised constant time a token: one suffix automaton reads
    prompt and output as they are decided. With ``across`` a second one holds the outputs of earlier
    sequences (after SuffixDecoding, Oliaro et al. 2024); the longer match wins, of equal ones the
    sequence's own. Copies are point masses, and may be shorter than K or empty.

    With ``across`` a proposal depends on all sequences that this drafter has seen: on the order of prompts,
    on shards and on resuming. The output's law does not, the tokens drawn and their speed do. An output is
    kept as it was decoded, with what the last loop wrote behind its end.

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


def _build(options: Options, context: Context) -> Drafter:
    min_length = int(options["min_length"])
    if min_length < 1:
        raise UsageError(
            f"suffix:min_length={min_length} is not valid.",
            flag="--drafter",
            remedy="Give a min_length of at least 1.",
        )
    return SuffixDrafter(min_length, bool(options["across"]))


KIND = DrafterKind(
    name="suffix",
    summary="Copies what followed the longest suffix of the sequence that occurred before.",
    build=_build,
    options={"min_length": 1, "across": False},
    point_mass=True,
)
