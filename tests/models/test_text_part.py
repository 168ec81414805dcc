"""The text of checkpoints of images and text: the published forward, without a tower in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.architectures import saved
from benchmarks.tiny_types import tiny_config
from spsbench.base.errors import UsageError
from spsbench.models.causal_lm import skeleton
from spsbench.models.hf_errors import quiet_libraries
from spsbench.models.loading import load_torch
from spsbench.models.memory import weight_bytes
from spsbench.models.source import find, require_generative
from spsbench.models.text_part import LeftOut, is_of_tower, text_class
from spsbench.models.weights import is_tied

CPU = torch.device("cpu")
OFTEN = ("qwen2_vl", "llava", "gemma3", "mistral3", "internvl", "kimi_k25", "glm4v", "idefics3", "step3p7")


@pytest.mark.parametrize(
    "kind", ["qwen3_vl", *(pytest.param(kind, marks=pytest.mark.thorough) for kind in OFTEN)]
)
def test_the_text_alone_computes_what_the_whole_does(kind: str, tmp_path: Path) -> None:
    quiet_libraries()
    folder, _, whole = saved(kind, tmp_path)
    assert not isinstance(whole, Exception), whole
    source = find(str(folder), None, "--target")
    lm = load_torch(source, "float32", CPU, 258, "--target")
    tokens = torch.randint(250, (40,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = whole(input_ids=tokens[None]).logits[0, :, :258]
        assert torch.equal(lm.score_uncached(tokens), expected)
        lm.score(tokens[:25], last=1)
        lm.rollback(20)
        continued = lm.score(tokens[20:], last=20)
    assert torch.allclose(continued, expected[20:], atol=2e-5 * float(expected.abs().max()))
    assert source.title == "text of target"
    left_out = lm.model.left_out
    towers = sum(p.numel() for name, p in whole.named_parameters() if is_of_tower(name, left_out))
    assert towers > 0
    assert lm.parameters == sum(part.numel() for part in whole.parameters()) - towers
    assert weight_bytes(source, "float32", "--target") == 4 * lm.parameters


def test_a_text_that_enters_a_tower_after_all_is_an_error() -> None:
    model = skeleton(tiny_config("qwen3_vl"))
    assert isinstance(model.model.visual, LeftOut)
    with pytest.raises(UsageError, match=r"enters model\.visual"):
        model.model.visual(torch.zeros(1))


def test_a_text_model_is_loaded_as_before() -> None:
    assert text_class(tiny_config("qwen3")) is None
    assert text_class(tiny_config("bart")) is None


def test_a_head_that_its_class_never_ties_is_its_own() -> None:
    """Inkling's configuration does not say so."""
    assert not is_tied(tiny_config("inkling_text"))
    assert is_tied(tiny_config("gemma3_text"))


REFUSED = {
    "bert": "not causal: each token sees those after it",
    "musicgen": "writes sound, not text",
    "blip": "takes no text without pixel_values",
    "kosmos-2": "You have to specify either `pixel_values`",
    "florence2": "encoder-decoder whose encoder reads images",
    "blt": "has no num_hidden_layers",
}


@pytest.mark.parametrize(("kind", "why"), REFUSED.items())
def test_what_writes_no_text_is_refused_with_what_is_the_case(kind: str, why: str) -> None:
    config: Any = tiny_config(kind)
    with pytest.raises(UsageError) as caught:
        require_generative(config, "a/model", "--target")
    assert why in str(caught.value), caught.value
