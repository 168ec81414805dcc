"""Encoder-decoders: the same loops, the same text as transformers' own, and the exact law."""

from __future__ import annotations

from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.tiny_models import (
    BOS,
    EOS,
    SEQ2SEQ,
    TOKENS,
    config_of,
    make,
    make_seq2seq,
    pair_of,
    save,
    save_seq2seq,
)
from transformers import DynamicCache, EncoderDecoderCache

from spsbench.base.errors import UsageError
from spsbench.base.records import SamplingParams
from spsbench.decode.algorithms import start
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.decode.rejection import accept_draft
from spsbench.decode.sampling import UniformStream
from spsbench.drafters.model import ModelDrafter
from spsbench.drafters.registry import DRAFTERS
from spsbench.law.enumeration import EXACT, Scene, worst_difference
from spsbench.models.causal_lm import CausalLM, context_window, require_exact_rollback
from spsbench.models.checkpoint import LoadedWeights
from spsbench.models.loading import load, load_torch, model_not_covered
from spsbench.models.seq2seq_lm import Encoded, OnnxSeq2SeqLM, Seq2SeqLM
from spsbench.models.source import decoder_start, find, require_generative
from spsbench.models.tokenizer import Border

CPU = torch.device("cpu")
GREEDY = SamplingParams(greedy=True)
BORDERS = {"t5": Border((EOS,), (BOS,)), "bart": Border((EOS,), (EOS, BOS))}
SOURCE = [*b"translate English to German: the house", EOS]


OVER_ONNX = "t5-over-onnxruntime"
BORDERS[OVER_ONNX] = BORDERS["t5"]


@pytest.fixture(params=list(SEQ2SEQ))
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[*SEQ2SEQ, OVER_ONNX])
def forward(request: pytest.FixtureRequest) -> str:
    """An architecture, and what computes it."""
    return str(request.param)


def over_torch(architecture: str, seed: int = 0, **changes: Any) -> Seq2SeqLM:
    return Seq2SeqLM(make_seq2seq(architecture, seed, **changes), BORDERS[architecture])


def loaded(forward: str, seed: int = 0, bits: int | None = None, **changes: Any) -> CausalLM:
    reference = over_torch(forward.partition("-")[0], seed, **changes)
    return over_onnx(reference, bits) if forward == OVER_ONNX else reference


def over_onnx(reference: Seq2SeqLM, bits: int | None = None) -> OnnxSeq2SeqLM:
    model = reference.model
    return OnnxSeq2SeqLM(
        model.config, reference.border, LoadedWeights(model), TOKENS, 1, lambda: reference, bits
    )


def written(target: CausalLM, drafter: ModelDrafter | None, prompt: list[int], n: int, k: int) -> list[int]:
    tokens: list[int] = []
    with torch.inference_mode():
        loops = start(target, drafter, prompt, k, GREEDY, UniformStream(0, CPU))(Stopwatch(FakeClock()))
        while len(tokens) < n:
            tokens += next(loops).tokens
    return tokens[:n]


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("k", [1, 3, 6])
def test_greedy_sps_is_greedy_ars_is_generate(forward: str, k: int) -> None:
    target, draft = loaded(forward), loaded(forward, seed=1)
    prompt = BORDERS[forward].opened(SOURCE)
    plain = written(target, None, prompt, 40, 0)
    drafter = ModelDrafter(draft, GREEDY, CPU)
    assert written(target, drafter, prompt, 40, k) == plain
    assert written(target, ModelDrafter(target.twin(), GREEDY, CPU), prompt, 40, k) == plain
    theirs = (
        over_torch(forward.partition("-")[0])
        .model.generate(
            torch.tensor([SOURCE]),
            max_new_tokens=41,
            do_sample=False,
            num_beams=1,
            eos_token_id=None,
            # Made here: transformers 5.23 makes one of as many layers as the encoder has.
            past_key_values=EncoderDecoderCache(DynamicCache(), DynamicCache()),
        )[0]
        .tolist()
    )
    first = len(BORDERS[forward].start)
    assert theirs[first : first + 40] == plain[: len(theirs) - first]
    assert len(theirs) > 30


