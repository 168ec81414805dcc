"""A tokenizer of bytes, and files of rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

BOS = 256


class ByteTokenizer:
    """One token per UTF-8 byte; BOS in front; a chat template of two angle brackets."""

    roles = ("system", "user", "assistant")

    def encode(self, text: str, *, special: bool) -> list[int]:
        return [BOS] * special + list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i != BOS).decode(errors="replace")

    def chat(self, text: str) -> list[int]:
        return self.encode(f"<{text}>", special=True)

    def conversation(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()
    ) -> list[int]:
        if any(message["role"] == "system" for message in messages[1:]):
            raise ValueError("a late system message")
        said = "".join(f"<{message['role'][0]}:{message['content']}>" for message in messages)
        return self.encode(said, special=True)

    def takes_role(self, role: str) -> bool:
        return role in self.roles

    def begun_chat(self, text: str, answer: str) -> list[int] | None:
        return [*self.chat(text), *self.encode(answer, special=False)]


@pytest.fixture
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer()


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write rows as JSON lines into a file of the test's folder."""

    def write_rows(rows: list[dict[str, Any]], name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write_rows
