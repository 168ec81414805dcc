"""The proof of losslessness passes for what is lossless, and fails for each fault planted on purpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate, pairwise
from operator import mul
from pathlib import Path

import pytest
import torch
from torch import Tensor

from spsbench.base.errors import UsageError
from spsbench.base.records import Request, SamplingParams, Spec
from spsbench.decode import rejection, rules, trees
from spsbench.decode.rejection import Accept, Draft, Verdict
from spsbench.decode.rules import Rule
from spsbench.decode.sampling import draw, warp
from spsbench.drafters.checked import DrafterFault
from spsbench.drafters.model import ModelDrafter
from spsbench.drafters.registry import DRAFTERS, RULES, Context, DrafterKind, RuleKind, build_rule, rule_kind
from spsbench.drafters.shape import Shape
from spsbench.drafters.tree import ModelTreeDrafter
from spsbench.law.enumeration import TableModel, TableTree
from spsbench.parts.verify import controls, draft_faults
from spsbench.parts.verify.tree_faults import FAULTS as TREE_FAULTS
from spsbench.testing import Scene, assert_lossless, fake_engine, law_of_loop, scenes

MODEL = DRAFTERS["model"]
LOSSLESS = [name for name, kind in RULES.items() if kind.lossless]
LOSSY = [name for name, kind in RULES.items() if not kind.lossless]
PLAIN = SamplingParams()
Factory = Callable[[Context], ModelDrafter]


class Stopping(ModelDrafter):
    """Lossless: stops behind token 0, which it has kept; proposes nothing behind token 3."""

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        draft = super().draft(tokens, k, u)
        kept = 0 if tokens[-1] == 3 else k
        ends = [i + 1 for i, token in enumerate(draft.tokens.tolist()) if token == 0]
        return _cut(draft, min([kept, *ends]))


class Withdrawing(ModelDrafter):
    """Wrong: looks at each token and withdraws token 0 and what is behind it."""

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        draft = super().draft(tokens, k, u)
        zeros = [i for i, token in enumerate(draft.tokens.tolist()) if token == 0]
        return _cut(draft, min([k, *zeros]))


class Misreporting(ModelDrafter):
    """Wrong: tells the rows of temperature 1.1."""

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        draft = super().draft(tokens, k, u)
        assert draft.probs is not None
        flat = draft.probs.pow(1 / 1.1)
        return Draft(draft.tokens, flat / flat.sum(-1, keepdim=True))


class Certain(ModelDrafter):
    """Lossless: the draft model's best tokens, told as point masses."""

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        greedy = SamplingParams(greedy=True)
        pending, picks = torch.tensor(tokens[self.model.length :]), []
        for i in range(k):
            pending = draw(warp(self.model.score(pending, last=1), greedy), u[i : i + 1])
            picks.append(pending)
        return Draft(torch.cat(picks), None)


class CertainByName(ModelDrafter):
    """Lossless: draws its tokens but tells them as point masses; given the token, that is what they are."""

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        return Draft(super().draft(tokens, k, u).tokens, None)


class Remembering(Certain):
    """Lossless: proposes fewer tokens behind a loop in which some fell."""

    seen = 3

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        super().observe(tokens, accepted)
        self.seen = accepted

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        return _cut(super().draft(tokens, k, u), min(k, self.seen))


def _cut(draft: Draft, n: int) -> Draft:
    return Draft(draft.tokens[:n], None if draft.probs is None else draft.probs[:n])


def made(kind: type[ModelDrafter]) -> Factory:
    def build(context: Context) -> ModelDrafter:
        assert isinstance(context.draft, TableModel)
        return kind(context.draft, context.sampling, context.device)

    return build


@pytest.mark.thorough_but(1)
@pytest.mark.parametrize("rule", LOSSLESS)
def test_the_draft_model_is_lossless(rule: str) -> None:
    assert_lossless(MODEL, rule=rule, ks=(1, 2))


@pytest.mark.thorough_but("[Certain-", "Remembering")
@pytest.mark.parametrize("rule", LOSSLESS)
@pytest.mark.parametrize("kind", [Stopping, Certain, CertainByName, Remembering])
def test_drafters_of_every_sort_are_lossless(kind: type[ModelDrafter], rule: str) -> None:
    size = 4 if kind is Stopping else 3  # it has a way of its own behind token 3
    assert_lossless(made(kind), rule=rule, vocab_size=size, ks=(1, 2), samplings=(PLAIN,))


@pytest.mark.thorough_but(1)
@pytest.mark.parametrize("kind", [Withdrawing, Misreporting])
def test_sample_and_compare_forgives_any_drafter(kind: type[ModelDrafter]) -> None:
    assert_lossless(made(kind), rule="sample-and-compare", vocab_size=3, ks=(2,), samplings=(PLAIN,))


