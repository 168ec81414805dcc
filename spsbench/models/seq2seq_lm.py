"""Encoder-decoders: T5, BART and similar models over torch, T5 over ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Self

import numpy as np
import torch
from onnx import TensorProto, helper
from torch import Tensor
from transformers import EncoderDecoderCache
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import BaseModelOutput

from spsbench.base.arrays import Singles
from spsbench.base.errors import UsageError
from spsbench.models.blueprint import Blueprint, T5Plan, t5_plan
from spsbench.models.causal_lm import LAST, CausalLM, States, decoder_layers
from spsbench.models.checkpoint import StoredWeights
from spsbench.models.choices import Choices
from spsbench.models.live_tree import Branches
from spsbench.models.onnx_graph import Builder, Graph
from spsbench.models.onnx_lm import OnnxForward, OnnxModel, run_bound, session_of
from spsbench.models.quantised import stored_bytes
from spsbench.models.tokenizer import Border
from spsbench.models.torch_lm import TorchLM
from spsbench.models.witness import ReadBlock, read_in_blocks


class Encoded:
    """A source that was read, and a decoder that attends to it.

    The keys and values of the cross-attention are computed by the decoder's first forward and kept; those of
    the decoder itself are the given cache's.
    """

    def __init__(self, model: Any, source: Sequence[int], cache: Cache) -> None:
        ids = torch.tensor([list(source)], device=model.device)
        states = model.get_encoder()(input_ids=ids, return_dict=True).last_hidden_state
        self._model = model
        self._states = BaseModelOutput(last_hidden_state=states)
        self._caches = EncoderDecoderCache(cache, DynamicCache())

    def decode(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Read tokens of the output.

        Args:
            ids: [1, n] of them.
            mask: [1, 1, n, m] that is added to the scores of the decoder's own attention, over its m columns;
                None for tokens in line.

        Returns:
            [n, V] logits of the token after each.
        """
        output = self._model(
            encoder_outputs=self._states,
            decoder_input_ids=ids,
            decoder_attention_mask=mask,
            past_key_values=self._caches,
            use_cache=True,
        )
        logits: Tensor = output.logits[0]
        return logits


_CROSS = ("EncDecAttention", "encoder_attn")
_PRECOMPUTED = (".k.", ".v.", ".k_proj.", ".v_proj.")


class EncoderDecoder(CausalLM):
    """What all of them have in common: a source that is read as a whole before the output begins."""

    border: Border

    def room_behind(self, prompt: Sequence[int]) -> int:
        return self.context_window - (len(prompt) - self.border.source_length(prompt))

    def as_prompt(self, tokens: Tensor) -> Tensor:
        return torch.cat([tokens, tokens.new_tensor((*self.border.ending, *self.border.start))])

    def restore(self, length: int) -> None:
        raise ValueError("the source is read as a whole")

    def with_features(self, flag: str, states: States = LAST) -> NoReturn:
        why = "layers and states of an encoder-decoder cannot be used by a drafter."
        raise UsageError(why, flag=flag, remedy="Draft with a model, lookup, suffix or ngram.")

    def truncated(self, layers: int, flag: str) -> NoReturn:
        self.with_features(flag)


