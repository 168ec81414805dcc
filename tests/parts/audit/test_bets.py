"""Every bet is fair under the target, and the table engine's faults are found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.audit_power import FAULTS, PROCESSED, SETTINGS, STOP, K, Tables, audited
from spsbench.base.records import SamplingParams
from spsbench.parts.audit import bets as module
from spsbench.parts.audit.bet_table import BETS, DRAFTED, View
from spsbench.parts.audit.bets import Bets

SAMPLING = SamplingParams(temperature=0.7)
COUNT = 9
"""Tokens of a text, of which the last one is summed over."""


class Watched(Bets):
    """Keeps the last view."""

    view: View

    def _remember(self, prompt: object, tokens: object, v: View, q: object) -> None:  # type: ignore[override]
        self.view = v
        if self._count < 3:
            super()._remember(prompt, tokens, v, q)  # type: ignore[arg-type]


def seen(sampling: SamplingParams, last: int, accepted: list[int], drafted: list[list[int]] | None) -> View:
    """The view of a text with that last token, behind two others of the same engine."""
    tables = Tables.made(3)
    bets = Watched([STOP], K, sampling.temperature, modified=True)
    for start in (0, 5):
        tokens = [(start + 7 * n) % 40 for n in range(COUNT)]
        bets.add((1, 2), tokens, tables.reading((1, 2), tokens, SamplingParams()), [3, 2, 1], 0)
    bets._count = 3
    tokens = [(11 * n) % 40 for n in range(COUNT - 1)] + [last]
    bets.add((1, 2), tokens, tables.reading((1, 2), tokens, sampling), accepted, 0, drafted)
    return bets.view


@pytest.mark.thorough_but(1)
@pytest.mark.parametrize(
    ("sampling", "accepted", "widest"),
    [
        (SETTINGS[0], [2, 1, 2], 1024),
        (SETTINGS[2], [3, 4], 1024),
        (SamplingParams(top_k=5), [0, 2, 4], 1024),
        (SETTINGS[0], [3, 4], 16),
    ],
)
def test_no_bet_wins_on_average(
    sampling: SamplingParams, accepted: list[int], widest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly, by summing over the last token: whatever becomes of it, its place was known before."""
    monkeypatch.setattr(module, "_WIDEST", widest)
    views = [seen(sampling, token, accepted, None) for token in range(48)]
    whole = Tables.made(3).reading((1, 2), [(11 * n) % 40 for n in range(COUNT)], sampling).q[-1].numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        means = {
            bet.name: sum(q * bet.law(view)[-1] for q, view in zip(whole, views, strict=True) if q > 0)
            for bet in BETS
        }
    wins = {name: mean for name, mean in means.items() if not 0 <= mean <= 1 + 1e-6}
    assert not wins


def test_no_bet_on_drafted_tokens_wins_on_average() -> None:
    """Over the drafted token, its test and what replaces it."""
    means = [0.0] * len(DRAFTED)
    row = seen(SAMPLING, 0, [3, 3, 1], None)
    p, edge = row.p[-1], np.minimum(1, row.q[-1] / row.p[-1])
    for d in np.flatnonzero(p > 2e-2):
        rejected = [
            (int(x), 0, (1 - edge[d]) * row.residual[-1][x]) for x in np.flatnonzero(row.residual[-1])
        ]
        for token, kept, chance in ((int(d), 1, edge[d]), *rejected):
            if chance > 1e-9:
                view = seen(SAMPLING, token, [3, 3, kept], [[0] * 3, [0] * 3, [int(d), 0]])
                for number, bet in enumerate(DRAFTED):
                    means[number] += p[d] * chance * (1 - bet.share + bet.share * float(bet.law(view)[-1]))
    assert all(0.2 < mean < 1 + 1e-5 for mean in means)


SUBTLE = {
    "bonus at temperature 1": 0.7,
    "lenient first test": 1.0,
    "no residual after 32 tokens": 1.0,
    "constant seed in 3 of 8 slots": 1.0,
    "one stream for draft and target": 1.0,
    "seeded anew each loop": 1.0,
    "pick is test": 1.0,
    "test is residual": 1.0,
    "draft cut to 16": 1.0,
    "first token greedy": 1.0,
    "top-k off by one": 1.0,
}
"""Classes of faults that no single row shows, and the temperature that shows them soonest."""


@pytest.mark.thorough_but(3)
@pytest.mark.parametrize("fault", SUBTLE)
def test_faults_are_found(fault: str) -> None:
    assert fault in FAULTS
    after, highest, _ = audited(1, fault, SamplingParams(temperature=SUBTLE[fault]), 100, 48)
    assert after is not None, highest


@pytest.mark.parametrize(
    ("fault", "place", "law"),
    [
        ("test is residual", "the tokens after a rejection", "tests and corrects with one number"),
        ("pick is test", "the acceptance tests", "picks and tests with one number"),
        ("draft cut to 16", "the drafted tokens", "drafts from its 16 best"),
    ],
)
def test_drafted_ids_say_which_stage_is_wrong(fault: str, place: str, law: str) -> None:
    after, _, bets = audited(1, fault, SamplingParams(), 100, 48, told=2)
    assert after is not None
    assert bets.leading() == (place, law)


@pytest.mark.thorough_but(1)
@pytest.mark.parametrize("told", [0, 1, 2])
def test_right_engines_raise_no_alarm(told: int) -> None:
    """A thousand of 320 texts each: ``python -m benchmarks.audit_power``."""
    assert not any(audited(seed, None, SETTINGS[seed], 15, 32, told)[0] for seed in range(3))


@pytest.mark.thorough_but(*list(PROCESSED)[1:])
@pytest.mark.parametrize("fault", PROCESSED)
def test_faults_of_a_processed_law_are_found(fault: str) -> None:
    """Under a nucleus, whose edge a small penalty moves; without one it is not found in 400 texts."""
    after, highest, _ = audited(2, fault, SETTINGS[2], 400, 40)
    assert after is not None, highest


@pytest.mark.thorough
@pytest.mark.parametrize("fault", PROCESSED)
def test_right_engines_under_the_same_processing_raise_no_alarm(fault: str) -> None:
    laws = [replace(sampling, process=PROCESSED[fault]) for sampling in SETTINGS]
    assert not any(audited(seed, None, law, 10, 32)[0] for seed, law in enumerate(laws))
