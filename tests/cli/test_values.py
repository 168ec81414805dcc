"""What several commands ask for in text."""

from __future__ import annotations

import pytest

from spsbench.base.errors import UsageError
from spsbench.cli.values import number, seconds


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, 30.0),
        ("300", 300.0),
        ("0", 0.0),
        ("0.5", 0.5),
        ("1e3", 1000.0),
        ("90s", 90.0),
        ("5min", 300.0),
        ("2 h", 7200.0),
        ("1.5h", 5400.0),
    ],
)
def test_a_time_is_seconds_unless_it_has_a_unit(text: str | None, found: float) -> None:
    assert seconds(text, 30.0) == found


@pytest.mark.parametrize("text", ["", "-1", "min", "5m", "5 days", "nan", "inf", "-2h", "1h30", "5min5"])
def test_anything_else_is_no_time(text: str) -> None:
    with pytest.raises(UsageError, match="must be a time"):
        seconds(text, 30.0)


@pytest.mark.parametrize("text", ["inf", "nan", "x", "-1"])
def test_a_number_is_finite_and_at_least_the_least(text: str) -> None:
    with pytest.raises(UsageError, match="--n must be a number from 0, got"):
        number(text, "--n", 0, 1)


def test_a_whole_number_that_no_float_holds_is_one() -> None:
    assert number("1" + 400 * "0", "--n", 0, 1, whole=True) == 10**400
