"""Audits of engines: a right one is quiet, every planted fault is found from texts alone."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import tiny_models
from support.tiny_engine import Folders, InProcess, Models, served

from benchmarks.audit_power import Engine, Tables
from spsbench.base import protocol
from spsbench.base.errors import UnavailableError
from spsbench.base.protocol import LENGTH, Answer, Ask, Drafting, Load, PeerError, PeerGone, Sampling, checked
from spsbench.base.records import SamplingParams
from spsbench.engines import rescore
from spsbench.law.evidence import Sums, added, sums_of
from spsbench.parts.audit import engine_audit, localise
from spsbench.parts.audit.conformance import EngineUnderTest, conformance
from spsbench.parts.audit.engine_audit import (
    FIRST_LOOK,
    Effort,
    EngineAudit,
    Setting,
    SettingResult,
    Subject,
    audit_engine,
    tokens_of_prefill,
)
from spsbench.parts.audit.localise import laws_beside, locate, read_under
from spsbench.parts.audit.messages.faults import LEAVES_OUT_DRAWN, WITHDRAWS
from spsbench.parts.external.registry import PeerKind
from spsbench.parts.verify import effort
from spsbench.parts.verify.controls import ENGINE_FAULTS
from spsbench.parts.verify.draft_faults import GREEDY, POINT_MASS
from spsbench.parts.verify.effort import Finding
from spsbench.parts.verify.served import Served
from spsbench.report.judgement import audit_sentences
from spsbench.runner.foreign_texts import Foreign
from spsbench.stats.losslessness import ALARM
from spsbench.store.summary_types import EngineAuditRow

STOP = tiny_models.EOS
K = 2  # so small that both a rejection and the token behind a whole draft are common
SAMPLING = SamplingParams()
COOLER = SamplingParams(temperature=0.8)


def prompts(count: int = 8) -> list[tuple[int, ...]]:
    return [tuple((7 * i + 11 * j) % 250 for j in range(6)) for i in range(count)]


def audited(
    folders: Folders,
    models: Models,
    fault: str | None,
    *,
    texts: int,
    sampling: SamplingParams = SAMPLING,
    k: int = K,
    bound: float = 1e-9,
    seed: int = 0,
) -> SettingResult:
    peer = InProcess(served(folders, fault, k))
    effort = Effort(bound, texts, 600.0, 32)
    audit = EngineAudit(
        peer, models, prompts(), sampling, [STOP], effort, seed, None, k, peer.describe().rule
    )
    return audit.run(lambda _: None)


@pytest.mark.thorough_but("softmax", "point mass")
@pytest.mark.parametrize("drafts", GREEDY)
def test_a_greedy_draft_is_judged_as_what_it_is_or_found(
    drafts: str, folders: Folders, models: Models
) -> None:
    """It is declared to be the most probable token: the row that judges it is all that can be wrong."""
    peer = InProcess(served(folders, drafts, K))
    described = peer.describe()
    assert described.drafting == Drafting(top_k=1)
    effort = Effort(1e-9, 40, 600.0, 32, drafting=described.drafting)
    given = (peer, models, prompts(), SAMPLING, [STOP], effort, 0, None, K, described.rule)
    found = EngineAudit(*given).run(lambda _: None)
    assert (found.decision == "alarm") == (drafts != POINT_MASS), found.evidence
    assert all(each.passed for each in found.free) or drafts != POINT_MASS


@pytest.mark.parametrize("told", [None, torch.bfloat16, torch.float32])
def test_an_engine_in_16_bits_that_does_not_say_so_is_not_accused_of_its_rounding(
    told: torch.dtype | None, folders: Folders, models: Models
) -> None:
    """As one of float32 it is: it draws tokens from beyond the nucleus of float32."""
    target, draft = map(str, folders)
    peer = InProcess(Served(Load(target, draft, K, 1, dtype="bfloat16"), None))
    cut = SamplingParams(top_p=0.9)
    effort = Effort(1e-9, 40, 600.0, 32)
    given = (peer, models, prompts(), cut, [STOP], effort, 0, None, K, peer.describe().rule)
    found = EngineAudit(*given, dtype=told).run(lambda _: None)
    assert found.evidence is not None
    assert (found.evidence["verdict"] == ALARM) == (told == torch.float32), found.evidence
    assert not [each.found for each in found.free if not each.passed] or told == torch.float32


FAULTS = [
    "inverted-ratio",
    "no-residual",
    "row-off-by-one",
    "raw-draft",
    "bonus-from-draft",
    "residual-row",
    "stale-cache",
    "lenience",
    "draft-noise-replaces",
    "draft-noise-tests",
    "test-noise-replaces",
    "one-noise",
    "drawn-token-stop",
    "overwritten-mass",
    "argmax-by-uniform",
    "argmax-by-softmax",
    "verification-at-temperature-1",
    "leaked-prompt",
    "reused-seed",
    "swallowed-stop",
]


@pytest.mark.thorough_but("reused-seed", "bonus", "leaked", "temperature-1")
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found_in_under_400_texts(
    fault: str, folders: Folders, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_audit, "TO_LOCATE", 1)
    about_temperature = fault in ("raw-draft", "verification-at-temperature-1")
    sampling = COOLER if about_temperature else SAMPLING
    found = audited(folders, models, fault, texts=400, sampling=sampling)
    assert found.decision == "alarm", found.evidence
    assert found.decided_after < 400
    assert found.rare is None, "what a wrong engine's texts would have shown is not asked"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "law"), [("dropped-short", WITHDRAWS), ("drawn-token-stop", LEAVES_OUT_DRAWN), (None, None)]
)
def test_what_reported_drafts_show_is_named(
    fault: str | None, law: str | None, folders: Folders, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So cool that the tiny draft is sure at all."""
    monkeypatch.setattr(engine_audit, "TO_LOCATE", 1)
    cool = SamplingParams(temperature=0.3)
    found = audited(folders, models, fault, texts=60, sampling=cool, k=4)
    if law is None:
        assert found.decision == "undecided"
        return
    assert found.decision == "alarm", found.evidence
    assert found.leading is not None
    assert str(found.leading[1]).startswith(law)


