"""Texts drawn from an engine one after another, until it is clear whether they follow the target.

After every text the e-value may speak, the mean of that of any re-scored text and that of ``Bets``: a right
engine ever reaches 1,000 with odds below 1 in 1,000, however often one looks (Ville 1939). The bound on the
leakage is that of a fixed number of texts. It is evaluated whenever their number has doubled, each time at
the same share of 5%.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from spsbench.engines.rescore import Reading, teacher_force
from spsbench.models.causal_lm import CausalLM
from spsbench.peers.engine import sampling_of
from spsbench.peers.protocol import Answer, Ask, Peer, PeerError, PeerGone, checked, request_seed
from spsbench.records import SamplingParams
from spsbench.runner.stopping import derive_seed
from spsbench.stats.losslessness import ALARM, ALARM_LOG10_E, FEWEST_POSITIONS
from spsbench.summary_types import Evidence
from spsbench.verify.audit import Audit, Foreign
from spsbench.verify.bets import Bets
from spsbench.verify.laws import Law, read_under

Decision = Literal["alarm", "quiet", "undecided"]
QUIET: Decision = "quiet"
UNDECIDED: Decision = "undecided"

Told = Callable[[int, Evidence | None, float | None], None]
"""Takes the number of texts so far, what they say and the leakage that is ruled out."""

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
        budget_s: the longest that is drawn, in seconds.
    """

    bound: float | None
    texts: int
    budget_s: float
    max_new_tokens: int
    fewest: int = 0


