"""A causal language model over ONNX Runtime's forward on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from spsbench.models.blueprint import Blueprint, blueprint_of
from spsbench.models.checkpoint import EMBEDDING, Floats, StoredWeights
from spsbench.models.features import FeatureRows
from spsbench.models.onnx_forward import OnnxForward
from spsbench.models.onnx_graph import Graph, build_graph
from spsbench.models.onnx_model import OnnxModel
from spsbench.models.onnx_threads import session_options
from spsbench.models.pages import trim_heap
from spsbench.models.trained import embedding_fingerprint
from spsbench.models.vocabulary import VocabularyRows

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from spsbench.models.torch_lm import TorchLM


class OnnxLM(OnnxModel):
    """Owns a session, which other models may share, and a KV cache; batch size 1.

    Args:
        vocab_size: number of logits used; the rest pads the embedding.
        vocabulary: [m] what the rows of its head stand for; None where they stand for every token.
    """

    embedding = EMBEDDING

    def __init__(
        self,
        config: Any,
        stored: StoredWeights,
        vocab_size: int,
        threads: int,
        reference: Callable[[], TorchLM],
        layers: int | None = None,
        bits: int | None = None,
        vocabulary: Tensor | None = None,
    ) -> None:
        super().__init__(config, stored, vocab_size, reference, bits)
        plan = blueprint_of(config)
        self._plan = plan if layers is None else replace(plan, layers=layers)
        self.vocabulary = vocabulary
        if vocabulary is not None:
            self._plan = replace(self._plan, vocab_size=len(vocabulary))
        self.layers = self._plan.layers
        self._threads = threads
        self._session, self._weight_bytes = _session(self._plan, stored, threads, bits)
        self._forward = OnnxForward(self._session, self._plan)
        self._spread = self.new_spread()
        self._length = 0
        self._variants: dict[tuple[int | None, int | None], OnnxLM] = {}

    @property
    def length(self) -> int:
        return self._length

    def score(self, tokens: Tensor, last: int) -> Tensor:
        n, start = tokens.shape[0], self._length
        logits = self._forward(lambda out: self.embed(tokens, out), start, n, last)
        if self._features is not None:
            assert self._forward.features is not None
            self._features.write(start, self._forward.features)
        self._length = start + n
        return self.all_logits(logits, self._spread)

    def rollback(self, length: int) -> None:
        self._length = min(self._length, length)

    def restore(self, length: int) -> None:
        self._length = length

    def score_uncached(self, tokens: Tensor, last: int = 0) -> Tensor:
        n = tokens.shape[0]
        fresh = OnnxForward(self._session, self._plan)
        logits = fresh(lambda out: self.embed(tokens, out), 0, n, last or n)
        return self.all_logits(logits, self.new_spread())

    def twin(self) -> OnnxLM:
        other = copy.copy(self)
        other._forward = OnnxForward(other._session, other._plan)
        other._length, other._features, other._spread = 0, None, other.new_spread()
        return other

    def with_features(self, flag: str) -> OnnxLM:
        other = self.twin()
        other._forward = OnnxForward(other._session, other._plan, features=True)
        other._features = FeatureRows()
        return other

    @property
    def stored(self) -> StoredWeights:
        """Where its weights come from."""
        return self._stored

    @property
    def session(self) -> InferenceSession:
        """That its forwards run in; several may at once, each over its own memory."""
        return self._session

    @property
    def threads(self) -> int:
        """Of its session, and of every other of the process that runs on more than one."""
        return self._threads

    @property
    def plan(self) -> Blueprint:
        """What it computes."""
        return self._plan

    def embedding_fingerprint(self) -> str:
        return embedding_fingerprint(self._stored)

    @property
    def kv_bytes_per_token(self) -> int:
        return self._plan.kv_bytes_per_token

    def truncated(self, layers: int, flag: str) -> OnnxLM:
        self._require_layers(layers, flag)
        return self._variant(layers, self.bits)

    def rounded(self, bits: int) -> OnnxLM:
        """The model with its matrices rounded to 8 or 4 bits, with its own cache.

        Norms and embeddings stay as they are. Made once: further calls share the weights.
        """
        return self._variant(None, bits)

    def _variant(self, layers: int | None, bits: int | None) -> OnnxLM:
        if (layers, bits) not in self._variants:
            self._variants[layers, bits] = type(self)(
                self.config,
                self._stored,
                self.vocab_size,
                self._threads,
                self._reference,
                layers,
                bits,
                self.vocabulary,
            )
        other = copy.copy(self._variants[layers, bits])
        other._forward, other._length = OnnxForward(other._session, other._plan), 0
        other._features, other._spread = None, other.new_spread()
        return other

    def embed(self, tokens: Tensor, out: Floats) -> None:
        """Write the embeddings of tokens [n] into ``out`` [n, width]."""
        self._stored.rows(self.embedding, tokens.numpy(), out)
        if self._plan.embedding_scale != 1.0:
            out *= self._plan.embedding_scale

    def new_spread(self) -> VocabularyRows | None:
        """Its own rows to put logits of some tokens into; None where it has logits of all."""
        return None if self.vocabulary is None else VocabularyRows(self.vocabulary, self.vocab_size)

    def all_logits(self, logits: Tensor, spread: VocabularyRows | None) -> Tensor:
        """Logits of all tokens that are used, of what the head gave."""
        if spread is not None:
            return spread(logits)
        return logits if logits.shape[-1] == self.vocab_size else logits[:, : self.vocab_size]


def _session(
    plan: Blueprint, stored: StoredWeights, threads: int, bits: int | None
) -> tuple[InferenceSession, int]:
    """(a session, bytes of weights that a forward reads)."""
    return session_of(build_graph(plan, stored, bits), threads)


def session_of(graph: Graph, threads: int) -> tuple[InferenceSession, int]:
    """A session of a graph on so many threads, and the bytes of weights that a forward reads."""
    from onnxruntime import InferenceSession, OrtValue

    options = session_options(threads)
    values = [OrtValue.ortvalue_from_numpy(array) for array in graph.weights.values()]
    options.add_external_initializers(list(graph.weights), values)
    session = InferenceSession(graph.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    trim_heap()  # packing leaves hundreds of megabytes free in it
    return session, sum(array.nbytes for array in graph.weights.values())
