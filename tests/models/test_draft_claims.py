"""A draft's folder is a stranger's: what it says of itself is bounded, and held against its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.walking import WRONG, changed, places

from spsbench.base.errors import SpsbenchError, UnavailableError, UsageError
from spsbench.models.speculators import read_speculators
from spsbench.models.trained import TrainedDraft, read_trained

FLAG, HIDDEN, HEADS = "--drafter", 4, 3
MADE = {"name": "a model", "hidden": HIDDEN, "vocab_size": 8, "embedding": "sha256:0"}
LAYER = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 8,
}
TOLD = {
    "medusa": {"format": 1, "kind": "medusa", "target": MADE, "config": None, "heads": HEADS},
    "eagle": {"format": 1, "kind": "eagle", "target": MADE, "config": LAYER, "heads": None},
    "eagle3": {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": LAYER,
        "eagle_aux_hidden_state_layer_ids": [4],
        "norm_before_fc": True,
        "speculators_config": {"verifier": {"name_or_path": "a model"}},
    },
}
STORED = {
    "medusa": [f"heads.{number}.{part}" for number in range(HEADS) for part in ("weight", "bias")],
    "eagle": ["fc.weight", "model.layers.0.mlp.up_proj.weight"],
    "eagle3": ["fc.weight", "layers.0.mlp.up_proj.weight"],
}


def head(folder: Path, kind: str, text: str | None = None, **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    name = "config.json" if kind == "eagle3" else "draft.json"
    (folder / name).write_text(json.dumps(TOLD[kind]) if text is None else text)
    tensors = {each: np.zeros((HIDDEN, HIDDEN), np.float32) for each in STORED[kind]}
    save_file(tensors | more, folder / "model.safetensors")
    return folder


def read(folder: Path) -> TrainedDraft:
    return read_speculators(folder, FLAG) or read_trained(folder, FLAG)


@pytest.mark.parametrize("kind", TOLD)
def test_an_untouched_draft_is_read(kind: str, tmp_path: Path) -> None:
    assert read(head(tmp_path / "head", kind)).kind == kind


@pytest.mark.parametrize("kind", TOLD)
def test_each_wrong_value_of_a_description_is_refused_by_type(kind: str, tmp_path: Path) -> None:
    """Or it is without effect: nothing else is raised, whatever the libraries make of it."""
    wrong = [*WRONG.values(), 10**9, 1e30]
    folder = head(tmp_path / "head", kind)
    refused = 0
    for number, place in enumerate(places(TOLD[kind])):
        for step in (0, 5, 11, 18, 19):
            head(folder, kind, changed(TOLD[kind], place, wrong[(number + step) % len(wrong)]))
            try:
                read(folder)
            except SpsbenchError as problem:
                refused += problem.flag == FLAG
    assert refused > 20


@pytest.mark.parametrize(
    ("kind", "place", "value", "said"),
    [
        ("medusa", ("heads",), 10**9, "heads is 1,000,000,000, and a whole number from 1 to 64 is read"),
        ("medusa", ("heads",), HEADS + 1, "of 4 heads that it describes 3 are stored"),
        ("medusa", ("heads",), HEADS - 1, "it stores 3 heads and describes 2"),
        ("medusa", ("heads",), None, "heads is nothing"),
        ("medusa", ("target", "hidden"), float("inf"), "target.hidden is inf, no finite number"),
        ("medusa", ("target", "vocab_size"), 1 << 40, "vocab_size is 1,099,511,627,776"),
        ("medusa", ("target", "name"), WRONG["3,000 levels"], "more than 100 levels"),
        ("eagle", ("config", "num_hidden_layers"), 10**9, "num_hidden_layers is 1,000,000,000"),
        ("eagle", ("config", "num_hidden_layers"), 2, "of 2 layers that it describes 1 are stored"),
        ("eagle", ("config", "model_type"), ["x"], "cannot be read"),
        ("eagle3", ("transformer_layer_config", "hidden_size"), 1 << 40, "hidden_size"),
        ("eagle3", ("transformer_layer_config", "num_hidden_layers"), 7, "of 7 layers"),
    ],
)
def test_absurd_and_contradictory_claims_are_named(
    kind: str, place: tuple[str, ...], value: Any, said: str, tmp_path: Path
) -> None:
    folder = head(tmp_path / "head", kind, changed(TOLD[kind], place, value))
    with pytest.raises((UsageError, UnavailableError)) as refused:
        read(folder)
    assert said in str(refused.value)


@pytest.mark.parametrize(("kind", "name"), [("medusa", "vocabulary"), ("eagle3", "d2t")])
def test_a_vocabulary_is_no_larger_than_the_targets(kind: str, name: str, tmp_path: Path) -> None:
    read(head(tmp_path / "right", kind, **{name: np.arange(8) * (kind == "medusa")}))
    with pytest.raises(UnavailableError, match=f"{name} has 9 values of I64, for 8 tokens"):
        read(head(tmp_path / "long", kind, **{name: np.arange(9)}))
    with pytest.raises(UnavailableError, match=f"{name} has 8 values of F32"):
        read(head(tmp_path / "floats", kind, **{name: np.zeros(8, np.float32)}))