@pytest.mark.thorough
def test_the_nucleus_is_checked_for_its_place(folders: Folders, models: Models) -> None:
    sampling = SamplingParams(temperature=0.6, top_p=0.8)
    found = audited(folders, models, "nucleus-at-one", texts=40, sampling=sampling, k=0)
    assert found.decision == "alarm"
    located = locate(found.drawn, models, sampling)
    assert located.explanation.law.name == "top-k and top-p cut at temperature 1, then the temperature"
    assert located.explanation.law.convention


@pytest.mark.thorough_but("[0]")
@pytest.mark.parametrize("k", [0, K])
def test_a_right_engine_is_quiet(k: int, folders: Folders, models: Models) -> None:
    found = audited(folders, models, None, texts=80, k=k, bound=0.5)
    assert found.decision == "quiet"
    assert found.decided_after == FIRST_LOOK
    assert found.bound < 0.5
    assert not found.failures


def test_greedy_is_quiet_after_every_prompt_once(
    folders: Folders, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_audit, "TO_LOCATE", 1)
    greedy = SamplingParams(greedy=True)
    found = audited(folders, models, None, texts=40, sampling=greedy)
    assert (found.decision, found.decided_after) == ("quiet", FIRST_LOOK)
    wrong = audited(folders, models, "row-off-by-one", texts=40, sampling=greedy)
    assert wrong.decision == "alarm"


@pytest.mark.thorough
def test_an_interrupted_audit_goes_on_with_its_texts(
    folders: Folders, models: Models, tmp_path: Path
) -> None:
    """A last line that was cut off is drawn again, and nothing that is whole; nothing comes out otherwise."""
    asked: list[Ask] = []

    class Counting(InProcess):
        def generate(self, ask: Ask) -> Answer:
            asked.append(ask)
            return super().generate(ask)

    kind = PeerKind("worker:here", lambda load, log, paused: Counting(served(folders, None, load.k)))
    subject = Subject(kind, models, folders, prompts(), [STOP], threads=1)
    file = tmp_path / "k2-t1-p1-top0.jsonl"

    def texts(most: int) -> tuple[str, float]:
        effort = Effort(1e-9, most, 600.0, 16)
        (row,) = audit_engine(subject, [Setting(SAMPLING, K)], effort, 0, tmp_path, lambda _: None)
        assert row.result.evidence is not None
        return file.read_text(), row.result.evidence["log10_e_value"]

    whole = texts(12)
    cut = "".join(whole[0].splitlines(keepends=True)[:7])
    file.write_text(cut + '{"prompt_ids": [3')
    asked.clear()
    assert texts(12) == whole
    assert len(asked) == 5


