"""What is said while an engine is audited, and of its releases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spsbench.base import Message

CHECKING = "Checking prompts, models and engine"
NO_ALARM = "No alarm, so there is nothing to reproduce."

# --- why a setting cannot be audited ---

CACHE_UNKNOWN = "it does not report whether its prefix cache is on"


class TooManyInFlight(Message):
    most: int

    def __str__(self) -> str:
        requests = "one request" if self.most == 1 else f"{self.most} requests"
        return f"it takes {requests} at a time"


class ProcessorsMissing(Message):
    names: Sequence[str]

    def __str__(self) -> str:
        return f"it has no {', '.join(self.names)}"


class CacheFixed(Message):
    wanted: bool

    def __str__(self) -> str:
        return f"its prefix cache cannot be switched {'on' if self.wanted else 'off'}"


# --- an audit ---


class EvidenceWritten(Message):
    path: Path
    sentence = "Evidence for others to check is in {path}: spsbench audit {path}."


class TextsWritten(Message):
    folder: Path
    sentence = "Texts and audit.json are in {folder}."


class Reproducing(Message):
    setting: str
    sentence = "Looking for a prompt that shows it: {setting}"


class NotReproduced(Message):
    error: Exception
    sentence = "No reproduction: {error}."


# --- a test of an engine ---


class NotJudged(Message):
    """Tests that the engine reports too little for, each with the reason."""

    reasons: Sequence[tuple[str, str]]

    def __str__(self) -> str:
        return f"Not judged: {'; '.join(f'{test} ({why})' for test, why in self.reasons)}."


class TextShown(Message):
    setting: str
    raised_alarm: bool
    line: int
    path: Path

    def __str__(self) -> str:
        about = "the text that raised the alarm" if self.raised_alarm else "its first text"
        return f"\n{self.setting}, {about} (line {self.line} of {self.path}):"


class BestLaw(Message):
    law: str
    nats: float

    def __str__(self) -> str:
        likelier = f"{self.nats:.0f} nats likelier than what was asked for"
        return f"  law that fits best: {self.law} ({likelier})"


# --- releases ---


class ReleasesPlanned(Message):
    title: str
    versions: Sequence[str]
    halving: bool
    fetched: str
    kept: str
    all_kept: bool
    install: str
    settings: int
    minutes: float
    folder: Path

    def __str__(self) -> str:
        order = ", halving where the ends differ" if self.halving else ""
        at_once = "all" if self.all_kept else "two at a time"
        newest, *_, oldest = self.versions
        return (
            f"{len(self.versions)} releases of {self.title}, {oldest} to {newest}{order}: "
            f"each about {self.fetched} to fetch, {self.kept} on disk, {at_once}, {self.install} to install "
            f"and at most {self.settings} x {self.minutes:g} min to audit. Results: {self.folder}."
        )


class ReleaseSkipped(Message):
    version: str
    why: str
    sentence = "{version} was skipped: {why}"


class NoReleaseDiffers(Message):
    ratio: float
    sentence = "No release differs: its law, and by more than {ratio:.0%} its acceptance and speed."


class ReleaseDiffers(Message):
    """``unless``: releases before it that were not audited."""

    version: str
    before: str
    quantity: str
    value: str
    value_before: str
    unless: Sequence[str]
    is_first: bool

    def __str__(self) -> str:
        change = f"{self.quantity}: {self.value}; {self.before}: {self.value_before}"
        unless = f", unless it is {' or '.join(self.unless)}, not audited" if self.unless else ""
        which = "The first" if self.is_first else "Another"
        return f"{which} release that differs: {self.version} ({change}){unless}."
