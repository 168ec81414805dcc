"""What a test of an engine's protocol says, and what its pass excludes."""

from __future__ import annotations

from collections.abc import Sequence

from spsbench.base import Message

FOLLOWS_PROTOCOL = "It follows the protocol. Whether its texts follow the target: spsbench audit."

OTHER_VOCABULARY = "an engine of another vocabulary"
INVALID = "invalid answers"
TOO_LONG = "more than was asked for"
STOPS_IGNORED = "stop tokens that are ignored or swallowed"
NOT_GREEDY = "another model, another prompt, a wrong greedy rule"
SEED_REUSED = "a seed that is reused"
COUNTS_CONTRADICT = "counts that contradict each other"

ONE_TOKEN = "the greedy text repeats one token"


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


class SampledTexts(Message):
    texts: int
    tokens: int
    sentence = "{texts} sampled texts of {tokens} tokens"


class TextLengths(Message):
    lengths: Sequence[int]
    sentence = "{lengths} tokens where 1, 2 and 7 were asked for"


class Stopped(Message):
    asked: int
    tokens: int
    finish: str
    sentence = "asked to stop at token {asked}, it returned {tokens} ({finish})"


class GreedyTokens(Message):
    wrong: int
    tokens: int
    sentence = "{wrong} of {tokens} tokens are not the target's best"


class SeedTexts(Message):
    differ: bool
    repeats: bool

    def __str__(self) -> str:
        three = f"three seeds {'differ' if self.differ else 'are the same'}"
        return f"{three}; one seed twice: {'the same' if self.repeats else 'another text'}"


class ReportedCounts(Message):
    reported: Sequence[str]

    def __str__(self) -> str:
        return f"reports {', '.join(self.reported) or 'nothing about its loops'}"


class AcceptedOfDrafted(Message):
    accepted: int
    drafted: int
    sentence = "{accepted} tokens accepted of {drafted} drafted"


class LoopsListed(Message):
    listed: int
    loops: int
    sentence = "{listed} loops in accepted_per_loop, and loops is {loops}"


class AcceptedInLoop(Message):
    accepted: int
    most: int
    sentence = "{accepted} tokens accepted in a loop of at most {most}"


class LoopTokens(Message):
    tokens: int
    emitted: int
    sentence = "loops of {tokens} tokens, and {emitted} were emitted"


class DecodedTokens(Message):
    decoded: int
    emitted: int
    sentence = "{decoded} tokens decoded and {emitted} emitted"
