"""Drafts from block drafters: one forward for all places, drawn one by one where rows depend on draws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from spsbench.base.errors import UsageError
from spsbench.decode.rejection import Draft
from spsbench.drafters.forced import ForcedDrafts, ForcedText, by_chain
from spsbench.drafters.heads import EagleDrafter
from spsbench.drafters.registry import Context
from spsbench.drafters.shape import Shape
from spsbench.models.block_folders import load_block
from spsbench.models.blocks import BlockModel, BlockSlots
from spsbench.models.causal_lm import CausalLM, HiddenStates, OverTarget, States
from spsbench.models.trained import TrainedDraft


class _Context:
    """A block drafter over the states of what its target has read."""

    def __init__(self, model: BlockModel, hidden: HiddenStates, states: States, device: torch.device) -> None:
        self.model, self._hidden, self._states, self.device = model, hidden, states, device
        self._dtype = torch.float32

    def block(self, pending: Tensor, before: int, places: int) -> BlockSlots:
        """Read the states of the context's new tokens, and run a block behind ``before`` tokens."""
        self.model.rollback(before)
        features = self._hidden.features(self.model.length, before, self._states)
        self._dtype = features.dtype
        self.model.read(features)
        return self.model.block(pending, places)


class BlockAhead(_Context):
    """DFlash as ``heads.Ahead``: every row follows from what was decided."""

    @property
    def count(self) -> int:
        return self.model.form.drafts

    def begin(self) -> None:
        self.model.rollback(0)

    def rows(self, ids: Sequence[int] | Tensor, start: int, places: int) -> Tensor:
        pending = torch.as_tensor(ids[start - 1 : start], device=self.device)
        return self.block(pending, start - 1, places).all_logits().to(self._dtype)

    def forward_bytes(self) -> int:
        return self.model.forward_bytes()


class PathModel(_Context, OverTarget):
    """DSpark or DFlash2 as a language model that drafts: one block, whose places read what was drawn before.

    To roll back is to forget the block. The context's entries are of decided tokens alone.
    """

    def __init__(self, model: BlockModel, target: CausalLM, hidden: HiddenStates, states: States) -> None:
        OverTarget.__init__(self, target, hidden)
        _Context.__init__(self, model, hidden, states, target.device)
        self._length = self._place = 0
        self._slots: BlockSlots | None = None

    @property
    def length(self) -> int:
        return self._length

    def begin(self, prompt: Sequence[int]) -> Tensor:
        """Count the prompt as read: its states are the target's."""
        self.model.rollback(0)
        self.rollback(0)
        self._length = len(prompt) - 1
        return torch.tensor(prompt[-1:], device=self.device)

    def score(self, tokens: Tensor, last: int) -> Tensor:
        assert last == 1
        self._length += len(tokens)
        if self._slots is None:
            self._slots = self.block(tokens[-1:], self._length - 1, self.model.form.drafts)
        logits = self._slots.logits(self._place, tokens[-1:])
        self._place += 1
        return logits.to(self._dtype)

    def rollback(self, length: int) -> None:
        """Keep at most the first ``length`` tokens."""
        self._length = min(self._length, length)
        self._slots, self._place = None, 0

    def forward_bytes(self) -> int:
        return self.model.forward_bytes()


class PathDrafter(EagleDrafter):
    """Samples up to K tokens of one block, each from a row that the token before it has changed.

    It proposes as many tokens as a block has places, at most, and none after a single token.
    """

    model: PathModel

    @property
    def _most(self) -> int:
        return self.model.model.form.drafts

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        return super().draft(tokens, min(k, self._most), u)

    def forced(self, text: ForcedText, k: int) -> ForcedDrafts:
        found = by_chain(self, text, min(k, self._most))
        rest = ((0, 0), (0, k - found.ratios.shape[1]))
        return ForcedDrafts(np.pad(found.ratios, rest), found.drafted)

    def forward_bytes(self) -> int:
        """Bytes of weights that a draft reads, of however many tokens."""
        return self.model.forward_bytes()


def path_drafter(
    draft: TrainedDraft, hidden: HiddenStates, context: Context, target: CausalLM, shape: Shape | None
) -> PathDrafter:
    """Build the drafter of a folder whose rows depend on what was drawn."""
    if shape is not None:
        why = f"{draft.folder} is {draft.kind}, whose block is one path."
        raise UsageError(why, flag="--tree", remedy="Leave --tree out.")
    model = load_block(draft, target, "--drafter")
    path = PathModel(model, target, hidden, draft.states_of(target.layers))
    return PathDrafter(path, context.sampling, context.device)
