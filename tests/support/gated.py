"""Engines for tests of the gate: the built-in one, right, wrong, or wrong in its reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from spsbench.base.protocol import Answer, Ask, Described, Load, Sampling, Together, Wave
from spsbench.parts.audit.gate.inside import Function, Wanted
from spsbench.parts.verify.served import Served

PROMPTS = Path(__file__).with_name("short_prompts.txt")
FEW: dict[str, Any] = {
    "k": 2,
    "arms": "sps",
    "task": PROMPTS,
    "limit": 20,
    "max_new_tokens": 24,
    "texts": 40,
    "seconds": 3600,  # a busy machine is no fault of the engine
    "bound": 0.9,
    "in_flight": 1,
}
"""Options of an audit that takes moments."""


class Engine(Served):
    """What a worker would give to ``serve``: ``fault`` is planted in its sampler or its reports."""

    def __init__(self, asked: Load, fault: str | None = None) -> None:
        self._reports = fault if fault in REPORTS else None
        asked = replace(asked, draft=None, k=0) if fault == "drafts nothing" else asked
        super().__init__(asked, None if fault in REPORTS or fault == AMONG_OTHERS else fault)
        self._among_others = "no-residual" if fault == AMONG_OTHERS else self._fault

    def describe(self) -> Described:
        return replace(super().describe(), in_flight=4)

    def generate(self, ask: Ask) -> Answer:
        found = super().generate(ask)
        loops = found.loops or 0
        if self._reports == "drafts nothing":
            return replace(found, drafted=0, accepted=0, accepted_per_loop=[0] * loops)
        if self._reports == "accepts nothing":
            none = [0] * len(found.output_ids)
            drafted = self._load.k * len(none)
            found = replace(found, loops=len(none), drafted=drafted, drafted_ids=None)
            return replace(found, accepted=0, accepted_per_loop=none)
        if self._reports == "counts too many":
            return replace(
                found, accepted=(found.accepted or 0) + 40, accepted_per_loop=None, drafted_ids=None
            )
        return found

    def together(self, wave: Wave) -> Together:
        alone, self._fault = self._fault, self._among_others
        try:
            pairs = zip(wave.asks, wave.abort, strict=True)
            return Together([None if most is not None else self.generate(ask) for ask, most in pairs])
        finally:
            self._fault = alone


REPORTS = ("drafts nothing", "accepts nothing", "counts too many")
AMONG_OTHERS = "wrong with others in flight"


def function(asked: Load, fault: str | None = None) -> Function:
    """The same as a function of ids, which reports nothing else."""
    engine = Served(asked, fault)

    def generate(prompt_ids: list[int], sampling: Wanted, seed: int | None) -> list[int]:
        how = Sampling(temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p)
        how = Sampling(greedy=True) if sampling.temperature == 0 else how
        ask = Ask(prompt_ids, sampling.max_new_tokens, sampling.stop_ids, [], how, seed)
        return engine.generate(ask).output_ids

    return generate
