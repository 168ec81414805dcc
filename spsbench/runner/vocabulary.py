"""What the token ids of traces read as, so that a report can show them without a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol


class TokenReader(Protocol):
    """The half of a tokenizer that is needed here."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids of a text."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""


def token_texts(ids: Iterable[int], tokenizer: TokenReader) -> dict[str, str]:
    """The text of each id by the id's digits; empty for special tokens.

    Each is read behind an ``a``: some tokenizers drop the space before the first word they decode. A
    part of a character reads as U+FFFD.
    """
    anchor = tokenizer.encode("a", special=False)
    before = tokenizer.decode(anchor)
    return {
        str(token): tokenizer.decode([*anchor, token]).removeprefix(before)
        for token in sorted({*map(int, ids)})
    }
