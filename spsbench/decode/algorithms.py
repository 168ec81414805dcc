"""Algorithm 1 (ArS) and Algorithm 2 (SpS) of Chen et al. 2023, as generators of loops.

They decode without end; the consumer decides where the output stops, what is recorded and
what is shown. ``start`` is where every sampler begins: it reads the prompt and gives the loops. Each
loop's uniform numbers are drawn up front: the draft's K picks, K acceptance tests and one final draw, so
that any engine can be compared with any other token for token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from spsbench.base.records import SamplingParams
from spsbench.decode import rejection, rows
from spsbench.decode.beam import Node, TreeModel
from spsbench.decode.clock import Stopwatch
from spsbench.decode.processors import with_history
from spsbench.decode.protocols import Drafter, LanguageModel, Tokens, last_tokens
from spsbench.decode.rejection import Accept, Draft, accept_draft, decide, judged
from spsbench.decode.rows import Floats, Rows
from spsbench.decode.sampling import Uniforms, as_tensor
from spsbench.decode.stages import Propose, Unstaged, Verify, proposes, verify_of


@dataclass(slots=True)
class DecodedLoop:
    """One loop as it left the algorithm, before EOS, stop strings and length are checked.

    Attributes:
        tokens: 1 to n+1 new tokens: the accepted ones and the one after them.
        accepted: how many of them the draft proposed.
        target_rows: n+1 (ArS: 1) warped target rows over V tokens, kept for the records.
        draft: the proposal of n tokens, at most K; None for ArS.
        numbers: the loop's uniform numbers, [2K+1]: the first n picked, the last n+1 tested and drew.
        path: of a tree the nodes that stand; the rows are then those behind the pending token and each node.
    """

    tokens: list[int]
    accepted: int
    target_rows: Rows
    draft: Draft | None
    numbers: Tensor | Floats
    path: tuple[int, ...] | None = None

    @property
    def u(self) -> Tensor:
        """``numbers`` as a tensor."""
        return as_tensor(self.numbers)

    @property
    def target_probs(self) -> Tensor:
        """[n+1, V] the target's rows as a tensor, built where they are not held like that."""
        return self.target_rows.dense()


Loops = Callable[[Stopwatch], Iterator[DecodedLoop]]
"""Loops without end after a prompt that has been read; the watch times them from its own start on."""


def start(
    target: LanguageModel,
    drafter: Drafter | None,
    prompt: Sequence[int],
    k: int,
    sampling: SamplingParams,
    uniforms: Uniforms,
    rule: Accept | None = None,
) -> Loops:
    """Forget the last sequence and read the prompt with every model; the loops are still to come.

    The last prompt token stays pending in each (``LanguageModel.begin``). Reading is over when this
    returns, and the first draft is not begun: who times decoding starts the watch in between.

    Args:
        target: writes the output's distribution.
        drafter: proposes tokens; None for ArS.
        prompt: at least one token.
        k: lookahead; without effect for ArS.
        sampling: of the target; the drafter has its own.
        uniforms: the sequence's numbers.
        rule: judges drafts; modified rejection unless given.
    """
    pending = target.begin(prompt)
    if drafter is not None:
        drafter.begin(prompt)

    def loops(watch: Stopwatch) -> Iterator[DecodedLoop]:
        if drafter is None:
            return ars(target, pending, sampling, uniforms, watch, prompt)
        return sps(target, drafter, prompt, k, sampling, uniforms, watch, rule, pending)

    return loops


def proposed_by(drafter: Drafter, k: int) -> Propose | Unstaged:
    """The stage by which a drafter proposes K tokens."""
    stage = getattr(drafter, "propose_stage", None)
    return Unstaged("the drafter has no program") if stage is None else stage(k)


def verified_by(
    target: LanguageModel, drafter: Drafter | None, k: int, sampling: SamplingParams, rule: Accept | None
) -> Verify | Unstaged:
    """The stage by which a target judges the drafts of a loop, or takes a step of ArS without a drafter."""
    if drafter is None:
        return verify_of(target, 0, sampling)
    if (rule or accept_draft) is not rejection.accept_draft:
        return verify_of(target, k, sampling, unless="another rule judges")
    proposed = proposed_by(drafter, k)
    if isinstance(proposed, Unstaged):  # a program judges by rows as a program cuts them
        why = proposed.reason or "the draft has no program"
        return verify_of(target, k, sampling, unless=why)
    return verify_of(target, k, sampling)


