"""Text of token ids and back, for servers that handle only text."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Texts(Protocol):
    """A tokenizer, as far as a server of text needs it."""

    def text(self, ids: list[int]) -> str:
        """Text of token ids, without special tokens."""
        ...

    def ids(self, text: str) -> list[int]:
        """Token ids of a text, without those that begin a prompt."""
        ...


class FileTexts:
    """The ``tokenizer.json`` of a model's folder; read when it is first needed."""

    def __init__(self, file: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(file))

    def text(self, ids: list[int]) -> str:
        """See ``Texts.text``."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def ids(self, text: str) -> list[int]:
        """See ``Texts.ids``."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def texts_in(folder: str) -> Texts | None:
    """The tokenizer of a Hugging Face folder; None where it has none of that form."""
    file = Path(folder) / "tokenizer.json"
    return FileTexts(file) if folder and file.is_file() else None
