"""Exact beam search, and beam search speculation: the same beams from fewer passes of the target.

A search is a tree of nodes after the prompt's last token; a beam is a node with its cumulative
log-probability. Each step scores the next token of every beam and keeps the best candidates. Scores,
finished hypotheses, length penalty and the end of the search are those of transformers' ``generate()`` with
``num_beams`` (5.x, one prompt at a time); ``early_stopping`` means the same. Scores are float32.

Speculation (proposed as future work in lectures on Leviathan et al. 2022): from the target's w beams the
draft runs its own search, u >= w beams wide, for K steps. One pass of the target scores every node of
that tree. Then the target's own steps are walked. While all beams of a step are nodes of the tree, their
rows are there already and the next step is free. The first step that leaves the tree is kept too, since it
is the target's, and ends the loop. So a loop makes between 1 and K+1 steps, and each of them is the step
that plain beam search makes.

Candidates of exactly equal score keep the order of their beams, then of their token ids. Rows of
one pass and of several differ by rounding, so that hypotheses can differ where two candidates are closer than
that. ``BeamSearch.closest`` says how close any choice was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from spsbench.base.records import BeamParams, FinishReason, Hypothesis
from spsbench.decode.clock import Stopwatch


@dataclass(eq=False, slots=True)
class Node:
    """A token after those of its parent; the root is the prompt's last token.

    Equal continuations are one object (``child``), so that nodes can be looked up by identity.

    Attributes:
        token: id of the token.
        parent: None for the root.
        depth: number of tokens after the prompt, this one included; 0 for the root.
    """

    token: int
    parent: Node | None = None
    depth: int = 0
    _children: dict[int, Node] = field(default_factory=dict, repr=False)

    def child(self, token: int) -> Node:
        """Return the node of one more token."""
        node = self._children.get(token)
        if node is None:
            node = self._children[token] = Node(token, self, self.depth + 1)
        return node

    def tokens(self) -> list[int]:
        """Return the tokens after the prompt, this node's last."""
        backwards: list[int] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            backwards.append(node.token)
            node = node.parent
        return backwards[::-1]


@dataclass(frozen=True, slots=True)
class Beam:
    """A hypothesis that goes on: its last token and its cumulative log-probability, natural logarithm."""

    node: Node
    score: float


Ends = Callable[[Node, int], FinishReason | None]
"""Why a hypothesis ends with one more token after a node; None if it goes on."""


class TreeModel(Protocol):
    """A model that scores a tree of tokens after one prompt and keeps what it has read."""

    def begin(self, prompt: Sequence[int]) -> None:
        """Forget the last sequence and read all of the prompt but its last token, the tree's root."""
        ...

    def score(self, nodes: Sequence[Node]) -> Tensor:
        """Read nodes, and ancestors that were not read yet, in one pass.

        Args:
            nodes: distinct, none read before.

        Returns:
            [n, V] logits of the token after each node.
        """
        ...

    def keep(self, nodes: Sequence[Node]) -> None:
        """Forget all that was read except these nodes' ancestors; the nodes themselves are pending."""
        ...


@dataclass(frozen=True, slots=True)
class Continuation:
    """A beam with one more token."""

    parent: Node
    token: int
    score: float


