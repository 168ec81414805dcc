"""SpS has exactly the target's law: shown by enumeration through the production loop, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from spsbench.base.records import SamplingParams
from spsbench.decode import algorithms, rejection
from spsbench.decode.rejection import Draft, Verdict, judged
from spsbench.decode.rows import Rows, takes_rows
from spsbench.drafters.model import ModelDrafter
from spsbench.law.enumeration import (
    NotAFunction,
    Point,
    Scene,
    TableModel,
    _Edges,
    boxes,
    paths,
    random_rows,
    worst_difference,
)

EXACT = 1e-12
PLAIN = SamplingParams()
WARPERS = {
    "plain": PLAIN,
    "greedy": SamplingParams(greedy=True),
    "cold": SamplingParams(temperature=0.5),
    "hot": SamplingParams(temperature=1.7),
    "top-k": SamplingParams(top_k=2),
    "nucleus": SamplingParams(top_p=0.7),
    "all": SamplingParams(temperature=0.8, top_k=3, top_p=0.9),
}


def pair(vocab_size: int, sharpness: float = 1.5) -> tuple[TableModel, TableModel]:
    return (
        TableModel(random_rows(vocab_size, seed=1, sharpness=sharpness), vocab_size),
        TableModel(random_rows(vocab_size, seed=2, sharpness=sharpness), vocab_size),
    )


@takes_rows
def _as_the_loop_finds_it(q: Rows | torch.Tensor, proposed: Draft, u: torch.Tensor) -> Verdict:
    return judged(algorithms.accept_draft, q, proposed, u)


def law_error(
    target: TableModel, draft: TableModel, prompt: tuple[int, ...], k: int, sampling: SamplingParams
) -> float:
    """Largest difference between the law of SpS and the target's over K+1 tokens."""
    scene = Scene(
        target=target,
        make=lambda: ModelDrafter(draft, sampling, torch.device("cpu")),
        accept=_as_the_loop_finds_it,
        prompt=prompt,
        k=k,
        sampling=sampling,
    )
    return worst_difference(scene).size


def constant(*probs: float) -> TableModel:
    return TableModel(lambda context: probs, len(probs))


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("sampling", WARPERS.values(), ids=WARPERS.keys())
@pytest.mark.parametrize(("vocab_size", "k"), [(2, 4), (3, 1), (3, 2), (3, 3), (5, 1), (5, 2), (4, 3)])
def test_law_is_the_targets(vocab_size: int, k: int, sampling: SamplingParams) -> None:
    target, draft = pair(vocab_size)
    assert law_error(target, draft, (0,), k, sampling) < EXACT


@pytest.mark.thorough
def test_law_is_the_targets_at_vocabulary_5_and_k_4() -> None:
    target, draft = pair(5)
    assert law_error(target, draft, (1, 4), 4, SamplingParams(top_k=3)) < EXACT


DEGENERATE = {
    "draft is the target": ((0.5, 0.3, 0.2), (0.5, 0.3, 0.2)),
    "disjoint supports": ((0.6, 0.4, 0.0, 0.0), (0.0, 0.0, 0.5, 0.5)),
    "target certain": ((0.0, 1.0, 0.0), (0.3, 0.3, 0.4)),
    "draft certain and right": ((0.0, 1.0, 0.0), (0.0, 1.0, 0.0)),
    "draft certain and wrong": ((0.0, 1.0, 0.0), (1.0, 0.0, 0.0)),
    "one-hot draft": ((0.2, 0.5, 0.3), (0.0, 0.0, 1.0)),
    "zero-probability tokens": ((0.7, 0.0, 0.3), (0.4, 0.6, 0.0)),
    "ties": ((0.25, 0.25, 0.25, 0.25), (0.4, 0.2, 0.2, 0.2)),
}


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("sampling", WARPERS.values(), ids=WARPERS.keys())
@pytest.mark.parametrize("rows", DEGENERATE.values(), ids=DEGENERATE.keys())
def test_degenerate_rows(rows: tuple[tuple[float, ...], tuple[float, ...]], sampling: SamplingParams) -> None:
    target, draft = constant(*rows[0]), constant(*rows[1])
    for k in (1, 2):
        assert law_error(target, draft, (0,), k, sampling) < EXACT


