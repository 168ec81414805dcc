"""Drafters over texts of the target: one pass each, all K at once, and nothing generated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from spsbench.base import BLOCK, MODIFIED_REJECTION, Floats, Ints, SamplingParams, Spec, UsageError
from spsbench.decode import Draft, Drafter, HostRow, rows
from spsbench.drafters import (
    Context,
    ForcedDrafts,
    ForcedText,
    ModelDrafter,
    StatesUpTo,
    StopReader,
    UnionDrafter,
    build_drafter,
    forced_drafts,
    parts_of,
    states_read,
    united,
    untruncated,
)
from spsbench.engines import own_entries, teacher_force
from spsbench.law import TextLoops, by_depth, drawn_siblings, loops_over, stopped, top_siblings
from spsbench.models import CausalLM, Pair
from spsbench.parts.whatif.replay.texts import TargetText
from spsbench.parts.whatif.replay.trees import INDEPENDENT, TOP, StaticTree, tree_of
from spsbench.runner import Audit, Foreign
from spsbench.stats import ALARM


def model_bytes(model: CausalLM, tokens: int) -> int:
    """Return the bytes of a model's weights, and of its keys and values for so many tokens."""
    return model.forward_bytes() + (model.kv_bytes_per_token or 0) * tokens


def drafter_bytes(drafter: Drafter, tokens: int) -> int:
    """Return what a drafter holds beside the target, with so many tokens; 0 for one that runs no model.

    One that runs the target's own layers counts as if it had a copy of them: over ONNX Runtime it has.
    """
    if isinstance(drafter, UnionDrafter):
        return sum(drafter_bytes(member, tokens) for member in drafter.members)
    model = getattr(drafter, "model", None)
    if isinstance(model, CausalLM):
        return model_bytes(model, tokens)
    read = getattr(drafter, "forward_bytes", None)
    return 0 if read is None else int(read())


class TextTree:
    """A static tree of a draft model over texts.

    To be timed it drafts in chains: a forward of as many rows for each depth, and no tokens.
    """

    def __init__(self, drafter: Drafter, tree: StaticTree) -> None:
        assert isinstance(drafter, ModelDrafter), "its rows are not known"
        self.model, self._drafter, self._tree = drafter.model, drafter, tree
        self._sampling = untruncated(drafter.sampling) if tree.siblings == TOP else drafter.sampling

    def begin(self, prompt: Sequence[int]) -> None:
        """Read the prompt but its last token."""
        self._drafter.begin(prompt)

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        """Read what is pending, with as many rows after it as each depth has nodes to expand."""
        pending = list(tokens[self.model.length :])
        for count in self._tree.rows:
            block = torch.tensor([*pending, *pending[-1:] * (count - 1)], device=u.device)
            rows.on_host(rows.warped(self.model.score(block, last=count), self._sampling))
            pending = pending[-1:]
        return Draft(u.new_empty(0, dtype=torch.int64), None)

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Roll back to what was decided."""
        self.model.rollback(len(tokens) - 1)

    def forced(self, text: ForcedText, k: int) -> ForcedDrafts:
        """See ``forced.forced``: [n, depth] chances that the text's token stands at each depth."""
        n = len(text.tokens)
        ids = text.ids
        shape = self._tree.shape
        self.model.begin(text.prompt)
        p = rows.on_host(rows.warped(self.model.score(ids[-n - 1 : -1], last=n), self._sampling))
        random = np.random.default_rng(text.tokens)
        most = max(shape.branching)
        chances = [self._chances(p[t], text, t, most, random) for t in range(n)]
        return ForcedDrafts(by_depth(np.array(chances), shape.branching), np.full(n, shape.depth(0)))

    def _chances(
        self, p: HostRow, text: ForcedText, t: int, most: int, random: np.random.Generator
    ) -> Floats:
        token = text.tokens[t]
        siblings = self._tree.siblings
        if siblings == TOP:
            return top_siblings(p, token, most)
        assert text.target_rows is not None, "no rows of the target"
        q = HostRow.of(text.target_rows[t].cpu().numpy())
        return drawn_siblings(p, q, token, most, random, replaced=siblings == INDEPENDENT)


