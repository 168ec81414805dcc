"""Block verification and trees among what is advised: by the law of the texts, and times of a fake clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from spsbench.base.arrays import Floats
from spsbench.base.axes import BLOCK, MODIFIED_REJECTION
from spsbench.base.records import Spec
from spsbench.drafters.shape import Shape
from spsbench.law.text_loops import anchored, loops_over
from spsbench.parts.whatif.replay.advice import advise
from spsbench.parts.whatif.replay.cells import Cell, Sought
from spsbench.parts.whatif.replay.prediction import DrafterForecast, Timed, work_of
from spsbench.parts.whatif.replay.steps import Part, Round, StepTimes, given_by
from spsbench.parts.whatif.replay.study import Study
from spsbench.parts.whatif.replay.texts import TargetText
from spsbench.parts.whatif.replay.times import LoopTimes
from spsbench.parts.whatif.replay.trees import StaticTree

K = 3
TEXTS = [TargetText(f"p{i}", 0, (1, 2, 3), tuple(range(20))) for i in range(12)]
TREE = StaticTree(Spec("model"), Shape((2, 2)), "top")
MODEL = cast("Any", SimpleNamespace(target=None, draft=None))


def study(ratios: Floats, seconds: dict[str, float]) -> Study:
    """A drafter under two rules, whose loops take what is given."""
    ars = Timed(work_of(TEXTS), LoopTimes.one_a_round(5.0, np.ones(6), np.zeros(6), 0))
    sought = Sought(Spec("model"), MODEL)
    found = []
    for rule, taken in seconds.items():
        laws = [loops_over(ratios, block=rule == BLOCK) for _ in TEXTS]
        work = work_of(TEXTS, laws)
        times = LoopTimes.one_a_round(5.0, np.full(6, taken), np.zeros(6), K)
        more: dict[str, Any] = {"emitted": np.ones(K + 1), "bytes": 1, "times": times, "ars": ars}
        found.append(DrafterForecast(sought, K, rule, work=work, **more))
    return Study(cast("Any", SimpleNamespace(texts=TEXTS)), tuple(found), ars, 1, {}, {})


def test_block_is_advised_where_the_texts_gain_more_than_it_costs() -> None:
    ratios = anchored(np.where(np.arange(20) % 2, 2.0, 0.5), K)
    found = advise(study(ratios, {MODIFIED_REJECTION: 1.0, BLOCK: 1.0}))
    assert found.best.name == "model, block, K=3"
    assert found.plain is not None
    assert found.plain.name == "model, K=3"
    assert found.plain.slower.estimate > 1.1
    assert [each.name for each in found.others] == ["ArS"]
    dear = advise(study(ratios, {MODIFIED_REJECTION: 1.0, BLOCK: 1.5}))
    assert dear.best.name == "model, K=3"
    assert dear.plain is None


def test_a_draft_whose_loops_cost_more_than_they_give_loses_to_ars() -> None:
    ratios = anchored(np.ones(20), K)  # every token is kept: four a loop
    for seconds, best in ((3.9, "model, K=3"), (4.1, "ArS")):
        assert advise(study(ratios, {MODIFIED_REJECTION: seconds})).best.name == best


def test_block_of_copies_is_no_choice_however_its_loops_were_timed() -> None:
    ratios = anchored(np.where(np.arange(20) % 3, 1.5, 0.0), K)
    found = advise(study(ratios, {MODIFIED_REJECTION: 1.0, BLOCK: 0.9}))
    assert found.best.name == "model, K=3"


def test_loops_of_rules_and_trees_have_times_of_their_own() -> None:
    chain, tree = Part("", Spec("model")), Part("", TREE.spec)
    judged = {(BLOCK, 1): 1.5, (BLOCK, 2): 1.7, ("one-hot", 6): 3.0}
    rounds = [Round(9, [1.0, 1.1, 1.2], {chain: [0.1, 0.2], tree: [0.4, 0.4]}, judged)] * 2
    sought = [
        Sought(Spec("model"), MODEL, "", (MODIFIED_REJECTION, BLOCK)),
        Sought(TREE.spec, MODEL, "", ("one-hot",)),
    ]
    assert given_by(sought, (), (1, 2)) == [*judged]
    assert [*sought[1].cells((), (1, 2))] == [Cell(sought[1], 2, "one-hot")]
    steps, shares = StepTimes(rounds, (1, 2)), np.array([[0.0, 0.0, 1.0]])
    assert steps.of_chain([chain], shares, 2).seconds == pytest.approx([1.4] * 2)
    assert steps.of_chain([chain], shares, 2, BLOCK).seconds == pytest.approx([1.9] * 2)
    found = steps.of_tree(tree, TREE.shape.nodes, "one-hot")
    assert found.seconds == pytest.approx([3.4] * 2)
    assert found.drafting == pytest.approx([0.4] * 2)
    assert found.drafted == pytest.approx([6.0] * 2)
