"""What every ``repro.py`` holds beside the engine's driver: seeds, frequencies of one token and their test.

On the standard library alone; ``repro`` copies it, with what it uses of the protocol, into the script.
"""

from __future__ import annotations

import argparse
import atexit
import json
import math
import os
import random
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from spsbench.base import Answer, Ask, Load, Sampling, request

CASE: dict[str, Any] = {}

ROUNDING = 1e-6  # probability granted to a token that has none: the engine may round otherwise
FEWEST = 5.0  # expected count from which a token has its own cell
LEVEL = 1e-3
LEAST = 10  # draws of a token that are tested
Row = tuple[Mapping[int, float], float]  # probabilities by token, and what all other tokens have together


def seeds(first: int, draws: int) -> list[int]:
    """Seeds of requests, below 2^31."""
    numbers = random.Random(first)
    return [numbers.getrandbits(31) for _ in range(draws)]


def followers(outputs: Sequence[Sequence[int]], prefix: Sequence[int]) -> Counter[int]:
    """The tokens that follow a prefix of the outputs."""
    place = len(prefix)
    return Counter(ids[place] for ids in outputs if len(ids) > place and list(ids[:place]) == list(prefix))


def impossible(counts: Mapping[int, int], row: Row) -> int:
    """How many tokens have probability 0: none where the row gives the most probable tokens only."""
    expected, rest = row
    return 0 if rest > 0 else sum(count for token, count in counts.items() if token not in expected)


def p_value(counts: Mapping[int, int], row: Row) -> float:
    """Chi-square over the tokens expected at least 5 times, the others together; the share of the most
    probable token; and tokens of probability 0.

    Of the three tests the smallest p-value, times three.
    """
    outside = impossible(counts, row)
    inside = sum(counts.values()) - outside
    cells = sorted(((inside * q, counts.get(token, 0)) for token, q in row[0].items()), reverse=True)
    cells = [cell for cell in cells if cell[0] >= FEWEST]
    pooled = inside - sum(cell[0] for cell in cells), inside - sum(cell[1] for cell in cells)
    if pooled[0] >= FEWEST or not cells:
        cells.append(pooled)
    else:
        cells[-1] = cells[-1][0] + pooled[0], cells[-1][1] + pooled[1]
    statistic = sum((seen - mean) ** 2 / mean for mean, seen in cells if mean > 0)
    token, likely = max(row[0].items(), key=lambda item: item[1], default=(-1, 0.0))
    p_values = chi_square(statistic, len(cells) - 1), share(counts.get(token, 0), inside, likely)
    # A bound on the probability of so many tokens of probability 0.
    draws = inside + outside
    rare = math.exp(math.log(math.comb(draws, outside)) + outside * math.log(ROUNDING))
    return min(1.0, 3 * min(*p_values, rare))


def share(seen: int, draws: int, probability: float) -> float:
    """Two-sided probability of so many of one token; exact, but for rounding of its probability near 1."""
    q = min(max(probability, ROUNDING), 1 - ROUNDING)
    terms = [
        math.exp(math.log(math.comb(draws, n)) + n * math.log(q) + (draws - n) * math.log1p(-q))
        for n in range(draws + 1)
    ]
    return min(1.0, 2 * min(math.fsum(terms[: seen + 1]), math.fsum(terms[seen:])))


def chi_square(statistic: float, freedom: int) -> float:
    """Probability of at least this value."""
    if freedom < 1 or statistic <= 0:
        return 1.0
    half = statistic / 2
    a, tail = (0.5, math.erfc(math.sqrt(half))) if freedom % 2 else (1.0, math.exp(-half))
    while a < freedom / 2:
        tail += math.exp(a * math.log(half) - half - math.lgamma(a + 1))
        a += 1
    return tail


