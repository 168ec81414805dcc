"""The target with its weights rounded to 8 or 4 bits as its own draft: nearly the same law, fewer bytes.

Its gain is where weights are read from memory. The matrix products of one row at a Llama-class shape of
135M parameters took a third of float32's time (torch 2.13, one thread with AVX-512); those of the
embedded target, whose weights lie in the cache, took as long as float32's. Weights alone are rounded:
there is no quantised arithmetic on activations, whose law would depend on the rows scored together.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch

from spsbench.drafters.kind import Context, DrafterKind
from spsbench.drafters.model import ModelDrafter
from spsbench.errors import UsageError
from spsbench.models.causal_lm import CausalLM
from spsbench.models.quantised import STEPS, Quantised, quantised
from spsbench.plugins import Options
from spsbench.records import SamplingParams

_NAME = "quantised"
_FLAG = "--drafter"
# Arms of one run that ask for the same rounding share the weights.
_COPIES: WeakKeyDictionary[CausalLM, dict[tuple[int, int], Quantised]] = WeakKeyDictionary()


class QuantisedDrafter(ModelDrafter):
    """Samples K tokens from the rounded target; its law is that model's, warped as the target is.

    Args:
        copy: the rounded target.
        sampling: of target and draft.
        device: where it is.
    """

    def __init__(self, copy: Quantised, sampling: SamplingParams, device: torch.device) -> None:
        super().__init__(copy.with_own_cache(), sampling, device)
        self._copy = copy

    def forward_bytes(self) -> int:
        """Bytes of weights that one forward for one token reads; a draft of K tokens takes K forwards."""
        return self._copy.forward_bytes


def rounded_target(target: object, bits: int, group: int) -> Quantised:
    """The target rounded; the same copy as long as the target lives.

    Args:
        target: as loaded.
        bits: 8 or 4.
        group: how many neighbours share a step at 4 bits.

    Raises:
        UsageError: another number of bits, a group below 1, no memory, or no model of ours.
    """
    if not isinstance(target, CausalLM):
        raise UsageError(
            f"{_NAME} cannot round {type(target).__name__}.", flag=_FLAG, remedy="It takes a loaded model."
        )
    if bits not in STEPS:
        raise UsageError(f"{_NAME}:bits={bits} is not valid.", flag=_FLAG, remedy="Give bits=8 or bits=4.")
    if group < 1:
        raise UsageError(f"{_NAME}:group={group} is not valid.", flag=_FLAG, remedy="Give group=32.")
    copies = _COPIES.setdefault(target, {})
    if (bits, group) not in copies:
        copies[bits, group] = quantised(target, bits, group, _FLAG)
    return copies[bits, group]


def _build(options: Options, context: Context) -> QuantisedDrafter:
    copy = rounded_target(context.target, int(options["bits"]), int(options["group"]))
    return QuantisedDrafter(copy, context.sampling, context.device)


KIND = DrafterKind(
    name=_NAME,
    summary="The target with its weights rounded to bits=8, or to 4 by groups of 32.",
    build=_build,
    options={"bits": 8, "group": 32},
    needs_weights=True,
)
"""``forwards`` is 0: it runs none of the pair's draft model, but K of its own; see ``forward_bytes``."""
