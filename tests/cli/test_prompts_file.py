"""Prompts of one's own from the command line: run, resume, score, and what is refused at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.commandline import Cli
from support.tiny_models import CHAT_TEMPLATE, config_of, make, make_tokenizer, save

QUICK = ("--k", "4", "--max-new-tokens", "8", "--threads", "1", "--set", "warmup=false", "--no-proof")
ROWS = [
    {"id": "n1", "prompt": "Article: The council said", "category": "news", "reference": "It opens."},
    {"id": "n2", "prompt": "Article: A school", "category": "news"},
    {"id": "c1", "prompt": "def add(a, b):\n", "category": "code"},
    {"id": "s1", "question_id": 1, "category": "chat", "turns": ["Hello", "Again"]},
]


def write(name: str, rows: list[dict[str, Any]]) -> Path:
    path = Path(name)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def summary(run: str) -> Any:
    return json.loads(Path(run, "summary.json").read_text())


def lines(path: str) -> list[Any]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.mark.thorough
def test_a_prompts_file_runs_resumes_and_is_shown_by_category(cli: Cli) -> None:
    write("prompts.jsonl", ROWS)
    first = cli("run", "prompts.jsonl", *QUICK, "--limit", "2", "--out", "run")
    assert first.code == 0, first.err
    before = lines("run/samples.jsonl")
    more = cli("run", "--resume", "run", "--limit", "4")
    assert more.code == 0, more.err
    after = lines("run/samples.jsonl")
    assert after[: len(before)] == before
    assert len(after) == 8
    assert {(row["example_id"], row["category"]) for row in after} == {(r["id"], r["category"]) for r in ROWS}
    found = summary("run")
    assert [(part["category"], part["prompts"]) for part in found["by_category"]] == [
        ("chat", 1),
        ("code", 1),
        ("news", 2),
    ]
    assert found["headline_metric"] == "rouge2"
    assert [row["metrics"].keys() >= {"rouge2"} for row in found["by_category"][2]["rows"]] == [True, True]
    assert found["by_category"][0]["rows"][0]["metrics"] == {}
    assert "By category" in more.out
    assert "no answer before them: 1" in " ".join(more.out.split())
    assert "## By category" in Path("run/report.md").read_text()
    assert cli("report", "run", "--html").code == 0
    assert "news (2 prompts)" in Path("run/report.html").read_text()


def test_the_same_prompts_and_seed_give_the_same_tokens_in_another_order(cli: Cli) -> None:
    write("one.jsonl", ROWS)
    write("other.jsonl", ROWS[::-1])
    hashes = set()
    for name in ("one", "other"):
        assert cli("run", f"{name}.jsonl", *QUICK, "--out", name).code == 0
        hashes.add(summary(name)["token_sha256"])
    assert len(hashes) == 1


def test_changed_prompts_are_another_run(cli: Cli) -> None:
    write("prompts.jsonl", ROWS)
    assert cli("run", "prompts.jsonl", *QUICK, "--limit", "1", "--out", "run").code == 0
    write("prompts.jsonl", [ROWS[0] | {"prompt": "Another"}, *ROWS[1:]])
    refused = cli("run", "--resume", "run", "--limit", "2")
    assert (refused.code, "prompt_sha256" in refused.err) == (2, True)


def test_without_references_only_speed_and_losslessness_are_shown(cli: Cli) -> None:
    Path("lines.txt").write_text("The council said\nA school opens\n")
    done = cli("sweep-k", "lines.txt", *QUICK, "--out", "run")
    assert done.code == 0, done.err
    assert "ROUGE" not in done.out
    assert "By category" not in done.out
    assert summary("run")["parity"] is None
    assert cli("score", "run").code == 0


def test_scoring_again_leaves_prompts_without_a_reference_alone(cli: Cli) -> None:
    write("prompts.jsonl", ROWS[:2])
    assert cli("run", "prompts.jsonl", *QUICK, "--no-score", "--out", "run").code == 0
    scored = cli("score", "run")
    assert scored.code == 0
    assert "Scoring 2 outputs" in scored.err
    assert {row["example_id"] for row in lines("run/scores.jsonl")} == {"n1"}


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = make(config_of("llama", num_hidden_layers=1, max_position_embeddings=512))
    return save(model, tmp_path_factory.mktemp("m") / "chat", make_tokenizer(chat_template=CHAT_TEMPLATE))


def test_turns_of_a_conversation_are_sequences_of_their_own(cli: Cli, chat_model: Path) -> None:
    talk = [("human", "One?"), ("gpt", "1"), ("human", "Two?"), ("gpt", "2")]
    said = [{"from": who, "value": text} for who, text in talk]
    Path("share.json").write_text(json.dumps([{"id": "a", "conversations": said}]))
    pair = ("--target", chat_model, "--draft", chat_model, "--device", "cpu")
    done = cli("run", "share.json", *QUICK, *pair, "--out", "run")
    assert done.code == 0, done.err
    prompts = {
        row["example_id"]: make_tokenizer().decode(row["prompt_ids"]) for row in lines("run/prompts.jsonl")
    }
    assert prompts["a/1"].endswith("[user]One?</s>[assistant]")
    assert prompts["a/2"].endswith("[user]One?</s>[assistant]1</s>[user]Two?</s>[assistant]")
    by_arm = {row["arm"]: row["prompts"] for row in summary("run")["rows"]}
    assert set(by_arm.values()) == {2}