@pytest.mark.thorough_but("2")
@pytest.mark.parametrize("k", [2, 4])
def test_places_are_centred_for_a_right_engine(k: int) -> None:
    """Standard normal, each held against its own law; by the target's row alone they are not."""
    sampling, tables = SamplingParams(temperature=0.8), Tables.made(k)
    found: dict[str, list[float]] = {}
    for seed in range(12):
        engine, sums = Engine(tables, sampling, None, k), dict[str, Sums]()
        for number in range(12):
            prompt = (seed, number)
            ids, accepted, _ = engine.generate(prompt, 40, 1000 * seed + number)
            told = Answer(ids, LENGTH, accepted_per_loop=accepted)
            drawn = Foreign(1, prompt, tuple(ids), sampling, False, told, free=0)
            reading = tables.reading(prompt, ids, sampling)
            for group, name, mask, law in localise._groups(drawn, reading, k):
                if group == "place in the loop":
                    sums[name] = added(sums.get(name, {}), localise._sums(reading, mask, law))
        for name, part in sums.items():
            z = localise._place(name, 100, part).leakage_z
            assert z is not None
            found.setdefault(name, []).append(z)
    assert set(found) == {"accepted", "after a rejection", "after a whole draft"}
    for name, many in found.items():
        assert abs(sum(many)) / len(many) ** 0.5 < 3.5, (name, many)
        assert sum(z * z for z in many) / len(many) < 3, (name, many)


def test_a_token_behind_top_k_is_excused_by_rounding_alone() -> None:
    """The next token is possible where its logit ties but for rounding, and not because it comes next."""
    logits = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0], [5.0, 4.0, 3.0, 3.0 - 1e-5, 1.0]])
    near = rescore._at_the_edge(logits, torch.tensor([3, 3]), SamplingParams(top_k=3), 1e-4)
    assert near.tolist() == [False, True]


@pytest.mark.parametrize(
    ("drafted", "said"),
    [
        ([[1, 2]], "without as many accepted_per_loop"),
        ([[1, 2], [900]], "outside the vocabulary"),
        ([[1], [2]], "accepted more tokens of a loop"),
    ],
)
def test_drafted_ids_must_fit(drafted: list[list[int]], said: str) -> None:
    answer = Answer([1, 2, 3, 4], "length", accepted_per_loop=[2, 0], drafted_ids=drafted)
    with pytest.raises(PeerError, match=said):
        checked(answer, Ask([1], 4), 300)


@pytest.mark.parametrize(
    ("answer", "free"),
    [
        (Answer([5, 6, STOP], protocol.STOP, decoded=2), 1),
        (Answer([5, 6, 7], LENGTH, decoded=3), 0),
        (Answer([5, 6, STOP], protocol.STOP, decoded=3), None),  # 0, or 1 and one past the stop token
        (Answer([5, 6, 7], LENGTH), None),
    ],
)
def test_the_token_of_the_prefill_shows_where_nothing_is_decoded_past_the_end(
    answer: Answer, free: int | None
) -> None:
    assert tokens_of_prefill(answer) == free


def test_what_could_not_be_shown_is_undecided(folders: Folders, models: Models) -> None:
    found = audited(folders, models, None, texts=25)
    assert (found.decision, len(found.drawn)) == ("undecided", 25)
    assert found.bound > 0


@pytest.mark.thorough
def test_an_alarm_goes_on_to_see_where(folders: Folders, models: Models) -> None:
    found = audited(folders, models, "inverted-ratio", texts=400)
    assert found.decided_after < 10
    assert len(found.drawn) == 40
    places = {
        place.name: place for place in locate(found.drawn, models, SAMPLING, K).places["place in the loop"]
    }
    accepted, behind = places["accepted"], places["after a rejection"]
    assert accepted.leakage_z > 10 > 4 > abs(behind.leakage_z)
    assert found.evidence is not None
    assert found.evidence["log10_e_value"] >= 3 or "probability 0" in found.evidence["reasons"][0]


