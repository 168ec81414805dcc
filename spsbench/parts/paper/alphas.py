"""Leviathan's alpha of several drafts over texts that the target wrote: model drafts, unigram and bigram.

Leviathan et al. 2022, Table 3: the mean over positions of sum_x min(target(x), draft(x)), both warped, along
text of the target. At temperature 0 that is the share of positions where both have the same most probable
token.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from spsbench.base import EAGER, Arm, Floats, Generation, Interval, Request, SamplingParams, Spec
from spsbench.config import NGRAMS
from spsbench.decode import Drafter
from spsbench.drafters import Context, build_drafter
from spsbench.engines import Engine, teacher_force
from spsbench.models import CausalLM, Pair
from spsbench.parts.whatif.bench.turns import in_turns
from spsbench.parts.whatif.replay.texts import TargetText
from spsbench.runner import EngineFactory
from spsbench.stats import pooled_ratio

UNIGRAM, BIGRAM = NGRAMS
FOLDS = 10
"""An n-gram draft is counted on the texts of other prompts: of so many parts, all but the prompt's own."""


@dataclass(frozen=True)
class Overlap:
    """A draft's overlap with the target.

    Attributes:
        sums: [prompts] of min(target, draft), over the positions of a prompt's texts.
        positions: [prompts] how many those are.
    """

    draft: str
    sums: Floats
    positions: Floats

    @property
    def alpha(self) -> Interval:
        """The mean over all positions with its 95% interval, prompts resampled."""
        return pooled_ratio(self.sums, self.positions, most=1.0)


@torch.inference_mode()
def overlaps(
    texts: Sequence[TargetText], pairs: Mapping[str, Pair], sampling: SamplingParams
) -> list[Overlap]:
    """Read every text with the target and with every draft."""
    prompts = {name: number for number, name in enumerate(dict.fromkeys(text.name for text in texts))}
    ngrams = _Ngrams(texts, prompts, next(iter(pairs.values())), sampling) if len(prompts) > 1 else None
    names = [*(() if ngrams is None else NGRAMS), *pairs]
    sums = {name: np.zeros(len(prompts)) for name in names}
    positions = np.zeros(len(prompts))
    for text in texts:
        prompt = prompts[text.name]
        positions[prompt] += len(text.tokens)
        for name, target, draft in _warped_rows(text, pairs, sampling, ngrams, prompt):
            sums[name][prompt] += float(torch.minimum(target, draft).sum())
    return [Overlap(name, sums[name], positions) for name in names]


