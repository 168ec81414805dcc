"""How often right engines whose drafts end early raise an alarm, and how often those that withdraw them do.

    python -m benchmarks.short_drafts [--runs 1000] [--texts 16] [--tokens 12] [--n-min 0] [--first 0]
        [--ends row,stays] [--top-k 0,3]

Each engine has a target and a draft of its own (random tables, synthetic), K from 1 to 6 and a threshold from
0.1 to 0.9 of the draft's best token. An audit's whole evidence sees its texts and the drafts of each loop:
the bets, those at chosen contexts and on reported drafts, and the evidence beside texts.

Rows follow from the last token. The prefill gives the first token of a text; a draft is dropped where it has
fewer than ``n_min`` tokens, and ends by one of ``ENDS`` in turns: where the most probable token of its row is
below ``p_min``, or where the drawn token is, which stays in it or (wrong) is left out.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from spsbench.base.protocol import LENGTH, Answer, Ask, Drafting
from spsbench.base.records import SamplingParams
from spsbench.decode.sampling import warp
from spsbench.engines.rescore import Reading
from spsbench.parts.audit.bet_table import cut_to
from spsbench.parts.audit.bets import Bets
from spsbench.parts.audit.contexts import AtContexts, Forks
from spsbench.parts.audit.engine_audit import OF_REPORTED
from spsbench.parts.audit.free_evidence import FreeEvidence
from spsbench.parts.audit.localise import drafted_from
from spsbench.parts.audit.reported import ReportedDrafts
from spsbench.parts.external.engine import sampling_of
from spsbench.stats.losslessness import ALARM_LOG10_E

Floats = NDArray[np.float64]
SAMPLING = SamplingParams()
ROW, STAYS, LEFT_OUT = ENDS = ("row", "stays", "left-out")


@dataclass(frozen=True)
class Rows:
    """Logits [V, V] by the last token, as far as a choice of contexts asks a model for them."""

    logits: torch.Tensor

    def score_uncached(self, tokens: torch.Tensor, last: int) -> torch.Tensor:
        return self.logits[tokens[-last:]]

    @property
    def laws(self) -> Floats:
        return self.logits.double().softmax(-1).numpy()

    @classmethod
    def pair(cls, seed: int, size: int = 12) -> tuple[Rows, Rows]:
        """A target, sure of what follows most tokens, and a draft that is near to it."""
        generator = torch.Generator().manual_seed(seed)
        target = 2.2 * torch.randn(size, size, generator=generator)
        return cls(target), cls(target + 0.7 * torch.randn(size, size, generator=generator))


@dataclass(frozen=True)
class ShortDrafts:
    """See the module; each text has its own random numbers."""

    models: tuple[Rows, Rows]
    k: int = 4
    p_min: float = 0.6
    n_min: int = 0
    ends: str = ROW
    top_k: int = 0  # to which the draft's row is cut
    tests_k: int | None = None  # the same of the row it tests with, where that is (wrong) another

    @property
    def declared_k(self) -> int:
        """What it tests with."""
        return self.top_k if self.tests_k is None else self.tests_k

    def generate(
        self, prompt: Sequence[int], most: int, seed: int
    ) -> tuple[list[int], list[list[int]], list[int]]:
        """Output ids, of each loop what it tested, and how many of these it accepted."""
        chance = random.Random(seed)
        target, whole = (model.laws for model in self.models)
        draft, tested_with = (cut_to(whole, count) for count in (self.top_k, self.declared_k))

        def drawn(row: Floats) -> int:
            return int(np.searchsorted(np.cumsum(row) / row.sum(), chance.random(), side="right"))

        ids, tested, accepted = [drawn(target[prompt[-1]])], list[list[int]](), list[int]()
        while len(ids) < most:
            last, proposed = ids[-1], list[int]()
            room = min(self.k, most - len(ids) - 1)
            while len(proposed) < room and (self.ends != ROW or draft[last].max() >= self.p_min):
                token = drawn(draft[last])
                unsure = self.ends != ROW and draft[last, token] < self.p_min
                if unsure and self.ends == LEFT_OUT:
                    break
                proposed.append(token)
                last = token
                if unsure:
                    break
            proposed = proposed if len(proposed) >= self.n_min else []
            last, kept = ids[-1], 0
            for token in proposed:
                if chance.random() * tested_with[last, token] >= target[last, token]:
                    ids.append(drawn(np.maximum(target[last] - tested_with[last], 0.0)))
                    break
                ids.append(token)
                last, kept = token, kept + 1
            else:
                ids.append(drawn(target[last]))
            tested.append(proposed)
            accepted.append(kept)
        return ids, tested, accepted


def reading_of(models: tuple[Rows, Rows], prompt: Sequence[int], ids: Sequence[int]) -> Reading:
    """A text as one uncached forward of both sees it."""
    logits, drafts = (model.logits[[prompt[-1], *ids[:-1]]].double() for model in models)
    q, p, tokens = warp(logits, SAMPLING), warp(drafts, SAMPLING), torch.tensor(ids)
    none = torch.zeros(len(ids), dtype=torch.bool)
    return Reading(tokens, SAMPLING, logits, drafts, q, p, none, none)


def answer_of(ids: list[int], tested: list[list[int]], accepted: list[int]) -> Answer:
    told: dict[str, Any] = {"decoded": len(ids) - 1, "loops": len(accepted), "accepted": sum(accepted)}
    told |= {"drafted": sum(map(len, tested)), "drafted_ids": tested, "accepted_per_loop": accepted}
    return Answer(ids, LENGTH, **told)


def audited(engine: ShortDrafts, seed: int, texts: int, tokens: int) -> list[str]:
    """Which parts of the evidence raise an alarm; at any text the e-values, at the end the findings."""
    models, size = engine.models, len(engine.models[0].logits)
    chance = np.random.default_rng(seed)
    prompts = [tuple(chance.integers(0, size, 5).tolist()) for _ in range(2)]
    drafting = Drafting(engine.p_min, engine.n_min, engine.declared_k)
    forks = Forks(cast(Any, models), SAMPLING, drafting)
    bets, contexts, reported, free = (
        Bets([], engine.k, modified=True),
        AtContexts(forks),
        ReportedDrafts(forks),
        FreeEvidence(engine.k, drafting=drafting),
    )
    found = set[str]()
    for number in range(texts):
        prompt, own = prompts[number % 2], int(chance.integers(1 << 31))
        ids, tested, accepted = engine.generate(prompt, tokens, own)
        reading = drafted_from(reading_of(models, prompt, ids), drafting)
        assert reading.p is not None, "the models have a draft"
        contexts.add(prompt, ids, reading.q.numpy(), 1)
        bets.add(prompt, ids, reading, accepted, 1, tested)
        reported.add(prompt, ids, reading.p.numpy(), accepted, tested, 1)
        ask = Ask([*prompt], tokens, [], [], sampling_of(SAMPLING), own)
        free.add(ask, answer_of(ids, tested, accepted), reading, 1)
        log_e = np.logaddexp(bets.log_e, contexts.log_e) + math.log((1 - OF_REPORTED) / 2)
        log_e = np.logaddexp(log_e, reported.log_e + math.log(OF_REPORTED))
        found |= {"law"} if log_e >= ALARM_LOG10_E * math.log(10) else set()
    return sorted(found | {each.test for each in free.findings() if not each.passed})


def main() -> None:
    """Count engines with an alarm."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("runs", 1000), ("texts", 16), ("tokens", 12), ("n-min", 0), ("first", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--top-k", default="0", help="of the draft's row, in turns; 0: not cut")
    parser.add_argument("--ends", default=f"{ROW},{STAYS}", help=", ".join(ENDS))
    given = parser.parse_args()
    ends, cuts = given.ends.split(","), [int(each) for each in given.top_k.split(",")]
    alarmed = 0
    for seed in range(given.first, given.first + given.runs):
        dice = random.Random(seed)
        p_min = dice.choice([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
        k, how = dice.randint(1, 6), ends[seed % len(ends)]
        engine = ShortDrafts(Rows.pair(seed), k, p_min, given.n_min, how, dice.choice(cuts))
        found = audited(engine, seed, given.texts, given.tokens)
        alarmed += bool(found)
        if found or (seed + 1) % 100 == 0:
            print(f"{seed + 1 - given.first} engines: {alarmed} with an alarm {' '.join(found)}", flush=True)


if __name__ == "__main__":
    main()
