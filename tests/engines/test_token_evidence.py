"""The evidence of each token against a computation that shares nothing with the one under test."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from support.tiny_models import TOKENS, make_pair
from torch import Tensor

from spsbench.base.records import UNRANKED, SamplingParams, TokenEvidence
from spsbench.engines.rescore import teacher_force, token_evidence
from spsbench.law import evidence
from spsbench.models.causal_lm import CausalLM
from spsbench.models.torch_lm import TorchLM

NUCLEUS = SamplingParams(temperature=0.7, top_p=0.6)
SAMPLINGS = (SamplingParams(), NUCLEUS, SamplingParams(top_k=5), SamplingParams(greedy=True))
NAMES = TokenEvidence.__slots__
PROMPT = tuple(range(3, 15))
# Some that the draft finds likely and some that it does not.
TEXT = tuple(torch.randint(TOKENS, (24,), generator=torch.Generator().manual_seed(1)).tolist())


@cache
def models(architecture: str) -> tuple[CausalLM, CausalLM]:
    target, draft = make_pair(architecture, late=0.5)
    return TorchLM(target.double()), TorchLM(draft.double())


def rows(model: CausalLM, text: Sequence[int]) -> list[list[float]]:
    """Logits at each position of the text, one forward a position."""
    found = []
    for i in range(len(text)):
        ids = torch.tensor([[*PROMPT, *text[:i]]])
        with torch.inference_mode():
            found.append(model.model(input_ids=ids, use_cache=False).logits[0, -1, :].tolist())
    return found


def law(logits: list[float], sampling: SamplingParams) -> list[float]:
    """The warped row, in Python's own arithmetic."""
    if sampling.greedy:
        best = logits.index(max(logits))
        return [float(i == best) for i in range(len(logits))]
    scaled = [logit / sampling.temperature for logit in logits]
    if sampling.top_k:
        edge = sorted(scaled, reverse=True)[sampling.top_k - 1]
        scaled = [logit if logit >= edge else -math.inf for logit in scaled]
    masses = [math.exp(logit - max(scaled)) for logit in scaled]
    whole = math.fsum(masses)
    probs = [mass / whole for mass in masses]
    if sampling.top_p < 1:
        so_far, edge = 0.0, 0.0
        for prob in sorted(probs, reverse=True):
            so_far, edge = so_far + prob, prob
            if so_far >= sampling.top_p:
                break
        probs = [prob if prob >= edge else 0.0 for prob in probs]
    return [prob / math.fsum(probs) for prob in probs]


def log(prob: float) -> float:
    return math.log(prob) if prob else -math.inf


def by_hand(target: CausalLM, draft: CausalLM, text: Sequence[int], sampling: SamplingParams) -> Any:
    q = [law(row, sampling) for row in rows(target, text)]
    raw = rows(draft, text)
    p = [law(row, sampling) for row in raw]
    order = [sorted(range(len(row)), key=lambda i, row=row: (-row[i], i)) for row in raw]  # type: ignore[misc]
    return {
        "log_target": [log(row[x]) for row, x in zip(q, text, strict=True)],
        "log_draft": [log(row[x]) for row, x in zip(p, text, strict=True)],
        "draft_rank": [row.index(x) for row, x in zip(order, text, strict=True)],
        "draft_max": [max(row) for row in p],
        "draft_entropy": [-math.fsum(prob * math.log(prob) for prob in row if prob) for row in p],
    }


def measured(
    target: CausalLM, draft: CausalLM | None, text: Sequence[int], sampling: SamplingParams
) -> TokenEvidence:
    reading = teacher_force(target, draft, PROMPT, text, sampling)
    return token_evidence(reading.tokens, reading.q, reading.p, reading.draft_logits)


