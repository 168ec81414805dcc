"""What is said of texts that are there: a file, evidence of others, a log that grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spsbench.base import Message
from spsbench.report import bound
from spsbench.stats import bounds


class Consistent(Message):
    """``limit``: the leakage that is ruled out; ``unbounded``: no draft was given to bound it."""

    target: str
    limit: float | None
    unbounded: bool
    reasons: Sequence[str]

    def __str__(self) -> str:
        leak = f": no sign of a leak above {bound(self.limit)}" if bounds(self.limit) else ""
        if self.unbounded:
            leak = "; no bound on a leak without --draft"
        reasons = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        return f"Consistent with {self.target}{leak}{reasons}."


class NoEvidence(Message):
    reasons: Sequence[str]

    def __str__(self) -> str:
        return f"No evidence either way: {'; '.join(self.reasons)}."


class OtherTokens(Message):
    texts: int
    sentence = "{texts} texts came without ids: the engine's own tokens may differ"


class Informative(Message):
    positions: int
    sentence = "{positions} positions with more than one possible token"


class Sharpness(Message):
    z: float
    p_value: float
    sentence = "z {z:+.2f}, p {p_value:.2g}; above 0: sharper than the target"


class TokensImpossibleBeyondRounding(Message):
    """``first``: line, index, id and gap of the first one."""

    impossible: int
    edge: int
    first: Mapping[str, Any] | None

    def __str__(self) -> str:
        text = f"{self.impossible} tokens of probability 0; {self.edge} only by rounding"
        if self.first is None:
            return text
        where = f"line {self.first['line']}, token {self.first['index']} of the completion"
        gap = f"{self.first['gap']:.3g} below the best logit"
        return f"{text}; the first: {where} (id {self.first['token_id']}), {gap}"


# --- evidence of others ---


class ScoredAgain(Message):
    apart: float
    missing: int

    def __str__(self) -> str:
        same = f"Scored again: the same verdicts, log10 e-values within {max(self.apart, 1e-4):.2g}."
        lost = f" {self.missing} requests have no text: they failed or were removed."
        return f"{same}{lost if self.missing else ''}"


class OtherDecision(Message):
    setting: str
    decision: str
    written: str
    sentence = "{setting}: {decision}, where the file says {written}"


class OtherEValues(Message):
    setting: str
    sentence = "{setting}: other e-values"


# --- a log ---


class Following(Message):
    path: Path
    every: int
    state: Path

    def __str__(self) -> str:
        often = "at most once a year on average, within a day with 0.4% at most"
        rate = f"a right server raises an alarm {often}"
        return f"Following {self.path}, 1 request in {self.every}; {rate}. State: {self.state}."


class AlarmRaised(Message):
    line: int
    why: str
    sentence = "ALARM at line {line}: {why}."


class WebhookFailed(Message):
    why: str
    sentence = "The webhook failed ({why})."


class LinesRead(Message):
    lines: int
    files: int
    skipped: int
    sentence = "{lines} in {files} files, {skipped} not chosen or empty"


class RateUnknown(Message):
    texts: int
    sentence = "{texts} texts came without ids: the rate of false alarms does not hold for them"
