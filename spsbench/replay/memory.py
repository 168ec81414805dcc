"""What a cell holds in memory: weights and caches, of target and drafter."""

from __future__ import annotations

from spsbench.decode.protocols import Drafter
from spsbench.drafters.union import UnionDrafter
from spsbench.models.causal_lm import CausalLM


def model_bytes(model: CausalLM, tokens: int) -> int:
    """A model's weights, and its keys and values of so many tokens."""
    return model.forward_bytes() + (model.kv_bytes_per_token or 0) * tokens


def drafter_bytes(drafter: Drafter, tokens: int) -> int:
    """What a drafter holds beside the target, with so many tokens; 0 for one that runs no model.

    One that runs the target's own layers counts as if it had a copy of them: over ONNX Runtime it has.
    """
    if isinstance(drafter, UnionDrafter):
        return sum(drafter_bytes(member, tokens) for member in drafter.members)
    model = getattr(drafter, "model", None)
    if isinstance(model, CausalLM):
        return model_bytes(model, tokens)
    read = getattr(drafter, "forward_bytes", None)
    return 0 if read is None else int(read())
