"""The tests pass the real sampler and find out every planted wrong one."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from spsbench.base.errors import UsageError
from spsbench.base.records import SamplingParams, Spec
from spsbench.decode import rejection, rows, sampling, trees
from spsbench.decode.sampling import UniformStream
from spsbench.drafters.model import ModelDrafter
from spsbench.engines import rescore
from spsbench.models.torch_lm import TorchLM
from spsbench.parts.verify import analytic, outputs, parts
from spsbench.parts.verify.controls import CONTROLS, SHARED, planted, planted_everywhere
from spsbench.parts.verify.draft_faults import FAULTS as DRAFT_FAULTS
from spsbench.parts.verify.draft_faults import RIGHT as TWINS
from spsbench.parts.verify.effort import FAULTS, SKIPPED, Effort, Sizes
from spsbench.parts.verify.subject import SamplerUnderTest
from spsbench.parts.verify.tree_faults import FAULTS as FAULTS_OF_TREES
from spsbench.parts.verify.verification import control_matrix, decided_by_more, findings, row_difference
from spsbench.testing import Letters

VOCAB = 24
DECODER = Letters("x" * VOCAB)
SHARP = SamplingParams(temperature=0.7, top_p=0.8)
RIGHT, RIGHT_WARP, WARPED = rejection.acceptance_probability, sampling.warp, rows.warped
TABLES: dict[str, Sizes] = {"tables": ((3, 2),), "wide_tables": ((4, 2),)}
EFFORT_TABLES = {"sizes": TABLES["tables"], "wide": TABLES["wide_tables"]}
EFFORT = Effort(draws=250, end_to_end=30, contexts=1, prompts=2, outputs=2, **TABLES)


def target_model() -> Any:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.25,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less is looked at than in a verification: what is caught by less is caught by more."""
    monkeypatch.setattr(analytic, "TOKENS", 16)
    monkeypatch.setattr(parts, "LONG", parts.LONG // 4)


@pytest.fixture(scope="module")
def subject() -> SamplerUnderTest:
    """A random target, and a draft that is its first layer."""
    target = target_model()
    draft = copy.deepcopy(target)
    draft.model.layers = draft.model.layers[:1]
    draft.config.num_hidden_layers = 1
    return SamplerUnderTest(TorchLM(target), TorchLM(draft), SHARP, 2, torch.device("cpu"), seed=3)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(VOCAB, (30,), generator=generator).tolist() for _ in range(8)]


@pytest.mark.thorough_but(1)
@pytest.mark.parametrize("sampling", [SHARP, SamplingParams(greedy=True), SamplingParams()], ids=str)
def test_the_real_sampler_passes(
    subject: SamplerUnderTest, prompts: list[list[int]], sampling: SamplingParams
) -> None:
    """With a fixed seed; over seeds the sampling tests raise a false alarm once in 10,000 each."""
    found = list(findings(replace(subject, sampling=sampling), prompts, DECODER, EFFORT))
    assert [f.test for f in found if not f.passed] == []
    assert [f.test for f in found if f.unjudged] == []
    assert len(found) == (10 if sampling.greedy else 11)


def test_the_analysis_judges_nothing_where_rounding_decides_every_nucleus(
    subject: SamplerUnderTest, prompts: list[list[int]]
) -> None:
    """Of 24 tokens that are nearly as probable, 18 have the mass 0.75."""
    flat = copy.deepcopy(subject.target.reference().model)
    flat.lm_head.weight.data *= 1e-4
    same = TorchLM(flat)
    undecided = replace(subject, target=same, draft=same.twin(), sampling=SamplingParams(top_p=0.75))
    found = analytic.analytic(undecided, prompts[:1])
    assert (found.passed, found.unjudged) == (True, SKIPPED)
    clear = analytic.analytic(replace(undecided, sampling=SamplingParams(top_p=0.77)), prompts[:1])
    assert (clear.passed, clear.unjudged) == (True, "")
    nothing = analytic.analytic(undecided, [])
    assert (nothing.passed, nothing.unjudged) == (False, "")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rule", "siblings"), [("one-hot", "top"), ("traversal", "without"), ("k-seq", "independent")]
)
def test_trees_pass(subject: SamplerUnderTest, prompts: list[list[int]], rule: str, siblings: str) -> None:
    """Enumerated at a small shape, drawn at their own."""
    drafter = Spec.parse(f"model:siblings={siblings}:tree=2-2")
    found = list(findings(replace(subject, rule=Spec(rule), drafter=drafter), prompts, DECODER, EFFORT))
    assert [f.test for f in found if not f.passed] == []
    assert [f.test for f in found if f.unjudged] == ["clock", "analytic"]
    enumerated = next(f for f in found if f.test == "enumeration")
    assert enumerated.numbers["longest"] == 4
    with pytest.raises(UsageError, match="block judges chains"):
        next(findings(replace(subject, rule=Spec("block"), drafter=drafter), prompts, DECODER, EFFORT))


