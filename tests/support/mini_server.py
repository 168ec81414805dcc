"""The embedded pair behind vLLM's dialect, right or with a planted fault: a server to audit."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from support.fake_server import Fake

from spsbench.base.paths import mini_dir
from spsbench.base.protocol import Ask, Load, Sampling
from spsbench.parts.verify.served import Served


@dataclass
class MiniServer(Fake):
    """A server whose texts are drawn by the production's loops with K = 4.

    Attributes:
        planted: one of ``spsbench.parts.verify.controls.ENGINE_FAULTS``, or None.
    """

    planted: str | None = None
    engine: Served = field(init=False)

    def __post_init__(self) -> None:
        folder = partial("{}/{}".format, mini_dir())
        self.engine = Served(Load(folder("target"), folder("draft"), k=4, threads=1), self.planted)

    def write(self, prompt: list[int], most: int, stops: list[int]) -> list[int]:
        """Drawn as the last request asks; `/metrics` counts it."""
        body = self.seen[-1]
        sampling = Sampling(greedy=body["temperature"] == 0, temperature=body["temperature"] or 1.0)
        found = self.engine.generate(Ask(prompt, most, stops, [], sampling, body["seed"]))
        with self.lock:
            self.tokens += len(found.output_ids)
            self.drafted += found.drafted or 0
            self.accepted += found.accepted or 0
        return found.output_ids

    def logprobs(self, ids: list[int]) -> None:
        """None: its loops keep no row."""
