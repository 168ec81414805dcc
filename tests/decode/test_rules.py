"""The rules by name: their expected acceptance by hand, and against what they do; their options."""

from __future__ import annotations

from functools import partial
from math import log

import pytest
import torch

from spsbench.base.errors import UsageError
from spsbench.base.records import SamplingParams, Spec
from spsbench.decode import rejection
from spsbench.decode.rejection import Draft
from spsbench.decode.rules import Rule, threshold
from spsbench.drafters.model import ModelDrafter
from spsbench.drafters.registry import RULES, build_rule, rule_kind
from spsbench.law.enumeration import Scene, TableModel, law_of_loop, random_rows

F64 = torch.float64
Q = torch.tensor([[0.5, 0.25, 0.25], [0.125, 0.125, 0.75], [1.0, 0.0, 0.0]], dtype=F64)
P = torch.tensor([[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]], dtype=F64)
TOKENS = torch.tensor([1, 2])
SAMPLED, CERTAIN = Draft(TOKENS, P), Draft(TOKENS, None)

# The entropies of Q's first two rows in nats are 1.0397 and 0.7356; exp(-H) is 0.3536 and 0.4792.
BY_HAND = {
    "modified-rejection": ([0.25 + 0.25 + 0.25, 0.125 + 0.125 + 0.25], [0.25, 0.75]),
    "sample-and-compare": ([0.125 + 0.125 + 0.0625, 0.0625 + 0.03125 + 0.1875], [0.25, 0.75]),
    # The first token may stand with the chance 1/2: (min(.0625, .5) + min(.0625, .25) + min(.375, .25)) / .5.
    "block": ([0.75, 0.75], [0.25, 0.75]),
    "traversal": ([0.75, 0.75], [0.25, 0.75]),
    "recursive-rejection": ([0.75, 0.5], [0.25, 0.75]),
    "k-seq": ([0.75, 0.5], [0.25, 0.75]),
    "one-hot": ([0.125 + 0.125 + 0.0625, 0.0625 + 0.03125 + 0.1875], [0.25, 0.75]),
    # At l = 1/2 the target counts double: min(1, .25) + min(.5, .5) + min(.5, .25), and so on.
    "lenience:l=0.5": ([0.25 + 0.5 + 0.25, 0.25 + 0.25 + 0.25], [0.5, 1.0]),
    # Thresholds min(.3, .3536) and min(.3, .4792): only the .5 and the .75 stand.
    "typical-acceptance:delta=1": ([0.25, 0.25], [0.0, 1.0]),
    # Mixtures (.375, .375, .25) and (.3125, .1875, .5): min with the draft's; of point masses w q + 1 - w.
    "ensemble:w=0.5": ([0.25 + 0.375 + 0.25, 0.3125 + 0.1875 + 0.25], [0.625, 0.875]),
    # Regrets (0, ln 2, ln 2), of which the first token takes ln 2; then (ln 6, ln 6, 0) against the rest.
    "regret:b=0.7": ([1.0, 0.25], [1.0, 1.0]),
    # Thresholds 0.09 x 0.3536 and 0.09 x 0.4792: everything stands.
    "typical-acceptance": ([1.0, 1.0], [1.0, 1.0]),
}


def rule(text: str) -> Rule:
    return build_rule(Spec.parse(text))


@pytest.mark.parametrize("text", BY_HAND)
def test_expected_acceptance_by_hand(text: str) -> None:
    sampled, certain = BY_HAND[text]
    assert rule(text).expected(Q, SAMPLED).tolist() == pytest.approx(sampled, abs=1e-15)
    assert rule(text).expected(Q, CERTAIN).tolist() == pytest.approx(certain, abs=1e-15)


def test_every_rule_has_a_golden_value() -> None:
    assert {text.split(":")[0] for text in BY_HAND} == set(RULES)


class Told:
    """Proposes one token, sampled from a row or certain."""

    def __init__(self, row: list[float] | None, token: int = 1) -> None:
        self._row, self._token = row, token

    def begin(self, prompt: object) -> None: ...

    def observe(self, tokens: object, accepted: int) -> None: ...

    def draft(self, tokens: object, k: int, u: torch.Tensor) -> Draft:
        if self._row is None:
            return Draft(torch.tensor([self._token]), None)
        row = torch.tensor([self._row], dtype=F64)
        return Draft(rejection.draw(row, u[:1]), row)


