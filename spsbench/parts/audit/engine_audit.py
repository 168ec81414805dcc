"""An engine audited at several settings: texts are drawn until it is clear whether they follow the target.

After every text the e-value may speak, the mean of that of any re-scored text and that of ``Bets``: a right
engine ever reaches 1,000 with odds below 1 in 1,000, however often one looks (Ville 1939). The bound on the
leakage is that of a fixed number of texts. It is evaluated whenever their number has doubled, each time at
the same share of 5%.

Each sampling comes first without speculation, then with each K. What the plain sampling of an engine does
otherwise than asked is not charged to its speculation: where another law explains the plain texts, those of
speculation are held against that law.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch

from spsbench.base import Floats, Message, SamplingParams, ordinary, protocol, write_text
from spsbench.engines import Reading
from spsbench.models import DTYPES, CausalLM, TorchLM
from spsbench.parts.audit.bets import Bets
from spsbench.parts.audit.came_again import GREEDY, TEST, CameAgain, rounds
from spsbench.parts.audit.contexts import AtContexts, Forks
from spsbench.parts.audit.first_forward import differing_forward
from spsbench.parts.audit.free_evidence import COARSE, MOST, FreeEvidence, probes
from spsbench.parts.audit.localise import Law, Located, drafted_from, locate, read_under
from spsbench.parts.audit.messages.engines import (
    CACHE_UNKNOWN,
    CacheFixed,
    ProcessorsMissing,
    TooManyInFlight,
)
from spsbench.parts.audit.messages.evidence import Doubted
from spsbench.parts.audit.reported import ReportedDrafts
from spsbench.parts.audit.rounding import Expected, Scored, alarms, compared, expected, scored, variation
from spsbench.parts.external.engine import sampling_of, spelled
from spsbench.parts.external.registry import PeerKind
from spsbench.parts.external.server import require_same_model
from spsbench.parts.external.serving import lacking
from spsbench.parts.verify.effort import Finding
from spsbench.runner import REPORTED, Audit, Foreign, derive_seed, reading_of, reported_answer
from spsbench.stats import ALARM, ALARM_LOG10_E, FEWEST_POSITIONS
from spsbench.store import EngineAuditRow, Evidence, FirstForward, RareShares, RoundingFacts

Decision = Literal["alarm", "quiet", "undecided", "cannot"]
QUIET: Decision = "quiet"
UNDECIDED: Decision = "undecided"
CANNOT: Decision = "cannot"

OnText = Callable[[int, Evidence | None, float | None], None]
"""Takes the number of texts so far, what they say and the leakage that is ruled out."""

FIRST_LOOK = 20
"""Texts after which the bound is first evaluated; then at twice as many, and so on."""

LEVEL = 0.05
"""How often the bound may be wrong, over all looks."""

OF_REPORTED = 0.1
"""Weight of the bets on reported drafts, which few engines report, among those of a law."""

PLAIN_TEXTS = 80
"""Texts without an alarm after which plain sampling is quiet: no draft can leak there."""

TO_LOCATE = 40
"""Texts that are drawn at least where the verdict is an alarm, to say where it comes from."""


@dataclass(frozen=True, slots=True)
class Effort:
    """When to stop."""

    # Quiet as soon as the leakage is known to be below this; plain sampling, without one, after PLAIN_TEXTS.
    bound: float | None
    texts: int
    budget_s: float
    max_new_tokens: int
    fewest: int = 0
    all_texts: bool = False  # whatever they say: they are compared with others afterwards
    # Prompts begin as earlier ones, are repeated, or go on where an earlier output ended.
    shared_prefixes: bool = False
    probes: int = 0  # short requests at the end of a setting: see ``free_evidence.probes``
    # The prompts are so many chosen contexts; how the engine's drafts end, if that is known.
    contexts: int = 0
    drafting: protocol.Drafting | None = None


@dataclass(frozen=True, slots=True)
class SettingResult:
    """What came of auditing an engine with one setting."""

    decision: Decision
    evidence: Evidence | None
    decided_after: int
    bound: float | None
    drawn: Sequence[Foreign]
    failures: Sequence[str]
    seconds: float
    gone: str | None
    leading: tuple[str, str | None] | None = None
    cannot: str | None = None
    free: Sequence[Finding] = ()
    scored: Sequence[Scored] = ()  # of weights in fewer bits
    rare: RareShares | None = None

    @property
    def tokens(self) -> int:
        return sum(len(each.completion) for each in self.drawn)


class EngineAudit:
    def __init__(
        self,
        peer: protocol.Peer,
        models: tuple[CausalLM, CausalLM | None],
        prompts: Sequence[tuple[int, ...]],
        sampling: SamplingParams,
        stop_ids: Collection[int],
        effort: Effort,
        seed: int = 0,
        law: Law | None = None,
        k: int | None = None,
        rule: str | None = None,
        in_flight: int = 1,
        # The engine's, which may round into a nucleus; None: not known.
        dtype: torch.dtype | None = torch.float32,
    ) -> None:
        # Not known, it may be any: then no token is taken for impossible that 16 bits may let in.
        self._in_flight, self._dtype = in_flight, dtype or torch.bfloat16
        self._peer, self._models, self._prompts = peer, models, prompts
        self._sampling, self._stop_ids, self._effort = sampling, sorted(stop_ids), effort
        self._seed, self._law = seed, law
        self._audit = Audit(*models, dtype=self._dtype, seed=seed)
        # Where tokens are judged together, whether a loop goes on depends on tokens that are yet to come.
        self._places = "block" not in (rule or "")
        modified = "modified rejection" in (rule or "")
        self._bets = None if sampling.greedy else Bets(stop_ids, k, sampling.temperature, modified=modified)
        self._contexts: AtContexts | None = None
        self._reported: ReportedDrafts | None = None
        if k != 0 and models[1] is not None and not sampling.greedy:
            pair = (models[0], models[1])
            drafting = effort.drafting
            if effort.contexts:
                self._contexts = AtContexts(Forks(pair, sampling, drafting))
            if modified and self._places:
                least = None if drafting is None else replace(drafting, n_min=0)  # that may be withdrawn: two
                self._reported = ReportedDrafts(Forks(pair, sampling, least))
        self._exact = dtype == torch.float32
        slack = MOST if effort.all_texts else None if self._exact else COARSE
        self._free = FreeEvidence(k, rule, slack, drafting=effort.drafting)
        self._again = CameAgain(exact=self._exact)
        self._drawn: list[Foreign] = []
        self._scored: list[Scored] = []
        self._failures: list[str] = []
        self._gone: str | None = None

    def run(
        self, keep: Callable[[Foreign], None], kept: Sequence[Foreign] = (), on_text: OnText = lambda *_: None
    ) -> SettingResult:
        began = time.monotonic()
        decision: Decision = UNDECIDED
        after, bound = 0, None
        alarm, leading = None, None
        looks = _evaluation_points(self._effort.texts)
        texts = [each for each in kept if each.line]
        for drawn in chain(texts, self._drawn_texts(began, texts, keep)):
            self._add(drawn)
            count = len(self._drawn)
            evidence = None if decision == ALARM else self._evidence()
            if evidence is not None and evidence["verdict"] == ALARM:
                decision, after, alarm = ALARM, count, evidence
                is_bet = evidence["log10_e_values"].get("bets", 0.0) >= ALARM_LOG10_E
                leading = self._leading() if is_bet else None
            on_text(count, None if self._effort.all_texts else alarm or evidence, bound)
            if decision == ALARM:
                if count >= TO_LOCATE and not self._effort.all_texts:
                    break
            elif count in looks:
                bound = self._audit.bound(LEVEL / len(looks))
                if self._is_quiet(evidence, bound):
                    decision, after = QUIET, count
                    break
        if decision == UNDECIDED:
            decision = self._at_the_end()
            after = len(self._drawn)
        self._probe([each for each in kept if not each.line], keep)
        evidence = self._evidence()
        if evidence is not None and alarm is not None and not self._effort.all_texts:
            for name in ("verdict", "reasons", "log10_e_value", "log10_e_values"):
                evidence[name] = alarm[name]
        return SettingResult(
            decision=decision,
            evidence=evidence,
            decided_after=after,
            bound=bound,
            drawn=self._drawn,
            failures=self._failures,
            seconds=time.monotonic() - began,
            gone=self._gone,
            leading=leading,
            free=self._findings(decision),
            scored=self._scored,
            rare=None if decision == ALARM else self._rare_shares(),
        )

    def variation(self) -> float | None:
        """Return how far the engine's rows are from the re-scored ones, where it gives log-probabilities."""
        asks = [self._ask(n, "rows", self._effort.max_new_tokens) for n in range(_COMPARED)]
        law = sampling_of(SamplingParams())
        asks = [replace(ask, sampling=law, logprobs=True) for ask in asks]
        return variation(self._peer, asks, self._models)

    def differing_forward(self, *, plain: bool) -> FirstForward | None:
        """Return how the engine's first forward differs from ours, if it does."""
        asks = [self._ask(n, "forward", 1) for n in range(min(_COMPARED, len(self._prompts)))]
        return differing_forward(self._peer, asks, self._models, exact=self._exact, plain=plain)

    def _evidence(self) -> Evidence | None:
        log_es = [each.log_e for each in (self._bets, self._contexts) if each is not None]
        if not log_es:
            return self._audit.evidence(None)
        log_e = float(np.logaddexp.reduce(log_es)) - math.log(len(log_es))
        if self._reported is not None:
            both = [math.log(1 - OF_REPORTED) + log_e, math.log(OF_REPORTED) + self._reported.log_e]
            log_e = float(np.logaddexp.reduce(both))
        return self._audit.evidence(log_e)

    def _rare_shares(self) -> RareShares | None:
        """Takes some forwards of the target."""
        if self._bets is None or self._contexts is not None or self._effort.all_texts:
            return None

        def read(number: int, tokens: Sequence[int] | None) -> Floats:
            text = self._drawn[number]
            text = text if tokens is None else replace(text, completion=tuple(tokens))
            reading = read_under(reading_of(text, (self._models[0], None)), self._law)
            return np.asarray(reading.q.double().cpu().numpy())

        needed = ALARM_LOG10_E * math.log(10) + math.log(2)  # see ``evidence_of``
        needed -= 0.0 if self._reported is None else math.log(1 - OF_REPORTED)
        return self._bets.rare_shares(read, needed, exact=self._exact)

    def _findings(self, decision: Decision) -> list[Finding]:
        contexts = None if decision == ALARM else self._contexts
        withdrawn = [] if contexts is None else [contexts.finding(self._by_drafts())]
        findings = self._free.findings()
        findings = _doubted(findings) if decision == ALARM else findings
        again = [] if self._effort.all_texts else [self._again.finding()]
        return [*findings, *again, *withdrawn]

    def _leading(self) -> tuple[str, str | None] | None:
        evidences = [each for each in (self._bets, self._contexts, self._reported) if each is not None]
        return max(evidences, key=lambda each: each.log_e).leading() if evidences else None

    def _drawn_texts(
        self, began: float, kept: Sequence[Foreign], keep: Callable[[Foreign], None]
    ) -> Iterator[Foreign]:
        """Valid answers, up to the limits."""
        number = kept[-1].line if kept else 0
        texts = self._effort.texts
        many = 1 if self._in_flight == 1 else _ROUNDS * self._in_flight
        while number < texts:
            if time.monotonic() - began > self._effort.budget_s:
                return
            numbers = range(number, min(number + many, texts))
            number = numbers.stop
            try:
                answered = self._single_request(number - 1) if many == 1 else self._wave(numbers)
            except protocol.PeerGone as error:
                self._gone = str(error)
                return
            except protocol.PeerError as error:
                self._failures.append(str(error))
                continue
            for line, ask, answer in answered:
                drawn = self._drawn_of(line, ask, answer)
                if drawn is not None:
                    keep(drawn)
                    yield drawn

    def _single_request(self, number: int) -> list[_Answered]:
        ask = self._ask(number, "text", self._effort.max_new_tokens)
        return [(number + 1, ask, self._peer.generate(ask))]

    def _wave(self, numbers: range) -> list[_Answered]:
        """Send several requests of unequal length: the first at once, the others while those decode.

        Some more are aborted, so that their slots and blocks of the cache go to others.
        """
        dice = random.Random(derive_seed(self._seed, "audit", numbers.start, "wave"))
        longest = self._effort.max_new_tokens
        requests: list[tuple[int | None, protocol.Ask]] = [
            (n + 1, self._ask(n, "text", dice.randint(-(-longest // 4), longest))) for n in numbers
        ]
        requests += [(None, self._ask(n, "aborted", longest)) for n in numbers[: self._in_flight // 2]]
        requests = dice.sample(requests, len(requests))
        asks = [ask for _, ask in requests]
        tokens = sum(ask.max_new_tokens for ask in asks) // 2  # about half are there when the last arrives
        late = sorted(dice.randint(1, max(1, tokens)) for _ in asks[self._in_flight :])
        wave = protocol.Wave(
            asks,
            [0] * (len(asks) - len(late)) + late,
            [dice.randint(1, max(1, longest // 2)) if line is None else None for line, _ in requests],
            self._in_flight,
        )
        answers = zip(requests, self._together(wave), strict=True)
        valid = [(line, ask, answer) for (line, ask), answer in answers if line and answer is not None]
        return sorted(valid, key=lambda each: each[0])

    def _together(self, wave: protocol.Wave) -> list[protocol.Answer | None]:
        answered = cast(protocol.Batching, self._peer).together(wave)
        self._failures += [f"it says {protocol.shortened(str(why), 200)}" for why in answered.errors.values()]
        return answered.answers

    def _ask(self, number: int, what: str, most: int) -> protocol.Ask:
        seed = protocol.request_seed(derive_seed(self._seed, "audit", number, what))
        return protocol.Ask(
            list(self._prompt(number)), most, self._stop_ids, [], sampling_of(self._sampling), seed
        )

    def _prompt(self, number: int) -> tuple[int, ...]:
        if not self._effort.shared_prefixes:
            return self._prompts[number % len(self._prompts)]
        most = turns_of(self._prompts, self._effort.max_new_tokens) - self._effort.max_new_tokens
        dice = random.Random(derive_seed(self._seed, "audit", number, "prompt"))
        return shared_prompt(number, self._prompts, self._drawn, most, dice)

    def _drawn_of(
        self, line: int, ask: protocol.Ask, reply: protocol.Answer, kind: str = ""
    ) -> Foreign | None:
        try:
            answer = protocol.checked(reply, ask, self._models[0].vocab_size)
        except protocol.PeerError as error:
            self._failures.append(str(error))
            return None
        if not answer.output_ids:
            return None
        ids = tuple(answer.output_ids)
        prompt = tuple(ask.prompt_ids)
        sampling = GREEDY if kind == TEST else self._sampling
        free = tokens_of_prefill(reply)
        return Foreign(line, prompt, ids, sampling, answer.retokenised, answer, ask, free, kind)

    def _probe(self, kept: Sequence[Foreign], keep: Callable[[Foreign], None]) -> None:
        """Send requests whose answers give other evidence than their texts; they do not count for the law.

        In this order: with a seed, without one, and greedy ones that come again.
        """
        for each in kept:
            self._add_probe(each)
        longest, count = self._effort.max_new_tokens, self._effort.probes
        first = protocol.Ask(list(self._prompts[0]), longest, self._stop_ids, [], sampling_of(self._sampling))
        asks = probes(self._prompts, first, count) if self._gone is None else []
        parts = [[ask for ask in asks if (ask.seed is None) is free] for free in (False, True)]
        parts += [] if not asks or self._effort.all_texts else [rounds(self._prompts, first, count // 2)]
        known = len(kept)
        for asked, kind in zip(parts, ("", "", TEST), strict=False):
            part, known = asked[known:], max(0, known - len(asked))
            try:  # what fails once, with a seed, without one or greedy, is not asked for again
                for ask, answer in self._answers(part):
                    drawn = self._drawn_of(0, ask, answer, kind)
                    if drawn is not None:
                        keep(drawn)
                        self._add_probe(drawn)
            except protocol.PeerError as error:
                self._failures.append(str(error))
                if isinstance(error, protocol.PeerGone):
                    return

    def _add_probe(self, drawn: Foreign) -> None:
        if drawn.category != TEST:
            self._beside(drawn, self._read(drawn))
        elif drawn.ask is not None and drawn.told is not None:
            logits = reading_of(drawn, (self._models[0], None)).logits
            self._again.add(drawn.ask, drawn.told, logits)

    def _answers(self, asks: Sequence[protocol.Ask]) -> Iterator[tuple[protocol.Ask, protocol.Answer]]:
        """One by one or as many at once as the setting says."""
        if self._in_flight == 1:
            yield from ((ask, self._peer.generate(ask)) for ask in asks)
        elif asks:
            wave = protocol.Wave([*asks], [0] * len(asks), [None] * len(asks), self._in_flight)
            answers = zip(asks, self._together(wave), strict=True)
            yield from ((ask, answer) for ask, answer in answers if answer is not None)

    def _read(self, drawn: Foreign) -> Reading:
        return read_under(reading_of(drawn, self._models, self._dtype), self._law)

    def _beside(self, drawn: Foreign, reading: Reading) -> None:
        if drawn.ask is not None and drawn.told is not None:
            ask = replace(drawn.ask, stop_ids=self._stop_ids)
            self._free.add(ask, drawn.told, drafted_from(reading, self._effort.drafting), drawn.free)

    def _add(self, drawn: Foreign) -> None:
        self._drawn.append(drawn)
        reading = self._read(drawn)
        self._audit.add(drawn, reading)
        if self._effort.all_texts:
            self._scored.append(scored(reading))
        self._beside(drawn, reading)
        reading = drafted_from(reading, self._effort.drafting)
        if self._bets is not None:
            known = drawn.told if self._places else None
            self._bets.add(
                drawn.prompt,
                drawn.completion,
                reading,
                accepted=None if known is None else known.accepted_per_loop,
                free=None if known is None else drawn.free,
                drafted=None if known is None else known.drafted_ids,
            )
        self._add_drafts(drawn, reading)
        if self._contexts is not None:
            rows = reading.q.double().cpu().numpy()
            self._contexts.add(drawn.prompt, drawn.completion, rows, drawn.free)

    def _add_drafts(self, drawn: Foreign, reading: Reading) -> None:
        """Add what a text's loops drafted, where it is reported for each loop."""
        answer = drawn.told
        if self._reported is None or reading.p is None or answer is None or drawn.free is None:
            return
        if answer.accepted_per_loop is not None and answer.drafted_ids is not None:
            loops = answer.accepted_per_loop, answer.drafted_ids, drawn.free
            self._reported.add(drawn.prompt, drawn.completion, reading.p.double().cpu().numpy(), *loops)

    def _at_the_end(self) -> Decision:
        """Decide once texts or time have run out: quiet only if the contexts rule out withdrawn drafts."""
        contexts = self._contexts if self._gone is None else None
        ruled_out = contexts is not None and contexts.is_ruled_out(self._by_drafts())
        return QUIET if ruled_out else UNDECIDED

    def _by_drafts(self) -> dict[float, float]:
        """What reported drafts say of thresholds."""
        return {} if self._reported is None else self._reported.by_threshold()

    def _is_quiet(self, evidence: Evidence | None, bound: float | None) -> bool:
        """The bound is known, or of greedy texts, which have none, every prompt has one."""
        if evidence is None or self._effort.all_texts or self._contexts is not None:
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


def _doubted(findings: Sequence[Finding]) -> list[Finding]:
    """Say of what failed under the target's law that the texts have another."""
    of_law = ("independence", "ends")
    return [
        replace(each, message=Doubted(each.message)) if each.test in of_law and not each.passed else each
        for each in findings
    ]


_ROUNDS = 2  # texts of a wave for each that may be in flight
_BLOCKS = (16, 32)  # tokens of a block in most prefix caches

_Answered = tuple[int, protocol.Ask, protocol.Answer]
"""A text's number from 1, what was asked and what was answered."""


def turns_of(prompts: Sequence[tuple[int, ...]], max_new_tokens: int) -> int:
    """Return the longest text of two turns, in tokens."""
    return 2 * (max(map(len, prompts)) + max_new_tokens)


def shared_prompt(
    number: int, prompts: Sequence[tuple[int, ...]], before: Sequence[Foreign], most: int, dice: random.Random
) -> tuple[int, ...]:
    """Return a prompt of at most ``most`` tokens that a prefix cache may know in part.

    In turns: one in full, its beginning with another end, its beginning alone or itself again, and a second
    turn, which is an earlier prompt with its output and another prompt. Beginnings end at the border of a
    block, one token before or after it, or anywhere.
    """
    prompt = prompts[number // 4 % len(prompts)]
    other = dice.choice(prompts)
    borders = [
        n * block + off for block in _BLOCKS for n in range(1, len(prompt) // block + 1) for off in (-1, 0, 1)
    ]
    cut = dice.choice([*(at for at in borders if at < len(prompt)), dice.randint(1, max(1, len(prompt) - 1))])
    kind = number % 4
    if kind == 1:
        return (*prompt[:cut], *other[-dice.randint(1, len(other)) :])
    if kind == 2:
        return prompt if dice.random() < 0.5 else prompt[:cut]
    if kind == 3 and before:
        text = dice.choice(before[-8:])
        longer = (*text.prompt, *text.completion, *other)
        if len(longer) <= most:
            return longer
    return prompt


def _evaluation_points(texts: int) -> list[int]:
    """Numbers of texts: doubling, and the last."""
    doubled = [FIRST_LOOK << n for n in range(max(texts // FIRST_LOOK, 1).bit_length())]
    return [*(count for count in doubled if count < texts), texts]


def row_of(text: Foreign) -> dict[str, Any]:
    """Write a text as ``spsbench audit SAMPLES`` reads it."""
    names = ("temperature", "top_p", "top_k")
    sampling: dict[str, Any] = {name: getattr(text.sampling, name) for name in names}
    if text.sampling.greedy:
        sampling = {"greedy": True}
    if text.sampling.process is not None:  # refused there, not judged under another law
        sampling["process"] = text.sampling.process.record()
    row = {
        "prompt_ids": text.prompt,
        "completion_ids": text.completion,
        "sampling": sampling,
        "request": text.line,
        "retokenised": text.retokenised,
        "free": text.free,
        "probe": text.category or None,
    }
    if text.ask is not None and text.told is not None:
        row |= {"seed": text.ask.seed, "max_new_tokens": text.ask.max_new_tokens}
        row |= {name: value for name, value in asdict(text.told).items() if name in REPORTED}
    return {name: value for name, value in row.items() if value is not None}


def drawn_of(row: Mapping[str, Any], sampling: SamplingParams) -> Foreign:
    kind = TEST if row.get("probe") == TEST else ""
    sampling = GREEDY if kind else sampling
    ids = tuple(row["prompt_ids"]), tuple(row["completion_ids"])
    answer = reported_answer(row, ids[1], retokenised=row["retokenised"])
    most = row.get("max_new_tokens")
    ask = (
        None
        if most is None
        else protocol.Ask([*ids[0]], most, sampling=sampling_of(sampling), seed=row.get("seed"))
    )
    return Foreign(row["request"], *ids, sampling, row["retokenised"], answer, ask, row.get("free"), kind)


# --- several settings ---

Watch = Callable[["Setting", int, Evidence | None, float | None], None]
"""Takes a setting, its texts so far, what they say, and the leakage that is ruled out."""


_COMPARED = 16  # prompts by which a server's model is known
_CONTEXT = 256  # what some engines allot caches by, in tokens


@dataclass(frozen=True, slots=True)
class Setting:
    sampling: SamplingParams
    k: int | None
    in_flight: int = 1
    prefix_cache: bool = False
    weights: str = protocol.FLOAT32

    @property
    def name(self) -> str:
        """The setting for the screen, e.g. ``K=4, T=0.8``."""
        s = self.sampling
        cuts = [f"top-k {s.top_k}"] if s.top_k else []
        if s.top_p < 1:
            cuts.append(f"top-p {s.top_p:g}")
        drawn = ["greedy"] if s.greedy else [f"T={s.temperature:g}", *cuts]
        drawn += [] if s.process is None else [s.process.described]
        return ", ".join([self._drafting(), *drawn, *self.conditions])

    @property
    def file(self) -> str:
        """The file of its texts, e.g. ``k4-t0.8-p1-top0.jsonl``."""
        s = self.sampling
        drawn = "greedy" if s.greedy else f"t{s.temperature:g}-p{s.top_p:g}-top{s.top_k}"
        drawn += "" if s.process is None else f"-{s.process.key}"
        parts = [self._drafting().lower().replace("=", ""), drawn, *self.conditions]
        return "-".join(parts).replace(" ", "-") + ".jsonl"

    @property
    def files(self) -> tuple[str, str]:
        """The files of its texts and of its short requests, some of which are the same request twice."""
        return self.file, f"probes-{self.file}"

    @property
    def conditions(self) -> list[str]:
        """How it is run, as far as that is not one at a time, without a prefix cache and in float32."""
        words = [f"{self.in_flight} in flight"] if self.in_flight > 1 else []
        if self.prefix_cache:
            words.append("cache on")
        return words + ([self.weights] if self.weights != protocol.FLOAT32 else [])

    @property
    def alone(self) -> bool:
        """Whether an output depends on its own request only."""
        return self.in_flight == 1 and not self.prefix_cache

    @property
    def is_plain(self) -> bool:
        return self.k == 0

    @property
    def lookahead(self) -> int:
        """K; 0 where nothing is drafted or K is not known."""
        return self.k or 0

    def _drafting(self) -> str:
        if self.k is None:
            return "as served"
        return f"K={self.k}" if self.k else "plain"


@dataclass(frozen=True, slots=True)
class Subject:
    kind: PeerKind
    models: tuple[CausalLM, CausalLM]
    folders: tuple[Path, Path]
    prompts: Sequence[tuple[int, ...]]
    stop_ids: Sequence[int]
    threads: int | None
    dtype: str = protocol.FLOAT32

    def load(
        self,
        k: int | None,
        max_new_tokens: int,
        in_flight: int = 1,
        prefix_cache: bool = False,
        weights: str = protocol.FLOAT32,
        *,
        turns: bool = False,
    ) -> protocol.Load:
        """Return what the engine is to load for a lookahead; 0 for none, None for what is there already."""
        target, draft = (self.kind.converted(folder) for folder in self.folders)
        text = max(map(len, self.prompts)) + max_new_tokens
        longest = (turns_of(self.prompts, max_new_tokens) if turns else text) + (k or 0) + 1
        context = -(-longest // _CONTEXT) * _CONTEXT
        given = target, draft if k else None, k or 0, self.threads, context, self.dtype
        return protocol.Load(*given, in_flight=in_flight, prefix_cache=prefix_cache, weights=weights)


@dataclass(frozen=True, slots=True)
class Row:
    """One setting of an engine, audited."""

    setting: Setting
    described: protocol.Described
    result: SettingResult
    against: Law | None  # held against this law; None for the one that was asked for
    located: Located | None
    away: float | None = None  # total variation a token of the engine's rows, where that is known
    rounding: RoundingFacts | None = None
    by_activations: Expected | None = None  # measured on plain texts, for those with a draft as well
    forward: FirstForward | None = None  # of an alarm whose cause is the engine's model

    @property
    def decision(self) -> Decision:
        return self.result.decision

    @property
    def convention(self) -> Law | None:
        """The other reading of the same parameters that plain texts follow, if they do."""
        if not self.setting.is_plain or self.located is None or self.located.explanation is None:
            return None
        law = self.located.explanation.law
        return law if law.convention else None

    def facts(self) -> EngineAuditRow:
        result, evidence = self.result, self.result.evidence
        leakage = None if evidence is None else evidence["leakage"]
        return {
            "setting": self.setting.name,
            "k": self.setting.k,
            "is_plain": self.setting.is_plain,
            "in_flight": self.setting.in_flight,
            "prefix_cache": self.setting.prefix_cache,
            "weights": self.setting.weights,
            "sampling": self.setting.sampling.described,
            "decision": self.decision,
            "decided_after": result.decided_after,
            "texts": len(result.drawn),
            "retokenised": sum(each.retokenised for each in result.drawn),
            "tokens": result.tokens,
            "impossible": 0 if evidence is None else evidence["impossible"],
            "leakage": leakage,
            "bound": result.bound,
            "log10_e_value": None if evidence is None else evidence["log10_e_value"],
            "reasons": [] if evidence is None or self.decision != ALARM else evidence["reasons"],
            "place": None if result.leading is None else result.leading[0],
            "law": None if result.leading is None else result.leading[1],
            "against": None if self.against is None else self.against.name,
            "convention": None if self.convention is None else self.convention.name,
            "located": None if self.located is None else self.located.facts(),
            "rounding": self.rounding,
            "failures": list(result.failures),
            "gone": result.gone,
            "cannot": result.cannot,
            "seconds": result.seconds,
            "engine": asdict(self.described),
            "texts_file": self.setting.file,
            "rare": result.rare,
            "first_forward": self.forward,
            "free": [each.record() for each in result.free],
        }


def audit_engine(
    subject: Subject,
    settings: Sequence[Setting],
    effort: Effort,
    seed: int,
    folder: Path,
    say: Callable[[str], None],
    watch: Watch = lambda *_: None,
) -> Iterator[Row]:
    """Audit an engine with every setting, those without a draft first.

    Texts that are in the folder already are read and not asked for again.
    """
    laws: dict[SamplingParams, Law] = {}
    plain: dict[Setting, Row] = {}
    alone: dict[Setting, protocol.Described] = {}
    any_alone = any(each.alone for each in settings)
    forwards = list[FirstForward | None]()  # of plain settings
    folder.mkdir(parents=True, exist_ok=True)
    for setting in sorted(settings, key=lambda each: (not each.is_plain, each.prefix_cache, each.in_flight)):
        say(setting.name)
        described = alone.get(replace(setting, in_flight=1))
        if described is not None and described.in_flight is None and setting.in_flight > 1:
            # It takes one after the other, and is not loaded again to say so.
            yield _unaudited(
                setting, described, cannot(setting, described, cached=effort.shared_prefixes) or ""
            )
            continue
        row = _audited(subject, setting, effort, seed, folder, laws.get(setting.sampling), watch, forwards)
        alone |= {} if row.result.cannot or setting.in_flight > 1 else {setting: row.described}
        if setting.is_plain and not row.result.cannot:
            forwards.append(row.forward)
        if setting.weights != protocol.FLOAT32:
            row = _beside_plain(row, plain.get(replace(setting, k=0)), subject, effort)
            plain |= {setting: row} if setting.is_plain else {}
        elif setting.is_plain and (setting.alone or not any_alone):
            law = _explaining_law(row, subject)
            laws |= {} if law is None else {setting.sampling: law}
        yield row


def tokens_of_prefill(answer: protocol.Answer) -> int | None:
    """Return how many tokens of an answer came before its first loop, 0 or 1; None where it does not show.

    ``decoded`` counts what an engine decoded past the stop token, too. One that gave the first token in the
    prefill and then decoded one past the end counts as many as it emitted.
    """
    emitted = len(answer.output_ids)
    if answer.decoded is None or answer.hidden_stop:
        return None
    if answer.decoded < emitted:
        return 1
    return None if answer.finish == protocol.STOP else 0


def _audited(
    subject: Subject,
    setting: Setting,
    effort: Effort,
    seed: int,
    folder: Path,
    law: Law | None,
    watch: Watch,
    forwards: Sequence[FirstForward | None],
) -> Row:
    """Audit one setting; ``forwards`` are those of plain settings, whose model this one has as well."""
    log = folder / "engine.log"
    how = setting.in_flight, setting.prefix_cache, setting.weights
    load = subject.load(setting.k, effort.max_new_tokens, *how, turns=effort.shared_prefixes)
    peer = subject.kind.open(load, log, False)
    try:
        try:
            described = peer.describe()
        except protocol.PeerGone as error:
            if not setting.conditions:
                raise
            return _unaudited(setting, protocol.Described(subject.kind.name, "unknown"), str(error))
        if (why := cannot(setting, described, cached=effort.shared_prefixes)) is not None:
            return _unaudited(setting, described, why)
        if subject.kind.served:
            require_same_model(peer, _first_tokens(subject), subject.kind.name)
        effort = replace(effort, bound=None, fewest=0) if setting.is_plain else effort
        effort = replace(effort, drafting=effort.drafting or described.drafting)
        effort = replace(effort, all_texts=setting.weights != protocol.FLOAT32)
        audit = EngineAudit(
            peer,
            subject.models,
            subject.prompts,
            setting.sampling,
            subject.stop_ids,
            effort,
            seed=seed,
            law=law,
            k=setting.k,
            rule=described.rule,
            in_flight=setting.in_flight,
            # A server in 16 bits returns logprobs of 16 bits.
            dtype=DTYPES.get(spelled(described.settings.get("dtype")) or ""),
        )
        # A last line that was cut off is gone.
        kept = [_read_kept_texts(folder / name, setting.sampling) for name in setting.files]
        for name, texts in zip(setting.files, kept, strict=True):
            write_text(folder / name, "".join(json.dumps(row_of(text)) + "\n" for text in texts))
        with ExitStack() as opened:
            paths = [folder / name for name in setting.files]
            whole, short = (opened.enter_context(open(path, "a", opener=ordinary)) for path in paths)

            def keep(drawn: Foreign) -> None:
                file = whole if drawn.line else short
                file.write(json.dumps(row_of(drawn)) + "\n")
                file.flush()

            result = audit.run(keep, [*chain(*kept)], partial(watch, setting))
        rounds = setting.weights != protocol.FLOAT32
        forward = None
        if result.decision == ALARM and not rounds:
            forward = _alarm_forward(audit, setting, forwards)
        away = audit.variation() if setting.is_plain and rounds else None
    finally:
        peer.close()
    if result.gone is not None and not result.drawn:
        raise protocol.PeerGone(result.gone)
    located = None
    if result.decision == ALARM and not setting.sampling.greedy and forward is None:
        k = setting.k if "modified rejection" in (described.rule or "modified rejection") else None
        located = locate(result.drawn, subject.models, setting.sampling, k, effort.drafting)
    return Row(setting, described, result, law, located, away, forward=forward)


def _alarm_forward(
    audit: EngineAudit, setting: Setting, forwards: Sequence[FirstForward | None]
) -> FirstForward | None:
    """Of plain texts where there are some, else with a draft."""
    if setting.is_plain or not forwards:
        return audit.differing_forward(plain=setting.is_plain)
    return next((each for each in forwards if each is not None), None)


def _beside_plain(row: Row, plain: Row | None, subject: Subject, effort: Effort) -> Row:
    """Judge a setting with quantised weights without counting its plain texts' rounding against it."""
    result, greedy = row.result, row.setting.sampling.greedy
    if result.decision == CANNOT or not result.drawn:
        return row
    scored_texts = [*zip(result.drawn, result.scored, strict=True)]
    first = scored_texts if plain is None else [*zip(plain.result.drawn, plain.result.scored, strict=True)]
    target = subject.models[0]
    by_activations = None if plain is None else plain.by_activations
    if plain is None and isinstance(target, TorchLM):
        by_activations = expected(result.drawn, target)
    facts = compared(
        first, () if plain is None else scored_texts, greedy=greedy, by_activations=by_activations
    )
    facts["variation"] = (plain or row).away
    reasons = alarms(facts, result.evidence, result.tokens, is_plain=plain is None)
    enough = result.gone is None and len(result.drawn) >= min(effort.texts, len(subject.prompts))
    known = (
        plain is None
        or greedy
        or (facts["pairs"] > 0 and result.bound is not None and result.bound <= (effort.bound or 0))
    )
    decision = ALARM if reasons else QUIET if enough and known else UNDECIDED
    evidence = result.evidence and result.evidence.copy()
    if evidence is not None:
        evidence["reasons"] = [str(reason) for reason in reasons]
    result = replace(
        result, decision=decision, evidence=evidence, decided_after=len(result.drawn), leading=None
    )
    return replace(row, result=result, rounding=facts, located=None, by_activations=by_activations)


def cannot(setting: Setting, described: protocol.Described, *, cached: bool) -> Message | str | None:
    """Why an engine cannot be audited with a setting, if so.

    ``cached`` says whether the audit asks for a prefix cache or for none.
    """
    if setting.in_flight > (described.in_flight or 1):
        return TooManyInFlight(described.in_flight or 1)
    if missing := lacking(sampling_of(setting.sampling), described.processors):
        return ProcessorsMissing(missing)
    cache = described.settings.get("prefix_cache")
    if not cached or cache is setting.prefix_cache:
        return None
    if cache is None:
        return CACHE_UNKNOWN
    return CacheFixed(setting.prefix_cache)


def _unaudited(setting: Setting, described: protocol.Described, why: Message | str) -> Row:
    result = SettingResult(CANNOT, None, 0, None, [], [], 0.0, None, cannot=str(why))
    return Row(setting, described, result, None, None)


def _read_kept_texts(file: Path, sampling: SamplingParams) -> list[Foreign]:
    """Read the texts of an interrupted audit, up to an incomplete line."""
    drawn: list[Foreign] = []
    if not file.exists():
        return drawn
    with open(file, opener=ordinary) as lines:
        texts = lines.read().splitlines()
    for line in texts:
        try:
            drawn.append(drawn_of(json.loads(line), sampling))
        except (ValueError, KeyError):
            break
    return drawn


def _first_tokens(subject: Subject) -> list[tuple[list[int], int, float]]:
    """(prompt, the target's best token after it, how far that is ahead of the second)."""
    firsts = []
    for prompt in subject.prompts[:_COMPARED]:
        row = subject.models[0].score_uncached(torch.tensor(prompt), last=1)[-1].float()
        best, second = row.topk(2).values.tolist()
        firsts.append((list(prompt), int(row.argmax()), best - second))
    return firsts


def _explaining_law(row: Row, subject: Subject) -> Law | None:
    """The law that the plain texts follow in place of the requested one.

    None if they raise an alarm under that law, too.
    """
    explained = None if row.located is None else row.located.explanation
    if explained is None or explained.law.share:
        return None
    audit = Audit(*subject.models)
    for each in row.result.drawn:
        audit.add(each, read_under(reading_of(each, subject.models), explained.law))
    again = audit.evidence()
    return None if again is None or again["verdict"] == ALARM else explained.law