def _warped_rows(
    text: TargetText, pairs: Mapping[str, Pair], sampling: SamplingParams, ngrams: _Ngrams | None, prompt: int
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Of every draft: its name and rows [n, V], the target's and its own."""
    targets: dict[int, Tensor] = {}  # one that is shared by pairs is read once
    for name, pair in pairs.items():
        if id(pair.target) not in targets:
            targets[id(pair.target)] = _read(pair.target, text, sampling)
        target = targets[id(pair.target)]
        if ngrams is not None and name == next(iter(pairs)):
            for order in NGRAMS:
                yield order, target, ngrams.rows(order, text, prompt, target)
        yield name, target, target if pair.is_one else _read(pair.draft, text, sampling)


def _read(model: CausalLM, text: TargetText, sampling: SamplingParams) -> Tensor:
    return teacher_force(model, None, text.prompt, text.tokens, sampling).q


class _Ngrams:
    """Unigram and bigram drafts of each fold of prompts, counted on the texts of the other folds.

    The unigram is counted on output tokens alone. The bigram's texts begin with the last token of the prompt,
    after which the first token is drafted.
    """

    def __init__(
        self, texts: Sequence[TargetText], prompts: Mapping[str, int], pair: Pair, sampling: SamplingParams
    ) -> None:
        self._folds = min(FOLDS, len(prompts))
        self._drafters: dict[tuple[str, int], Drafter] = {}
        for order, before in ((UNIGRAM, 0), (BIGRAM, 1)):
            for fold in range(self._folds):
                corpus = [
                    (*text.prompt[len(text.prompt) - before :], *text.tokens)
                    for text in texts
                    if prompts[text.name] % self._folds != fold
                ]
                size = pair.target.vocab_size
                context = Context(
                    pair.target, None, sampling, pair.device, size, corpus=partial(list, corpus)
                )
                self._drafters[order, fold] = build_drafter(Spec(order, (("adapt", False),)), context)

    def rows(self, order: str, text: TargetText, prompt: int, like: Tensor) -> Tensor:
        """[n, V] rows of one n-gram model over a prompt's text, warped as the target's rows."""
        drafter = self._drafters[order, prompt % self._folds]
        drafter.begin(text.prompt)
        u = torch.full((1,), 0.5, dtype=torch.float64)  # what is drawn has no effect, its row has
        rows = []
        for place in range(len(text.tokens)):
            row = drafter.draft([*text.prompt[-1:], *text.tokens[:place]], 1, u).probs
            assert row is not None, "an n-gram draft draws from its row"
            rows.append(row)
        return torch.cat(rows).to(like)


ROUNDS, TOKENS = 8, 32
"""Each engine writes so many tokens in a round; the first round is not counted."""

_K = 4
_TARGET = ""


def draft_costs(
    texts: Sequence[TargetText],
    pairs: Mapping[str, Pair],
    sampling: SamplingParams,
    seed: int,
    rounds: int | None = None,
) -> dict[str, float]:
    """Measure c of every draft, in turns with the target alone.

    On a CPU it is the time of drafting a token within loops over that of a target step, as a run measures it
    (forward and draw together where one program did both in any loop). Elsewhere, where the phases of a loop
    are not seen, it is that of a token that the draft writes alone.

    Returns:
        by draft the median over rounds of its seconds over the target's in the same round.
    """
    engines = _engines_by_draft(pairs, sampling)
    count = rounds or ROUNDS
    shuffler = random.Random(seed)
    prompts = [shuffler.choice(texts).prompt for _ in range(-1, count)]
    models = [model for pair in pairs.values() for model in (pair.target, pair.draft)]

    def run(name: str, number: int) -> Generation:
        prompt = prompts[number + 1]
        room = min(model.room_behind(prompt) for model in models) - _K - 1
        limit = max(1, min(TOKENS, room))
        request = Request(prompt, limit, (), sampling, seed=seed + number + 1, fixed_length=True)
        made = engines[name].generate(request)
        # As in a run, so that the next model finds the caches as it does there.
        teacher_force(models[0], None, prompt, made.tokens, sampling)
        return made

    ran = in_turns({name: partial(run, name) for name in engines}, range(-1, count), seed)
    seconds = {name: [_seconds_a_token(made) for made in each] for name, each in ran.items()}
    base = np.array(seconds[_TARGET])
    return {name: float(np.median(np.array(seconds[name]) / base)) for name in pairs}


def _engines_by_draft(pairs: Mapping[str, Pair], sampling: SamplingParams) -> dict[str, Engine]:
    """The target's own has no name."""
    first = next(iter(pairs.values()))
    window = first.target.context_window  # no engine here has a fixed shape
    engines = {_TARGET: EngineFactory(first, window).build(Arm("ars", 0, EAGER, "timed", sampling))}
    for name, pair in pairs.items():
        in_loops = Arm("sps", _K, EAGER, "timed", sampling)
        alone = Arm("draft", 0, EAGER, "timed", sampling)
        engines[name] = EngineFactory(pair, window).build(in_loops if pair.device.type == "cpu" else alone)
    return engines


def _seconds_a_token(made: Generation) -> float:
    """Of the draft's forwards where it drafted, else of the text's model."""
    loops = made.loops or []
    drafted = sum(loop.drafted for loop in loops)
    if drafted:
        return sum(loop.draft_s or 0.0 for loop in loops) / drafted
    seen = [loop.verify_s for loop in loops if loop.verify_s is not None]
    return sum(seen) / len(seen) if seen else made.decode_s / len(made.tokens)
