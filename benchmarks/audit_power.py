"""How often an audit of an engine raises a false alarm, and after how many texts it finds a fault.

    python -m benchmarks.audit_power [--runs 1000] [--texts 320] [--tokens 40] [--faults] [--in-flight 8]
        [--processed]

Target and draft are random tables (synthetic): rows follow from the last two tokens. The engine speculates on
them in plain Python with one fault of ``FAULTS`` or none, and the audit's bets see its texts at temperature
1, 0.7 and with top-p 0.9, looked at after every text. An alarm is an e-value of 1,000: by Ville's inequality
a
right engine gets there in at most one audit of 1,000.

With --in-flight texts come in waves as an audit asks for them: prompts with common beginnings, repeated or
going on from earlier outputs, unequal lengths, and some requests whose texts are thrown away.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from spsbench.base.records import Processing, SamplingParams
from spsbench.decode.processors import Bound, with_history
from spsbench.decode.sampling import warp
from spsbench.engines.rescore import Reading, score_stats
from spsbench.law.evidence import Sums, added
from spsbench.parts.audit.bets import Bets
from spsbench.parts.audit.engine_audit import shared_prompt
from spsbench.runner.foreign_texts import Foreign
from spsbench.stats.evidence_stats import e_values
from spsbench.stats.losslessness import ALARM_LOG10_E

VOCABULARY, STOP, PROMPTS, K = 48, 47, 40, 4
ALARM = ALARM_LOG10_E * math.log(10)


def _alternating(output: Sequence[int]) -> torch.Tensor:
    """A grammar: even and odd tokens in turns, until the output ends."""
    allowed = torch.arange(VOCABULARY) % 2 == len(output) % 2
    allowed[STOP] = True
    return allowed


PROCESSED = {
    "penalty counted twice for drafted tokens": Processing(frequency_penalty=1.0),
    "min-p skipped after a drafted token": Processing(min_p=0.1),
    "bad words not applied after an accepted token": Processing(
        bad_words=tuple((n, 5 * n % 47) for n in range(1, 13))
    ),
    "grammar not applied after an accepted token": Bound(grammar="{}", mask=_alternating),
}
"""Faults in the target's rows after drafted tokens of the same loop, and the processing that they need. The
draft is processed rightly."""

FAULTS = (
    "first token greedy",
    "first token from the draft",
    "bonus at 1.1 times the temperature",
    "bonus at temperature 1",
    "bonus from the draft",
    "no residual",
    "no residual after 32 tokens",
    "no residual in every 4th text",
    "residual greedy",
    "residual without the rejected token",
    "residual by distance",
    "lenient",
    "lenient after 100 texts",
    "lenient first test",
    "strict",
    "inverted ratio",
    "draft cut to 16",
    "draft at 0.8 times the temperature",
    "draft greedy",
    "pick is test",
    "pick is test in descending order",
    "test is residual",
    "pick is test is residual",
    "one number for all tests",
    "one stream for draft and target",
    "seeded anew each loop",
    "seeded anew each text",
    "constant seed in 3 of 8 slots",
    "constant seed in one slot of 8",
    "numbers of 8 bits",
    "residual number is next pick",
    "stale row in 1 of 150 loops",
    "stale row in 1 of 50 loops",
    "row off by one after full acceptance",
    "target at 1.05 times the temperature",
    "repetition penalty 1.1",
    "stop left out",
    "top-k off by one",
    "nucleus one token short",
    "draft mixed in, 3%",
    *PROCESSED,
)
"""What the engine can do wrong."""


@dataclass(frozen=True)
class Tables:
    """Logits of target and draft by the last two tokens, [V, V] tables each."""

    target: tuple[torch.Tensor, torch.Tensor]
    draft: tuple[torch.Tensor, torch.Tensor]

    @classmethod
    def made(cls, seed: int) -> Tables:
        """A random target, and a draft that is near to it."""
        generator = torch.Generator().manual_seed(seed)

        def table(scale: float) -> torch.Tensor:
            return scale * torch.randn(VOCABULARY, VOCABULARY, generator=generator)

        target = (table(2.0), table(1.2))
        target[0][:, STOP] -= 2
        draft = (target[0] + table(0.7), target[1] + table(0.5))
        return cls((target[0].double(), target[1].double()), (draft[0].double(), draft[1].double()))

    def logits(self, ids: Sequence[int], tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """[n, V] rows behind each of n + 1 tokens but the first."""
        index = torch.tensor(ids)
        return tables[0][index[1:]] + tables[1][index[:-1]]

    def reading(self, prompt: Sequence[int], tokens: Sequence[int], sampling: SamplingParams) -> Reading:
        """A text as one uncached forward of both sees it."""
        ids = [*prompt, *tokens][-len(tokens) - 2 : -1]
        logits, drafts = self.logits(ids, self.target), self.logits(ids, self.draft)
        if (process := sampling.process) is not None:
            before = [*prompt, *tokens[:-1]]
            logits, drafts = (with_history(rows, process, before, len(prompt)) for rows in (logits, drafts))
        q, p = warp(logits, sampling), warp(drafts, sampling)
        emitted = torch.tensor(tokens)
        outside = q.gather(-1, emitted.unsqueeze(-1)).squeeze(-1) <= 0
        return Reading(emitted, sampling, logits, drafts, q, p, outside, torch.zeros_like(outside))


class Engine:
    """Speculates on tables, with a fault or none; requests outlive each other in what they number."""

    def __init__(self, tables: Tables, sampling: SamplingParams, fault: str | None, k: int = K) -> None:
        self._k = k
        self._tables, self._sampling, self._fault = tables, sampling, fault
        self._asked = self._begun = self._loop = 0  # where output and loop begin
        self._rows: dict[tuple[Any, ...], np.ndarray[Any, Any]] = {}
        self._final = 0.0

    def row(self, ids: Sequence[int], which: str = "target", **changes: float) -> Any:
        """[V] what comes after the last two of ``ids``, with other sampling parameters if they are given."""
        process, before = self._sampling.process, tuple(ids)
        if which == "target" and len(ids) > self._loop and self._fault in PROCESSED:
            if self._fault.startswith("min-p"):
                process = None
            elif self._fault.startswith("penalty"):
                before += before[self._loop :]
            else:
                before = before[: self._loop]
        history = (self._begun, *before) if process is not None and process.follows_history else ()
        key = (*ids[-2:], which, process is None, history, *changes.items())
        if key not in self._rows:
            sampling = self._sampling
            temperature = sampling.temperature * changes.get("by", 1.0)
            top_k = int(sampling.top_k + changes.get("more", 0)) if sampling.top_k else 0
            asked = SamplingParams(changes.get("at", temperature), top_k, sampling.top_p, process=process)
            tables = getattr(self._tables, which)
            logits = (tables[0][ids[-1]] + tables[1][ids[-2]]).unsqueeze(0)
            if self._fault == "stop left out" and which == "target":
                logits = logits.clone()
                logits[0, STOP] = -math.inf
            if process is not None:
                logits = with_history(logits, process, before, self._begun)
            self._rows[key] = warp(logits, asked)[0].double().numpy()
        return self._rows[key]

    def generate(  # noqa: C901, PLR0915 - one loop, with every fault where it happens
        self, prompt: Sequence[int], most: int, seed: int
    ) -> tuple[list[int], list[int], list[list[int]]]:
        """Output ids, and of each loop how many drafted tokens it kept and which it had drafted."""
        self._asked += 1
        fault, slot = self._fault, self._asked % 8
        if (fault == "constant seed in 3 of 8 slots" and slot < 3) or (
            fault == "constant seed in one slot of 8" and slot == 0
        ):
            seed = slot
        if fault == "seeded anew each text":
            seed = 5
        numbers, others = random.Random(seed), random.Random(seed)
        ids, accepted, drafted, begun = list(prompt), list[int](), list[list[int]](), len(prompt)
        self._begun = begun
        late = self._asked > 100
        while True:
            if fault == "seeded anew each loop":
                numbers = random.Random(seed)
            done, self._loop = len(ids) - begun, len(ids)
            picks = [numbers.random() for _ in range(self._k)]
            if fault == "one stream for draft and target":
                tests = [others.random() for _ in range(self._k + 1)]
            else:
                tests = [numbers.random() for _ in range(self._k + 1)]
            final = tests.pop()
            if fault == "one number for all tests":
                tests = [tests[0]] * self._k
            if fault == "residual number is next pick" and accepted:
                picks[0] = self._final
            self._final = final
            if fault == "numbers of 8 bits":
                picks, tests = ([int(256 * u) / 256 for u in many] for many in (picks, tests))
                final = int(256 * final) / 256
            draft: list[int] = []
            for u in picks:
                p = self.row([*ids, *draft], "draft")
                draft.append(_drawn(self._picked(p, [*ids, *draft]), u))
            new: list[int] = []
            broken = None
            if (
                fault is not None
                and fault.startswith("stale row")
                and numbers.random() < 1 / int(fault.split()[-2])
            ):
                broken = numbers.randrange(self._k + 1)
            for j, d in enumerate(draft):
                context = [*ids, *new]
                q, p = self._q(context, done + j, broken == j), self.row(context, "draft")
                v = tests[j]
                if fault and fault.startswith("pick is test"):
                    v = picks[j]
                    if "descending" in fault:
                        v = _descending(p, d, numbers.random())
                edge = q[d] / max(p[d], 1e-300)
                if fault == "inverted ratio":
                    edge = p[d] / max(q[d], 1e-300)
                elif (
                    fault == "lenient"
                    or (fault == "lenient after 100 texts" and late)
                    or (fault == "lenient first test" and j == 0)
                ):
                    edge /= 0.8
                elif fault == "strict":
                    edge *= 0.8
                if fault == "first token from the draft" and done + j == 0:
                    edge = 2.0
                if fault == "end unverified" and done + j == most - 1:
                    edge = 2.0
                if fault == "synthetic acceptance":  # whole, rejected at the third, in turns
                    edge = 2.0 if j < 2 + len(accepted) % 2 else 0.0
                if fault == "draft mixed in, 3%" and numbers.random() < 0.03:
                    edge = 2.0
                if v < edge:
                    new.append(d)
                    continue
                left = self._left(q, p, d, done + j)
                if fault in ("test is residual", "pick is test is residual"):
                    final = v
                new.append(_drawn(left, final))
                break
            else:
                context = [*ids, *new]
                q = self._q(context, done + self._k, broken == self._k)
                if fault == "bonus at 1.1 times the temperature":
                    q = self.row(context, by=1.1)
                elif fault == "bonus at temperature 1":
                    q = self.row(context, at=1.0)
                elif fault == "bonus from the draft":
                    q = self.row(context, "draft")
                elif fault == "row off by one after full acceptance":
                    q = self.row(context[:-1])
                new.append(_drawn(q, final))
            count = len(new) - 1
            if fault == "first token greedy" and done == 0:
                new, count = [int(self.row(ids).argmax())], 0
            accepted.append(count)
            drafted.append(draft)
            for token in new:
                ids.append(token)
                if token == STOP or len(ids) - begun == most:
                    return ids[begun:], accepted, drafted

    def _picked(self, p: Any, context: list[int]) -> Any:
        fault = self._fault
        if fault == "draft cut to 16":
            return p * (p >= np.sort(p)[-16])
        if fault == "draft greedy":
            return (p == p.max()) * 1.0
        if fault == "draft at 0.8 times the temperature":
            return self.row(context, "draft", by=0.8)
        return p

    def _q(self, context: list[int], place: int, broken: bool) -> Any:
        fault = self._fault
        if broken:
            return self.row(context[:-1])
        if fault == "target at 1.05 times the temperature":
            return self.row(context, by=1.05)
        if fault == "top-k off by one":
            return self.row(context, more=1)
        q = self.row(context)
        if fault == "nucleus one token short" and (q > 0).sum() > 1:
            return q * (q > q[q > 0].min())
        if fault == "repetition penalty 1.1":
            q = q.copy()
            q[list(set(context))] *= 0.8
            return q / q.sum()
        return q

    def _left(self, q: Any, p: Any, d: int, place: int) -> Any:
        fault = self._fault
        if (
            fault == "no residual"
            or (fault == "no residual after 32 tokens" and place >= 32)
            or (fault == "no residual in every 4th text" and self._asked % 4 == 0)
        ):
            return q
        if fault == "residual without the rejected token":
            return q * (np.arange(len(q)) != d)
        if fault == "residual by distance":
            return abs(q - p)
        left = np.maximum(q - p, 0.0)
        left = left if left.sum() > 0 else q
        return (left == left.max()) * 1.0 if fault == "residual greedy" else left


def _drawn(row: Any, u: float) -> int:
    sums = row.cumsum()
    return min(int(np.searchsorted(sums, u * sums[-1], side="right")), len(row) - 1)


def _descending(p: Any, d: int, u: float) -> float:
    """A number that would have picked a token in the order of descending probability."""
    return float(p[p > p[d]].sum() + u * p[d])


SETTINGS = (SamplingParams(temperature=0.7), SamplingParams(), SamplingParams(top_p=0.9))


def audited(
    seed: int,
    fault: str | None,
    sampling: SamplingParams,
    texts: int,
    tokens: int,
    told: int = 1,
    in_flight: int = 0,
    process: Processing | None = None,
) -> tuple[int | None, float, Bets]:
    """Texts until the alarm (None without one), the highest e-value (log), and the bets.

    ``process`` is that of a right engine; some faults have their own. ``told`` says what the engine reports:
    0 tokens alone, 1 accepted tokens per loop, 2 drafted ids, too.
    """
    tables = Tables.made(seed)
    if fault == "top-k off by one":
        sampling = SamplingParams(top_k=8)
    process = process if fault is None else PROCESSED.get(fault)
    sampling = sampling if process is None else replace(sampling, process=process)
    engine, bets = Engine(tables, sampling, fault), Bets([STOP], K, sampling.temperature, modified=True)
    chance = random.Random(f"{seed} {sampling.record()}")
    prompts = [
        tuple(chance.randrange(VOCABULARY - 1) for _ in range(6 + 34 * bool(in_flight)))
        for _ in range(PROMPTS)
    ]
    highest, sums = -math.inf, Sums()
    before, wave = list[Foreign](), list[Foreign]()
    for number in range(1, texts + 1):
        prompt, most = prompts[number % PROMPTS], tokens
        if in_flight:
            prompt = (0, *shared_prompt(number, prompts, before, 4 * tokens, chance))  # rows need two tokens
            most = chance.randint(-(-tokens // 4), tokens)
            if number % 4 == 0:  # an aborted companion
                engine.generate(prompts[0], chance.randint(1, tokens // 2), chance.getrandbits(31))
        ids, accepted, drafted = engine.generate(prompt, most, chance.getrandbits(31))
        wave.append(Foreign(number, prompt, tuple(ids), sampling, retokenised=False))
        if in_flight and number % (2 * in_flight) == 0:
            before, wave = [*before, *wave], []
        reading = tables.reading(prompt, ids, sampling)
        bets.add(prompt, ids, reading, accepted if told else None, 0, drafted if told == 2 else None)
        sums = added(sums, score_stats(reading, number))
        other = math.log(10) * e_values(pd.DataFrame([sums]))["mean"]
        highest = max(highest, float(np.logaddexp(other, bets.log_e)) - math.log(2))
        if highest >= ALARM or bool(reading.impossible.any()):
            return number, highest, bets
    return None, highest, bets


def main() -> None:
    """Count false alarms, or the texts until faults are found."""
    given = _arguments()
    for line in _found(given) if given.faults else _false(given):
        print(line, flush=True)


def _false(given: argparse.Namespace) -> Iterator[str]:
    alarms, highest = 0, -math.inf
    for seed in range(given.first, given.first + given.runs):
        sampling = SETTINGS[seed // 3 % len(SETTINGS)]
        process = [*PROCESSED.values()][seed // 9 % len(PROCESSED)] if given.processed else None
        asked = (given.texts, given.tokens, seed % 3, given.in_flight, process)
        after, most, _ = audited(seed, None, sampling, *asked)
        alarms, highest = alarms + (after is not None), max(highest, most)
        if after is not None or most > math.log(100) or (seed + 1) % 20 == 0:
            done, this, top = seed + 1 - given.first, most / math.log(10), highest / math.log(10)
            yield f"{done} audits: {alarms} alarms, highest e-value 10^{top:.1f}, of this one 10^{this:.1f}"


def _found(given: argparse.Namespace) -> Iterator[str]:
    for fault in FAULTS:
        told = []
        for number, sampling in enumerate(SETTINGS):
            after, most, bets = audited(
                given.first + number, fault, sampling, given.texts, given.tokens, given.told
            )
            place, law = bets.leading()
            told.append(
                f"{after or '-':>4} ({place}: {law or 'several'})"
                if after
                else f"   - (10^{most / 2.303:.1f})"
            )
        yield f"{fault:40} {'  '.join(told)}"


def parser_of(described: str | None, texts: int, tokens: int) -> argparse.ArgumentParser:
    """Options of audits that are simulated by seed."""
    parser = argparse.ArgumentParser(
        description=described, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--texts", type=int, default=texts)
    parser.add_argument("--tokens", type=int, default=tokens)
    parser.add_argument("--first", type=int, default=0, help="seed of the first audit")
    parser.add_argument("--faults", action="store_true", help="the texts until each fault is found")
    return parser


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, 320, 64)
    parser.add_argument("--told", type=int, default=1, help="what faulty engines report")
    parser.add_argument("--in-flight", type=int, default=0, help="in waves, of so many requests at once")
    parser.add_argument("--processed", action="store_true", help="right engines under penalties, bans, cuts")
    return parser.parse_args()


if __name__ == "__main__":
    main()
