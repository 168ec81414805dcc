"""How far a run is, on stderr: a live bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from spsbench.base.axes import label
from spsbench.base.messages import Message
from spsbench.base.records import Arm, Sample
from spsbench.cli.console import err
from spsbench.cli.messages import OutputsToScore, SequencesOfProof, SequencesToMeasure, TimingAgain
from spsbench.report.wording import milliseconds

_LOG_LINES = 10
"""Lines that a log gets of a run."""

_REDRAW_S = 0.2


@contextmanager
def watching(*, quiet: bool, moving: bool = False) -> Iterator[LogProgress | BarProgress]:
    """Return the watcher that suits stderr; with ``quiet`` one that prints nothing.

    For ``moving`` see ``BarProgress``.
    """
    console = err(quiet=quiet)
    if not console.is_terminal or quiet:
        yield LogProgress(console)
        return
    bar = BarProgress(console, moving=moving)
    try:
        yield bar
    finally:
        bar.stop()


@dataclass(slots=True)
class Tally:
    """What an arm has done so far."""

    tokens: int = 0
    decode_s: float = 0.0
    loops: int = 0
    accepted: int = 0
    failed: int = 0

    @property
    def begun(self) -> bool:
        return bool(self.tokens or self.failed or self.loops)

    def add(self, sample: Sample) -> None:
        if sample.error is not None:
            self.failed += 1
            return
        self.tokens += len(sample.generation.tokens)
        self.decode_s += sample.generation.decode_s
        for loop in sample.generation.loops or ():
            self.loops += 1
            self.accepted += loop.accepted

    def text(self, *, speculative: bool) -> str:
        """E.g. ``7.52 ms/token  mean_acceptance_length 3.36``."""
        per_token = 1e3 * self.decode_s / self.tokens if self.tokens else None
        parts = [f"{milliseconds(per_token)} ms/token"]
        if speculative and self.loops:
            parts.append(f"mean_acceptance_length {1 + self.accepted / self.loops:.2f}")
        if self.failed:
            parts.append(f"{self.failed} failed")
        return "  ".join(parts)


class Tallies:
    """The tallies of all arms that have begun, in the order of the run."""

    def __init__(self, arms: Sequence[Arm]) -> None:
        self._arms = {arm.name: (arm, Tally()) for arm in arms}

    def add(self, sample: Sample) -> None:
        self._arms[sample.arm][1].add(sample)

    def rows(self) -> list[tuple[str, str]]:
        """Return (arm, progress so far) for every arm."""
        several = len({arm.sampling_name for arm, _ in self._arms.values()}) > 1
        return [
            (
                label({"arm": arm.name, **arm.axes()}) + (f" {arm.sampling_name}" if several else ""),
                tally.text(speculative=arm.method == "sps"),
            )
            for arm, tally in self._arms.values()
            if tally.begun
        ]


class LogProgress:
    """For a stderr that is not a terminal: a line per stage and per tenth of the sequences."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tallies = Tallies(())
        self._total = self._done = 0

    def loading(self, what: str) -> None:
        self._line(f"Loading {what}")

    def warned(self, message: Message | str) -> None:
        self._line(str(message), "yellow")

    def started(self, total: int, done: int, arms: Sequence[Arm]) -> None:
        self._tallies = Tallies(arms)
        self._begin("", str(SequencesToMeasure(total, done)), total, done)

    def expecting(self, total: int | None, sentence: str) -> None:
        if total is not None:
            self._total = max(total, self._done + 1)
        if sentence:
            self._line(sentence)

    def finished(self, sample: Sample) -> None:
        self._tallies.add(sample)
        arms = "; ".join(f"{name}: {text}" for name, text in self._tallies.rows())
        self._move(self._done + 1, self._total, f"  {arms}")

    def remeasuring(self, rounds: int, *, short: bool) -> None:
        self._begin("Timing again", str(TimingAgain(rounds, short)), rounds, 0)

    def remeasured(self) -> None:
        self._move(min(self._done + 1, self._total), self._total)

    def proving(self, total: int) -> None:
        self.stop()
        self._line(str(SequencesOfProof(total)))

    def scoring(self, total: int) -> None:
        self.stop()
        self._line(str(OutputsToScore(total)))

    def stage(self, what: str, total: int, done: int = 0) -> None:
        """Begin a phase of so many steps."""
        there = f", {done} of {total} are there already" if done else ""
        self._begin(what, f"{what}{there}", total, done)

    def step(self, rows: Sequence[tuple[str, str]] = ()) -> None:
        """Count one more step; rows are what is known by now."""
        self._move(self._done + 1, self._total, "".join(f"; {name} {text}" for name, text in rows))

    def reach(self, done: float, total: float) -> None:
        """Record how much of a phase is done."""
        self._move(int(done), max(int(total), 1))

    def doing(self, what: str) -> None:
        """Name what begins within a step."""

    def stop(self) -> None:
        """Take the bar, if any, off the screen."""

    def _begin(self, what: str, line: str, total: int, done: int) -> None:
        self._total, self._done = total, done
        self._line(line)

    def _move(self, done: int, total: int, known: str = "") -> None:
        before, self._done, self._total = self._done, done, total
        if before * _LOG_LINES // total < done * _LOG_LINES // total:
            self._line(f"{done}/{total}{known}")

    def _line(self, text: str, style: str = "dim") -> None:
        self._console.print(Text(text), soft_wrap=True)


class BarProgress(LogProgress):
    """For a terminal: a bar with the time left, and below it the arms' live numbers.

    It is drawn between sequences alone: a thread that draws meanwhile would be measured with them.
    """

    def __init__(self, console: Console, *, moving: bool = False) -> None:
        super().__init__(console)
        self._rows: Sequence[tuple[str, str]] = ()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            *([SpinnerColumn()] if moving else []),
            console=console,
            expand=True,
            transient=True,
        )
        self._task = self._bar.add_task("Warming up", total=None)
        self._live = Live(
            console=console,
            get_renderable=self._screen,
            auto_refresh=moving,
            refresh_per_second=2,
            transient=True,
        )
        self._drawn_s = 0.0

    def expecting(self, total: int | None, sentence: str) -> None:
        super().expecting(total, sentence)
        self._bar.update(self._task, total=self._total)

    def finished(self, sample: Sample) -> None:
        super().finished(sample)
        self._bar.update(self._task, description="Measuring")
        if time.monotonic() - self._drawn_s >= _REDRAW_S:
            self._live.refresh()
            self._drawn_s = time.monotonic()

    def step(self, rows: Sequence[tuple[str, str]] = ()) -> None:
        self._rows = rows or self._rows
        super().step(rows)

    def doing(self, what: str) -> None:
        self._bar.update(self._task, description=what)

    def stop(self) -> None:
        self._live.stop()

    def _begin(self, what: str, line: str, total: int, done: int) -> None:
        self._total, self._done = total, done
        if what:  # a phase has a bar of its own
            self._bar.remove_task(self._task)
            self._task = self._bar.add_task(what, total=total)
        self._bar.update(self._task, total=total, completed=done)
        self._live.start(refresh=True)

    def _move(self, done: int, total: int, known: str = "") -> None:
        self._done, self._total = done, total
        self._bar.update(self._task, total=total, completed=done)

    def _line(self, text: str, style: str = "dim") -> None:
        self._console.print(Text(text, style=style))

    def _screen(self) -> RenderableType:
        arms = Table.grid(padding=(0, 2))
        for name, text in (*self._tallies.rows(), *self._rows):
            arms.add_row(Text(name), Text(text, style="dim"))
        return Group(self._bar, arms)
