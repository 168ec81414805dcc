"""A server's log of requests, followed while it grows, with an e-detector that may run for ever.

Text n has e-values E_n, one for each stake (a likelihood ratio of a stated fault against the target), at
most 1 on average under a right server, whatever came before. An audit looks at their product from the first
text on. After a clean month that has shrunk so far that a defect which begins then takes about as long to
show. So every text begins a product, and all are added up with weights w_n, known before the text is drawn:

    R_n = (R_{n-1} + w_n) E_n,   R_0 = START

With equal weights this is the Shiryaev-Roberts e-detector (Shin, Ramdas, Rinaldo 2023, "E-detectors"). Under
a right server R_n - (w_1 + ... + w_n) is a supermartingale, and so is its mean over stakes. w_n is the time
between the two texts before text n, in years: the weights add up to at most the time that has passed. An
alarm is R_n >= 1 + START. For the time T of the first false alarm therefore

    1 + START <= E[R_T] <= START + E[T]:   on average at least one year,

and one within t years has a probability of at most (t + START) / (1 + START), whatever the number of texts a
day. START = 1/1000 is the audit's own level, for a defect that was there from the start. After an alarm the
detector starts again. An alarm also needs an e-value of 1,000 of one stake since one text, as an audit's
does: where texts leave no choice every E_n is 1, and R_n is the time alone.

All this needs an order of texts that does not depend on what is in them. A log is written as requests end: of
requests in flight together the short ones come first, see ``benchmarks/follow_power.py`` at commit d3b7459b.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from spsbench.base import LONGEST_LINE_BYTES, UsageError, read_json, write_json
from spsbench.engines import score_stats, teacher_force
from spsbench.law import BINS, Sums
from spsbench.models import CausalLM
from spsbench.parts.audit.messages.faults import STAKES, ImpossibleToken
from spsbench.runner import Reader, is_exact
from spsbench.stats import ALARM_LOG10_E, COARSE_TOLERANCE, SLOPES, directions

START = 1e-3
"""What is bet on a defect that was there from the start, in years."""

YEAR_S = 365.25 * 86400
_LONGEST_GAP_S = 86400.0  # a clock that jumps must not raise an alarm
_PRIOR, _KEPT = 10.0, 0.98  # counts of a cell before any text, and what a text leaves of those before
_MANY_IMPOSSIBLE = 0.1  # of the tokens, where rounding may explain COARSE_TOLERANCE
_MOST = 1e200

POLL_S = 0.5
_EVERY_S = 1.0


@dataclass
class Detector:
    """The sums of the module's text, one of each stake, and where the evidence of each began."""

    value: dict[str, float] = field(default_factory=dict)
    best: dict[str, list[Any]] = field(default_factory=dict)  # weight, e-value, time and text of one begin
    cells: list[float] = field(default_factory=lambda: [_PRIOR] * BINS)
    last_s: float | None = None
    owed: float = 0.0

    @property
    def years(self) -> float:
        """The mean over stakes."""
        return sum(self.value.values()) / len(self.value) if self.value else START

    @property
    def leading(self) -> dict[str, Any] | None:
        """The stake with most evidence, its e-value and the text with which that begins."""
        if not self.value:
            return None
        name = max(self.value, key=lambda name: self.value[name])
        why = next(meaning for start, meaning in STAKES.items() if name.startswith(start))
        _, log_e, since_s, text = self.best[name]
        log10_e = log_e / math.log(10)
        return {"stake": name, "why": why, "log10_e": log10_e, "since": since_s, "since_text": text}

    @property
    def is_alarm(self) -> bool:
        """Whether there is enough evidence: see the module's text."""
        leader = self.leading
        return leader is not None and self.years >= 1 + START and leader["log10_e"] >= ALARM_LOG10_E

    def add(self, logs: Mapping[str, float], at_s: float, number: int) -> None:
        """Add one text's log e-values; the stakes are the same every time."""
        for name, log_e in logs.items():
            e = math.exp(min(log_e, 300.0))
            self.value[name] = min((self.value.get(name, START) + self.owed) * e, _MOST)
            begun = self.best.setdefault(name, [START, 0.0, at_s, number])
            if self.owed and begun[1] < math.log(self.owed / begun[0]):  # beginning here has more
                begun[:] = [self.owed, 0.0, at_s, number]
            begun[1] += log_e
        before_s = at_s if self.last_s is None else self.last_s
        self.owed = min(max(at_s - before_s, 0.0), _LONGEST_GAP_S) / YEAR_S
        self.last_s = max(at_s, before_s)

    def logs(self, sums: Sums, tokens: int, *, exact: bool) -> dict[str, float]:
        """Return log e-values of one text; what the ranks' cells bet on is learnt from earlier texts."""
        log_e_of = {name.removeprefix("log_e_"): value for name, value in sums.items() if "log_e_" in name}
        if "leak_score" in sums:
            for name, sign in (("draft_favoured", 1), ("draft_shunned", -1)):
                stakes = directions(sign * sums["leak_score"], sums["leak_var"])
                log_e_of |= {f"{name}_{slope}": float(x) for slope, x in zip(SLOPES, stakes, strict=True)}
        cells = np.array(self.cells)
        counts = np.array([sums[f"transform_{n}"] for n in range(BINS)])
        log_e_of["transform"] = float(counts @ np.log(BINS * cells / cells.sum()))
        self.cells = [*(_PRIOR + _KEPT * (cells - _PRIOR) + counts)]
        if not exact:  # a bet against a share of them that rounding explains
            wrong = sums["impossible"]
            p, q = _MANY_IMPOSSIBLE, COARSE_TOLERANCE
            log_e_of["impossible"] = wrong * math.log(p / q) + (tokens - wrong) * math.log((1 - p) / (1 - q))
        return log_e_of


