"""A model's head computed over a few rows at a time gives the logits of its whole forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.tiny_models import ARCHITECTURES, MORE, SEQ2SEQ, TOKENS, config_of, make, make_seq2seq
from torch import nn

from benchmarks.tiny_types import tiny_config
from spsbench.models.body import body_of
from spsbench.models.causal_lm import CausalLM, built
from spsbench.models.seq2seq_lm import Seq2SeqLM
from spsbench.models.tokenizer import Border
from spsbench.models.torch_lm import TorchLM

LENGTH, LAST, ROWS = 50, 37, 8


def forwards(model: Any, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, list[int], int]:
    """Logits at once and by parts; rows that the head had at a time, and how often the body ran."""
    head = model.model.get_output_embeddings() or model.model.get_decoder().get_output_embeddings()
    body = body_of(model.model)
    sizes, runs = list[int](), list[int]()
    with torch.inference_mode():
        whole = model.score_uncached(tokens, last=LAST)
        hooks = [
            head.register_forward_pre_hook(lambda part, args: sizes.append(args[0].shape[1])),
            next(m for m in body.modules() if isinstance(m, nn.ModuleList))[0].register_forward_hook(
                lambda part, args, output: runs.append(1)
            ),
        ]
        parts = torch.cat(list(model.score_uncached_parts(tokens, LAST, ROWS)))
        for hook in hooks:
            hook.remove()
        assert torch.equal(model.score_uncached(tokens, last=LAST), whole), "the model is as it was"
    return whole, parts, sizes, len(runs)


def tokens(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(TOKENS, (length,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *MORE])
def test_parts_are_the_whole_and_the_body_runs_once(architecture: str) -> None:
    whole, parts, sizes, runs = forwards(TorchLM(make(config_of(architecture))), tokens())
    assert torch.allclose(parts, whole, rtol=0, atol=1e-5 * float(whole.abs().max()))
    assert (max(sizes), sum(sizes), runs) == (ROWS, LAST, 1)


@pytest.mark.parametrize("architecture", SEQ2SEQ)
def test_an_encoder_decoder_reads_its_source_once(architecture: str) -> None:
    model = make_seq2seq(architecture)
    border = Border((257,), (256,))
    lm = Seq2SeqLM(model, border, TOKENS)
    source = torch.cat([tokens(12).clamp(max=250), torch.tensor([257, 256])])
    runs = list[int]()
    hook = model.get_encoder().register_forward_hook(lambda *given: runs.append(1))
    whole, parts, sizes, layers = forwards(lm, torch.cat([source, tokens(LAST).clamp(max=250)]))
    hook.remove()
    assert torch.allclose(parts, whole, rtol=0, atol=1e-5 * float(whole.abs().max()))
    assert (max(sizes), sum(sizes), layers, len(runs)) == (ROWS, LAST, 1, 3)


def test_where_the_body_is_not_apart_the_whole_is_cut() -> None:
    model = make(config_of("llama"))
    model.get_decoder = lambda: torch.nn.Identity()  # nothing that the model runs
    lm = TorchLM(model)
    with torch.inference_mode():
        parts = list(lm.score_uncached_parts(tokens(), LAST, ROWS))
        assert torch.equal(torch.cat(parts), lm.score_uncached(tokens(), last=LAST))
    assert max(map(len, parts)) == ROWS


def test_two_readings_of_one_model_go_beside_each_other() -> None:
    """A target that is its own draft: the second forward begins while the first one's parts are taken."""
    lm = TorchLM(make(config_of("gemma2")))
    with torch.inference_mode():
        one, other = (lm.score_uncached_parts(tokens(length), LAST, ROWS) for length in (LENGTH, LENGTH + 9))
        pairs = list(zip(one, other, strict=True))
        for length, parts in zip((LENGTH, LENGTH + 9), zip(*pairs, strict=True), strict=True):
            expected = CausalLM.score_uncached_parts(lm, tokens(length), LAST, ROWS)
            assert torch.allclose(torch.cat(parts), torch.cat(list(expected)), atol=1e-4)


@pytest.mark.parametrize("architecture", ["llama4", "nemotron_h_omni"])
def test_a_language_model_within_is_no_body(architecture: str) -> None:
    """A whole language model, whose head would be within what runs once; Nemotron's tells of no head."""
    whole, parts, sizes, runs = forwards(
        TorchLM(built(tiny_config(architecture), torch.float32).eval()), tokens()
    )
    assert torch.allclose(parts, whole, rtol=0, atol=1e-5 * float(whole.abs().max()))
    assert (max(sizes), sum(sizes), runs) == (ROWS, LAST, 1)
