"""The shared records: a request to an engine and its answer.

Plain dataclasses on the standard library alone, so that every floor above can speak them. The
field's terms are used throughout: target, draft, K (lookahead), loop. One loop is one call of the
target: for ArS it emits one token, for SpS between 1 and K+1.
"""

from __future__ import annotations

import math
import re
from array import array
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import sha256
from typing import Any, Literal

from spsbench.base.axes import EAGER, FIXED, MODEL, MODIFIED_REJECTION, Axes, Method

SCHEMA_VERSION = 1
"""Of the run directory."""

FinishReason = Literal["stop", "eos", "length", "error"]
Fate = Literal["accepted", "rejected", "correction", "bonus", "ars"]

BEAM_CLOSEST, BEAM_LOG_PROB = "beam_closest", "beam_log_prob"
"""Of ``Generation.losslessness`` of a beam search: ``BeamSearch.closest``, and the best hypothesis'
log-probability."""

RESCORED = "rescored_"
"""Before the name of what an uncached forward gives for the same text."""

RESCORED_BEAM_LOG_PROB = RESCORED + BEAM_LOG_PROB
"""The same log-probability by an uncached forward."""

UNREAD = "unread"
"""1 in the sums of a sequence that could not be read again."""

GRAPHS = "graphs"
"""The mode of an arm whose loops a CUDA graph runs."""

SHARDS_APART = ", "
"""Between the modes of an arm that not all shards of a merged run had in common."""

VERIFICATION_RULE = "modified rejection (Chen et al. 2023), both distributions warped"


@dataclass(frozen=True, slots=True)
class BeamParams:
    """A beam search, as transformers' ``generate()`` has it.

    Attributes:
        draft_width: beams of the draft where it speculates, at least ``width``; no part of what is found.
        length_penalty: a finished hypothesis is scored by its log-probability over its length to this power.
        early_stopping: True ends the search with ``width`` finished hypotheses; False (or ``never``) goes on
            while a beam may still end better, at its present length (at the longest one).
    """

    width: int
    draft_width: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False


@dataclass(frozen=True, slots=True)
class Processing:
    """What happens to logits beyond temperature, top-k and top-p; each default is without effect.

    Attributes:
        min_p: tokens below this share of the most probable one's probability are cut.
        typical_p: the mass of the locally typical set (Meister et al. 2022); 1 keeps all tokens.
        repetition_penalty: divides positive logits of tokens seen in prompt or output, and multiplies
            negative ones (Keskar et al. 2019).
        presence_penalty, frequency_penalty: taken off the logit of a token seen in the output, once and for
            each time.
        logit_bias: added to logits, by token.
        min_new_tokens: so many tokens are emitted before one that ends the output.
        bad_words: sequences of tokens whose last one is impossible after the others.
        grammar: a JSON schema that the output follows.
        convention: whose order and definitions of these: ``transformers``, ``vllm`` or ``llama-cpp``.
    """

    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_new_tokens: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: str | None = None
    convention: str = "transformers"

    @property
    def described(self) -> str:
        """In a few words, e.g. ``min-p 0.1, repetition penalty 1.2 (vllm)``."""
        plain = Processing(convention=self.convention)
        short = {"min_p": "min-p", "typical_p": "typical-p", "min_new_tokens": "least new tokens"}
        shown = [
            f"{short.get(name, name.replace('_', ' '))} {value if isinstance(value, (int, float)) else ''}"
            for name, value in self.record().items()
            if value and value != getattr(plain, name)  # of a stored run, JSON has [] for an empty tuple
        ]
        return ", ".join(each.strip() for each in shown) + f" ({self.convention})"

    def record(self) -> dict[str, Any]:
        """What was asked for, as JSON has it."""
        return {each.name: getattr(self, each.name) for each in fields(Processing)}

    @property
    def key(self) -> str:
        """A few characters that differ between any two."""
        return sha256(repr(self.record()).encode()).hexdigest()[:8]

    @property
    def follows_history(self) -> bool:
        """Return whether a row depends on earlier tokens beyond what the model makes of them."""
        return any(getattr(self, name) != usual for name, usual in _BY_HISTORY.items())


