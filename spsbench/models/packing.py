"""Products in oneDNN's packed form, where a trial at load says that they are faster.

On a CPU, torch's plain float32 product of a few rows can cost several times that of one row, and
speculative sampling scores K+1 at once. Packed weights level that, but one row may get slower. A
mode that speeds K+1 rows by slowing one would buy speedup with a slow baseline: each number of rows
gets the mode that is fastest for it, and the result names both. Where one row stays plain and a
block goes packed, the weights are there twice, which is done only where memory has room for it;
where everything goes packed, a model of some size keeps that form alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import nn

from spsbench.models.product import Modes, Product, ProductLinear, can_pack
from spsbench.models.weights import available_bytes

if TYPE_CHECKING:
    from spsbench.models.causal_lm import CausalLM

# Of what is free, packed copies may take so much.
_SHARE_OF_FREE = 0.5
_TRIAL_S = 1.0
_FEWEST, _MOST = 5, 11
# A trial is noisy, and a wrong choice for one row would slow the baseline: the unusual mode must
# win clearly, by its best time as well as by its median.
_CLEARLY = 0.95
# Below this a second copy does not matter, and the plain one is at hand.
_SMALL_PARAMETERS = 100_000_000


@torch.inference_mode()
def choose_modes(model: CausalLM, row_counts: Iterable[int], *, keep_plain: bool = True) -> dict[str, str]:
    """Try both forms for each number of rows and keep what is faster; all plain if none gains.

    Args:
        model: on a CPU; anything else stays plain.
        row_counts: how many rows the arms will score at once.
        keep_plain: whether others multiply with the model's own layers, and often. If not, a large
            model that is packed for every number of rows lets go of its plain weights.

    Returns:
        the mode by number of rows, for the run's record, e.g. ``{"1": "plain", "5": "packed"}``.
    """
    rows = sorted(set(row_counts))
    products, swapped = _products(model)
    for product in products:
        product.pack()
    modes = model.modes
    if products:
        modes.packed_rows = {n for n in rows if _packed_wins(model, modes, n)}
    if not modes.packed_rows:
        for product in products:
            product.unpack()
        for parent, name, linear in swapped:
            setattr(parent, name, linear)
    elif not keep_plain and modes.packed_rows == set(rows):
        _let_plain_go(model)
    return {str(n): modes.name(n) for n in rows}


def _let_plain_go(model: CausalLM) -> None:
    """Keep the packed form alone where the forward is ours and the model large."""
    inner = model.model
    if sum(parameter.numel() for parameter in inner.parameters()) < _SMALL_PARAMETERS:
        return
    for product in model.products or ():
        if product.weight is not inner.get_input_embeddings().weight:  # a tied head is looked up as well
            product.keep_packed_alone()


Swap = tuple[nn.Module, str, nn.Linear]


def _products(model: CausalLM) -> tuple[list[Product], list[Swap]]:
    """What can be packed, if anything may be; with the layers that had to make room for it."""
    if model.device.type != "cpu" or not can_pack(model.model.dtype) or not _has_room(model):
        return [], []
    if model.products is not None:
        return model.products, []
    swapped = _swap(model.model, model.modes)
    return [getattr(parent, name).product for parent, name, _ in swapped], swapped


def _has_room(model: CausalLM) -> bool:
    free = available_bytes(model.device)
    size = sum(parameter.nbytes for parameter in model.model.parameters())
    return free is None or size <= _SHARE_OF_FREE * free


def _swap(model: nn.Module, modes: Modes) -> list[Swap]:
    """Put products in the place of linear layers; (parent, name, original) of each."""
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    for parent, name, linear in found:
        setattr(parent, name, ProductLinear(linear, modes))
    return found


def _packed_wins(model: CausalLM, modes: Modes, rows: int) -> bool:
    """Time the forward of so many rows in both forms, turn by turn; compare best times and medians."""
    tokens = torch.zeros(rows, dtype=torch.int64, device=model.device)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    began = time.perf_counter()
    while len(seconds[True]) < _FEWEST or (
        len(seconds[True]) < _MOST and time.perf_counter() - began < _TRIAL_S
    ):
        for packed in (False, True):
            modes.packed_rows = {rows} if packed else set()
            model.rollback(0)
            started = time.perf_counter()
            model.score(tokens, last=rows)
            seconds[packed].append(time.perf_counter() - started)
    model.rollback(0)
    plain, packed_s = sorted(seconds[False]), sorted(seconds[True])
    return all(packed_s[rank] < _CLEARLY * plain[rank] for rank in (0, len(plain) // 2))
