"""The target's own first layers as its draft: no second model, no second copy of weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spsbench.drafters.kind import Context
from spsbench.drafters.model import ModelDrafter
from spsbench.errors import UsageError
from spsbench.models.causal_lm import CausalLM, require_exact_rollback
from spsbench.models.torch_lm import TorchLM
from spsbench.plugins import Options
from spsbench.records import SamplingParams

_NAME = "early-exit"
_FLAG = "--drafter"
_SHARE = 4


class EarlyExitDrafter(ModelDrafter):
    """Samples K tokens from the first layers of the target, under its final norm and head.

    Its law is that of the shortened model, warped as the target is: an ordinary draft. Keys and values
    of those layers are computed and kept a second time, since the target's own cache runs behind by
    the tokens that are not yet decided.

    Args:
        model: the shortened target, with its own cache.
        sampling: of target and draft.
        device: where the model is.
    """

    model: CausalLM

    def __init__(self, model: CausalLM, sampling: SamplingParams, device: torch.device) -> None:
        super().__init__(model, sampling, device)

    def forward_bytes(self) -> int:
        """Bytes of weights that one forward for one token reads; a draft of K tokens takes K forwards."""
        return self.model.forward_bytes()


def exit_model(target: object, layers: int) -> CausalLM:
    """The target cut after its first layers, checked against an uncached forward of the same layers.

    Args:
        target: as loaded; its weights are shared.
        layers: how many; 0 for a quarter of the target's, at least one.

    Raises:
        UsageError: it has no such number of layers, cannot be cut, or is not a built-in model.
    """
    if not isinstance(target, CausalLM):
        raise UsageError(
            f"{_NAME} cannot cut {type(target).__name__}.", flag=_FLAG, remedy="It takes a loaded model."
        )
    model = _cut(target, layers)
    name = f"{target.config.model_type} cut to {model.layers} layers"
    require_exact_rollback(model, name)
    if isinstance(model, TorchLM) and len(model.cache.layers) != model.layers:
        raise UsageError(
            f"{name} runs {len(model.cache.layers)}.", flag=_FLAG, remedy="Choose another drafter."
        )
    model.rollback(0)
    return model


def _cut(target: CausalLM, layers: int) -> CausalLM:
    return target.truncated(layers or max(1, target.layers // _SHARE), _FLAG)


def again(options: Options, target: CausalLM, ids: Tensor, loops: Sequence[tuple[int, int]]) -> Tensor:
    """See ``DrafterKind.again``: one forward of the first layers without a cache."""
    return _cut(target, int(options["layers"])).score_uncached(ids[:-1], last=len(ids) - loops[0][0])


def build(options: Options, context: Context) -> EarlyExitDrafter:
    model = exit_model(context.target, int(options["layers"]))
    return EarlyExitDrafter(model, context.sampling, context.device)
