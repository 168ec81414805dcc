"""How much a target accepts of one trained drafter under each way in which its folder can be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

from spsbench.base.records import SamplingParams, Spec
from spsbench.decode import rows
from spsbench.decode.algorithms import start
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.decode.sampling import UniformStream
from spsbench.drafters.forced import ForcedText, StatesUpTo, forced_drafts
from spsbench.drafters.registry import Context, build_drafter, states_read
from spsbench.models.causal_lm import CausalLM

Options = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Accepted:
    """What was accepted under one reading.

    Attributes:
        options: of the drafter; what they leave out is as written.
        by_place: [K] the chance that the j-th token stands, given that those before it do.
        lengths: mean tokens per loop of each text, over loops that begin behind each of its tokens.
    """

    options: Options
    by_place: tuple[float, ...]
    lengths: tuple[float, ...]


@torch.inference_mode()
def by_reading(
    target: CausalLM,
    drafter: Spec,
    readings: Sequence[Options],
    prompts: Sequence[Sequence[int]],
    *,
    k: int,
    tokens: int,
    seed: int = 0,
) -> list[Accepted]:
    """Let the target write a text behind each prompt, and draft K tokens behind each of its tokens.

    All readings draft behind the same texts, at temperature 1, and modified rejection's chances are exact:
    only the texts are drawn.

    Args:
        tokens: of each text.
    """
    sampling = SamplingParams()
    specs = [Spec(drafter.name, (*drafter.options, *options.items())) for options in readings]
    keeping = target.with_features("--drafter", states_read(specs, target.layers))
    reach = {spec: np.zeros((2, k)) for spec in specs}
    lengths: dict[Spec, list[float]] = {spec: [] for spec in specs}
    hidden = StatesUpTo(keeping)
    given: dict[str, Any] = {
        "device": target.device,
        "vocab_size": target.vocab_size,
        "hidden": hidden,
        "k": k,
    }
    drafters = {spec: build_drafter(spec, Context(keeping, None, sampling, **given)) for spec in specs}
    for number, prompt in enumerate(prompts):
        numbers = UniformStream(seed + number, target.device)
        writing = start(target, None, prompt, 0, sampling, numbers)(Stopwatch(FakeClock()))
        written = [loop.tokens[0] for loop in islice(writing, tokens)]
        pending = keeping.begin(prompt)
        read = torch.cat([pending, torch.tensor(written[:-1], device=target.device)])
        chances = rows.warped(keeping.score(read, last=tokens), sampling)
        told = chances.at(torch.tensor(written, device=target.device)).tolist()
        text = ForcedText(prompt, written, np.log(np.array(told)), hidden, target.device)
        for spec in specs:
            hidden.length = keeping.length
            found = forced_drafts(drafters[spec], text, k, drafter.name).chances[: tokens - k + 1]
            kept = found.cumprod(1)
            reach[spec][0] += kept.sum(0)
            reach[spec][1] += np.concatenate([np.ones((len(kept), 1)), kept[:, :-1]], 1).sum(0)
            lengths[spec].append(1.0 + float(kept.sum(1).mean()))
    return [
        Accepted(options, tuple((reach[spec][0] / reach[spec][1].clip(1e-12)).tolist()), tuple(lengths[spec]))
        for spec, options in zip(specs, readings, strict=True)
    ]
