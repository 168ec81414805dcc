"""Right engines raise no alarm however they declare that they draft: by enumeration of all that they may
answer, for every bet; and wrong ones are found all the same."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from support.right_engines import BEST, Floats, every

from benchmarks.short_drafts import LEFT_OUT, ROW, STAYS, Rows, ShortDrafts, answer_of, audited
from spsbench.base.protocol import Ask, Drafting
from spsbench.base.records import SamplingParams
from spsbench.decode.sampling import warp
from spsbench.engines.rescore import Reading
from spsbench.models.causal_lm import CausalLM
from spsbench.parts.audit.bet_table import cut_to
from spsbench.parts.audit.bets import Bets
from spsbench.parts.audit.contexts import AtContexts, Forks
from spsbench.parts.audit.free_evidence import FreeEvidence
from spsbench.parts.audit.localise import drafted_from
from spsbench.parts.audit.reported import ReportedDrafts
from spsbench.parts.external.engine import sampling_of

SAMPLINGS = (SamplingParams(), SamplingParams(temperature=0.7), SamplingParams(temperature=1.5, top_p=0.9))
K, SIZE = 2, 3
LOST = -600.0  # of what is not at stake any more


def read(
    models: tuple[Rows, Rows], sampling: SamplingParams, prompt: tuple[int, ...], ids: list[int]
) -> Reading:
    logits, drafts = (model.logits[[prompt[-1], *ids[:-1]]].double() for model in models)
    q, p = (warp(rows, sampling) for rows in (logits, drafts))
    none = torch.zeros(len(ids), dtype=torch.bool)
    return Reading(torch.tensor(ids), sampling, logits, drafts, q, p, none, none)


class Exact(Forks):
    """Rows in double precision, whose mean is 1 to 1e-12."""

    def _law(self, model: CausalLM, ids: Sequence[int], last: int = 1) -> Floats:
        rows = model.score_uncached(torch.tensor(ids), last=last).double()
        return np.asarray(warp(rows, self._sampling).numpy())


class Evidence:
    """All that an audit looks at of one engine on tables by the last token."""

    def __init__(
        self, models: tuple[Rows, Rows], sampling: SamplingParams, drafting: Drafting, *, modified: bool
    ) -> None:
        self._models, self._sampling, self._drafting = models, sampling, drafting
        self.rule = "modified rejection" if modified else "sample and compare with the most probable token"
        forks = Exact(cast(Any, models), sampling, drafting)
        self._parts = (
            Bets([], K, sampling.temperature, modified=modified),
            AtContexts(forks),
            ReportedDrafts(forks) if modified else None,
            FreeEvidence(K, self.rule, drafting=drafting),
        )

    def add(
        self, prompt: tuple[int, ...], ids: list[int], accepted: list[int], drafted: list[list[int]]
    ) -> None:
        bets, contexts, reported, free = self._parts
        reading = drafted_from(read(self._models, self._sampling, prompt, ids), self._drafting)
        assert reading.p is not None
        bets.add(prompt, ids, reading, accepted, 0, None if reported is None else drafted)
        contexts.add(prompt, ids, reading.q.numpy(), 0)
        if reported is not None:
            reported.add(prompt, ids, reading.p.numpy(), accepted, drafted, 0)
        answer = replace(answer_of(ids, drafted, accepted), decoded=len(ids))
        answer = answer if reported is not None else replace(answer, drafted_ids=None)
        free.add(Ask([*prompt], len(ids), [], [], sampling_of(self._sampling), len(ids)), answer, reading, 0)

    @property
    def log_e(self) -> float:
        """Of the bets on texts and drafts."""
        return self._parts[0].log_e

    def stakes(self) -> dict[str, Floats]:
        """Logs of all that is at stake, by what bets it."""
        bets, contexts, reported, free = self._parts
        found = {
            "bets": bets._sums[:2],
            "contexts": np.concatenate([contexts._own.ravel(), contexts._stakes.ravel()]),
            "counters": np.array(free._counters._log_e),
            "streams": np.array([*free._streams._log_e.values()]),
            "ends": np.concatenate([*free._ends._log_e.values()]),
            # It is wrong only where it fits no rule: its own is enough.
            "tests": np.array(free._steps._log_e.get((self.rule, 0), 0.0)),
            # Nor is it judged by lengths once a loop has drafted less than K.
            "lengths": np.array(-math.inf if free._lengths.varies else free._lengths._log_e[self.rule, 0]),
        }
        return found | ({} if reported is None else {"reported": reported._stakes})


def laws_of(models: tuple[Rows, Rows], sampling: SamplingParams, top_k: int) -> tuple[Floats, Floats]:
    target, draft = (warp(model.logits.double(), sampling).numpy() for model in models)
    return target, cut_to(draft, top_k)


def cases() -> Iterator[tuple[SamplingParams, str, Drafting]]:
    """Every combination of what may be declared: how often a draft is dropped is of ``BEST`` alone, for a
    drawn one must stand."""
    for sampling in SAMPLINGS:
        for p_min in (0.0, 0.5, 0.8):
            for top_k in (None, 0, 2):
                yield sampling, BEST, Drafting(p_min, 2, top_k)
                yield from ((sampling, ends, Drafting(p_min, 0, top_k)) for ends in (ROW, STAYS))


CASES = list(cases())


@pytest.mark.thorough_but(2)
@pytest.mark.parametrize("number", range(len(CASES)))
def test_no_stake_grows_on_average_whatever_is_declared(number: int) -> None:
    """Exactly, over all second texts of a right engine, each case on a table of its own."""
    sampling, ends, drafting = CASES[number]
    models = Rows.pair(number, SIZE)
    laws = laws_of(models, sampling, drafting.top_k or 0)
    first = Evidence(models, sampling, drafting, modified=ends != BEST)
    _, *earlier = next(every(laws, 0, 3, ends, K, drafting.p_min))
    first.add((0,), *earlier)
    before, total = first.stakes(), 0.0
    means = {name: np.zeros_like(logs) for name, logs in before.items()}
    for chance, *answer in every(laws, 1, 3, ends, K, drafting.p_min):
        found = copy.deepcopy(first)
        found.add((1,), *answer)
        total += chance
        for name, logs in found.stakes().items():
            means[name] += chance * np.exp(logs - np.maximum(before[name], LOST))
    assert total == pytest.approx(1, abs=1e-12)
    wins = {name: float(mean.max()) for name, mean in means.items() if (mean > 1 + 1e-12).any()}
    assert not wins


# --- engines ------------------------------------------------------------------------------------------


def right_engine(seed: int) -> ShortDrafts:
    """One that cuts its drafts, and says to how many tokens."""
    dice = random.Random(seed)
    k, p_min, top_k = dice.randint(2, 6), dice.choice([0.0, 0.3, 0.6]), dice.choice([2, 3, 5])
    return ShortDrafts(Rows.pair(seed), k, p_min, 0, (ROW, STAYS)[seed % 2], top_k)


@pytest.mark.thorough_but(1)
@pytest.mark.parametrize("first", [0, 4, 8])
def test_an_engine_that_draws_from_a_cut_row_and_says_so_is_right(first: int) -> None:
    """Of a thousand: ``python -m benchmarks.short_drafts --top-k 2,3,5``; where the cut did not reach the
    bets on reported drafts, and the law of acceptance, 7 of these 12 raised an alarm."""
    assert not any(audited(right_engine(seed), seed, 24, 12) for seed in range(first, first + 4))


def away(engine: ShortDrafts) -> float:
    """Total variation of a drafted place's token from the target's, on average over the last tokens."""
    target, whole = (model.laws for model in engine.models)
    drawn, tested = (cut_to(whole, count) for count in (engine.top_k, engine.declared_k))
    kept = drawn * np.where(tested > 0, np.minimum(1.0, target / np.where(tested > 0, tested, 1.0)), 1.0)
    rest = np.maximum(target - tested, 0.0)
    law = kept + (1 - kept.sum(1, keepdims=True)) * rest / rest.sum(1, keepdims=True)
    return float(np.abs(law - target).sum(1).mean() / 2)


@pytest.mark.parametrize(("top_k", "tests_k"), [(0, 3), (3, 0), (3, None)])
def test_an_engine_that_tests_with_another_row_than_it_draws_from_is_found(
    top_k: int, tests_k: int | None
) -> None:
    engine = ShortDrafts(Rows.pair(1), p_min=0.0, top_k=top_k, tests_k=tests_k)
    assert (away(engine) > 0.02) == (tests_k is not None)
    assert ("law" in audited(engine, 1, 60, 12)) == (tests_k is not None)


@pytest.mark.parametrize("fault", [{"p_min": 0.6, "n_min": 2}, {"p_min": 0.4, "ends": LEFT_OUT}])
def test_faults_of_drafts_that_are_cut_are_found(fault: dict[str, Any]) -> None:
    assert "law" in audited(ShortDrafts(Rows.pair(0), top_k=3, **fault), 0, 60, 12)


def test_a_drafted_token_that_rounding_let_in_is_no_alarm() -> None:
    """The next one after the cut, as probable as the last before it but for rounding."""
    laws = np.array([0.4, 0.3 + 1e-7, 0.3 - 1e-7])
    models = (Rows(torch.zeros(3, 3)), Rows(torch.tensor(laws).log().expand(3, 3)))
    evidence = Evidence(models, SamplingParams(temperature=0.7), Drafting(0, 0, 2), modified=True)
    evidence.add((0,), [2, 0], [0, 0], [[2], []])
    assert evidence.log_e < math.log(1000)
    for _ in range(4):  # what comes again and again is not rounding
        evidence.add((0,), [2, 0], [0, 0], [[2], []])
    assert evidence.log_e > math.log(1000)


@pytest.mark.thorough_but("10")
@pytest.mark.parametrize("top_k", [0, 10])
def test_drafts_that_are_not_cut_as_the_request_asks_are_right(top_k: int) -> None:
    """As llama.cpp's: at the temperature, of ten tokens, whatever the nucleus."""
    sampling, size, k = SamplingParams(temperature=0.7, top_p=0.8), 40, 4
    generator = torch.Generator().manual_seed(0)
    models = Rows(2 * torch.randn(size, size, generator=generator)), Rows(torch.zeros(size, size))
    models[1].logits.copy_(models[0].logits + 1.5 * torch.randn(size, size, generator=generator))
    target = warp(models[0].logits.double(), sampling).numpy()
    draft = cut_to((models[1].logits.double() / 0.7).softmax(-1).numpy(), top_k)
    rows = Rows(torch.from_numpy(target).log()), Rows(torch.from_numpy(draft).log())
    engine = ShortDrafts(rows, k, 0.0)
    drafting = Drafting(top_k=top_k)
    free = FreeEvidence(k, "modified rejection", drafting=drafting)
    for seed in range(300):
        ids, tested, accepted = engine.generate((1, 2), 40, seed)
        reading = drafted_from(read(models, sampling, (1, 2), ids), drafting)
        answer = replace(answer_of(ids, tested, accepted), drafted_ids=None)
        free.add(Ask([1, 2], 40, [], [], sampling_of(sampling), seed), answer, reading, 1)
    (finding,) = (each for each in free.findings() if each.test == "acceptance")
    assert finding.passed, finding.found
    assert finding.numbers["nearest_rule"] == "modified rejection, drafts without the request's cuts"
