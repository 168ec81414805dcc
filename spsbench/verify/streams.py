"""Are the uniform numbers uniform and independent, along a sequence and between sequences?"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from spsbench.axes import EAGER
from spsbench.decode.sampling import UniformStream
from spsbench.records import Arm, Prompt
from spsbench.runner.stopping import turns
from spsbench.verify.finding import Finding
from spsbench.verify.subject import SamplerUnderTest

FALSE_ALARM = 1e-4
LONG = 64 * 1024
SHORT = 1024
_EXAMPLES, _SAMPLES, _LAGS = 8, 3, 32
# Four numbers of 24 bits: two equal windows among so many come by chance once in 10^18 runs.
_WINDOW = 4

Numbers = NDArray[np.float32]


def independent_uniforms(subject: SamplerUnderTest) -> Finding:
    """One long stream as each arm reads it, and the streams of a run's arms, examples and samples.

    Looks for repeated stretches, a law that is not uniform, and correlation: along a stream, between
    its parts, between streams.
    """
    seeds = run_seeds(subject)
    long = [long_stream(subject, n) for n in (1, 2 * subject.k + 1)]
    runs = np.stack([drawn(UniformStream(seed, subject.device), SHORT, SHORT) for seed in seeds])
    repeated = sum(repeats([stream]) for stream in long) + repeats(list(runs))
    parts = [stream.reshape(-1, SHORT) for stream in long]
    p_values = {
        "uniform": min(1.0, len(long) * min(uniform_p(stream) for stream in long)),
        "uniform_first": uniform_p(runs[:, 0]),
        "serial": min(1.0, len(long) * min(serial_p(stream) for stream in long)),
        "parts": min(1.0, len(long) * min(crossed_p(part) for part in parts)),
        "streams": crossed_p(runs),
    }
    name, least = min(p_values.items(), key=lambda item: item[1])
    shared = len(seeds) - len(set(seeds))
    return Finding(
        "uniforms",
        repeated == 0 and shared == 0 and least * len(p_values) >= FALSE_ALARM,
        f"{repeated} repeated stretches, {shared} of {len(seeds)} seeds shared, least p {least:.2g} ({name})",
        f"any repetition in {LONG:,} numbers of a sequence or between sequences; false alarm once in "
        f"{1 / FALSE_ALARM:,.0f}",
        {"numbers": LONG, "streams": len(seeds), "shared_seeds": shared, "repeated": repeated}
        | {f"p_{key}": value for key, value in p_values.items()},
    )


def run_seeds(subject: SamplerUnderTest) -> list[int]:
    """The seed of each sequence of a small run under the subject's sampling, by the runner's schedule."""
    arms = [
        Arm("ars", 0, EAGER, "tested", subject.sampling),
        Arm("sps", subject.k, EAGER, "tested", subject.sampling),
        Arm("draft", 0, EAGER, "tested", subject.sampling),
    ]
    prompts = [Prompt(str(number), "", (0,), "") for number in range(_EXAMPLES)]
    return [turn.seed for turn in turns(prompts, _SAMPLES, arms, subject.seed)]


def long_stream(subject: SamplerUnderTest, n: int) -> Numbers:
    """[LONG] numbers of one sequence, taken ``n`` at a time as a loop takes them."""
    return drawn(UniformStream(subject.seed, subject.device), LONG, n)


def drawn(stream: UniformStream, count: int, n: int) -> Numbers:
    """[count] numbers, ``n`` a call."""
    taken = torch.cat([stream(n) for _ in range(math.ceil(count / n))])
    numbers: Numbers = taken[:count].cpu().numpy()
    return numbers


def repeats(streams: Sequence[Numbers]) -> int:
    """How many stretches of four numbers stand in the streams more than once."""
    windows = [np.lib.stride_tricks.sliding_window_view(stream, _WINDOW) for stream in streams]
    whole = np.ascontiguousarray(np.concatenate(windows)).view(f"V{4 * _WINDOW}").ravel()
    return len(whole) - len(np.unique(whole))


def uniform_p(numbers: Numbers) -> float:
    """Kolmogorov-Smirnov against the uniform law."""
    from scipy.stats import kstest

    return float(kstest(numbers, "uniform").pvalue)


def serial_p(numbers: Numbers) -> float:
    """Correlation of a stream with itself some numbers later, over ``_LAGS`` lags."""
    centred = numbers.astype(np.float64) - 0.5
    products = [float((centred[:-lag] * centred[lag:]).sum()) for lag in range(1, _LAGS + 1)]
    # Independent centred uniforms: each product has the variance (1/12)^2.
    z = [12 * value / math.sqrt(len(centred) - lag) for lag, value in enumerate(products, start=1)]
    return _two_sided(max(map(abs, z)), _LAGS)


def crossed_p(streams: Numbers) -> float:
    """Correlation between any two of [n, m] streams, number by number."""
    centred = streams.astype(np.float64) - 0.5
    products = centred @ centred.T
    above = products[np.triu_indices(len(streams), k=1)]
    return _two_sided(12 * float(np.abs(above).max()) / math.sqrt(streams.shape[1]), len(above))


def _two_sided(z: float, times: int) -> float:
    """p of the largest of ``times`` standard normal numbers, by Bonferroni."""
    return min(1.0, times * math.erfc(z / math.sqrt(2)))
