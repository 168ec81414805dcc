"""What ends an output, as ids: engines of others are asked with ids alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class _Tokenizer(Protocol):
    @property
    def size(self) -> int: ...
    @property
    def eos_ids(self) -> Iterable[int]: ...
    def decode(self, ids: list[int]) -> str: ...


def stop_ids(tokenizer: _Tokenizer, stop: Iterable[str]) -> list[int]:
    """EOS, and every token that holds a stop string of one character.

    Longer stop strings may span tokens, which no list of ids can say: they are left out.
    """
    single = [text for text in stop if len(text) == 1]
    pieces = ((token, tokenizer.decode([token])) for token in range(tokenizer.size)) if single else ()
    ends = {token for token, piece in pieces if any(text in piece for text in single)}
    return sorted(ends | set(tokenizer.eos_ids))
