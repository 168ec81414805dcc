"""Algorithm 1 (ArS) and Algorithm 2 (SpS) of Chen et al. 2023, as generators of loops.

They decode without end; the consumer decides where the output stops, what is recorded and
what is shown. ``start`` is where every sampler begins: it reads the prompt and gives the loops. Each
loop's uniform numbers are drawn up front: the draft's K picks, K acceptance tests and one final draw, so
that any engine can be compared with any other token for token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spsbench.base.records import SamplingParams
from spsbench.decode import rows
from spsbench.decode.beam import Node, TreeModel
from spsbench.decode.clock import Stopwatch
from spsbench.decode.processors import with_history
from spsbench.decode.protocols import Drafter, LanguageModel, Tokens, Verified, Verifier, last_tokens
from spsbench.decode.rejection import Accept, Draft, accept_draft, decide, drawn, judged
from spsbench.decode.rows import Rows
from spsbench.decode.sampling import Uniforms


@dataclass(slots=True)
class DecodedLoop:
    """One loop as it left the algorithm, before EOS, stop strings and length are checked.

    Attributes:
        tokens: 1 to n+1 new tokens: the accepted ones and the one after them.
        accepted: how many of them the draft proposed.
        target_rows: n+1 (ArS: 1) warped target rows over V tokens, kept for the records.
        draft: the proposal of n tokens, at most K; None for ArS.
        u: [2K+1] the loop's uniform numbers: the first n picked, the last n+1 tested and drew.
        path: of a tree the nodes that stand; the rows are then those behind the pending token and each node.
    """

    tokens: list[int]
    accepted: int
    target_rows: Rows
    draft: Draft | None
    u: Tensor
    path: tuple[int, ...] | None = None

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

    verifier = TargetVerifier(target, sampling, prompt, uniforms.device, rule)

    def loops(watch: Stopwatch) -> Iterator[DecodedLoop]:
        tokens = Tokens(prompt, pending)
        if drafter is None:
            return ars(verifier, tokens, uniforms, watch)
        return sps(verifier, drafter, tokens, k, uniforms, watch)

    return loops


class TargetVerifier:
    """Judges by one pass of a model and a rule, operation by operation; see ``protocols.Verifier``.

    Args:
        target: writes the output's distribution; it has read ``prompt`` but its last token.
        sampling: of the target.
        prompt: where the output begins, which matters to processing that looks at the tokens before.
        device: of the target.
        rule: judges drafts; modified rejection unless given. With another one the loops are no longer SpS.
    """

    def __init__(
        self,
        target: LanguageModel,
        sampling: SamplingParams,
        prompt: Sequence[int],
        device: torch.device,
        rule: Accept | None = None,
    ) -> None:
        self._target, self._sampling, self._device = target, sampling, device
        self._rule, self._output_begins = rule or accept_draft, len(prompt)

    def score(self, tokens: Sequence[int], draft: Draft | None) -> None:
        block = last_tokens(tokens, 1, self._device)
        if draft is not None:
            block = torch.cat([block, draft.tokens])
        self._logits, self._tokens = self._target.score(block, last=len(block)), tokens

    def judge(self, draft: Draft | None, u: Tensor) -> Verified:
        logits, process = self._logits, self._sampling.history
        if process is not None:
            drafted = [] if draft is None else draft.tokens.tolist()
            logits = with_history(logits, process, [*self._tokens, *drafted], self._output_begins)
        q = rows.warped(logits, self._sampling)
        return Verified(q, drawn(q, u) if draft is None else decide(self._rule, q, draft, u))

    def keep(self, length: int) -> None:
        self._target.rollback(length)


def ars(verifier: Verifier, tokens: Tokens, uniforms: Uniforms, watch: Stopwatch) -> Iterator[DecodedLoop]:
    """Run Algorithm 1: one token a loop. The last of ``tokens`` is always pending, not yet read."""
    while True:
        u = uniforms(1)
        watch.lap("other")
        verifier.score(tokens, None)
        watch.lap("verify")
        q, (_, _, token, latest) = verifier.judge(None, u)
        watch.lap("sample")
        tokens.add([token], latest)
        yield DecodedLoop([token], 0, q, None, u)


def sps(
    verifier: Verifier, drafter: Drafter, tokens: Tokens, k: int, uniforms: Uniforms, watch: Stopwatch
) -> Iterator[DecodedLoop]:
    """Run Algorithm 2: draft K tokens, score them in one pass, keep a prefix and one more token.

    Target and drafter have read ``tokens`` but the last, which is always pending: read by neither until the
    next loop.
    """
    while True:
        u = uniforms(2 * k + 1)
        watch.lap("other")
        draft = drafter.draft(tokens, k, u[:k])
        if draft.parents is not None:
            why = "a tree was drafted where chains are verified: the drafter needs the option tree"
            raise ValueError(why)
        watch.lap("draft")
        verifier.score(tokens, draft)
        watch.lap("verify")
        # A drafter may propose fewer than K: the last numbers are the tests' and the final draw's.
        q, (drafted, accepted, token, latest) = verifier.judge(draft, u[-draft.count - 1 :])
        new = [*drafted[:accepted], token]
        watch.lap("sample")
        tokens.add(new, latest)
        verifier.keep(len(tokens) - 1)
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
