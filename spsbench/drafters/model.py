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
from spsbench.decode.rows import Floats
from spsbench.decode.sampling import as_tensor
from spsbench.decode.stages import Propose, Unstaged, propose_of
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
        self._programs: dict[int, Propose | None] = {}

    def begin(self, prompt: Sequence[int]) -> None:
        """Read the prompt but its last token, which stays pending."""
        self._drafted = self._begun = 0
        self._prompt = len(prompt)
        self._programs.clear()
        if self._policy is not None:
            self._policy.begin()
        self.model.begin(prompt)

    def propose_stage(self, k: int) -> Propose | Unstaged:
        """Return the stage that samples K tokens, see ``decode.stages``."""
        # A policy's K changes from loop to loop, and a program has one K.
        unless = "" if self._policy is None else "a policy changes K"
        unless = unless if self._process is None else "the law looks at the tokens before"
        return propose_of(self.model, k, self.sampling, unless)

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        """Sample tokens; they stay on the device, and the host waits only where the policy needs rows."""
        propose = self._program(k)
        if propose is not None:
            return self._from_program(propose, tokens, k, u.numpy())
        return self._sampled(tokens, lookahead_of(self._policy, k), u, [], [])

    def propose(self, tokens: Sequence[int], k: int, u: Floats) -> Draft | None:
        """See ``StagedDrafter``; None, too, where a subclass has its own ``draft``."""
        propose = self._program(k) if getattr(self.draft, "__func__", None) is _DRAFT else None
        return None if propose is None else self._from_program(propose, tokens, k, u)

    def _program(self, k: int) -> Propose | None:
        if k not in self._programs:
            stage = self.propose_stage(k)
            self._programs[k] = None if isinstance(stage, Unstaged) else stage
        return self._programs[k]

    def _from_program(self, propose: Propose, tokens: Sequence[int], k: int, u: Floats) -> Draft:
        """Return a program's draft, continued where the program could not decide a row."""
        drafted, own_rows, logits = propose(tokens[self.model.length :], u)
        if logits is not None:
            return self._sampled(tokens, k, as_tensor(u), [torch.from_numpy(drafted)], [own_rows], logits)
        if len(drafted) < k:  # the program failed
            self._programs[k] = None
            return self._sampled(tokens, k, as_tensor(u), [], [])
        self._drafted, self._begun = k, len(tokens)
        return Draft(drafted, own_rows)

    def _sampled(
        self,
        tokens: Sequence[int],
        most: int,
        u: Tensor,
        picks: list[Tensor],
        held: list[rows.Rows],
        logits: Tensor | None = None,
    ) -> Draft:
        """Draft one forward after another until there are ``most`` tokens.

        Args:
            picks: what has been drawn.
            held: the rows that it was drawn from.
            logits: [1, V] of the next place, if the model has given them.
        """
        pending = picks[-1] if picks else last_tokens(tokens, len(tokens) - self.model.length, self._device)
        before = None if self._process is None else list(tokens)
        for i in range(sum(map(len, picks)), most):
            if logits is None:
                logits = self.model.score(pending, last=1)
            if before is not None:
                before += pending.tolist() if i else []
                logits = with_history(logits, self._process, before, self._prompt)
            row = rows.warped(logits, self.sampling)
            logits = None
            pending = row.draw(u[i : i + 1])
            picks.append(pending)
            held.append(row)
            # After the last token nothing is left to decide.
            if self._margin is not None and i + 1 < most and self._ends_draft(self._margin, row, pending):
                break
        drafted, drawn_from = (
            (picks[0], held[0]) if len(picks) == 1 else (torch.cat(picks), rows.joined(held))
        )
        self._drafted, self._begun = len(drafted), len(tokens)
        return Draft(drafted, drawn_from)

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


_DRAFT = ModelDrafter.draft


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
