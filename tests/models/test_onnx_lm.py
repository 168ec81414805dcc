"""ONNX Runtime's forward against transformers': rows, greedy text, rollback, threads and processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.onnx_variants import RELATIVE, VARIANTS, apart, tokens, variant
from support.tiny_models import config_of, make, make_pair, over_onnx

from spsbench.base.errors import UsageError
from spsbench.base.paths import mini_dir
from spsbench.base.records import Request, SamplingParams
from spsbench.decode.clock import SystemClock
from spsbench.engines.local import EagerEngine
from spsbench.models.blueprint import FAMILIES, NotCovered, blueprint_of
from spsbench.models.causal_lm import CausalLM, require_exact_rollback, self_test
from spsbench.models.checkpoint import LoadedWeights
from spsbench.models.torch_lm import TorchLM
from spsbench.testing import Letters


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def test_every_family_has_a_variant() -> None:
    assert {variant(name).config.model_type for name in VARIANTS} == set(FAMILIES)


@pytest.mark.parametrize("name", VARIANTS)
def test_rows_are_those_of_transformers(name: str) -> None:
    """Prompt, blocks and single tokens, behind a rollback too, beyond every window."""
    reference = variant(name)
    model = over_onnx(reference.model)
    ids = tokens(90)
    expected = reference.score_uncached(ids)
    assert apart(model.score(ids[:60], 60), expected[:60]) < RELATIVE
    for first, n in ((60, 5), (65, 1), (66, 9), (75, 2)):
        assert model.length == first
        model.score(tokens(n, seed=9), n)  # other tokens, forgotten again
        model.rollback(first)
        assert apart(model.score(ids[first : first + n], n), expected[first : first + n]) < RELATIVE
    assert apart(model.score_uncached(ids), expected) < RELATIVE
    assert apart(model.score_uncached(ids, last=3), expected[-3:]) < RELATIVE
    assert model.length == 77


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "gemma"])
def test_a_wrong_weight_is_seen(name: str) -> None:
    """The control: the comparison above fails if one row of one matrix is off by a hundredth."""
    reference = variant(name)
    model = over_onnx(reference.model)
    reference.model.model.layers[1].self_attn.o_proj.weight[3] *= 1.01
    assert apart(model.score_uncached(tokens(60)), reference.score_uncached(tokens(60))) > RELATIVE


@pytest.mark.parametrize("name", ["target", "draft"])
def test_rows_of_the_embedded_models(name: str) -> None:
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(mini_dir() / name, dtype=torch.float32)
    reference = TorchLM(loaded.eval())
    ids = tokens(400, reference.vocab_size)
    assert apart(over_onnx(reference.model).score_uncached(ids), reference.score_uncached(ids)) < RELATIVE


def test_the_buffer_grows_without_losing_its_content() -> None:
    reference = variant("llama")
    model, ids = over_onnx(reference.model), tokens(500)
    pieces = [model.score(part, len(part)).clone() for part in ids.split(37)]
    assert apart(torch.cat(pieces), reference.score_uncached(ids)) < RELATIVE


def test_the_cache_passes_the_self_test_and_a_stuck_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    model = over_onnx(variant("llama").model)
    assert self_test(model).worst < RELATIVE
    real = model.rollback
    monkeypatch.setattr(model, "rollback", lambda length: real(0) if length == 0 else None)
    with pytest.raises(UsageError, match="cannot be rolled back"):
        require_exact_rollback(model, "stuck")


@pytest.mark.parametrize("k", [0, 1, 4])
def test_greedy_text_is_that_of_transformers(k: int) -> None:
    target, draft = (TorchLM(model) for model in make_pair("llama", hidden_size=64))

    def answer(models: list[CausalLM]) -> list[int]:
        draft = models[1] if k else None
        engine = EagerEngine(models[0], draft, k, Letters(""), torch.device("cpu"), SystemClock())
        request = Request(tuple(range(5, 20)), 60, (), SamplingParams(greedy=True), 0, fixed_length=True)
        return engine.generate(request).tokens

    assert answer([over_onnx(target.model), over_onnx(draft.model)]) == answer([target, draft])


def test_a_weight_that_is_no_number_is_caught() -> None:
    broken = make_pair("llama", hidden_size=64)[0]
    broken.model.layers[2].mlp.down_proj.weight[5, 7] = float("nan")
    engine = EagerEngine(over_onnx(broken), None, 0, Letters(""), torch.device("cpu"), SystemClock())
    with pytest.raises(FloatingPointError):
        engine.generate(Request((5, 6, 7), 4, (), SamplingParams(), 0, fixed_length=True))


def test_padding_of_the_vocabulary_is_cut() -> None:
    reference = variant("llama")
    model = over_onnx(reference.model, vocab_size=200)
    assert model.score(tokens(4, 200), 2).shape == (2, 200)


def test_the_first_layers_are_a_model_of_their_own() -> None:
    reference = variant("llama")
    model, ids = over_onnx(reference.model), tokens(30)
    short = model.truncated(2, "--drafter")
    assert short.layers == 2
    assert apart(short.score(ids, 30), reference.truncated(2, "--drafter").score_uncached(ids)) < RELATIVE
    assert model.length == 0
    with pytest.raises(UsageError, match="5 layers cannot be taken of 4"):
        model.truncated(5, "--drafter")


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "architecture": ("gpt2", {}, "architecture gpt2"),
    "activation": ("llama", {"hidden_act": "gelu"}, "activation gelu"),
    "dynamic rope": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
        "rotary embedding dynamic",
    ),
    "partial rope": (
        "phi3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        "a part of each head",
    ),
    "heads": ("llama", {"head_dim": 8}, "heads of 8"),
    "kind of layer": ("qwen3", {"layer_types": ["chunked_attention"] * 4}, "chunked_attention"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_covered_is_named(case: str) -> None:
    architecture, changes, said = REFUSED[case]
    config = config_of(architecture)
    config.hidden_size, config.head_dim = 64, 16
    for name, value in changes.items():
        setattr(config, name, value)
    with pytest.raises(NotCovered, match=said):
        blueprint_of(config)


DIGEST = """
import hashlib, sys, torch
from transformers import AutoConfig
from spsbench.models.checkpoint import Checkpoint
from spsbench.models.onnx_lm import OnnxLM
from spsbench.base.paths import mini_dir

