"""What several commands ask for in text."""

from __future__ import annotations

import pytest

from spsbench.base.errors import UsageError
from spsbench.cli.values import concurrencies, counts, number, seconds


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


def test_whole_numbers_are_read_once_each_and_levels_in_rising_order() -> None:
    assert counts("32, 1,32", "--n", "Give one.") == (32, 1)
    assert concurrencies("8,1,8") == (1, 8)
    for wrong in ("", "0", "1,", "1.5", "-1", "\u0663", "x"):
        with pytest.raises(UsageError, match=r"--n must be whole numbers from 1, got"):
            counts(wrong, "--n", "Give one.")
    with pytest.raises(UsageError, match=r"from 1 to 4, got 5"):
        counts("5", "--n", "Give one.", 4)