class Seq2SeqLM(EncoderDecoder, TorchLM):
    """Owns a model, what its encoder made of the source, and the caches of its decoder; batch size 1.

    ``begin`` runs the encoder, once a sequence, and computes the keys and values of the cross-attention; the
    decoder's own are rolled back as those of any other model.
    """

    def __init__(self, model: Any, border: Border, vocab_size: int | None = None) -> None:
        super().__init__(model, vocab_size)
        self.border: Border = border
        config = model.config
        self.layers = decoder_layers(model.config)
        heads = getattr(config, "decoder_attention_heads", None) or config.num_attention_heads
        width = getattr(config, "d_kv", None) or config.hidden_size // heads
        # For tokens of source and output alike: each layer attends to both.
        self.kv_bytes_per_token = int(2 * self.layers * heads * width * self.dtype.itemsize)
        self._encoded: Encoded | None = None
        self._read = 0

    @property
    def length(self) -> int:
        return self._read + self.cache.length

    def begin(self, prompt: Sequence[int]) -> Tensor:
        self.rollback(0)
        cut = self.border.source_length(prompt)
        tokens = torch.tensor(prompt, device=self.device)
        self._encoded = Encoded(self.model, prompt[:cut], self.cache)
        self._read = cut
        # The first forward computes the keys of the cross-attention: they are not part of decoding.
        self.score(tokens[cut : max(cut + 1, len(prompt) - 1)], last=1)
        self.cache.rollback(len(prompt) - 1 - cut)
        return tokens[-1:]

    def _scored(self, tokens: Tensor, last: int) -> Tensor:
        assert self._encoded is not None, "a sequence begins with begin()"
        return self._encoded.decode(tokens.unsqueeze(0))[-last:, : self.vocab_size]

    def rollback(self, length: int) -> None:
        if length == 0:
            self._encoded, self._read = None, 0
        assert length >= self._read, "the source is read as a whole"
        self.cache.rollback(length - self._read)

    def score_uncached(self, tokens: Tensor, last: int = 0) -> Tensor:
        cut = self.border.source_length(tokens.tolist())
        source = tokens[:cut].unsqueeze(0)
        written = tokens[cut:].unsqueeze(0)
        output = self.model(input_ids=source, decoder_input_ids=written, use_cache=False)
        logits: Tensor = output.logits[0, -last:, : self.vocab_size]
        return logits

    def score_uncached_parts(self, tokens: Tensor, last: int, rows: int) -> Iterator[Tensor]:
        cut = self.border.source_length(tokens.tolist())
        source = tokens[:cut].unsqueeze(0)

        def forward(ids: Tensor, states: Tensor | None) -> Any:
            encoded = {} if states is None else {"encoder_outputs": BaseModelOutput(last_hidden_state=states)}
            return self.model(input_ids=source, decoder_input_ids=ids, use_cache=False, **encoded)

        return self._logits_by_part(tokens[cut:], last, rows, forward)

    def score_in_blocks(
        self, tokens: Tensor, first: int, blocks: Sequence[ReadBlock], choices: Choices | None = None
    ) -> Iterator[Tensor] | None:
        cut = self.border.source_length(tokens.tolist())
        states = self.model.get_encoder()(input_ids=tokens[:cut].unsqueeze(0))
        written = tokens[cut:]

        def forward(ids: Tensor, cache: Cache) -> Tensor:
            logits: Tensor = self.model(
                encoder_outputs=states, decoder_input_ids=ids, past_key_values=cache, use_cache=True
            ).logits[0]
            return logits[:, : self.vocab_size]

        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        if first > cut:
            forward(written[: first - cut].unsqueeze(0), cache)
        return read_in_blocks(forward, cache, written, first - cut, blocks)

    def twin(self) -> Self:
        other = super().twin()
        other._encoded, other._read = None, 0
        return other

    def forward_bytes(self, rows: int = 1) -> int:
        """Return the bytes of decoder and head; the encoder and the cross-attention's keys do not count."""
        head = self.model.get_output_embeddings().weight
        parts = {id(head): head.nbytes}
        table = id(self.model.get_input_embeddings().weight)
        for name, weights in self.model.get_decoder().named_parameters():
            kept = any(part in name for part in _CROSS) and any(part in name for part in _PRECOMPUTED)
            if not kept and id(weights) != table:
                parts[id(weights)] = stored_bytes(weights)
        return sum(parts.values())


_FLOATS = TensorProto.FLOAT
_BIAS = "position_bias"


def crossed_names(layers: int) -> list[str]:
    """Name the keys and values, each [1, heads, source, head_dim], that the encoder gives the decoder."""
    return [f"crossed_{kind}_{number}" for number in range(layers) for kind in ("key", "value")]


