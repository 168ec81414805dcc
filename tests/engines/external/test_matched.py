"""Which settings of engines differ, or are not told."""

from __future__ import annotations

from typing import Any

from spsbench.engines.external.engine import Ran, unequal
from spsbench.engines.external.protocol import SETTINGS

WHOLE: dict[str, Any] = dict.fromkeys(SETTINGS, "same") | {"dtype": "float32", "prefix_cache": False}


def test_equal_settings_in_other_spellings_say_nothing() -> None:
    other = WHOLE | {"dtype": "FP32", "prefix_cache": "off"}
    assert unequal([Ran("ArS", "eager", WHOLE), Ran("ArS @b", "b", other)]) == []


def test_a_difference_names_the_setting_and_who_has_what() -> None:
    arms = [Ran("ArS", "eager", WHOLE), Ran("SpS", "eager", WHOLE)]
    arms += [Ran("ArS @b", "b", WHOLE), Ran("SpS @b", "b", WHOLE | {"dtype": "bf16"})]
    assert unequal(arms) == [
        "dtype (of weights and sums) differs: float32 with eager, ArS @b; bfloat16 with SpS @b."
    ]


def test_what_is_not_told_is_said_once_an_engine() -> None:
    silent = WHOLE | {"threads": None, "top_p": None}
    arms = [Ran("ArS", "eager", WHOLE), Ran("ArS @b", "b", silent), Ran("SpS @b", "b", silent)]
    assert unequal(arms) == ["Not reported by b: threads, top_p."]
    assert unequal(arms, sampled=False) == ["Not reported by b: threads."]
