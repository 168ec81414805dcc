"""Evidence beside the law of a text: each planted fault is found, right engines are quiet."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_models
from support.tiny_engine import Folders, InProcess, Models, served

from benchmarks.free_power import FAULTS, Talking, alarms, audited
from benchmarks.short_drafts import Rows, ShortDrafts, answer_of, reading_of
from spsbench.base.protocol import LENGTH, Answer, Ask, Described, Drafting, Sampling, Together, Wave
from spsbench.base.records import Processing, SamplingParams
from spsbench.engines.rescore import Reading
from spsbench.parts.audit.engine_audit import Effort, Setting, Subject, audit_engine
from spsbench.parts.audit.free_evidence import MOST, FreeEvidence, _Ends, _Streams, _Text, probes
from spsbench.parts.external.registry import PeerKind
from spsbench.parts.verify.effort import Finding
from spsbench.report.judgement import audit_sentences
from spsbench.runner.foreign_texts import reported_answer

SAMPLING = SamplingParams()


def found(free: FreeEvidence, test: str) -> Finding:
    return next(each for each in free.findings() if each.test == test)


# --- planted faults and right engines -----------------------------------------------------------------


@pytest.mark.thorough_but(
    "logprobs of the draft", "another", "nothing", "synthetic", "one stream", "end", "retry"
)
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found_within_400_texts(fault: str) -> None:
    few = 12 if "without seeds" in fault else 360
    for count, free in audited(1, fault, SAMPLING, few, 24):
        if (count % 20 == 0 or count > few) and not found(free, FAULTS[fault]).passed:
            break
    assert not found(free, FAULTS[fault]).passed, free.findings()
    assert count < 400


@pytest.mark.parametrize("told", ["all", "totals", "nothing"])
def test_a_right_engine_is_quiet(told: str) -> None:
    tokens = 72 if told == "totals" else 24  # which are judged beside texts that end before their limit
    *_, (_, free) = audited(3, None, SAMPLING, 30, tokens, told)
    assert not alarms(free), alarms(free)
    judged = {each.test for each in free.findings() if not each.unjudged}
    counted = {"logprobs", "counters", "acceptance"} if told != "nothing" else set()
    assert judged == {"independence", "ends", "seeds"} | counted
    assert found(free, "seeds").numbers == {"repeated": 6, "equal": 6}


# --- every bet has mean 1 or less ---------------------------------------------------------------------


def _reading(tokens: list[int], rows: torch.Tensor, drafts: torch.Tensor) -> Reading:
    q, p = rows.softmax(-1), drafts.softmax(-1)
    no = torch.zeros(len(tokens), dtype=torch.bool)
    return Reading(torch.tensor(tokens), SAMPLING, rows, drafts, q, p, no, no)


def _texts(size: int, longest: int, stop: int) -> list[tuple[list[int], float, _Text]]:
    """Every text of a target whose rows depend on the last token, with its probability."""
    generator = torch.Generator().manual_seed(2)
    target, draft = (torch.randn(size + 1, size, generator=generator).double() for _ in range(2))
    found = []
    for ids in product(range(size), repeat=longest):
        cut = ids.index(stop) + 1 if stop in ids else longest
        if any(ids[cut:]):
            continue
        text = [*ids[:cut]]
        before = [size, *text[:-1]]
        reading = _reading(text, target[before], draft[before])
        chance = float(reading.q[torch.arange(cut), torch.tensor(text)].prod())
        ask = Ask([0], longest, [stop], seed=len(found))
        found.append((text, chance, _Text.of(ask, Answer(text, LENGTH), reading)))
    assert math.isclose(sum(chance for _, chance, _ in found), 1.0, abs_tol=1e-9)
    return found


@pytest.mark.parametrize("kind", [_Ends, _Streams])
def test_bets_win_nothing_on_average(kind: type[_Ends] | type[_Streams]) -> None:
    """Enumerated over all texts, after any earlier ones; and the right fault wins."""
    texts = _texts(3, 4, stop=2)
    for earlier in (texts[0], texts[7]):
        wealth: dict[str, np.ndarray] = {}
        for _, chance, text in texts:
            bets = _Ends(2) if kind is _Ends else _Streams()
            bets.add(earlier[2])
            before = {name: np.exp(log) for name, log in bets._log_e.items()}
            bets.add(text if text is not earlier[2] else replace(text, ask=replace(text.ask, seed=99)))
            for name, log in bets._log_e.items():
                wealth[name] = wealth.get(name, 0) + chance * np.exp(log) / before[name]
        for name, mean in wealth.items():
            assert np.all(mean <= 1 + 1e-9), (name, mean)
            assert np.all(mean > 0.2)


def test_a_text_that_is_drawn_again_wins() -> None:
    texts = _texts(3, 4, stop=2)
    again, right = 0.0, 0.0
    ended = sum(chance for text, chance, _ in texts if text[-1] == 2)
    for text, chance, given in texts:
        bets = _Ends(0)
        for _, _, other in texts[:9]:
            bets.add(other)
        before = bets._log_e[next(reversed(bets._log_e))][2]
        bets.add(given)
        gain = bets._log_e[next(reversed(bets._log_e))][2] - before
        right += chance * gain
        again += chance / ended * gain if text[-1] == 2 else 0.0
    assert again > 0 > right


# --- logprobs -----------------------------------------------------------------------------------------


def _with_logprobs(
    logs: torch.Tensor | None, more: list[float] | None = None, *, processed: bool = False
) -> Finding:
    generator = torch.Generator().manual_seed(3)
    rows, drafts = (torch.randn(12, 9, generator=generator) for _ in range(2))
    tokens = torch.multinomial(rows.softmax(-1), 1, generator=generator).flatten()
    sampling = SamplingParams(temperature=0.5, top_k=4)
    reading = replace(_reading(tokens.tolist(), rows, drafts), sampling=sampling)
    reading = replace(reading, q=(rows / 0.25).softmax(-1))
    before = torch.randn(12, 9, generator=generator)
    reading = replace(reading, raw=before if processed else None)
    named = {"raw": rows, "warm": rows / 0.5, "draft": drafts, "before": before}
    values = more if logs is None else named[logs].log_softmax(-1)[torch.arange(12), tokens].tolist()
    free = FreeEvidence(0)
    free.add(Ask([1], 12, sampling=Sampling()), Answer(tokens.tolist(), LENGTH, logprobs=values), reading)
    return found(free, "logprobs")


@pytest.mark.parametrize(("law", "said"), [("raw", "the target's logits."), ("warm", "over the temperature")])
def test_the_law_of_logprobs_is_named(law: str, said: str) -> None:
    finding = _with_logprobs(law)  # type: ignore[arg-type]
    assert finding.passed
    assert "12 of 12" in finding.found
    assert said.rstrip(".") in finding.found


def test_logprobs_may_be_those_before_penalties_and_are_wrong_where_there_are_none() -> None:
    finding = _with_logprobs("before", processed=True)  # type: ignore[arg-type]
    assert finding.passed
    assert "before penalties" in finding.found
    assert not _with_logprobs("before").passed  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [[-1.0] * 11, [0.5] * 12, [], [math.nan] * 12])
def test_logprobs_that_are_none_are_told(values: list[float]) -> None:
    finding = _with_logprobs(None, values)
    assert not finding.passed
    assert "not one number below 0 a token" in finding.found


@pytest.mark.parametrize(("off", "passed"), [(0.0, True), (0.3, True), (3.0, False)])
def test_one_logprob_of_another_row_settles_it_in_float32(off: float, passed: bool) -> None:
    """One token of 200: rounding explains a third of a nat, at the edge of a cut, and no more."""
    rows = torch.randn(200, 9, generator=torch.Generator().manual_seed(5))
    values = rows.log_softmax(-1)[:, 0]
    values[123] -= off
    reading = _reading([0] * 200, rows, rows)
    for slack, right in ((None, passed), (MOST, True)):  # in fewer bits it is a number and no verdict
        free = FreeEvidence(0, slack=slack)
        free.add(Ask([1], 200), Answer([0] * 200, LENGTH, logprobs=values.tolist()), reading)
        finding = found(free, "logprobs")
        assert finding.passed == right, finding.found
        assert ("1 are of another row" in finding.found) == (not right)


def test_logprobs_before_penalties_and_of_weights_in_fewer_bits_pass() -> None:
    """Off by 0.2 they are those of rounded weights, and of no float32; without their own law none are."""
    rows = torch.randn(40, 9, generator=torch.Generator().manual_seed(4))
    told = rows.log_softmax(-1)[:, 0]
    reading = _reading([0] * 40, rows - 2 * torch.eye(9)[0], rows)
    for values, raw, slack, passed in (
        (told, rows, None, True),
        (told, None, None, False),
        (told - 0.2, rows, None, False),
        (told - 0.2, rows, MOST, True),
    ):
        free = FreeEvidence(0, slack=slack)
        free.add(Ask([1], 40), Answer([0] * 40, LENGTH, logprobs=values.tolist()), replace(reading, raw=raw))
        assert found(free, "logprobs").passed == passed


# --- counters -----------------------------------------------------------------------------------------


def _counted(
    n: int, texts: int = 1, k: int | None = 4, away: float = 0.0, rule: str | None = None, **counts: object
) -> Finding:
    rows = torch.zeros(n, 5)
    drafts = rows + away * torch.tensor([1.0, 0, 0, 0, 0])
    free = FreeEvidence(k, rule)
    for _ in range(texts):
        answer = Answer([1] * n, LENGTH, **counts)  # type: ignore[arg-type]
        free.add(Ask([1], n), answer, _reading([1] * n, rows, drafts))
    return found(free, "counters")


@pytest.mark.parametrize(
    "counts",
    [
        {"loops": 3, "drafted": 12, "accepted": 7},
        {"loops": 3, "drafted": 12, "accepted": 9},  # the whole last loop
        {"accepted_per_loop": [4, 3, 4], "drafted": 12},
        {"drafted": 12, "accepted": 9},
        {"loops": 2, "drafted": 8, "accepted": 5},  # a loop without drafts is not counted
        {"decoded": 30, "loops": 6, "drafted": 24, "accepted": 24},  # it went on after a stop token
    ],
)
def test_right_counts_pass(counts: dict[str, object]) -> None:
    assert _counted(10, **counts).passed, _counted(10, **counts)


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"loops": 3, "drafted": 12, "accepted": 13}, "more tokens were accepted than drafted"),
        ({"loops": 3, "drafted": 13, "accepted": 7}, "more than K tokens"),
        ({"loops": 6, "drafted": 24, "accepted": 12}, "than the last loop can have"),
        ({"accepted_per_loop": [4, 3, 4], "drafted": 12, "accepted": 5}, "do not add up"),
        ({"drafted": 12, "accepted": 12}, "than the last loop can have"),
    ],
)
def test_wrong_counts_are_told(counts: dict[str, object], said: str) -> None:
    finding = _counted(10, **counts)
    assert not finding.passed
    assert said in finding.found


def test_a_rate_that_is_1_by_construction() -> None:
    few: dict[str, Any] = {"drafted": 6, "accepted": 6}
    assert "as many tokens were accepted as drafted" in _counted(20, 8, away=1.0, **few).found
    assert _counted(20, 8, away=1.0, drafted=16, accepted=16).passed
    assert _counted(20, 400, **few).passed  # the target is its own draft: nothing can be rejected
    assert _counted(20, 8, away=1.0, rule="block verification", **few).passed


@pytest.mark.thorough_but("each")
@pytest.mark.soak_but("each", "pairs")
@pytest.mark.parametrize("told", ["each", "totals", "not what it drafts"])
@pytest.mark.parametrize("adapts", ["drawn", "as transformers", "below its confidence"])
@pytest.mark.parametrize("rate", [0.6, 1.0])
def test_an_engine_whose_k_adapts_is_quiet(told: str, adapts: str, rate: float) -> None:
    """Texts whose loops all draft K tokens are those that accept most: alone they looked made up.

    ``as transformers``: two more after a draft that stood, else one fewer, from K on.
    """
    dice, n, k = np.random.default_rng(1), 6, 4
    target, draft = torch.tensor([0.5, 0.25, 0.25]).log(), torch.tensor([0.5 * rate, 0.3, 0.25]).log()
    rows, drafts = target.expand(n, 3), (target if rate == 1 else draft).expand(n, 3)
    free = FreeEvidence(k)
    for seed in range(400):
        place, drafted, each, most = 0, 0, list[int](), k
        while place < n:
            if adapts == "drawn":
                most = int(dice.integers(1, k + 1))
            elif adapts == "below its confidence":
                most = min(k, int(dice.geometric(0.2)))
            fits = min(most, n - place - 1)
            each.append(next((i for i in range(fits) if dice.random() >= rate), fits))
            drafted, place = drafted + fits, place + each[-1] + 1
            most = min(k, most + 2) if each[-1] == fits else max(1, most - 1)
        counts: dict[str, object] = {"accepted": sum(each), "loops": len(each)}
        counts |= {"accepted_per_loop": None if told == "totals" else each}
        counts |= {"drafted": None if told == "not what it drafts" else drafted}
        answer = Answer([0] * n, LENGTH, decoded=n, **counts)  # type: ignore[arg-type]
        free.add(Ask([1], n, [2], seed=seed), answer, _reading([0] * n, rows, drafts), 0)
    assert found(free, "acceptance").passed, found(free, "acceptance").found
    assert found(free, "counters").passed, found(free, "counters").found


@pytest.mark.parametrize(
    ("p_min", "n_min", "made_up"), [(0.5, 0, False), (0.7, 0, False), (0.5, 0, True), (0.5, 1, True)]
)
def test_drafts_of_any_length_are_judged_where_they_are_told(p_min: float, n_min: int, made_up: bool) -> None:
    """Acceptance that is made up is that of another text, with the counts that fit its own tokens."""
    models = Rows.pair(2)
    engine, free = ShortDrafts(models, p_min=p_min, n_min=n_min), FreeEvidence(4)
    for seed in range(120):
        ids, tested, accepted = engine.generate([1, 2, 3], 24, seed)
        if made_up:
            accepted = [len(each) for each in tested]
            tested = [*tested, *[[0]] * 24]
            ids = [*ids, *engine.generate(ids, 24, seed)[0]][: 1 + sum(accepted) + len(accepted)]
            tested = tested[: len(accepted)]
        ask = Ask([1, 2, 3], len(ids), [], seed=seed)
        free.add(ask, answer_of(ids, tested, accepted), reading_of(models, [1, 2, 3], ids), 1)
    finding = found(free, "acceptance")
    assert "tested drafts were accepted, in loops of any length" in finding.found
    assert finding.passed != made_up, finding.found


@pytest.mark.parametrize("told", ["each", "totals", "not declared"])
def test_an_engine_whose_k_grows_beyond_the_requested_one_is_right_where_it_says_so(told: str) -> None:
    """As ONNX Runtime GenAI with ``min_adaptive_k``, whose drafts of up to 16 were no loops of K = 4."""
    engine = ShortDrafts(models := Rows.pair(2), 8, p_min=0.4)
    free = FreeEvidence(4, drafting=None if told == "not declared" else Drafting(n_max=8))
    for seed in range(120):
        ids, tested, accepted = engine.generate([1, 2, 3], 24, seed)
        answer = answer_of(ids, tested, accepted)
        if told == "totals":
            answer = replace(answer, drafted_ids=None, accepted_per_loop=None)
        free.add(Ask([1, 2, 3], 24, [], seed=seed), answer, reading_of(models, [1, 2, 3], ids), 1)
    counters, acceptance = found(free, "counters"), found(free, "acceptance")
    assert counters.passed == (told != "not declared"), counters.found
    assert acceptance.passed, acceptance.found
    assert bool(acceptance.unjudged) == ("K adapts" in acceptance.found) == (told == "totals")


@pytest.mark.parametrize("told", ["each", "totals"])
@pytest.mark.parametrize("wrong", [False, True])
def test_drafts_that_end_at_the_limit_have_the_same_law(told: str, wrong: bool) -> None:
    """Texts whose loops all have K drafts lie in one way only: to choose them raised alarms."""
    dice, n, k, rate = np.random.default_rng(0), 16, 4, 0.9
    target, draft = torch.tensor([0.5, 0.25, 0.25]).log(), torch.tensor([0.5 * rate, 0.3, 0.25]).log()
    rows, drafts = target.expand(n, 3), draft.expand(n, 3)
    free = FreeEvidence(k)
    for seed in range(340):
        place, drafted, each = 0, 0, list[int]()
        while place < n:
            fits = min(k, n - place - 1)
            kept = next((i for i in range(fits) if dice.random() > rate), fits)
            each.append(min(fits, 2) if wrong else kept)
            drafted, place = drafted + fits, place + each[-1] + 1
        counts = (
            {"accepted_per_loop": each} if told == "each" else {"accepted": sum(each), "loops": len(each)}
        )
        answer = Answer([0] * n, LENGTH, drafted=drafted, decoded=n, **counts)  # type: ignore[arg-type]
        free.add(Ask([1], n, [2], seed=seed), answer, _reading([0] * n, rows, drafts), 0)
        if told == "totals" and seed < 5:  # some end before the limit: there K is known
            early = Answer([0, 0], LENGTH, drafted=k, decoded=2, loops=1, accepted=1)
            free.add(Ask([1], n, [2], seed=1000 + seed), early, _reading([0, 0], rows[:2], drafts[:2]), 0)
    finding = found(free, "acceptance")
    assert not finding.unjudged
    assert finding.passed != wrong, finding.found


def test_a_right_engine_of_short_texts_with_few_rows_is_quiet() -> None:
    """A loop that reaches the end keeps more than others: left out, it made what was left look too short."""
    models, free = Rows.pair(2, 3), FreeEvidence(4, "modified rejection")
    engine = ShortDrafts(models, p_min=0.0)
    for seed in range(600):
        prompt = [seed % 3] * 2
        ids, tested, accepted = engine.generate(prompt, 6, seed)
        answer = replace(answer_of(ids, tested, accepted), drafted_ids=None)
        free.add(Ask(prompt, 6, [], seed=seed), answer, reading_of(models, prompt, ids), 1)
    finding = found(free, "acceptance")
    assert not finding.unjudged
    assert finding.passed, finding.found


def test_other_drafts_are_not_held_against_the_model() -> None:
    """Acceptance of a lookup does not follow from the draft's rows."""
    *_, (_, free) = audited(1, "accepts nothing", SAMPLING, 5, 24)
    assert not found(free, "acceptance").passed
    lookup = FreeEvidence(4, "sample and compare, prompt lookup")
    peer = Talking(*_arguments(), "accepts nothing")
    for seed in range(5):
        ask = Ask([1, 2], 24, [47], seed=seed)
        answer = peer.generate(ask)
        lookup.add(ask, answer, peer._tables.reading(ask.prompt_ids, answer.output_ids, SAMPLING))
    assert found(lookup, "acceptance").unjudged


