"""Leviathan's alpha over given texts, against sums by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import transformers
from support.tiny_models import save_seq2seq
from torch import Tensor

from spsbench.base.records import SamplingParams
from spsbench.config import ModelRef, PairConfig
from spsbench.models.pair import Pair, find_pair, load_pair
from spsbench.parts.paper.alphas import BIGRAM, UNIGRAM, draft_costs, overlaps
from spsbench.parts.whatif.replay.texts import TargetText

V = 4
TARGET = np.array([[0.1, 0.6, 0.2, 0.1], [0.2, 0.1, 0.6, 0.1], [0.7, 0.1, 0.1, 0.1], [0.25, 0.25, 0.3, 0.2]])
DRAFT = np.array([[0.2, 0.5, 0.2, 0.1], [0.1, 0.6, 0.2, 0.1], [0.4, 0.2, 0.2, 0.2], [0.4, 0.3, 0.2, 0.1]])
TEXTS = [TargetText("a", 0, (3, 0), (1, 2, 0, 1)), TargetText("b", 0, (1,), (1, 2, 2))]
ALL, GREEDY = SamplingParams(), SamplingParams(greedy=True)


class Chain:
    """A model whose rows depend on the last token alone."""

    device, dtype, vocab_size = torch.device("cpu"), torch.float64, V

    def __init__(self, rows: np.ndarray[Any, Any]) -> None:
        self._rows, self.calls = torch.tensor(rows).log(), 0

    def score_uncached(self, tokens: Tensor, last: int, prompt: int | None = None) -> Tensor:
        self.calls += 1
        return self._rows[tokens[-last:]]


def pair(target: Chain, draft: Chain) -> Pair:
    made = SimpleNamespace(target=target, draft=draft, device=target.device, is_one=target is draft)
    return cast(Pair, made)


def before(text: TargetText) -> list[int]:
    """The token before each position."""
    return [text.prompt[-1], *text.tokens[:-1]]


def by_name(sampling: SamplingParams) -> dict[str, Any]:
    target = Chain(TARGET)
    pairs = {"same": pair(target, target), "other": pair(target, Chain(DRAFT))}
    return {found.draft: found for found in overlaps(TEXTS, pairs, sampling)}


def test_a_models_alpha_is_the_mean_overlap_over_positions() -> None:
    found = by_name(ALL)["other"]
    sums = [sum(np.minimum(TARGET[t], DRAFT[t]).sum() for t in before(text)) for text in TEXTS]
    assert found.sums == pytest.approx(sums)
    assert found.positions.tolist() == [4, 3]
    assert found.alpha.estimate == pytest.approx(sum(sums) / 7)
    assert by_name(ALL)["same"].alpha.estimate == pytest.approx(1.0)


def test_at_temperature_0_alpha_is_the_share_of_equal_argmaxes() -> None:
    found = by_name(GREEDY)["other"]
    agree = [sum(TARGET[t].argmax() == DRAFT[t].argmax() for t in before(text)) for text in TEXTS]
    assert found.sums.tolist() == agree


def test_a_unigram_is_counted_on_the_texts_of_other_prompts_and_smoothed() -> None:
    counts = {"a": [0, 1, 2, 0], "b": [1, 2, 1, 0]}  # of the other prompt's text
    expected = []
    for text in TEXTS:
        own = np.array(counts[text.name], dtype=float)
        kinds = np.count_nonzero(own)
        row = (own + kinds / V) / (own.sum() + kinds)
        expected.append(sum(np.minimum(TARGET[t], row).sum() for t in before(text)))
    assert by_name(ALL)[UNIGRAM].sums == pytest.approx(expected)
    greedy = [sum(TARGET[t].argmax() == np.argmax(counts[text.name]) for t in before(text)) for text in TEXTS]
    assert by_name(GREEDY)[UNIGRAM].sums.tolist() == greedy


def test_a_bigram_knows_what_followed_in_the_texts_of_other_prompts() -> None:
    # Of b: 1 1, 1 2, 2 2.
    unigram = np.array([0, 2, 2, 0.0])  # its text begins with the prompt's last token
    base = (unigram + 2 / V) / (4 + 2)
    expected = 0.0
    for t in before(TEXTS[0]):
        seen = {1: np.array([0, 1, 1, 0.0]), 2: np.array([0, 0, 1.0, 0])}.get(t, np.zeros(V))
        kinds = np.count_nonzero(seen)
        row = (seen + kinds * base) / (seen.sum() + kinds) if kinds else base
        expected += np.minimum(TARGET[t], row).sum()
    assert by_name(ALL)[BIGRAM].sums[0] == pytest.approx(expected)


def test_texts_of_one_prompt_give_no_ngrams_and_the_target_is_read_once() -> None:
    target, draft = Chain(TARGET), Chain(DRAFT)
    pairs = {"one": pair(target, draft), "two": pair(target, draft)}
    found = overlaps(TEXTS[:1], pairs, ALL)
    assert [one.draft for one in found] == ["one", "two"]
    assert (target.calls, draft.calls) == (1, 2)
    assert found[0].alpha.low is None  # no interval over one prompt


@pytest.mark.thorough
def test_an_encoder_decoder_is_read_behind_its_source(tmp_path: Path) -> None:
    """Against transformers' own forward of source and output; with what its drafts take."""
    folders = [save_seq2seq("t5", tmp_path / name, seed) for name, seed in (("target", 0), ("draft", 1))]
    refs = [ModelRef(id=str(folder)) for folder in folders]
    source = find_pair(PairConfig(name="tiny", target=refs[0], draft=refs[1]))
    loaded = load_pair(source, ("float32", "float32"), torch.device("cpu"), "torch", threads=1)
    prompt = source.tokenizer.encode("a cat sat", special=True)
    texts = [
        TargetText(name, 0, tuple(prompt), tokens) for name, tokens in (("a", (65, 66, 67)), ("b", (70,)))
    ]
    found = {one.draft: one for one in overlaps(texts, {"small": loaded}, ALL)}
    expected = []
    for text in texts:
        rows = []
        for folder in folders:
            model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
            outputs = [prompt[-1], *text.tokens[:-1]]
            with torch.inference_mode():
                given = {"input_ids": [prompt[:-1]], "decoder_input_ids": [outputs]}
                logits = model(**{name: torch.tensor(ids) for name, ids in given.items()}).logits[0]
            rows.append(logits.softmax(-1))
        expected.append(float(torch.minimum(*rows).sum()))
    assert found["small"].sums == pytest.approx(expected, rel=1e-3)
    costs = draft_costs(texts, {"small": loaded}, ALL, 0, rounds=1)
    assert costs["small"] > 0
