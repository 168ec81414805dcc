"""Tiny models of many architectures from a hub on this machine, with the quirks of real repositories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commandline import BRIEF, call
from support.hub import Hub, connected
from support.tiny_models import ARCHITECTURES, CHAT_TEMPLATE, EOS, TOKENS, make_pair, make_tokenizer, save

pytestmark = pytest.mark.thorough

SHARDED = {"max_shard_size": "60KB"}
QUIRKS: dict[str, dict[str, Any]] = {
    "gpt2": {"in_bin": True},
    "llama": {"bos": True, "dtype": torch.bfloat16, "save": SHARDED, "eos": [EOS, 65, 66]},
    "qwen2": {"sizes": (TOKENS + 14, TOKENS + 6), "dtype": torch.bfloat16, "save": SHARDED},
    "qwen3": {"sizes": (TOKENS + 14, TOKENS + 14), "dtype": torch.bfloat16, "eos": [EOS, 65]},
    "gpt_neox": {"dtype": torch.float16},
    "opt": {"in_bin": True, "dtype": torch.float16},
    "mistral": {"bos": True, "dtype": torch.bfloat16},
    "gemma3": {"bos": True, "dtype": torch.bfloat16, "eos": [EOS, 65]},
    "phi3": {"tied": True},
    "mixtral": {"dtype": torch.bfloat16, "save": SHARDED},
}
"""Of repositories: files, dtypes, embeddings padded unlike, several EOS, BOS by tokenizer and template."""


def repositories(root: Path, architecture: str) -> list[str]:
    """A target and a draft under names like real ones."""
    quirks = QUIRKS.get(architecture, {})
    tied = {"tie_word_embeddings": True} if quirks.get("tied") else {}
    template = CHAT_TEMPLATE if quirks.get("bos") else None
    tokenizer = make_tokenizer(bos=bool(quirks.get("bos")), chat_template=template)
    names = []
    for size, model in zip(
        ("8B", "1B"),
        make_pair(architecture, vocab_sizes=quirks.get("sizes", (TOKENS, TOKENS)), **tied),
        strict=True,
    ):
        names.append(f"org/{architecture}-{size}")
        model = model.to(quirks.get("dtype", torch.float32))
        folder = save(model, root / "models" / names[-1], tokenizer, **quirks.get("save", {}))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": quirks.get("eos", EOS)}))
        if quirks.get("in_bin"):
            for file in folder.glob("*.safetensors"):
                file.unlink()
            torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return names


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_decision_follows(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = repositories(tmp_path / "served", architecture)
    flags = ("--dtype", "float32", "--limit", "2", "--max-new-tokens", "16", "--threads", "1", "--no-score")
    pair = ("--target", target, "--draft", draft, "--set", "warmup=false", "--remeasure", "0")
    with Hub(tmp_path / "served") as hub, connected(hub, tmp_path / "home", monkeypatch):
        done = call("run", "xsum", *BRIEF, *flags, *pair, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    assert any("/content/" in request for request in hub.requests)
    rows = json.loads((tmp_path / "run" / "summary.json").read_text())["losslessness"]["arms"]
    counts = [row["decisions"] for row in rows]
    assert counts
    for count in counts:
        assert count["contradicted"] == 0 < count["decisions"]