class _T5Builder(Builder):
    """Writes the graph of one half."""

    _half: str

    def __init__(self, whole: T5Plan, half: Blueprint, stored: StoredWeights, bits: int | None) -> None:
        super().__init__(half, stored, bits)
        self._whole = whole
        self._shapes = whole.shapes

    def _head(self) -> str:
        return "lm_head" if "lm_head.weight" in self._stored else "shared"

    def _final_states(self, state: str) -> str:
        added = ""
        for number in range(self._plan.layers):
            prefix = f"{self._half}.block.{number}.layer."
            for place, compute in enumerate(self._blocks(number)):
                unit = f"{prefix}{place}."
                state, normed = self._normed(state, added, f"{unit}layer_norm.weight")
                added = compute(normed, unit)
        return self._normed(state, added, f"{self._half}.final_layer_norm.weight", "states")[1]

    def _blocks(self, number: int) -> list[Any]:
        """What a layer's parts add to the residual stream, in order: functions of (input, prefix)."""
        raise NotImplementedError

    def _feed_forward(self, x: str, prefix: str) -> str:
        unit = f"{prefix}DenseReluDense."
        if self._plan.family.gated:
            gate, up = (self._matrix(x, [f"{unit}{name}"]) for name in ("wi_0", "wi_1"))
            inner = self._node("Mul", [self._activated(gate), up])
        else:
            inner = self._activated(self._matrix(x, [f"{unit}wi"]))
        return self._matrix(inner, [f"{unit}wo"])

    def _activated(self, x: str) -> str:
        return self._node("Relu", [x]) if self._plan.activation == "relu" else super()._activated(x)

    def _attended(self, inputs: list[str]) -> str:
        return self._node("MultiHeadAttention", inputs, num_heads=self._plan.heads, scale=1.0)

    def _position_bias(self, first: str, total: str, low: int) -> None:
        """Add the bias [1, heads, n, keys] of queries from ``first`` on, over all keys before ``total``.

        It is looked up by how far a key is behind its query, clipped to ``low`` and the farthest bucket.
        """
        one = self._constant("one", np.array(1))
        behind = self._constant("behind", np.array([1]))
        queries = self._node("Range", [first, total, one])
        keys = self._node("Range", [self._constant("zero", np.array(0)), total, one])
        apart = self._node("Sub", [self._node("Unsqueeze", [queries, behind]), keys])
        ends = [self._constant(f"clip_{end}", np.array(end)) for end in (low, self._whole.far)]
        index = self._node("Clip", [apart, *ends])
        if low:
            index = self._node("Sub", [index, ends[0]])
        name = f"{self._half}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        distances = -torch.arange(low, self._whole.far + 1)
        buckets = self._whole.buckets_of(distances, both_sides=low < 0)
        table: Singles = self._stored.read(name)[buckets.numpy()]
        by_query = self._node("Gather", [self._weight("bias_table", table), index], axis=0)
        across = self._node("Transpose", [by_query], perm=[2, 0, 1])
        self._node("Unsqueeze", [across, self._constant("first", np.array([0]))], [_BIAS])

    def _token_count(self) -> str:
        """[] of ``hidden`` [1, n, hidden]."""
        shape = self._node("Shape", ["hidden"])
        return self._node("Gather", [shape, self._constant("tokens_axis", np.array(1))], axis=0)


class _EncoderBuilder(_T5Builder):
    """From ``hidden`` [1, n, hidden], the embedded source, to ``crossed_names``."""

    _half = "encoder"

    def graph(self) -> Graph:
        self._position_bias("zero", self._token_count(), -self._whole.far)
        states = self._final_states("hidden")
        for number in range(self._whole.decoder.layers):
            for kind in ("key", "value"):
                self._crossed(states, number, kind)
        inputs = [helper.make_tensor_value_info("hidden", _FLOATS, [1, "n", self._plan.hidden])]
        return self._made(inputs, _crossed_infos(self._whole))

    def _crossed(self, states: str, number: int, kind: str) -> None:
        """Keys or values of a decoder layer's cross-attention, head by head."""
        plan = self._plan
        flat = self._matrix(states, [f"decoder.block.{number}.layer.1.EncDecAttention.{kind[0]}"])
        name = f"crossed_{kind}_{number}"
        heads = self._constant(f"{name}.heads", np.array([0, 0, plan.heads, plan.head_dim]))
        apart = self._node("Reshape", [flat, heads])
        self._node("Transpose", [apart], [name], perm=[0, 2, 1, 3])

    def _blocks(self, number: int) -> list[Any]:
        return [self._self_attention, self._feed_forward]

    def _self_attention(self, x: str, prefix: str) -> str:
        unit = f"{prefix}SelfAttention."
        three = [self._matrix(x, [f"{unit}{name}"]) for name in "qkv"]
        return self._matrix(self._attended([*three, "", "", _BIAS]), [f"{unit}o"])