@dataclass
class State:
    """All that a following is, as it is in its file."""

    asked: dict[str, Any]
    inode: int | None = None
    offset: int = 0
    files: int = 1  # one more at each rotation or truncation
    lines: int = 0
    skipped: int = 0  # not among one in N, or empty
    garbage: int = 0
    last_garbage: str | None = None
    texts: int = 0
    tokens: int = 0
    retokenised: int = 0
    impossible: int = 0
    since_s: float | None = None
    alarms: int = 0
    last_alarm: dict[str, Any] | None = None
    detector: Detector = field(default_factory=Detector)

    @classmethod
    def read(cls, path: Path, subject: dict[str, Any]) -> State:
        """Return the state of an earlier following of the same subject, or a new one."""
        if not path.exists():
            return cls(subject)
        content = read_json(path, "--out")
        remedy = "Name another directory, or remove it to start again."
        if content.get("asked") != subject:
            raise UsageError(f"{path} is of another log or other models.", flag="--out", remedy=remedy)
        try:
            return cls(**{**content, "detector": Detector(**content["detector"])})
        except (TypeError, KeyError) as problem:
            raise UsageError(f"{path} is damaged ({problem}).", flag="--out", remedy=remedy) from problem

    @property
    def texts_a_day(self) -> float | None:
        """Return how many texts were re-scored a day of the log's time; None within its first hour."""
        last = self.detector.last_s
        over = 0.0 if last is None or self.since_s is None else last - self.since_s
        return 86400 * (self.texts - 1) / over if over >= 3600 else None