_BY_HISTORY = {
    each.name: each.default
    for each in fields(Processing)
    if each.name not in ("min_p", "typical_p", "convention")
}
"""What looks at the tokens before a row, and is without effect as it is here."""


LEAST_TEMPERATURE = 1e-30
"""Logits divided by less leave the range of float32, and their differences are NaN."""


CUTS = ("temperature", "top_k", "top_p")
"""Of ``SamplingParams``, in the order in which they apply."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How logits become the distribution that is sampled; one object serves both arms.

    Greedy is the one-hot distribution of the largest logit, not another code path.

    Attributes:
        temperature: logits are divided by it; above 0 (0 is written as ``greedy=True``).
        greedy: put all mass on the largest logit; the other fields are then without effect.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    greedy: bool = False
    beam: BeamParams | None = None
    process: Processing | None = None

    @property
    def history(self) -> Processing | None:
        """Return the processing where it looks at earlier tokens, else None."""
        return self.process if self.process is not None and self.process.follows_history else None

    def record(self) -> dict[str, Any]:
        """All fields as JSON has them; ``beam`` and ``process`` only where there is one."""
        content = asdict(replace(self, process=None))
        del content["process"]
        if self.beam is None:
            del content["beam"]
        if self.process is not None:
            content["process"] = self.process.record()
        return content

    @property
    def described(self) -> str:
        """In a few words, e.g. ``temperature 0.8, top_p 0.95, min-p 0.1 (vllm)``."""
        plain = SamplingParams()
        values = {name: getattr(self, name) for name in CUTS}
        cuts = [f"{name} {value:g}" for name, value in values.items() if value != getattr(plain, name)]
        drawn = "greedy" if self.greedy else ", ".join(cuts) or "temperature 1"
        return drawn if self.process is None else f"{drawn}, {self.process.described}"


OptionValue = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Spec:
    """A drafter, rule or policy by name, with the options that differ from its defaults.

    Written ``name`` or ``name:option=value:option=value``, e.g. ``lookup:max_n=4``.

    Attributes:
        called: the name that a kind from a file declares, to be shown in the place of the file's.
    """

    name: str
    options: tuple[tuple[str, OptionValue], ...] = ()
    called: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return self._written(self.name)

    @property
    def shown(self) -> str:
        """What people read."""
        return self._written(self.called or self.name)

    def _written(self, name: str) -> str:
        return ":".join([name, *(f"{key}={_written(value)}" for key, value in self.options)])

    @classmethod
    def parse(cls, text: str) -> Spec:
        """What ``str`` wrote; a colon inside the name (``file.py:build``) or a value (``cuda:1``) stays in
        it."""
        name, *parts = re.split(r":(?=[^:=]+=)", text.strip())
        pairs = (part.split("=", 1) for part in parts)
        return cls(name, tuple(sorted((key.strip(), _read(value)) for key, value in pairs)))


def _written(value: OptionValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(text: str) -> OptionValue:
    return text == "true" if text in ("true", "false") else number(text)


_UNIT_S = {"s": 1.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(r"(?P<number>[^a-z]+) ?(?P<unit>s|min|h)", re.ASCII)


def seconds_of(text: str) -> float:
    """Read ``300``, ``90s``, ``5min`` or ``1.5h`` as seconds; NaN for anything else."""
    match = _TIME.fullmatch(text.strip())
    try:
        value = float(match["number"]) * _UNIT_S[match["unit"]] if match else float(text)
    except ValueError:
        return math.nan
    return value if 0 <= value < math.inf else math.nan


def number(text: str) -> int | float | str:
    """Return the number that a text writes, whole if possible; the text itself if it is not a number."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of generating that a run measures: a place on each axis.

    Attributes:
        method: ``ars`` (Algorithm 1), ``sps`` (Algorithm 2) or ``draft`` (the draft model alone).
        k: lookahead, the most that a loop drafts; 0 unless the method is ``sps``.
        engine: the backend that generates, e.g. ``eager``.
        sampling_name: the name under which the task knows its sampling, e.g. ``nucleus``.
        drafter: what proposes tokens; without effect unless the method is ``sps``, like the two below.
    """

    method: Method
    k: int
    engine: str
    sampling_name: str
    sampling: SamplingParams
    drafter: Spec = Spec(MODEL)
    rule: Spec = Spec(MODIFIED_REJECTION)
    policy: Spec = Spec(FIXED)
    batch: int = 1

    @property
    def name(self) -> str:
        """Identifier within a run, the same in every run: ``sps-k4-nucleus``, with what is unusual after it
        (``sps-k4-b8-nucleus+lookup:max_n=4@graphed``)."""
        lookahead = f"-k{self.k}" if self.method == "sps" else ""
        batch = "" if self.batch == 1 else f"-b{self.batch}"
        unusual = "".join(f"+{value}" for value in self._unusual().values())
        backend = "" if self.engine == EAGER else f"@{self.engine}"
        return f"{self.method}{lookahead}{batch}-{self.sampling_name}{unusual}{backend}"

    @property
    def alone(self) -> Arm:
        """Return the arm at batch size 1, whose seeds it shares: in a batch it writes the same tokens."""
        return replace(self, batch=1)

    def axes(self) -> Axes:
        """The place on each axis, see ``spsbench.base.axes``."""
        speculative = self.method == "sps"
        place: Axes = {
            "method": self.method,
            "sampling": self.sampling_name,
            "engine": self.engine,
            "drafter": str(self.drafter) if speculative else None,
            "rule": str(self.rule) if speculative and self.sampling.beam is None else None,
            "policy": str(self.policy) if speculative else None,
            "batch": self.batch,
            "k": self.k,
        }
        if any(getattr(self, name).called for name in self._unusual()):
            place["called"] = ", ".join(getattr(self, name).shown for name in self._unusual())
        return place

    def record(self) -> dict[str, Any]:
        """Return the fields by which two arms of one name are the same; axes at their usual place are left
        out, so that runs from before those axes can be continued.
        """
        plain = ("method", "k", "engine", "sampling_name")
        return {
            **{name: getattr(self, name) for name in plain},
            "sampling": self.sampling.record(),
            **self._unusual(),
            **({} if self.batch == 1 else {"batch": self.batch}),
        }

    def _unusual(self) -> dict[str, str]:
        if self.method != "sps":
            return {}
        usual = {"drafter": MODEL, "rule": MODIFIED_REJECTION, "policy": FIXED}
        shown = {name: str(getattr(self, name)) for name in usual}
        return {name: value for name, value in shown.items() if value != usual[name]}


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate.

    Attributes:
        fixed_length: ignore EOS and stop strings and emit exactly ``max_new_tokens``.
        trace: keep one ``TracedToken`` per drafted or emitted token.
    """

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    stop: tuple[str, ...]
    sampling: SamplingParams
    seed: int
    fixed_length: bool = False
    trace: bool = False


