"""Models whose settings alone would take all memory, or an hour to build, are refused before."""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers
from support.tiny_models import ARCHITECTURES, config_of

from spsbench.base import environment
from spsbench.base.errors import UnavailableError, UsageError
from spsbench.base.paths import mini_dir
from spsbench.models.source import find, require_generative

DOUBLING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
INSERTING = {"type": "Replace", "pattern": {"Regex": "b*"}, "content": "xy"}
MARK = {"SpecialToken": {"id": "M", "type_id": 0}}


def model(folder: Path, file: str, changes: dict[str, Any]) -> str:
    """A copy of the embedded target with other values in a file."""
    shutil.copytree(mini_dir() / "target", folder)
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(content | changes))
    return str(folder)


@pytest.mark.parametrize(
    ("file", "changes", "said"),
    [
        ("config.json", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1,000,000,000"),
        ("config.json", {"text_config": {"n_layer": 1e12}}, "n_layer is 1,000,000,000,000"),
        ("config.json", {"intermediate_size": 1 << 40}, "intermediate_size"),
        (
            "tokenizer.json",
            {"normalizer": {"type": "Sequence", "normalizers": [DOUBLING] * 34}},
            "normalizer",
        ),
        (
            "tokenizer.json",
            {"normalizer": {"type": "Sequence", "normalizers": [INSERTING] * 20}},
            "normalizer",
        ),
        ("tokenizer.json", {"decoder": {"type": "Sequence", "decoders": [DOUBLING] * 34}}, "decoder"),
        ("tokenizer.json", {"normalizer": {"type": "Prepend", "prepend": "a" * 10_000}}, "normalizer"),
        (
            "tokenizer.json",
            {
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": [MARK] * 100,
                    "special_tokens": {"M": {"id": "M", "ids": [0] * 100, "tokens": ["M"] * 100}},
                }
            },
            "post_processor",
        ),
        ("tokenizer.json", {"padding": {"strategy": {"Fixed": 10**9}}}, "padding"),
    ],
)
def test_bombs_are_refused_before_anything_is_built(
    tmp_path: Path, file: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnavailableError, match="is not a plausible model") as refused:
        find(model(tmp_path / "model", file, changes), None, "--target")
    assert said in str(refused.value)


def test_a_file_larger_than_any_in_use_is_not_read(tmp_path: Path) -> None:
    name = model(tmp_path / "model", "config.json", {})
    with (tmp_path / "model" / "merges.txt").open("wb") as file:
        file.truncate(200 << 20)
    with pytest.raises(UnavailableError, match=r"merges\.txt is not read \(it has 209,715,200 bytes"):
        find(name, None, "--target")


def test_a_chat_template_gets_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "ROOM_BYTES", 1 << 30)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    template = "{% if ('a' * 3000000000)|length %}b{% endif %}"
    changes = {"chat_template": template}
    source = find(model(tmp_path / "model", "tokenizer_config.json", changes), None, "--target")
    with pytest.raises(MemoryError):
        source.tokenizer.chat("a")
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_template_that_writes_nothing_names_its_prompt(tmp_path: Path) -> None:
    changes = {"chat_template": "{% if false %}a{% endif %}"}
    source = find(model(tmp_path / "model", "tokenizer_config.json", changes), None, "--target")
    with pytest.raises(UsageError, match="the chat template writes nothing of the prompt Why so") as refused:
        source.tokenizer.chat("Why so?")
    assert refused.value.flag == "--chat-template"


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (transformers.WhisperConfig(), "reads sound, not text"),
        (transformers.CLIPConfig(), "is no language model that transformers knows"),
    ],
)
def test_models_that_write_no_text_from_text_are_refused(config: Any, what: str, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=what):
        find(str(tmp_path), None, "--draft")


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_attention_passes(architecture: str) -> None:
    require_generative(config_of(architecture), architecture, "--target")


def test_without_private_names_of_transformers_the_self_test_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(transformers.AutoModelForCausalLM, "_model_mapping")
    require_generative(config_of("llama"), "llama", "--target")
    require_generative(config_of("jamba"), "jamba", "--target")