def recomputed(folder: str) -> Row:
    """The expected probabilities, by transformers in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    if CASE["held_against"] is not None:
        sys.exit(f"--model: the texts are held against {CASE['held_against']}, which is not computed here")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([[*CASE["prompt_ids"], *CASE["prefix_ids"]]])).logits[0, -1]
    return warped(logits[: CASE["vocab_size"]].tolist(), **CASE["sampling"]), 0.0


def warped(
    logits: Sequence[float], greedy: bool, temperature: float, top_k: int, top_p: float
) -> dict[int, float]:
    """Temperature, then top-k, then the smallest set of most probable tokens whose mass reaches top-p."""
    order = sorted(range(len(logits)), key=lambda token: -logits[token])
    best = logits[order[0]]
    kept = order[:1] if greedy else order[: top_k or len(order)]
    weights = {token: math.exp((logits[token] - best) / temperature) for token in kept}
    total = sum(weights.values())
    mass = 0.0
    inside = {}
    for token, weight in weights.items():
        if mass >= top_p * total and top_p < 1:
            break
        inside[token] = weight
        mass += weight
    return {token: weight / mass for token, weight in inside.items()}


def shown(p: float) -> str:
    """A p-value as text."""
    return "below 1e-300" if p < 1e-300 else f"{p:.2g}"


def table(counts: Mapping[int, int], row: Row) -> Iterator[str]:
    """Observed and expected, the twelve tokens that are farthest from what is expected first."""
    expected, rest = row
    total = sum(counts.values())
    means = {token: total * expected.get(token, 0.0) for token in {*expected, *counts}}
    order = sorted(means, key=lambda token: -abs(counts.get(token, 0) - means[token]))
    first, others = order[:12], order[12:]
    yield f"{'token':>8} {'observed':>9} {'expected':>9}"
    for token in first:
        known = f"{means[token]:9.1f}" if token in expected or not rest else "    small"
        yield f"{token:8} {counts.get(token, 0):9} {known}"
    seen = sum(counts.get(token, 0) for token in others)
    yield f"{'others':>8} {seen:9} {total - sum(means[token] for token in first):9.1f}"


class JsonLines:
    """A program that speaks JSON lines on standard input and output, a request or an answer a line."""

    def __init__(self, load: Load) -> None:
        command = shlex.split(load.options["command"])
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer("describe", replace(load, options={}))
        atexit.register(self._process.communicate, request(1, "bye"))

    def generate(self, ask: Ask) -> Answer:
        reply = self._answer("generate", ask)
        return Answer(reply["output_ids"], reply["finish"], reply.get("hidden_stop", False))

    def _answer(self, method: str, params: Load | Ask) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(request(1, method, params))
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(
            self._process.stdout.readline() or '{"error": "the engine ended"}'
        )
        if "error" in answer:
            raise SystemExit(f"{method}: {answer['error']}")
        return dict(answer["result"])


def main(engine: Callable[[Load], Any]) -> None:
    """Ask the engine, compare, and exit with 3 if its tokens are not the target's."""
    parser = argparse.ArgumentParser(description="Observed against expected frequencies of one token.")
    for role in ("target", "draft"):
        parser.add_argument(f"--{role}", metavar=CASE["models"], required=True, help=f"the {role} model")
    for name in CASE["flags"]:
        parser.add_argument(f"--{name}", default=CASE["options"][name], help="default: %(default)s")
    parser.add_argument("--draws", type=int, default=CASE["draws"])
    parser.add_argument("--seed", type=int, default=CASE["first_seed"])
    parser.add_argument("--model", metavar="HF_DIR", help="compute the expected probabilities again")
    arguments = parser.parse_args()
    row: Row = recomputed(arguments.model) if arguments.model else (CASE["expected"], CASE["rest"])
    os.environ |= CASE["environment"]
    draft = arguments.draft if CASE["k"] else None
    options = CASE["options"] | {name: getattr(arguments, name) for name in CASE["flags"]}
    load = Load(arguments.target, draft, CASE["k"], CASE["threads"], CASE["context"], CASE["dtype"], options)
    running = engine(load)
    sampling = Sampling(**CASE["sampling"])
    drawn = []
    for seed in seeds(arguments.seed, arguments.draws):
        prompt, stop_ids = CASE["prompt_ids"], CASE["stop_ids"]
        answer = running.generate(Ask(prompt, CASE["max_new_tokens"], stop_ids, [], sampling, seed))
        drawn.append(answer.output_ids + (stop_ids[:1] if answer.hidden_stop else []))
    prefix, reached = CASE["prefix_ids"], CASE["prefix_probability"]
    counts = followers(drawn, prefix)
    total = sum(counts.values())
    if prefix:
        print(f"{total} of {len(drawn)} outputs begin with {prefix}; expected {len(drawn) * reached:.1f}")
    if prefix and total < LEAST:  # what is wrong comes earlier: then that number alone is tested
        p = p_value({0: len(drawn) - total, 1: total}, ({0: 1 - reached, 1: reached}, 0.0))
    else:
        print(f"output token {len(prefix) + 1}:")
        print(*table(counts, row), sep="\n")
        print(f"tokens of probability 0: {impossible(counts, row)} of {total}")
        p = p_value(counts, row)
    print(f"p-value {shown(p)}")
    print("NOT the target's distribution" if p < LEVEL else "consistent with the target's distribution")
    sys.exit(3 if p < LEVEL else 0)
