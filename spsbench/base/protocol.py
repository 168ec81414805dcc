"""The protocol between spsbench and an engine, version 1: see ``docs/engine-protocol.md``.

One JSON object a line, a request and its answer. On the standard library alone, so that it can be used by
the interpreter of any engine's environment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any, Protocol, TypeVar

VERSION = 1

LARGEST = 1 << 53
"""No number in an answer is as large."""

IMPOSSIBLE = -9999.0
"""The logarithm of 0 in JSON, as vLLM's server has it."""

FLOAT32 = "float32"

DRAFT, LOOKUP, MTP = "draft", "lookup", "mtp"
"""Of the option ``speculation``: the draft model proposes, what followed the last n-gram before does, or the
target's own multi-token prediction modules."""
LOOKUP_RULE, LONGEST_NGRAM = "sample-and-compare, prompt lookup", 2

_DEEPEST = 32

DESCRIBE = "describe"
GENERATE = "generate"
TOGETHER = "together"
BYE = "bye"
STOP, LENGTH = "stop", "length"


class ProtocolError(ValueError):
    """A line is not what the protocol asks for; the text says what was found."""


@dataclass(frozen=True)
class Load:
    """Parameters of ``describe``: what the engine is to load."""

    target: str
    draft: str | None = None
    k: int = 0
    threads: int | None = None
    context: int = 2048
    dtype: str = FLOAT32
    options: dict[str, Any] = field(default_factory=dict)
    protocol: int = VERSION
    # How many requests may decode at once, whether prompts' keys and values may outlive their request, and
    # the format of the weights: ``quantised`` has those beside float32.
    in_flight: int = 1
    prefix_cache: bool = False
    weights: str = FLOAT32

    @property
    def speculative(self) -> bool:
        """Whether a draft proposes."""
        return self.draft is not None

    @property
    def speculation(self) -> str:
        """Who proposes where the engine speculates."""
        return str(self.options.get("speculation", DRAFT))


@dataclass(frozen=True)
class Drafting:
    """How an engine's drafts end, where that can touch the law of its texts.

    Attributes:
        p_min: a draft ends where the draft's most probable token has less; 0: no draft ends so.
        n_min: a draft of fewer tokens is dropped after it was drawn; 0 and 1: none is.
        top_k: the draft's row is cut to so many tokens before both; 0: to none, None: not known.
        n_max: of an engine whose K adapts the most tokens of a draft; None: K is fixed.

    Raises:
        ProtocolError: a number that is none of these.
    """

    p_min: float = 0.0
    n_min: int = 0
    top_k: int | None = None
    n_max: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.p_min <= 1:
            raise ProtocolError(f"p_min is {self.p_min:g} and not a number from 0 to 1")
        for name, count in (("n_min", self.n_min), ("top_k", self.top_k or 0)):
            if count < 0:
                raise ProtocolError(f"{name} is {count} and not 0 or more")
        if self.n_max is not None and self.n_max < 1:
            raise ProtocolError(f"n_max is {self.n_max} and not 1 or more")

    @property
    def described(self) -> str:
        """What is declared, e.g. ``p_min 0.6, n_min 2``."""
        return ", ".join(f"{name} {value:g}" for name, value in asdict(self).items() if value is not None)


@dataclass(frozen=True)
class Described:
    """Answer to ``describe``. Fields it does not report are None.

    Attributes:
        vocab_size: of its logits.
        rule: by which drafted tokens are kept, e.g. ``modified rejection``; None without a draft.
        settings: what it really runs with: see ``SETTINGS``.
    """

    engine: str
    version: str
    vocab_size: int | None = None
    rule: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    limits: list[str] = field(default_factory=list)
    protocol: int = VERSION
    # Most requests that decode at once; None for an engine that takes one after the other.
    in_flight: int | None = None
    # The fields of ``Sampling`` beyond temperature, top-k and top-p that it honours.
    processors: list[str] = field(default_factory=list)
    # None: it does not say how its drafts end.
    drafting: Drafting | None = None


