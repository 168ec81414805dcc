"""The shortened target is the model of its first layers, and holds nothing of its own but keys and values."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from support.tiny_models import ARCHITECTURES, MORE, config_of, make, make_pair

from spsbench.base.errors import UsageError
from spsbench.base.records import SamplingParams, Spec
from spsbench.drafters.own_target import exit_model
from spsbench.drafters.registry import Context, build_drafter
from spsbench.models import causal_lm
from spsbench.models.memory import forward_bytes
from spsbench.models.torch_lm import TorchLM

TOKENS = (torch.arange(40) * 7) % 250


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.mark.thorough_but(3)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_its_rows_are_those_of_a_model_made_with_fewer_layers(architecture: str) -> None:
    """The pair's draft has the target's first two layers, norm and head, in a model of two layers."""
    target, two_layers = make_pair(architecture)
    shortened = exit_model(TorchLM(target), 2)
    expected = TorchLM(two_layers).score_uncached(TOKENS)
    found = shortened.score(TOKENS[:30], last=30), shortened.score(TOKENS[30:], last=10)
    assert torch.allclose(torch.cat(found), expected, atol=2e-4)
    assert len(shortened.cache.layers) == 2


@pytest.mark.thorough_but(4)
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *MORE])
def test_with_all_layers_it_is_the_target_exactly_and_with_one_fewer_it_is_not(architecture: str) -> None:
    target = TorchLM(make(config_of(architecture)))
    rows = {layers: target.truncated(layers, "--drafter").score(TOKENS, last=40) for layers in (3, 4)}
    before = target.score(TOKENS, last=40)
    assert torch.equal(rows[4], before)
    assert not torch.allclose(rows[3], before, atol=1e-3)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_the_target_is_left_as_it_was_and_its_weights_are_shared(architecture: str) -> None:
    target = TorchLM(make(config_of(architecture)))
    config = copy.deepcopy(target.model.config)
    own = {parameter.data_ptr() for parameter in target.model.parameters()}
    shortened = exit_model(target, 1)
    assert {parameter.data_ptr() for parameter in shortened.model.parameters()} < own
    assert target.model.config.to_dict() == config.to_dict()
    assert target.length == shortened.length == 0
    assert {id(p) for p in shortened.model.parameters()} <= {id(p) for p in target.model.parameters()}


@pytest.mark.parametrize(("given", "taken"), [(0, 1), (2, 2), (4, 4)])
def test_a_forward_reads_the_layers_that_are_left(given: int, taken: int) -> None:
    target = TorchLM(make(config_of("llama")))
    context = Context(target, None, SamplingParams(), target.device, target.vocab_size)
    drafter = build_drafter(Spec("early-exit", (("layers", given),)), context)
    assert drafter.forward_bytes() == forward_bytes(make(config_of("llama", num_hidden_layers=taken)))  # type: ignore[attr-defined]


@pytest.mark.parametrize("layers", [-1, 5])
def test_layers_that_it_does_not_have_are_refused(layers: int) -> None:
    with pytest.raises(UsageError, match=rf"--drafter: {layers} layers cannot be taken of 4.*layers=1 to 4"):
        exit_model(TorchLM(make(config_of("llama"))), layers)


def test_layers_in_two_lists_are_refused() -> None:
    model = make(config_of("gpt2"))
    model.more = torch.nn.ModuleList(torch.nn.Identity() for _ in range(4))
    with pytest.raises(UsageError, match="GPT2LMHeadModel keeps its 4 layers in 2 lists"):
        exit_model(TorchLM(model), 1)


def test_an_exit_that_answers_wrongly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    score = TorchLM.score
    monkeypatch.setattr(TorchLM, "score", lambda self, tokens, last: score(self, tokens.flip(0), last))
    assert causal_lm.self_test(TorchLM(make(config_of("gpt2")))).worst > 0.1
    with pytest.raises(UsageError, match="gpt2 cut to 1 layers cannot be rolled back"):
        exit_model(TorchLM(make(config_of("gpt2"))), 1)
