"""Weights go to a device tensor by tensor, without accelerate, and are those of the ordinary way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_models import config_of, make, make_tokenizer, save, save_seq2seq
from transformers import AutoModelForCausalLM, LlamaConfig

from spsbench.base.errors import UnavailableError
from spsbench.models import loading
from spsbench.models.source import find

CPU = torch.device("cpu")


def tensors(model: Any) -> dict[str, torch.Tensor]:
    """Weights and buffers, those too that no checkpoint has."""
    return dict(model.state_dict()) | dict(model.named_buffers())


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma3", "qwen3-moe", "opt", "t5"])
def test_what_is_loaded_directly_is_what_is_loaded_otherwise(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if architecture == "t5":
        folder = save_seq2seq("t5", tmp_path / "m")
    else:
        folder = save(make(config_of(architecture)), tmp_path / "m", max_shard_size="40KB")
    source = find(str(folder), None, "--target")
    ordinary = loading.from_pretrained(source, "auto", CPU, "--target", {})
    monkeypatch.setattr("transformers.integrations.accelerate.is_accelerate_available", lambda: False)
    with loading._one_by_one():
        direct = loading.from_pretrained(source, "auto", CPU, "--target", {"device_map": {"": CPU}})
    assert "HF_DEACTIVATE_ASYNC_LOAD" not in os.environ
    found, expected = tensors(direct), tensors(ordinary)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    heads = [model.get_output_embeddings().weight for model in (direct, ordinary)]
    tables = [model.get_input_embeddings().weight for model in (direct, ordinary)]
    assert (heads[0] is tables[0]) is (heads[1] is tables[1])


def test_a_missing_weight_is_seen(tmp_path: Path) -> None:
    model = make(config_of("llama"))
    state = {name: part for name, part in model.state_dict().items() if "layers.3.mlp.up" not in name}
    folder = save(model, tmp_path / "m", state_dict=state)
    source = find(str(folder), None, "--target")
    with pytest.raises(UnavailableError, match="incomplete: 1 of its weights"):
        loading.load_torch(source, "auto", torch.device("meta"), 258, "--target")


CHILD = """
import sys, threading, time
import torch
from transformers.utils import import_utils
import_utils.is_accelerate_available = lambda *given, **named: False
from spsbench.models.loading import load_torch
from spsbench.models.source import find

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

def watch():
    while not done.is_set():
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.001)

source = find(sys.argv[1], None, "--target")
before, done = anonymous(), threading.Event()
peak = [before]
thread = threading.Thread(target=watch)
thread.start()
model = load_torch(source, "float32", torch.device(sys.argv[2]), 258, "--target").model
done.set()
thread.join()
print(peak[0] - before, sum(part.nbytes for part in model.parameters()))
"""


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_the_host_never_holds_the_model(tmp_path: Path) -> None:
    """On ``meta`` a tensor takes no memory, as one on a device takes none of the host's.

    In another dtype than the file's: a tensor of the same one is the file's own pages on a CPU.
    """
    config = LlamaConfig(
        vocab_size=258, hidden_size=1024, intermediate_size=4096, num_hidden_layers=6, num_attention_heads=8
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.to_empty(device="cpu")
    for part in model.parameters():
        part.data.fill_(0.01)
    folder = save(model, tmp_path / "m", make_tokenizer(), max_shard_size="52MB")
    assert len(list(folder.glob("*.safetensors"))) == 4
    grown = {}
    for device in ("meta", "cpu"):
        command = [sys.executable, "-c", CHILD, str(folder), device]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        grown[device], size = map(int, done.stdout.split())
    assert size > 380e6
    assert grown["cpu"] > 0.9 * size, "it would be seen"
    assert grown["meta"] < 0.125 * size, "less than a shard of the files"
