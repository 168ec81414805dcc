"""How often `audit --follow` raises a false alarm, and how long after its beginning it finds a fault.

    python -m benchmarks.follow_power [--days 1000] [--texts 100] [--tokens 24] [--in-flight 16] [--faults]

Target and draft are random tables (synthetic, ``benchmarks.audit_power``), others every tenth day; a third of
the texts each is drawn at temperature 0.7, at 1 and with top-p 0.9. A clean day has so many texts at random
minutes, drawn from the target. One detector sees them all, day after day, and starts again after an alarm.
With --in-flight the order within groups of so many texts is that of their lengths, as in a log written
as requests end.

With --faults the engine of ``benchmarks.audit_power`` follows some clean days and gets a fault at a random
minute: texts and hours from there to the alarm.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from itertools import chain
from statistics import median

import torch

from benchmarks.audit_power import SETTINGS, STOP, VOCABULARY, Engine, Tables
from spsbench.base.records import SamplingParams
from spsbench.decode.sampling import warp
from spsbench.engines.rescore import score_stats
from spsbench.parts.audit.follow import Detector

DAY_S = 86400.0
FAULTS = (
    "draft mixed in, 3%",
    "lenient",
    "no residual",
    "bonus from the draft",
    "inverted ratio",
    "stale row in 1 of 50 loops",
    "target at 1.05 times the temperature",
    "repetition penalty 1.1",
)

Text = tuple[list[int], list[int], SamplingParams]
"""Prompt, completion and sampling."""


def drawn(tables: Tables, sampling: SamplingParams, texts: int, tokens: int, seed: int) -> list[Text]:
    """Texts of the target, all at once."""
    chance = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCABULARY - 1, (texts, 6), generator=chance)
    for _ in range(tokens):
        rows = tables.target[0][ids[:, -1]] + tables.target[1][ids[:, -2]]
        ids = torch.cat([ids, torch.multinomial(warp(rows, sampling), 1, generator=chance)], 1)
    found = []
    for prompt, text in zip(ids[:, :6].tolist(), ids[:, 6:].tolist(), strict=True):
        found.append((prompt, text[: text.index(STOP) + 1] if STOP in text else text, sampling))
    return found


def taken(detector: Detector, tables: Tables, text: Text, at_s: float, number: int) -> bool:
    """Whether the detector raises an alarm at this text."""
    sums = score_stats(tables.reading(*text), number)
    detector.add(detector.logs(sums, len(text[1]), exact=True), at_s, number)
    return detector.is_alarm or sums["impossible"] > 0


def clean(days: int, texts: int, tokens: int, in_flight: int, seed: int) -> Iterator[str]:
    """Count the alarms of so many clean days."""
    chance, detector, alarms, number, highest = random.Random(seed), Detector(), 0, 0, 0.0
    for day in range(days):
        if day % 10 == 0:
            tables = Tables.made(seed + day // 10)
        parts = [drawn(tables, s, -(-texts // 3), tokens, 3 * day + n) for n, s in enumerate(SETTINGS)]
        today = chance.sample([*chain.from_iterable(parts)], texts)
        if in_flight:
            groups = [today[n : n + in_flight] for n in range(0, texts, in_flight)]
            today = [text for group in groups for text in sorted(group, key=lambda each: len(each[1]))]
        times = sorted(chance.uniform(0, DAY_S) for _ in today)
        for text, at_s in zip(today, times, strict=True):
            number += 1
            alarm = taken(detector, tables, text, day * DAY_S + at_s, number)
            highest = max(highest, detector.years)
            if alarm:
                alarms += 1
                yield f"day {day}: alarm, {detector.leading}"
                detector = Detector(cells=detector.cells, last_s=detector.last_s)
        if (day + 1) % 50 == 0 or day + 1 == days:
            yield f"{day + 1} days, {number} texts: {alarms} alarms, highest R {highest:.3g} (an alarm is 1)"


def delay(fault: str, texts: int, tokens: int, seed: int) -> tuple[int | None, float, str]:
    """Texts and hours from a fault's beginning to the alarm (None within 400 texts), and what it was."""
    chance, detector, number = random.Random(f"{fault} {seed}"), Detector(), 0
    tables, sampling = Tables.made(seed), SETTINGS[seed % len(SETTINGS)]
    begins_s = chance.uniform(2, 4) * DAY_S
    at_s = chance.expovariate(texts / DAY_S)
    for text in drawn(tables, sampling, int(4.5 * texts), tokens, seed):
        if at_s >= begins_s:
            break
        number += 1
        if taken(detector, tables, text, at_s, number):
            return None, 0.0, "before it began"
        at_s += chance.expovariate(texts / DAY_S)
    engine = Engine(tables, sampling, fault)
    for after in range(1, 401):
        prompt = [chance.randrange(VOCABULARY - 1) for _ in range(6)]
        completion, _, _ = engine.generate(prompt, tokens, chance.getrandbits(31))
        if taken(detector, tables, (prompt, completion, sampling), at_s, number + after):
            lead = detector.leading
            return after, (at_s - begins_s) / 3600, "" if lead is None else lead["stake"]
        at_s += chance.expovariate(texts / DAY_S)
    return None, 0.0, f"R {detector.years:.2g}"


def main() -> None:
    """Count false alarms, or measure delays."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=1000)
    parser.add_argument("--texts", type=int, default=100, help="re-scored texts a day")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--in-flight", type=int, default=0)
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--seeds", type=int, default=6, help="of each fault")
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if not given.faults:
        for line in clean(given.days, given.texts, given.tokens, given.in_flight, given.first):
            print(line, flush=True)
        return
    for fault in FAULTS:
        seeds = range(given.first, given.first + given.seeds)
        found = [delay(fault, given.texts, given.tokens, seed) for seed in seeds]
        after = [count for count, _, _ in found if count is not None]
        hours = [hours for count, hours, _ in found if count is not None]
        told = f"{median(after):.0f} texts, {median(hours):.1f} h (medians)" if after else "-"
        print(f"{fault:40} {len(after)} of {len(found)}: {told}; {[each[::2] for each in found]}", flush=True)


if __name__ == "__main__":
    main()