@dataclass
class Replayed:
    """One drafter over every text.

    Attributes:
        bytes: that it holds beside the target, at the longest text.
        proposers: of each text [n] the number of the union's member that drafts; 0 of any other.
    """

    bytes: int
    forced: list[ForcedDrafts] = field(default_factory=list)
    proposers: list[Ints] = field(default_factory=list)

    def loops(self, k: int, rule: str = MODIFIED_REJECTION) -> Iterator[TextLoops]:
        """Return the law of the loops over each text."""
        for ratios, drafted in self.forced:
            yield loops_over(stopped(ratios[:, :k], drafted), block=rule == BLOCK)

    def shares(self, k: int, rule: str) -> Floats:
        """[members, K+1] shares of the loops for which a member drafts so many tokens."""
        counts = np.zeros((max(int(numbers.max()) for numbers in self.proposers) + 1, k + 1))
        for (_, drafted), proposers, law in zip(
            self.forced, self.proposers, self.loops(k, rule), strict=True
        ):
            np.add.at(counts, (proposers, np.minimum(drafted, k)), law.starts[0])
        shares: Floats = counts / counts.sum()
        return shares


Readers = Mapping[Spec, StopReader]
NO_READERS: Readers = MappingProxyType({})


class TextReader:
    """Reads texts of a target with drafters, the rows of each once: a union's are those of its members."""

    def __init__(
        self,
        pair: Pair,
        sampling: SamplingParams,
        drafters: Sequence[Spec],
        k: int,
        corpus: Sequence[Sequence[int]],
        readers: Readers = NO_READERS,
        building: Callable[[Spec], None] = lambda spec: None,
    ) -> None:
        self.pair = pair
        self.sampling = sampling
        self._k = k
        self._readers = readers
        self.parts = {spec: parts_of(spec) for spec in drafters}
        needed = dict.fromkeys(part for parts in self.parts.values() for part in parts)
        states = states_read(needed, pair.target.layers)
        self.target = pair.target.with_features("--drafter", states) if states else pair.target
        self.states = StatesUpTo(self.target) if states else None
        context = Context(
            target=self.target,
            draft=pair.draft,
            sampling=sampling,
            device=pair.device,
            vocab_size=pair.target.vocab_size,
            corpus=lambda: corpus,
            hidden=self.states,
        )
        self.drafters: dict[Spec, Drafter] = {}
        for spec in needed:
            building(spec)
            tree = tree_of(spec)
            drafter = build_drafter(spec if tree is None else tree.drafter, context)
            self.drafters[spec] = drafter if tree is None else TextTree(drafter, tree)
        self._judge = Audit(pair.target, None)

    @torch.inference_mode()
    def read(
        self, text: TargetText, number: int, parts: Sequence[Spec]
    ) -> Iterator[tuple[Spec, ForcedDrafts]]:
        """Yield what some parts would have proposed over a text, each as soon as it is known."""
        if not parts:
            return
        target, sampling = self.pair.target, self.sampling
        reading = teacher_force(target, None, text.prompt, text.tokens, sampling)
        self._judge.add(Foreign(number, text.prompt, text.tokens, sampling, retokenised=False), reading)
        if self.states is not None:
            self.target.begin([*text.prompt, *text.tokens])
        log_target: Floats = own_entries(reading.q, reading.tokens).double().log().cpu().numpy()
        forced = ForcedText(
            text.prompt, text.tokens, log_target, self.states, reading.tokens.device, reading.q
        )
        for spec in parts:
            drafter = self.drafters[spec]
            reader = self._readers.get(spec)
            if reader is None:
                yield spec, forced_drafts(drafter, forced, self._k, str(spec))
            else:
                assert isinstance(drafter, ModelDrafter), "its rows are not known"
                yield spec, reader.forced(drafter, forced, reading.q, self._k)

    def replayed(
        self, texts: Sequence[TargetText], read: Sequence[Mapping[Spec, ForcedDrafts]]
    ) -> list[Replayed]:
        """Return every drafter's replay of the texts."""
        longest = max(text.length for text in texts)
        results = []
        for parts in self.parts.values():
            result = Replayed(sum(drafter_bytes(self.drafters[part], longest) for part in parts))
            for of_text in read:
                proposals, proposers = united([of_text[part] for part in parts])
                result.forced.append(proposals)
                result.proposers.append(proposers)
            results.append(result)
        return results

    def require_fitting(self) -> None:
        """Refuse texts that the target did not write under this sampling: no prediction holds for them."""
        facts = self._judge.judged()
        if facts["verdict"] == ALARM:
            raise UsageError(
                f"these texts do not fit this target under this sampling: {'; '.join(facts['reasons'])}.",
                flag="RUN",
                remedy="Run ArS again with these models and this sampling.",
            )