@pytest.mark.parametrize("grammar", [None, "{}"])
def test_drafts_need_not_know_a_grammar(grammar: str | None) -> None:
    """What they propose beside it is rejected, as of dead speculation, which is a fault without a grammar."""
    free, peer = FreeEvidence(4), Talking(*_arguments(), "accepts nothing")
    for seed in range(5):
        answer = peer.generate(asked := Ask([1, 2], 24, [47], seed=seed))
        reading = peer._tables.reading([1, 2], answer.output_ids, SAMPLING)
        free.add(replace(asked, sampling=replace(asked.sampling, grammar=grammar)), answer, reading)
    finding = found(free, "acceptance")
    assert finding.passed == (grammar is not None)
    assert finding.numbers["unlike"]
    assert ("do not know its grammar" in finding.found) == finding.passed


def _arguments() -> tuple[object, SamplingParams]:
    from benchmarks.audit_power import Tables

    return Tables.made(1), SAMPLING


# --- in an audit --------------------------------------------------------------------------------------


def test_probes_are_half_without_a_seed() -> None:
    asks = probes([[1], [2], [3]], Ask([1], 64), 24)
    assert len(asks) == 24
    assert [ask.seed for ask in asks].count(None) == 12
    assert {ask.max_new_tokens for ask in asks} == {16}
    assert sorted(ask.seed for ask in asks[:12]) == sorted([*range(1, 7)] * 2)  # type: ignore[type-var]
    assert not probes([[1]], Ask([1], 64), 0)
    longer = Ask([1], 64, sampling=Sampling(min_new_tokens=49))
    assert {ask.max_new_tokens for ask in probes([[1]], longer, 24)} == {49}