@pytest.mark.parametrize("text", BY_HAND)
@pytest.mark.parametrize("row", [P[0].tolist(), None], ids=["sampled", "certain"])
def test_expected_acceptance_is_what_the_rule_does(text: str, row: list[float] | None) -> None:
    """A loop of K = 1 emits two tokens where it accepts, and one where it does not."""
    target = TableModel(lambda context: Q[0].tolist(), 3)
    scene = Scene(target, lambda: Told(row), rule(text).accept, (0,), 1, SamplingParams())
    measured = sum(chance for tokens, chance in law_of_loop(scene).items() if len(tokens) == 2)
    draft = Draft(TOKENS[:1], None if row is None else P[:1])
    assert measured == pytest.approx(float(rule(text).expected(Q, draft)[0]), abs=1e-12)


@pytest.mark.parametrize("text", [text for text in BY_HAND if not text.startswith("regret")])
@pytest.mark.parametrize("probs", [torch.empty(0, 3, dtype=F64), None], ids=["rows", "no rows"])
def test_without_a_draft_the_target_is_sampled(text: str, probs: torch.Tensor | None) -> None:
    empty = Draft(torch.empty(0, dtype=torch.int64), probs)
    verdict = rule(text).accept(Q[:1], empty, torch.tensor([0.6], dtype=F64))
    assert (int(verdict.accepted), int(verdict.token)) == (0, 1)
    assert rule(text).expected(Q[:1], empty).tolist() == []


def test_sample_and_compare_draws_the_targets_own_tokens() -> None:
    accept = rule("sample-and-compare").accept
    for u, accepted, token in [
        ((0.6, 0.5, 0.9), 2, 0),  # the target draws 1, 2 and 0: both stand
        ((0.6, 0.2, 0.9), 1, 1),  # 1 and 1: the second is corrected
        ((0.4, 0.5, 0.9), 0, 0),  # 0: the first is corrected, the rest is not looked at
    ]:
        verdict = accept(Q, CERTAIN, torch.tensor(u, dtype=F64))
        assert (int(verdict.accepted), int(verdict.token)) == (accepted, token)


def test_lenience_of_one_is_modified_rejection() -> None:
    lenient = rule("lenience:l=1").accept
    for draft in (SAMPLED, CERTAIN):
        for u in torch.rand(200, 3, generator=torch.Generator().manual_seed(0), dtype=F64):
            assert lenient(Q, draft, u) == rejection.accept_draft(Q, draft, u)


@pytest.mark.parametrize("row", [P[0].tolist(), [0.05, 0.05, 0.9], None], ids=["near", "far", "certain"])
def test_lenience_keeps_its_bound(row: list[float] | None) -> None:
    """No token comes with more than 1/l times its probability under the target."""
    q = [0.5, 0.25, 0.25]
    target = TableModel(lambda context: q, 3)
    scene = Scene(target, lambda: Told(row), rule("lenience:l=0.4").accept, (0,), 1, SamplingParams())
    first = [0.0] * 3
    for tokens, chance in law_of_loop(scene).items():
        first[tokens[0]] += chance
    assert sum(first) == pytest.approx(1.0, abs=1e-12)
    assert all(ours <= theirs / 0.4 + 1e-12 for ours, theirs in zip(first, q, strict=True))
    assert max(ours / theirs for ours, theirs in zip(first, q, strict=True)) > 1.2


def drafted(text: str, seed: int, k: int = 2) -> Scene:
    target, draft = (TableModel(random_rows(3, 2 * seed + one), 3) for one in (0, 1))
    make = partial(ModelDrafter, draft, SamplingParams(), torch.device("cpu"))
    return Scene(target, make, rule(text).accept, (0,), k, SamplingParams())


