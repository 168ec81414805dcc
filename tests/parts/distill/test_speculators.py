"""A head in the format of ``speculators`` drafts what its definition says; what is not that is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_heads import TOKENS, VOCABULARY, stirred
from support.tiny_models import over_onnx
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from spsbench.base.errors import SpsbenchError, UnavailableError, UsageError
from spsbench.decode.beam import Node
from spsbench.models.heads import load_chain
from spsbench.models.live_tree import LiveTree
from spsbench.models.reading import read_draft
from spsbench.models.speculators import READS
from spsbench.models.torch_lm import TorchLM
from spsbench.models.trained import MadeFor
from spsbench.parts.distill.folders import write_speculators
from spsbench.parts.distill.students import Eagle3Head, Teacher

FLAG = "--drafter"
Weights = dict[str, Tensor]
ENTRIES, OWN = 8, 3
"""Entries from the target's states, and those after them from the head's own."""


@pytest.fixture
def head(model: Any, tmp_path: Path) -> Path:
    teacher, loaded = Teacher(model, VOCABULARY), TorchLM(model)
    rows, width = loaded.embedding_shape
    made = MadeFor("tiny", width, rows, loaded.embedding_fingerprint())
    write_speculators(tmp_path / "head", made, "tiny", teacher, stirred(Eagle3Head(teacher, 2)))
    return tmp_path / "head"


@pytest.fixture
def raw(model: Any) -> Tensor:
    """[n, hidden] the target's states after its last layer, before the final norm."""
    seen: list[Tensor] = []
    hook = model.get_decoder().norm.register_forward_pre_hook(lambda part, args: seen.append(args[0][0]))
    with torch.inference_mode():
        model(input_ids=TOKENS[:, :-1])
    hook.remove()
    return seen[0].clone()


def changed(folder: Path, weights: Callable[[Weights], Weights] = dict, **told: Any) -> Path:
    """With other weights, and other fields of its configuration (None for none)."""
    path = folder / "config.json"
    fields = json.loads(path.read_text()) | told
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))
    save_file(weights(load_file(folder / "model.safetensors")), folder / "model.safetensors")
    return folder


