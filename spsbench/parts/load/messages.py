"""What is said of servers under load."""

from __future__ import annotations

from collections.abc import Mapping

from spsbench.base import Interval, Message
from spsbench.report import milliseconds
from spsbench.stats import finite

WHAT_TIMES_ARE = "TTFT: until the first token; TPOT: for each further one; 50th and 95th percentile."
WHAT_RATES_ARE = (
    "Tokens a second count while so many requests were in flight; intervals are over waves of the same "
    "prompts. Kept: of the draft tokens proposed."
)

Medians = Mapping[int, float]
"""Milliseconds by the number of requests in flight."""


def _told(medians_ms: Medians) -> str:
    return ", ".join(f"{milliseconds(ms)} ms at {in_flight}" for in_flight, ms in medians_ms.items())


class PaysUpToConcurrency(Message):
    """A number of requests in flight, of those from ``least`` to ``most`` that were measured."""

    crossing: Interval
    least: int
    most: int

    def __str__(self) -> str:
        point, low, high = map(self._end, (self.crossing.estimate, self.crossing.low, self.crossing.high))
        between = "" if self.crossing.low is None else f" [{low}, {high}]"
        return f"Speculation pays up to this many in flight: {point}{between}."

    def _end(self, value: float | None) -> str:
        if value == 0:
            return f"below {self.least}"
        number = finite(value)
        return f"above {self.most}" if number is None else f"{number:.1f}"


class ServerMeasured(Message):
    role: str
    name: str
    engine: str
    version: str
    sentence = "{role}: {name}, {engine} {version}."


class PromptsCameBefore(Message):
    """``cached``: tokens of prompts that the server says came from its cache; None where it says none."""

    role: str
    again: int
    requests: int
    cached: int | None
    ttft_ms: Medians

    def __str__(self) -> str:
        cached = apart = ""
        if self.cached is not None:
            cached = f"; it says that {self.cached:,} tokens of prompts came from its cache"
        if self.ttft_ms:
            apart = f" Their TTFT, median, {_told(self.ttft_ms)} in flight, is not in the table."
        return (
            f"{self.role}: the prompts of {self.again} of {self.requests} requests had come before, and its "
            f"prefix cache may have kept them{cached}.{apart}"
        )


class Thoughts(Message):
    """``answer_ms``: until the first token of the answer behind the thought."""

    role: str
    thoughts: int
    answers: int
    tokens: int
    answer_ms: Medians

    def __str__(self) -> str:
        first = " None of them has an answer."
        if self.answer_ms:
            first = f" The first token of the answer came after {_told(self.answer_ms)} in flight, median."
        return (
            f"{self.role}: {self.thoughts} of {self.answers} answers begin with a thought, {self.tokens:,} "
            f"tokens in all, from which TTFT is taken.{first}"
        )


class TokensNotStreamed(Message):
    tokens: int
    sentence = (
        "{tokens:,} tokens were counted and not streamed, such as a hidden thought: tok/s and TPOT "
        "are without them, TTFT has their time."
    )


class AnswersRetokenised(Message):
    answers: int
    sentence = (
        "{answers} answers without a count of tokens, or with one below that of events with text: "
        "their text was tokenized again."
    )


class CountsContradict(Message):
    answers: int
    sentence = (
        "{answers} answers count more draft tokens kept than proposed: their counts are left out of kept."
    )


class EndedEarly(Message):
    reason: str
    sentence = "The measurement ended early: {reason}"


class RequestsNotCounted(Message):
    requests: int
    sentence = "{requests} requests failed; their tokens are not counted."
