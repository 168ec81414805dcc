"""Models as they score trees."""

from __future__ import annotations

from spsbench.decode.beam import TreeModel
from spsbench.errors import UsageError
from spsbench.models.beam_lm import BeamLM
from spsbench.models.causal_lm import CausalLM
from spsbench.models.torch_lm import TorchLM


def tree_of(lm: CausalLM) -> TreeModel:
    """A model over the tree of its own tokens."""
    if not isinstance(lm, TorchLM):
        raise UsageError("no", flag="--tree", remedy="x")
    return BeamLM(lm)
