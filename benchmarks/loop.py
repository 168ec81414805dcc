"""What a loop costs beyond its forwards, by vocabulary and sampling: models whose rows are there already.

    python -m benchmarks.loop [--vocab 1024 49152 152000] [--k 4] [--loops 400] [--threads 1] [--cold MIB]

Rows fall off like word frequencies, with an exponent of each row's own and noise on top: at T = .8 most have
an entropy of 1 to 3 nats, and every sixteenth is much flatter. The draft's are the target's with more noise.
As in a run the loops of a sequence keep their rows until it ends. The forwards' own time is left out; with
``--cold`` each first reads so many MiB, as a real one reads its weights, so that all else is cold.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spsbench.base.records import SamplingParams
from spsbench.decode import algorithms
from spsbench.decode.clock import Stopwatch, SystemClock
from spsbench.decode.protocols import read_prompt
from spsbench.decode.sampling import UniformStream, warp
from spsbench.drafters.model import ModelDrafter

_SAMPLINGS = {
    "T .8, top-p .95": SamplingParams(temperature=0.8, top_p=0.95),
    "T .8, top-k 50": SamplingParams(temperature=0.8, top_k=50),
    "T 1": SamplingParams(),
    "greedy": SamplingParams(greedy=True),
}
_CPU = torch.device("cpu")
_ROWS = 64
_SEQUENCE = 40
_DISAGREEMENT = 0.5


class Remembered:
    """A model that looks its logits up by position.

    Args:
        logits: [rows, V]; position i has row i modulo their number.
        cold: MiB that each forward reads beside its row.

    Attributes:
        forward_s: seconds spent in ``score``.
    """

    def __init__(self, logits: NDArray[np.float32], cold: int) -> None:
        self.vocab_size = logits.shape[1]
        self.length = 0
        self.forward_s = 0.0
        self._weights = np.ones(cold << 17)
        self._rows = torch.from_numpy(np.concatenate([logits, logits]))

    def begin(self, prompt: Sequence[int]) -> Tensor:
        return read_prompt(self, prompt)

    def room_behind(self, prompt: Sequence[int]) -> int:
        return 1 << 30

    def score(self, tokens: Tensor, last: int) -> Tensor:
        started = time.perf_counter()
        self._weights.sum()
        self.length += len(tokens)
        first = (self.length - last) % (len(self._rows) // 2)
        rows = self._rows[first : first + last]
        self.forward_s += time.perf_counter() - started
        return rows

    def rollback(self, length: int) -> None:
        self.length = min(self.length, length)


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one method's loops.

    Attributes:
        ms: milliseconds of each loop beyond the forwards.
        accepted: mean number of accepted tokens.
    """

    ms: NDArray[np.float64]
    accepted: float

    def __str__(self) -> str:
        low, median, high = np.percentile(self.ms, [25, 50, 75])
        return f"{median:.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    """Make the rows, measure, print."""
    given = _arguments()
    torch.set_num_threads(given.threads)
    print(f"K = {given.k}, {given.threads} threads, ms a loop beyond the forwards: median [quartiles]")
    print("| V | sampling | kept tokens | SpS | accepted | ArS | SpS / ArS |")
    print("|---|---|---|---|---|---|---|")
    for vocab_size in given.vocab:
        target, draft = _models(vocab_size, given.cold)
        for name, sampling in _SAMPLINGS.items():
            with torch.inference_mode():
                sps = _measured(target, draft, sampling, given.k, given.loops)
                ars = _measured(target, None, sampling, 0, given.loops)
            ratio = np.median(sps.ms) / np.median(ars.ms)
            kept = _kept(target, sampling)
            print(
                f"| {vocab_size} | {name} | {kept} | {sps} | {sps.accepted:.2f} | {ars} | {ratio:.1f} |",
                flush=True,
            )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vocab", type=int, nargs="+", default=[1024, 49_152, 152_000])
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--loops", type=int, default=400)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cold", type=int, default=0)
    return parser.parse_args()


def _models(vocab_size: int, cold: int) -> tuple[Remembered, Remembered]:
    """Target and draft over the same rows; the draft's with more noise."""
    generator = np.random.default_rng(0)
    exponents = generator.uniform(1.2, 2.4, _ROWS)
    exponents[::16] = 0.6
    ranks = np.arange(1, vocab_size + 1)
    logits = np.stack([-exponent * np.log(generator.permutation(ranks)) for exponent in exponents])
    logits += 0.05 * generator.standard_normal(logits.shape)
    noise = _DISAGREEMENT * generator.standard_normal(logits.shape)
    rows = [each.astype(np.float32) for each in (logits, logits + noise)]
    return Remembered(rows[0], cold), Remembered(rows[1], cold)


def _kept(model: Remembered, sampling: SamplingParams) -> str:
    """Smallest, median and largest number of tokens that the warper keeps."""
    model.rollback(0)
    rows = model.score(torch.zeros(_ROWS, dtype=torch.int64), last=_ROWS)
    counts = (warp(rows, sampling) > 0).sum(-1)
    return f"{int(counts.min())}, {int(counts.median())}, {int(counts.max())}"


def _measured(
    target: Remembered, draft: Remembered | None, sampling: SamplingParams, k: int, loops: int
) -> Cost:
    drafter = None if draft is None else ModelDrafter(draft, sampling, _CPU)
    models = [target] if draft is None else [target, draft]
    ms, accepted = [], 0
    for seed in range(-(-loops // _SEQUENCE) + 1):  # the first sequence is warm-up
        begin = algorithms.start(target, drafter, [1, 2, 3], k, sampling, UniformStream(seed, _CPU))
        running, kept = begin(Stopwatch(SystemClock())), []
        for _ in range(_SEQUENCE):
            forwards_s = sum(model.forward_s for model in models)
            started = time.perf_counter()
            kept.append(next(running))
            took_s = time.perf_counter() - started
            if seed:
                ms.append(1e3 * (took_s - sum(model.forward_s for model in models) + forwards_s))
                accepted += kept[-1].accepted
    return Cost(np.array(ms), accepted / len(ms))


if __name__ == "__main__":
    main()
