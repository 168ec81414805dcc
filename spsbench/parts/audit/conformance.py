"""Whether an engine follows the protocol of ``docs/engine-protocol.md``, for the author of a worker.

About form, not about distributions: those are what ``spsbench audit`` is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spsbench.base import Message, SamplingParams, protocol
from spsbench.engines import teacher_force
from spsbench.models import CausalLM
from spsbench.parts.audit.messages import protocol as messages
from spsbench.parts.verify.effort import Finding, skipped

_GREEDY = protocol.Sampling(greedy=True)


@dataclass(frozen=True, slots=True)
class EngineUnderTest:
    """An engine, with the model and the prompts that it is asked with."""

    peer: protocol.Peer
    target: CausalLM
    prompts: Sequence[tuple[int, ...]]
    stop_ids: Sequence[int]
    k: int
    drafting: protocol.Drafting | None = None  # by its options; None: its worker says so, if it does

    def answer(
        self, prompt: int, sampling: protocol.Sampling, seed: int = 0, tokens: int = 24, **more: Any
    ) -> protocol.Answer:
        """The answer to one request, if it is valid."""
        ask = protocol.Ask(list(self.prompts[prompt]), tokens, list(self.stop_ids), [], sampling, seed)
        ask = replace(ask, **more)
        return protocol.checked(self.peer.generate(ask), ask, self.target.vocab_size)


TestOutcome = tuple[bool | None, Message | str]
"""Whether it passed, None if it does not apply; and what was found."""


def conformance(engine: EngineUnderTest) -> Iterator[Finding]:
    """Run every test, independent of the others; none after an engine that does not start."""
    try:
        described = engine.peer.describe()
    except protocol.PeerGone as error:
        yield Finding("describe", False, str(error), "")
        return
    size, own_size = engine.target.vocab_size, described.vocab_size
    message = messages.Describes(
        f"{described.engine} {described.version}",
        [name for name in protocol.SETTINGS if described.settings.get(name) is None],
        None if described.drafting is None else described.drafting.described,
        None if own_size is None or own_size >= size else (own_size, size),
    )
    yield Finding("describe", message.logits is None, message, messages.OTHER_VOCABULARY)
    for name, (test, bounds) in TESTS.items():
        try:
            passed, answer = test(engine)
        except protocol.PeerError as error:
            yield Finding(name, False, str(error), "")
            continue
        yield skipped(name, answer) if passed is None else Finding(name, passed, answer, bounds)


def _valid(engine: EngineUnderTest) -> TestOutcome:
    answers = [engine.answer(i, protocol.Sampling(), seed=i) for i in range(len(engine.prompts))]
    tokens = sum(len(answer.output_ids) for answer in answers)
    return tokens > 0, messages.SampledTexts(len(answers), tokens)


def _length(engine: EngineUnderTest) -> TestOutcome:
    lengths = [len(engine.answer(0, protocol.Sampling(), tokens=n).output_ids) for n in (1, 2, 7)]
    fits = all(length <= most for length, most in zip(lengths, (1, 2, 7), strict=True))
    return fits, messages.TextLengths(lengths)


def _stop(engine: EngineUnderTest) -> TestOutcome:
    """A token of a greedy text declared to be a stop token must end it there."""
    ids = engine.answer(0, _GREEDY).output_ids
    place = next((i for i, token in enumerate(ids) if i > 0 and token not in ids[:i]), None)
    if place is None:
        return None, messages.ONE_TOKEN
    answer = engine.answer(0, _GREEDY, stop_ids=[ids[place]])
    fits = answer.finish == protocol.STOP and answer.output_ids == ids[: place + 1]
    return fits, messages.Stopped(place + 1, len(answer.output_ids), answer.finish)


def _greedy(engine: EngineUnderTest) -> TestOutcome:
    """Test that each greedy token is the target's best, or tied with it within rounding."""
    wrong = tokens = 0
    for number, prompt in enumerate(engine.prompts):
        ids = engine.answer(number, _GREEDY).output_ids
        reading = teacher_force(engine.target, None, prompt, ids, SamplingParams(greedy=True))
        wrong += int(reading.impossible.sum())
        tokens += len(ids)
    return not wrong, messages.GreedyTokens(wrong, tokens)


def _seeds(engine: EngineUnderTest) -> TestOutcome:
    """Test that texts of several seeds at a high temperature differ."""
    drawn = [engine.answer(0, protocol.Sampling(temperature=2.0), seed).output_ids for seed in (1, 2, 3, 1)]
    apart = len({tuple(ids) for ids in drawn[:3]}) > 1
    return apart, messages.SeedTexts(apart, drawn[0] == drawn[3])


def _statistics(engine: EngineUnderTest) -> TestOutcome:
    """Test that the reported counts add up."""
    answer = engine.answer(0, protocol.Sampling(), seed=7)
    names = ("loops", "drafted", "accepted", "accepted_per_loop")
    reported = [name for name in names if getattr(answer, name) is not None]
    drafting = engine.drafting or engine.peer.describe().drafting
    most = engine.k if drafting is None or drafting.n_max is None else drafting.n_max
    problems = list(_contradictions(answer, most))
    return not problems, "; ".join(map(str, problems)) or messages.ReportedCounts(reported)


def _contradictions(answer: protocol.Answer, most: int) -> Iterator[Message]:
    """``most``: tokens that a loop drafts."""
    per_loop = answer.accepted_per_loop
    loops = answer.loops
    emitted = len(answer.output_ids)
    if answer.accepted is not None and answer.drafted is not None and answer.accepted > answer.drafted:
        yield messages.AcceptedOfDrafted(answer.accepted, answer.drafted)
    if per_loop is not None and loops is not None and len(per_loop) != loops:
        yield messages.LoopsListed(len(per_loop), loops)
    if per_loop and most and max(per_loop) > most:
        yield messages.AcceptedInLoop(max(per_loop), most)
    if per_loop is not None and sum(per_loop) + len(per_loop) + 1 < emitted:
        yield messages.LoopTokens(sum(per_loop) + len(per_loop), emitted)
    if answer.decoded is not None and answer.decoded > emitted:
        yield messages.DecodedTokens(answer.decoded, emitted)


TESTS: dict[str, tuple[Callable[[EngineUnderTest], TestOutcome], str]] = {
    "generate": (_valid, messages.INVALID),
    "length": (_length, messages.TOO_LONG),
    "stop": (_stop, messages.STOPS_IGNORED),
    "greedy": (_greedy, messages.NOT_GREEDY),
    "seeds": (_seeds, messages.SEED_REUSED),
    "statistics": (_statistics, messages.COUNTS_CONTRADICT),
}
"""Each test after ``describe``, and what a pass excludes."""