def test_lines_that_mean_something_else_are_left_out() -> None:
    told = reported_answer({"loops": [{}], "accepted": 3, "logprobs": "no"}, [1, 2], retokenised=False)
    assert (told.loops, told.accepted, told.logprobs) == (None, 3, None)


class Unseeded(InProcess):
    """Requests without a seed have one stream, and counters are doubled."""

    def generate(self, ask: Ask) -> Answer:
        answer = super().generate(replace(ask, seed=3) if ask.seed is None else ask)
        return replace(
            answer, accepted=2 * (answer.accepted or 0) + 9, accepted_per_loop=None, drafted_ids=None
        )


class Batching(InProcess):
    """Requests that are in flight together have one stream, but for their seeds."""

    shared = True

    def describe(self) -> Described:
        return replace(super().describe(), in_flight=4)

    def together(self, wave: Wave) -> Together:
        asks = [replace(ask, seed=3) if ask.seed is None and self.shared else ask for ask in wave.asks]
        return Together([self.generate(ask) for ask in asks])


class Apart(Batching):
    shared = False


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [Batching, Apart])
def test_streams_are_compared_in_flight(
    kind: type[Batching], folders: Folders, models: Models, tmp_path: Path
) -> None:
    engine = PeerKind("worker:here", lambda load, log, paused: kind(served(folders, None, load.k)))
    subject = Subject(engine, models, folders, [(1, 2, 3), (4, 5)], [tiny_models.EOS], threads=1)
    settings = [Setting(SAMPLING, 2), Setting(SAMPLING, 2, in_flight=4)]
    effort = Effort(1e-9, 4, 600.0, 16, probes=8)
    alone, flying = audit_engine(subject, settings, effort, 0, tmp_path, lambda _: None)
    assert all(each.passed for each in alone.result.free)
    failed = [each.test for each in flying.result.free if not each.passed]
    assert failed == (["independence"] if kind.shared else [])


