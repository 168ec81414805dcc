"""Linear layers in oneDNN's packed form, where a trial at load says that they are faster.

On a CPU, torch's plain float32 product of a few rows can cost several times that of one row, and
speculative sampling scores K+1 at once. Packed weights level that, but cost more per call, so one
row may get slower. A mode that speeds K+1 rows by slowing one would buy speedup with a slow
baseline: each number of rows gets the mode that is fastest for it, and the result names both.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from spsbench.models.causal_lm import CausalLM

# Larger models would pay for two copies of their weights; they stay plain.
_MOST_PARAMETERS = 100_000_000
_REPEATS = 11
# A trial is noisy, and a wrong choice for one row would slow the baseline: the unusual mode must
# win clearly, by its best time as well as by its median.
_CLEARLY = 0.95


class Modes:
    """Which numbers of rows a model multiplies packed.

    Attributes:
        packed_rows: those row counts; others are multiplied plain.
        packed: whether the forward under way is one of them.
    """

    def __init__(self) -> None:
        self.packed_rows: set[int] = set()
        self.packed = False

    def begin(self, rows: int) -> None:
        """A forward of so many rows begins."""
        self.packed = rows in self.packed_rows

    def name(self, rows: int) -> str:
        """``packed`` or ``plain``."""
        return "packed" if rows in self.packed_rows else "plain"


class _SwitchedLinear(nn.Module):
    """A linear layer with both forms of its weight."""

    def __init__(self, linear: nn.Linear, modes: Modes) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias
        self._modes = modes
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), 8)

    def forward(self, x: Tensor) -> Tensor:
        if self._modes.packed:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
            return product
        return nn.functional.linear(x, self.weight, self.bias)


@torch.inference_mode()
def choose_modes(model: CausalLM, row_counts: Iterable[int]) -> dict[str, str]:
    """Try both forms for each number of rows and keep what is faster; the plain layers if none gains.

    Args:
        model: on a CPU; anything else stays plain.
        row_counts: how many rows the arms will score at once.

    Returns:
        the mode by number of rows, for the run's record, e.g. ``{"1": "plain", "5": "packed"}``.
    """
    rows = sorted(set(row_counts))
    modes = Modes()
    swapped = _swap(model.model, modes) if _can_pack(model.model) else []
    if swapped:
        model.modes = modes
        modes.packed_rows = {n for n in rows if _packed_wins(model, modes, n)}
        if not modes.packed_rows:
            for parent, name, linear in swapped:
                setattr(parent, name, linear)
            model.modes = None
    return {str(n): modes.name(n) for n in rows}


def _can_pack(model: Any) -> bool:
    """Whether the private operators are there and the weights are worth two copies."""
    if model.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if model.dtype not in (torch.float32, torch.bfloat16) or model.num_parameters() > _MOST_PARAMETERS:
        return False
    try:
        probe = torch.ops.mkldnn._reorder_linear_weight(torch.zeros(16, 16, dtype=model.dtype), 8)
        torch.ops.mkldnn._linear_pointwise(torch.zeros(1, 16, dtype=model.dtype), probe, None, "none", [], "")
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return True


def _swap(model: nn.Module, modes: Modes) -> list[tuple[nn.Module, str, nn.Linear]]:
    """Put switched layers in the place of plain ones; (parent, name, original) of each."""
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    for parent, name, linear in found:
        setattr(parent, name, _SwitchedLinear(linear, modes))
    return found


def _packed_wins(model: CausalLM, modes: Modes, rows: int) -> bool:
    """Time the forward of so many rows in both forms, turn by turn; compare best times and medians."""
    tokens = torch.zeros(rows, dtype=torch.int64, device=model.device)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(_REPEATS):
        for packed in (False, True):
            modes.packed_rows = {rows} if packed else set()
            model.rollback(0)
            started = time.perf_counter()
            model.score(tokens, last=rows)
            seconds[packed].append(time.perf_counter() - started)
    model.rollback(0)
    plain, packed_s = sorted(seconds[False]), sorted(seconds[True])
    return all(packed_s[rank] < _CLEARLY * plain[rank] for rank in (0, _REPEATS // 2))