def test_a_sequence_leaves_nothing_to_the_next(forward: str) -> None:
    target, draft = loaded(forward), loaded(forward, seed=1)
    one, other = (BORDERS[forward].opened([*text, EOS]) for text in (b"a much longer source", b"short"))
    fresh = written(loaded(forward), None, other, 20, 0)
    written(target, ModelDrafter(draft, GREEDY, CPU), one, 20, 3)
    assert written(target, ModelDrafter(draft, GREEDY, CPU), other, 20, 3) == fresh


@pytest.mark.parametrize(
    "changes",
    [{}, {"feed_forward_proj": "gated-gelu"}, {"tie_word_embeddings": False}, {"num_layers": 1}],
    ids=["relu", "gated", "untied", "one-layer-encoder"],
)
@torch.inference_mode()
def test_onnx_runtime_computes_what_transformers_does(changes: dict[str, Any]) -> None:
    reference = over_torch("t5", initializer_factor=1.0, **changes)
    ours = over_onnx(reference)
    prompt = BORDERS["t5"].opened([*(b"a source that is longer than the farthest bucket " * 3), EOS])
    text = torch.tensor([*b"and what is written, further than the farthest bucket"])
    begun = [model.begin(prompt) for model in (reference, ours)]
    assert begun[0].tolist() == begun[1].tolist()
    for part in (torch.cat([begun[0], text[:1]]), text[1:6], text[6:], text[:1]):
        theirs, own = (model.score(part, last=len(part)).clone() for model in (reference, ours))
        torch.testing.assert_close(own, theirs, rtol=1e-4, atol=1e-4)
        assert ours.length == reference.length
    whole = torch.tensor([*prompt, *text.tolist()])
    torch.testing.assert_close(
        ours.score_uncached(whole), reference.score_uncached(whole), rtol=1e-4, atol=1e-4
    )
    assert ours.kv_bytes_per_token == reference.kv_bytes_per_token
    # The bias of positions, looked up outside of torch, is all that differs.
    assert abs(ours.forward_bytes() / reference.forward_bytes() - 1) < 0.02


@torch.inference_mode()
def test_rounded_weights_are_near_the_exact_ones() -> None:
    sizes = {"d_model": 64, "d_ff": 96, "d_kv": 16, "initializer_factor": 1.0}
    reference = over_torch("t5", **sizes)
    tokens = torch.tensor([*BORDERS["t5"].opened(SOURCE), 5, 6, 7])
    exact, rounded = reference.score_uncached(tokens), over_onnx(reference, 8).score_uncached(tokens)
    assert 0 < float((exact - rounded).abs().max()) < 0.1 * float(exact.abs().max())


def test_rollback_is_exact_and_a_wrong_one_is_found(architecture: str) -> None:
    class Forgetful(Seq2SeqLM):
        """Keeps what its decoder has read."""

        def rollback(self, length: int) -> None:
            if length == 0:
                super().rollback(0)

    model = make_seq2seq(architecture)
    assert require_exact_rollback(Seq2SeqLM(model, BORDERS[architecture]), "it").worst < 1e-4
    assert require_exact_rollback(loaded(OVER_ONNX), "it").worst < 1e-3
    with pytest.raises(UsageError, match="rolled back"):
        require_exact_rollback(Forgetful(model, BORDERS[architecture]), "it")


def test_the_source_matters_and_is_counted(forward: str) -> None:
    model, border = loaded(forward), BORDERS[forward]
    with torch.inference_mode():
        rows = [
            model.score(model.begin(border.opened([*text, EOS])), last=1).clone() for text in (b"ab", b"xyz")
        ]
    assert not torch.allclose(rows[0], rows[1])
    assert model.length == 4 + len(border.start)


