"""What rounding does to a model is measured, and no fault is taken for rounding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch
from support.planted import fault
from support.rederived import Models
from support.tiny_models import BOS, EOS, TOKENS, make_pair, make_seq2seq

from benchmarks.architectures import whole_model
from benchmarks.tiny_types import tiny_config
from spsbench.base.records import Generation, Loop, Request, SamplingParams
from spsbench.decode.clock import FakeClock
from spsbench.engines import rows_held
from spsbench.engines.derivation import Derivation
from spsbench.engines.local import EagerEngine
from spsbench.engines.rescore import teacher_force
from spsbench.law.evidence import Sums, added
from spsbench.models.choices import Choices
from spsbench.models.seq2seq_lm import Seq2SeqLM
from spsbench.models.tokenizer import Border
from spsbench.models.torch_lm import TorchLM
from spsbench.models.witness import ReadBlock, even_blocks
from spsbench.stats.losslessness import rows_apart, wrong_rows
from spsbench.testing import Letters

K, NEW = 4, 24
CPU = torch.device("cpu")
LETTERS = Letters("".join(chr(0x100 + i) for i in range(TOKENS)))
PLAIN, NUCLEUS = SamplingParams(), SamplingParams(temperature=0.8, top_p=0.9)


@cache
def pair(architecture: str = "mixtral", dtype: torch.dtype = torch.bfloat16, scale: float = 4.0) -> Models:
    """A pair whose matrices are so large that rounding turns an expert, or exceeds a bound."""
    models = make_pair(architecture, late=0.5)
    with torch.no_grad():
        for model in models:
            for name, weights in model.named_parameters():
                if weights.ndim > 1 and "embed" not in name and "wte" not in name:
                    weights.mul_(scale)
    return TorchLM(models[0].to(dtype)), TorchLM(models[1].to(dtype))


def asked(index: int, sampling: SamplingParams = PLAIN, new: int = NEW) -> Request:
    prompt = torch.randint(250, (12,), generator=torch.Generator().manual_seed(index)).tolist()
    return Request(tuple(prompt), new, (), sampling, seed=index, fixed_length=True)


def written(models: Models, request: Request, k: int = K, name: str | None = None) -> Generation:
    engine = EagerEngine(
        models[0], models[1] if k else None, k, LETTERS, CPU, FakeClock(0.001), derivation=Derivation(k=k)
    )
    with fault(name, models[0]) if name else nullcontext():
        return engine.generate(request)


@contextmanager
def turned_in_blocks(model: TorchLM, by: float = 3.0) -> Iterator[None]:
    """Have a model behind a cache choose the other expert where two are closer than so much.

    That is what rounding does to a router, for every text: forwards in blocks differ, all of them alike.
    """
    gate = next(part for name, part in model.model.named_modules() if type(part).__name__.endswith("Router"))
    right = gate.forward

    def forward(hidden: torch.Tensor, *args: Any) -> Any:
        logits, weights, chosen = right(hidden, *args)
        if hidden.reshape(-1, hidden.shape[-1]).shape[0] <= K + 1:
            scores = logits.sort(-1, descending=True)
            close = scores.values[:, 1] - scores.values[:, 2] < by
            chosen = chosen.clone()
            chosen[close, 1] = scores.indices[close, 2].to(chosen.dtype)
        return logits, weights, chosen

    with patch.object(gate, "forward", forward):
        yield


def target_sums(models: Models, request: Request, generation: Generation, k: int = K) -> Sums:
    reading = teacher_force(*models, request.prompt_ids, generation.tokens, request.sampling)
    kept = generation.kept_rows
    assert kept is not None
    return rows_held.rows_held_against(
        "target", models[0], kept.target, generation, reading, request.prompt_ids, k, request.seed
    )


def alarms(sums: Sums) -> list[str]:
    rows = rows_apart(sums, "target")
    assert rows is not None
    return wrong_rows("target", rows)


def test_blocks_of_a_loop_end_with_what_was_rejected() -> None:
    counts = [(1, 2), (4, 5), (3, 2)]  # the last one ends with the text
    loops = [Loop(4, a, emitted, 4, 1.0, 0, None, None, None, None, 0.0) for a, emitted in counts]
    drafts = [[7, 8, 9, 6], [1, 2, 3, 4], [5, 5, 5, 5]]
    generation = Generation([0] * 9, "", loops, 0.0, 0.0, "length", proposed=drafts)
    read = [ReadBlock(2, (8, 9, 6)), ReadBlock(5), ReadBlock(2, (5, 5, 5))]
    assert rows_held.target_blocks(generation) == read
    # After a rejection the draft has one token to read, after a full acceptance two.
    one = ReadBlock(1)
    assert rows_held.draft_blocks(generation) == [*[one] * 6, ReadBlock(2), one]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("k", [0, K])
def test_the_loops_own_blocks_give_their_rows_bit_for_bit(dtype: torch.dtype, k: int) -> None:
    models, request = pair(dtype=dtype), asked(1)
    generation = written(models, request, k)
    with torch.inference_mode():
        ids = torch.tensor([*request.prompt_ids, *generation.tokens])[:-1]
        blocks = models[0].score_in_blocks(
            ids, len(request.prompt_ids) - 1, rows_held.target_blocks(generation)
        )
        assert blocks is not None
        assert generation.kept_rows is not None
        rows = torch.cat(list(blocks)).float().softmax(-1)
    own = torch.cat([row.dense() for row in generation.kept_rows.target if row is not None])
    assert torch.allclose(rows, own / own.sum(-1, keepdim=True), atol=1e-6, rtol=0)


def test_turned_experts_raise_no_alarm_and_are_counted() -> None:
    models = pair()
    total, blind = Sums(), Sums()
    for index in range(2):
        with turned_in_blocks(models[0]):
            sums = target_sums(models, asked(index), written(models, asked(index)))
        total = added(total, sums)
        blind = added(blind, {n: v for n, v in sums.items() if not n.endswith("_explained")} | _unmeasured())
    rows = rows_apart(total, "target")
    assert rows is not None
    assert rows["experts"] is not None
    assert alarms(total) == []
    # The negative control: rounding as it is where nothing turns, and no second reading.
    assert alarms(blind) != []


def _unmeasured() -> Sums:
    return {"decisions_rows_target_blocks": 0.0}


@pytest.mark.thorough_but(1)
@pytest.mark.parametrize("name", ["stale-cache", "wrong-position"])
def test_no_fault_is_taken_for_rounding_where_experts_turn(name: str) -> None:
    models, total = pair(), Sums()
    for index in range(2):
        with turned_in_blocks(models[0], by=0.05):
            generation = written(models, asked(index, new=48), name=name)
            total = added(total, target_sums(models, asked(index), generation))
    assert total["decisions_rows_target_again"] > 0
    assert alarms(total) != []


@pytest.mark.thorough_but(2)
@pytest.mark.parametrize("name", [None, "stale-cache", "wrong-position"])
def test_a_bound_of_float32_too_narrow_for_a_model_is_replaced_by_what_was_measured(
    name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of ill-conditioned weights: rounding beyond the bound, in a right sampler and in a faulty one."""
    monkeypatch.setattr(rows_held, "rounding_slack", lambda dtype: 1e-9)
    models, total = pair("llama", torch.float32, 8.0), Sums()
    for index in range(2):
        total = added(total, target_sums(models, asked(index), written(models, asked(index), name=name)))
    if name is None:
        assert total["decisions_rows_target_cleared"] > 0, "the bound was exceeded"
    assert bool(total["decisions_rows_target_beyond"]) == (name is not None)


