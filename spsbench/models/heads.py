"""Trained heads that read a target's hidden states: what they can do, and how they are loaded."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from spsbench.errors import UnavailableError, UsageError
from spsbench.models.blueprint import NotCovered
from spsbench.models.causal_lm import CausalLM
from spsbench.models.draft_kinds import EAGLE, MEDUSA
from spsbench.models.onnx_heads import OnnxChain, OnnxHeads
from spsbench.models.onnx_lm import OnnxLM
from spsbench.models.torch_heads import TorchChain, TorchHeads
from spsbench.models.trained import TrainedDraft

_BITS = (0, 8, 4)


class Chain(Protocol):
    """An EAGLE head with its own KV cache: from a token and the feature before it, the next feature.

    Entry t reads the embedding of token t+1 and feature t, and predicts feature t+1: its logits are of token
    t+2.
    """

    @property
    def length(self) -> int:
        """Number of cached entries."""
        ...

    def extend(self, tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Append entries.

        Args:
            tokens: [n] int64, n >= 1.
            features: [n, hidden] of the tokens before them.

        Returns:
            [1, V] logits, minus infinity outside of the head's vocabulary, and [1, hidden] the feature
        """
        ...

    def rollback(self, length: int) -> None:
        """Keep only the first ``length`` entries; no effect if fewer are cached."""
        ...

    def forward_bytes(self) -> int:
        """Bytes of weights that a call reads."""
        ...

    def fresh(self) -> Chain:
        """The same weights with its own cache."""
        ...


class Heads(Protocol):
    """Medusa heads: from one feature the tokens at several places after it."""

    count: int

    def __call__(self, feature: Tensor, places: int) -> Tensor:
        """[places, V] logits of the first heads from a feature [1, hidden], minus infinity outside of the
        head's vocabulary. The next call may overwrite them."""
        ...

    def forward_bytes(self) -> int:
        """Bytes of weights that a call reads."""
        ...


def load_chain(draft: TrainedDraft, target: CausalLM, bits: int, flag: str) -> Chain:
    """An EAGLE head over its target's backend; its weights are in memory once a target."""
    assert draft.kind == EAGLE
    chain: Chain = _attached(draft, target, bits, flag, OnnxChain, TorchChain)
    return chain.fresh()


def load_heads(draft: TrainedDraft, target: CausalLM, bits: int, flag: str) -> Heads:
    """Medusa heads over their target's backend; see ``load_chain``."""
    assert draft.kind == MEDUSA
    heads: Heads = _attached(draft, target, bits, flag, OnnxHeads, TorchHeads)
    return heads


def _attached(
    draft: TrainedDraft, target: CausalLM, bits: int, flag: str, over_onnx: Any, over_torch: Any
) -> Any:
    if bits not in _BITS:
        raise UsageError(f"bits={bits} is not valid.", flag=flag, remedy="Give bits=8 or bits=4, or none.")
    count, hidden = target.embedding_shape
    draft.require_target(hidden, count, target.embedding_fingerprint(), flag)
    key = (str(draft.folder.resolve()), bits)
    if key not in target.attached:
        target.attached[key] = _built(draft, target, bits, flag, over_onnx, over_torch)
    return target.attached[key]


def _built(
    draft: TrainedDraft, target: CausalLM, bits: int, flag: str, over_onnx: Any, over_torch: Any
) -> Any:
    if bits and not isinstance(target, OnnxLM):
        raise UsageError(
            f"bits={bits} needs a target over onnxruntime; this one runs over {target.backend}.",
            flag=flag,
            remedy="Leave it out.",
        )
    try:
        with torch.inference_mode():
            return (
                over_onnx(draft, target, bits or None)
                if isinstance(target, OnnxLM)
                else over_torch(draft, target)
            )
    except NotCovered as reason:
        raise UsageError(
            f"{draft.folder} cannot be built over onnxruntime: {reason}.",
            flag=flag,
            remedy="Use --backend torch.",
        ) from reason
    except (KeyError, ValueError, RuntimeError) as fault:
        missing = isinstance(fault, KeyError)
        reason_of = f"it has no {fault.args[0]}" if missing else next(iter(str(fault).splitlines()), "")
        raise UnavailableError(
            f"{draft.folder} does not hold the head that it describes: {reason_of}.",
            flag=flag,
            remedy="Train it again, or choose another.",
        ) from fault
