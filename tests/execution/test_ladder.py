"""The best rung that holds is taken; none is taken in silence."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pytest

from spsbench.errors import UsageError
from spsbench.execution import canary, ladder
from spsbench.execution.ladder import RUNGS, probe, sandbox_rung

FULL = [(*layers, "limits") for layers in RUNGS]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    for known in (ladder._ladder, ladder._unsafe):
        known.cache_clear()
    yield
    for known in (ladder._ladder, ladder._unsafe):
        known.cache_clear()


def only(monkeypatch: pytest.MonkeyPatch, good: Collection[tuple[str, ...]]) -> None:
    monkeypatch.setattr(ladder, "holds", lambda layers: None if layers in good else "it leaks")


@pytest.mark.parametrize("number", range(1, len(RUNGS) + 1))
def test_the_highest_rung_that_holds_is_taken(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    only(monkeypatch, FULL[number - 1 :])
    rung = probe()
    assert (rung.number, rung.safe, len(rung.missing)) == (number, True, number - 1)
    assert sandbox_rung() == "+".join(RUNGS[number - 1])


def test_with_none_it_is_refused_with_the_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, [])
    with pytest.raises(UsageError, match="it leaks") as caught:
        probe()
    assert (caught.value.exit_code, caught.value.flag) == (2, "--unsafe-exec")


def test_unsafe_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, [])
    monkeypatch.setattr(ladder, "works", lambda layers: None)
    rung = probe(unsafe=True)
    assert (rung.number, rung.safe) == (6, False)
    assert sandbox_rung(unsafe=True).startswith("unsafe (seccomp+limits, ")


def test_unsafe_weakens_nothing_where_a_rung_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, FULL)
    assert probe(unsafe=True).number == 1


def test_no_fork_no_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.fork")
    with pytest.raises(UsageError, match="cannot fork"):
        probe()


def test_the_canary_notices_a_missing_layer() -> None:
    assert "read a file" in str(canary.holds(["seccomp", "limits"]))
    assert "2 GiB" in str(canary.holds(["seccomp", "landlock"]))


def test_the_canary_comes_back_where_it_runs() -> None:
    if probe().number == 1:
        assert canary.holds(FULL[0]) is None
