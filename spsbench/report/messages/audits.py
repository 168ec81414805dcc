"""What audits of other engines say of each setting."""

from __future__ import annotations

import math
from pathlib import Path

from spsbench.base.messages import Message
from spsbench.report.wording import counted
from spsbench.stats.losslessness import bounds
from spsbench.store.summary_types import Evidence, FirstForward, ReproFacts

OTHER_SAMPLING_UNKNOWN = "What its sampling does is not known from these texts."


class AnotherDistribution(Message):
    """Known after so many texts."""

    texts: int

    def __str__(self) -> str:
        return f"not the target's distribution, known after {counted(self.texts, 'text')}."


class AnotherModel(Message):
    first: FirstForward

    def __str__(self) -> str:
        first = self.first
        many = f"{first['differ']} of {counted(first['prompts'], 'prompt')}"
        where = (
            f"its most probable first token differs at {many}, e.g. token {first['token']} in place of "
            f"{first['expected']}"
        )
        if first["nats"] is not None:
            nats = f"{first['nats']:.3g} nat at token {first['token']}"
            where = f"its first forward differs by {nats}, and at {many}"
        return f"It computes another model from this checkpoint, or reads another prompt: {where}."


class AlarmAt(Message):
    """Where an alarm shows, and the nearest of the faults that are bet on."""

    place: str
    law: str | None

    def __str__(self) -> str:
        named = f"; nearest of the faults that are bet on: it {self.law}" if self.law else ""
        return f"It shows at {self.place}{named}."


class Quiet(Message):
    """``ruled_out``: leakage above this is, at 95%; None where no bound is known."""

    texts: int
    ruled_out: float | None

    def __str__(self) -> str:
        leak = "" if self.ruled_out is None else f"; leakage above {self.ruled_out:.1%} is ruled out (95%)"
        return f"no alarm after {counted(self.texts, 'text')}{leak}."


class Undecided(Message):
    """``most``: can leak at most, None where no bound is known; ``asked``: the bound that was asked for."""

    texts: int
    most: float | None
    asked: float | None

    def __str__(self) -> str:
        leak = "" if self.most is None else f", and at most {self.most:.1%} can leak"
        wish = "" if self.asked is None else f"; {self.asked:.1%} was asked for"
        return f"no alarm after {counted(self.texts, 'text')}{leak}{wish}."


class RareFaultsPossible(Message):
    level: float
    sentence = "Requests that go wrong at some token need not have been seen ({level:.0%})."


class RareFaultsSeen(Message):
    """The least share of requests that go wrong and would have been seen.

    ``stale``: that of requests that read a stale row, where it is another one.
    """

    level: float
    share: float
    stale: float | None

    def __str__(self) -> str:
        rest = "" if self.stale is None else f", {_often(self.stale)} where they read a stale row"
        often = _often(self.share).capitalize()
        return f"{often} that go wrong at some token would have been seen ({self.level:.0%}){rest}."


def _often(share: float) -> str:
    return f"one in {math.floor(1 / share)} requests" if share <= 0.5 else f"{share:.0%} of requests"


class ComparedWithConvention(Message):
    """The law that plain texts follow, in place of the one asked for."""

    law: str
    sentence = "Compared with the law that the plain texts follow: {law}."


class TextsRetokenised(Message):
    count: int

    def __str__(self) -> str:
        return (
            f"{counted(self.count, 'text')} came without ids and had to be tokenized again: where the engine "
            "drew other tokens of the same text, that alone can raise an alarm, and a quiet audit says less."
        )


class RequestsFailed(Message):
    """How many, and the first errors that differ."""

    count: int
    errors: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.count} requests failed: {'; '.join(self.errors)}."


class EngineGivenUp(Message):
    reason: str
    sentence = "The engine was given up: {reason}."


class ComparedWithPlain(Message):
    """Pairs of texts of an engine whose weights are quantised."""

    pairs: int
    log10_e_value: float

    def __str__(self) -> str:
        pairs = counted(self.pairs, "pair")
        return f"Compared with the plain texts: {pairs}, e-value 10^{self.log10_e_value:z.1f}."


class TextsDiffer(Message):
    """From plain ones, and how many of these rounding explains."""

    count: int
    explained: int

    def __str__(self) -> str:
        texts = counted(self.count, "text")
        return f"{texts} differ from the plain ones; rounding explains {self.explained}."


class VariationOfWeights(Message):
    """Total variation of a row, on average."""

    variation: float
    sentence = "Total variation from the rows of the dequantised weights: {variation:.2%} a token."


class BelowBestLogit(Message):
    most: float
    sentence = "Its tokens are at most {most:.3g} below the best logit, re-scored."


class ClosestLaw(Message):
    """Of those tried, and by how many nats it is likelier than the law asked for."""

    law: str
    nats: float
    impossible: int

    def __str__(self) -> str:
        left_over = f", {self.impossible} tokens still impossible" if self.impossible else ""
        return (
            f"Closest of the laws tried: {self.law} ({self.nats:.0f} nats likelier than what was asked "
            f"for{left_over})."
        )


class AuditProgress(Message):
    """A setting that is being audited, after some of its texts; ``bound``: leakage is below it, if known."""

    setting: str
    count: int
    texts: int
    evidence: Evidence | None
    bound: float | None

    def __str__(self) -> str:
        line, evidence = f"{self.setting}: {self.count} of {self.texts} texts", self.evidence
        if evidence is None:
            return line
        if evidence["verdict"] == "alarm":
            return f"{line}, ALARM: {evidence['reasons'][0]}; more texts show where"
        known = f", leakage at most {self.bound:.1%}" if bounds(self.bound) else ""
        return f"{line}, no alarm, e-value 10^{evidence['log10_e_value']:z.1f} (alarm at 10^3){known}"


class ReproMeasured(Message):
    """What the script in a folder showed."""

    facts: ReproFacts
    folder: Path

    def __str__(self) -> str:
        facts = self.facts
        draws = sum(facts["observed"].values())
        p_value = "below 1e-300" if facts["p_value"] < 1e-300 else f"{facts['p_value']:.2g}"
        verdict = "shows it" if facts["clear"] else "does not show it clearly"
        return (
            f"{self.folder / facts['script']} {verdict}: {facts['setting']}, a prompt of "
            f"{len(facts['context'])} ids, output token {len(facts['prefix']) + 1}, {draws} draws, p-value "
            f"{p_value}."
        )
