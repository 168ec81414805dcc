"""What a test of an engine's protocol says, and what its pass excludes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spsbench.base.messages import Message

FOLLOWS_PROTOCOL = "It follows the protocol. Whether its texts follow the target: spsbench audit."

OTHER_VOCABULARY = "an engine of another vocabulary"
INVALID = "invalid answers"
TOO_LONG = "more than was asked for"
STOPS_IGNORED = "stop tokens that are ignored or swallowed"
NOT_GREEDY = "another model, another prompt, a wrong greedy rule"
SEED_REUSED = "a seed that is reused"
COUNTS_CONTRADICT = "counts that contradict each other"

ONE_TOKEN = "the greedy text repeats one token"


@dataclass(frozen=True, slots=True)
class Describes(Message):
    """``logits``: of engine and target, where the engine has fewer."""

    engine: str
    silent: Sequence[str]
    drafting: str | None
    logits: tuple[int, int] | None

    def __str__(self) -> str:
        text = self.engine
        if self.silent:
            text += f"; does not report {', '.join(self.silent)}"
        if self.drafting is not None:
            text += f"; its drafts end by {self.drafting}"
        if self.logits is not None:
            text += f"; {self.logits[0]} logits, and the target has {self.logits[1]}"
        return text


@dataclass(frozen=True, slots=True)
class SampledTexts(Message):
    texts: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.texts} sampled texts of {self.tokens} tokens"


@dataclass(frozen=True, slots=True)
class TextLengths(Message):
    lengths: Sequence[int]

    def __str__(self) -> str:
        return f"{self.lengths} tokens where 1, 2 and 7 were asked for"


@dataclass(frozen=True, slots=True)
class Stopped(Message):
    asked: int
    tokens: int
    finish: str

    def __str__(self) -> str:
        return f"asked to stop at token {self.asked}, it returned {self.tokens} ({self.finish})"


@dataclass(frozen=True, slots=True)
class GreedyTokens(Message):
    wrong: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.wrong} of {self.tokens} tokens are not the target's best"


@dataclass(frozen=True, slots=True)
class SeedTexts(Message):
    differ: bool
    repeats: bool

    def __str__(self) -> str:
        three = f"three seeds {'differ' if self.differ else 'are the same'}"
        return f"{three}; one seed twice: {'the same' if self.repeats else 'another text'}"


@dataclass(frozen=True, slots=True)
class ReportedCounts(Message):
    reported: Sequence[str]

    def __str__(self) -> str:
        return f"reports {', '.join(self.reported) or 'nothing about its loops'}"


@dataclass(frozen=True, slots=True)
class AcceptedOfDrafted(Message):
    accepted: int
    drafted: int

    def __str__(self) -> str:
        return f"{self.accepted} tokens accepted of {self.drafted} drafted"


@dataclass(frozen=True, slots=True)
class LoopsListed(Message):
    listed: int
    loops: int

    def __str__(self) -> str:
        return f"{self.listed} loops in accepted_per_loop, and loops is {self.loops}"


@dataclass(frozen=True, slots=True)
class AcceptedInLoop(Message):
    accepted: int
    most: int

    def __str__(self) -> str:
        return f"{self.accepted} tokens accepted in a loop of at most {self.most}"


@dataclass(frozen=True, slots=True)
class LoopTokens(Message):
    tokens: int
    emitted: int

    def __str__(self) -> str:
        return f"loops of {self.tokens} tokens, and {self.emitted} were emitted"


@dataclass(frozen=True, slots=True)
class DecodedTokens(Message):
    decoded: int
    emitted: int

    def __str__(self) -> str:
        return f"{self.decoded} tokens decoded and {self.emitted} emitted"