SETTINGS = {
    "dtype": "of weights and sums",
    "kv_dtype": "of keys and values",
    "dynamic_quantisation": "of activations",
    "prefix_cache": "whether a prompt's keys and values outlive its request",
    "threads": "of the engine's pool",
    "top_p": "which set a nucleus is",
    "sampler_order": "of temperature, top-k and top-p",
}
"""Keys of ``Described.settings`` that are compared, and what they mean; others are shown as they are."""

SMALLEST_SET = "smallest set of that mass"
"""``top_p`` where a nucleus is the smallest set of most probable tokens whose mass reaches it."""

SAMPLER_ORDER = "temperature, top_k, top_p"
"""``sampler_order`` where logits are warped in this order."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. ``temperature`` divides the logits before ``top_k`` and ``top_p`` cut."""

    greedy: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, Any] = field(default_factory=dict)
    min_new_tokens: int = 0
    bad_words: list[list[int]] = field(default_factory=list)
    grammar: str | None = None


@dataclass(frozen=True)
class Ask:
    """Parameters of ``generate``: one sequence."""

    prompt_ids: list[int]
    max_new_tokens: int
    stop_ids: list[int] = field(default_factory=list)
    stop: list[str] = field(default_factory=list)
    sampling: Sampling = field(default_factory=Sampling)
    seed: int | None = 0
    logprobs: bool = False


@dataclass(frozen=True)
class Answer:
    """Answer to ``generate``. Fields the engine does not report are None, never an estimate.

    Attributes:
        finish: ``stop`` or ``length``.
        hidden_stop: the token that ended the output was drawn and is not among ``output_ids``.
        decoded: tokens that ``decode_ms`` paid for; one fewer than emitted where the prefill gives the first.
        loops: target calls in ``decode_ms``.
        retokenised: the engine returned text, and ``output_ids`` are that text tokenized again: they may
            differ, also in number, from those that were drawn.
    """

    output_ids: list[int]
    finish: str
    hidden_stop: bool = False
    prefill_ms: float | None = None
    decode_ms: float | None = None
    wall_ms: float | None = None
    decoded: int | None = None
    loops: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    accepted_per_loop: list[int] | None = None
    drafted_ids: list[list[int]] | None = None
    retokenised: bool = False
    logprobs: list[float] | None = None


MOST_IN_FLIGHT = 64


@dataclass(frozen=True)
class Wave:
    """Parameters of ``together``: several sequences, at most ``at_once`` of them in flight.

    Attributes:
        after: of each request, after how many tokens of all it arrives; at once where none is decoding.
        abort: of each request, after how many of its own tokens it is aborted; None for those to finish.
    """

    asks: list[Ask]
    after: list[int]
    abort: list[int | None]
    at_once: int

    def __post_init__(self) -> None:
        if not len(self.asks) == len(self.after) == len(self.abort):
            raise ProtocolError("asks, after and abort are not equally many")
        if self.at_once < 1:
            raise ProtocolError(f"at_once is {self.at_once}")


@dataclass(frozen=True)
class Together:
    """Answer to ``together``, in the order of its requests.

    Attributes:
        answers: None for a request that was aborted or failed.
        errors: why a request failed, by its place.
    """

    answers: list[Answer | None]
    errors: dict[str, Any] = field(default_factory=dict)

    def fail(self, place: int, error: Exception) -> None:
        """Record why a request has no answer."""
        first = next(iter(str(error).strip().splitlines()), "")
        self.errors[str(place)] = f"{type(error).__name__}: {first}"


Params = Load | Ask | Wave | None
Result = Described | Answer | Together | None
Kind = TypeVar("Kind", Load, Ask, Wave, Described, Answer, Together, Sampling, Drafting)


def request_seed(seed: int) -> int:
    """Return a seed that every engine takes: of 32 bits, signed in some of them."""
    return seed % (1 << 31)


def seed_field(name: str, seed: int | None, below: int = 1 << 31) -> dict[str, int]:
    """Return the seed as a field of an engine's own request; empty where its own randomness is used."""
    return {} if seed is None else {name: seed % below}


def request(id: int, method: str, params: Params = None) -> str:
    return _line(id=id, method=method, params=None if params is None else asdict(params))