@dataclass(slots=True)
class Loop:
    """One loop: one target call with what was drafted, accepted and emitted, and where time went.

    ``accepted`` counts before truncation by EOS, stop string or length, except that a draft token
    after an accepted EOS is not a trial and is counted neither as drafted, tested nor accepted.

    Attributes:
        tested: drafted tokens that met the test: ``accepted`` + 1 if one was rejected.
        draft_s, verify_s, sample_s, other_s: seconds; the four add up to the loop, together with ``comm_s``
            and ``rollback_s`` where there are. None where an engine cannot see them.
        comm_s: seconds within collectives, of a target that is split over processes; None of any other.
        rollback_s: putting the running states of a recurrent target or draft back behind the accepted tokens,
            tokens that are read again for it included; None where a rollback is the change of a length.
        host_s: of an asynchronous device, the part of the loop in which it waited for launches: the
            phases in which it had caught up with the host at both ends. None where that is not seen.
        optimal_accepted: accepted tokens that the best lossless rule expects of this draft, up to a drafted
            EOS, see ``law.optimum``; None of a drawn tree, and where probabilities are not seen.
        nodes: of a tree, how many tokens were drafted; ``drafted`` is then its depth, ``tested`` counts its
            places with siblings, ``beta_sum`` is not known. None of a chain.
        siblings: of a tree, which sibling stood at each accepted depth, counted from 0: ``0,2``.
    """

    drafted: int
    accepted: int
    emitted: int
    tested: int
    beta_sum: float
    truncated: int
    draft_s: float | None
    verify_s: float | None
    sample_s: float | None
    other_s: float | None
    loop_s: float
    comm_s: float | None = None
    optimal_accepted: float | None = None
    nodes: int | None = None
    siblings: str | None = None
    host_s: float | None = None
    rollback_s: float | None = None


