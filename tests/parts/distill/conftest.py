"""A tiny chat model in a folder, as a target to make drafts for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.tiny_models import CHAT_TEMPLATE, config_of, make, make_tokenizer, save

from spsbench.models.source import ModelSource, find


@pytest.fixture(scope="session")
def model() -> Any:
    """Not to be changed."""
    return make(config_of("llama", num_hidden_layers=3, hidden_size=64, max_position_embeddings=2048))


@pytest.fixture(scope="session")
def target(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = make_tokenizer(bos=True, chat_template=CHAT_TEMPLATE)
    return save(model, tmp_path_factory.mktemp("target") / "model", tokenizer)


@pytest.fixture(scope="session")
def source(target: Path) -> ModelSource:
    return find(str(target), None, "--target")
