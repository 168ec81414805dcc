"""Speculation against plain texts of kernels that round: a Markov target whose logits the engine rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest
import torch
from torch import Tensor

from spsbench.base.records import SamplingParams
from spsbench.models.causal_lm import CausalLM
from spsbench.models.torch_lm import TorchLM
from spsbench.parts.audit.messages.evidence import PairsDiffer
from spsbench.parts.audit.rounding import (
    TOLERANCE,
    Models,
    Scored,
    _in_8_bits,
    alarms,
    compared,
    expected,
    log10_e,
    pairs,
    scored,
)
from spsbench.runner.foreign_texts import Foreign, reading_of
from spsbench.store.summary_types import RoundingFacts

VOCABULARY, LENGTH = 12, 12


@dataclass
class Table:
    """Logits by the token before."""

    rows: Tensor
    dtype = torch.float32
    device = torch.device("cpu")
    vocab_size = VOCABULARY

    def score_uncached(self, ids: Tensor, last: int) -> Tensor:
        return self.rows[ids][-last:]


def _models(generator: torch.Generator) -> tuple[Tensor, Tensor, tuple[CausalLM, CausalLM]]:
    target, draft = (1.5 * torch.randn(VOCABULARY, VOCABULARY, generator=generator) for _ in range(2))
    return target, draft, (cast(CausalLM, Table(target)), cast(CausalLM, Table(draft)))


def _texts(rows: Tensor, count: int, generator: torch.Generator, *, greedy: bool = False) -> list[Foreign]:
    """So many texts, each prompt of one token, from rows of probabilities."""
    found = []
    for line in range(1, count + 1):
        prompt = (line % 10,)
        ids = [*prompt]
        for _ in range(LENGTH):
            row = rows[ids[-1]]
            ids.append(int(row.argmax() if greedy else torch.multinomial(row, 1, generator=generator)))
        found.append(Foreign(line, prompt, tuple(ids[1:]), SamplingParams(greedy=greedy), False))
    return found


def _scored(texts: list[Foreign], models: Models) -> list[tuple[Foreign, Scored]]:
    return [(text, scored(reading_of(text, models))) for text in texts]


def _compared(seed: int, leak: float, rounding: float = 0.1) -> RoundingFacts:
    generator = torch.Generator().manual_seed(seed)
    target, draft, models = _models(generator)
    engine = (target + rounding * torch.randn(target.shape, generator=generator)).softmax(-1)
    leaking = (1 - leak) * engine + leak * draft.softmax(-1)
    plain, drafted = (_texts(rows, 80, generator) for rows in (engine, leaking))
    return compared(_scored(plain, models), _scored(drafted, models), greedy=False)


@pytest.mark.parametrize("seed", range(6))
def test_rounding_alone_is_quiet_and_a_leak_is_found(seed: int) -> None:
    """With logits that are off by 0.1, far more than an audit to the letter grants."""
    right, wrong = _compared(seed, leak=0), _compared(seed, leak=0.5)
    assert right["pairs"] == wrong["pairs"] == 80
    assert alarms(right, None, 960, is_plain=False) == []
    (reason,) = alarms(wrong, None, 960, is_plain=False)
    assert isinstance(reason, PairsDiffer)


def test_the_bets_are_fair() -> None:
    """Over all signs of four differences the mean e-value is 1."""
    sizes = (1.0, 0.2, 5.0, 0.7)
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 4).tolist()
    found = [10 ** log10_e([[s * size] for s, size in zip(row, sizes, strict=True)]) for row in signs]
    assert sum(found) / len(found) == pytest.approx(1, rel=1e-5)
    assert log10_e([[1.0]] * 30) > 3


def test_no_pair_has_one_seed() -> None:
    """Draws of one seed may be coupled."""
    rows = torch.full((VOCABULARY, VOCABULARY), 1 / VOCABULARY)
    texts = _texts(rows, 40, torch.Generator().manual_seed(0))
    found = list(pairs(texts, texts))
    assert len(found) == len({one for one, _ in found}) >= 36
    assert all(texts[one].line != texts[other].line for one, other in found)
    assert all(texts[one].prompt == texts[other].prompt for one, other in found)


@pytest.mark.parametrize(("far", "explained"), [(0.01, True), (2.0, False)])
def test_first_differences_of_greedy_texts(far: float, explained: bool) -> None:
    """Plain texts stray by 0.02: a token 0.01 below the best is rounding, one 2 below is not."""
    target = torch.zeros(VOCABULARY, VOCABULARY)
    target[:, 1], target[:, 2] = 5.0, 5.0 - far
    target[0, 3] = 5.02  # and the plain text takes 1 there
    models = (cast(CausalLM, Table(target)), None)
    sampling = SamplingParams(greedy=True)
    plain, other = ([Foreign(1, (0,), tokens, sampling, False)] for tokens in ((1, 1, 1, 1), (1, 1, 2, 1)))
    facts = compared(_scored(plain, models), _scored(other, models), greedy=True)
    (difference,) = facts["differences"]
    assert (difference["place"], difference["explained"]) == (2, explained)
    assert bool(alarms(facts, None, 4, is_plain=False)) is not explained


def test_plain_texts_of_other_weights_raise_an_alarm() -> None:
    """A tenth of the tokens outside the nucleus is no rounding."""
    facts = _compared(0, leak=0)
    assert alarms(facts, None, 960, is_plain=True) == []
    facts["outside_share"] = 0.1
    assert alarms(facts, None, 960, is_plain=True)


def test_what_activations_in_8_bits_take_is_measured_and_granted(models: Models) -> None:
    """The control: without it the same distance from the dequantised weights is an alarm."""
    sampled, greedy = (
        [Foreign(1, (1, 2, 3), tuple(range(4, 28)), SamplingParams(greedy=taken), False)]
        for taken in (False, True)
    )
    target = cast(TorchLM, models[0])
    found, most = expected(sampled, target), expected(greedy, target)
    assert 0 < found.nats < 0.01
    assert most.stray_most < 0.1
    assert expected(sampled, target) == found, "the hooks are gone"
    facts = _compared(0, leak=0)
    facts["outside_share"] = TOLERANCE + found.nats
    assert alarms(facts, None, 960, is_plain=True)
    facts["expected"] = found.nats
    assert alarms(facts, None, 960, is_plain=True) == []


def test_a_matrix_takes_blocks_with_one_scale() -> None:
    given = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(1))
    (found,) = _in_8_bits(torch.nn.Linear(64, 1), (given,))
    step = given.reshape(2, 3, 2, 32).abs().amax(-1, keepdim=True) / 127
    assert found.shape == given.shape
    apart = (found - given).reshape(2, 3, 2, 32).abs()
    assert (apart <= 0.5001 * step).all()
    assert apart.max() > 0
