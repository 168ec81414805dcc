"""How often the evidence beside texts raises a false alarm, and after how many texts it finds a fault.

    python -m benchmarks.free_power [--runs 1000] [--texts 120] [--tokens 40] [--faults]

Engines and tables are those of ``benchmarks.audit_power`` (random, synthetic). Each audit draws its texts and
then the short requests of ``probes``; right engines report, in turn, all counts, totals or nothing.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from benchmarks.audit_power import PROMPTS, SETTINGS, STOP, VOCABULARY, Engine, K, Tables, parser_of
from spsbench.base.protocol import LENGTH, Answer, Ask
from spsbench.base.protocol import STOP as STOPPED
from spsbench.base.records import SamplingParams
from spsbench.parts.audit.free_evidence import FreeEvidence, probes
from spsbench.parts.external.engine import sampling_of
from spsbench.parts.verify.effort import Finding

FAULTS = {
    "logprobs of the draft": "logprobs",
    "logprobs of the draft where it was accepted": "logprobs",
    "logprobs of another request": "logprobs",
    "logprobs of the token before": "logprobs",
    "counters of another request": "counters",
    "counts a loop past the end": "counters",
    "accepts more than it drafts": "counters",
    "counts what it accepts as drafted": "counters",
    "drafts nothing": "acceptance",
    "accepts nothing": "acceptance",
    "counts all as accepted": "acceptance",
    "synthetic acceptance": "acceptance",
    "synthetic counters": "acceptance",
    "synthetic counters, totals": "acceptance",
    "one stream without seeds": "independence",
    "one start of all streams without seeds": "independence",
    "seeds have no effect": "independence",
    "end unverified": "ends",
    "retry unfinished": "ends",
}
"""What the engine does or says wrong, and the finding that shows it."""

TOLD = ("all", "totals", "nothing")


class Talking:
    """An engine on tables that reports counts and logprobs, rightly or not."""

    def __init__(
        self,
        tables: Tables,
        sampling: SamplingParams,
        fault: str | None,
        told: str = "all",
        seed: int = 0,
        k: int = K,
    ) -> None:
        self._tables, self._sampling, self._fault, self._told = tables, sampling, fault, told
        planted = (
            None if fault in FAULTS and fault not in ("end unverified", "synthetic acceptance") else fault
        )
        self._engine, self._k = Engine(tables, sampling, planted, k), k
        self._chance = random.Random(seed)
        self._before: Answer | None = None

    def generate(self, ask: Ask) -> Answer:  # noqa: C901, PLR0915 - one fault after the other
        fault, seed = self._fault, ask.seed
        if seed is None:
            seed = self._chance.getrandbits(31)
            seed = {"one stream without seeds": 7, "one start of all streams without seeds": seed % 3}.get(
                fault or "", seed
            )
        elif fault == "seeds have no effect":
            seed = 5
        most = ask.max_new_tokens
        ids, kept, _ = self._engine.generate(ask.prompt_ids, most, seed)
        while fault == "retry unfinished" and ids[-1] != STOP:
            seed = self._chance.getrandbits(31)
            ids, kept, _ = self._engine.generate(ask.prompt_ids, most, seed)
        reading = self._tables.reading(ask.prompt_ids, ids, self._sampling)
        logits = reading.draft_logits if fault == "logprobs of the draft" else reading.logits
        assert logits is not None
        assert reading.draft_logits is not None
        every = np.arange(len(ids))
        logs = logits.log_softmax(-1).numpy()[every, ids] + 1e-5 * np.random.default_rng(seed).normal(
            size=len(ids)
        )
        if fault == "logprobs of the draft where it was accepted":
            place = 0
            drafts = reading.draft_logits.log_softmax(-1).numpy()[every, ids]
            for count in kept:
                logs[place : place + count] = drafts[place : place + count]
                place += count + 1
        if fault == "logprobs of the token before":
            logs = np.append(logs[:1], logs[:-1])
        loops, drafted = len(kept), self._k * len(kept)
        if fault == "accepts nothing":
            kept, loops = [0] * len(ids), len(ids)
            drafted = K * loops
        elif fault == "drafts nothing":
            kept, loops, drafted = [0] * len(ids), len(ids), 0
        elif fault == "counts all as accepted":
            loops = -(-len(ids) // (K + 1))
            kept, drafted = [K] * loops, K * loops
        elif fault is not None and fault.startswith("synthetic counters"):
            kept = []
            while sum(kept) + len(kept) < len(ids):
                kept.append(2 + (len(kept) % 2))
            loops, drafted = len(kept), K * len(kept)
        answer = Answer(
            ids,
            STOPPED if ids[-1] == STOP else LENGTH,
            decoded=len(ids),
            loops=loops,
            drafted=drafted,
            accepted=sum(kept),
            accepted_per_loop=kept,
            logprobs=np.minimum(logs, 0.0).tolist(),
        )
        if fault == "counts a loop past the end":
            answer = replace(
                answer, loops=loops + 1, drafted=drafted + K, accepted=sum(kept) + K, accepted_per_loop=None
            )
        elif fault == "accepts more than it drafts":
            answer = replace(answer, drafted=max(sum(kept) - 1, 0))
        elif fault == "counts what it accepts as drafted":
            answer = replace(answer, drafted=sum(kept), loops=None, accepted_per_loop=None)
        before, self._before = self._before or answer, answer
        if fault == "counters of another request":
            names = ("loops", "drafted", "accepted")
            answer = replace(
                answer, accepted_per_loop=None, **{name: getattr(before, name) for name in names}
            )
        if fault == "logprobs of another request":
            count = len(answer.output_ids)
            answer = replace(answer, logprobs=[*(before.logprobs or []), *(answer.logprobs or [])][:count])
        if self._told == "totals" or (fault or "").endswith("totals"):
            answer = replace(answer, accepted_per_loop=None)
        elif self._told == "nothing":
            none = dict.fromkeys(("decoded", "loops", "drafted", "accepted", "accepted_per_loop", "logprobs"))
            answer = replace(answer, **none)  # type: ignore[arg-type]
        return answer


def audited(
    seed: int, fault: str | None, sampling: SamplingParams, texts: int, tokens: int, told: str = "all"
) -> Iterator[tuple[int, FreeEvidence]]:
    """The evidence after each text, and after the probes."""
    tables, chance = Tables.made(seed), random.Random(f"{seed} {sampling.record()}")
    peer, free = Talking(tables, sampling, fault, told, seed), FreeEvidence(K)
    prompts = [[chance.randrange(VOCABULARY - 1) for _ in range(6)] for _ in range(PROMPTS)]
    first = Ask(prompts[0], tokens, [STOP], [], sampling_of(sampling))
    asks = [
        replace(first, prompt_ids=prompts[n % PROMPTS], seed=chance.getrandbits(31)) for n in range(texts)
    ]
    for number, ask in enumerate([*asks, *probes(prompts, first, 24)], start=1):
        answer = peer.generate(ask)
        free.add(ask, answer, tables.reading(ask.prompt_ids, answer.output_ids, sampling))
        yield number, free


def alarms(free: FreeEvidence) -> list[Finding]:
    return [each for each in free.findings() if not each.passed]


def main() -> None:
    """Count false alarms, or the texts until faults are found."""
    given = parser_of(__doc__, 120, 40).parse_args()
    for line in _found(given) if given.faults else _false(given):
        print(line, flush=True)


def _false(given: argparse.Namespace) -> Iterator[str]:
    false, highest = 0, dict[str, float]()
    for seed in range(given.first, given.first + given.runs):
        sampling, told = SETTINGS[seed // 3 % len(SETTINGS)], TOLD[seed % 3]
        *_, (_, free) = audited(seed, None, sampling, given.texts, given.tokens, told)
        wrong = alarms(free)
        false += bool(wrong)
        for each in free.findings():
            for name, value in each.numbers.items():
                if name.startswith("log10_e") and isinstance(value, float):
                    highest[f"{each.test} {name[14:]}"] = max(
                        highest.get(f"{each.test} {name[14:]}", -99.0), value
                    )
        if wrong or (seed + 1) % 50 == 0:
            tops = ", ".join(f"{name.strip()} 10^{value:.1f}" for name, value in highest.items())
            said = " ".join(each.found for each in wrong)
            yield f"{seed + 1 - given.first} audits: {false} with an alarm; {tops} {said}"


def _found(given: argparse.Namespace) -> Iterator[str]:
    for fault, test in FAULTS.items():
        after = []
        for number, sampling in enumerate(SETTINGS):
            found, said = None, ""
            for count, free in audited(given.first + number, fault, sampling, given.texts, given.tokens):
                wrong = alarms(free) if count % 10 == 0 or count > given.texts else []
                if any(each.test == test for each in wrong):
                    found, said = count, next(each.found for each in wrong if each.test == test)
                    break
            after.append(f"{found or '-':>4}")
        yield f"{fault:46} {' '.join(after)}  {said}"


if __name__ == "__main__":
    main()
