"""Many loops over few contexts, counted and tested; a model that computes the logits of a context once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

import torch
from torch import Tensor

from spsbench.decode.protocols import Drafter, LanguageModel, read_prompt
from spsbench.decode.sampling import warp
from spsbench.models.causal_lm import CausalLM
from spsbench.stats.evidence_stats import FALSE_ALARM, g_statistic, survival
from spsbench.verify.effort import Finding
from spsbench.verify.subject import SamplerUnderTest


class _Node:
    """A context: a node in the trie of all contexts scored so far."""

    __slots__ = ("children", "row", "state")

    def __init__(self) -> None:
        self.children: dict[int, _Node] = {}
        self.row: Tensor | None = None
        self.state: Tensor | None = None

    def child(self, token: int) -> _Node:
        """The context extended by one token."""
        node = self.children.get(token)
        if node is None:
            node = self.children[token] = _Node()
        return node


class MemoizedModel:
    """Memoizes logits by context, so that many draws over few contexts are cheap.

    A context keeps its first row, whatever block it was scored in: samples from memoized rows follow
    exactly the distribution of these rows. Of a model that keeps its hidden states these are remembered, too.
    """

    def __init__(self, model: LanguageModel, device: torch.device) -> None:
        self.vocab_size = model.vocab_size
        # Bound now: a fault injected into the model later must not change the reference.
        self._score, self._rollback, self._begin = model.score, model.rollback, model.begin
        self.room_behind = model.room_behind
        self._border = model.border if isinstance(model, CausalLM) else None
        self._features: Callable[[int, int], Tensor] | None = None
        if isinstance(model, CausalLM) and model.keeps_features:
            self._features = model.features
        self._device = device
        self._prompt: list[int] = []
        self._fed: list[int] = []
        self._path = [_Node()]
        self._read: list[int] = []

    @property
    def length(self) -> int:
        """Number of tokens in the current context."""
        return len(self._fed)

    def begin(self, prompt: Sequence[int]) -> Tensor:
        """See ``LanguageModel.begin``; an encoder-decoder reads it once a row is missing."""
        if self._border is None:
            return read_prompt(self, prompt, self._device)
        self.rollback(0)
        self._prompt = list(prompt)
        self._feed(self._prompt[:-1])
        return torch.tensor(self._prompt[-1:], device=self._device)

    def _feed(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._fed.append(token)
            self._path.append(self._path[-1].child(token))

    def score(self, tokens: Tensor, last: int) -> Tensor:
        self._feed(tokens.tolist())
        nodes = self._path[-last:]
        missing = next((i for i, node in enumerate(nodes) if node.row is None), last)
        if missing < last:
            self._compute(nodes, missing)
        rows = [node.row for node in nodes if node.row is not None]
        return rows[0] if last == 1 else torch.cat(rows)

    def rollback(self, length: int) -> None:
        del self._fed[length:]
        del self._path[length + 1 :]

    def features(self, start: int, end: int) -> Tensor:
        """See ``HiddenStates.features``."""
        states = [node.state for node in self._path[start + 1 : end + 1]]
        return torch.cat([state for state in states if state is not None])

    def row(self, context: Sequence[int]) -> Tensor:
        """Logits [1, V] after a context, which becomes the current one."""
        return self.score(self.begin(context), last=1)

    def _compute(self, nodes: list[_Node], missing: int) -> None:
        """Compute the rows from the first missing one on, in one forward of the wrapped model."""
        wanted = len(nodes) - missing
        known = len(self._fed) - wanted
        same = (ours == theirs for ours, theirs in zip(self._read, self._fed[:known], strict=False))
        shared = sum(takewhile(bool, same))
        if shared < len(self._prompt) - 1:
            self._begin(self._prompt)
            shared = len(self._prompt) - 1
        else:
            self._rollback(shared)
        self._read = list(self._fed)
        rows = self._score(torch.tensor(self._fed[shared:], device=self._device), last=wanted)
        for node, row in zip(nodes[missing:], torch.split(rows.clone(), 1), strict=True):
            if node.row is None:
                node.row = row
        if self._features is not None:
            states = self._features(shared, len(self._fed)).clone()
            for node, state in zip(self._path[shared + 1 :], torch.split(states, 1), strict=True):
                node.state = node.state if node.state is not None else state


# The context is read again after so many draws: a cache that does not forget would grow without end.
_ANEW = 100

Path = tuple[int, ...]


@torch.inference_mode()
def remembered_draws(subject: SamplerUnderTest, contexts: Sequence[Sequence[int]], draws: int) -> Finding:
    """Many loops over few contexts, on rows that are computed once and remembered."""
    target = MemoizedModel(subject.target, subject.device)
    draft = MemoizedModel(subject.draft, subject.device)
    drafter = subject.build_drafter(subject.sampling, draft, hidden=target)
    return _test("sampling", subject, contexts, draws, target, drafter, target)


@torch.inference_mode()
def end_to_end_draws(subject: SamplerUnderTest, contexts: Sequence[Sequence[int]], draws: int) -> Finding:
    """Fewer loops with every forward computed again through the models and their caches."""
    witness = MemoizedModel(subject.target, subject.device)
    drafter = subject.build_drafter(subject.sampling)
    return _test("end to end", subject, contexts, draws, subject.target, drafter, witness)


def _test(
    name: str,
    subject: SamplerUnderTest,
    contexts: Sequence[Sequence[int]],
    draws: int,
    target: LanguageModel,
    drafter: Drafter,
    witness: MemoizedModel,
) -> Finding:
    """Count the next tokens by the tokens before them in the loop, and hold them against the target's rows.

    A loop that goes on after a prefix has accepted it, and whether it did so does not depend on
    what comes next: after each prefix the next token follows the target's row there.
    """
    g, freedom, cells, impossible = 0.0, 0, 0, 0
    for index, context in enumerate(contexts):
        seen: dict[Path, Counter[int]] = {}
        for path in _paths(subject, target, drafter, context, draws, index):
            for i, token in enumerate(path):
                seen.setdefault(path[:i], Counter())[token] += 1
        for prefix, counts in seen.items():
            row = warp(witness.row([*context, *prefix]), subject.sampling)[0].tolist()
            statistic, df, outside = g_statistic(counts, row)
            g, freedom = g + statistic, freedom + df
            cells, impossible = cells + (df > 0), impossible + outside
    p_value = survival(g, freedom)
    # A token that the law rules out needs no statistics, but rounding may put one at a nucleus' edge.
    passed = p_value >= FALSE_ALARM and impossible <= draws * len(contexts) // 1000
    return Finding(
        name,
        passed,
        f"G = {g:.0f} on {freedom} degrees of freedom, p = {p_value:.2g}, {impossible} impossible tokens",
        f"false alarm once in {1 / FALSE_ALARM:,.0f}; {draws:,} draws in each of {len(contexts)} contexts",
        {
            "draws": draws,
            "contexts": len(contexts),
            "g": g,
            "degrees_of_freedom": freedom,
            "prefixes": cells,
            "p_value": p_value,
            "impossible": impossible,
        },
    )


def _paths(
    subject: SamplerUnderTest,
    target: LanguageModel,
    drafter: Drafter,
    context: Sequence[int],
    draws: int,
    index: int,
) -> Iterator[Path]:
    """The tokens of one loop after a context, again and again."""
    for start in range(0, draws, _ANEW):
        seed = (subject.seed * 1_000_003 + index) * 10_000_019 + start
        with subject.loops(target, drafter, context, seed) as begin:
            for _ in range(min(_ANEW, draws - start)):
                yield tuple(next(begin()).tokens)
