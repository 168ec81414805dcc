"""Drafters made from the target itself: the same tokens as without them, and caches that forget exactly."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
import torch
from support.tiny_models import make_pair, over_onnx
from transformers import AutoModelForCausalLM

from spsbench.base.errors import UsageError
from spsbench.base.paths import mini_dir
from spsbench.base.records import SamplingParams, Spec
from spsbench.decode.algorithms import start
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.decode.protocols import Drafter
from spsbench.decode.sampling import UniformStream, warp
from spsbench.drafters.model import ModelDrafter
from spsbench.drafters.registry import Context, build_drafter
from spsbench.law.enumeration import TableModel
from spsbench.models.causal_lm import CausalLM
from spsbench.models.torch_lm import TorchLM

CPU = torch.device("cpu")
GREEDY = SamplingParams(greedy=True)
PROMPT = [7, 3, 11, 200, 64, 9, 9, 31]
EXITS, ROUNDED = ["early-exit", "early-exit:layers=2"], ["quantised", "quantised:bits=4"]
SPECS = EXITS + ROUNDED
# Rounded copies and every backend: llama over ONNX Runtime. Exits of anything else: over torch.
CASES = [
    *((spec, architecture) for spec in EXITS for architecture in ("llama", "gpt2", "gemma3")),
    *((spec, "onnx") for spec in SPECS),
]


def target_of(architecture: str) -> CausalLM:
    if architecture == "onnx":
        return over_onnx(make_pair("llama", hidden_size=64)[0])
    return TorchLM(make_pair(architecture)[0])


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def drafter_of(spec: str, target: CausalLM, sampling: SamplingParams = GREEDY) -> Drafter:
    return build_drafter(Spec.parse(spec), Context(target, None, sampling, CPU, target.vocab_size))


def greedy_ars(target: CausalLM, prompt: list[int], tokens: int) -> list[int]:
    loops = start(target, None, prompt, 0, GREEDY, UniformStream(0, CPU))
    return [loop.tokens[0] for loop in islice(loops(Stopwatch(FakeClock())), tokens)]


def greedy_sps(target: CausalLM, drafter: Drafter, prompt: list[int], tokens: int) -> tuple[list[int], int]:
    """(tokens, how many of them the drafter proposed)."""
    loops = start(target, drafter, prompt, 3, GREEDY, UniformStream(1, CPU))
    new: list[int] = []
    accepted = 0
    for loop in loops(Stopwatch(FakeClock())):
        new += loop.tokens
        accepted += loop.accepted
        if len(new) >= tokens:
            return new[:tokens], accepted
    raise AssertionError("loops have no end")


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize(("spec", "architecture"), CASES)
def test_greedy_output_is_that_of_the_target_alone(architecture: str, spec: str) -> None:
    target = target_of(architecture)
    drafter = drafter_of(spec, target)
    for cut in (0, 5):
        prompt = PROMPT[cut:] + PROMPT
        assert greedy_sps(target, drafter, prompt, 40)[0] == greedy_ars(target, prompt, 40)


@pytest.fixture(scope="module")
def embedded() -> CausalLM:
    return over_onnx(AutoModelForCausalLM.from_pretrained(mini_dir() / "target", dtype=torch.float32))


@pytest.mark.thorough_but(2)
@pytest.mark.parametrize("spec", SPECS)
def test_greedy_output_of_the_embedded_target(embedded: CausalLM, spec: str) -> None:
    prompt = [(31 * i) % 1000 + 1 for i in range(40)]
    found, accepted = greedy_sps(embedded, drafter_of(spec, embedded), prompt, 60)
    assert found == greedy_ars(embedded, prompt, 60)
    if spec.startswith("quantised"):
        assert accepted > 30


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize(("spec", "architecture"), CASES)
@pytest.mark.parametrize("accepted", [0, 1, 3])
def test_after_partial_acceptance_it_drafts_as_if_nothing_had_been_forgotten(
    architecture: str, spec: str, accepted: int
) -> None:
    sampling = SamplingParams(temperature=1.5, top_p=1.0)
    target = target_of(architecture)
    drafter = drafter_of(spec, target, sampling)
    u = torch.tensor([0.2, 0.7, 0.4], dtype=torch.float64)
    drafter.begin(PROMPT)
    first = drafter.draft(PROMPT, 3, u)
    tokens = [*PROMPT, *first.tokens.tolist()[:accepted], 42]
    drafter.observe(tokens, accepted)
    continued = drafter.draft(tokens, 3, u)
    fresh = drafter_of(spec, target, sampling)
    fresh.begin(tokens)
    expected = fresh.draft(tokens, 3, u)
    assert torch.equal(continued.tokens, expected.tokens)
    assert first.probs is not None
    assert continued.probs is not None
    assert expected.probs is not None
    # Of a rounded copy rows depend on how many are computed together, as its activations' rounding does.
    assert torch.allclose(continued.probs, expected.probs, atol=0.05 if spec in ROUNDED else 1e-4)
    assert not torch.allclose(first.probs, expected.probs, atol=1e-2)  # else the comparison says nothing


@pytest.mark.parametrize("spec", SPECS)
def test_the_law_is_the_drafted_models_own_warped(spec: str) -> None:
    sampling = SamplingParams(temperature=0.8, top_p=0.9)
    drafter = drafter_of(spec, target_of("onnx"), sampling)
    assert isinstance(drafter, ModelDrafter)
    assert isinstance(drafter.model, CausalLM)
    drafter.begin(PROMPT)
    draft = drafter.draft(PROMPT, 3, torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64))
    drafter.begin(PROMPT)
    context = torch.tensor([*PROMPT[-1:], *draft.tokens.tolist()[:-1]])
    rows = warp(drafter.model.score(context, last=3), sampling)
    assert draft.probs is not None
    assert torch.allclose(draft.probs, rows, atol=0.05 if spec in ROUNDED else 1e-4)


@pytest.mark.parametrize("spec", SPECS)
def test_two_drafters_of_one_target_have_caches_of_their_own(spec: str) -> None:
    target = target_of("onnx")
    one, other = drafter_of(spec, target), drafter_of(spec, target)
    one.begin(PROMPT)
    expected = one.draft(PROMPT, 3, torch.full((3,), 0.5)).tokens
    one.begin(PROMPT)
    other.begin(PROMPT[:3])
    assert torch.equal(one.draft(PROMPT, 3, torch.full((3,), 0.5)).tokens, expected)
    assert target.length == 0


@pytest.mark.parametrize("name", ["early-exit", "quantised"])
def test_what_is_no_loaded_model_is_refused(name: str) -> None:
    table = TableModel(lambda context: [0.25] * 4, 4)
    with pytest.raises(UsageError, match=r"--drafter: .* TableModel"):
        build_drafter(Spec(name), Context(table, None, GREEDY, CPU, 4))
