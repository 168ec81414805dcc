"""A tree of tokens over transformers' models, and the whole search against their ``generate()``."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from support.table_tree import searched
from support.tiny_beam_models import EOS, loaded, prompt_of
from support.tiny_models import config_of, make

from spsbench.base.errors import UsageError
from spsbench.base.records import BeamParams, Hypothesis
from spsbench.decode.beam import Node
from spsbench.models import beam_lm
from spsbench.models.beam_lm import BeamLM, require_exact_tree
from spsbench.models.live_tree import Branches, LiveTree
from spsbench.models.seq2seq_lm import Seq2SeqLM
from spsbench.models.torch_lm import TorchLM

KINDS = ("llama", "t5", "bart")
LENGTH = 14
ROUNDING = {"rel": 3e-6, "abs": 2e-5}
"""Of float32 over some layers and up to ``LENGTH`` log-probabilities."""


def generated(lm: TorchLM, params: BeamParams, length: int = LENGTH) -> list[tuple[tuple[int, ...], float]]:
    """Tokens and score of every hypothesis that transformers finds, best first."""
    prompt = prompt_of(lm)
    start = lm.border.start if isinstance(lm, Seq2SeqLM) else ()
    source = torch.tensor([prompt[: len(prompt) - len(start)]])
    found = lm.model.generate(
        source,
        attention_mask=torch.ones_like(source),
        num_beams=params.width,
        num_return_sequences=params.width,
        do_sample=False,
        max_new_tokens=length,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        return_dict_in_generate=True,
        output_scores=True,
    )
    before = len(start) or len(prompt)
    tokens = (_ended(row[before:]) for row in found.sequences.tolist())
    return list(zip(tokens, found.sequences_scores.tolist(), strict=True))


def _ended(row: list[int]) -> tuple[int, ...]:
    return tuple(row[: row.index(EOS) + 1] if EOS in row else row)


def agrees(found: list[Hypothesis], expected: list[tuple[tuple[int, ...], float]]) -> bool:
    same = [one.tokens for one in found] == [tokens for tokens, _ in expected]
    scores = zip(found, expected, strict=False)
    return same and all(one.score == pytest.approx(score, **ROUNDING) for one, (_, score) in scores)


CASES: tuple[tuple[float, Any], ...] = (
    (1.0, False),
    (0.0, "never"),
    (2.0, True),
    (1.5, "never"),
    (-0.5, False),
)


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_hypotheses_and_scores_are_those_of_generate(kind: str, seed: int) -> None:
    target, draft = loaded(kind, seed), loaded(kind, seed, noise=0.15)
    saved = 0
    for index, (penalty, early) in enumerate(CASES):
        width = (2, 4)[(index + seed) % 2]
        params = BeamParams(width, width + 2, penalty, early)
        plain, one_by_one = searched(BeamLM(target), params, LENGTH, prompt=prompt_of(target), eos=EOS)
        assert agrees(plain, generated(target, params)), (width, penalty, early)
        found, loops = searched(
            BeamLM(target), params, LENGTH, BeamLM(draft), 4, prompt=prompt_of(target), eos=EOS
        )
        assert [one.tokens for one in found] == [one.tokens for one in plain]
        for one, other in zip(found, plain, strict=True):
            assert one.score == pytest.approx(other.score, **ROUNDING)
        saved += len(one_by_one) - len(loops)
    assert saved > 0


def test_some_of_those_searches_end_with_eos_and_some_at_the_limit() -> None:
    reasons = set()
    for kind, seed in product(KINDS, range(2)):
        lm = loaded(kind, seed)
        found, _ = searched(BeamLM(lm), BeamParams(4, 4), LENGTH, prompt=prompt_of(lm), eos=EOS)
        reasons |= {one.reason for one in found}
    assert reasons == {"eos", "length"}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_gives_the_logits_of_its_branches_in_line(kind: str, attention: str) -> None:
    require_exact_tree(BeamLM(loaded(kind, 3, attn_implementation=attention)))


@pytest.mark.parametrize("architecture", ["gpt2", "opt", "gpt_neox", "phi", "gemma3"])
def test_other_architectures_take_a_tree(architecture: str) -> None:
    require_exact_tree(BeamLM(TorchLM(make(config_of(architecture)))))


def test_one_that_takes_no_tree_is_refused() -> None:
    """ALiBi reads positions from a mask over columns."""
    with pytest.raises(UsageError, match="BloomForCausalLM cannot score a tree of tokens"):
        require_exact_tree(BeamLM(TorchLM(make(config_of("bloom")))))


@pytest.mark.parametrize("kind", KINDS)
def test_the_test_of_a_tree_sees_a_wrong_mask(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = LiveTree.last

    def all_seen(tree: LiveTree, n: int) -> Branches:
        return replace(right(tree, n), sees=np.ones_like(right(tree, n).sees))

    monkeypatch.setattr(LiveTree, "last", all_seen)
    with pytest.raises(UsageError, match="from those in line"):
        require_exact_tree(BeamLM(loaded(kind, 3)))


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_the_test_of_a_tree_sees_positions_of_the_cache(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for placed in ("_learned", "_relative"):
        monkeypatch.setattr(beam_lm, placed, lambda *args: nullcontext())
    with pytest.raises(UsageError, match="from those in line"):
        require_exact_tree(BeamLM(loaded(kind, 3)))


def test_the_stock_model_is_left_as_it_was() -> None:
    """T5's and BART's positions are replaced for the length of a forward only."""
    for kind in ("t5", "bart"):
        lm = loaded(kind, 0)
        before = generated(lm, BeamParams(2, 2))
        searched(BeamLM(lm), BeamParams(2, 2), LENGTH, prompt=prompt_of(lm), eos=EOS)
        assert generated(lm, BeamParams(2, 2)) == before


def test_a_node_without_its_ancestors_reads_them_too_and_rows_keep_their_order() -> None:
    lm = loaded("llama", 0)
    model = BeamLM(lm)
    model.begin(prompt_of(lm))
    root = Node(prompt_of(lm)[-1])
    deep, shallow = root.child(4).child(5).child(6), root.child(7)
    rows = model.score([deep, shallow])
    for row, node in zip(rows, (deep, shallow), strict=True):
        assert torch.allclose(row, model.in_line(prompt_of(lm), node.tokens()), atol=1e-5)