def best_candidates(beams: Sequence[Beam], logits: Tensor, n: int) -> list[Continuation]:
    """Return the n best continuations, best first; fewer where fewer have a probability above 0.

    Args:
        beams: w of them.
        logits: [w, V] of the token after each.
        n: how many.

    Raises:
        FloatingPointError: a logit is NaN, or no token of a row is possible.
    """
    scores = torch.log_softmax(logits.float(), dim=-1)
    if bool(scores.isnan().any()):
        raise FloatingPointError("the logits of a beam are not finite numbers")
    before = torch.tensor([beam.score for beam in beams], dtype=torch.float32, device=scores.device)
    flat = (scores + before.unsqueeze(1)).flatten()
    least = torch.topk(flat, min(n, len(flat))).values[-1]
    candidates = ((flat >= least) & ~flat.isneginf()).nonzero().squeeze(-1)
    order = torch.sort(flat[candidates], descending=True, stable=True).indices
    best = candidates[order[:n]]
    width = scores.shape[-1]
    return [
        Continuation(beams[index // width].node, index % width, score)
        for index, score in zip(best.tolist(), flat[best].tolist(), strict=True)
    ]


def enough_candidates(width: int, end_tokens: int) -> int:
    """Return how many of the best are sure to hold ``width`` that go on, as in transformers."""
    return max(2, 1 + end_tokens) * width


class BeamSearch:
    """The state of one search; ``step`` is one step of exact beam search.

    Args:
        root: the prompt's last token.
        params: width, length penalty and early stopping.
        ends: why a hypothesis ends.
        end_tokens: how many tokens end a hypothesis by themselves.
        max_new_tokens: the length limit, at least 1.

    Attributes:
        beams: that go on, best first; at most w.
        steps: made so far, which is the length of every beam.
        over: whether the search has ended.
        closest: the least difference by which any step chose, in nats of the sum of log-probabilities: less
            rounding than this changes no hypothesis. A difference of two scores counts times the smaller of
            what their sums were divided by.
    """

    def __init__(
        self, root: Node, params: BeamParams, ends: Ends, end_tokens: int, max_new_tokens: int
    ) -> None:
        self.beams = [Beam(root, 0.0)]
        self.steps = 0
        self.over = False
        self.closest = math.inf
        self._params = params
        self._ends = ends
        self._max_new_tokens = max_new_tokens
        self._candidates = enough_candidates(params.width, end_tokens)
        self._finished: list[Hypothesis] = []

    @property
    def left(self) -> int:
        """Return the steps that are left until the length limit."""
        return self._max_new_tokens - self.steps

    @property
    def hypotheses(self) -> list[Hypothesis]:
        """Return the finished hypotheses, best first; at most w."""
        return list(self._finished)

    def step(self, logits: Tensor) -> None:
        """Advance the search by one token.

        Args:
            logits: [n, V] of the token after each of ``beams``.
        """
        width, count = self._params.width, self._candidates
        candidates = best_candidates(
            self.beams, logits, count + 1
        )  # one more, to know how close the choice was
        reasons = [self._ends(candidate.parent, candidate.token) for candidate in candidates]
        self.steps += 1
        self._record_close_scores(candidates, reasons)
        ended = zip(candidates[:width], reasons[:width], strict=True)
        self._finish([(candidate, reason) for candidate, reason in ended if reason is not None])
        going = [c for c, reason in zip(candidates[:count], reasons, strict=False) if reason is None]
        self.beams = [Beam(c.parent.child(c.token), c.score) for c in going[:width]]
        self.over = not self.beams or not self._may_improve()

    def _record_close_scores(
        self, candidates: Sequence[Continuation], reasons: Sequence[FinishReason | None]
    ) -> None:
        """Record the gaps between scores whose swap would change the beams or the finished hypotheses."""
        width = self._params.width
        going = [c for c, reason in zip(candidates, reasons, strict=True) if reason is None]
        if len(going) > width:
            self._gap(going[width - 1].score, going[width].score)
        if any(reasons[width - 1 : width + 1]) and len(candidates) > width:
            self._gap(candidates[width - 1].score, candidates[width].score)

    def _gap(self, one: float, other: float, divisor: float = 1.0) -> None:
        self.closest = min(self.closest, abs(one - other) * divisor)

    def _score_divisor(self, length: int) -> float:
        """Of the log-probability of ``length`` tokens."""
        return float(length**self._params.length_penalty)

    def _finish(self, ended: Sequence[tuple[Continuation, FinishReason]]) -> None:
        """Take new hypotheses among the finished ones, of which the best w stay; older ones win ties."""
        width = self._params.width
        divisor = self._score_divisor(self.steps)
        for candidate, reason in ended:
            tokens = (*candidate.parent.tokens(), candidate.token)
            score = _divided(candidate.score, divisor)
            self._finished.append(Hypothesis(tokens, score, candidate.score, reason))
        self._finished.sort(key=lambda hypothesis: -hypothesis.score)
        if len(self._finished) > width:
            worst, left_out = self._finished[width - 1 : width + 1]
            least = min(self._score_divisor(len(hypothesis.tokens)) for hypothesis in (worst, left_out))
            self._gap(worst.score, left_out.score, least)
        del self._finished[width:]

    def _may_improve(self) -> bool:
        """Whether the best beam may still end better than the worst finished hypothesis.

        As transformers has it: at its present length; with ``never`` and a positive penalty at the longest.
        """
        params = self._params
        if len(self._finished) < params.width:
            return True
        if params.early_stopping is True:
            return False
        patient = params.early_stopping == "never" and params.length_penalty > 0
        divisor = self._score_divisor(self._max_new_tokens if patient else self.steps)
        possible = _divided(self.beams[0].score, divisor)
        worst = self._finished[-1]
        self._gap(possible, worst.score, min(divisor, self._score_divisor(len(worst.tokens))))
        return possible > worst.score


def _divided(score: float, divisor: float) -> float:
    """Divide in float32, in which transformers compares."""
    return float(torch.tensor(score, dtype=torch.float32) / divisor)


@dataclass(frozen=True, slots=True)
class BeamLoop:
    """One pass of the target.

    Attributes:
        steps: of the search that it gave, 1 to K+1.
        drafted: steps that the draft proposed, without those after the end of the search; 0 without a draft.
        accepted: of these, after how many all of the target's beams were among the draft's.
        nodes: that the pass scored.
    """

    steps: int
    drafted: int
    accepted: int
    nodes: int


def beam_search(target: TreeModel, search: BeamSearch, watch: Stopwatch) -> Iterator[BeamLoop]:
    """Run plain beam search: one pass of the target a step. ``target`` has begun the prompt."""
    while not search.over:
        nodes = [beam.node for beam in search.beams]
        target.keep(nodes)
        watch.lap("other")
        logits = target.score(nodes)
        watch.lap("verify")
        search.step(logits)
        watch.lap("sample")
        yield BeamLoop(1, 0, 0, len(nodes))


def beam_speculative(
    target: TreeModel, draft: TreeModel, search: BeamSearch, k: int, watch: Stopwatch, grow: Grow
) -> Iterator[BeamLoop]:
    """Run the same search by speculation.

    Args:
        target, draft: both have begun the prompt.
        search: at its start.
        k: the most steps that the draft proposes; fewer towards the length limit.
        watch: notified of the phases.
        grow: the draft's search; see ``DraftSearch``.
    """
    while not search.over:
        pending = [beam.node for beam in search.beams]
        for model in (target, draft):
            model.keep(pending)
        watch.lap("other")
        levels = grow(draft, search.beams, min(k, search.left - 1))
        watch.lap("draft")
        nodes = [*pending, *(node for level in levels for node in level)]
        logits = target.score(nodes)
        watch.lap("verify")
        loop = walk(search, nodes, logits, len(levels))
        watch.lap("sample")
        yield loop


def walk(search: BeamSearch, nodes: Sequence[Node], logits: Tensor, depth: int) -> BeamLoop:
    """Make the target's steps for as long as its beams are nodes that were scored.

    Args:
        search: whose beams are among the nodes.
        nodes: n of them.
        logits: [n, V] of the token after each.
        depth: steps of the draft in the tree.
    """
    place = {node: index for index, node in enumerate(nodes)}
    steps = accepted = 0
    while True:
        rows = torch.tensor([place[beam.node] for beam in search.beams], device=logits.device)
        search.step(logits[rows])
        steps += 1
        inside = bool(search.beams) and all(beam.node in place for beam in search.beams)
        accepted += inside
        if search.over or not inside:
            drafted = min(depth, steps) if search.over else depth
            return BeamLoop(steps, drafted, accepted, len(nodes))


Grow = Callable[[TreeModel, Sequence[Beam], int], list[list[Node]]]
"""From a model, the target's beams and a number of steps to the draft's nodes, one list a step."""


@dataclass(frozen=True, slots=True)
class DraftSearch:
    """The draft's own beam search from the target's beams on, at their scores.

    Hypotheses that end are left out: nothing follows them that the target could be asked for.

    Attributes:
        width: u, how many beams go on.
        ends: why a hypothesis ends.
        end_tokens: how many tokens end one by themselves.
    """

    width: int
    ends: Ends
    end_tokens: int

    def __call__(self, draft: TreeModel, beams: Sequence[Beam], depth: int) -> list[list[Node]]:
        """Up to ``depth`` lists of at most u nodes; the last one's are not read by the draft."""
        levels: list[list[Node]] = []
        while beams and len(levels) < depth:
            logits = draft.score([beam.node for beam in beams])
            candidates = best_candidates(beams, logits, enough_candidates(self.width, self.end_tokens))
            going = [c for c in candidates if self.ends(c.parent, c.token) is None][: self.width]
            beams = [Beam(c.parent.child(c.token), c.score) for c in going]
            if beams:
                levels.append([beam.node for beam in beams])
        return levels
