"""Conversations: a later turn follows from the arm's own answer, when resuming and proving, too."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.commandline import ALONE, call, journal
from support.tiny_models import CHAT_TEMPLATE, config_of, make, make_tokenizer, save

from spsbench.base import environment
from spsbench.base.errors import UsageError
from spsbench.config import resolve
from spsbench.models.tokenizer import Tokenizer
from spsbench.runner import dialogue, plan
from spsbench.runner.turns import request_of
from spsbench.store import RunStore

FAKE = Path(__file__).parents[1] / "support/reading_engine.py"
SAMPLED = ("--sampling", "temperature1", "--max-new-tokens", "12", "--k", "3")
RUN = ("run", "mt-bench", *SAMPLED, *ALONE, "--remeasure", "0")

Key = tuple[str, int, str]


def by_key(run: Path) -> dict[Key, dict[str, Any]]:
    return {(row["example_id"], row["sample_index"], row["arm"]): row for row in journal(run)}


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return plan(resolve({"task": "mt-bench", "limit": 1, "device": "cpu"})).tokenizer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four conversations of two turns, by two arms; not to be changed."""
    directory = tmp_path_factory.mktemp("turns") / "run"
    done = call(*RUN, "--limit", "4", "--out", directory)
    assert done.code == 0, done.err
    return directory


def strangers(run: Path, tokenizer: Tokenizer) -> list[Key]:
    """Later turns whose prompt is not what their own arm was asked and answered, rebuilt from the texts."""
    rows = by_key(run)
    asked = {
        row["example_id"]: row["prompt"]
        for row in map(json.loads, (run / "prompts.jsonl").read_text().splitlines())
    }
    later = {key: row for key, row in rows.items() if "turn" in row}
    assert len(later) == len(rows) // 2
    found = []
    for (example, index, arm), row in later.items():
        first = row["conversation"]
        text = f"{asked[first]}{rows[first, index, arm]['text']}\n{asked[example]}"
        ids = tokenizer.encode(text, special=True)
        if row["prompt_ids"] != ids or row["prompt_tokens"] != len(ids):
            found.append((example, index, arm))
    return found


def test_each_arm_is_asked_after_its_own_answer(run: Path, tokenizer: Tokenizer) -> None:
    rows = journal(run)
    assert strangers(run, tokenizer) == []
    assert all(("turn" in row) == row["example_id"].endswith("/2") for row in rows)
    own: dict[str, set[tuple[int, ...]]] = {}
    for row in rows:
        if "turn" in row:
            own.setdefault(row["example_id"], set()).add(tuple(row["prompt_ids"]))
    assert any(len(prompts) == 2 for prompts in own.values())  # else this shows nothing
    assert [part["turn"] for part in summary(run)["by_turn"]] == [1, 2]
    assert {row.get("paired_conversations") for row in summary(run)["rows"]} == {None, 4}


def test_an_answer_of_the_other_arm_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer
) -> None:
    """The control of the test above: everybody is given the answer of ArS."""
    honest = dialogue.Dialogues._finished_sample

    def of_ars(self: dialogue.Dialogues, example_id: str, turn: Any) -> Any:
        ars = next(arm for arm in self.plan.arms if arm.method == "ars")
        return honest(self, example_id, replace(turn, arm=ars)) or honest(self, example_id, turn)

    monkeypatch.setattr(dialogue.Dialogues, "_finished_sample", of_ars)
    assert call(*RUN, "--limit", "4", "--out", tmp_path / "run").code == 0
    found = strangers(tmp_path / "run", tokenizer)
    assert found
    assert {arm for _, _, arm in found} == {"sps-k3-temperature1"}


def test_an_arm_that_decoded_after_another_prompt_than_its_own_raises_the_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Path
) -> None:
    """The independent reading has the prompt that is kept, and the engine had the other arm's."""
    assert {arm["verdict"] for arm in summary(run)["losslessness"]["arms"]} <= {"ok", "few"}
    given: dict[str, tuple[int, ...]] = {}

    def swapped(plan: Any, turn: Any, *more: Any) -> Any:
        asked = request_of(plan, turn, *more)
        if turn.prompt.conversation is None:
            return asked
        first = given.setdefault(turn.prompt.example_id, turn.prompt.ids)
        return replace(asked, prompt_ids=first)

    monkeypatch.setattr(import_module("spsbench.runner.execution"), "request_of", swapped)
    assert call(*RUN, "--limit", "4", "--out", tmp_path / "run").code == 0
    assert "alarm" in {arm["verdict"] for arm in summary(tmp_path / "run")["losslessness"]["arms"]}