@dataclass
class Follower:
    """Re-scores one request in N of a log that grows; what it knows is kept in a file."""

    path: Path
    kept: Path
    state: State
    reader: Reader
    models: tuple[CausalLM, CausalLM | None]
    every: int
    dtype: torch.dtype | None
    _file: BinaryIO | None = None
    _written: tuple[int, int] | None = None  # files and lines at that time
    _written_s: float = -math.inf

    def run(self, until_s: float, tell: Callable[[dict[str, Any]], bool]) -> None:
        """Follow until ``until_s`` of the monotonic clock, or until ``tell``, which gets alarms, returns
        False.

        The state is written between lines alone: whatever ends this, it can go on from there.
        """
        state, goes_on = self.state, True
        try:
            while goes_on:
                for line in self._whole_lines():
                    finding = self._take(line)
                    if finding is not None:
                        goes_on = tell(finding)  # before it is written: rather twice than never
                        state.alarms += 1
                        state.last_alarm = finding
                        state.detector = Detector(cells=state.detector.cells, last_s=state.detector.last_s)
                    self._write(now=finding is not None)
                    if not goes_on or time.monotonic() >= until_s:
                        break
                self._write(now=True)
                goes_on = goes_on and time.monotonic() < until_s
                if goes_on:
                    time.sleep(POLL_S)
        finally:
            if self._file is not None:
                self._file.close()

    def _write(self, *, now: bool) -> None:
        """Write the state if it has changed, at most once in ``_EVERY_S`` unless ``now``."""
        seen = (self.state.files, self.state.lines)
        at_s = time.monotonic()
        if seen != self._written and (now or at_s - self._written_s >= _EVERY_S):
            write_json(self.kept, asdict(self.state))
            self._written, self._written_s = seen, at_s

    def _whole_lines(self) -> Iterator[bytes]:
        """Across rotations; a line without an end is waited for."""
        while self._file is not None or self._open():
            assert self._file is not None
            if os.fstat(self._file.fileno()).st_size < self.state.offset:  # truncated in place
                self._begin_next_file()
                continue
            self._file.seek(self.state.offset)
            # Asked before reading: what came between the last line and a rotation is read, too.
            gone = self._is_rotated()
            while line := self._file.readline(LONGEST_LINE_BYTES):
                if not line.endswith(b"\n") and len(line) < LONGEST_LINE_BYTES and not gone:
                    return
                self.state.offset += len(line)
                yield line
            if not gone:
                return
            self._begin_next_file()

    def _is_rotated(self) -> bool:
        try:
            return self.path.stat().st_ino != self.state.inode
        except OSError:
            return False

    def _begin_next_file(self) -> None:
        """Begin with the log's next file, or with the same one from its start."""
        if self._file is not None:
            self._file.close()
        self._file, self.state.inode, self.state.offset = None, None, 0
        self.state.files += 1

    def _open(self) -> bool:
        """Open the file that was being read, wherever it is by now; else the log from its beginning."""
        others = [] if self.state.inode is None else sorted(self.path.parent.glob(f"{self.path.name}?*"))
        for path in (self.path, *others):
            with suppress(OSError):
                file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115
                status = os.fstat(file.fileno())
                if stat.S_ISREG(status.st_mode) and self.state.inode in (None, status.st_ino):
                    self.state.inode, self._file = status.st_ino, file
                    return True
                file.close()
        if self.state.inode is not None and self.path.is_file():  # the old file is gone
            self._begin_next_file()
            return self._open()
        return False

    def _take(self, line: bytes) -> dict[str, Any] | None:
        """Count a line, re-score its text if it is chosen, and return the alarm if that raises one."""
        state = self.state
        state.lines += 1
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("it is not a JSON object")
            chosen = is_chosen(row.get("id"), line, self.every)
            text = self.reader.text(state.lines, row) if chosen else None
        except (ValueError, RecursionError) as problem:
            state.garbage += 1
            state.last_garbage = f"line {state.lines}: {problem}"[:200]
            return None
        if text is None or not text.completion:
            state.skipped += 1
            return None
        reading = teacher_force(*self.models, text.prompt, text.completion, text.sampling, self.dtype)
        sums = score_stats(reading, text.line)
        tokens = len(text.completion)
        exact = is_exact(self.models[0], self.dtype)
        wrong = int(sums.get("impossible", 0))
        state.texts, state.tokens = state.texts + 1, state.tokens + tokens
        state.retokenised += text.retokenised
        state.impossible += wrong
        stamp = row.get("time")
        now = time.time()
        detector = state.detector
        at_s = float(stamp) if isinstance(stamp, int | float) and 0 <= stamp <= now else now
        state.since_s = at_s if state.since_s is None else state.since_s
        if "positions" in sums:  # a token that rounding explains is not among them
            detector.add(detector.logs(sums, tokens, exact=exact), at_s, state.texts)
        alarm = detector.leading if detector.is_alarm else None
        if wrong and exact:
            index = int(reading.impossible.nonzero()[0])
            why = str(ImpossibleToken(index, text.completion[index]))
            alarm = {"stake": "impossible", "why": why, "log10_e": None, "since_text": state.texts}
        where = {"file": str(self.path), "line": state.lines, "id": row.get("id"), "time": at_s}
        return None if alarm is None else {**alarm, **where, "text": state.texts, "years": detector.years}


def _without_waiting(path: str, flags: int) -> int:
    """Open a pipe that has taken a log's name, without waiting for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def is_chosen(name: object, line: bytes, every: int) -> bool:
    """Return whether a request is one of N: by the hash of its id, or of the line where it has none."""
    key = line if name is None else str(name).encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") % every == 0