class _DecoderBuilder(_T5Builder):
    """As ``Graph`` says, without tables and features, and with ``crossed_names`` as inputs."""

    _half = "decoder"

    def graph(self) -> Graph:
        total = self._node("Cast", ["total"], to=TensorProto.INT64)
        self._position_bias(self._node("Sub", [total, self._token_count()]), total, 0)
        return super().graph()

    def _blocks(self, number: int) -> list[Any]:
        return [
            lambda x, prefix: self._self_attention(x, prefix, number),
            lambda x, prefix: self._cross_attention(x, prefix, number),
            self._feed_forward,
        ]

    def _self_attention(self, x: str, prefix: str, number: int) -> str:
        unit = f"{prefix}SelfAttention."
        heads = self._plan.heads
        attended = self._node(
            "GroupQueryAttention",
            [
                self._matrix(x, [f"{unit}{name}" for name in "qkv"]),
                "",
                "",
                f"key_{number}",
                f"value_{number}",
                "seen",
                "total",
                "",
                "",
                "",
                _BIAS,
            ],
            [f"{unit}out", f"new_key_{number}", f"new_value_{number}"],
            num_heads=heads,
            kv_num_heads=heads,
            scale=1.0,
        )
        return self._matrix(attended, [f"{unit}o"])

    def _cross_attention(self, x: str, prefix: str, number: int) -> str:
        unit = f"{prefix}EncDecAttention."
        inputs = [self._matrix(x, [f"{unit}q"]), f"crossed_key_{number}", f"crossed_value_{number}"]
        return self._matrix(self._attended(inputs), [f"{unit}o"])

    def _signature(self) -> tuple[list[Any], list[Any]]:
        inputs, outputs = super()._signature()
        kept = [each for each in inputs if each.name not in ("cos", "sin")]
        return kept + _crossed_infos(self._whole), [output for output in outputs if output.name != "features"]


def _crossed_infos(plan: T5Plan) -> list[Any]:
    shape: list[str | int | None] = [1, plan.decoder.heads, "source", plan.decoder.head_dim]
    names = crossed_names(plan.decoder.layers)
    return [helper.make_tensor_value_info(name, _FLOATS, shape) for name in names]


SHARED = "shared.weight"


class OnnxSeq2SeqLM(EncoderDecoder, OnnxModel):
    """T5 over ONNX Runtime, with a session of the encoder beside that of the decoder."""

    embedding = SHARED

    def __init__(
        self,
        config: Any,
        border: Border,
        stored: StoredWeights,
        vocab_size: int,
        threads: int,
        reference: Callable[[], TorchLM],
        bits: int | None = None,
    ) -> None:
        whole = t5_plan(config)
        graph = _DecoderBuilder(whole, whole.decoder, stored, bits).graph()
        super().__init__(config, stored, vocab_size, threads, reference, bits, whole.decoder, graph)
        self.border = border
        self._encoder, _ = session_of(_EncoderBuilder(whole, whole.encoder, stored, bits).graph(), threads)
        self._read = 0

    @property
    def length(self) -> int:
        return self._read + self._length

    def begin(self, prompt: Sequence[int]) -> Tensor:
        self.rollback(0)
        tokens = torch.tensor(prompt)
        cut = self.border.source_length(prompt)
        self._attend(self._forward, tokens[:cut])
        self._read = cut
        if len(prompt) - 1 > cut:
            self.score(tokens[cut:-1], last=1)
        return tokens[-1:]

    def score(self, tokens: Tensor, last: int, branches: Branches | None = None) -> Tensor:
        assert self._read, "a sequence begins with begin()"
        return super().score(tokens, last, branches)

    def rollback(self, length: int) -> None:
        if length == 0:
            self._read = 0
        assert length >= self._read, "the source is read as a whole"
        super().rollback(length - self._read)

    def score_uncached(self, tokens: Tensor, last: int = 0) -> Tensor:
        cut = self.border.source_length(tokens.tolist())
        fresh = OnnxForward(self.session, self.plan)
        self._attend(fresh, tokens[:cut])
        return self._scored_by(fresh, tokens[cut:], last)

    def score_in_blocks(
        self, tokens: Tensor, first: int, blocks: Sequence[ReadBlock], choices: Choices | None = None
    ) -> Iterator[Tensor] | None:
        cut = self.border.source_length(tokens.tolist())
        fresh = OnnxForward(self.session, self.plan)
        self._attend(fresh, tokens[:cut])
        return self._blocks_by(fresh, tokens[cut:], first - cut, blocks)

    def twin(self) -> Self:
        other = super().twin()
        other._read = 0
        return other

    def embedding_fingerprint(self) -> str:
        return self.reference().embedding_fingerprint()

    def _attend(self, forward: OnnxForward, source: Tensor) -> None:
        """Run the encoder, and let a forward read its result."""
        hidden = np.zeros((1, len(source), self.plan.hidden), np.float32)
        self.embed(source, hidden[0])
        names = crossed_names(self.layers)
        binding = self._encoder.io_binding()
        binding.bind_cpu_input("hidden", hidden)
        for name in names:
            binding.bind_output(name)
        run_bound(self._encoder, binding)
        forward.attend(dict(zip(names, binding.get_outputs(), strict=True)))
