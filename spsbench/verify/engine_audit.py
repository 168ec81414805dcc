"""Texts drawn from an engine one after another, until it is clear whether they follow the target.

After every text the e-value may speak: a right engine ever reaches 1,000 with odds below 1 in 1,000, however
often one looks (Ville 1939). The bound on the leakage is that of a fixed number of texts. It is evaluated
whenever their number has doubled, each time at the same share of 5%.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from spsbench.engines.rescore import Reading, teacher_force
from spsbench.models.causal_lm import CausalLM
from spsbench.peers.asking import request_seed, sampling_of
from spsbench.peers.peer import Peer, PeerError, PeerGone, checked
from spsbench.peers.protocol import Ask
from spsbench.records import SamplingParams
from spsbench.runner.schedule import derive_seed
from spsbench.stats.losslessness import ALARM, FEWEST_POSITIONS
from spsbench.summary_types import Evidence
from spsbench.verify.audit import Audit, Foreign
from spsbench.verify.bets import Bets
from spsbench.verify.laws import Law, read_under

Decision = Literal["alarm", "quiet", "undecided"]
QUIET: Decision = "quiet"
UNDECIDED: Decision = "undecided"

FIRST_LOOK = 20
"""Texts after which the bound is first evaluated; then at twice as many, and so on."""

LEVEL = 0.05
"""How often the bound may be wrong, over all looks."""

PLAIN_TEXTS = 80
"""Texts without an alarm after which plain sampling is quiet: no draft can leak there."""

TO_LOCATE = 40
"""Texts that are drawn at least where the verdict is an alarm, to say where it comes from."""


@dataclass(frozen=True, slots=True)
class Effort:
    """When to stop.

    Attributes:
        bound: quiet as soon as the leakage is known to be below this; None for plain sampling, which is quiet
            after ``PLAIN_TEXTS``.
        texts: the most that are drawn.
        budget_s: the longest that is drawn, in seconds.
        max_new_tokens: of each text.
    """

    bound: float | None
    texts: int
    budget_s: float
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """One text of an engine, and how many drafted tokens each of its loops accepted, where that is
    reported."""

    text: Foreign
    accepted_per_loop: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Found:
    """What came of auditing an engine with one setting.

    Attributes:
        decision: ``alarm``, ``quiet`` or ``undecided``.
        evidence: over all texts; None without one.
        decided_after: texts that had been drawn when the decision fell.
        bound: the leakage that is ruled out, at the level of the last look; None if never evaluated.
        drawn: all texts.
        failures: why requests had no valid answer.
        seconds: of the whole.
        gone: why the engine was given up; None if it was not.
    """

    decision: Decision
    evidence: Evidence | None
    decided_after: int
    bound: float | None
    drawn: Sequence[Drawn]
    failures: Sequence[str]
    seconds: float
    gone: str | None

    @property
    def tokens(self) -> int:
        """Of all texts."""
        return sum(len(each.text.completion) for each in self.drawn)


class EngineAudit:
    """Audits one engine with one setting.

    Args:
        peer: the engine.
        models: whose distribution is claimed, and the draft whose leakage is asked for.
        prompts: token ids; they are asked in turns.
        sampling: what is asked for.
        stop_ids: tokens that end an output.
        effort: when to stop.
        seed: of all requests.
        law: what the texts are held against; the target as asked for unless given.
    """

    def __init__(
        self,
        peer: Peer,
        models: tuple[CausalLM, CausalLM | None],
        prompts: Sequence[tuple[int, ...]],
        sampling: SamplingParams,
        stop_ids: Collection[int],
        effort: Effort,
        seed: int = 0,
        law: Law | None = None,
    ) -> None:
        self._peer, self._models, self._prompts = peer, models, prompts
        self._sampling, self._stop_ids, self._effort = sampling, sorted(stop_ids), effort
        self._seed, self._law = seed, law
        self._audit = Audit(*models, seed=seed)
        self._bets = Bets(stop_ids)
        self._drawn: list[Drawn] = []
        self._failures: list[str] = []
        self._gone: str | None = None

    def run(self, keep: Callable[[Drawn], None]) -> Found:
        """Draw until decided.

        Args:
            keep: called with every text as it comes.
        """
        began = time.monotonic()
        decision: Decision = UNDECIDED
        after, bound = 0, None
        looks = _looks(self._effort.texts)
        for drawn in self._texts(began):
            keep(drawn)
            self._add(drawn)
            count = len(self._drawn)
            evidence = None if decision == ALARM else self._audit.evidence()
            if evidence is not None and evidence["verdict"] == ALARM:
                decision, after = ALARM, count
            if decision == ALARM:
                if count >= TO_LOCATE:
                    break
            elif count in looks:
                bound = self._audit.bound(LEVEL / len(looks))
                if self._is_quiet(evidence, bound):
                    decision, after = QUIET, count
                    break
        if decision == UNDECIDED:
            after = len(self._drawn)
        evidence, spent = self._audit.evidence(), time.monotonic() - began
        return Found(decision, evidence, after, bound, self._drawn, self._failures, spent, self._gone)

    def _texts(self, began: float) -> Iterator[Drawn]:
        """Valid answers, up to the limits."""
        for number in range(self._effort.texts):
            if time.monotonic() - began > self._effort.budget_s:
                return
            prompt = self._prompts[number % len(self._prompts)]
            ask = self._ask(prompt, number)
            try:
                answer = checked(self._peer.generate(ask), ask, self._models[0].vocab_size)
            except PeerGone as error:
                self._gone = str(error)
                return
            except PeerError as error:
                self._failures.append(str(error))
                continue
            if answer.output_ids:
                text = Foreign(
                    number + 1, prompt, tuple(answer.output_ids), self._sampling, answer.retokenised
                )
                told = answer.accepted_per_loop
                yield Drawn(text, None if told is None else tuple(told))

    def _ask(self, prompt: tuple[int, ...], number: int) -> Ask:
        seed = request_seed(derive_seed(self._seed, "audit", number, "text"))
        sampling = sampling_of(self._sampling)
        return Ask(list(prompt), self._effort.max_new_tokens, self._stop_ids, [], sampling, seed)

    def _add(self, drawn: Drawn) -> None:
        self._drawn.append(drawn)
        reading = read_under(reading_of(drawn.text, self._models), self._law)
        more = self._bets.sums(drawn.text.prompt, drawn.text.completion, reading.q)
        self._audit.add(drawn.text, reading, more)

    def _is_quiet(self, evidence: Evidence | None, bound: float | None) -> bool:
        """Whether enough is known: the bound, or of greedy texts, which have none, every prompt once."""
        if evidence is None:
            return False
        if evidence["greedy"]:
            return len(self._drawn) >= len(self._prompts)
        if evidence["positions"] < FEWEST_POSITIONS:
            return False
        if self._effort.bound is None:
            return len(self._drawn) >= PLAIN_TEXTS
        return bound is not None and bound <= self._effort.bound


def judged_again(
    drawn: Sequence[Drawn], models: tuple[CausalLM, CausalLM | None], law: Law
) -> Evidence | None:
    """Texts that are there already, held against another law."""
    audit = Audit(*models)
    for each in drawn:
        audit.add(each.text, read_under(reading_of(each.text, models), law))
    return audit.evidence()


def reading_of(text: Foreign, models: tuple[CausalLM, CausalLM | None]) -> Reading:
    """One uncached forward of each model over a text."""
    return teacher_force(*models, text.prompt, text.completion, text.sampling)


def _looks(texts: int) -> list[int]:
    """Numbers of texts after which the bound is evaluated: twice as many each time, and at the end."""
    doubled = [FIRST_LOOK << n for n in range(max(texts // FIRST_LOOK, 1).bit_length())]
    return [*(count for count in doubled if count < texts), texts]


def row_of(drawn: Drawn) -> dict[str, Any]:
    """A text as ``spsbench audit SAMPLES`` reads it."""
    sampling = drawn.text.sampling
    said = (
        {"greedy": True}
        if sampling.greedy
        else {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    )
    told = {} if drawn.accepted_per_loop is None else {"accepted_per_loop": list(drawn.accepted_per_loop)}
    ids = {"prompt_ids": list(drawn.text.prompt), "completion_ids": list(drawn.text.completion)}
    return {**ids, "sampling": said, **told}
