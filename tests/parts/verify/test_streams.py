"""The uniform numbers, along a stream and between streams, and what the tests of them see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from spsbench.base.records import SamplingParams
from spsbench.decode.sampling import UniformStream
from spsbench.parts.verify.controls import planted_everywhere
from spsbench.parts.verify.parts import (
    LONG,
    SHORT,
    crossed_p,
    drawn,
    independent_uniforms,
    long_stream,
    repeats,
    run_seeds,
    serial_p,
    uniform_p,
)
from spsbench.parts.verify.subject import SamplerUnderTest
from spsbench.runner import turns as schedule

CPU = torch.device("cpu")
BLOCK = 1024


@pytest.fixture(scope="module")
def subject() -> SamplerUnderTest:
    """No test here asks a model anything."""
    nobody: Any = None
    return SamplerUnderTest(nobody, nobody, SamplingParams(), 4, CPU, seed=11)


@pytest.mark.parametrize("n", [1, 3, 9, 1024, 1500])
def test_a_long_stream_is_uniform_independent_and_never_repeats(subject: SamplerUnderTest, n: int) -> None:
    """However it is read: a few numbers, a block, or more than a block at a time."""
    numbers = long_stream(subject, n)
    assert numbers.shape == (LONG,)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert repeats([numbers]) == 0
    assert uniform_p(numbers) > 1e-4
    assert serial_p(numbers) > 1e-4
    blocks = numbers.reshape(-1, BLOCK)
    assert crossed_p(blocks) > 1e-4
    assert len(np.unique(blocks, axis=0)) == len(blocks)


def test_the_streams_of_a_run_are_distinct_and_uncorrelated(subject: SamplerUnderTest) -> None:
    seeds = run_seeds(subject)
    assert len(seeds) == len(set(seeds)) == 8 * 3 * 3
    streams = np.stack([drawn(UniformStream(seed, CPU), SHORT, 9) for seed in seeds])
    assert repeats(list(streams)) == 0
    assert crossed_p(streams) > 1e-4
    assert uniform_p(streams[:, 0]) > 1e-4
    assert uniform_p(streams.ravel()) > 1e-4


@pytest.mark.thorough_but(1)
@pytest.mark.parametrize("left_out", ["root_seed", "example_id", "sample_index", "purpose"])
def test_a_seed_that_forgets_what_it_is_for_is_seen(
    subject: SamplerUnderTest, left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root seeds differ between runs, so only there may all seeds be as before."""
    right = schedule.derive_seed
    other = {"root_seed": 0, "example_id": "x", "sample_index": 0, "purpose": "x"}[left_out]

    def forgetful(root_seed: int, example_id: str, sample_index: int, purpose: str) -> int:
        told: Any = {"root_seed": root_seed, "example_id": example_id, "sample_index": sample_index}
        return right(**(told | {"purpose": purpose} | {left_out: other}))

    assert independent_uniforms(subject).passed
    monkeypatch.setattr(schedule, "derive_seed", forgetful)
    assert independent_uniforms(subject).passed == (left_out == "root_seed")


@pytest.mark.parametrize("fault", ["repeated-block", "one-seed"])
def test_the_planted_faults_are_seen(subject: SamplerUnderTest, fault: str) -> None:
    with planted_everywhere(fault):
        found = independent_uniforms(subject)
    assert not found.passed
    assert int(found.numbers["repeated"] or 0) > 1000


Bend = Callable[[np.ndarray[Any, np.dtype[np.float32]]], np.ndarray[Any, np.dtype[np.float32]]]


@pytest.mark.parametrize(
    ("test", "bend"),
    [
        (uniform_p, lambda u: u**1.05),
        (uniform_p, lambda u: u * np.float32(0.98)),
        (serial_p, lambda u: (u + np.roll(u, 5) * np.float32(0.03)) / np.float32(1.03)),
    ],
    ids=["squeezed", "short of 1", "drags along"],
)
def test_slight_faults_are_seen_in_long_streams(subject: SamplerUnderTest, test: Any, bend: Bend) -> None:
    numbers = long_stream(subject, 9)
    assert test(numbers) > 1e-4
    assert test(bend(numbers)) < 1e-4


def test_a_later_part_of_another_stream_is_a_repetition(subject: SamplerUnderTest) -> None:
    numbers = long_stream(subject, 1)
    assert repeats([numbers[:1024], numbers[2048:3072]]) == 0
    assert repeats([numbers[:1024], numbers[1000:2024]]) == 24 - 3


def test_streams_that_lean_on_each_other_are_seen(subject: SamplerUnderTest) -> None:
    streams = long_stream(subject, 1).reshape(-1, SHORT).copy()
    assert crossed_p(streams) > 1e-4
    streams[5] = (streams[5] + streams[40]) / 2
    assert crossed_p(streams) < 1e-4