def test_a_reading_that_the_self_test_would_refuse_explains_nothing() -> None:
    """A forward behind a cache that is not the model's own, with no expert turned, is no rounding."""
    models, request = pair("llama", torch.float32, 1.0), asked(0)
    right = models[0].model.forward

    def forward(*args: Any, **given: Any) -> Any:
        output = right(*args, **given)
        if given.get("past_key_values") is not None:
            output.logits = output.logits.roll(1, -1)
        return output

    with patch.object(models[0].model, "forward", forward):
        sums = target_sums(models, request, written(models, request))
    assert sums["decisions_rows_target_again"] == NEW
    assert sums["decisions_rows_target_beyond"] > NEW / 2


def test_an_impossible_token_is_looked_up_in_the_second_reading() -> None:
    models, request = pair(), asked(3, NUCLEUS)
    generation = written(models, request)
    reading = teacher_force(*models, request.prompt_ids, generation.tokens, NUCLEUS)
    every = replace(reading, impossible=torch.ones(NEW, dtype=torch.bool))
    kept = generation.kept_rows
    assert kept is not None

    def possible(tokens: list[int]) -> float:
        text = replace(generation, tokens=tokens)
        given = (request.prompt_ids, K, request.seed)
        sums = rows_held.rows_held_against("target", models[0], kept.target, text, every, *given)
        scores = {"impossible": float(NEW), "edge": 0.0}
        left = rows_held.with_explained(scores, sums)
        assert left["impossible"] + left["edge"] == NEW
        return left["edge"]

    assert possible(generation.tokens) == NEW
    assert possible([*generation.tokens[:-1], int(reading.logits[-1].argmin())]) == NEW - 1


