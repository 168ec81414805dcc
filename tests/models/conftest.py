"""A small checkpoint, as a module and as a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.tiny_models import config_of, make, save


@pytest.fixture(scope="session")
def llama() -> Any:
    """Not to be changed."""
    return make(config_of("llama", num_hidden_layers=2, hidden_size=64))


@pytest.fixture
def folder(llama: Any, tmp_path: Path) -> Path:
    return save(llama, tmp_path / "model")