@pytest.mark.parametrize("kind", [Withdrawing, Misreporting])
def test_a_wrong_drafter_is_caught(kind: type[ModelDrafter]) -> None:
    with pytest.raises(AssertionError, match="Behind"):
        assert_lossless(made(kind), vocab_size=3, ks=(1, 2), samplings=(PLAIN,))


@pytest.mark.parametrize("rule", LOSSY)
@pytest.mark.parametrize("kind", [ModelDrafter, Certain])
def test_a_lossy_rule_is_caught(rule: str, kind: type[ModelDrafter]) -> None:
    with pytest.raises(AssertionError, match="Behind"):
        assert_lossless(made(kind), rule=rule, ks=(1, 2), samplings=(PLAIN,))


@pytest.mark.parametrize("rule", [rule for rule in LOSSY if rule != "ensemble"])
def test_a_lossy_rule_is_lossless_where_everything_is_certain(rule: str) -> None:
    assert_lossless(MODEL, rule=rule, ks=(2,), samplings=(SamplingParams(greedy=True),))


# What is wrong with the rule alone, as functions of target rows, draft and numbers.
FAULTS: dict[str, Accept] = {
    "bonus-from-draft": controls._bonus_from_draft,
    "row-off-by-one": controls._row_off_by_one,
    "residual-row": controls._residual_row,
    "one-uniform": controls._one_uniform,
    "unscaled-residual": controls._unscaled_residual,
}
# What is swapped inside of modified rejection, or in the drafter.
INSIDE = (*("inverted-ratio", "lecture-test", "no-residual", "lenience", "raw-draft"), *draft_faults.FAULTS)
# Scripted numbers come from no stream, and tables have no positions. Noise that is shared needs all numbers
# of a loop at once (tests/law/test_shared_noise.py).
ELSEWHERE = (
    *("constant-uniform", "wrong-position"),
    *("draft-noise-replaces", "draft-noise-tests", "test-noise-replaces", "one-noise"),
)
NUCLEUS = SamplingParams(temperature=0.8, top_p=0.8)
HONEST = {name: build_rule(Spec(name)).accept for name in LOSSLESS}


def a_rule(accept: Accept) -> RuleKind:
    """A rule that claims to be lossless."""
    rule = Rule(accept, lambda q, draft: q[: len(draft.tokens), 0])
    return RuleKind("planted", "A rule for a test.", True, lambda options: rule)


