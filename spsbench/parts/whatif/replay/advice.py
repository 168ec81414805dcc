"""Which drafter and which K: chosen on one half of the prompts, judged on the other.

Texts that were read and loops that were timed are kept in the run's folder as soon as each is done.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from spsbench.base import (
    BLOCK,
    MODIFIED_REJECTION,
    Arm,
    Interval,
    Sample,
    Spec,
    UsageError,
    taken,
    taken_since,
)
from spsbench.drafters import DRAFT, ForcedDrafts, drafter_kind
from spsbench.parts.whatif.messages.advice import TimesDisturbed
from spsbench.parts.whatif.replay import MEAN
from spsbench.parts.whatif.replay.cells import Sought
from spsbench.parts.whatif.replay.prediction import DrafterForecast, Even, Timed, faster
from spsbench.parts.whatif.replay.reading import Replayed, TextReader
from spsbench.parts.whatif.replay.steps import Part, Round, StepTimes, given_by, time_round
from spsbench.parts.whatif.replay.study import Study, study
from spsbench.parts.whatif.replay.texts import TargetText, Written
from spsbench.parts.whatif.replay.times import LEAST_ROUNDS
from spsbench.parts.whatif.replay.trees import tree_of
from spsbench.runner import Plan, Reason, StoppingRule, Watcher
from spsbench.stats import FEWEST_PROMPTS, halves, hidden
from spsbench.store import CLEAN, Journal, RatioInterval, RunStore, least_disturbed

FILE = "advice.jsonl"
_READ = "ratios"
"""What is kept of a text: of another name it is read again."""

Key = tuple[str, str, str, int]
"""Draft, drafter, prompt and sample; of a round of times its number alone."""


class Progress(Watcher, Protocol):
    """An observer of phases, too."""

    def stage(self, what: str, total: int, done: int = 0) -> None:
        """A phase of so many steps begins."""

    def doing(self, what: str) -> None:
        """Something begins within a step."""

    def step(self, rows: Sequence[tuple[str, str]] = ()) -> None:
        """One more step is done; rows are what is known by now."""

    def reach(self, done: float, total: float) -> None:
        """So much of a phase is done."""


_WRITING = "Writing texts and reading them"


class Readings:
    """Watches texts being written, reads each with every drafter, and times loops.

    What the run's folder has is not done again.
    """

    def __init__(self, sought: Sequence[Sought], plan: Plan, ks: Sequence[int], progress: Progress) -> None:
        progress.stage("Building the drafters", len(sought))
        self._sought, self._ks, self._ends, self._progress = sought, ks, (min(ks), max(ks)), progress
        self.loading, self.warned = progress.loading, progress.warned
        sampling = plan.arms[0].sampling
        self._prompts = {prompt.example_id: prompt.ids for prompt in plan.prompts}
        corpus = [prompt.ids for prompt in plan.prompts]
        pairs = {each.draft: each.pair for each in sought}
        drafters = {name: [each.drafter for each in sought if each.draft == name] for name in pairs}
        self._readers = {
            name: TextReader(
                pair, sampling, drafters[name], max(ks), corpus, building=lambda spec: progress.step()
            )
            for name, pair in pairs.items()
        }
        self._judged = given_by(sought, (MODIFIED_REJECTION,), ks)
        self._parts = [Part(name, spec) for name, reader in self._readers.items() for spec in reader.drafters]
        shared = [_READ, sampling.record(), self._ends, [list(ids) for ids in corpus]]
        self._of = {part: _digest([*shared, *self._content(part)]) for part in self._parts}
        self._of_rounds = _digest([*shared, sorted(self._of.values()), self._judged])
        self._found: dict[Key, ForcedDrafts] = {}
        self._read: set[tuple[str, int]] = set()
        self._tokens = 0
        self._loops: dict[str, dict[int, float]] = {}
        # The share that contention took, seconds, and the round.
        self._timed: list[tuple[float, float, Round]] = []
        self.reading_s, self.timing_s = 0.0, 0.0

    def rule(self, plan: Plan, store: RunStore) -> TextsRule:
        """Return the stopping rule, resumed from the folder's store; parts of other models stay unused."""
        mine = {*self._of.values(), self._of_rounds}
        path = store.directory / FILE
        self._journal = Journal(
            path, lambda row: row["of"] not in mine or self._take_over(row), writable=True
        )
        self._rule = TextsRule(plan, store, self)
        return self._rule

    @property
    def spent_s(self) -> float:
        """Seconds of all texts and times, in every process that wrote some."""
        return self._rule.measured_s + self.timing_s

    @property
    def lost_share(self) -> float:
        """CPU contention's share of the rounds that count, where it is above ``CLEAN``; else 0."""
        counting = self._counting()
        lost = sum(share * seconds for share, seconds, _ in counting)
        share = lost / total if (total := sum(seconds for _, seconds, _ in counting)) else 0.0
        return share if share > CLEAN else 0.0

    def _counting(self) -> list[tuple[float, float, Round]]:
        kept = least_disturbed([share for share, _, _ in self._timed], LEAST_ROUNDS)
        return [self._timed[number] for number in kept]

    def started(self, total: int, done: int, arms: Sequence[Arm]) -> None:
        self._progress.stage(_WRITING, total, done)

    @property
    def text_s(self) -> float:
        """Seconds of reading one text again, with every drafter; 0 where none was read."""
        return self.reading_s / len(self._read) if self._read else 0.0

    def remeasuring(self, rounds: int, *, short: bool) -> None:
        """Do nothing: texts are written, not timed."""

    def remeasured(self) -> None:
        """Do nothing: texts are written, not timed."""

    def expecting(self, total: int | None, sentence: str) -> None:
        """Count all texts that there are: the budget may end them earlier."""

    def finished(self, sample: Sample) -> None:
        if sample.error is None and sample.generation.tokens:
            ids = self._prompts[sample.example_id]
            tokens = tuple(sample.generation.tokens)
            self._read_text(TargetText(sample.example_id, sample.sample_index, ids, tokens))
        self._progress.doing(_WRITING)
        self._progress.step(self._tokens_per_loop_so_far())

    def proving(self, total: int) -> None:
        """Do nothing: nothing is proved here."""

    def scoring(self, total: int) -> None:
        """Do nothing: nothing is scored here."""

    def catch_up(self, texts: Sequence[TargetText]) -> None:
        """Read the texts that an earlier process did not; refuse those of another target."""
        due = [text for text in texts if (text.name, text.sample) not in self._read]
        if due:
            self._progress.stage("Reading texts", len(due))
        for text in due:
            self._read_text(text)
            self._progress.step(self._tokens_per_loop_so_far())
        for reader in self._readers.values():
            reader.require_fitting()

    def _read_text(self, text: TargetText) -> None:
        """Read a text with every drafter that has not read it; each result is written at once."""
        self._read.add((text.name, text.sample))
        for name, reader in self._readers.items():
            due = [spec for spec in reader.drafters if _key(Part(name, spec), text) not in self._found]
            began_s = time.perf_counter()
            for spec, drafts in reader.read(text, len(self._read), due):
                part = Part(name, spec)
                now_s = time.perf_counter()
                self._keep(
                    self._of[part],
                    _key(part, text),
                    now_s - began_s,
                    drafted=drafts.drafted.tolist(),
                    ratios=drafts.ratios.tolist(),
                )
                began_s = now_s
                self._progress.doing(f"Read with {spec}")
        self._tokens += len(text.tokens)
        for sought, replayed in self._replayed_by_drafter([text]).items():
            ks = dict.fromkeys(cell.k for cell in sought.cells((MODIFIED_REJECTION,), self._ks))
            loops = self._loops.setdefault(sought.name, dict.fromkeys(ks, 0.0))
            for k in ks:
                loops[k] += sum(law.loops for law in replayed.loops(k))

    def _tokens_per_loop_so_far(self) -> list[tuple[str, str]]:
        title = f"K={', '.join(map(str, self._ks))}:"
        lengths = [
            (name, ", ".join(f"{self._tokens / loops:.2f}" for loops in by_k.values()))
            for name, by_k in self._loops.items()
        ]
        return [("tokens per loop,", title), *lengths] if lengths else []

    def _replayed_by_drafter(self, texts: Sequence[TargetText]) -> dict[Sought, Replayed]:
        replayed: dict[Sought, Replayed] = {}
        for name, reader in self._readers.items():
            read = [
                {spec: self._found[_key(Part(name, spec), text)] for spec in reader.drafters}
                for text in texts
            ]
            drafters = [each for each in self._sought if each.draft == name]
            replayed |= zip(drafters, reader.replayed(texts, read), strict=True)
        return replayed

    def time(self, texts: Sequence[TargetText], budget_s: float, seed: int) -> None:
        """Time rounds until there are enough: ``LEAST_ROUNDS``, and more until the budget is used up.

        Where others disturbed rounds more are timed, for as long again, until enough are clean.
        """
        self._progress.stage("Timing drafts and forwards, seconds", round(budget_s))
        warm, expected_s = bool(self._timed), budget_s  # the first of a shape is slow
        while self._lacks_rounds(budget_s):
            began_s = time.perf_counter()
            number = len(self._timed)
            before = taken()
            if number == 1:  # said once, and it stands: the first round tells what the least number takes
                expected_s = max(budget_s, LEAST_ROUNDS * self.timing_s)

            def tell(since_s: float = began_s, expected_s: float = expected_s) -> None:
                done_s = self.timing_s + time.perf_counter() - since_s
                self._progress.reach(min(done_s, expected_s), expected_s)

            timed = time_round(self._readers, texts, self._ends, seed + number, tell, self._judged)
            if warm:
                self._keep(
                    self._of_rounds,
                    ("", "", "", number),
                    time.perf_counter() - began_s,
                    context=timed.context,
                    verifying=timed.verifying,
                    drafting=[timed.drafting[part] for part in self._parts],
                    judged=[timed.judged[each] for each in self._judged],
                    rolling=[[*given, seconds] for given, seconds in timed.rolling.items()],
                    taken=taken_since(before),
                )
            warm = True

    def _lacks_rounds(self, budget_s: float) -> bool:
        if len(self._timed) < LEAST_ROUNDS or self.timing_s < budget_s:
            return True
        clean = sum(share <= CLEAN for share, _, _ in self._timed)
        return clean < LEAST_ROUNDS and self.timing_s < 2 * budget_s

    def study(self, written: Written) -> Study:
        """Return the study of what was read and timed; every text has been read."""
        steps = StepTimes([timed for _, _, timed in self._counting()], self._ends, self._readers)
        replayed = self._replayed_by_drafter(written.texts)
        return study(written, replayed, self._ks, (MODIFIED_REJECTION,), steps)

    def _keep(self, of: str, key: Key, seconds: float, **content: Any) -> None:
        row = {"of": of, "key": list(key), "seconds": seconds, **content}
        self._journal.append(row)
        self._take_over(row)

    def _take_over(self, row: Mapping[str, Any]) -> bool:
        """Take over an earlier process' row; return True."""
        seconds = float(row["seconds"])
        most = self._ends[1]
        if row["of"] == self._of_rounds:
            verifying, drafting = (np.array(row[name], np.float64) for name in ("verifying", "drafting"))
            if verifying.shape != (most + 1,) or drafting.shape != (len(self._parts), 2):
                raise ValueError("a round of other drafters or K")
            seconds_of = dict(zip(self._parts, drafting.tolist(), strict=True))
            judged = dict(zip(self._judged, map(float, row["judged"]), strict=True))
            lost_s = sum(float(each) for each in row.get("taken", {}).values())
            share = min(lost_s / seconds, 1.0) if seconds > 0 else 0.0
            rolling = {(str(rule), int(given)): float(each) for rule, given, each in row.get("rolling", ())}
            timed = Round(int(row["context"]), verifying.tolist(), seconds_of, judged, rolling)
            self._timed.append((share, seconds, timed))
            self.timing_s += seconds
        else:
            draft, drafter, name, sample = row["key"]
            ratios = np.array(row["ratios"], np.float64)
            drafted = np.array(row["drafted"], np.int64)
            tree = tree_of(Spec.parse(drafter))
            width = most if tree is None else tree.shape.depth(0)
            if ratios.shape != (len(drafted), width) or not (ratios >= 0).all():
                raise ValueError("no ratios of drafts up to K")
            self._found[draft, drafter, name, sample] = ForcedDrafts(ratios, drafted)
            self.reading_s += seconds
        return True

    def _content(self, part: Part) -> list[Any]:
        kind = drafter_kind(part.drafter.name)
        draft = self._readers[part.draft].pair.info["draft"] if DRAFT in kind.needs_of(part.drafter) else {}
        return [part.draft, str(part.drafter), kind.content_of(part.drafter), draft.get("fingerprint")]


