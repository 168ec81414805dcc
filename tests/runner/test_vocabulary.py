"""What token ids read as."""

from __future__ import annotations

from collections.abc import Sequence

from spsbench.runner.finishing import token_texts

WORDS = {0: "a", 1: " b", 2: "c", 9: ""}


class DropsFirstSpace:
    """Like SentencePiece: the space before the first word it decodes is lost; 9 is special."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        assert (text, special) == ("a", False)
        return [0]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(WORDS[i] for i in ids).removeprefix(" ")


def test_each_id_reads_as_it_would_within_a_text() -> None:
    assert token_texts([2, 1, 9, 1], DropsFirstSpace()) == {"1": " b", "2": "c", "9": ""}
    assert token_texts([], DropsFirstSpace()) == {}