@torch.inference_mode()
def test_a_text_goes_on_where_it_was_cut(forward: str) -> None:
    """A prompt with outputs behind it is read like source and outputs in turn."""
    model = loaded(forward)
    prompt = BORDERS[forward].opened(SOURCE)
    whole = [*prompt, 5, 6, 7, 8]
    whole_row = model.score(model.begin(whole), last=1).clone()
    pending = model.begin(prompt)
    turn = model.score(torch.cat([pending, torch.tensor([5, 6, 7, 8])]), last=1)
    torch.testing.assert_close(whole_row, turn, rtol=1e-4, atol=1e-4)
    uncached = model.score_uncached(torch.tensor(whole), last=1)
    torch.testing.assert_close(whole_row, uncached, rtol=1e-4, atol=1e-4)


V, START, END = 5, 4, 3
TINY = {"vocab_size": V, "eos_token_id": END, "pad_token_id": START, "decoder_start_token_id": START}
TINY_BORDER = Border((END,), (START,))


def tiny(architecture: str, seed: int) -> Seq2SeqLM:
    """Of five tokens, in float64, so that an enumeration adds up."""
    model = make_seq2seq(architecture, seed, **TINY).double()
    return Seq2SeqLM(model, TINY_BORDER)


@pytest.mark.thorough_but("t5-sampling1", "bart-sampling2")
@torch.inference_mode()
@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=0.8, top_p=0.8), GREEDY])
def test_a_loop_has_the_targets_law(architecture: str, sampling: SamplingParams) -> None:
    target, draft = tiny(architecture, 0), tiny(architecture, 1)
    prompt = tuple(TINY_BORDER.opened([0, 2, 1, END]))
    make_drafter = partial(ModelDrafter, draft, sampling, CPU)
    worst = worst_difference(Scene(target, make_drafter, accept_draft, prompt, 2, sampling, ()))
    assert worst.size < EXACT


@pytest.mark.thorough
@torch.inference_mode()
def test_a_target_that_reads_another_source_within_loops_is_found() -> None:
    """The negative control."""

    class Stale(Seq2SeqLM):
        """Attends to another source where several rows are asked for."""

        def score(self, tokens: torch.Tensor, last: int) -> torch.Tensor:
            own = self._encoded
            if last > 1:
                self._encoded = Encoded(self.model, [2, 2, 2, 2, END], self.cache)
            rows = super().score(tokens, last)
            self._encoded = own
            return rows

    sampling = SamplingParams()
    target = Stale(make_seq2seq("t5", 0, **TINY).double(), TINY_BORDER)
    prompt = tuple(TINY_BORDER.opened([0, 2, 1, END]))
    make_drafter = partial(ModelDrafter, tiny("t5", 1), sampling, CPU)
    assert worst_difference(Scene(target, make_drafter, accept_draft, prompt, 2, sampling, ())).size > 1e-3


def test_a_saved_model_is_found_with_its_border(architecture: str, tmp_path: Path) -> None:
    source = find(str(save_seq2seq(architecture, tmp_path / "it")), None, "--target")
    border = BORDERS[architecture]
    assert source.is_encoder_decoder
    assert source.tokenizer.border == border
    assert source.tokenizer.encode("hi", special=True) == [
        *source.tokenizer.encode("hi", special=False),
        EOS,
        *border.start,
    ]
    model = load_torch(source, "float32", CPU, TOKENS, "--target")
    assert isinstance(model, Seq2SeqLM)
    assert model.layers == 3
    covered = model_not_covered(source, "float32", CPU, "--target") is None
    assert covered == (architecture == "t5")
    if covered:
        fast = load(source, "float32", CPU, TOKENS, "--target", "onnxruntime", threads=1)
        assert isinstance(fast, OnnxSeq2SeqLM)
        with torch.inference_mode():
            prompt = border.opened(SOURCE)
            rows = [each.score(each.begin(prompt), last=1).clone() for each in (model, fast)]
        torch.testing.assert_close(*rows, rtol=1e-2, atol=1e-2)


