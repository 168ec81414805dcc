"""What building a prompt needs of a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TextTokenizer(Protocol):
    """Text to token ids and back; ``spsbench.models.tokenizer`` has the real one."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids of a text; ``special`` adds what begins a prompt (BOS)."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""

    def chat(self, text: str) -> list[int]:
        """Token ids of a user's message in the chat template, up to where the answer begins."""