@pytest.mark.parametrize(
    "kept", [2, 3, *(pytest.param(count, marks=pytest.mark.thorough) for count in (1, 6))]
)
def test_a_killed_run_goes_on_at_the_turn_that_is_missing(tmp_path: Path, run: Path, kept: int) -> None:
    """What was written stays, and what follows is what the whole run wrote."""
    copied = tmp_path / "run"
    copied.mkdir()
    for name in ("run.json", "config.yaml", "prompts.jsonl"):
        (copied / name).write_bytes((run / name).read_bytes())
    whole = (run / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (copied / "samples.jsonl").write_bytes(b"".join([*whole[:kept], whole[kept][:40]]))
    done = call("run", "--resume", copied, "--quiet")
    assert done.code == 0, done.err
    rows, before = by_key(copied), by_key(run)
    assert rows.keys() == before.keys()
    names = ("token_ids", "prompt_ids", "conversation", "turn", "prompt_tokens")
    for key, row in rows.items():
        assert [row.get(name) for name in names] == [before[key].get(name) for name in names], key
    assert summary(copied)["token_sha256"] == summary(run)["token_sha256"]


def test_a_turn_without_an_earlier_answer_fails_and_is_asked_on_resuming(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spsbench.engines.local import EagerEngine

    honest, first = EagerEngine.generate, iter([True])

    def fails_once(self: Any, request: Any) -> Any:
        if next(first, False):
            raise ValueError("planted")
        return honest(self, request)

    monkeypatch.setattr(EagerEngine, "generate", fails_once)
    broken = call(*RUN, "--limit", "4", "--out", tmp_path / "run")
    assert broken.code == 5
    errors = [row["error"] for row in journal(tmp_path / "run") if row["error"]]
    assert errors == ["ValueError: planted", "Unasked: its turn 1 has no answer"]
    done = call("run", "--resume", tmp_path / "run", "--quiet")
    assert done.code == 0, done.err
    assert summary(tmp_path / "run")["token_sha256"] == summary(run)["token_sha256"]


def test_what_is_timed_again_is_asked_what_it_was_asked_before(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others disturb each of the sixteen sequences when it is timed first."""
    again, calls, taken = tmp_path / "run", count(), [0.0]

    def waited_s() -> float:
        number = next(calls)
        taken[0] += 10.0 if number % 2 and number < 2 * 16 else 0.0
        return taken[0]

    monkeypatch.setitem(environment.TAKERS, "waited_s", waited_s)
    done = call(*RUN, "--limit", "4", "--remeasure", "5min", "--out", again)
    assert done.code == 0, done.err
    told = json.loads((again / "run.json").read_text())["remeasured"]
    assert told["again"] > 0
    assert told["differing"] == []
    assert summary(again)["token_sha256"] == summary(run)["token_sha256"]
    rows = [json.loads(line) for line in (again / "samples.jsonl").read_text().splitlines()]
    later = [row for row in rows if row.get("attempt") and "turn" in row]
    first = by_key(again)
    assert later
    for row in later:
        assert row["prompt_ids"] == first[row["example_id"], row["sample_index"], row["arm"]]["prompt_ids"]


def test_batches_answer_the_turns_one_after_the_other(tmp_path: Path, run: Path) -> None:
    done = call(*RUN, "--limit", "4", "--batch", "2", "--out", tmp_path / "run")
    assert done.code == 0, done.err
    alone = {(row["example_id"], row["arm"]): row["token_ids"] for row in journal(run)}
    rows = journal(tmp_path / "run")
    assert {row["arm"] for row in rows} >= {"ars-b2-temperature1", "sps-k3-b2-temperature1"}
    for row in rows:
        assert row["token_ids"] == alone[row["example_id"], row["arm"].replace("-b2", "")], row["arm"]


def test_an_engine_of_others_is_asked_after_its_own_answers(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker reads the texts of ArS out; a prompt that is not its own it would answer with token 5."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    worker = " ".join([sys.executable, str(FAKE), str(run)])
    flags = ("--arms", "sps", "--engine", f'eager,worker:"{worker}"')
    done = call(*RUN, "--limit", "4", *flags, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    rows = [row for row in journal(tmp_path / "run") if "worker" in row["arm"]]
    assert {row.get("turn") for row in rows} == {None, 2}
    ars = {row["example_id"]: row for row in journal(run) if row["arm"].startswith("ars-")}
    for row in rows:
        assert row["token_ids"] == ars[row["example_id"]]["token_ids"]
        assert row.get("prompt_ids") == ars[row["example_id"]].get("prompt_ids")


def test_first_turns_alone_have_the_tokens_and_the_lines_of_before(tmp_path: Path, run: Path) -> None:
    done = call(*RUN, "--limit", "4", "--turns", "first", "--out", tmp_path / "run")
    assert done.code == 0, done.err
    rows, before = by_key(tmp_path / "run"), by_key(run)
    assert {key: row["token_ids"] for key, row in rows.items()} == {
        key: row["token_ids"] for key, row in before.items() if "turn" not in row
    }
    assert not {"turn", "conversation", "prompt_ids"} & {name for row in rows.values() for name in row}
    told = json.loads((tmp_path / "run/run.json").read_text())
    assert "turns" not in told["identity"]
    assert told["data"]["unasked_turns"] > 0
    assert "by_turn" not in summary(tmp_path / "run")
    again = call("run", "--resume", run, "--turns", "first")
    assert again.code == 2
    assert "turns: own -> (absent)" in again.err


@pytest.mark.parametrize(
    ("typed", "flag"),
    [(("--shard", "1/2"), "--shard"), (("--until", "ci=5%"), "--until"), (("--on", "ray"), "--on")],
)
def test_what_conversations_cannot_be_put_into_is_refused(
    tmp_path: Path, typed: tuple[str, ...], flag: str
) -> None:
    if flag == "--on":
        pytest.importorskip("ray")
    flags = tuple(word for word in RUN if word not in ("--remeasure", "0"))
    refused = call(*flags, "--limit", "4", *typed, "--out", tmp_path / "run")
    assert refused.code == 2, refused.err
    assert flag in refused.err
    assert "--turns first" in refused.err
    assert not (tmp_path / "run").exists()


def test_who_asks_no_later_turns_says_so() -> None:
    settings = {"task": "mt-bench", "limit": 1, "device": "cpu"}
    assert len(plan(resolve(settings)).prompts) == 1
    with pytest.raises(UsageError, match="asked by `run` alone"):
        plan(resolve({**settings, "turns": "own"}))


def test_turns_that_may_not_fit_are_asked_of_no_arm_and_counted() -> None:
    settings = {"task": "mt-bench", "limit": 3, "device": "cpu"}
    fitting = plan(resolve({**settings, "max_new_tokens": 1300}), later_turns=True)
    assert (len(fitting.prompts), fitting.data.provenance["unfitting_turns"]) == (6, 0)
    assert fitting.longest > 1300
    tight = plan(resolve({**settings, "max_new_tokens": 2030}), later_turns=True)
    assert [prompt.conversation for prompt in tight.prompts] == [None] * 3
    assert (tight.data.provenance["own_turns"], tight.data.provenance["unfitting_turns"]) == (0, 3)
    assert "unasked_turns" not in tight.data.provenance


def chatting(folder: Path) -> Path:
    model = make(config_of("llama", num_hidden_layers=1, max_position_embeddings=1024))
    save(model, folder, make_tokenizer(chat_template=CHAT_TEMPLATE))
    return folder


def test_a_file_of_conversations_goes_through_the_template_with_own_answers(tmp_path: Path) -> None:
    said = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "the file's"},
        {"role": "user", "content": "Two?"},
    ]
    rows = [
        {"id": "m", "messages": said, "reference": ["first", "second"]},
        {"id": "t", "turns": ["A?", "B?", "C?"]},
    ]
    path, model = tmp_path / "talk.jsonl", chatting(tmp_path / "model")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ("--target", model, "--draft", model, "--max-new-tokens", "6", "--k", "2", "--sampling", "greedy")
    done = call("run", path, "--turns", "own", *flags, *ALONE, "--remeasure", "0", "--out", tmp_path / "run")
    assert done.code == 0, done.err
    found = by_key(tmp_path / "run")
    assert {key[0] for key in found} == {"m", "m/2", "t", "t/2", "t/3"}
    settings = {"task": str(path), "turns": "own", "target": model, "draft": model, "device": "cpu"}
    asked = plan(resolve(settings), later_turns=True).tokenizer
    for arm in ("ars-greedy", "sps-k2-greedy"):
        answer = {name: found[name, 0, arm]["text"] for name in ("m", "t", "t/2")}
        wanted = {
            "m/2": [*said[:2], reply(answer["m"]), said[3]],
            "t/3": [user("A?"), reply(answer["t"]), user("B?"), reply(answer["t/2"]), user("C?")],
        }
        for name, messages in wanted.items():
            assert found[name, 0, arm]["prompt_ids"] == asked.conversation(messages), name
    with RunStore.open(tmp_path / "run") as store:
        prompts = {prompt.example_id: prompt for prompt in store.prompts()}
    assert (prompts["m"].reference, prompts["m/2"].reference, prompts["t/3"].reference) == (
        "first",
        "second",
        "",
    )
    assert (prompts["t/3"].turn, prompts["t/3"].conversation, prompts["t/3"].text) == (3, "t", "C?")


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def reply(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}