def result(id: int, value: Result) -> str:
    return _line(id=id, result=None if value is None else asdict(value))


def failure(id: int, error: str) -> str:
    """Return the line that says why a request has no answer."""
    return _line(id=id, error=error)


def loaded(text: str | bytes) -> Any:
    """Parse JSON from outside; refuse NaN and deep nesting."""
    try:
        content = json.loads(text, parse_constant=_refused)
    except RecursionError:
        raise ProtocolError("JSON that is nested too deeply") from None
    except ValueError:
        shown = text if isinstance(text, str) else text[:100].decode(errors="replace")
        raise ProtocolError(f"no JSON: {shortened(shown)}") from None
    level = [content] if isinstance(content, (list, dict)) else []
    for _ in range(_DEEPEST):
        within = [each.values() if isinstance(each, dict) else each for each in level]
        level = [each for values in within for each in values if isinstance(each, (list, dict))]
        if not level:
            return content
    raise ProtocolError("JSON that is nested too deeply")


def _refused(constant: str) -> float:
    raise ValueError(constant)


def parsed(line: str) -> dict[str, Any]:
    """Return the object of a line."""
    message = loaded(line)
    if not isinstance(message, dict) or type(message.get("id")) is not int:
        raise ProtocolError(f"no object with an id: {shortened(line)}")
    return message


def read(kind: type[Kind], value: object) -> Kind:
    """Read parameters or a result; unknown fields are ignored, so that later versions may add some."""
    if not isinstance(value, Mapping):
        raise ProtocolError(f"{kind.__name__.lower()} is not an object: {shortened(json.dumps(value))}")
    values: dict[str, Any] = {}
    for each in fields(kind):
        if each.name not in value:
            if each.default is MISSING and each.default_factory is MISSING:
                raise ProtocolError(f"{each.name} is missing")
            continue
        content = value[each.name]
        base, _, none = str(each.type).partition(" | ")
        if content is None and none == "None":
            pass
        elif base in ("Sampling", "Drafting"):
            content = read(Sampling, content) if base == "Sampling" else _read_drafting(content)
        elif base in ("list[Ask]", "list[Answer"):
            content = [_read_one(base, one) for one in _list_of(each.name, content)]
        elif not _KINDS[base][0](content):
            raise ProtocolError(f"{each.name} is {shortened(json.dumps(content))} and not {_KINDS[base][1]}")
        values[each.name] = content
    return kind(**values)


def _list_of(name: str, value: object) -> list[object]:
    if not isinstance(value, list):
        raise ProtocolError(f"{name} is {shortened(json.dumps(value))} and not a list")
    return value


def _read_one(of: str, value: object) -> Ask | Answer | None:
    if of == "list[Ask]":
        return read(Ask, value)
    return None if value is None else read(Answer, value)


def _read_drafting(value: object) -> Drafting:
    """Read how drafts end; an unknown field is refused here, since ignoring it would change the judgement."""
    known = [each.name for each in fields(Drafting)]
    unknown = [name for name in value if name not in known] if isinstance(value, Mapping) else []
    if unknown:
        raise ProtocolError(f"drafting has no {shortened(str(unknown[0]))}: it has {', '.join(known)}")
    return read(Drafting, value)


def shortened(text: str, most: int = 120) -> str:
    """Return at most ``most`` characters of a text, on one line."""
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= most else f"{flat[:most]}...")


def _line(**message: Any) -> str:
    return json.dumps(message) + "\n"


def _all(kind: str, value: Any) -> bool:
    return isinstance(value, list) and all(_KINDS[kind][0](each) for each in value)


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "bool": (lambda value: type(value) is bool, "true or false"),
    "int": (lambda value: type(value) is int and abs(value) < LARGEST, "a whole number"),
    "float": (lambda value: type(value) in (int, float) and abs(value) < LARGEST, "a number"),
    "str": (lambda value: isinstance(value, str), "text"),
    "list[int": (
        lambda value: isinstance(value, list) and all(one is None or _KINDS["int"][0](one) for one in value),
        "a list of whole numbers and nulls",
    ),
    "list[int]": (lambda value: _all("int", value), "a list of whole numbers"),
    "list[float]": (lambda value: _all("float", value), "a list of numbers"),
    "list[str]": (lambda value: _all("str", value), "a list of texts"),
    "list[list[int]]": (lambda value: _all("list[int]", value), "a list of lists of whole numbers"),
    "dict[str, Any]": (lambda value: isinstance(value, dict), "an object"),
}
"""By the type of a field: whether a value is of it, and what it should have been."""


