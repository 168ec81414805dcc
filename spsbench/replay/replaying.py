"""Drafters over texts of the target: one pass each, all K at once, and nothing generated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import torch

from spsbench.decode.replay import Floats, TextLoops, loops_over, stopped
from spsbench.drafters.forced import Forced, ForcedText, StatesUpTo, forced
from spsbench.drafters.kind import HIDDEN, Context
from spsbench.drafters.model import ModelDrafter
from spsbench.drafters.registry import build_drafter, drafter_kind
from spsbench.drafters.stopping import StopReader
from spsbench.engines.rescore import Reading, own_entries, teacher_force
from spsbench.errors import UsageError
from spsbench.models.causal_lm import CausalLM
from spsbench.models.pair import Pair
from spsbench.records import SamplingParams, Spec
from spsbench.replay.memory import drafter_bytes
from spsbench.replay.texts import TargetText
from spsbench.stats.losslessness import ALARM
from spsbench.verify.audit import Audit, Foreign


@dataclass
class Replayed:
    """One drafter over every text.

    Attributes:
        drafter: as it was named.
        bytes: that it holds beside the target, at the longest text.
        forced: of each text, at the largest K.
    """

    drafter: Spec
    bytes: int
    forced: list[Forced] = field(default_factory=list)

    def loops(self, k: int) -> Iterator[TextLoops]:
        """The law of the loops over each text."""
        for chances, drafted in self.forced:
            yield loops_over(stopped(chances[:, :k], drafted))


Told = Callable[[int], None]
Readers = Mapping[Spec, StopReader]
NO_READERS: Readers = MappingProxyType({})


@torch.inference_mode()
def replay(
    texts: Sequence[TargetText],
    pair: Pair,
    sampling: SamplingParams,
    drafters: Sequence[Spec],
    k: int,
    told: Told = lambda done: None,
    readers: Readers = NO_READERS,
) -> list[Replayed]:
    """What each drafter would have proposed over every text, and with what chance it would have stood.

    Args:
        texts: written by the pair's target under this sampling.
        pair: the models.
        sampling: of target and drafts.
        drafters: each once.
        k: the largest lookahead that is asked for.
        told: called with the number of texts done.
        readers: of the rows of some of the drafters, for policies; each fills its own.

    Raises:
        UsageError: a drafter cannot be replayed, or the texts are not distributed as the target says.
    """
    reads_states = any(HIDDEN in drafter_kind(spec.name).needs_of(spec) for spec in drafters)
    keeping = pair.target.with_features("--drafter") if reads_states else None
    states = None if keeping is None else StatesUpTo(keeping)
    corpus = tuple(dict.fromkeys(text.prompt for text in texts))
    context = Context(
        target=keeping or pair.target,
        draft=pair.draft,
        sampling=sampling,
        device=pair.device,
        vocab_size=pair.target.vocab_size,
        corpus=lambda: corpus,
        hidden=states,
    )
    longest = max(text.length for text in texts)
    drafting = [(spec, build_drafter(spec, context)) for spec in drafters]
    built = [(Replayed(spec, drafter_bytes(drafter, longest)), drafter) for spec, drafter in drafting]
    judge = Audit(pair.target, None)
    for done, text in enumerate(texts, start=1):
        reading = teacher_force(pair.target, None, text.prompt, text.tokens, sampling)
        judge.add(Foreign(done, text.prompt, text.tokens, sampling, retokenised=False), reading)
        given = _given(text, reading, keeping, states)
        for found, drafter in built:
            reader = readers.get(found.drafter)
            if reader is None:
                found.forced.append(forced(drafter, given, k, str(found.drafter)))
            else:
                assert isinstance(drafter, ModelDrafter), "its rows are not known"
                found.forced.append(reader.forced(drafter, given, reading.q, k))
        told(done)
    _require_fitting(judge)
    return [found for found, _ in built]


def _require_fitting(judge: Audit) -> None:
    """Refuse texts that the target did not write, or not under this sampling: nothing holds for them."""
    facts = judge.judged()
    if facts["verdict"] == ALARM:
        raise UsageError(
            f"these texts do not fit this target under this sampling: {'; '.join(facts['reasons'])}.",
            flag="RUN",
            remedy="Run ArS again with these models and this sampling.",
        )


def _given(
    text: TargetText, reading: Reading, keeping: CausalLM | None, states: StatesUpTo | None
) -> ForcedText:
    own = own_entries(reading.q, reading.tokens)
    if keeping is not None:
        keeping.begin([*text.prompt, *text.tokens])
    log_target: Floats = own.double().log().cpu().numpy().astype(np.float64)
    return ForcedText(text.prompt, text.tokens, log_target, states, reading.tokens.device)
