"""Small stand-ins shared by the tests."""

from __future__ import annotations

from collections.abc import Sequence


class Letters:
    """A tokenizer whose token i is the i-th character of an alphabet; the last token is EOS."""

    def __init__(self, alphabet: str) -> None:
        self.alphabet = alphabet
        self.eos_ids = frozenset({len(alphabet)})

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.alphabet[i] for i in ids if i < len(self.alphabet))
