"""What commands of one test process share: the package's own models, and of them not the cache."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.loaded import share_models

from spsbench.base.paths import mini_dir

OWN = str(mini_dir() / "target")


class Model:
    def __init__(self) -> None:
        self.twins = 0

    def twin(self) -> tuple[Model, int]:
        self.twins += 1
        return self, self.twins


def load(source: Any, dtype: str, vocab_size: int, flag: str, threads: int | None) -> Model:
    return Model()


@pytest.mark.parametrize(
    ("location", "other", "shared"),
    [
        (OWN, {}, True),
        (OWN, {"dtype": "int8"}, False),
        (OWN, {"threads": 2}, False),
        (OWN, {"vocab_size": 8}, False),
        ("/tmp/target", {}, False),
    ],
)
def test_a_model_of_the_package_is_loaded_once_for_all_that_load_it_alike(
    location: str, other: dict[str, Any], shared: bool
) -> None:
    loading: Any = SimpleNamespace(_load_onnx=load)
    share_models(loading)
    share_models(loading)
    config = SimpleNamespace(to_json_string=lambda: "{}")
    asked = {"dtype": "auto", "vocab_size": 9, "flag": "--target", "threads": 1}
    models = [
        loading._load_onnx(SimpleNamespace(location=location, config=config), **asked | more)
        for more in ({}, other)
    ]
    if location != OWN:
        assert models[0] is not models[1]
        return
    (first, _), (second, number) = models
    assert (first is second) == shared
    assert number == (2 if shared else 1)
