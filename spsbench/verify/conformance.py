"""Whether an engine follows the protocol of ``docs/engine-protocol.md``, for the author of a worker.

About form, not about distributions: those are what ``spsbench audit`` is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from spsbench.engines.rescore import teacher_force
from spsbench.models.causal_lm import CausalLM
from spsbench.peers.protocol import (
    SETTINGS,
    STOP,
    Answer,
    Ask,
    Described,
    Peer,
    PeerError,
    PeerGone,
    Sampling,
    checked,
)
from spsbench.records import SamplingParams
from spsbench.verify.effort import Finding, skipped

_TOKENS = 24
_GREEDY = Sampling(greedy=True)


@dataclass(frozen=True, slots=True)
class Asked:
    """An engine with what it is asked."""

    peer: Peer
    target: CausalLM
    prompts: Sequence[tuple[int, ...]]
    stop_ids: Sequence[int]
    k: int

    def ask(self, prompt: int, sampling: Sampling, seed: int = 0, tokens: int = _TOKENS) -> Ask:
        """One request."""
        return Ask(list(self.prompts[prompt]), tokens, list(self.stop_ids), [], sampling, seed)

    def answer(self, ask: Ask) -> Answer:
        """The answer, if it is valid."""
        return checked(self.peer.generate(ask), ask, self.target.vocab_size)


def conformance(asked: Asked) -> Iterator[Finding]:
    """Every test, each whatever the others found; none after an engine that does not start."""
    try:
        told = asked.peer.describe()
    except PeerGone as error:
        yield Finding("describe", False, str(error), "")
        return
    yield _described(told, asked.target.vocab_size)
    tests: dict[str, Callable[[Asked], Finding]] = {
        "generate": _valid,
        "length": _length,
        "stop": _stop,
        "greedy": _greedy,
        "seeds": _seeds,
        "statistics": _statistics,
    }
    for name, test in tests.items():
        try:
            yield replace(test(asked), test=name)
        except PeerError as error:
            yield Finding(name, False, str(error), "")


def _described(told: Described, vocab_size: int) -> Finding:
    silent = [name for name in SETTINGS if told.settings.get(name) is None]
    found = f"{told.engine} {told.version}"
    if silent:
        found += f"; does not report {', '.join(silent)}"
    fits = told.vocab_size is None or told.vocab_size >= vocab_size
    if not fits:
        found += f"; {told.vocab_size} logits, and the target has {vocab_size}"
    return Finding("describe", fits, found, "an engine of another vocabulary")


def _valid(asked: Asked) -> Finding:
    answers = [asked.answer(asked.ask(i, Sampling(), seed=i)) for i in range(len(asked.prompts))]
    tokens = sum(len(answer.output_ids) for answer in answers)
    return Finding("", tokens > 0, f"{len(answers)} sampled texts of {tokens} tokens", "invalid answers")


def _length(asked: Asked) -> Finding:
    lengths = [len(asked.answer(asked.ask(0, Sampling(), tokens=n)).output_ids) for n in (1, 2, 7)]
    fits = all(length <= most for length, most in zip(lengths, (1, 2, 7), strict=True))
    return Finding("", fits, f"{lengths} tokens where 1, 2 and 7 were asked for", "more than was asked for")


def _stop(asked: Asked) -> Finding:
    """A token of a greedy text declared to be a stop token must end it there."""
    ask = asked.ask(0, _GREEDY)
    ids = asked.answer(ask).output_ids
    place = next((i for i, token in enumerate(ids) if i > 0 and token not in ids[:i]), None)
    if place is None:
        return skipped("", "the greedy text repeats one token")
    answer = asked.answer(replace(ask, stop_ids=[ids[place]]))
    fits = answer.finish == STOP and answer.output_ids == ids[: place + 1]
    return Finding(
        *("", fits),
        f"asked to stop at token {place + 1}, it returned {len(answer.output_ids)} ({answer.finish})",
        "stop tokens that are ignored or swallowed",
    )


def _greedy(asked: Asked) -> Finding:
    """Each token the target's best, or tied with it but for rounding; the same twice."""
    wrong = tokens = 0
    for number, prompt in enumerate(asked.prompts):
        ask = asked.ask(number, _GREEDY)
        ids = asked.answer(ask).output_ids
        reading = teacher_force(asked.target, None, prompt, ids, SamplingParams(greedy=True))
        wrong += int(reading.impossible.sum())
        tokens += len(ids)
    found = f"{wrong} of {tokens} tokens are not the target's best"
    return Finding("", not wrong, found, "another model, another prompt, a wrong greedy rule")


def _seeds(asked: Asked) -> Finding:
    """Texts of several seeds at a high temperature, where equal ones would be a miracle."""
    drawn = [asked.answer(asked.ask(0, Sampling(temperature=2.0), seed)).output_ids for seed in (1, 2, 3, 1)]
    apart = len({tuple(ids) for ids in drawn[:3]}) > 1
    again = "the same" if drawn[0] == drawn[3] else "another text"
    differ = "differ" if apart else "are the same"
    return Finding("", apart, f"three seeds {differ}; one seed twice: {again}", "a seed that is used again")


def _statistics(asked: Asked) -> Finding:
    """What is reported must add up."""
    answer = asked.answer(asked.ask(0, Sampling(), seed=7))
    told = {name: getattr(answer, name) for name in ("loops", "drafted", "accepted", "accepted_per_loop")}
    said = [name for name, value in told.items() if value is not None]
    problems = list(_contradictions(answer, asked.k))
    found = "; ".join(problems) or (
        f"reports {', '.join(said)}" if said else "reports nothing about its loops"
    )
    return Finding("", not problems, found, "counts that contradict each other")


def _contradictions(answer: Answer, k: int) -> Iterator[str]:
    per_loop, loops, emitted = answer.accepted_per_loop, answer.loops, len(answer.output_ids)
    if answer.accepted is not None and answer.drafted is not None and answer.accepted > answer.drafted:
        yield f"{answer.accepted} tokens accepted of {answer.drafted} drafted"
    if per_loop is not None and loops is not None and len(per_loop) != loops:
        yield f"{len(per_loop)} loops in accepted_per_loop, and loops is {loops}"
    if per_loop and k and max(per_loop) > k:
        yield f"{max(per_loop)} tokens accepted in a loop of K = {k}"
    if per_loop is not None and sum(per_loop) + len(per_loop) + 1 < emitted:
        yield f"loops of {sum(per_loop) + len(per_loop)} tokens, and {emitted} were emitted"
    if answer.decoded is not None and answer.decoded > emitted:
        yield f"{answer.decoded} tokens decoded and {emitted} emitted"
