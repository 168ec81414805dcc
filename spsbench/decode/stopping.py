"""Where an output ends: one rule for both arms.

The rule looks at one token after another, and what it says of a token depends on that token and
those before it, never on where a loop began or ended. So an arm that emits one token per loop and
an arm that emits five stop at the same token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

from spsbench.base.records import FinishReason, Request

# Tokens that a window reaches beyond the longest stop string: some tokenizers drop a space at the
# beginning of what they decode, and special tokens may decode to nothing.
_MARGIN = 4
_REPLACEMENT = "\ufffd"


class TextDecoder(Protocol):
    """The half of a tokenizer that reads output."""

    eos_ids: frozenset[int]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens and without clean-up of spaces."""


class StopRule:
    """Cuts the tokens of a loop at EOS, at a stop string or at the length limit.

    It holds no sequence and may serve any number of them. It decodes only when a token appears
    that can complete a stop string, and remembers per decoder which tokens can.

    Args:
        decode: token ids to text, special tokens left out, no clean-up of spaces; hashable.
        stop: strings that end the output; they may span tokens and loops.
        eos_ids: tokens that end the output.
        max_new_tokens: the length limit, at least 1.
        fixed_length: ignore EOS and stop strings; only the length limit ends the output.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stop: tuple[str, ...],
        eos_ids: frozenset[int],
        max_new_tokens: int,
        fixed_length: bool,
    ) -> None:
        if max_new_tokens < 1 or "" in stop:
            raise ValueError(f"max_new_tokens={max_new_tokens} and stop={stop!r} make no stop rule")
        self.stop = stop
        self.eos_ids = eos_ids
        self.max_new_tokens = max_new_tokens
        self.fixed_length = fixed_length
        self._decode = decode
        self._window = max((len(s.encode()) for s in stop), default=0) + _MARGIN
        self._ends = frozenset(s[i:] for s in stop for i in range(len(s)))
        self._completes = _completion_by_token(decode, stop)

    @classmethod
    def of(cls, request: Request, decoder: TextDecoder) -> StopRule:
        """Return the rule that a request asks for."""
        return cls(
            decoder.decode, request.stop, decoder.eos_ids, request.max_new_tokens, request.fixed_length
        )

    @property
    def end_ids(self) -> frozenset[int]:
        """Return the tokens that end the output whatever comes before them."""
        return frozenset() if self.fixed_length else self.eos_ids

    def cut(self, tokens: Sequence[int], fresh: Sequence[int]) -> tuple[int, FinishReason | None]:
        """Return how many of ``fresh`` become output, and why the output ends there (None: go on).

        EOS and the token that completes a stop string are kept. Of several events the earliest
        counts; at one token EOS comes before a stop string and that before the length limit.

        Args:
            tokens: the output so far, without ``fresh``; no event lies in it.
            fresh: the new tokens of a loop, in order.
        """
        room = self.max_new_tokens - len(tokens)
        if not self.fixed_length:
            for index, token in enumerate(fresh[:room] if len(fresh) > room else fresh):
                if token in self.eos_ids:
                    return index + 1, "eos"
                if self.stop and self._may_complete(token) and self._completed(tokens, fresh, index + 1):
                    return index + 1, "stop"
        return (max(room, 0), "length") if len(fresh) >= room else (len(fresh), None)

    def text(self, tokens: Sequence[int]) -> str:
        """Return the output as text up to EOS or the first stop string, whichever comes first.

        With ``fixed_length`` too: the text is then what an output of free length would have been.
        """
        ends = [index for index, token in enumerate(tokens) if token in self.eos_ids]
        text = self._decode(list(tokens[: ends[0]] if ends else tokens))
        starts = [at for at in (text.find(s) for s in self.stop) if at >= 0]
        return text[: min(starts)] if starts else text

    def _completed(self, tokens: Sequence[int], fresh: Sequence[int], count: int) -> bool:
        before = self._window - count
        window = [*tokens[-before:], *fresh[:count]] if before > 0 else fresh[count - self._window : count]
        text = self._decode(window)
        return any(s in text for s in self.stop)

    def _may_complete(self, token: int) -> bool:
        known = self._completes.get(token)
        if known is None:
            known = self._completes[token] = self._may_end_a_stop(self._decode([token]))
        return known

    def _may_end_a_stop(self, piece: str) -> bool:
        """Whether a token with this text can hold the end of a stop string; True when in doubt."""
        if _REPLACEMENT in piece and not all(s.isascii() for s in self.stop):
            return True  # a part of a character: only what it joins decides
        # Also with a space in front, which some tokenizers drop from a token decoded alone.
        either = (piece, " " + piece)
        ends = tuple(self._ends)
        return any(each.startswith(ends) or any(s in each for s in self.stop) for each in either)


@lru_cache(maxsize=16)
def _completion_by_token(decode: Callable[[Sequence[int]], str], stop: tuple[str, ...]) -> dict[int, bool]:
    """For each token met so far, whether it can complete a stop string; one dict per vocabulary."""
    return {}