@dataclass(slots=True)
class TracedToken:
    """One drafted or emitted token, for the picture of who wrote what.

    Attributes:
        fate: ``accepted``, ``rejected``, ``correction``, ``bonus`` or ``ars``.
        target_prob: its probability under the warped target at that position.
        draft_prob: its probability under the warped draft; None where there was none.
    """

    loop: int
    position: int
    token_id: int
    fate: Fate
    target_prob: float
    draft_prob: float | None
    u: float


ELAPSED = "elapsed_s"
"""Of ``Sample.conditions``, in a batch: seconds from the answer before to this one, of all rows together."""

SPENT = "spent_s"
"""Of ``Sample.conditions``: seconds from a sequence's start until it was read again."""

SHARD = "shard"
"""Of ``Sample.conditions``, in a merged run: the number of its shard, from 1."""

UNRANKED = -1
"""The rank of a token where the draft's row is not known."""


@dataclass(slots=True)
class TokenEvidence:
    """What an independent reading says of every emitted token; one entry a token in each array.

    The logarithms are natural and of warped probabilities; -inf is a token of probability 0. Arrays
    rather than lists: 20 bytes a token, and float32 is what is stored. NaN where a row is not known.

    Attributes:
        draft_rank: how many tokens the draft holds more probable, before truncation; of equal ones those
            of smaller id. ``UNRANKED`` where the row is not known.
        draft_max: the largest probability of the draft's warped row.
        draft_entropy: of the draft's warped row, in nats.
    """

    log_target: array[float]
    log_draft: array[float]
    draft_rank: array[int]
    draft_max: array[float]
    draft_entropy: array[float]

    def __len__(self) -> int:
        return len(self.log_target)

    def followed_by(self, more: TokenEvidence) -> TokenEvidence:
        """Return the evidence of this text's tokens and of the tokens after them."""
        columns = (field.name for field in fields(self))
        return TokenEvidence(*(getattr(self, name) + getattr(more, name) for name in columns))


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """An output that a beam search finished.

    Attributes:
        score: ``log_prob`` over the number of tokens to the power of the length penalty; float32.
        log_prob: sum of the tokens' log-probabilities under the target, natural logarithm; float32.
    """

    tokens: tuple[int, ...]
    score: float
    log_prob: float
    reason: FinishReason


