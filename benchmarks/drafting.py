"""What a drafted token costs without a draft model: each drafter along the target's own text.

    python -m benchmarks.drafting [--prompts 40] [--tokens 48] [--k 4] [DRAFTER...]

The target writes each continuation greedily; the drafters then propose behind every loop of it, as decoding
would ask them, and the loop keeps as many of the proposed tokens as the text agrees with. ``begin`` is apart:
a run does it before its clock starts.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.pairs import build
from spsbench.base.records import SamplingParams, Spec
from spsbench.config import resolve
from spsbench.decode.protocols import Drafter
from spsbench.drafters.registry import Context, build_drafter
from spsbench.models.causal_lm import CausalLM
from spsbench.runner import plan

_ALL = (
    *("lookup", "suffix", "suffix:across=true", "unigram", "bigram", "ngram", "ngram:adapt=false"),
    *("model", "union", "union:of=lookup+ngram"),
)
_SAMPLING = SamplingParams(top_p=0.95)


@dataclass
class Cost:
    """Of one drafter over all texts.

    Attributes:
        begin_s: seconds of ``begin``.
        draft_s: seconds of ``draft`` and ``observe``.
        loops: how often it was asked.
        drafted: tokens it proposed.
        agreed: leading ones that the text has too.
    """

    begin_s: float = 0.0
    draft_s: float = 0.0
    loops: int = 0
    drafted: int = 0
    agreed: int = 0


def main() -> None:
    """Load, write the texts, measure, print."""
    given = _arguments()
    torch.set_num_threads(1)
    target, draft = build("mini", torch.float32, _cpu())
    prompts = [prompt.ids for prompt in plan(resolve({"limit": given.prompts})).prompts]
    with torch.inference_mode():
        texts = [_written(target, prompt, given.tokens) for prompt in prompts]
        context = Context(target, draft, _SAMPLING, _cpu(), target.vocab_size, lambda: prompts)
        print("| drafter | us/drafted token | us/loop | us/begin | drafted/loop | agreed/loop |")
        print("|---|---|---|---|---|---|")
        for name in given.drafters or _ALL:
            drafter = build_drafter(Spec.parse(name), context)
            print(_row(name, _measured(drafter, prompts, texts, given.k), len(prompts)), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("drafters", nargs="*")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--k", type=int, default=4)
    return parser.parse_args()


def _cpu() -> torch.device:
    return torch.device("cpu")


def _written(target: CausalLM, prompt: Sequence[int], length: int) -> list[int]:
    """The prompt and what the target writes behind it, greedily; it may write past its end token."""
    tokens, pending = list(prompt), target.begin(prompt)
    for _ in range(length):
        pending = target.score(pending, last=1).argmax(-1)
        tokens += pending.tolist()
    return tokens


def _measured(drafter: Drafter, prompts: Sequence[Sequence[int]], texts: Sequence[list[int]], k: int) -> Cost:
    cost, generator = Cost(), torch.Generator().manual_seed(0)
    for prompt, text in zip(prompts, texts, strict=True):
        started = time.perf_counter()
        drafter.begin(prompt)
        cost.begin_s += time.perf_counter() - started
        end = len(prompt)
        while end < len(text):
            end = _loop(drafter, text, end, torch.rand(k, generator=generator), cost)
    return cost


def _loop(drafter: Drafter, text: list[int], end: int, u: Tensor, cost: Cost) -> int:
    """One loop behind ``text[:end]``: where the next begins."""
    tokens = text[:end]
    started = time.perf_counter()
    proposed = drafter.draft(tokens, len(u), u).tokens.tolist()
    cost.draft_s += time.perf_counter() - started
    same = (a == b for a, b in zip(proposed, text[end:], strict=False))
    agreed = sum(1 for _ in itertools.takewhile(bool, same))
    tokens = text[: end + agreed + 1]
    started = time.perf_counter()
    drafter.observe(tokens, agreed)
    cost.draft_s += time.perf_counter() - started
    cost.loops += 1
    cost.drafted += len(proposed)
    cost.agreed += agreed
    return end + agreed + 1


def _row(name: str, cost: Cost, texts: int) -> str:
    drafted = f"{1e6 * cost.draft_s / cost.drafted:.1f}" if cost.drafted else "none drafted"
    loop, begin = 1e6 * cost.draft_s / cost.loops, 1e6 * cost.begin_s / texts
    return (
        f"| {name} | {drafted} | {loop:.0f} | {begin:.0f} "
        f"| {cost.drafted / cost.loops:.2f} | {cost.agreed / cost.loops:.2f} |"
    )


if __name__ == "__main__":
    main()
