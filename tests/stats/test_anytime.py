"""The confidence sequence of the speedup: what it covers when a run stops by looking, and what peeking costs.

Ratios are simulated and strongly skewed: outputs of gamma lengths, and a prompt's own time per token that is
log-normal or exponential. Everything is computed from running sums, for all simulated runs at once.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import t

from spsbench.base.records import Speedup
from spsbench.stats.anytime import (
    EXPECTABLE,
    FEWEST,
    TIGHTEST,
    anytime_speedup,
    critical_value,
    prompts_needed,
    relative_half_width,
    standard_error,
)
from spsbench.stats.speedup import PairedTimes

Floats = npt.NDArray[np.float64]

RUNS, PROMPTS = 2_000, 300
SHAPES = ("gamma", "log-normal", "exponential")


def columns(shape: str, runs: int, prompts: int, seed: int = 0) -> tuple[Floats, float]:
    """Baseline seconds and tokens, arm seconds and tokens [runs, prompts, 4], and the true ratio."""
    rng = np.random.default_rng((seed, SHAPES.index(shape)))
    size = (runs, prompts)
    base_tokens, arm_tokens = (np.ceil(rng.gamma(2.0, 30.0, size)) for _ in range(2))
    slow, mean = {
        "gamma": (rng.gamma(4.0, 0.25, size), 1.0),
        "log-normal": (rng.lognormal(0.0, 0.5, size), math.exp(0.125)),
        "exponential": (0.2 + rng.exponential(1.0, size), 1.2),
    }[shape]
    base_s = base_tokens * rng.lognormal(0.0, 0.02, size) / math.exp(0.0002)
    return np.stack([base_s, base_tokens, arm_tokens * slow, arm_tokens], axis=-1), 1.0 / mean


@cache
def looks(shape: str) -> tuple[Floats, Floats]:
    """At every length of every run: the error of the log ratio, and its standard error [runs, prompts]."""
    data, truth = columns(shape, RUNS, PROMPTS)
    n = np.arange(1, PROMPTS + 1)
    sums = data.cumsum(axis=1)
    signs = np.array([1.0, -1.0, -1.0, 1.0])
    weights = signs / sums
    products = np.einsum("rni,rnj->rnij", data, data).cumsum(axis=1)
    squares = np.einsum("rni,rnij,rnj->rn", weights, products, weights)
    log_ratio = (signs * np.log(sums)).sum(axis=-1)
    with np.errstate(all="ignore"):
        return log_ratio - math.log(truth), np.sqrt(np.maximum(squares, 0.0) * n / (n - 1))


ANYTIME = np.array([critical_value(n) for n in range(1, PROMPTS + 1)])
ORDINARY = np.array([math.inf, *t.ppf(0.975, np.arange(1, PROMPTS))])


def at_stop(shape: str, critical: Floats, precision: float) -> float:
    """Share of runs whose interval covers the truth where it first is narrow, or at the end."""
    off, error = looks(shape)
    with np.errstate(all="ignore"):
        half = critical * error
    narrow = np.sinh(np.minimum(half, 50.0)) <= precision
    narrow[:, : FEWEST - 1] = False
    narrow[:, -1] = True
    stopped = narrow.argmax(axis=1)
    every = np.arange(RUNS)
    return float((np.abs(off) <= half)[every, stopped].mean())


def always(shape: str, critical: Floats) -> float:
    """Share of runs whose interval covers the truth at every length: no stop whatever can do worse."""
    off, error = looks(shape)
    return float((np.abs(off) <= critical * error)[:, FEWEST - 1 :].all(axis=1).mean())


@pytest.mark.thorough_but("0.5-exponential")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("precision", [0.5, 0.2, 0.1])
def test_a_run_that_stops_when_narrow_covers_the_truth(shape: str, precision: float) -> None:
    assert at_stop(shape, ANYTIME, precision) >= 0.975


@pytest.mark.parametrize("shape", SHAPES)
def test_it_covers_at_every_length_at_once(shape: str) -> None:
    assert always(shape, ANYTIME) >= 0.93  # 2,000 runs: two standard errors are 1%


@pytest.mark.parametrize("shape", SHAPES)
def test_peeking_at_an_ordinary_interval_covers_clearly_less(shape: str) -> None:
    peeked = min(at_stop(shape, ORDINARY, precision) for precision in (0.5, 0.2, 0.1))
    assert peeked <= 0.935
    assert peeked < min(at_stop(shape, ANYTIME, precision) for precision in (0.5, 0.2, 0.1)) - 0.04
    assert always(shape, ORDINARY) <= 0.70


def _times(n: int, seed: int = 0) -> PairedTimes:
    data, _ = columns("log-normal", 1, n, seed)
    return PairedTimes(*data[0].T)


def test_the_simulation_and_the_function_agree() -> None:
    data, truth = columns("gamma", RUNS, PROMPTS)
    off, error = looks("gamma")
    times = PairedTimes(*data[3, :77].T)
    found = anytime_speedup(times)
    assert found.high is not None
    assert math.log(found.ratio / truth) == pytest.approx(off[3, 76])
    own = standard_error(times)
    assert own == pytest.approx(error[3, 76], rel=0.02)  # the jackknife's for that of the delta method
    assert own > error[3, 76]
    assert math.log(found.high / found.ratio) == pytest.approx(critical_value(77) * own)


def test_for_many_prompts_it_is_the_sequence_of_waudby_smith() -> None:
    spent = -2.0 * math.log(0.05)
    rho2 = (spent + math.log(spent) + 1.0) / TIGHTEST
    for n in (1_000, 10_000):
        grown = n * rho2 + 1.0
        known_variance = math.sqrt(2.0 * grown / (n * rho2) * math.log(math.sqrt(grown) / 0.05))
        assert critical_value(n) == pytest.approx(known_variance, rel=12.0 / n)
        assert critical_value(n) > known_variance


def test_the_martingale_crosses_at_the_critical_value() -> None:
    """The mixture of scale-invariant likelihood ratios, written out, is 20 there."""
    spent = -2.0 * math.log(0.05)
    for n in (20, 100, 1_000):
        grown = 1.0 + n * (spent + math.log(spent) + 1.0) / TIGHTEST
        square = critical_value(n) ** 2 / (n - 1)
        log_ratio = n / 2.0 * (math.log1p(square) - math.log1p(square / grown))
        assert log_ratio - math.log(grown) / 2.0 == pytest.approx(math.log(20.0))


def test_few_prompts_have_no_interval_and_constant_ones_have_none() -> None:
    few = anytime_speedup(_times(FEWEST - 1))
    enough = anytime_speedup(_times(FEWEST))
    ones = np.ones(50)
    assert (few.low, few.high) == (None, None)
    assert enough is not None
    assert enough.low is not None
    assert anytime_speedup(PairedTimes(ones, ones, ones / 2, ones)) == Speedup(2.0, None, None)
    assert anytime_speedup(PairedTimes(*np.zeros((4, 0)))) is None
    assert relative_half_width(few) is None


def test_what_is_expected_is_about_what_it_takes() -> None:
    needed = prompts_needed(_times(4_000), 0.10)
    assert needed is not None
    found = anytime_speedup(_times(needed, seed=1))
    assert found is not None
    width = relative_half_width(found)
    assert width is not None
    assert width == pytest.approx(0.10, rel=0.25)
    assert prompts_needed(_times(4_000), 0.5) == pytest.approx(FEWEST, abs=10)
    assert prompts_needed(_times(EXPECTABLE - 1), 0.5) is None
