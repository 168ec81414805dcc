"""The embedded pair with drafts that are trees, right or with a planted fault, as an engine to audit."""

from __future__ import annotations

from pathlib import Path

import torch
from support import tiny_models

from spsbench.base.paths import mini_dir
from spsbench.base.protocol import Answer, Ask
from spsbench.base.records import SamplingParams
from spsbench.config.models import TORCH
from spsbench.decode.algorithms import start_tree
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.decode.sampling import UniformStream
from spsbench.drafters.shape import Shape
from spsbench.models.beam_lm import BeamLM
from spsbench.models.causal_lm import CausalLM
from spsbench.models.loading import load
from spsbench.parts.verify.tree_faults import Fault

Models = tuple[CausalLM, CausalLM]


def mini_pair() -> tuple[Models, list[tuple[int, ...]]]:
    """Both models of the embedded pair over torch, which alone takes a tree, and beginnings of texts."""
    source = tiny_models.pair_of(mini_dir() / "target", mini_dir() / "draft")
    given = ("float32", torch.device("cpu"), source.vocab_size)
    target, draft = (load(part, *given, "--target", TORCH) for part in (source.target, source.draft))
    lines = Path(__file__).with_name("short_prompts.txt").read_text().splitlines()
    return (target, draft), [tuple(source.target.tokenizer.encode(line, special=True)) for line in lines]


class TreeEngine:
    """A peer within this process that reports how many tokens of each loop stood."""

    def __init__(self, models: Models, fault: Fault, sampling: SamplingParams) -> None:
        self._target, draft = (BeamLM(model.reference()) for model in models)
        shape = Shape(tuple(fault.branching))
        self._drafter = fault.drafter(draft, sampling, shape, fault.siblings)
        self._rule, self._sampling = fault.rule, sampling
        self._nodes = shape.nodes

    @torch.inference_mode()
    def generate(self, ask: Ask) -> Answer:
        uniforms = UniformStream(ask.seed, torch.device("cpu"))
        begin = start_tree(
            self._target, self._drafter, ask.prompt_ids, self._nodes, self._sampling, uniforms, self._rule
        )
        written, accepted = list[int](), list[int]()
        for loop in begin(Stopwatch(FakeClock())):
            accepted.append(loop.accepted)
            written += loop.tokens
            ends = [place for place, token in enumerate(written) if token in ask.stop_ids]
            most = min([ask.max_new_tokens, *(place + 1 for place in ends)])
            if len(written) >= most:
                return Answer(written[:most], "stop" if ends else "length", accepted_per_loop=accepted)
        raise AssertionError("loops do not end")
