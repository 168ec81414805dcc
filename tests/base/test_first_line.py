"""What of an error's text stands in a sentence."""

from __future__ import annotations

import pytest

from spsbench.base.errors import first_line


@pytest.mark.parametrize(
    ("text", "alone", "named"),
    [
        ("one\ntwo", "one", "ValueError: one"),
        ("\n \n  three  \nfour", "three", "ValueError: three"),
        ("", "ValueError", "ValueError"),
        ("\n", "ValueError", "ValueError"),
    ],
)
def test_it_is_the_first_that_says_something(text: str, alone: str, named: str) -> None:
    assert first_line(ValueError(text)) == alone
    assert first_line(ValueError(text), kind=True) == named
