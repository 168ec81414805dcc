"""What models over ONNX Runtime have in common: weights as they are stored, a reference over torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from spsbench.config.models import ONNXRUNTIME
from spsbench.models.causal_lm import CausalLM
from spsbench.models.checkpoint import StoredWeights

if TYPE_CHECKING:
    from spsbench.models.torch_lm import TorchLM


class OnnxModel(CausalLM):
    """A model on a CPU whose forwards read ``_weight_bytes`` of weights; batch size 1.

    Args:
        vocab_size: number of logits used; the rest pads the embedding.
    """

    backend = ONNXRUNTIME
    embedding: str
    _weight_bytes: int

    def __init__(
        self,
        config: Any,
        stored: StoredWeights,
        vocab_size: int,
        reference: Callable[[], TorchLM],
        bits: int | None,
    ) -> None:
        # Activations of 8 bits round as coarsely as bfloat16, and its tolerances are theirs.
        dtype = torch.float32 if bits is None else torch.bfloat16
        super().__init__(config, vocab_size, torch.device("cpu"), dtype)
        self.bits = bits
        self._stored, self._reference = stored, reference

    @property
    def weights(self) -> str:
        """``float32``, or how the matrices are rounded."""
        return "float32" if self.bits is None else f"int{self.bits}"

    @property
    def parameters(self) -> int:
        return self._stored.parameters

    @property
    def embedding_shape(self) -> tuple[int, int]:
        rows, width = self._stored.shape(self.embedding)
        return rows, width

    def forward_bytes(self, rows: int = 1) -> int:
        return self._weight_bytes

    def reference(self) -> TorchLM:
        return self._reference()
