"""The target as its own draft: its first layers, or all of it with weights rounded to 8 or 4 bits."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from spsbench.base.errors import UsageError
from spsbench.base.plugins import Options
from spsbench.decode.protocols import Drafter
from spsbench.drafters.model import ModelDrafter, tree_drafter
from spsbench.drafters.registry import Context
from spsbench.models.causal_lm import CausalLM, require_exact_rollback
from spsbench.models.onnx_lm import OnnxLM
from spsbench.models.torch_lm import TorchLM

_FLAG = "--drafter"
_SHARE = 4


class OwnTargetDrafter(ModelDrafter):
    """Samples K tokens from a model made of the target's weights; its law is that model's, warped as the
    target is.

    Of first layers, keys and values are computed and kept a second time, since the target's own cache runs
    behind by the tokens that are not yet decided. Rounding gains where weights are read from memory: a
    forward of SmolLM2-135M takes .4 to .5 of float32's time, by context. Weights are rounded by blocks of 32
    (``models.onnx_graph.rounded``), and activations to 8 bits inside each product; what a GGUF file held in 4
    bits loses nothing by 4 bits here.
    """

    model: CausalLM

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
        remedy = "It takes a loaded model."
        raise UsageError(f"early-exit cannot cut {type(target).__name__}.", flag=_FLAG, remedy=remedy)
    model = _cut(target, layers)
    name = f"{target.config.model_type} cut to {model.layers} layers"
    require_exact_rollback(model, name)
    if isinstance(model, TorchLM) and len(model.cache.layers) != model.layers:
        remedy = "Choose another drafter."
        raise UsageError(f"{name} runs {len(model.cache.layers)}.", flag=_FLAG, remedy=remedy)
    model.rollback(0)
    return model


def _cut(target: CausalLM, layers: int) -> CausalLM:
    return target.truncated(layers or max(1, target.layers // _SHARE), _FLAG)


def again(options: Options, target: CausalLM, ids: Tensor, loops: Sequence[tuple[int, int]]) -> Tensor:
    """See ``DrafterKind.again``: one forward of the first layers without a cache."""
    return _cut(target, int(options["layers"])).score_uncached(ids[:-1], last=len(ids) - loops[0][0])


def build_early_exit(options: Options, context: Context) -> Drafter:
    model = exit_model(context.target, int(options["layers"]))
    return tree_drafter(model, options, context) or OwnTargetDrafter(model, context.sampling, context.device)


def rounded_target(target: object, bits: int) -> OnnxLM:
    """The target rounded, with its own cache; its weights are shared by all that use the same rounding.

    Raises:
        UsageError: a target that is rounded itself, or one over another backend.
    """
    if not isinstance(target, OnnxLM):
        backend = getattr(target, "backend", type(target).__name__)
        why = f"quantised rounds models over onnxruntime; the target runs over {backend}."
        remedy = "Choose another drafter, or a target that onnxruntime covers, on a CPU."
        raise UsageError(why, flag=_FLAG, remedy=remedy)
    if target.bits is not None:
        remedy = "Choose another drafter, or --dtype float32."
        raise UsageError(f"the target's weights are {target.weights} already.", flag=_FLAG, remedy=remedy)
    return target.rounded(bits)


def build_quantised(options: Options, context: Context) -> Drafter:
    model = rounded_target(context.target, int(options["bits"]))
    return tree_drafter(model, options, context) or OwnTargetDrafter(model, context.sampling, context.device)
