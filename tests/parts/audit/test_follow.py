"""The e-detector of ``audit --follow``, and how a growing log is read."""

from __future__ import annotations

import itertools
import json
import math
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from spsbench.base.errors import UsageError
from spsbench.law.evidence import BINS
from spsbench.parts.audit.follow import START, YEAR_S, Detector, Follower, State, is_chosen

DAY_S = 86400.0


def sums(cell: int | None = None, impossible: float = 0.0) -> dict[str, float]:
    """Of a text with one token in a cell of the transform, or none, and nothing else to say."""
    cells = {f"transform_{n}": float(n == cell) for n in range(BINS)}
    return cells | {"log_e_power_0.8": 0.0, "impossible": impossible}


def test_the_detector_gains_on_average_no_more_than_the_time_that_passed() -> None:
    """E[R_n - R_{n-1}] is the weight, over every sequence of three texts of a right server."""
    outcomes = [(0.5, math.log(1.5)), (0.3, math.log(0.5)), (0.2, math.log(0.5))]
    assert sum(p * math.exp(log_e) for p, log_e in outcomes) == pytest.approx(1)
    times, mean = (0.0, 0.5 * DAY_S, 0.75 * DAY_S), 0.0
    for path in itertools.product(outcomes, repeat=3):
        detector = Detector()
        for at_s, (_, log_e) in zip(times, path, strict=True):
            detector.add({"power_0.8": log_e, "transform": 0.0}, at_s, 1)
        mean += math.prod(p for p, _ in path) * detector.years
    # The last gap is owed: it counts with the next text, for text 3 could have decided its length.
    assert mean == pytest.approx(START + 0.5 * DAY_S / YEAR_S)


def test_a_defect_after_a_clean_month_is_found_as_fast_as_on_the_first_day() -> None:
    """The product from the first text on would need as long as it was clean: the negative control."""

    def texts_to_alarm(clean: int) -> tuple[int, float]:
        detector, product = Detector(), 0.0
        for n in itertools.count(1):
            log_e = -0.1 if n <= clean else 0.5
            detector.add({"power_0.8": log_e}, n * DAY_S / 100, n)
            product += log_e
            if detector.is_alarm:
                assert detector.leading is not None
                assert abs(detector.leading["since_text"] - clean) <= 2
                return n - clean, product
        raise AssertionError

    at_once, _ = texts_to_alarm(0)
    later, product = texts_to_alarm(3000)
    assert at_once <= 15
    assert later <= 25
    assert product < -250


def test_texts_without_a_choice_never_raise_an_alarm() -> None:
    detector = Detector()
    for day in range(3 * 366):
        detector.add({"power_0.8": 0.0}, day * DAY_S, day)
    assert detector.years > 3
    assert not detector.is_alarm


def test_a_clock_that_jumps_counts_as_a_day() -> None:
    detector = Detector()
    for at_s in (0.0, 50 * YEAR_S, 10.0, 50 * YEAR_S):
        detector.add({"power_0.8": 0.0}, at_s, 1)
    assert detector.years == pytest.approx(START + DAY_S / YEAR_S)


def test_the_bets_on_ranks_and_on_impossible_tokens_are_fair() -> None:
    chance = random.Random(1)
    detector = Detector()
    for _ in range(200):
        detector.logs(sums(chance.choice((0, 0, 3, 7))), 1, exact=True)
    logs = [Detector(cells=detector.cells[:]).logs(sums(n), 1, exact=True)["transform"] for n in range(BINS)]
    assert sum(map(math.exp, logs)) / BINS == pytest.approx(1)
    assert max(logs) > 0.5  # and what came often is bet on
    wrong, right = (Detector().logs(sums(impossible=n), 1, exact=False)["impossible"] for n in (1.0, 0.0))
    assert 0.02 * math.exp(wrong) + 0.98 * math.exp(right) == pytest.approx(1)


