"""Files that somebody else wrote: each value in each place is read, or refused by file and field."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import Cli, Result
from support.walking import WRONG, changed, not_waiting, places

from spsbench.base.errors import UsageError
from spsbench.base.files import parse_json
from spsbench.base.paths import mini_dir
from spsbench.store.schema import read_run, read_summary
from spsbench.store.shape import fault_of
from spsbench.store.summary_types import Summary


@pytest.fixture
def received(finished: tuple[Path, Result], tmp_path: Path) -> Path:
    """A run to be changed."""
    return shutil.copytree(finished[0], tmp_path / "received")


Reader = Callable[[Path], Any]


@pytest.mark.parametrize(("name", "read"), [("run.json", read_run), ("summary.json", read_summary)])
def test_each_value_in_each_place_is_read_or_refused_by_its_field(
    cli: Cli, received: Path, name: str, read: Reader
) -> None:
    """Of the wrong values some in each place, in turns; of what is read some go through a report."""
    whole = json.loads((received / name).read_text())
    wrong, refused, read_all_the_same = [*WRONG.items()], [], []
    for number, place in enumerate([*places(whole)][:: 1 if name == "run.json" else 4]):
        for kind, value in (wrong[(number + step) % len(wrong)] for step in (0, 7)):
            text = changed(whole, place, value)
            (received / name).write_text(text)
            try:
                read(received)
            except UsageError as problem:
                refused.append((place, kind, str(problem)))
            else:
                read_all_the_same.append((place, kind, text))
    for place, kind, said in refused:
        assert f"{name} " in said, (place, kind)
        if kind != "3,000 levels" and len(place) < 3 and place[0] != "schema_version":
            assert str(place[0]) in said, (place, kind)
    assert min(len(refused), len(read_all_the_same)) > 20
    for place, kind, text in read_all_the_same[:: len(read_all_the_same) // 6]:
        (received / name).write_text(text)
        for command in (("report", received), ("list", "runs", received)):
            answer = cli(*command, "--json")
            assert answer.code == 0, (place, kind, command, answer.err)


def test_an_untouched_run_is_read(cli: Cli, received: Path) -> None:
    for command in (("report", "--json"), ("list", "runs"), ("export", "--to", "lm-eval"), ("score",)):
        answer = cli(*command, received)
        assert (answer.code, "damaged" in answer.out) == (0, False), answer.err


@pytest.mark.parametrize(
    ("place", "value", "command"),
    [
        (("arms", 0, "batch"), {}, ("compare", "A", "A")),
        (("arms", 0, "drafter"), 0.5, ("compare", "A", "A")),
        (("arms", 0, "params"), [1], ("report", "A")),
        (("arms", 0, "params", "temperature"), "x", ("report", "A")),
        (("identity",), ["x"], ("report", "A")),
        (("models", "target", "self_test"), ["x"], ("run", "--resume", "A")),
        (("environment",), ["x"], ("report", "A")),
        (("proof", "arms"), [0.5], ("report", "A", "--json")),
        (("energy",), {"source": {}}, ("report", "A")),
        (("data",), {"split_size": "x"}, ("export", "A", "--to", "every-eval-ever")),
        (("token_texts",), {"5": None}, ("report", "A", "--html")),
        (("shard",), "one/two", ("merge", "A", "A", "--out", "merged")),
        (("shard",), "1/999999", ("merge", "A", "--out", "merged")),
    ],
)
def test_what_once_was_a_fault_is_refused(
    cli: Cli, received: Path, place: tuple[str | int, ...], value: Any, command: tuple[str, ...]
) -> None:
    path = received / "run.json"
    path.write_text(changed(json.loads(path.read_text()), place, value))
    answer = cli(*(received if word == "A" else word for word in command))
    assert answer.code == 2, answer.err
    assert "run.json is damaged" in answer.err
    assert str(place[0]) in answer.err


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt_ids", [-1]),
        ("prompt_ids", ["x"]),
        ("prompt", 5),
        ("reference", None),
        ("turn", "x"),
        ("other_references", "x"),
        ("example_id", "\ud800"),
    ],
)
def test_a_prompt_is_refused_by_line_and_field(cli: Cli, received: Path, field: str, value: Any) -> None:
    path = received / "prompts.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, json.dumps(json.loads(lines[0]) | {field: value})]) + "\n")
    answer = cli("score", received)
    assert answer.code == 2
    assert "prompts.jsonl is damaged" in answer.err
    assert field == "example_id" or f"line {len(lines) + 1}: {field}" in answer.err


def test_an_export_does_not_believe_the_summary(cli: Cli, received: Path) -> None:
    path = received / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rows": [], "complete": False}))
    assert cli("export", received, "--to", "lm-eval").code == 0
    assert len([*(received / "lm-eval").iterdir()]) == 2


@pytest.mark.parametrize("task", ["..", "../..", "/tmp"])
def test_an_export_stays_in_its_folder(cli: Cli, received: Path, tmp_path: Path, task: str) -> None:
    path = received / "run.json"
    told = json.loads(path.read_text())
    told["models"]["target"]["name"] = f"{task}/{task}"
    path.write_text(json.dumps(told | {"task": task}))
    before = {*tmp_path.rglob("*")}
    assert cli("export", received, "--to", "every-eval-ever", "--out", tmp_path / "out" / "deep").code == 0
    new = {*tmp_path.rglob("*")} - before
    assert all(each.is_relative_to(tmp_path / "out") for each in new if each.parent != received), new


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": [NaN]}', r"a\[0\] is nan, no finite number"),
        ('{"a": {"b": 1e999}}', r"a\.b is inf, no finite number"),
        ('{"a": -9223372036854775809}', "a is a number of 19 digits"),
        ("[" * 101 + "]" * 101, "has more than 100 levels"),
        ("[" * 5000 + "]" * 5000, "it has more than 100 levels"),
        (f"[{'[],' * 1_000_000}[]]", "it has more than 1,000,000 values"),
    ],
)
def test_json_is_bounded(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_json(text)
    with pytest.raises(ValueError, match=said):
        parse_json(text.encode())


def test_json_within_the_bounds_is_read() -> None:
    content: Any = {"largest": 2**63 - 1, "small": 1e-300}
    for _ in range(98):
        content = [content]
    assert parse_json(json.dumps(content)) == content


def test_the_types_of_a_summary_find_what_is_wrong_in_a_list() -> None:
    assert fault_of({"rows": [{"k": 4}, {"k": "x"}]}, Summary) == "rows[1].k is x, not a whole number"
    assert fault_of({"rows": [{"k": 4, "speedup": {"ratio": None, "low": 1}}]}, Summary) is None


def pipe_for(place: Path) -> None:
    place.unlink(missing_ok=True)
    os.mkfifo(place)


def pair(folder: Path, **changes: str) -> Path:
    """A pair of the embedded models, as a file, with a copy of the target to be changed."""
    shutil.copytree(mini_dir() / "target", folder / "model")
    path = folder / "pair.yaml"
    models = {"target": str(folder / "model"), "draft": "embedded:mini/draft"}
    path.write_text(yaml.safe_dump(models | changes))
    return path


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("pair.yaml", ("--pair", "pair.yaml")),
        ("pair.yaml", ("--config", "pair.yaml")),
        ("prompts.jsonl", ("prompts.jsonl",)),
        ("prompts.txt", ("prompts.txt",)),
        ("data.jsonl", ("xsum", "--data", "data.jsonl")),
        ("data.parquet", ("xsum", "--data", "data.parquet")),
        ("task.yaml", ("task.yaml",)),
        ("grammar.json", ("--process", "grammar=grammar.json")),
        ("words.txt", ("--process", "bad_words=words.txt")),
        ("map.json", ("--backend", "torch", "--device-map", "map.json")),
        ("model/config.json", ("--pair", "pair.yaml")),
        ("model/tokenizer.json", ("--pair", "pair.yaml")),
        ("model/generation_config.json", ("--pair", "pair.yaml")),
        ("model/model.safetensors", ("--pair", "pair.yaml")),
        ("model/more.json", ("--pair", "pair.yaml")),
        ("head/draft.json", ("--drafter", "heads:from=head")),
        ("head/config.json", ("--drafter", "heads:from=head")),
        ("head/model.safetensors", ("--drafter", "heads:from=head")),
        ("model/draft.json", ("--draft", "model")),
    ],
)
def test_a_pipe_is_not_waited_for(cli: Cli, tmp_path: Path, name: str, command: tuple[str, ...]) -> None:
    pair(tmp_path)
    (tmp_path / "head").mkdir()
    if name != "head/config.json":
        (tmp_path / "head" / "draft.json").write_text("{}")
    pipe_for(tmp_path / name)
    with not_waiting():
        answer = cli("run", *command, "--limit", "1", "--threads", "1", "--no-proof", "--max-new-tokens", "2")
    assert answer.code in (2, 3), answer.err
    assert "error: " in answer.err
    assert "fault of spsbench" not in answer.err


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--samples", "100001"),
        ("--limit", "100000001"),
        ("--max-new-tokens", "10000001"),
        ("--k", "65"),
        ("--top-k", str(2**31)),
        ("--sampling", "beam:width=1025"),
        ("--trace", "100000001"),
    ],
)
def test_a_slip_of_the_keyboard_is_refused_by_flag_value_and_end(cli: Cli, flag: str, value: str) -> None:
    if flag == "--trace":
        flag, value = "--set", f"trace={value}"
    answer = cli("run", "xsum", flag, value)
    assert answer.code == 2
    assert value.rpartition("=")[2] in " ".join(answer.err.split())


def test_arms_are_counted_before_they_are_made(cli: Cli) -> None:
    answer = cli("run", "xsum", "--k", "1..64", "--batch", ",".join(map(str, range(1, 100))))
    assert answer.code == 2
    assert "--arms: the run would have 6,336 arms or more" in " ".join(answer.err.split())


def test_notes_are_some_pages(cli: Cli, tmp_path: Path) -> None:
    pair(tmp_path, notes="x" * 10_001)
    answer = cli("run", "--pair", "pair.yaml")
    assert answer.code == 2
    assert "notes must be text of at most 10,000 characters" in " ".join(answer.err.split())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: " + "[" * 100_000 + "]" * 100_000, "more than 100 levels"),
        ("a: [" + "[]," * 50_000 + "]", "more than 50,000 values"),
        ("a: " + "x" * (1 << 20), "more than 1 MiB"),
    ],
)
def test_settings_that_would_end_the_process_are_refused(cli: Cli, text: str, said: str) -> None:
    Path("settings.yaml").write_text(text)
    answer = cli("run", "--config", "settings.yaml")
    assert answer.code == 2
    assert said in " ".join(answer.err.split())


def test_a_configuration_alone_is_an_ordinary_file(cli: Cli, tmp_path: Path) -> None:
    pipe_for(tmp_path / "config.json")
    with not_waiting():
        answer = cli("bench", "--target", "config.json", "--draft", "config.json", "--seconds", "1")
    assert answer.code == 3
    assert "config.json cannot be read (it is no ordinary file)" in " ".join(answer.err.split())
