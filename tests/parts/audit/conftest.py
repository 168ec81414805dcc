"""The tiny pair that audits are tried on, made once a file."""

from __future__ import annotations

import pytest
from support.tiny_engine import Folders, Models, loaded_pair, saved_pair


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return saved_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def models(folders: Folders) -> Models:
    return loaded_pair(folders)
