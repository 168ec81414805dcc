from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.browsing import opened


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with opened(tmp_path_factory.mktemp("profile")) as driver:
        yield driver