def likely(model: CausalLM, sampling: SamplingParams) -> tuple[int, ...]:
    """A text that the model may write, the middle of each row's support."""
    text: list[int] = []
    for _ in range(12):
        row = law(rows(model, [*text, 0])[-1], sampling)
        support = sorted((i for i, prob in enumerate(row) if prob), key=lambda i, row=row: -row[i])  # type: ignore[misc]
        text.append(support[len(support) // 2])
    return tuple(text)


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_values_are_those_of_a_computation_by_hand(architecture: str, sampling: SamplingParams) -> None:
    target, draft = models(architecture)
    for text in (TEXT, likely(draft, sampling), likely(target, sampling)):
        found, due = measured(target, draft, text, sampling), by_hand(target, draft, text, sampling)
        for name in NAMES:
            assert list(getattr(found, name)) == pytest.approx(due[name], rel=1e-5, abs=1e-6), name


def test_the_computation_by_hand_tells_other_rows() -> None:
    """Without this the test above might compare what is alike everywhere."""
    target, draft = models("llama")
    due = by_hand(target, draft, TEXT, NUCLEUS)
    swapped = measured(draft, target, TEXT, NUCLEUS)
    colder = measured(target, draft, TEXT, SamplingParams(temperature=0.6, top_p=0.6))
    for name in ("log_draft", "draft_rank", "draft_max", "draft_entropy"):
        assert list(getattr(swapped, name)) != pytest.approx(due[name], rel=1e-5, abs=1e-6), name
    assert list(colder.draft_max) != pytest.approx(due["draft_max"], rel=1e-5, abs=1e-6)


def test_a_token_outside_of_the_nucleus_has_no_probability_and_a_rank() -> None:
    target, draft = models("llama")
    found = measured(target, draft, TEXT, NUCLEUS)
    outside = [i for i, value in enumerate(found.log_draft) if value == -math.inf]
    assert outside
    assert len(outside) < len(TEXT) or min(found.draft_rank) > 0
    assert all(found.draft_rank[i] > 0 for i in outside)
    assert not any(math.isnan(value) for value in found.log_draft)


def test_greedy_rows_are_certain_and_ranks_are_not() -> None:
    target, draft = models("llama")
    greedy = SamplingParams(greedy=True)
    own = likely(target, greedy)
    found = measured(target, draft, (*own, *TEXT), greedy)
    assert set(found.log_target[: len(own)]) == {0.0}
    assert set(found.draft_max) == {1.0}
    assert set(found.draft_entropy) == {0.0}
    assert [value == 0.0 for value in found.log_draft] == [rank == 0 for rank in found.draft_rank]
    assert len(set(found.draft_rank)) > 1


def test_the_draft_alone_is_its_own_target() -> None:
    _, draft = models("llama")
    found = measured(draft, draft, TEXT, NUCLEUS)
    assert found.log_target == found.log_draft


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = models("llama")
    whole = measured(target, draft, TEXT, NUCLEUS)
    for elements in (1, 3 * TOKENS, 7 * TOKENS + 1):
        monkeypatch.setattr(evidence, "CHUNK_ELEMENTS", elements)
        assert measured(target, draft, TEXT, NUCLEUS) == whole


def test_without_a_draft_model_only_the_target_speaks() -> None:
    target, draft = models("llama")
    found = measured(target, None, TEXT, NUCLEUS)
    assert found.log_target == measured(target, draft, TEXT, NUCLEUS).log_target
    assert found.draft_rank == array("i", [UNRANKED] * len(TEXT))
    for name in ("log_draft", "draft_max", "draft_entropy"):
        values = getattr(found, name)
        assert len(values) == len(TEXT)
        assert all(math.isnan(value) for value in values), name


def test_of_equal_tokens_the_smaller_id_comes_first() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0, 2.0]]).expand(5, 5)
    p = logits.softmax(-1)
    found = token_evidence(torch.arange(5), p, p, logits)
    assert list(found.draft_rank) == [3, 0, 1, 4, 2]


def test_a_row_of_nothing_is_not_known() -> None:
    logits: Tensor = torch.zeros(2, 4)
    logits[0, 3] = float("nan")
    p = logits.softmax(-1)
    found = token_evidence(torch.tensor([1, 1]), p, p, logits)
    assert list(found.draft_rank) == [UNRANKED, 1]
    for name in ("log_target", "log_draft", "draft_max", "draft_entropy"):
        assert [math.isnan(value) for value in getattr(found, name)] == [True, False], name


def test_no_tokens_have_no_evidence() -> None:
    nothing = token_evidence(torch.empty(0, dtype=torch.long), torch.empty(0, 4), None, None)
    assert len(nothing) == 0
    rows = torch.empty(0, 4)
    assert len(token_evidence(torch.empty(0, dtype=torch.long), rows, rows, rows).draft_rank) == 0