class Plain(InProcess):
    """It has no processors, and would fail with each text."""

    def describe(self) -> Described:
        return replace(super().describe(), processors=["min_p"])

    def generate(self, ask: Ask) -> Answer:
        raise AssertionError("it was asked")


def test_a_step_that_an_engine_lacks_is_one_row(folders: Folders, models: Models, tmp_path: Path) -> None:
    engine = PeerKind("worker:here", lambda load, log, paused: Plain(served(folders, None, load.k)))
    subject = Subject(engine, models, folders, [(1, 2, 3)], [tiny_models.EOS], threads=1)
    settings = [Setting(SamplingParams(process=Processing(typical_p=0.9)), k) for k in (0, 2)]
    effort = Effort(1e-9, 4, 600.0, 16, probes=8)
    rows = [*audit_engine(subject, settings, effort, 0, tmp_path, lambda _: None)]
    assert [(row.decision, row.result.cannot) for row in rows] == [("cannot", "it has no typical_p")] * 2
    assert not any(row.result.failures for row in rows)


@pytest.mark.parametrize("kind", [InProcess, Unseeded])
def test_an_audit_reports_it_and_keeps_it(
    kind: type[InProcess], folders: Folders, models: Models, tmp_path: Path
) -> None:
    engine = PeerKind("worker:here", lambda load, log, paused: kind(served(folders, None, load.k)))
    prompts = [tuple((7 * i + 11 * j) % 250 for j in range(6)) for i in range(4)]
    subject = Subject(engine, models, folders, prompts, [tiny_models.EOS], threads=1)

    def audit() -> dict[str, dict[str, object]]:
        effort = Effort(1e-9, 6, 600.0, 16, probes=8)
        (row,) = audit_engine(subject, [Setting(SAMPLING, 2)], effort, 0, tmp_path, lambda _: None)
        facts = row.facts()
        assert json.loads(json.dumps(facts["free"])) == facts["free"]
        said = " ".join(audit_sentences([facts], None))
        assert ("random numbers of earlier" in said) == (kind is Unseeded)
        return {each["test"]: each for each in facts["free"]}

    first, again = audit(), audit()  # the second one reads its texts from the file
    failed = {test for test, each in first.items() if not each["passed"]}
    assert failed == ({"counters", "independence"} if kind is Unseeded else set())
    assert [each["passed"] for each in first.values()] == [each["passed"] for each in again.values()]
    assert first["counters"]["numbers"]["texts"] == again["counters"]["numbers"]["texts"] == 14  # type: ignore[index]
    assert first["seeds"]["found"] == "2 of 2 texts were the same when their seed was repeated."
