"""A union asks in turn, tells everybody, and refuses what cannot be built."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from spsbench.base.errors import UsageError
from spsbench.base.records import SamplingParams, Spec
from spsbench.decode.rejection import Draft
from spsbench.drafters.lookup import LookupDrafter
from spsbench.drafters.registry import DRAFT, DRAFTERS, Context, build_drafter
from spsbench.drafters.union import UnionDrafter
from spsbench.law.enumeration import TableModel

U = torch.full((2,), 0.5)


class Noting:
    """Proposes what it is told to, and writes down what it hears."""

    def __init__(self, *proposals: list[int]) -> None:
        self.proposals = list(proposals)
        self.heard: list[object] = []

    def begin(self, prompt: Sequence[int]) -> None:
        self.heard.append(("begin", list(prompt)))

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        self.heard.append("draft")
        return Draft(torch.tensor(self.proposals.pop(0), dtype=torch.int64), None)

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        self.heard.append((list(tokens), accepted))


def test_the_first_proposal_is_taken_and_everybody_hears() -> None:
    first, second = Noting([7], [], []), Noting([8, 8], [])
    union = UnionDrafter([first, second])
    union.begin([1])
    assert union.draft([1], 2, U).tokens.tolist() == [7]
    union.observe([1, 7, 2], 1)
    assert union.draft([1, 7, 2], 2, U).tokens.tolist() == [8, 8]
    union.observe([1, 7, 2, 8, 3], 1)
    assert union.draft([1, 7, 2, 8, 3], 2, U).tokens.tolist() == []
    union.observe([1, 7, 2, 8, 3, 4], 0)
    later = ([1, 7, 2, 8, 3], [1, 7, 2, 8, 3, 4])
    assert first.heard == [
        ("begin", [1]), "draft", ([1, 7, 2], 1), "draft", (later[0], 0), "draft", (later[1], 0),
    ]  # fmt: skip
    assert second.heard == [
        ("begin", [1]), ([1, 7, 2], 0), "draft", (later[0], 1), "draft", (later[1], 0),
    ]  # fmt: skip


def context(draft: TableModel | None = None) -> Context:
    target = TableModel(lambda context: (0.5, 0.5), 2)
    return Context(target, draft, SamplingParams(), torch.device("cpu"), 2)


def test_the_model_runs_only_when_it_is_asked() -> None:
    model = TableModel(lambda context: (0.5, 0.5), 2)
    union = build_drafter(Spec.parse("union"), context(model))
    union.begin([0, 1, 0])
    assert union.draft([0, 1, 0], 2, U).probs is None
    assert model.length == 2, "the prompt but its last token"
    union.observe([0, 1, 0, 0], 0)
    union.begin([0, 1])
    assert union.draft([0, 1], 2, U).probs is not None
    assert model.length == 3, "the pending token and the first drafted one"


@pytest.mark.parametrize(
    ("of", "complaint"),
    [
        ("lookup+model", "needs a draft model"),
        ("lookup+union", "of=union"),
        ("lookup+lokup", "Did you mean lookup"),
        ("", "unknown"),
    ],
)
def test_what_cannot_be_built_is_refused(of: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        build_drafter(Spec("union", (("of", of),)), context())


def test_a_union_without_a_model_needs_none() -> None:
    union = build_drafter(Spec.parse("union:of=lookup+bigram"), context())
    union.begin([0])
    assert union.draft([0], 2, U).probs is not None


@pytest.mark.parametrize(
    "name", sorted(DRAFTERS.keys() - {"early-exit", "quantised", "heads", "mtp", "assistant"})
)  # these need a real target
def test_kinds_tell_the_truth(name: str) -> None:
    """A point mass has no rows; what runs no model needs none; forwards are at most those it tells."""
    model = TableModel(lambda context: (0.5, 0.5), 2)
    kind = DRAFTERS[name]
    drafter = build_drafter(Spec(name), context(model if DRAFT in kind.needs else None))
    drafter.begin([0, 1, 0])
    asked = model.length
    draft = drafter.draft([0, 1, 0], 2, U)
    assert kind.name == name
    assert not kind.point_mass or draft.probs is None
    assert model.length - asked <= kind.forwards(2)


def test_lookup_is_a_member_with_its_defaults() -> None:
    union = build_drafter(Spec.parse("union:of=lookup"), context())
    alone = LookupDrafter(3, 1)
    for drafter in (union, alone):
        drafter.begin([0, 1, 1, 0])
    assert torch.equal(union.draft([0, 1, 1, 0], 2, U).tokens, alone.draft([0, 1, 1, 0], 2, U).tokens)
