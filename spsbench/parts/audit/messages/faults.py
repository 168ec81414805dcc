"""Where an engine differs from the target, and what is wrong there: what is bet on, and what explains it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spsbench.base import Message

# --- places: of emitted tokens, of stages of a loop, of requests ---

FIRST_OF_TEXT = "the first token of a text"
FIRST_OF_LOOP = "the first token of a loop"
AFTER_ACCEPTED = "tokens after accepted ones"
AFTER_WHOLE_DRAFT = "the token after a whole draft"
FIRST_LOOP = "the first loop"
PICKS = "the drafted tokens"
FIRST_DRAFTED = "the first drafted token of a loop"
TESTS = "the acceptance tests"
REPLACED = "the tokens after a rejection"
REQUESTS = "some requests, from some token on"
TOKENS = "single tokens"
FIRST_TOKEN = "the first token"
AFTER_FIRST = "the token after the expected first one"


class TokensFrom(Message):
    number: int
    sentence = "tokens from the {number}th on"


class ContextToken(Message):
    number: int
    sentence = "token {number} of the texts at the chosen contexts"


# --- laws of whole rows ---

ANY = "any possible token"
BEFORE_ROW = "the row before"
OTHER_ROW = "another row of this text"
OTHER_TEXT = "the row of another text"
TEXT_BEFORE = "the row of the text before"
COPIED = "the text before"

WRONG_STATES: Final[Mapping[str, tuple[str, ...]]] = {
    "answers them from another state": (OTHER_TEXT, OTHER_ROW),
    "answers them from the state of the request before": (TEXT_BEFORE,),
    "goes on with the text of the request before": (COPIED,),
    "answers them from a stale row": (BEFORE_ROW,),
    "answers them with any possible token": (ANY,),
}
"""What is bet on of requests, and the laws, in equal parts, that stand for the rows of a wrong one."""

WRITES_SECOND = "writes the second most probable token"
COPIES = "repeats earlier texts"

# --- laws of emitted tokens ---

LEAVES_TEMPERATURE_OUT = "leaves the temperature out"
TEMPERATURE_TWICE = "applies the temperature twice"
MOST_PROBABLE = "takes the most probable token"
LEAVES_OUT_STOPS = "leaves stop tokens out"
SHUNS_PRESENT = "avoids tokens that occurred before"
REPEATS_PRESENT = "favours tokens that occurred before"
PENALISES_TWICE = "penalises tokens of the running loop twice"
ONE_TOKEN_SHORT = "cuts one token too many"
MIN_P = "cuts by min-p"


class TemperatureTimes(Message):
    factor: float
    sentence = "draws at {factor:.2g} times the temperature"


class DrawsFrom(Message):
    share: float
    rows: str
    sentence = "draws {share:.1%} from {rows}"


class DrawsFromDraft(Message):
    share: float
    sentence = "draws {share:.0%} from the draft"


class CutToBest(Message):
    count: int
    sentence = "cuts to the {count} best"


class CutToMass(Message):
    mass: float
    sentence = "cuts to a mass of {mass}"


# --- drafts, their tests and their replacements ---

DRAFTS_HOTTER = "drafts at a higher temperature"
DRAFTS_COLDER = "drafts at a lower temperature"
DRAFTS_FROM_16 = "drafts from its 16 best"
DRAFTS_FROM_4 = "drafts from its 4 best"
DRAFTS_BEST = "drafts the most probable token"
DRAFTS_RAW = "drafts without temperature and cuts"
DRAFTS_ANY = "drafts any token"
LEAVES_OUT_DRAWN = "leaves out drawn tokens that are improbable"
ACCEPTS_OFTEN = "accepts too often"
ACCEPTS_MUCH_TOO_OFTEN = "accepts much too often"
ACCEPTS_RARELY = "accepts too rarely"
ACCEPTS_INVERTED = "accepts inverted"
ACCEPTS_BY_THRESHOLD = "accepts by threshold"
ACCEPTS_BY_TARGET = "accepts by the target alone"
ACCEPTS_ANY = "accepts any token"
TESTS_RAW = "tests without temperature and cuts"
CORRECTS_FROM_TARGET = "corrects from the target"
CORRECTS_FROM_DRAFT = "corrects from the draft"
CORRECTS_FROM_DISTANCE = "corrects from the absolute distance"
CORRECTS_BY_BEST = "corrects by the most probable token"
CORRECTS_HOTTER = "corrects at a higher temperature"
CORRECTS_COLDER = "corrects at a lower temperature"
WITHOUT_REJECTED = "leaves only the rejected token out"
NEXT_ROW_OFF = "subtracts the row of the next sibling"
NOT_NORMALISED = "tests siblings with rows that are not normalised"
WITHDRAWS = "withdraws drafts that stayed short"


class WithdrawnAfterDraw(Message):
    """``rows``: of what the best probability is compared with a threshold."""

    rows: str
    threshold: float

    def __str__(self) -> str:
        return f"{WITHDRAWS}: after it nothing in {self.rows} reaches {self.threshold:g}"


class WithdrawnShort(Message):
    rows: str
    threshold: float
    fewest: int

    def __str__(self) -> str:
        end = f"ended where nothing in {self.rows} reaches {self.threshold:g}"
        return f"{WITHDRAWS}: of fewer than {self.fewest} tokens, {end}"


# --- numbers that are used twice or are coarse ---

PICK_IS_TEST = "picks and tests with one number"
TEST_IS_CORRECTION = "tests and corrects with one number"
PICK_IS_CORRECTION = "picks and corrects with one number"
ONE_NUMBER = "has one number for pick, test and correction"
ONE_NUMBER_A_LOOP = "tests a loop with one number"


class NumbersReused(Message):
    source: str
    sentence = "reuses the random numbers of {source}"


class NoiseReused(Message):
    source: str
    sentence = "reuses the noise of {source}"


class CoarseNumbers(Message):
    bits: int
    sentence = "has uniform numbers of {bits} bits"


class CoarsePicks(Message):
    bits: int
    sentence = "picks by numbers of {bits} bits"


# --- laws that may explain texts, and groups of tokens that are judged apart ---

AS_ASKED = "the target as asked for"
UNPROCESSED = "nothing processed"
DRAFT_ALONE = "the draft alone"
NO_WARP = "no temperature, top-k or top-p"
NO_CUT = "no top-k or top-p"
CUT_BEFORE_TEMPERATURE = "top-k and top-p cut at temperature 1, then the temperature"
ONE_TOKEN_MORE = "the nucleus and 1 token more"
TWO_TOKENS_MORE = "the nucleus and 2 tokens more"
ONE_TOKEN_LESS = "the nucleus without its last token"

PLACE_IN_LOOP = "place in the loop"
PLACE_IN_TEXT = "place in the text"
DISTANCE = "distance of draft and target"
ACCEPTED = "accepted"
REJECTED = "after a rejection"
WHOLE = "after a whole draft"


class DraftShare(Message):
    share: float

    def __str__(self) -> str:
        return DRAFT_ALONE if self.share == 1 else f"a share of {self.share:.0%} from the draft"


# --- a log that is followed ---

STAKES = {
    "mixture": "tokens of the draft mixed in",
    "no_residual": "rejected drafts replaced by the target's own draw",
    "lenience": "drafts accepted too often",
    "power_0": "flatter than the target",
    "power_1": "sharper than the target",
    "draft_favoured": "tokens that the draft favours, too often",
    "draft_shunned": "tokens that the draft favours, too seldom",
    "transform": "ranks in other proportions",
    "impossible": "tokens of probability 0",
}
"""What a stake of a followed log bets on, by the beginning of its name."""


class ImpossibleToken(Message):
    index: int
    token_id: int
    sentence = "token {index} of a completion (id {token_id}) has probability 0"
