"""What a run will take of a device's memory: the weights, and what is beside them in its longest sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from spsbench.base.axes import MODEL
from spsbench.base.records import Arm
from spsbench.config.models import ONNXRUNTIME, Precision
from spsbench.engines.arms import GRAPHED, is_peer
from spsbench.engines.buffer import MOST_BYTES, PORTION_BYTES
from spsbench.engines.rescore import rows_at_a_time
from spsbench.models.causal_lm import roomy
from spsbench.models.memory import (
    DTYPES,
    available_bytes,
    cache_bytes_per_token,
    computed_width,
    forward_bytes_per_token,
    require_free,
)
from spsbench.models.recurrent import state_bytes_of
from spsbench.runner.messages import MemoryNeeded

if TYPE_CHECKING:
    from spsbench.runner.models import Models

_ROW_BYTES = 4  # of a number of a warped row
_COPIES = 5
"""Of the rows that are reduced to records at a time: both models', joined, and a loop's beside each other."""
_READ_COPIES = 6
"""Of the rows that are read again at a time, as float32: at most 5.4 were counted (209 MB for 64 rows of
151,936 tokens, nucleus, bfloat16; ``benchmarks/proof_memory.py`` at commit d3b7459b)."""


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that a run takes on its device at most.

    Attributes:
        weights: None where they are not known before they are downloaded.
        caches: keys and values of the longest sequence, of every row of a batch.
        rows: what is kept of the loops until it is reduced to records, or what reading again takes.
        forward: what a forward of the longest sequence has between its layers.
        states: running states, of the target after each token of a block where they fit (``planes``).
        sequences: the most that are decoded at once.
        slots: tokens of the longest one.
    """

    weights: int | None
    caches: int
    rows: int
    forward: int
    sequences: int
    slots: int
    states: int = 0

    @property
    def total(self) -> int:
        return (self.weights or 0) + self.caches + self.rows + self.forward + self.states

    def needed(self, device: torch.device) -> MemoryNeeded | None:
        """Of what the device has free; None where that or the weights' size is not known."""
        free = available_bytes(device)
        if free is None or self.weights is None:
            return None
        parts = {"weights": self.weights, "caches": self.caches, "rows": self.rows, "forward": self.forward}
        return MemoryNeeded(free, parts | ({"states": self.states} if self.states else {}))

    def require(self, device: torch.device) -> None:
        """Refuse a run that does not fit.

        Raises:
            UsageError: of ``--batch`` where several sequences are decoded at once, else of the length.
        """
        tokens = f"{self.slots} tokens"
        flag = "--max-new-tokens"
        remedy = "Give fewer, shorter prompts, or --dtype bfloat16."
        if self.sequences > 1:
            tokens = f"{self.sequences} sequences of {tokens}"
            flag = "--batch"
            remedy = "Give smaller or fewer batches, or fewer --max-new-tokens."
        require_free(self.total, device, f"the models, the caches of {tokens} and their rows", flag, remedy)


def room_of(models: Models, arms: Sequence[Arm], slots: int, max_new_tokens: int, split: int = 1) -> Room:
    """Count what a run of arms takes whose longest sequence has ``slots`` tokens, the last draft included.

    Args:
        split: over how many processes the target is split.

    Raises:
        UsageError: the device has less.
    """
    source = models.source
    dtypes = models.dtypes
    device = models.device
    split = 1 if device.type == "cpu" else split
    arms_here = [arm for arm in arms if not is_peer(arm)]
    sizes = sorted({arm.batch for arm in arms_here if arm.batch > 1})
    drafts = any(
        arm.method == "draft" or (arm.method == "sps" and arm.drafter.name == MODEL) for arm in arms_here
    )
    # Batches over ONNX Runtime have the weights packed again for blocks of several tokens.
    speculates = any(arm.method == "sps" for arm in arms_here)
    copies = 1 + (len(sizes) if speculates and models.backend == ONNXRUNTIME else 0)
    weights = None
    loaded = models.weights
    if loaded.target is not None and loaded.draft is not None:  # the draft is loaded whatever drafts
        weights = copies * loaded.target // split + (copies if drafts else 1) * loaded.draft
    width = computed_width(source.target, dtypes[0])
    per_token = cache_bytes_per_token(source.target.config, width) // split
    if drafts:
        per_token += cache_bytes_per_token(source.draft.config, computed_width(source.draft, dtypes[1]))
    forward = slots * forward_bytes_per_token(source.target.config, width)
    columns = sum(sizes) * slots
    single = [arm for arm in arms_here if arm.batch == 1]
    columns += roomy(slots, slots) if any(arm.engine != GRAPHED for arm in single) else 0
    columns += slots if any(arm.engine == GRAPHED for arm in single) else 0
    row = source.vocab_size * _ROW_BYTES
    widest = max((2 * arm.k + 1 for arm in arms_here), default=1)
    at_once = max((arm.batch for arm in arms_here), default=1)
    # On a CPU a row is as long as its nucleus until it is reduced. Graphs have room for the rows of as many
    # loops as slots from the beginning, and still while an output is read again.
    graphed = any(arm.engine == GRAPHED for arm in arms_here)
    loop = at_once * widest * row
    kept = 0
    if device.type != "cpu":
        kept = max(loop, min(MOST_BYTES, loop * (slots if graphed else max_new_tokens)))
    graph_bytes = kept if graphed else 0
    kept += _COPIES * min(PORTION_BYTES, max_new_tokens * row)
    read = _READ_COPIES * min(rows_at_a_time(source.vocab_size), max_new_tokens) * row
    room = Room(weights, columns * per_token, max(kept, graph_bytes + read), forward, at_once, slots)
    once, each_token = _state_bytes(models, arms_here, drafts=drafts)
    room = replace(room, states=once)
    if each_token:
        whole, free = replace(room, states=once + each_token), available_bytes(device)
        room = whole if free is None or whole.total <= free else room
    room.require(device)
    return room


_STATES = 3
"""Of a sequence at least: before the block, now, and the next while it is computed."""


def _state_bytes(models: Models, arms: Sequence[Arm], *, drafts: bool) -> tuple[int, int]:
    """Where tokens are read again, and what keeping all states adds."""
    if models.backend == ONNXRUNTIME:
        return 0, 0
    target, draft = (
        state_bytes_of(source.config, DTYPES.get(Precision(dtype).dtype))
        for source, dtype in zip((models.source.target, models.source.draft), models.dtypes, strict=True)
    )
    k = max((arm.k for arm in arms), default=0)
    speculates = any(arm.method == "sps" for arm in arms)
    once = _STATES * (target + (draft if drafts else 0))
    return once, (k * target if speculates else 0) + (k * draft if drafts else 0)