digest = hashlib.sha256()
ids = torch.randint(1000, (400,), generator=torch.Generator().manual_seed(0))
for name in ("target", "draft"):
    folder = mini_dir() / name
    config = AutoConfig.from_pretrained(folder)
    model = OnnxLM(config, Checkpoint(folder), config.vocab_size, int(sys.argv[1]), lambda: None)
    for n in (300, 1, 5, 1, 9, 2, 1, 5):
        digest.update(model.score(ids[model.length : model.length + n], n).numpy().tobytes())
found = digest.hexdigest()
"""


@pytest.mark.thorough
def test_logits_do_not_depend_on_process_or_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: one thread here, two there. Where a CPU breaks it, a continued run says so (tests/cli)."""
    here: dict[str, str] = {}
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["digest", "1"])
        exec(DIGEST, here)
    command = [sys.executable, "-c", f"{DIGEST}print(found)", "2"]
    elsewhere = subprocess.run(command, capture_output=True, text=True, check=True)
    assert elsewhere.stdout.strip() == here["found"]


def test_the_checkpoint_is_read_where_it_lies(tmp_path: Path) -> None:
    from spsbench.models.checkpoint import Checkpoint

    model = make(config_of("llama"))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        folder = tmp_path / str(dtype)
        model.to(dtype).save_pretrained(folder, max_shard_size="20KB")
        stored, loaded = Checkpoint(folder), LoadedWeights(model)
        assert len(list(folder.glob("*.safetensors"))) > 1
        assert stored.parameters == loaded.parameters == sum(p.numel() for p in model.parameters())
        for name, parameter in model.named_parameters():
            assert torch.equal(torch.from_numpy(stored.read(name)), parameter.float())
            assert (loaded.read(name) == stored.read(name)).all()
        name, ids = "model.embed_tokens.weight", tokens(7)
        for source in (stored, loaded):
            out = torch.zeros(7, 32)
            source.rows(name, ids.numpy(), out.numpy())
            assert torch.equal(out, model.model.embed_tokens.weight[ids].float())