def test_boxes_are_found_where_answers_are_in_no_order() -> None:
    """Two numbers; the second matters only where the first lies in the middle."""

    def ask(point: Point) -> bool:
        return 0.3 <= point[0] < 0.81 and point[1] < 0.25

    found = sorted((point[0], volume) for volume, point in boxes(ask, 2, _Edges()))
    assert [volume for _, volume in found] == pytest.approx([0.3, 0.51 * 0.25, 0.51 * 0.75, 0.19], abs=1e-12)


def test_numbers_that_decide_nothing_are_not_divided() -> None:
    assert [*boxes(lambda point: 7, 3, _Edges())] == [(1.0, (0.5, 0.5, 0.5))]


@pytest.mark.parametrize("who", ["drafter", "rule"])
def test_what_draws_with_numbers_of_its_own_is_refused(who: str) -> None:
    target, draft = pair(3)
    own = torch.Generator().manual_seed(0)

    class Gambler(ModelDrafter):
        def draft(self, tokens: Sequence[int], k: int, u: torch.Tensor) -> rejection.Draft:
            return super().draft(tokens, k, torch.rand(k, generator=own, dtype=torch.float64))

    def gamble(q: torch.Tensor, draft: rejection.Draft, u: torch.Tensor) -> rejection.Verdict:
        return rejection.accept_draft(q, draft, torch.rand(len(u), generator=own, dtype=torch.float64))

    maker, accept = (Gambler, REAL_VERIFY) if who == "drafter" else (ModelDrafter, gamble)
    scene = Scene(target, lambda: maker(draft, PLAIN, torch.device("cpu")), accept, (0,), 2, PLAIN)
    with pytest.raises(NotAFunction):
        worst_difference(scene)


def test_paths_add_up_and_lead_where_they_say() -> None:
    target, draft = pair(3)
    scene = Scene(
        target, lambda: ModelDrafter(draft, PLAIN, torch.device("cpu")), REAL_VERIFY, (0,), 2, PLAIN
    )
    found = [*paths(scene)]
    assert sum(path.chance for path in found) == pytest.approx(1.0, abs=1e-13)
    assert {path.drafted for path in found} == {2}
    behind = replace(scene, before=(found[0].numbers,))
    assert worst_difference(behind).context == (0, *found[0].tokens)


REAL_RATIO = rejection.acceptance_probability


def inverted_ratio(q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return REAL_RATIO(p, q)


def no_residual(q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return q


def bonus_from_the_draft(q: torch.Tensor, draft: rejection.Draft, u: torch.Tensor) -> rejection.Verdict:
    verdict = REAL_VERIFY(q, draft, u)
    if int(verdict.accepted) < len(draft.tokens):
        return verdict
    return rejection.Verdict(verdict.accepted, rejection.draw(draft.probs[-1], u[-1]))


def off_by_one_row(q: torch.Tensor, draft: rejection.Draft, u: torch.Tensor) -> rejection.Verdict:
    return REAL_VERIFY(q.roll(1, 0), draft, u)


REAL_RATIO = rejection.acceptance_probability
REAL_VERIFY = rejection.accept_draft


@pytest.mark.parametrize(
    ("module", "name", "planted"),
    [
        (rejection, "acceptance_probability", inverted_ratio),
        (rejection, "residual", no_residual),
        (algorithms, "accept_draft", bonus_from_the_draft),
        (algorithms, "accept_draft", off_by_one_row),
    ],
    ids=["inverted ratio", "no residual", "bonus from the draft", "off-by-one row"],
)
def test_a_planted_wrong_sampler_is_caught(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, planted: object
) -> None:
    target, draft = pair(4)
    assert law_error(target, draft, (0,), 2, PLAIN) < EXACT
    monkeypatch.setattr(module, name, planted)
    assert law_error(target, draft, (0,), 2, PLAIN) > 1e-3
