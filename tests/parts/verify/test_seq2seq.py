"""The tests of the sampler on an encoder-decoder: the real one passes, wrong ones do not."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from support.tiny_models import make_seq2seq

from spsbench.base.records import SamplingParams
from spsbench.models.seq2seq_lm import Seq2SeqLM
from spsbench.models.tokenizer import Border
from spsbench.parts.verify import analytic, parts
from spsbench.parts.verify.effort import Effort, Sizes
from spsbench.parts.verify.subject import SamplerUnderTest
from spsbench.parts.verify.verification import findings
from spsbench.testing import Letters

VOCAB, START, END = 24, 23, 22
BORDER = Border((END,), (START,))
TABLES: dict[str, Sizes] = {"tables": ((3, 2),), "wide_tables": ((4, 2),)}
EFFORT = Effort(draws=250, end_to_end=30, contexts=1, prompts=2, outputs=2, **TABLES)
PROMPTS = [BORDER.opened([*range(first, first + 8), END]) for first in range(4)]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less is looked at than in a verification: what is caught by less is caught by more."""
    monkeypatch.setattr(analytic, "TOKENS", 16)
    monkeypatch.setattr(parts, "LONG", parts.LONG // 4)


@pytest.fixture(scope="module")
def subject() -> SamplerUnderTest:
    """A random T5, and a draft that is its first decoder layer."""
    sizes = {"vocab_size": VOCAB, "eos_token_id": END, "pad_token_id": START, "decoder_start_token_id": START}
    target = make_seq2seq("t5", seed=5, **sizes, num_decoder_layers=2, initializer_factor=2.0)
    draft = copy.deepcopy(target)
    draft.decoder.block = draft.decoder.block[:1]
    models = (Seq2SeqLM(model, BORDER) for model in (target, draft))
    return SamplerUnderTest(*models, SamplingParams(temperature=2.0), 2, torch.device("cpu"), seed=3)


@pytest.mark.thorough
@pytest.mark.parametrize("greedy", [False, True], ids=["sampled", "greedy"])
def test_the_real_sampler_passes(subject: SamplerUnderTest, greedy: bool) -> None:
    own = replace(subject, sampling=SamplingParams(greedy=True)) if greedy else subject
    found = list(findings(own, PROMPTS, Letters("x" * VOCAB), EFFORT))
    assert [f.test for f in found if not f.passed] == []
    assert [f.test for f in found if f.unjudged] == []


@pytest.mark.thorough_but("stale-cache")
@pytest.mark.parametrize("control", ["no-residual", "stale-cache", "wrong-position", "row-off-by-one"])
def test_a_planted_sampler_is_found(subject: SamplerUnderTest, control: str) -> None:
    found = findings(replace(subject, control=control), PROMPTS, Letters("x" * VOCAB), EFFORT)
    assert any(not finding.passed for finding in found)