_MOST_A_TOKEN = 1000
"""Of loops, or of draft tokens, for one token of an output."""


class PeerError(Exception):
    """A request has no valid answer; the text says why, in a clause. The next one may have one."""


class PeerGone(PeerError):
    """The engine cannot be started, or does not stay up."""


class Peer(Protocol):
    """An external engine with one setting: a target, with a draft and K or without."""

    def describe(self) -> Described:
        """What it is and runs with; the models are loaded at the first call."""

    def generate(self, ask: Ask) -> Answer:
        """One sequence, as ``checked`` demands."""

    def close(self) -> None:
        """End it; nothing happens where it has ended."""


class Batching(Peer, Protocol):
    """A peer that takes several requests at once: one that says so in ``Described.in_flight``."""

    def together(self, wave: Wave) -> Together:
        """Several sequences, each as ``checked`` demands, or why it has none."""


def checked(answer: Answer, ask: Ask, vocab_size: int) -> Answer:
    """Return an answer that fits what was asked, with the token that ended it where that is known.

    Retokenised ids need not be as many as were drawn, so their number is not checked.
    """
    ids = answer.output_ids
    for name in ("decoded", "loops", "drafted", "accepted"):
        count = getattr(answer, name)
        if count is not None and not 0 <= count <= _MOST_A_TOKEN * (ask.max_new_tokens + 1):
            raise PeerError(f"its {name} is {count} where {ask.max_new_tokens} tokens were asked for")
    wrong = next((token for token in ids if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise PeerError(f"it returned token {wrong} of a vocabulary of {vocab_size}")
    if len(ids) > ask.max_new_tokens and not answer.retokenised:
        raise PeerError(f"it returned {len(ids)} tokens where {ask.max_new_tokens} were asked for")
    if answer.drafted_ids is not None:
        _check_drafted(answer.drafted_ids, answer.accepted_per_loop, vocab_size)
    early = next((place for place, token in enumerate(ids[:-1]) if token in ask.stop_ids), None)
    if early is not None:
        raise PeerError(f"it went on after the stop token {ids[early]} at {early}")
    if answer.finish == STOP:
        return _with_stop_token(answer, ask)
    if answer.finish != LENGTH:
        raise PeerError(f"finish is {shortened(answer.finish)} and neither {STOP!r} nor {LENGTH!r}")
    if len(ids) < ask.max_new_tokens and not answer.retokenised:
        raise PeerError(f"it ended after {len(ids)} of {ask.max_new_tokens} tokens without a stop token")
    return answer


def _check_drafted(drafted: list[list[int]], accepted: list[int] | None, vocab_size: int) -> None:
    if accepted is None or len(drafted) != len(accepted):
        raise PeerError("it returned drafted_ids without as many accepted_per_loop")
    if any(not 0 <= token < vocab_size for loop in drafted for token in loop):
        raise PeerError(f"it drafted a token outside the vocabulary of {vocab_size}")
    if any(not 0 <= kept <= len(loop) for kept, loop in zip(accepted, drafted, strict=True)):
        raise PeerError("it accepted more tokens of a loop than it had drafted")


def _with_stop_token(answer: Answer, ask: Ask) -> Answer:
    """Without its last draw a text would be biased."""
    ids = answer.output_ids
    if ids and ids[-1] in ask.stop_ids:
        return answer
    if not answer.hidden_stop:
        raise PeerError("it stopped without a stop token, and does not say that it kept one back")
    if len(ask.stop_ids) != 1:
        raise PeerError(f"it kept its stop token back, and there are {len(ask.stop_ids)} of them")
    return replace(answer, output_ids=[*ids, ask.stop_ids[0]], hidden_stop=False)
