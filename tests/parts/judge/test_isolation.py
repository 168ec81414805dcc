"""The strongest level that holds is used; running without a sandbox is never silent."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pytest

from spsbench.base.errors import UsageError
from spsbench.parts.judge import isolation
from spsbench.parts.judge.isolation import LEVELS, probe, sandbox_level

FULL = [(*layers, "limits") for layers in LEVELS]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    for known in (isolation._strongest_level, isolation._level_without_sandbox):
        known.cache_clear()
    yield
    for known in (isolation._strongest_level, isolation._level_without_sandbox):
        known.cache_clear()


def only(monkeypatch: pytest.MonkeyPatch, good: Collection[tuple[str, ...]]) -> None:
    monkeypatch.setattr(isolation, "sandbox_fault", lambda layers: None if layers in good else "it leaks")


@pytest.mark.parametrize("number", range(1, len(LEVELS) + 1))
def test_the_strongest_level_that_holds_is_used(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    only(monkeypatch, FULL[number - 1 :])
    level = probe()
    assert (level.number, level.safe, len(level.missing)) == (number, True, number - 1)
    assert sandbox_level() == "+".join(LEVELS[number - 1])


def test_without_any_level_it_is_refused_with_the_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, [])
    with pytest.raises(UsageError, match="it leaks") as caught:
        probe()
    assert (caught.value.exit_code, caught.value.flag) == (2, "--unsafe-exec")


def test_unsafe_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, [])
    monkeypatch.setattr(isolation, "judging_fault", lambda layers: None)
    level = probe(unsafe=True)
    assert (level.number, level.safe) == (6, False)
    assert sandbox_level(unsafe=True).startswith("unsafe (seccomp+limits, ")


def test_unsafe_weakens_nothing_where_a_level_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, FULL)
    assert probe(unsafe=True).number == 1


def test_no_fork_no_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.fork")
    with pytest.raises(UsageError, match="cannot fork"):
        probe()


def test_the_canary_notices_a_missing_layer() -> None:
    assert "open a socket" in str(isolation.sandbox_fault(["landlock", "limits"]))
    assert "2 GiB" in str(isolation.sandbox_fault(["seccomp", "landlock"]))


def test_the_canary_reports_nothing_where_the_sandbox_holds() -> None:
    if probe().number == 1:
        assert isolation.sandbox_fault(FULL[0]) is None
