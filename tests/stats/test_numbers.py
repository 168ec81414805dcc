"""What leaves for JSON is JSON."""

from __future__ import annotations

import json
import math

import numpy as np

from spsbench.stats.bootstrap import finite, plain, ratio


def test_plain_unwraps_numpy_and_drops_what_json_has_no_word_for() -> None:
    value = {
        "a": np.float64(1.5),
        2: [np.int64(3), math.nan],
        "c": (np.array([1.0, math.inf]), np.bool_(True)),
    }
    assert plain(value) == {"a": 1.5, "2": [3, None], "c": [[1.0, None], True]}
    json.dumps(plain(value), allow_nan=False)


def test_plain_leaves_text_none_and_whole_numbers_alone() -> None:
    assert plain({"s": "x", "n": None, "i": 7}) == {"s": "x", "n": None, "i": 7}


def test_finite_and_ratio() -> None:
    assert finite(None) is None
    assert finite(math.inf) is None
    assert finite("2.5") == 2.5
    assert ratio(1.0, 0.0) is None
    assert ratio(1.0, 4.0) == 0.25