@dataclass(frozen=True, slots=True)
class Drawn:
    """One text of an engine, and what it reports of the loops."""

    text: Foreign
    accepted_per_loop: tuple[int, ...] | None = None
    free: int | None = None
    drafted_ids: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What came of auditing an engine with one setting.

    Attributes:
        decision: ``alarm``, ``quiet`` or ``undecided``.
        seconds: of the whole.
    """

    decision: Decision
    evidence: Evidence | None
    decided_after: int
    bound: float | None
    drawn: Sequence[Drawn]
    failures: Sequence[str]
    seconds: float
    gone: str | None
    leading: tuple[str, str | None] | None = None

    @property
    def tokens(self) -> int:
        """Of all texts."""
        return sum(len(each.text.completion) for each in self.drawn)


class EngineAudit:
    """Audits one engine with one setting."""

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
        k: int | None = None,
        rule: str | None = None,
    ) -> None:
        self._peer, self._models, self._prompts = peer, models, prompts
        self._sampling, self._stop_ids, self._effort = sampling, sorted(stop_ids), effort
        self._seed, self._law = seed, law
        self._audit = Audit(*models, seed=seed)
        # Where tokens are judged together, whether a loop goes on depends on tokens that are yet to come.
        self._places = "block" not in (rule or "")
        modified = "modified rejection" in (rule or "")
        self._bets = None if sampling.greedy else Bets(stop_ids, k, sampling.temperature, modified=modified)
        self._drawn: list[Drawn] = []
        self._failures: list[str] = []
        self._gone: str | None = None

    def run(
        self, keep: Callable[[Drawn], None], kept: Sequence[Drawn] = (), told: Told = lambda *_: None
    ) -> Found:
        """Draw until decided."""
        began = time.monotonic()
        decision: Decision = UNDECIDED
        after, bound = 0, None
        alarm, leading = None, None
        looks = _looks(self._effort.texts)
        for drawn in chain(kept, self._texts(began, kept, keep)):
            self._add(drawn)
            count = len(self._drawn)
            evidence = None if decision == ALARM else self._audit.evidence(self._log_e())
            if evidence is not None and evidence["verdict"] == ALARM:
                decision, after, alarm = ALARM, count, evidence
                is_bet = evidence["log10_e_values"].get("bets", 0.0) >= ALARM_LOG10_E
                leading = self._bets.leading() if is_bet and self._bets is not None else None
            told(count, alarm or evidence, bound)
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
        evidence, spent = self._audit.evidence(self._log_e()), time.monotonic() - began
        if evidence is not None and alarm is not None:
            evidence["verdict"], evidence["reasons"] = alarm["verdict"], alarm["reasons"]
            evidence["log10_e_value"] = alarm["log10_e_value"]
            evidence["log10_e_values"] = alarm["log10_e_values"]
        given = (decision, evidence, after, bound, self._drawn, self._failures, spent, self._gone, leading)
        return Found(*given)

    def _log_e(self) -> float | None:
        return None if self._bets is None else self._bets.log_e

    def _texts(self, began: float, kept: Sequence[Drawn], keep: Callable[[Drawn], None]) -> Iterator[Drawn]:
        """Valid answers, up to the limits."""
        for number in range(kept[-1].text.line if kept else 0, self._effort.texts):
            if time.monotonic() - began > self._effort.budget_s:
                return
            prompt = self._prompts[number % len(self._prompts)]
            ask = self._ask(prompt, number)
            try:
                told = self._peer.generate(ask)
                answer = checked(told, ask, self._models[0].vocab_size)
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
                drawn = _drawn(text, told)
                keep(drawn)
                yield drawn

    def _ask(self, prompt: tuple[int, ...], number: int) -> Ask:
        seed = request_seed(derive_seed(self._seed, "audit", number, "text"))
        sampling = sampling_of(self._sampling)
        return Ask(list(prompt), self._effort.max_new_tokens, self._stop_ids, [], sampling, seed)

    def _add(self, drawn: Drawn) -> None:
        self._drawn.append(drawn)
        reading = read_under(reading_of(drawn.text, self._models), self._law)
        self._audit.add(drawn.text, reading)
        if self._bets is not None:
            told = (drawn.accepted_per_loop, drawn.free, drawn.drafted_ids) if self._places else ()
            self._bets.add(drawn.text.prompt, drawn.text.completion, reading, *told)

    def _is_quiet(self, evidence: Evidence | None, bound: float | None) -> bool:
        """Whether enough is known: the bound, or of greedy texts, which have none, every prompt once."""
        if evidence is None:
            return False
        if evidence["greedy"]:
            return len(self._drawn) >= len(self._prompts)
        if len(self._drawn) < min(self._effort.fewest, self._effort.texts):
            return False
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


def _drawn(text: Foreign, answer: Answer) -> Drawn:
    accepted, drafted, decoded = answer.accepted_per_loop, answer.drafted_ids, answer.decoded
    return Drawn(
        text,
        None if accepted is None else tuple(accepted),
        None if decoded is None else int(decoded < len(answer.output_ids)),
        None if drafted is None else tuple(map(tuple, drafted)),
    )


def row_of(drawn: Drawn) -> dict[str, Any]:
    """A text as ``spsbench audit SAMPLES`` reads it."""
    sampling = drawn.text.sampling
    said = (
        {"greedy": True}
        if sampling.greedy
        else {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    )
    told = {
        "accepted_per_loop": drawn.accepted_per_loop,
        "free": drawn.free,
        "drafted_ids": drawn.drafted_ids,
    }
    ids = {"prompt_ids": drawn.text.prompt, "completion_ids": drawn.text.completion}
    counts = {"request": drawn.text.line, "retokenised": drawn.text.retokenised}
    return {
        **ids,
        "sampling": said,
        **counts,
        **{name: part for name, part in told.items() if part is not None},
    }


def drawn_of(row: Mapping[str, Any], sampling: SamplingParams) -> Drawn:
    """What ``row_of`` wrote."""
    ids = tuple(row["prompt_ids"]), tuple(row["completion_ids"])
    accepted, drafted = row.get("accepted_per_loop"), row.get("drafted_ids")
    return Drawn(
        Foreign(row["request"], *ids, sampling, row["retokenised"]),
        None if accepted is None else tuple(accepted),
        row.get("free"),
        None if drafted is None else tuple(map(tuple, drafted)),
    )
