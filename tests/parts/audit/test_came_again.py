"""A, B, A: an engine that answers from what it kept of another request is found, a right one is not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from parts.audit.test_in_flight import STOP, TABLE, prompts

from spsbench.base.protocol import Answer, Ask, Described
from spsbench.base.records import SamplingParams
from spsbench.parts.audit.came_again import TEST, CameAgain, rounds
from spsbench.parts.audit.engine_audit import Effort, EngineAudit, drawn_of, row_of
from spsbench.parts.audit.messages.evidence import FIRST_TOO_CERTAIN, FIRST_WRONG
from spsbench.parts.external.serving import until_stop
from spsbench.parts.verify.effort import SKIPPED, Finding
from spsbench.runner.foreign_texts import Foreign

KEY = 16  # tokens by which the cache knows a prompt
SAMPLED = SamplingParams()


class Caching:
    """Draws from the table behind a cache that is right or has one fault.

    Faults: "another's state" answers a prompt from the last one that begins alike; "stale" repeats the last
    row for ever where a prompt begins alike; "not greedy" draws where it is asked greedily, from no cache.
    """

    def __init__(self, fault: str | None = None) -> None:
        self._fault = fault
        self._known: dict[tuple[int, ...], list[int]] = {}
        self._asked = 0

    def describe(self) -> Described:
        return Described("fake", "1")

    def close(self) -> None:
        pass

    def generate(self, ask: Ask) -> Answer:
        self._asked += 1
        seen = list(ask.prompt_ids)
        kept = self._known.get(tuple(seen[:KEY]))
        hit = kept is not None
        if self._fault == "another's state" and kept is not None and len(kept) == len(seen):
            seen = list(kept)
        self._known[tuple(ask.prompt_ids[:KEY])] = list(ask.prompt_ids)
        dice = torch.Generator().manual_seed(ask.seed or self._asked)
        row, ids = torch.empty(0), list[int]()
        while len(ids) < ask.max_new_tokens and (not ids or ids[-1] not in ask.stop_ids):
            if not (self._fault == "stale" and hit and ids):
                row = TABLE.score_uncached(torch.tensor(seen), 1)[0]
            if ask.sampling.greedy and self._fault != "not greedy":
                ids.append(int(row.argmax()))
            else:
                ids.append(int(torch.multinomial(row.softmax(-1), 1, generator=dice)))
            seen.append(ids[-1])
        return Answer(*until_stop(ids, ask))


def audited(
    engine: Caching, sampling: SamplingParams = SAMPLED, kept: tuple[Foreign, ...] = (), probes: int = 24
) -> tuple[Finding, list[Foreign]]:
    """The finding, and the short requests."""
    effort = Effort(None, 4, 600.0, 24, probes=probes)
    audit = EngineAudit(engine, (TABLE, None), prompts(), sampling, [STOP], effort, k=0)
    short = list[Foreign]()
    result = audit.run(lambda drawn: None if drawn.line else short.append(drawn), kept)
    assert not result.failures
    return next(each for each in result.free if each.test == TEST), short


@pytest.mark.parametrize("sampling", [SAMPLED, SamplingParams(greedy=True)])
def test_a_right_cache_is_not_accused(sampling: SamplingParams) -> None:
    finding, short = audited(Caching(), sampling)
    assert (finding.verdict, finding.numbers["wrong"], finding.numbers["later"]) == ("ok", 0, 8)
    assert sum(each.category == TEST for each in short) == 12


@pytest.mark.parametrize("fault", ["another's state", "stale"])
@pytest.mark.parametrize("sampling", [SAMPLED, SamplingParams(greedy=True)])
def test_an_answer_from_another_state_is_found(fault: str, sampling: SamplingParams) -> None:
    finding, _ = audited(Caching(fault), sampling)
    assert finding.verdict == "FAILED"
    assert f"{finding.numbers['wrong']} of 8 greedy requests" in finding.found


def test_wrong_first_answers_accuse_no_cache() -> None:
    finding, _ = audited(Caching("not greedy"))
    assert finding.verdict == SKIPPED
    assert finding.message in (FIRST_WRONG, FIRST_TOO_CERTAIN)


def test_kept_requests_say_the_same_and_are_not_sent_again() -> None:
    finding, short = audited(Caching("stale"))
    rows = [json.loads(json.dumps(row_of(each))) for each in short]
    kept = tuple(drawn_of(row, SAMPLED) for row in rows)
    assert audited(Caching(), kept=kept) == (finding, [])
    assert audited(Caching(), kept=kept, probes=0) == (finding, [])  # evidence that is scored again


def test_each_round_shares_a_beginning_that_no_whole_prompt_has() -> None:
    asks = rounds(prompts(), Ask([1], 64), 12)
    for once, between, again in zip(*(asks[n::3] for n in range(3)), strict=True):
        assert once == again != between
        assert once.prompt_ids[:29] == between.prompt_ids[:29]
        assert len(once.prompt_ids) == len(between.prompt_ids) == 39
        assert once.sampling.greedy
        assert once.max_new_tokens == 16
    assert not {tuple(each.prompt_ids[:8]) for each in asks} & {each[:8] for each in prompts()}
    assert not rounds([[1, 2]], Ask([1], 64), 12)  # nothing that has a beginning and an end
    assert not rounds([[1, 2, 2, 2, 2, 2]], Ask([1], 64), 12)  # B would be A


def test_prompts_that_end_alike_have_rounds() -> None:
    """As behind a template: another prompt's end would make B the same as A."""
    alike = [[0, first, 4, 5, 6, 9, 9, 9] for first in (1, 2, 3)]
    asks = rounds(alike, Ask([1], 64), 9)
    assert len(asks) == 9
    for once, between in zip(asks[::3], asks[1::3], strict=True):
        assert once.prompt_ids != between.prompt_ids
        assert once.prompt_ids[:5] == between.prompt_ids[:5]
        assert len(once.prompt_ids) == len(between.prompt_ids)


@pytest.mark.parametrize(("exact", "verdict"), [(True, "FAILED"), (False, "ok")])
def test_sixteen_bits_may_miss_the_best_by_more(exact: bool, verdict: str) -> None:
    came, ask = CameAgain(exact=exact), Ask([1, 2, 3, 4, 5], 16)
    logits = torch.tensor([[1.0, 0.8, 0.0]]).expand(16, -1)
    came.add(ask, Answer([0] * 16, "length"), logits)
    came.add(replace(ask, prompt_ids=[1, 2, 3, 6, 7]), Answer([1] * 16, "length"), logits)
    assert came.finding().verdict == verdict


@pytest.mark.parametrize(("gap", "verdict"), [(2.0, SKIPPED), (0.1, "FAILED")])
def test_first_answers_that_may_have_been_drawn_are_no_control(gap: float, verdict: str) -> None:
    """Of an engine that draws where it is asked greedily 16 such tokens are the best by chance: .13, 3e-5."""
    came, ask = CameAgain(exact=True), Ask([1, 2, 3, 4, 5], 16)
    logits = torch.tensor([[gap, 0.0]]).expand(16, -1)
    came.add(ask, Answer([0] * 16, "length"), logits)
    came.add(replace(ask, prompt_ids=[1, 2, 3, 6, 7]), Answer([0] * 15 + [1], "length"), logits)
    assert came.finding().verdict == verdict


def test_nothing_is_said_where_nothing_came_again() -> None:
    assert CameAgain(exact=True).finding().verdict == SKIPPED
