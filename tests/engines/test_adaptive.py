"""Drafts shorter than K in real loops: every decision and every length derived anew, and the records."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.rederived import Models, decisions, mini, tiny
from support.tiny_models import TOKENS
from support.withdrawing import Withdrawing

from spsbench.base.records import Request, SamplingParams, Spec
from spsbench.decode.clock import FakeClock
from spsbench.decode.stopping import TextDecoder
from spsbench.drafters.model import ModelDrafter
from spsbench.drafters.registry import build_policy
from spsbench.engines.derivation import Derivation
from spsbench.engines.local import EagerEngine
from spsbench.law.evidence import Sums, added
from spsbench.testing import Letters

CPU = torch.device("cpu")
K, NEW, SEQUENCES = 6, 32, 6
LETTERS = Letters("".join(chr(0x100 + i) for i in range(TOKENS)))
NUCLEUS = SamplingParams(temperature=0.7, top_p=0.8)
TOP_K = SamplingParams(top_k=5, top_p=0.8)
GREEDY = SamplingParams(greedy=True)

# The rows of random models are flat: thresholds near their medians, so that drafts end anywhere.
POLICIES = ("fixed", "stop-below:tau=0.15", "entropy:h=2.2", "momentum")
MINI = ("stop-below", "entropy", "entropy:h=0.5", "momentum")


class Adaptive(EagerEngine):
    """The production engine with a policy; decisions are derived by the one that it is said to have."""

    def __init__(
        self,
        models: Models,
        policy: str,
        made_by: type[ModelDrafter] = ModelDrafter,
        decoder: TextDecoder = LETTERS,
        said: str | None = "",
    ) -> None:
        def make(sampling: SamplingParams) -> ModelDrafter:
            return made_by(models[1], sampling, CPU, build_policy(Spec.parse(policy)))

        judge = None if said is None else build_policy(Spec.parse(said or policy))
        how = Derivation(k=K, policy=judge)
        clock = FakeClock(0.001)
        super().__init__(models[0], None, K, decoder, CPU, clock, make_drafter=make, derivation=how)
        self.models = models


def request(index: int, sampling: SamplingParams) -> Request:
    generator = torch.Generator().manual_seed(index)
    prompt = tuple(torch.randint(250, (12,), generator=generator).tolist())
    return Request(prompt, NEW, (), sampling, seed=index, trace=True)


def judged(engine: Adaptive, sampling: SamplingParams) -> tuple[Sums, set[int]]:
    """The sums of some sequences, and the lengths of their drafts."""
    total: Sums = {}
    lengths: set[int] = set()
    for asked in (request(index, sampling) for index in range(SEQUENCES)):
        generation = engine.generate(asked)
        lengths |= {len(ids) for ids in generation.proposed or []}
        total = added(total, decisions(engine.models, asked, generation, K))
    return total, lengths


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("sampling", [NUCLEUS, TOP_K, GREEDY], ids=str)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_every_decision_of_the_honest_sampler_follows(
    architecture: str, policy: str, sampling: SamplingParams
) -> None:
    sums, lengths = judged(Adaptive(tiny(architecture), policy), sampling)
    assert sums["decisions_contradicted"] == 0
    assert sums["decisions_rounding"] <= 2
    assert sums["decisions"] > 3 * NEW
    assert max(lengths) <= K
    if policy == "momentum" or (sampling, policy) in ((NUCLEUS, POLICIES[1]), (NUCLEUS, POLICIES[2])):
        assert len(lengths) >= 3


@pytest.mark.thorough
@pytest.mark.parametrize("policy", POLICIES)
def test_rounding_of_half_precision_is_allowed_for(policy: str) -> None:
    engine = Adaptive(tiny("llama", torch.bfloat16), policy)
    assert judged(engine, NUCLEUS)[0]["decisions_contradicted"] == 0


@pytest.mark.thorough
@pytest.mark.parametrize("sampling", [NUCLEUS, TOP_K], ids=str)
def test_a_withdrawn_token_is_found_out_by_the_policy_alone(sampling: SamplingParams) -> None:
    """Everything else fits: only a draft that ended without a reason tells of what is no longer there."""
    policy = "stop-below:tau=0.15"
    engine, unasked = (Adaptive(tiny(), policy, Withdrawing, said=said) for said in (policy, None))
    assert judged(engine, sampling)[0]["decisions_contradicted"] > SEQUENCES
    assert judged(unasked, sampling)[0]["decisions_contradicted"] == 0


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("stop-below:tau=0.15", "stop-below:tau=0.3"),
        ("stop-below:tau=0.15", "fixed"),
        ("entropy:h=2.2", "stop-below:tau=0.15"),
        ("momentum", "fixed"),
        ("fixed", "momentum"),
        ("fixed", "entropy:h=2.2"),
    ],
)
def test_another_policy_contradicts(policy: str, said: str) -> None:
    assert judged(Adaptive(tiny(), policy, said=said), NUCLEUS)[0]["decisions_contradicted"] > 5


@pytest.mark.thorough_but(2)
@pytest.mark.parametrize("sampling", [SamplingParams(top_p=0.95), GREEDY], ids=str)
@pytest.mark.parametrize("policy", MINI)
def test_the_mini_pair_follows(policy: str, sampling: SamplingParams) -> None:
    models, tokenizer = mini()
    prompt = tuple(tokenizer.encode("Article: The vote in", special=True))
    asked = replace(request(0, sampling), prompt_ids=prompt, max_new_tokens=64, fixed_length=True)
    engine = Adaptive(models, policy, decoder=tokenizer)
    generation = engine.generate(asked)
    sums = decisions(models, asked, generation, K)
    assert sums["decisions_contradicted"] == 0 < sums["decisions"]
    if not sampling.greedy:
        assert len({len(ids) for ids in generation.proposed or []}) > 1


def test_a_withdrawn_token_is_found_out_on_the_mini_pair() -> None:
    models, tokenizer = mini()
    prompt = tuple(tokenizer.encode("Article: The vote in", special=True))
    asked = replace(
        request(0, SamplingParams(top_p=0.95)), prompt_ids=prompt, max_new_tokens=64, fixed_length=True
    )
    generation = Adaptive(models, "stop-below", Withdrawing, tokenizer).generate(asked)
    assert decisions(models, asked, generation, K)["decisions_contradicted"] > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_records_count_what_was_drafted(policy: str) -> None:
    generation = Adaptive(tiny(), policy).generate(request(1, NUCLEUS))
    assert generation.loops is not None
    assert generation.proposed is not None
    assert generation.trace is not None
    for loop, ids in zip(generation.loops, generation.proposed, strict=True):
        assert loop.drafted == len(ids)
        assert loop.tested == min(loop.accepted + 1, loop.drafted)
        assert 0 <= loop.beta_sum <= loop.tested + 1e-6
        assert loop.emitted + loop.truncated == loop.accepted + 1


@pytest.mark.parametrize("policy", POLICIES)
def test_the_trace_shows_the_numbers_that_decided(policy: str) -> None:
    """u is below target/draft exactly where a token stood; behind a draft that stood whole comes a bonus."""
    asked = request(1, NUCLEUS)
    generation = Adaptive(tiny(), policy).generate(asked)
    assert generation.proposed is not None
    bonus = 0
    for token in generation.trace or []:
        if token.fate in ("accepted", "rejected"):
            assert token.draft_prob is not None
            assert (token.u < token.target_prob / token.draft_prob) == (token.fate == "accepted")
        bonus += token.fate == "bonus"
    complete = [
        loop.accepted == len(ids)
        for loop, ids in zip(generation.loops or [], generation.proposed, strict=True)
        if not loop.truncated
    ]
    assert bonus == sum(complete)