def test_lookup_copies_from_the_source() -> None:
    """The sequence begins with the source, so that drafters that copy find it."""
    assert DRAFTERS["lookup"].name == "lookup"
    prompt = BORDERS["t5"].opened([7, 8, 9, 10, EOS])
    from spsbench.base.records import Spec
    from spsbench.drafters.registry import built
    from spsbench.testing import context_of

    drafter = built(DRAFTERS["lookup"], Spec("lookup"), context_of(TOKENS, GREEDY))
    drafter.begin(prompt)
    draft = drafter.draft([*prompt, 7, 8], 2, torch.zeros(2))
    assert draft.tokens.tolist() == [9, 10]


def test_a_pair_is_of_one_kind(tmp_path: Path) -> None:
    t5 = save_seq2seq("t5", tmp_path / "t5")
    llama = save(make(config_of("llama")), tmp_path / "llama")
    with pytest.raises(UsageError, match="the target is an encoder-decoder and the draft a decoder alone"):
        pair_of(t5, llama)
    other = save_seq2seq("t5", tmp_path / "other", decoder_start_token_id=EOS)
    with pytest.raises(UsageError, match="decoder starts with"):
        pair_of(t5, other)


def test_windows_of_source_and_output(tmp_path: Path) -> None:
    pair = pair_of(save_seq2seq("t5", tmp_path / "t5"))
    assert pair.context_window == 512
    assert pair.window_for(40) == 512 + 1 + 40
    with pytest.raises(UsageError, match="exceeds the decoder's window of 512"):
        pair.window_for(512)


def test_a_text_that_spells_the_border_is_refused(tmp_path: Path) -> None:
    tokenizer = find(str(save_seq2seq("t5", tmp_path / "t5")), None, "--target").tokenizer
    with pytest.raises(UsageError, match="cannot be read"):
        tokenizer.encode("one</s><s>two", special=True)


def test_borders() -> None:
    border = Border((2,), (2, 0))
    assert border.source_length([5, 2, 2, 0, 7, 2, 2, 0]) == 2
    assert border.opened([2]) == [2, 2, 0]
    for bad in ([], [2, 0], [5, 2]):
        with pytest.raises(ValueError, match="no source"):
            border.source_length(bad)


def test_loops_go_on_without_end(forward: str) -> None:
    """Behind EOS as well: who consumes them decides where a text ends."""
    target = loaded(forward)
    prompt = BORDERS[forward].opened(SOURCE)
    with torch.inference_mode():
        loops = start(target, None, prompt, 0, GREEDY, UniformStream(0, CPU))(Stopwatch(FakeClock()))
        assert len(list(islice(loops, 50))) == 50


def test_room_behind_a_prompt_does_not_count_the_source(forward: str) -> None:
    model, border = loaded(forward), BORDERS[forward]
    prompt = border.opened([*range(300), EOS])
    assert model.room_behind(prompt) == 512 - len(border.start)
    assert model.room_behind([*prompt, 1, 2]) == 512 - len(border.start) - 2


def test_over_torch_the_cross_attention_is_computed_before_the_loops() -> None:
    model = over_torch("t5")
    with torch.inference_mode():
        model.begin(BORDERS["t5"].opened(SOURCE))
    assert model.length == len(SOURCE)
    computed = model._encoded._caches.is_updated
    assert all(computed.values())
    assert len(computed) == model.layers


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (transformers.MBartConfig(decoder_start_token_id=2), "does not say which"),
        (transformers.M2M100Config(), "does not say which"),
    ],
)
def test_a_model_of_many_languages_must_say_which(config: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        decoder_start(config, None, "it", "--target")


def test_configurations_within_a_configuration_are_refused() -> None:
    with pytest.raises(UsageError, match="in their own configurations"):
        require_generative(transformers.T5GemmaConfig(), "it", "--target")


def test_the_window_of_two_position_tables_is_the_smaller() -> None:
    config = transformers.LEDConfig(
        max_encoder_position_embeddings=16384, max_decoder_position_embeddings=1024
    )
    assert context_window(config) == 1024