def ars(
    target: LanguageModel,
    pending: Tensor,
    sampling: SamplingParams,
    uniforms: Uniforms,
    watch: Stopwatch,
    prompt: Sequence[int] = (),
) -> Iterator[DecodedLoop]:
    """Run Algorithm 1: one token a loop. ``target`` has read the prompt but ``pending``, [1]; only processing
    that looks at the tokens before asks for ``prompt``."""
    process, tokens, token = sampling.history, list(prompt), list[int]()
    found = verified_by(target, None, 0, sampling, None)
    verify = None if isinstance(found, Unstaged) else found
    if verify is not None:
        token, nothing = pending.tolist(), Draft(np.zeros(0, np.int64), None)
    numbers = uniforms if verify is None else uniforms.on_host
    while True:
        u = numbers(1)
        watch.lap("other")
        verified = None if verify is None else verify(token[0], nothing, cast("Floats", u))
        if verified is not None:
            q, decision = verified
            watch.lap("verify")
        else:
            if verify is not None:  # it failed: the host goes on from its token
                pending, verify = torch.tensor(token), None
            logits, decision = target.score(pending, last=1), None
            watch.lap("verify")
            if process is not None:
                tokens += token
                logits = with_history(logits, process, tokens, len(prompt))
            q = rows.warped(logits, sampling)
        if decision is None:
            pending = q.draw(as_tensor(u))
            token = pending.tolist()
        else:
            token = [decision.token]
        watch.lap("sample")
        yield DecodedLoop(token, 0, q, None, u)


def sps(
    target: LanguageModel,
    drafter: Drafter,
    prompt: Sequence[int],
    k: int,
    sampling: SamplingParams,
    uniforms: Uniforms,
    watch: Stopwatch,
    rule: Accept | None = None,
    pending: Tensor | None = None,
) -> Iterator[DecodedLoop]:
    """Run Algorithm 2: draft K tokens, score them in one pass, keep a prefix and one more token.

    ``target`` and ``drafter`` have read the prompt but its last token, ``pending`` [1] on their device. The
    last decided token is always pending: read by neither until the next loop. Another ``rule`` than modified
    rejection is no longer SpS.
    """
    tokens, process = Tokens(prompt, pending), sampling.history
    rule = rule or accept_draft
    found = verified_by(target, drafter, k, sampling, rule)
    verify = None if isinstance(found, Unstaged) else found
    propose = None if verify is None else proposes(drafter)
    numbers = uniforms if verify is None else uniforms.on_host
    while True:
        u = numbers(2 * k + 1)
        watch.lap("other")
        draft = None if propose is None else propose(tokens, k, cast("Floats", u[:k]))
        if draft is None:
            draft = drafter.draft(tokens, k, as_tensor(u[:k]))
        if draft.parents is not None:
            why = "a tree was drafted where chains are verified: the drafter needs the option tree"
            raise ValueError(why)
        watch.lap("draft")
        # A drafter may propose fewer than K: the last numbers are the tests' and the final draw's.
        tests = u[-draft.count - 1 :]
        verified = None if verify is None else verify(tokens[-1], draft, cast("Floats", tests))
        if verified is not None:
            q, decision = verified
            watch.lap("verify")
        else:
            block = torch.cat([last_tokens(tokens, 1, uniforms.device), draft.tokens])
            logits, decision = target.score(block, last=len(block)), None
            watch.lap("verify")
            if process is not None:
                logits = with_history(logits, process, [*tokens, *draft.on_host()], len(prompt))
            q = rows.warped(logits, sampling)
        drafted, accepted, token, latest = decision or decide(rule, q, draft, as_tensor(tests))
        new = [*drafted[:accepted], token]
        watch.lap("sample")
        tokens.add(new, latest)
        target.rollback(len(tokens) - 1)
        drafter.observe(tokens, accepted)
        watch.rolled_back()
        yield DecodedLoop(new, accepted, q, draft, u)


def start_tree(
    target: TreeModel,
    drafter: Drafter,
    prompt: Sequence[int],
    k: int,
    sampling: SamplingParams,
    uniforms: Uniforms,
    rule: Accept,
) -> Loops:
    """``start`` of ``sps`` with drafts that are trees of at most K tokens; one pass of the target scores all.

    Equal siblings are one node to the target, and as many proposals to the rule.
    """
    target.begin(prompt)
    drafter.begin(prompt)

    def loops(watch: Stopwatch) -> Iterator[DecodedLoop]:
        tokens, root, process = list(prompt), Node(prompt[-1]), sampling.history
        while True:
            u = uniforms(2 * k + 1)
            watch.lap("other")
            draft = drafter.draft(tokens, k, u[:k])
            watch.lap("draft")
            drafted, nodes = draft.tokens.tolist(), [root]
            for token, parent in zip(drafted, draft.above, strict=True):
                nodes.append(nodes[parent + 1].child(token))
            distinct = list(dict.fromkeys(nodes))
            logits = target.score(distinct)
            watch.lap("verify")
            if process is not None:
                befores = ([*prompt, *node.tokens()] for node in distinct)
                each = zip(logits.unsqueeze(1), befores, strict=True)
                logits = torch.cat([with_history(row, process, all_, len(prompt)) for row, all_ in each])
            place = {node: index for index, node in enumerate(distinct)}
            q = rows.warped(logits, sampling).take([place[node] for node in nodes])
            verdict = judged(rule, q, draft, u[-len(nodes) :])
            path = tuple(range(int(verdict.accepted))) if verdict.path is None else verdict.path
            new = [*(drafted[node] for node in path), int(verdict.token)]
            watch.lap("sample")
            tokens += new
            root = nodes[path[-1] + 1 if path else 0].child(new[-1])
            target.keep([root])
            drafter.observe(tokens, len(path))
            yield DecodedLoop(new, len(path), q, draft, u, path)

    return loops
