"""The paper's drafter: a smaller language model, sampled auto-regressively."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from spsbench.base.plugins import Options
from spsbench.base.records import SamplingParams
from spsbench.decode import rows
from spsbench.decode.processors import with_history
from spsbench.decode.protocols import Drafter, LanguageModel, last_tokens
from spsbench.decode.rejection import Draft
from spsbench.drafters.forced import by_model
from spsbench.drafters.policy import lookahead_of
from spsbench.drafters.registry import PROCESSED, TREE, Context, Margin, Policy
from spsbench.drafters.shape import shape_of
from spsbench.drafters.tree import ModelTreeDrafter
from spsbench.models.beam_lm import tree_of

if TYPE_CHECKING:
    from spsbench.drafters.tree import Siblings


class ModelDrafter:
    """Samples up to K tokens from a draft model with the same warping as the target's.

    After full acceptance the draft has not read its own last token: it then reads two pending tokens
    in one forward, so that every loop costs exactly as many draft forwards as it drafts tokens.

    Args:
        model: the draft.
        sampling: of draft and target.
        device: where they are.
        policy: how many tokens a loop drafts; K unless given.
    """

    def __init__(
        self,
        model: LanguageModel,
        sampling: SamplingParams,
        device: torch.device,
        policy: Policy | None = None,
    ) -> None:
        self.model = model
        self.sampling = sampling
        self._process = sampling.history
        self._device = device
        self._policy = policy
        self._margin = None if policy is None else policy.margin
        self._drafted = self._begun = self._prompt = 0

    def begin(self, prompt: Sequence[int]) -> None:
        """Read the prompt but its last token, which stays pending."""
        self._drafted = self._begun = 0
        self._prompt = len(prompt)
        if self._policy is not None:
            self._policy.begin()
        self.model.begin(prompt)

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        """Sample tokens; they stay on the device, and the host waits only where the policy needs rows."""
        most = lookahead_of(self._policy, k)
        pending = last_tokens(tokens, len(tokens) - self.model.length, self._device)
        before = None if self._process is None else list(tokens)
        picks: list[Tensor] = []
        held: list[rows.Rows] = []
        for i in range(most):
            logits = self.model.score(pending, last=1)
            if before is not None:
                before += pending.tolist() if i else []
                logits = with_history(logits, self._process, before, self._prompt)
            row = rows.warped(logits, self.sampling)
            pending = row.draw(u[i : i + 1])
            picks.append(pending)
            held.append(row)
            # After the last token nothing is left to decide.
            if self._margin is not None and i + 1 < most and self._ends_draft(self._margin, row, pending):
                break
        self._drafted, self._begun = len(picks), len(tokens)
        return Draft(torch.cat(picks), rows.joined(held))

    forced = by_model

    @staticmethod
    def _ends_draft(margin: Margin, row: rows.Rows, token: Tensor) -> bool:
        """Whether the draft ends after a token, drawn from its own row."""
        return float(margin(rows.for_judge(margin, row), token)) < 0

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Roll back to the accepted tokens; the last decided token stays pending."""
        decided = len(tokens) - 1
        self.model.rollback(min(decided, self._begun + accepted) if self._drafted else decided)
        if self._policy is not None and self._drafted:
            self._policy.observe(self._drafted, accepted)
        self._drafted = 0


def build(options: Options, context: Context) -> Drafter:
    draft = context.draft
    assert draft is not None
    if not options[PROCESSED]:
        context = replace(context, sampling=replace(context.sampling, process=None))
    return tree_drafter(draft, options, context) or ModelDrafter(
        draft, context.sampling, context.device, context.policy
    )


def tree_drafter(model: LanguageModel, options: Options, context: Context) -> ModelTreeDrafter | None:
    """Return a drafter of trees over a model; None where its options ask for chains."""
    shape = shape_of(str(options[TREE]), "--tree")
    if shape is None:
        return None
    siblings = cast("Siblings", options["siblings"])
    scored = (context.trees or tree_of)(model)
    return ModelTreeDrafter(scored, context.sampling, shape, siblings, context.k)