@dataclass(slots=True)
class Generation:
    """What an engine answers to a ``Request``.

    Attributes:
        prefill_s: seconds for the prompt but its last token through every model the arm uses.
        decode_s: seconds from the end of prefill to the last emitted token.
        kept_rows: the ``engines.derivation.KeptRows`` of its loops; None if they were not kept. Not stored.
        latency_s: seconds from the end of prefill to the last token, of a row in a batch, whose ``decode_s``
            is its share of them; None where the sequence had the machine to itself.
    """

    tokens: list[int]
    text: str
    loops: list[Loop] | None
    prefill_s: float
    decode_s: float
    finish_reason: FinishReason
    trace: list[TracedToken] | None = None
    losslessness: dict[str, float] | None = None
    proposed: list[list[int]] | None = None
    kept_rows: Any = None
    token_evidence: TokenEvidence | None = None
    hypotheses: list[Hypothesis] | None = None
    latency_s: float | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """One item of a task, before it becomes a prompt.

    Attributes:
        fields: the columns as loaded, e.g. ``document`` and ``summary``.
    """

    example_id: str
    fields: dict[str, Any]
    reference: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """An example as the models see it.

    Attributes:
        reference: see ``Example``.
        other_references: further ones, beside ``reference``; the best counts.
        begun: whether they go on into the answer, so that the output continues ``text``.
        thinks: whether they end within a thought, which the template opens.
        turn: of a conversation, from 1. A later turn's ``ids`` are each arm's own, since they hold its
            answers: they are empty here, and with the sample.
        conversation: of a later turn the ``example_id`` of the first.
    """

    example_id: str
    text: str
    ids: tuple[int, ...]
    reference: str
    truncated_tokens: int = 0
    chat: bool = False
    category: str | None = None
    other_references: tuple[str, ...] = ()
    begun: bool = False
    thinks: bool = False
    turn: int = 1
    conversation: str | None = None


@dataclass(slots=True)
class Sample:
    """One finished (or failed) sequence: a line of the journal.

    ``arm`` is the arm's identifier; what it is on each axis, the run's table of arms says.
    ``conditions`` holds what the machine was doing meanwhile: ``load_1m``, ``waited_s`` and ``stolen_s``,
    ``energy_j`` where it counts joules; ``spent_s`` are the seconds until it had been read again.
    ``condition`` is the index of the settings, versions and hardware it was measured under in
    ``run.json``'s list ``conditions``. ``error`` is a sentence if the sequence failed; its
    ``finish_reason`` is then ``error``. ``unread`` says why its output could not be read again, if so; its
    times and tokens stand. ``category`` is the prompt's. ``wave`` names the prompts that a run
    with
    batches measures together, arm after arm, by the first of them: seconds are compared wave by wave. None
    where each prompt is measured by itself. ``attempt`` is 2 and more where a sequence is timed again.
    ``conversation`` and ``turn`` are those of a later turn's prompt, and ``prompt_ids`` what this arm was
    asked, with its own earlier answers in it; None of any other.
    """

    example_id: str
    sample_index: int
    arm: str
    prompt_tokens: int
    generation: Generation
    order: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    conditions: dict[str, float] = field(default_factory=dict)
    condition: int = 0
    error: str | None = None
    category: str | None = None
    wave: str | None = None
    unread: str | None = None
    attempt: int | None = None
    conversation: str | None = None
    turn: int | None = None
    prompt_ids: list[int] | None = None

    @property
    def key(self) -> tuple[str, int, str]:
        """(example_id, sample_index, arm): unique within a run."""
        return self.example_id, self.sample_index, self.arm


@dataclass(frozen=True, slots=True)
class Interval:
    """A point estimate with the two ends of its 95% interval; None where it does not exist."""

    estimate: float
    low: float | None
    high: float | None

    def over(self, divisor: float) -> Interval:
        """Return the same interval in another unit: divided by an exact number above 0."""
        low, high = (None if end is None else end / divisor for end in (self.low, self.high))
        return Interval(self.estimate / divisor, low, high)


@dataclass(frozen=True, slots=True)
class Speedup:
    """Ratio of time per token, baseline over arm, with its 95% interval (None: not estimable)."""

    ratio: float
    low: float | None
    high: float | None