class TextsRule(StoppingRule):
    """End the writing of texts with its budget, reading included, once there are enough to choose."""

    def __init__(self, plan: Plan, store: RunStore, readings: Readings) -> None:
        self._readings = readings
        super().__init__(plan, store.samples())

    @property
    def measured_s(self) -> float:
        return super().measured_s + self._readings.reading_s

    def reason(self) -> Reason | None:
        reason = super().reason()
        return None if reason == "budget" and self.prompts < FEWEST_PROMPTS else reason


def _key(part: Part, text: TargetText) -> Key:
    return part.draft, str(part.drafter), text.name, text.sample


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A forecast, or ArS, on the judging half; ``bytes`` are of weights and caches."""

    forecast: DrafterForecast | None
    speedup: Interval
    slower: Interval
    p99_s: float
    bytes: int

    @property
    def name(self) -> str:
        """The name of drafter and K."""
        return "ArS" if self.forecast is None else f"{self.forecast.label}, K={self.forecast.k}"


@dataclass(frozen=True, slots=True)
class Advice:
    """What to use.

    Attributes:
        plain: the same drafter under modified rejection, where block verification is best.
        untrusted: CPU contention in the times that it was predicted from, where its intervals hold that.
    """

    best: Candidate
    others: tuple[Candidate, ...]
    close: tuple[int, ...]
    choosing: tuple[str, ...]
    judging: tuple[str, ...]
    even: Even | None
    too_large: tuple[str, ...]
    plain: Candidate | None = None
    untrusted: str = ""


def advise(study: Study, objective: str = MEAN, memory_bytes: float = math.inf) -> Advice:
    """Choose among the cells of a timed study.

    Args:
        memory_bytes: cells that hold more are left out.
    """
    names = list(dict.fromkeys(text.name for text in study.written.texts))
    if study.ars is None or len(names) < FEWEST_PROMPTS:
        raise ValueError(f"{len(names)} prompts are too few to choose and to judge on, or nothing was timed")
    sides = halves(names)
    choosing, judging = ([names.index(name) for name in side] for side in sides)
    if study.ars_bytes > memory_bytes:
        raise UsageError(
            f"the target alone needs {study.ars_bytes / 1e9:.2f} GB with its cache.",
            flag="--choose",
            remedy="Give more, or a smaller target.",
        )
    arms: list[tuple[DrafterForecast | None, Timed]] = [(None, study.ars)]
    arms += [
        (one, one.timed)
        for one in study.forecasts
        if one.timed is not None and one.bytes <= memory_bytes and _pays(one, study)
    ]

    def worth(pair: tuple[DrafterForecast | None, Timed]) -> float:
        own = pair[1].part(choosing)
        return own.mean_s() if objective == MEAN else own.quantile_s(0.99)

    ranked = sorted(arms, key=worth)
    best, best_timed = ranked[0]
    ars = study.ars.part(judging)

    def candidate(forecast: DrafterForecast | None, timed: Timed) -> Candidate:
        own = timed.part(judging)
        slower = faster(own, best_timed.part(judging))
        size = study.ars_bytes if forecast is None else forecast.bytes
        return Candidate(forecast, faster(ars, own), slower, own.quantile_s(0.99), size)

    first: dict[tuple[str, str], Candidate] = {}
    close: list[int] = []
    plain: Candidate | None = None
    for other, timed in ranked[1:]:
        name = _drafter_name(other)
        if name == _drafter_name(best):
            assert other is not None
            assert best is not None
            if other.rule == best.rule:
                low = faster(timed.part(judging), best_timed.part(judging)).low
                close += [other.k] if low is None or low <= 1 else []
            elif best.rule == BLOCK and plain is None:
                plain = candidate(other, timed)
        elif name not in first:
            first[name] = candidate(other, timed)
    return Advice(
        candidate(best, best_timed),
        tuple(first.values()),
        tuple(sorted(close)),
        tuple(sides[0]),
        tuple(sides[1]),
        None if best is None else best.even,
        tuple(dict.fromkeys(one.name for one in study.forecasts if one.bytes > memory_bytes)),
        plain,
    )


def disturbed(advice: Advice, lost: float) -> Advice:
    """Return the advice with intervals that allow for CPU contention: at worst all of it hit one side."""
    if not lost:
        return advice

    def wider(interval: Interval) -> Interval:
        return Interval(interval.estimate, *hidden((interval.low, interval.high), lost, lost))

    def widened(one: Candidate) -> Candidate:
        return replace(one, speedup=wider(one.speedup), slower=wider(one.slower))

    best = widened(advice.best)
    others = tuple(map(widened, advice.others))
    if best.forecast is None:  # something that drafts may yet be faster
        hides = any(other.speedup.high is None or other.speedup.high > 1.0 for other in others)
    else:
        hides = best.speedup.low is None or best.speedup.low <= 1.0
    plain = None if advice.plain is None else widened(advice.plain)
    return replace(advice, best=best, others=others, plain=plain, untrusted=str(TimesDisturbed(lost, hides)))


def _drafter_name(forecast: DrafterForecast | None) -> tuple[str, str]:
    return ("", "") if forecast is None else (str(forecast.drafter), forecast.draft)


_GAIN = 1e-3
"""Block verification is a choice where it has so much more of tokens per loop: else noise would choose."""


def _pays(one: DrafterForecast, study: Study) -> bool:
    if one.rule != BLOCK:
        return True
    same = {
        (_drafter_name(forecast), forecast.k): forecast
        for forecast in study.forecasts
        if forecast.rule == MODIFIED_REJECTION
    }
    plain = same[_drafter_name(one), one.k].tokens_per_loop.estimate
    return one.tokens_per_loop.estimate > (1 + _GAIN) * plain


@dataclass(frozen=True)
class Check:
    """A candidate that was run beside ArS.

    Attributes:
        live: the speedup that was measured.
        alarm: whether its output contradicts the target.
        prompts: how many both wrote for.
        untrusted: why these times are not to be trusted, one sentence; empty if they are.
    """

    candidate: Candidate
    live: RatioInterval | None
    alarm: bool
    prompts: int = 0
    untrusted: str = ""

    @property
    def ratio(self) -> float:
        """The measured speedup; 1 where there is none."""
        return 1.0 if self.live is None else self.live["ratio"]

    @property
    def within(self) -> bool | None:
        """Whether prediction and live run have a speedup in common; None where times are not trusted."""
        predicted, live = self.candidate.speedup, self.live
        if (
            live is None
            or self.untrusted
            or live["low"] is None
            or live["high"] is None
            or predicted.low is None
            or predicted.high is None
        ):
            return None
        return live["low"] <= predicted.high and predicted.low <= live["high"]


def advised(advice: Advice, checks: Sequence[Check]) -> Check:
    """Return what to use: the fastest live run without an alarm; ArS where none gained."""
    if not checks:
        return Check(advice.best, None, alarm=False)
    sound = [check for check in checks if not check.alarm]
    ars = next(other for other in advice.others if other.forecast is None)
    best = max(sound, key=lambda check: check.ratio, default=None)
    if best is None or (best.live is not None and best.ratio <= 1.0):
        return Check(ars, None, alarm=False)
    return best
