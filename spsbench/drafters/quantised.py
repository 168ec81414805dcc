"""The target with its weights rounded to 8 or 4 bits as its own draft: nearly the same law, fewer bytes.

Its gain is where weights are read from memory: a forward of SmolLM2-135M takes .4 to .5 of float32's time,
by context. Weights are rounded by blocks of 32, see ``models.rounding``, and activations to 8 bits inside
each product; what a GGUF file held in 4 bits loses nothing by 4 bits here. The draft's law is what that
forward computes, whatever its rounding: the rows that it reports are those that it sampled from.
"""

from __future__ import annotations

from spsbench.drafters.kind import Context
from spsbench.drafters.model import ModelDrafter
from spsbench.errors import UsageError
from spsbench.models.onnx_lm import OnnxLM
from spsbench.plugins import Options

_NAME = "quantised"
_FLAG = "--drafter"
_BITS = (8, 4)


class QuantisedDrafter(ModelDrafter):
    """Samples K tokens from the rounded target; its law is that model's, warped as the target is."""

    model: OnnxLM

    def forward_bytes(self) -> int:
        """Bytes of weights that one forward for one token reads; a draft of K tokens takes K forwards."""
        return self.model.forward_bytes()


def rounded_target(target: object, bits: int) -> OnnxLM:
    """The target rounded, with its own cache; its weights are shared by all that use the same rounding.

    Args:
        target: as loaded.
        bits: 8 or 4.

    Raises:
        UsageError: another number of bits, a target that is rounded itself, or one over another backend.
    """
    if bits not in _BITS:
        raise UsageError(f"{_NAME}:bits={bits} is not valid.", flag=_FLAG, remedy="Give bits=8 or bits=4.")
    if not isinstance(target, OnnxLM):
        backend = getattr(target, "backend", type(target).__name__)
        raise UsageError(
            f"{_NAME} rounds models over onnxruntime; the target runs over {backend}.",
            flag=_FLAG,
            remedy="Choose another drafter, or a target that onnxruntime covers, on a CPU.",
        )
    if target.bits is not None:
        raise UsageError(
            f"the target's weights are {target.weights} already.",
            flag=_FLAG,
            remedy="Choose another drafter, or --dtype float32.",
        )
    return target.rounded(bits)


def build(options: Options, context: Context) -> QuantisedDrafter:
    model = rounded_target(context.target, int(options["bits"]))
    return QuantisedDrafter(model, context.sampling, context.device)
