"""``spsbench audit`` on texts that transformers wrote: right ones pass, wrong ones are found."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.commandline import Cli
from support.foreign_texts import TOKENS, written

from spsbench.base.paths import mini_dir
from spsbench.base.protocol import Described
from spsbench.parts.audit.course import print_rows
from spsbench.report import bound

TARGET = ("--target", mini_dir() / "target", "--dtype", "float32")


def save(path: Path, rows: list[dict[str, Any]]) -> Path:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def test_the_targets_own_text_passes_and_leakage_is_bounded(cli: Cli, tmp_path: Path) -> None:
    result = cli("audit", save(tmp_path / "own.jsonl.gz", written()), "--json")
    assert result.code == 0, result.err
    facts = json.loads(result.out)
    assert (facts["verdict"], facts["impossible"], facts["texts"]) == ("ok", 0, 48)
    assert facts["samplings"] == {"temperature 1": 48}
    assert facts["leakage"]["bound"] < 0.1
    limit = bound(facts["leakage"]["bound"])
    said = " ".join(result.err.split())
    assert f"Consistent with embedded:mini/target: no sign of a leak above {limit}" in said


@pytest.mark.thorough_but("wrong0")
@pytest.mark.parametrize(
    ("wrong", "draft"),
    [
        ({"leak": 0.2}, True),
        ({"leak": 1.0}, False),
        ({"temperature": 0.7}, False),
        ({"temperature": 1.3}, False),
    ],
)
def test_other_distributions_are_found(cli: Cli, tmp_path: Path, wrong: Any, draft: bool) -> None:
    """Negative controls: a leak needs the draft to be seen while it is small; a temperature does not."""
    models = () if draft else TARGET
    result = cli("audit", save(tmp_path / "wrong.jsonl", written(**wrong)), *models)
    assert result.code == 4
    assert "not distributed as" in result.err
    assert "alarm" in result.out


def test_greedy_text_is_the_best_token_everywhere(cli: Cli, tmp_path: Path) -> None:
    rows = written(temperature=0)[:8]
    path = save(tmp_path / "greedy.jsonl", [row | {"sampling": {"temperature": 0}} for row in rows])
    right = cli("audit", path, *TARGET)
    assert right.code == 0, right.err
    assert "each token is the target's best" in " ".join(right.err.split())
    rows[3]["completion_ids"][5] = 7
    wrong = cli("audit", save(tmp_path / "changed.jsonl", rows), *TARGET, "--temperature", "0", "--json")
    assert wrong.code == 4
    place = json.loads(wrong.out)["first_impossible"]
    assert (place["line"], place["index"], place["token_id"]) == (4, 5, 7)
    assert place["gap"] > 0


def test_a_token_outside_the_nucleus_is_impossible(cli: Cli, tmp_path: Path) -> None:
    """Text of the whole distribution, said to be of a nucleus."""
    path = save(tmp_path / "whole.jsonl", written()[:8])
    result = cli("audit", path, *TARGET, "--top-p", "0.5", "--json")
    assert result.code == 4
    assert json.loads(result.out)["impossible"] > 8


def test_an_engines_limits_stand_last_under_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    limits = [
        "It does not report by which rule it verifies draft tokens, nor in what precision it runs.",
        "Slow.",
    ]
    described = Described("llama.cpp", "b1", limits=limits)
    row: Any = SimpleNamespace(described=described, result=SimpleNamespace(cannot=None))
    wanted: Any = SimpleNamespace(json=False, quiet=False)
    print_rows([row], "mini, xsum", None, {"rows": []}, wanted, ["Scored again: the same verdicts."])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    (_, after) = shown.split("Scored again: the same verdicts.\n\nLimits of llama.cpp b1:\n")
    assert [line[:2] for line in after.splitlines()] == ["* ", "  ", "* "]
    assert " ".join(after.split()) == " ".join(f"* {limit}" for limit in limits)


def test_too_little_is_no_evidence(cli: Cli, tmp_path: Path) -> None:
    result = cli("audit", save(tmp_path / "one.jsonl", [{"prompt": "Article", "completion": " a"}]))
    assert result.code == 0, result.err
    assert "No evidence either way: only 1 positions" in result.err
    assert "1 texts came without ids" in result.out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1 of bad.jsonl is not JSON"),
        ('{"prompt_ids": [5]}', "neither completion_ids nor completion"),
        ('{"prompt_ids": [5], "completion_ids": [1024]}', "holds 1024, and the target has 1024 tokens"),
        ('{"prompt_ids": [5], "completion_ids": [1.5]}', "not a list of whole numbers"),
        ('{"prompt_ids": [], "completion_ids": [5]}', "the prompt is empty"),
        (json.dumps({"prompt_ids": [5] * 4096, "completion_ids": [5]}), "4097 tokens do not fit"),
        (
            '{"prompt": "a", "completion": "b", "sampling": {"top_p": 2}}',
            "top_p: input should be less than or equal to 1, got 2",
        ),
        ('{"prompt": "a", "completion": "b", "sampling": "greedy"}', "must be an object, got greedy"),
        ("", "bad.jsonl is empty"),
    ],
)
def test_bad_lines_are_named_before_anything_loads(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    monkeypatch.setattr("spsbench.models.loading.load", None)
    Path("bad.jsonl").write_text(line + "\n")
    result = cli("audit", "bad.jsonl")
    assert result.code == 2
    assert said in " ".join(result.err.split())


def test_tokens_are_counted(cli: Cli, tmp_path: Path) -> None:
    result = cli("audit", save(tmp_path / "own.jsonl", written()[:2]), "--json")
    assert json.loads(result.out)["tokens"] == 2 * TOKENS
