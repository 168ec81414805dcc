"""How often a whole run of the gate is red for a right engine.

    python -m benchmarks.gate_power [--runs 1000] [--texts 20] [--tokens 16] [--faults]

A run is what one test of an engine's suite asks for (docs/gate.md): plain sampling and K = 4, each alone and
with four in flight, at temperature 1.5, every text looked at, short requests at the end of each setting, and
all that the engine reports. Engines and tables are those of ``benchmarks.audit_power`` (random, synthetic);
they report all counts, totals or nothing, in turns. A run is red where any of its settings is: by an e-value
of 1,000, an impossible token, or a finding beside the law. Whether the bound is reached is not simulated.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd

from benchmarks.audit_power import ALARM, PROMPTS, STOP, VOCABULARY, K, Tables, parser_of
from benchmarks.free_power import TOLD, Talking
from spsbench.base.protocol import Ask
from spsbench.base.records import SamplingParams
from spsbench.engines.rescore import score_stats
from spsbench.law.evidence import Sums, added
from spsbench.parts.audit.bets import Bets
from spsbench.parts.audit.free_evidence import FreeEvidence, probes
from spsbench.parts.external.engine import sampling_of
from spsbench.stats.evidence_stats import e_values

SAMPLING = SamplingParams(temperature=1.5)
SETTINGS = tuple(product((0, K), (1, 4)))
"""K and requests in flight."""

FAULTS = ("no residual", "bonus from the draft", "accepts nothing", "seeds have no effect")
"""Some of the law and some beside it, which have to be found by the same run."""


def gate_run(seed: int, fault: str | None, texts: int, tokens: int) -> tuple[list[str], float]:
    """Why one run is red, for each setting that is; and the highest e-value of its texts (log)."""
    tables, red, highest = Tables.made(seed), list[str](), -math.inf
    chance = random.Random(f"{seed} gate")
    prompts = [[chance.randrange(VOCABULARY - 1) for _ in range(6)] for _ in range(PROMPTS)]
    for k, in_flight in SETTINGS:
        found, most = _setting((k, in_flight), (tables, prompts, chance), seed, fault, texts, tokens)
        red += [f"K={k}, {in_flight} in flight: {why}" for why in found]
        highest = max(highest, most)
    return red, highest


def _setting(
    setting: tuple[int, int],
    world: tuple[Tables, Sequence[list[int]], random.Random],
    seed: int,
    fault: str | None,
    texts: int,
    tokens: int,
) -> tuple[list[str], float]:
    (k, in_flight), (tables, prompts, chance) = setting, world
    engine = Talking(tables, SAMPLING, fault if k else None, TOLD[seed % len(TOLD)], seed, k)
    free = FreeEvidence(k)
    bets = Bets([STOP], k, SAMPLING.temperature, modified=bool(k))
    red, highest, sums = list[str](), -math.inf, Sums()
    first = Ask(prompts[0], tokens, [STOP], [], sampling_of(SAMPLING))
    for number in range(1, texts + 1):
        most = tokens if in_flight == 1 else chance.randint(-(-tokens // 4), tokens)
        prompt = prompts[number % PROMPTS]
        ask = replace(first, prompt_ids=prompt, max_new_tokens=most, seed=chance.getrandbits(31))
        answer = engine.generate(ask)
        ids, reading = answer.output_ids, tables.reading(prompt, answer.output_ids, SAMPLING)
        free.add(ask, answer, reading)
        bets.add(tuple(prompt), ids, reading, answer.accepted_per_loop, 0, None)
        sums = added(sums, score_stats(reading, number))
        other = math.log(10) * e_values(pd.DataFrame([sums]))["mean"]
        highest = max(highest, float(np.logaddexp(other, bets.log_e)) - math.log(2))
        if not red and (highest >= ALARM or bool(reading.impossible.any())):
            red = [f"the law of its texts, after {number}"]
    for ask in probes(prompts, first, 24):
        answer = engine.generate(ask)
        free.add(ask, answer, tables.reading(ask.prompt_ids, answer.output_ids, SAMPLING))
    return red + [each.found for each in free.findings() if not each.passed], highest


def main() -> None:
    """Count red runs of a right engine, or show which faults make a run red."""
    given = parser_of(__doc__, 20, 16).parse_args()
    for line in _found(given) if given.faults else _false(given):
        print(line, flush=True)


def _false(given: argparse.Namespace) -> Iterator[str]:
    count, highest = 0, -math.inf
    for done, seed in enumerate(range(given.first, given.first + given.runs), start=1):
        red, most = gate_run(seed, None, given.texts, given.tokens)
        count, highest = count + bool(red), max(highest, most)
        if red or done % 20 == 0 or done == given.runs:
            top = f"highest e-value 10^{highest / math.log(10):.1f}"
            yield f"{done} runs of 4 settings: {count} red, {top} {'; '.join(red)}"


def _found(given: argparse.Namespace) -> Iterator[str]:
    for fault in FAULTS:
        red, _ = gate_run(given.first, fault, given.texts, given.tokens)
        yield f"{fault}: {'; '.join(red) or 'not red'}"


if __name__ == "__main__":
    main()
