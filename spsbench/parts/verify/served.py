"""The built-in engine as a worker of the engine protocol, with a planted fault or none.

    python -m spsbench.parts.verify.served [FAULT]

Without a fault it is a right engine: an audit must stay quiet about it. With one it is an engine that looks
right and is not: an audit must find it. "most probable, told as a point mass" is no fault: a greedy draft as
most engines have it.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

import spsbench
from spsbench.base import (
    LENGTH,
    STOP,
    VERIFICATION_RULE,
    Answer,
    Ask,
    Described,
    Drafting,
    Load,
    Request,
    SamplingParams,
)
from spsbench.config import ONNXRUNTIME, TORCH, ModelRef, PairConfig
from spsbench.decode import SystemClock
from spsbench.engines import EagerEngine
from spsbench.models import CausalLM, find, find_pair, load, model_not_covered, text_config
from spsbench.parts.external.serving import serve, usual_settings
from spsbench.parts.verify.controls import ENGINE_FAULTS, faulty
from spsbench.parts.verify.draft_faults import GREEDY, POINT_MASS

_CPU = torch.device("cpu")


@dataclass(eq=False)
class _Ids:
    """Stops at ids alone: the protocol has no text."""

    eos_ids: frozenset[int]

    def decode(self, ids: Sequence[int]) -> str:
        return ""


class Served:
    """The built-in eager engine behind the protocol."""

    def __init__(self, request: Load, fault: str | None) -> None:
        self._load, self._fault = request, fault
        self._models = _loaded(request)
        self._last: list[int] = []

    def describe(self) -> Described:
        rule = VERIFICATION_RULE if self._load.speculative else None
        size = self._models[0].vocab_size
        settings = usual_settings(self._load)
        drafting = Drafting(top_k=1) if rule and self._fault in GREEDY else None
        return Described(
            "spsbench", spsbench.__version__, vocab_size=size, rule=rule, settings=settings, drafting=drafting
        )

    def generate(self, ask: Ask) -> Answer:
        """One sequence by the production's loops; every token is decoded."""
        began = time.perf_counter()
        target, *rest = self._models
        ids = frozenset(ask.stop_ids)
        engine = EagerEngine(target, rest[0] if rest else None, self._load.k, _Ids(ids), _CPU, SystemClock())
        with faulty(self._fault, target, ids):
            generation = engine.generate(self._request(ask))
        assert generation.loops is not None
        accepted = [loop.accepted for loop in generation.loops]
        return Answer(
            output_ids=generation.tokens,
            finish=LENGTH if generation.finish_reason == "length" else STOP,
            prefill_ms=1e3 * generation.prefill_s,
            decode_ms=1e3 * generation.decode_s,
            wall_ms=1e3 * (time.perf_counter() - began),
            decoded=len(generation.tokens),
            loops=len(generation.loops),
            drafted=sum(loop.drafted for loop in generation.loops) if rest else None,
            accepted=sum(accepted) if rest else None,
            accepted_per_loop=accepted if rest else None,
            drafted_ids=None
            if generation.proposed is None or not rest
            else [list(ids) for ids in generation.proposed],
        )

    def _request(self, ask: Ask) -> Request:
        """As the sampler sees it: some faults outlive a request."""
        prompt = ask.prompt_ids
        seed = secrets.randbits(31) if ask.seed is None else ask.seed
        if self._fault == "leaked-prompt":
            leaked = self._last[-len(prompt) // 2 :]
            self._last = prompt
            prompt = [*leaked, *prompt[len(leaked) :]]
        elif self._fault == "reused-seed":
            seed = 0
        drawn = ask.sampling
        sampling = SamplingParams(drawn.temperature, drawn.top_k, drawn.top_p, drawn.greedy)
        return Request(tuple(prompt), ask.max_new_tokens, (), sampling, seed)


def _loaded(request: Load) -> list[CausalLM]:
    """Load the target and, if there is one, the draft, over the backend that runs choose."""
    if request.draft is None:
        sources = [find(request.target, None, "target")]
        size = text_config(sources[0].config).vocab_size
    else:
        target, draft = (ModelRef(id=name) for name in (request.target, request.draft))
        pair = find_pair(PairConfig(name="served", target=target, draft=draft))
        sources = [pair.target, pair.draft]
        size = pair.vocab_size
    missing = any(model_not_covered(source, request.dtype, _CPU, "target") for source in sources)
    models: list[CausalLM] = []
    for source, flag in zip(sources, ("target", "draft"), strict=False):
        backend, share = TORCH if missing else ONNXRUNTIME, models[0] if models else None
        models.append(load(source, request.dtype, _CPU, size, flag, backend, request.threads, share))
    return models


if __name__ == "__main__":
    planned = next(iter(sys.argv[1:]), None)
    if planned not in (None, POINT_MASS, *ENGINE_FAULTS):
        sys.exit(f"{planned!r} is not a fault: choose from {', '.join(ENGINE_FAULTS)}")
    serve(partial(Served, fault=planned))