def test_a_token_that_no_block_explains_is_looked_up_in_the_text_before_it_alone() -> None:
    """The forward behind a cache takes no part, however wrong it is; many such tokens are no rounding."""
    models, request = pair(), asked(3, NUCLEUS)
    generation = written(models, request)
    reading = teacher_force(*models, request.prompt_ids, generation.tokens, NUCLEUS)
    right = models[0].model.forward

    def forward(*args: Any, **given: Any) -> Any:
        output = right(*args, **given)
        if given.get("past_key_values") is not None:
            output.logits = -output.logits
        return output

    def explained(tokens: list[int], count: int) -> float:
        impossible = torch.arange(NEW) >= NEW - count
        text = replace(generation, tokens=tokens)
        assert text.kept_rows is not None
        given = (text, replace(reading, impossible=impossible), request.prompt_ids, K, request.seed)
        with patch.object(models[0].model, "forward", forward):
            sums = rows_held.rows_held_against("target", models[0], text.kept_rows.target, *given)
        return sums["decisions_rows_target_possible"]

    tokens = generation.tokens
    assert explained(tokens, 2) == 2
    assert explained([*tokens[:-1], int(reading.logits[-1].argmin())], 2) == 1
    assert NEW > rows_held._ALONE
    assert explained(tokens, rows_held._ALONE + 1) == 0


def test_choices_compare_sets_and_know_an_index_by_its_keys() -> None:
    def read(blocks: list[int], experts: torch.Tensor, keys: torch.Tensor) -> Choices:
        choices, start = Choices(), 0
        for n in blocks:
            with choices:
                assert experts.max() <= 1  # no choice of a token's
                torch.topk(experts[start : start + n], 2, dim=-1, sorted=False)
                keys[start : start + n, : start + n].topk(min(3, start + n), dim=-1)
            choices.forward_ended(n)
            start += n
        return choices

    generator = torch.Generator().manual_seed(0)
    experts, keys = torch.rand(8, 4, generator=generator), torch.rand(8, 8, generator=generator)
    keys = keys.masked_fill(torch.ones(8, 8).triu(1).bool(), float("-inf"))
    whole, parts = read([8], experts, keys), read([4, 3, 1], experts, keys)
    same = whole.turned(parts)
    assert same.experts is not None
    assert same.keys is not None
    assert not (same.experts | same.keys).any()
    experts[5] = torch.tensor([0.0, 0.1, 0.8, 0.9]) if experts[5].topk(2).indices.min() < 2 else -experts[5]
    other = whole.turned(read([4, 3, 1], experts, keys))
    assert other.experts is not None
    assert other.experts.nonzero().flatten().tolist() == [5]
    assert Choices().turned(Choices()).either is None


@pytest.mark.parametrize("kind", ["gpt_oss", "mimo_v2_flash", "phimoe"])
def test_the_maximum_that_attention_subtracts_chooses_nothing(kind: str) -> None:
    """Of attention with sinks; PhiMoE's maxima choose experts."""
    torch.manual_seed(0)
    model = whole_model(tiny_config(kind)).eval()
    ids, read = torch.arange(3, 11)[None], list[Choices]()
    for blocks in ([8], [4, 4]):
        choices, cache = Choices(), None
        for block in ids.split(blocks, dim=1):
            with torch.inference_mode(), choices:
                cache = model(block, past_key_values=cache, use_cache=True).past_key_values
            choices.forward_ended(block.shape[1])
        read.append(choices)
    turned = read[0].turned(read[1])
    assert turned.keys is None
    assert turned.experts is not None
    assert not turned.experts.any()


def test_a_text_of_an_encoder_decoder_is_read_in_the_blocks_of_its_loops() -> None:
    model = Seq2SeqLM(make_seq2seq("bart"), Border((EOS,), (EOS, BOS)))
    source = [5, 6, 7, 8, EOS]
    text = torch.tensor([*source, EOS, BOS, *range(20, 32)])
    with torch.inference_mode():
        whole = model.score_uncached(text)
        for blocks in (even_blocks(12, 5), [ReadBlock(3, (9, 9)), ReadBlock(5), ReadBlock(4, (1,))]):
            rows = model.score_in_blocks(text, len(source) + 2, blocks)
            assert rows is not None
            assert torch.allclose(torch.cat(list(rows)), whole[-12:], atol=1e-4)


def test_even_blocks_have_a_rest() -> None:
    assert even_blocks(7, 3) == [ReadBlock(3), ReadBlock(3), ReadBlock(1)]