@pytest.mark.parametrize("w", [0.25, 0.5, 1.0])
def test_an_ensemble_has_the_mixtures_law_at_drafted_places_and_the_targets_behind_them(w: float) -> None:
    """On 20 tables: the first token; and at K = 1 the second where the first stood, which nothing drafted."""
    for seed in range(20):
        scene = drafted(f"ensemble:w={w}", seed, k=1)
        rows = [random_rows(3, 2 * seed + one) for one in (0, 1)]
        law, second = law_of_loop(scene), [dict[int, float]() for _ in range(3)]
        first = [0.0] * 3
        for tokens, chance in law.items():
            first[tokens[0]] += chance
            if len(tokens) == 2:
                second[tokens[0]][tokens[1]] = chance
        mixture = [w * q + (1 - w) * p for q, p in zip(*(row((0,)) for row in rows), strict=True)]
        assert first == pytest.approx(mixture, abs=1e-12)
        for x, found in enumerate(second):
            whole = sum(found.values())
            assert [found[y] / whole for y in range(3)] == pytest.approx(rows[0]((0, x)), abs=1e-12)


def test_an_ensemble_is_lossy_where_everything_is_certain() -> None:
    """The draft's best token stands against the target's with 1 - w."""
    q, p = torch.eye(3, dtype=F64)[[0, 2]], torch.eye(3, dtype=F64)[1:2]
    for u, accepted in ((0.29, 1), (0.31, 0)):
        verdict = rule("ensemble:w=0.7").accept(
            q, Draft(torch.tensor([1]), p), torch.tensor([u, 0.5], dtype=F64)
        )
        assert (int(verdict.accepted), int(verdict.token)) == ((1, 2) if accepted else (0, 0))


@pytest.mark.parametrize("b", [0.0, 0.3, 1.0])
def test_a_loops_regret_stays_within_its_budget(b: float) -> None:
    """On 20 tables; at b = 0 every token is the row's best, and a budget that is larger is made use of."""
    greatest = 0.0
    for seed in range(20):
        row = random_rows(3, 2 * seed)
        for tokens in law_of_loop(drafted(f"regret:b={b}", seed)):
            rows = [row((0, *tokens[:place])) for place in range(len(tokens))]
            spent = sum(log(max(each) / each[x]) for each, x in zip(rows, tokens, strict=True))
            assert spent <= b + 1e-12
            greatest = max(greatest, spent)
    assert greatest > b / 2 or b == greatest == 0


def test_typical_threshold_by_hand() -> None:
    rows = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.25] * 4, [1.0, 0.0, 0.0, 0.0]], dtype=F64)
    found = threshold(rows, epsilon=0.3, delta=0.8).squeeze(-1).tolist()
    assert found == pytest.approx([0.3, 0.2, 0.3], abs=1e-15)


def test_typical_acceptance_is_strict() -> None:
    """A token exactly at the threshold falls."""
    q = torch.tensor([[0.5, 0.5], [1.0, 0.0]], dtype=F64)
    u = torch.tensor([0.0, 0.9], dtype=F64)
    at = rule("typical-acceptance:epsilon=0.5:delta=1").accept(q, Draft(torch.tensor([0]), None), u)
    above = rule("typical-acceptance:epsilon=0.49:delta=1").accept(q, Draft(torch.tensor([0]), None), u)
    assert (int(at.accepted), int(at.token)) == (0, 1)
    assert (int(above.accepted), int(above.token)) == (1, 0)


@pytest.mark.parametrize(
    "text",
    [
        "lenience:l=0",
        "lenience:l=1.1",
        "lenience:l=-0.5",
        "lenience:l=nan",
        "typical-acceptance:epsilon=0",
        "ensemble:w=0",
        "ensemble:w=1.5",
        "typical-acceptance:delta=2",
    ],
)
def test_options_outside_their_limits_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        rule(text)
    assert caught.value.flag == "--rule"
    name, _, value = text.partition("=")
    assert f"{name} must be above 0 and at most 1, got {value}." in str(caught.value)


def test_a_budget_below_0_is_refused() -> None:
    with pytest.raises(UsageError, match="regret:b must be at least 0, got -1") as caught:
        rule("regret:b=-1")
    assert caught.value.flag == "--rule"


def test_an_unknown_rule_is_refused_with_a_hint() -> None:
    with pytest.raises(UsageError, match="Did you mean lenience"):
        rule_kind("leniense")


def test_which_rules_are_lossless() -> None:
    lossless = {name for name, kind in RULES.items() if kind.lossless}
    assert set(RULES) - lossless == {"lenience", "typical-acceptance", "ensemble", "regret"}