def test_a_wrong_rule_for_trees_is_caught(
    subject: SamplerUnderTest, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = FAULTS_OF_TREES["residual of the next sibling"]
    monkeypatch.setattr(trees, "recursive_rejection", fault.rule)
    drafter = Spec.parse("model:siblings=without:tree=2")
    wrong = replace(subject, rule=Spec("recursive-rejection"), drafter=drafter)
    found = {f.test: f for f in findings(wrong, prompts, DECODER, EFFORT)}
    assert {"enumeration", "sampling"} <= {name for name, f in found.items() if not f.passed}
    assert "a total variation of" in found["enumeration"].found


@pytest.mark.thorough
def test_every_control_is_caught(subject: SamplerUnderTest, prompts: list[list[int]]) -> None:
    """With less effort than the real sampler passes: what is caught by less is caught by more."""
    less = replace(EFFORT, prompts=1, outputs=1)
    matrix = control_matrix(subject, prompts, DECODER, less, lambda name, found: None)
    assert matrix.keys() == set(FAULTS)
    missed = [name for name, row in matrix.items() if not any(row.values())]
    assert missed == []
    # What each kind of test is for: the rule, rows and caches by analysis, numbers by streams and sampling.
    # A draft that draws nothing shows the analysis no row that it was drawn from.
    undrawn = {"argmax-by-uniform", "argmax-by-softmax"}
    for name in CONTROLS.keys() - {"constant-uniform", "dropped-short", "drawn-token-stop"} - undrawn:
        assert matrix[name]["analytic"], name
    for name in DRAFT_FAULTS:
        assert matrix[name]["enumeration"], name
    for name in ("bonus-from-draft", "row-off-by-one"):
        assert matrix[name]["sampling"], name
    assert not matrix["constant-uniform"]["analytic"]
    for name in ("constant-uniform", "repeated-block", "one-seed"):
        assert matrix[name]["uniforms"], name


@pytest.mark.thorough_but("-stop by the row, at least one token")
@pytest.mark.parametrize("name", [*DRAFT_FAULTS, *TWINS])
def test_a_drafters_fault_is_enumerated_and_its_right_twin_passes(
    subject: SamplerUnderTest, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelDrafter, "draft", {**DRAFT_FAULTS, **TWINS}[name])
    assert parts.enumerated(subject, **EFFORT_TABLES).passed == (name in TWINS)


@pytest.mark.thorough_but("lenience")
@pytest.mark.parametrize("control", ["lenience", None])
def test_a_mild_fault_in_16_bits_takes_more_outputs_and_the_real_sampler_passes_them(
    subject: SamplerUnderTest, prompts: list[list[int]], control: str | None
) -> None:
    coarse = [TorchLM(copy.deepcopy(m.reference().model).bfloat16()) for m in (subject.target, subject.draft)]
    found = decided_by_more(
        replace(subject, target=coarse[0], draft=coarse[1], control=control), prompts[:1], DECODER
    )
    assert found.passed == (control is None)
    assert (found.numbers["outputs"] == 16) == (control is None)


@pytest.mark.thorough_but("one-seed", "-clock")
@pytest.mark.parametrize(
    ("fault", "test"),
    [
        ("nucleus-at-one", "warp"),
        ("nucleus-before-top-k", "warp"),
        ("repeated-block", "uniforms"),
        ("one-seed", "uniforms"),
        ("untimed-draft", "clock"),
    ],
)
def test_a_fault_that_all_share_is_seen_by_its_own_test_alone(
    subject: SamplerUnderTest, prompts: list[list[int]], fault: str, test: str
) -> None:
    """At T = 1 without top-k too, where the faults of the warper change nothing that is sampled."""
    plain = replace(subject, sampling=SamplingParams(top_p=0.8), control=fault)
    found = {f.test: f.passed for f in findings(plain, prompts, DECODER, EFFORT)}
    assert [name for name, passed in found.items() if not passed] == [test]


def test_every_shared_fault_has_a_test_of_its_own() -> None:
    marks = test_a_fault_that_all_share_is_seen_by_its_own_test_alone.pytestmark  # type: ignore[attr-defined]
    assert {fault for fault, _ in marks[0].args[1]} == set(SHARED)


def test_a_control_is_gone_when_its_block_ends(subject: SamplerUnderTest) -> None:
    right = rejection.acceptance_probability
    with planted("inverted-ratio", subject.target):
        assert rejection.acceptance_probability is not right
    assert rejection.acceptance_probability is right
    forget = subject.target.rollback
    with planted("stale-cache", subject.target):
        assert subject.target.rollback != forget
    assert subject.target.rollback == forget
    numbers = UniformStream.__call__
    with planted_everywhere("repeated-block"):
        assert UniformStream.__call__ is not numbers
    assert UniformStream.__call__ is numbers


def test_what_is_planted_everywhere_is_no_wrong_sampler(subject: SamplerUnderTest) -> None:
    with planted("nucleus-at-one", subject.target), planted_everywhere("inverted-ratio"):
        assert rows.warped is WARPED
        assert rejection.acceptance_probability is RIGHT
    with planted_everywhere("nucleus-at-one"):
        assert rows.warped is not WARPED
        logits = torch.linspace(-2, 2, 9).unsqueeze(0)
        assert torch.equal(rescore._warped(logits, SHARP), sampling.warp(logits, SHARP))
        assert sampling.warp is not RIGHT_WARP


def test_the_names_that_are_checked_first_are_those_of_the_faults() -> None:
    assert set(FAULTS) == {*CONTROLS, *SHARED}


@pytest.mark.parametrize("impossible", [0.0, 2.0])
def test_outputs_that_pass_show_what_would_have_been_seen_and_no_estimate(impossible: float) -> None:
    sums = {"leak_information": 40.0, "leak_score": 4.0, "leak_var": 30.0, "impossible": impossible}
    found = outputs.rescored_outputs(sums, 8)
    assert found.passed == (impossible == 0)
    assert ("leakage 10.00%" in found.found) == bool(impossible)
    assert ("no sign of a leak; one above" in found.found) == found.passed


def test_a_block_that_is_scored_otherwise_than_its_rows_is_found(
    subject: SamplerUnderTest, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = subject.target.score

    def score(tokens: torch.Tensor, last: int) -> torch.Tensor:
        return right(tokens, last) * (1.01 if len(tokens) > 1 else 1.0)

    assert row_difference(subject, prompts[:1]).passed
    monkeypatch.setattr(subject.target, "score", score)
    assert not row_difference(subject, prompts[:1]).passed


def test_a_greedy_difference_that_is_no_number_is_no_tie(
    subject: SamplerUnderTest, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        device = torch.device("cpu")

        def score_uncached(self, tokens: torch.Tensor, last: int) -> torch.Tensor:
            return torch.full((last, VOCAB), float("nan"))

    monkeypatch.setattr(outputs, "_greedy_outputs", lambda subject, prompt: ([1, 2], [1, 3]))
    monkeypatch.setattr(outputs, "_in_float32", lambda model: Broken())
    assert not outputs.greedy_identity(subject, prompts[:1], row_difference=0.1).passed