@pytest.mark.parametrize("decision", ["alarm", "undecided"])
def test_what_fails_by_the_targets_law_beside_an_alarm_says_so(
    decision: engine_audit.Decision, folders: Folders, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sharper texts are alike: transformers' mixture of both models looked as if it used numbers again."""
    bounds = Effort(None, 1, 60.0, 8)
    audit = EngineAudit(InProcess(served(folders, None, K)), models, prompts(), SAMPLING, [STOP], bounds)
    failed = [Finding(name, False, "Wrong.", "0") for name in ("counters", "independence", "ends")]
    monkeypatch.setattr(audit._free, "findings", lambda: [*failed, Finding("ends", True, "Right.", "0")])
    found = [each.found for each in audit._findings(decision)]
    doubted = "Wrong. This is by the target's law, which these texts do not follow."
    none = "No greedy request was repeated behind another one."
    assert found == ["Wrong.", *[doubted if decision == "alarm" else "Wrong."] * 2, "Right.", none]


def test_another_temperature_is_named(folders: Folders, models: Models) -> None:
    """Texts of temperature 0.5 held against 1."""
    peer = InProcess(served(folders, None, 0))
    effort = Effort(1e-9, 100, 600.0, 32)

    class Colder(InProcess):
        def generate(self, ask: Ask) -> Answer:
            return peer.generate(replace(ask, sampling=replace(ask.sampling, temperature=0.5)))

    audit = EngineAudit(Colder(peer.engine), models, prompts(), SAMPLING, [STOP], effort)
    found = audit.run(lambda _: None)
    assert found.decision == "alarm"
    explained = locate(found.drawn, models, SAMPLING).explanation
    assert explained.law.name == "temperature 0.5"
    assert not explained.law.convention


@pytest.mark.parametrize("compared", [False, True])
def test_texts_that_are_compared_afterwards_are_counted_meanwhile(
    compared: bool, folders: Folders, models: Models
) -> None:
    """An alarm of the law alone is none where the engine's kernels round."""
    effort, said = Effort(1e-9, 12, 600.0, 16, all_texts=compared), list[bool]()
    peer = InProcess(served(folders, "inverted-ratio", K))
    audit = EngineAudit(peer, models, prompts(), SAMPLING, [STOP], effort)
    audit.run(lambda _: None, on_text=lambda _, evidence, __: said.append(evidence is not None))
    assert said == [not compared] * 12


class Failing(InProcess):
    """Every second request fails; from the n-th on it is gone."""

    def __init__(self, engine: Served, gone_after: int) -> None:
        super().__init__(engine)
        self.asked, self.gone_after = 0, gone_after

    def generate(self, ask: Ask) -> Answer:
        self.asked += 1
        if self.asked > self.gone_after:
            raise PeerGone("three requests in a row failed")
        if self.asked % 2:
            raise PeerError("no answer after 5 s")
        return super().generate(ask)


def test_failures_cost_their_sequence_and_are_told(folders: Folders, models: Models) -> None:
    effort = Effort(1e-9, 30, 600.0, 16)
    peer = Failing(served(folders, None, K), gone_after=12)
    found = EngineAudit(peer, models, prompts(), SAMPLING, [STOP], effort).run(lambda _: None)
    assert len(found.drawn) == 6
    assert found.failures == ["no answer after 5 s"] * 6
    assert found.gone == "three requests in a row failed"
    assert found.decision == "undecided"


# --- servers ------------------------------------------------------------------------------------------


class OfText(InProcess):
    """Its texts come without ids."""

    def generate(self, ask: Ask) -> Answer:
        return replace(super().generate(ask), retokenised=True)


def rows_of(kind: PeerKind, folders: Folders, models: Models, folder: Path) -> list[EngineAuditRow]:
    subject = Subject(kind, models, folders, prompts(), [STOP], threads=1)
    settings = [Setting(SAMPLING, None)]
    found = audit_engine(subject, settings, Effort(0.5, 40, 600.0, 24), 0, folder, lambda _: None)
    return [row.facts() for row in found]


def test_a_server_is_audited_as_it_is_served(folders: Folders, models: Models, tmp_path: Path) -> None:
    engine = served(folders, None, K)
    kind = PeerKind("openai:here", lambda load, log, paused: OfText(engine), served=True)
    (row,) = rows_of(kind, folders, models, tmp_path)
    assert (row["setting"], row["k"], row["is_plain"]) == ("as served, T=1", None, False)
    assert row["decision"] == "quiet"
    assert row["retokenised"] == row["texts"] == 20
    said = " ".join(audit_sentences([row], 0.5))
    assert "20 texts came without ids" in said
    assert row["rare"] is not None
    assert row["rare"]["random_token"] is not None
    assert 1 / row["texts"] < row["rare"]["random_token"] < 0.5
    assert "go wrong at some token" in said
    told = {
        (0.01, 0.02, 0.015): "One in 50 requests that go wrong at some token would have been seen (95%).",
        (0.01, 0.005, 0.84): "One in 100 requests that go wrong at some token would have been seen (95%), "
        "84% of requests where they read a stale row.",
        (0.8, 0.7, 0.9): "90% of requests that go wrong at some token would have been seen (95%).",
    }
    for (request, token, stale), sentence in told.items():
        shares = {"level": 0.95, "another_request": request, "random_token": token, "stale_row": stale}
        assert sentence in " ".join(audit_sentences([row | {"rare": shares}], 0.5))
    assert (tmp_path / row["texts_file"]).read_text().count("\n") == 20
    # A bet that most of the evidence is of need not be the fault: it is called the nearest one.
    row |= {"decision": "alarm", "decided_after": 3, "place": "every token", "law": "draws at 0.8 times"}
    alarm = " ".join(audit_sentences([row], 0.5))
    assert "It shows at every token; nearest of the faults that are bet on: it draws at 0.8 times." in alarm


def test_a_server_of_another_model_is_refused(folders: Folders, models: Models, tmp_path: Path) -> None:
    other = served((folders[1], folders[1]), None, k=0)
    kind = PeerKind("openai:there", lambda load, log, paused: InProcess(other), served=True)
    with pytest.raises(UnavailableError, match="openai:there serves another model than the target"):
        rows_of(kind, folders, models, tmp_path)


# --- the bets -----------------------------------------------------------------------------------------


def test_the_bet_on_lenience_has_expectation_one() -> None:
    generator = torch.Generator().manual_seed(4)
    q, p = (
        torch.softmax(2 * torch.randn(1, 9, generator=generator, dtype=torch.float64), -1) for _ in range(2)
    )
    tokens = [torch.tensor([x]) for x in range(9)]
    logs = [sums_of(x, q, p, torch.rand(1))["log_e_lenience"] for x in tokens]
    mean = sum(float(q[0, x]) * math.exp(log) for x, log in enumerate(logs))
    assert mean == pytest.approx(1.0, abs=1e-12)


# --- laws ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(temperature=0.7, top_p=0.9),
        SamplingParams(top_k=5),
        SamplingParams(temperature=1.5, top_k=6, top_p=0.8),
    ],
)
def test_every_law_gives_distributions(sampling: SamplingParams) -> None:
    logits, drafts = torch.randn(6, 40), torch.randn(6, 40)
    names, no = set(), torch.zeros(6, dtype=torch.bool)
    reading = rescore.Reading(
        torch.zeros(6, dtype=torch.int64), sampling, logits, drafts, logits, None, no, no
    )
    for law in laws_beside(sampling, draft=True):
        rows = law.rows(reading)
        assert torch.allclose(rows.sum(-1), torch.ones(6), atol=1e-5), law.name
        assert bool((rows >= 0).all()), law.name
        names.add(law.name)
    assert len(names) == len(laws_beside(sampling, draft=True)), "a name stands for two laws"