def by_hand(folder: Path, model: Any, tokens: Tensor, raw: Tensor) -> Tensor:
    """[OWN + 1, m] logits of the head's vocabulary, by the definition: no cache and nobody's layers."""
    told = json.loads((folder / "config.json").read_text())
    layer, w = told["transformer_layer_config"], load_file(folder / "model.safetensors")
    w = {name: part.float() for name, part in w.items()}
    eps, size = layer["rms_norm_eps"], layer["head_dim"]
    groups = layer["num_attention_heads"] // layer["num_key_value_heads"]
    table = w.get("embed_tokens.weight", model.get_input_embeddings().weight.detach())

    def norm(x: Tensor, name: str) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * w[name]

    def turned(x: Tensor) -> Tensor:
        n = x.shape[1]
        speeds = layer["rope_parameters"]["rope_theta"] ** -(torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(n).float(), speeds).repeat(1, 2)
        half = torch.cat([-x[..., size // 2 :], x[..., : size // 2]], -1)
        return x * angles.cos() + half * angles.sin()

    def layers(embedded: Tensor, state: Tensor) -> Tensor:
        normed = norm(state, "layers.0.hidden_norm.weight")
        read = torch.cat([norm(embedded, "layers.0.input_layernorm.weight"), normed], -1)
        q, k, v = (
            linear(read, w[f"layers.0.self_attn.{name}_proj.weight"])
            .unflatten(-1, (-1, size))
            .transpose(0, 1)
            for name in "qkv"
        )
        q, k, v = turned(q), turned(k).repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
        seen = scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
        state = normed if told["norm_before_residual"] else state
        state = state + linear(seen.transpose(0, 1).flatten(1), w["layers.0.self_attn.o_proj.weight"])
        x = norm(state, "layers.0.post_attention_layernorm.weight")
        gate, up, down = (w[f"layers.0.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        return state + linear(silu(linear(x, gate)) * linear(x, up), down)

    before = "fc_norm.0.weight" if told.get("fc_norm") else "input_norm.weight"
    states = linear(norm(raw, before), w["fc.weight"])
    logits = []
    for _ in range(OWN + 1):
        predicted = layers(table[tokens[: len(states)]], states)[-1:]
        normed = norm(predicted, "norm.weight")
        states = torch.cat([states, normed if told.get("norm_output") else predicted])
        logits.append(linear(normed, w["lm_head.weight"]))
    return torch.cat(logits)


def by_chain(folder: Path, model: Any, backend: str, raw: Tensor) -> Tensor:
    """As ``by_hand``, as it drafts in a run."""
    draft = read_draft(folder, FLAG)
    with torch.inference_mode():
        chain = load_chain(draft, over_onnx(model) if backend == "onnx" else TorchLM(model), 0, FLAG)
        row, own = chain.extend(TOKENS[0, 1 : ENTRIES + 1], chain.combined(raw[:ENTRIES]))
        rows = [row.clone()]
        for place in range(ENTRIES + 1, ENTRIES + 1 + OWN):
            row, own = chain.extend(TOKENS[0, place : place + 1], own.clone())
            rows.append(row.clone())
    return torch.cat(rows)


def renamed(weights: Weights) -> Weights:
    return {
        name.replace("input_norm", "fc_norm.0"): 0.5 * part if "input_norm" in name else part
        for name, part in weights.items()
    }


def with_embedding(weights: Weights) -> Weights:
    noise = torch.randn(258, 64, generator=torch.Generator().manual_seed(1))
    return weights | {"embed_tokens.weight": noise}


OTHERS: dict[str, dict[str, Any]] = {
    "ours": {},
    "residual": {"norm_before_residual": True},
    "output": {"norm_output": True},
    "fc_norm": {"norm_before_fc": False, "fc_norm": True, "weights": renamed},
    "embedding": {"weights": with_embedding},
}


@pytest.mark.parametrize("backend", ["onnx", "torch"])
@pytest.mark.parametrize("other", OTHERS)
def test_it_drafts_what_the_definition_says(
    head: Path, model: Any, raw: Tensor, backend: str, other: str
) -> None:
    changed(head, **OTHERS[other])
    found = by_chain(head, model, backend, raw)
    with torch.inference_mode():
        expected = by_hand(head, model, TOKENS[0, 1:], raw[:ENTRIES])
    torch.testing.assert_close(found[:, VOCABULARY], expected, rtol=1e-5, atol=1e-5)
    assert bool((found[:, 1::2] == float("-inf")).all())


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_nodes_of_a_tree_are_chains_that_went_there(
    head: Path, model: Any, raw: Tensor, backend: str
) -> None:
    """Two children and a grandchild, each against a chain of its own."""
    draft = read_draft(head, FLAG)
    with torch.inference_mode():
        chain = load_chain(draft, over_onnx(model) if backend == "onnx" else TorchLM(model), 0, FLAG)
        states = chain.combined(raw[:ENTRIES])

        def begun() -> Tensor:
            chain.rollback(0)
            return chain.extend(TOKENS[0, 1 : ENTRIES + 1], states)[1].clone()

        below, tree, root = begun(), LiveTree(ENTRIES - 1, 1), Node(0)
        children = [root.child(7), root.child(9)]
        tree.add(children)
        rows, own = chain.branch(torch.tensor([7, 9]), below.expand(2, -1), tree.last(2))
        rows, below_second = rows.clone(), own[1:].clone()
        tree.add([children[1].child(11)])
        last = chain.branch(torch.tensor([11]), below_second, tree.last(1))[0].clone()
        for token, row in zip((7, 9), rows, strict=True):
            torch.testing.assert_close(chain.extend(torch.tensor([token]), begun())[0][0], row)
        row, own = chain.extend(torch.tensor([9]), begun())
        torch.testing.assert_close(chain.extend(torch.tensor([11]), own.clone())[0], last)


NORMS = ("layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight")


def swapped(weights: Weights) -> Weights:
    first, second = NORMS
    return weights | {first: weights[second], second: weights[first]}


@pytest.mark.parametrize(
    "fault",
    [
        {"weights": swapped},
        {"weights": lambda w: w | {"norm.weight": torch.ones_like(w["norm.weight"])}},
        {"weights": lambda w: w | {"input_norm.weight": 1.1 * w["input_norm.weight"]}},
        {"norm_before_residual": True},
        {"norm_output": True},
    ],
    ids=["swapped", "dropped", "input", "residual", "output"],
)
def test_a_weight_or_norm_that_is_not_the_heads_is_seen(
    head: Path, model: Any, raw: Tensor, fault: dict[str, Any]
) -> None:
    """The comparison above can fail."""
    with torch.inference_mode():
        expected = by_hand(head, model, TOKENS[0, 1:], raw[:ENTRIES])
    found = by_chain(changed(head, **fault), model, "torch", raw)
    assert float((found[:, VOCABULARY] - expected).abs().max()) > 1e-3


def test_a_student_is_what_is_read_from_its_folder(model: Any, raw: Tensor, head: Path) -> None:
    """Rows of training's depths against rows of the folder, which was written from an equal student."""
    teacher = Teacher(model, VOCABULARY)
    student = stirred(Eagle3Head(teacher, OWN + 1))
    with torch.inference_mode():
        depths = list(student.predict(TOKENS, model.get_decoder().norm(raw)[None]))
        places = (depth.states[0, ENTRIES - 1 + number] for number, depth in enumerate(depths))
        expected = linear(torch.stack(list(places)), teacher.head_rows(torch.float32))
    found = by_chain(head, model, "torch", raw)[:, VOCABULARY]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_the_files_are_named_as_the_package_names_them(head: Path, model: Any) -> None:
    layer = {f"self_attn.{name}_proj" for name in "qkvo"} | {
        f"mlp.{name}_proj" for name in ("gate", "up", "down")
    }
    layer |= {"input_layernorm", "hidden_norm", "post_attention_layernorm"}
    named = {f"layers.0.{name}.weight" for name in layer}
    stored = load_file(head / "model.safetensors")
    assert set(stored) == named | {
        "fc.weight",
        "input_norm.weight",
        "norm.weight",
        "lm_head.weight",
        "embed_tokens.weight",
        "d2t",
        "t2d",
    }
    assert torch.equal(stored["embed_tokens.weight"], model.get_input_embeddings().weight)
    assert torch.equal(torch.arange(len(stored["d2t"])) + stored["d2t"], VOCABULARY)
    assert torch.equal(stored["t2d"].nonzero().flatten(), VOCABULARY)


@pytest.mark.parametrize(
    ("told", "field"),
    [
        ({"speculators_model_type": "dflash"}, "has no aux_hidden_state_layer_ids"),
        ({"speculators_model_type": "mtp"}, "speculators_model_type mtp"),
        ({READS: [1, 2, 3]}, r"fc.weight of the shape [64, 64], not [64, 192]"),
        ({READS: None}, r"fc.weight of the shape [64, 64], not [64, 192]"),
        ({"norm_before_fc": False}, "has input_norm.weight, which no config.json of this kind explains"),
        ({"target_hidden_size": 128}, r"fc.weight of the shape [64, 64], not [64, 128]"),
        ({"transformer_layer_config": {"model_type": "llama"}}, "hidden_size"),
        ({"speculators_config": {}}, "verifier"),
    ],
)
def test_what_does_not_run_here_is_refused_by_its_field(head: Path, told: dict[str, Any], field: str) -> None:
    with pytest.raises(SpsbenchError, match=re.escape(field)) as refused:
        read_draft(changed(head, **told), FLAG)
    assert refused.value.flag == FLAG


def test_a_target_without_that_layer_is_refused(head: Path) -> None:
    draft = read_draft(head, FLAG)
    draft.require_layers(3, FLAG)
    with pytest.raises(UsageError, match=r"reads the states 3 by its ids \[3\]; this target has 2 layers"):
        draft.require_layers(2, FLAG)


@pytest.mark.parametrize(
    ("weights", "named"),
    [
        (lambda w: {name: part for name, part in w.items() if name != NORMS[1]}, NORMS[1]),
        (lambda w: w | {"fc.weight": torch.zeros(64, 192)}, "fc.weight"),
        (lambda w: w | {"d2t": -w["d2t"]}, "d2t"),
    ],
    ids=["missing", "shape", "map"],
)
def test_weights_that_are_not_the_heads_are_refused(
    head: Path, model: Any, weights: Callable[[Weights], Weights], named: str
) -> None:
    with pytest.raises(SpsbenchError, match=named) as refused:
        by_chain(changed(head, weights), model, "torch", torch.zeros(ENTRIES, 64))
    assert isinstance(refused.value, UnavailableError)


def test_its_weights_are_not_rounded(head: Path, model: Any) -> None:
    draft = read_draft(head, FLAG)
    with pytest.raises(UsageError, match="bits=8"):
        load_chain(draft, over_onnx(model), 8, FLAG)