def _redrawn_correction(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Sample and compare, but the token behind a difference is drawn anew: the draft's may come again."""
    verdict = rules._match(q, draft, u)
    return Verdict(verdict.accepted, draw(q[int(verdict.accepted)], u[-1]))


def _compared_with_the_next_row(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
    """Sample and compare, one row late."""
    return rules._match(torch.cat([q[1:], q[-1:]]), draft, u)


@pytest.mark.parametrize("wrong", [_redrawn_correction, _compared_with_the_next_row])
def test_a_wrong_sample_and_compare_is_caught(wrong: Accept) -> None:
    """The right one passes with these drafters: see above."""
    for kind in (ModelDrafter, Certain):
        with pytest.raises(AssertionError, match="Behind"):
            assert_lossless(made(kind), rule=a_rule(wrong), ks=(2,), samplings=(PLAIN,))


@pytest.mark.parametrize("rule", LOSSY)
def test_to_call_a_lossy_rule_lossless_does_not_help(rule: str) -> None:
    claimed = replace(RULES[rule], lossless=True)
    with pytest.raises(AssertionError, match="Behind"):
        assert_lossless(MODEL, rule=claimed, ks=(1,), samplings=(PLAIN,))


def test_drafters_and_policies_are_found_by_name() -> None:
    assert_lossless("lookup:max_n=2", ks=(2,), samplings=(PLAIN,))
    assert_lossless("model", policy="stop-below:tau=0.3", ks=(2,), samplings=(PLAIN,))
    with pytest.raises(UsageError, match="Did you mean lookup"):
        assert_lossless("lookpu")


def test_a_drafter_that_breaks_its_contract_is_named() -> None:
    broken = DrafterKind("too-much", "Wrong.", lambda options, context: made(TooMuch)(context))
    with pytest.raises(DrafterFault, match="the drafter too-much proposed 3 tokens where 1 are allowed"):
        assert_lossless(broken, ks=(1,))


class TooMuch(Certain):
    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        return Draft(torch.zeros(3, dtype=torch.int64), None)


def test_rows_in_float32_are_granted_their_rounding() -> None:
    """A drafter's own counts may be float32; a fault is larger than that by far."""

    class Coarse(ModelDrafter):
        def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
            rows = torch.tensor([[0.5, 0.3, 0.2]])
            return Draft(draw(rows.expand(k, 3), u.float()), rows.expand(k, 3))

        def observe(self, tokens: Sequence[int], accepted: int) -> None: ...

    assert_lossless(made(Coarse), vocab_size=3, ks=(2,), samplings=(PLAIN,))


def test_every_planted_sampler_is_accounted_for() -> None:
    assert {*FAULTS, *INSIDE, *ELSEWHERE, "stale-cache"} == set(controls.CONTROLS)


@cache
def _passes(rule: str) -> None:
    """The rule without a fault, told as a planted one is."""
    assert_lossless(MODEL, rule=a_rule(HONEST[rule]), vocab_size=3, ks=(2,), samplings=(PLAIN,))


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("rule", LOSSLESS)
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_rule_is_caught(name: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults wrap a right rule: they are planted around each of ours."""
    _passes(rule)
    monkeypatch.setattr(controls, "_verify", HONEST[rule])
    with pytest.raises(AssertionError, match="Behind"):
        assert_lossless(
            DRAFTERS["model"], rule=a_rule(FAULTS[name]), vocab_size=3, ks=(2,), samplings=(PLAIN,)
        )


@pytest.mark.parametrize("name", INSIDE)
def test_a_fault_inside_modified_rejection_is_caught(name: str) -> None:
    with (
        controls.planted(name, TableModel(lambda context: [1.0], 1)),
        pytest.raises(AssertionError, match="Behind"),
    ):
        assert_lossless(MODEL, ks=(2,), samplings=(PLAIN if name in draft_faults.FAULTS else NUCLEUS,))


@pytest.mark.parametrize("rule", LOSSLESS)
def test_a_stale_cache_is_caught(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejected tokens that stay in a cache show in the loop behind. Drafts do without a cache here."""

    class Fixed(ModelDrafter):
        def begin(self, prompt: Sequence[int]) -> None: ...

        def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
            return Draft(torch.tensor([3] * k), None)

        def observe(self, tokens: Sequence[int], accepted: int) -> None: ...

    assert_lossless(made(Fixed), rule=rule, ks=(2,), samplings=(PLAIN,))
    rollback = TableModel.rollback
    monkeypatch.setattr(
        TableModel, "rollback", lambda self, length: controls._stale(partial(rollback, self))(length)
    )
    with pytest.raises(AssertionError, match="Behind"):
        assert_lossless(made(Fixed), rule=rule, ks=(2,), samplings=(PLAIN,))


# Drafts that are trees.


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("siblings", ["without", "independent", "top"])
@pytest.mark.parametrize("rule", [name for name, kind in RULES.items() if kind.trees])
def test_rules_for_trees_are_lossless(rule: str, siblings: str) -> None:
    """V = 4 has a token that only rounding leaves in k-seq's residual."""
    drafter = f"model:tree=2:siblings={siblings}"
    if rule == "k-seq" and siblings != "independent":
        with pytest.raises(UsageError, match="k-seq tests siblings by one law, and they are chosen"):
            assert_lossless(drafter, rule=rule)
    else:
        assert_lossless(drafter, rule=rule, vocab_size=4 if rule == "k-seq" else 3)


@pytest.mark.parametrize("rule", [name for name, kind in RULES.items() if not kind.trees])
def test_a_rule_for_chains_refuses_trees(rule: str) -> None:
    for drafter in ("model:tree=2", made_branching(Branching)):
        with pytest.raises(UsageError, match=f"{rule} judges chains"):
            assert_lossless(drafter, rule=rule)


@pytest.mark.parametrize(
    ("drafter", "said"),
    [
        ("model:tree=2-x", "not the shape of a draft"),
        ("model:tree=2:siblings=all", "must be without or independent or top, got all"),
    ],
)
def test_wrong_trees_are_refused(drafter: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        assert_lossless(drafter, rule="one-hot")


class Branching:
    """Lossless: proposes whatever stood after the last token before, and behind each of them token 0."""

    def begin(self, prompt: Sequence[int]) -> None: ...

    def observe(self, tokens: Sequence[int], accepted: int) -> None: ...

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        siblings = list(dict.fromkeys(b for a, b in pairwise(tokens) if a == tokens[-1]))[:k]
        below = range(min(len(siblings), k - len(siblings)))
        drafted = torch.tensor([*siblings, *(0 for _ in below)], dtype=torch.int64)
        return Draft(drafted, None, [*(-1 for _ in siblings), *below])


class Repeating(Branching):
    """Wrong: tells a row that gives its two equal siblings half each."""

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        row = torch.full((2, 4), 0.0, dtype=torch.float64).index_fill(1, torch.tensor([0, 1]), 0.5)
        return Draft(torch.zeros(2, dtype=torch.int64), row, [-1, -1])


def made_branching(kind: type[Branching]) -> DrafterKind:
    return DrafterKind("branching", "A tree.", lambda options, context: kind())


def test_trees_of_a_drafter_are_seen_and_proved() -> None:
    kind = made_branching(Branching)
    for rule in ("one-hot", "traversal", "recursive-rejection", "sample-and-compare"):
        assert_lossless(kind, rule=rule, ks=(2, 3), samplings=(PLAIN,))
    found = {scene.depth for scene in scenes(kind, trees.one_hot, 4, (2,), (PLAIN,))}
    assert found == {2}
    with pytest.raises(AssertionError, match="total variation"):
        assert_lossless(made_branching(Repeating), rule="recursive-rejection", ks=(2,), samplings=(PLAIN,))
    assert_lossless(made_branching(Repeating), rule="one-hot", ks=(2,), samplings=(PLAIN,))


def test_parents_that_are_none_break_the_contract() -> None:
    class Wrong(Branching):
        def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
            return Draft(torch.tensor([0, 1]), None, [1, -1])

    with pytest.raises(DrafterFault, match="parents that do not come before their 2 tokens"):
        assert_lossless(made_branching(Wrong), rule="one-hot", ks=(2,))


@pytest.mark.parametrize("name", TREE_FAULTS)
def test_a_planted_rule_for_trees_is_caught(name: str) -> None:
    rule, siblings, branching, drafter = TREE_FAULTS[name]

    def build(context: Context) -> ModelTreeDrafter:
        assert context.draft is not None
        return drafter(TableTree(context.draft), context.sampling, Shape(tuple(branching)), siblings)

    nodes = sum(accumulate(branching, mul))
    with pytest.raises(AssertionError, match=r"a total variation of 0\.\d+"):
        assert_lossless(build, rule=rule, vocab_size=3, ks=(nodes,), samplings=(PLAIN,))


def test_the_rule_of_the_page_is_lossless_and_a_row_too_early_is_not() -> None:
    kind = rule_kind(str(Path(__file__).parents[1] / "examples/tree_rule.py:KIND"))
    for drafter in ("model", "model:tree=2", "model:tree=1-1:siblings=top"):
        assert_lossless(drafter, rule=kind, vocab_size=3, ks=(2,), samplings=(PLAIN,))
    right = kind.build({}).accept

    def early(q: Tensor, draft: Draft, u: Tensor) -> Verdict:
        """The rows of the nodes above."""
        return right(q[[0, *(parent + 1 for parent in draft.above)]], draft, u)

    with pytest.raises(AssertionError, match="total variation"):
        assert_lossless("model:tree=2", rule=early, vocab_size=3, samplings=(PLAIN,))


def test_the_failure_tells_where_and_by_how_much() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_lossless(MODEL, rule="lenience:l=0.5", ks=(1,), samplings=(PLAIN,))
    for word in ("Behind (0,)", "a difference of", "K = 1", "the target with"):
        assert word in str(caught.value)


def test_options_of_a_rule_are_read() -> None:
    assert_lossless(MODEL, rule="lenience:l=1", ks=(1,), samplings=(PLAIN,))
    with pytest.raises(UsageError, match="l must be above 0"):
        assert_lossless(MODEL, rule="lenience:l=0", ks=(1,))


def test_the_law_of_a_loop_by_hand() -> None:
    """Target (3/4, 1/4), draft (1/4, 3/4), K = 1: a third of the 1s stands, every other falls to a 0."""
    target = TableModel(lambda context: [0.75, 0.25], 2)
    draft = TableModel(lambda context: [0.25, 0.75], 2)
    drafter = partial(ModelDrafter, draft, PLAIN, torch.device("cpu"))
    law = law_of_loop(Scene(target, drafter, rejection.accept_draft, (0,), 1, PLAIN))
    by_hand = {(0,): 1 / 2, (0, 0): 3 / 16, (0, 1): 1 / 16, (1, 0): 3 / 16, (1, 1): 1 / 16}
    assert law.keys() == by_hand.keys()
    assert all(abs(law[tokens] - chance) < 1e-13 for tokens, chance in by_hand.items())


@pytest.mark.parametrize("drafter", ["model", "lookup"])
def test_the_fake_engine_is_the_same_every_time(drafter: str) -> None:
    request = Request((0, 1, 2), 12, (), PLAIN, seed=5, fixed_length=True)
    one, other = (fake_engine(3, drafter).generate(request) for _ in range(2))
    assert one == other
    assert len(one.tokens) == 12
    assert one.loops is not None
    assert sum(loop.emitted for loop in one.loops) == 12
    assert max(loop.drafted for loop in one.loops) > 0
    assert one.decode_s > 0


def test_the_fake_engine_without_lookahead_is_ars() -> None:
    request = Request((0, 1, 2), 12, (), PLAIN, seed=5, fixed_length=True)
    loops = fake_engine(0).generate(request).loops
    assert loops is not None
    assert [(loop.drafted, loop.emitted) for loop in loops] == [(0, 1)] * 12