def test_every_planted_fault_can_generate(folders: Folders) -> None:
    """Rows on the host are numpy's, which a fault that was written for torch does not take."""
    for fault in ENGINE_FAULTS:
        ask = Ask([1, 2, 3], 6, sampling=Sampling(temperature=0.8), seed=1)
        assert served(folders, fault, 2).generate(ask).output_ids, fault


def test_a_law_of_both_models_cannot_judge_one() -> None:
    mixture = laws_beside(SamplingParams(), draft=True)[-1]
    assert mixture.share
    with pytest.raises(ValueError, match="not a law of one model"):
        read_under(None, mixture)  # type: ignore[arg-type]


# --- conformance --------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, K])
def test_a_right_engine_conforms(k: int, folders: Folders, models: Models) -> None:
    found = list(
        conformance(EngineUnderTest(InProcess(served(folders, None, k)), models[0], prompts(3), [STOP], k))
    )
    assert len(found) == 7
    assert all(each.passed for each in found), found


@pytest.mark.parametrize(("fault", "test"), [("reused-seed", "seeds"), ("leaked-prompt", "greedy")])
def test_form_is_checked_too(fault: str, test: str, folders: Folders, models: Models) -> None:
    peer = InProcess(served(folders, fault, K))
    found = conformance(EngineUnderTest(peer, models[0], prompts(3), [STOP], K))
    assert test in [each.test for each in found if not each.passed]


@pytest.mark.parametrize("declared", [None, Drafting(n_max=4)])
def test_an_engine_whose_options_say_that_k_adapts_conforms(
    declared: Drafting | None, folders: Folders, models: Models
) -> None:
    """It drafts up to four tokens where one is requested; its worker says nothing of that."""
    engine = InProcess(served(folders, None, 4))
    under_test = EngineUnderTest(engine, models[0], prompts(3), [STOP], 1, declared)
    (statistics,) = [each for each in conformance(under_test) if each.test == "statistics"]
    assert statistics.passed == (declared is not None), statistics.found


def test_all_faults_around_the_sampler_are_tested() -> None:
    """``float16-residual`` moves the law by less than texts can show; what it moves is tested where it is."""
    around = set(ENGINE_FAULTS) - set(effort.FAULTS)
    assert around - {"float16-residual"} <= set(FAULTS)
