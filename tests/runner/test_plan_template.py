"""BOS, chat template and stops: what a plan decides about them, and that its identity tells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.commandline import Cli
from support.tiny_models import BOS, CHAT_TEMPLATE, EOS, config_of, make, make_tokenizer, save

from spsbench.cli.settings import read_material
from spsbench.config.resolution import resolve
from spsbench.models.tokenizer import Tokenizer
from spsbench.runner.planning import Plan, plan

ROW = {
    "task_id": "local/0",
    "prompt": 'def double(x):\n    """Twice x."""\n',
    "entry_point": "double",
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(3) == 6\n",
}

OPENS = "{% if add_generation_prompt and (thinking is not defined or thinking) %}<think>{% endif %}"
"""A thought, behind a template."""


@pytest.fixture(scope="module")
def model() -> Any:
    return make(config_of("llama", num_hidden_layers=1, max_position_embeddings=1024))


def planned(folder: Path, **flags: Any) -> Plan:
    data = folder.parent / "rows.jsonl"
    data.write_text(json.dumps(ROW) + "\n")
    flags = {
        "task": "humaneval",
        "target": folder,
        "draft": folder,
        "data": str(data),
        "score": False,
    } | flags
    return plan(resolve({"device": "cpu", **flags}))


def test_both_choices_are_in_the_identity(model: Any, tmp_path: Path) -> None:
    folder = save(model, tmp_path / "m", make_tokenizer(bos=True, chat_template=CHAT_TEMPLATE))
    auto, none = planned(folder), planned(folder, chat_template="none")
    assert (auto.identity()["chat_template"], none.identity()["chat_template"]) == (True, False)
    assert auto.identity()["pair"]["bos"] == none.identity()["pair"]["bos"] == "<s>"
    decode = make_tokenizer().decode
    head = ROW["prompt"].rstrip()
    request = f"Complete the following Python function.\n\n```python\n{head}\n```"
    assert decode(auto.prompts[0].ids) == f"<s>[user]{request}</s>[assistant]```python\n{head}"
    assert decode(none.prompts[0].ids) == f"<s>{ROW['prompt']}"
    assert [p.prompts[0].ids.count(BOS) for p in (auto, none)] == [1, 1]
    assert (auto.prompts[0].chat, none.prompts[0].chat) == (True, False)


def test_code_in_a_chat_is_not_cut_where_a_line_begins(model: Any, tmp_path: Path) -> None:
    folder = save(model, tmp_path / "m", make_tokenizer(chat_template=CHAT_TEMPLATE))
    auto, none = planned(folder), planned(folder, chat_template="none")
    assert auto.stop == ("\n```",) == tuple(auto.identity()["stop"])
    assert planned(folder, extract="fence").stop == ()
    assert "\ndef" in none.stop
    assert none.identity()["stop"] == list(none.stop)
    assert none.identity()["pair"]["bos"] is None


def test_a_base_model_that_ships_a_template_is_not_asked_as_a_chat(model: Any, tmp_path: Path) -> None:
    """As Qwen2.5 base models do: their EOS is another token than the one that ends a turn."""
    tokenizer = make_tokenizer(chat_template=CHAT_TEMPLATE.replace("</s>", "<extra_0>"), extra=1)
    base = make(config_of("llama", num_hidden_layers=1, vocab_size=259, max_position_embeddings=1024))
    folder = save(base, tmp_path / "m", tokenizer)
    made = planned(folder)
    assert made.source.tokenizer.has_chat_template
    assert EOS in made.source.tokenizer.eos_ids
    assert made.identity()["chat_template"] is False


def test_a_variable_of_the_template_reaches_every_prompt(model: Any, tmp_path: Path) -> None:
    tokenizer = make_tokenizer(chat_template=CHAT_TEMPLATE + OPENS)
    folder = save(model, tmp_path / "m", tokenizer)
    plain, off = planned(folder), planned(folder, template_args={"thinking": False})
    assert [p.prompts[0].thinks for p in (plain, off)] == [True, False]
    assert plain.data.provenance["opens_thought"] == {"prompts": 1, "switch": "thinking"}
    assert "opens_thought" not in off.data.provenance
    assert off.identity()["template_args"] == {"thinking": False}
    assert "template_args" not in plain.identity()


def test_trace_sets_a_variable_of_the_template(
    model: Any, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(model, tmp_path / "m", make_tokenizer(chat_template=CHAT_TEMPLATE + OPENS))
    seen = list[Mapping[str, Any]]()

    def noted(self: Tokenizer, text: str) -> list[int]:
        seen.append(dict(self.template_args))
        return self.encode(text, special=True)

    monkeypatch.setattr(Tokenizer, "chat", noted)
    typed = f"trace One? --target {folder} --draft {folder} --max-new-tokens 4 --template-arg thinking=false"
    assert cli(*typed.split()).code == 0
    assert seen
    assert all(each == {"thinking": False} for each in seen)


def test_audit_sets_a_variable_of_the_template() -> None:
    settings = read_material(quiet=True, limit="1", template_arg=["thinking=false"])
    assert settings.template_args == {"thinking": False}