def test_one_in_n_is_chosen_whatever_a_request_says() -> None:
    chosen = [n for n in range(4000) if is_chosen(n, b"", 10)]
    assert 300 < len(chosen) < 500
    assert [n for n in range(4000) if is_chosen(str(n), b"long" * n, 10)] == chosen
    assert sum(is_chosen(None, str(n).encode(), 10) for n in range(4000)) == pytest.approx(400, abs=100)


# --- the file ---


class Lines(Follower):
    """Collects lines; ``then`` is called whenever it waits."""

    def __init__(
        self, path: Path, state: State, then: Iterator[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        super().__init__(path, path.with_suffix(".json"), state, *[None] * 4)  # type: ignore[arg-type]
        self.seen: list[bytes] = []
        self.over = False

        asleep, mine = time.sleep, threading.get_ident()  # a thread of an earlier test may sleep, too

        def sleep(seconds: float) -> None:
            if threading.get_ident() == mine:
                self.over = next(then, self) is self
            else:
                asleep(seconds)

        monkeypatch.setattr("spsbench.parts.audit.follow.time.sleep", sleep)
        monkeypatch.setattr("spsbench.parts.audit.follow.time.monotonic", lambda: 1.0 if self.over else 0.0)

    def _take(self, line: bytes) -> None:
        self.seen.append(line)
        self.state.lines += 1

    def all(self) -> list[bytes]:
        """What was seen when nothing was left to do."""
        self.run(1.0, lambda finding: True)
        return self.seen


def append(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)


def test_a_line_is_taken_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.jsonl"
    append(log, b"one\ntw")

    def then() -> Iterator[None]:
        assert follower.seen == [b"one\n"]
        append(log, b"o")
        yield
        assert follower.seen == [b"one\n"]
        append(log, b"\nthree\n")
        yield

    follower = Lines(log, State({}), then(), monkeypatch)
    assert follower.all() == [b"one\n", b"two\n", b"three\n"]
    again = Lines(log, State.read(follower.kept, {}), iter(()), monkeypatch)
    assert again.state.offset == log.stat().st_size
    assert again.all() == []


def test_nothing_is_lost_where_a_log_is_rotated_or_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log.jsonl"
    append(log, b"1\n")

    def then() -> Iterator[None]:
        append(log, b"2\n")
        log.rename(tmp_path / "log.jsonl.1")
        yield  # for a moment there is no log
        append(tmp_path / "log.jsonl.1", b"3\ncut")  # its writer has not noticed yet
        append(log, b"4\n")
        yield
        log.write_bytes(b"5\n")
        yield
        log.write_bytes(b"")
        yield
        append(log, b"6\n")
        yield

    follower = Lines(log, State({}), then(), monkeypatch)
    # What was cut short by the rotation is counted as a line that cannot be read.
    assert follower.all() == [b"1\n", b"2\n", b"3\n", b"cut", b"4\n", b"6\n"]
    assert follower.state.files == 3


def test_a_rotation_while_nobody_looked_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.jsonl"
    append(log, b"1\n")
    first = Lines(log, State({}), iter(()), monkeypatch)
    first.all()
    append(log, b"2\n")
    log.rename(tmp_path / "log.jsonl.1")
    append(log, b"3\n")
    second = Lines(log, State.read(first.kept, {}), iter(()), monkeypatch)
    assert second.all() == [b"2\n", b"3\n"]
    log.rename(tmp_path / "gone")
    append(log, b"4\n")
    third = Lines(log, State.read(first.kept, {}), iter(()), monkeypatch)
    assert third.all() == [b"4\n"]


def test_the_state_of_something_else_is_refused(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps(asdict(State({"every": 1}))))
    assert State.read(kept, {"every": 1}) == State({"every": 1})
    with pytest.raises(UsageError, match="another log or other models"):
        State.read(kept, {"every": 2})
    kept.write_text('{"asked": {}, "more": 1}')
    with pytest.raises(UsageError, match="is damaged"):
        State.read(kept, {})
