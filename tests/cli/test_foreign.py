"""Files of other tools on the command line: replayed, explained, audited or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.commandline import Cli
from support.foreign_files import BENCH, aiperf, guidellm, response, written
from support.foreign_texts import written as drawn

TARGET = ("--target", "embedded:mini/target")


def test_a_file_of_counts_is_explained_without_a_model(cli: Cli, tmp_path: Path) -> None:
    rows = [aiperf([9 - n % 3, 2, 2, 8 + n % 4], ("coding", "math")[n % 2]) for n in range(24)]
    path = written(tmp_path / "profile_export.jsonl", *rows)
    plain, asked = cli("replay", path), cli("replay", path, "--explain", "--json")
    assert (plain.code, asked.code) == (0, 0), asked.err
    assert "tokens per loop" in plain.out
    assert "It cannot say" in plain.out
    assert max(map(len, plain.out.splitlines())) <= 80
    facts = json.loads(asked.out)
    assert facts["format"] == "AIPerf"
    assert set(facts["definitions"]) == {"all", "coding", "math"}
    curve = cli("replay", path, "--curve", "--json", "--out", tmp_path / "curve")
    (shown,) = json.loads(curve.out)["curves"]
    (first, *_) = facts["definitions"]["all"]
    (point,) = shown["points"]
    assert point["acceptance_length"]["estimate"] == pytest.approx(first["value"]["estimate"])
    assert (tmp_path / "curve" / "acceptance.yaml").exists()


INPUTS = Path(__file__).parents[1] / "support/inputs"


def test_drafts_that_vary_in_length_are_called_so(cli: Cli) -> None:
    path = INPUTS / "drafts_none.jsonl"
    plain, asked, curve = (cli("replay", path, *more) for more in ((), ("--json",), ("--curve",)))
    assert (plain.code, curve.code) == (0, 0), plain.err
    shown = " ".join(plain.out.split())
    assert "K varies: 0 to 2 drafts per loop, 1.33 on average." in shown
    assert "1 0.333 2 of 4 0.500" in shown
    assert max(map(len, plain.out.splitlines())) <= 80
    assert json.loads(asked.out)["draft_lengths"]["offered"] == [4, 2]
    assert "K varies, to 2" in curve.out
    refused = cli("replay", INPUTS / "drafts_wrong_sum.jsonl")
    assert refused.code == 3
    assert "line 2 of" in refused.err
    assert "acceptance_histogram_by_draft_length.1 counts more kept" in " ".join(refused.err.split())


@pytest.mark.parametrize(
    ("rows", "more", "why"),
    [
        ([BENCH], ("--curve",), "cannot say: An interval"),
        ([response([1, 1, 1, 1], usage={"completion_tokens": 2})], (), "2 output tokens"),
        ([response([1, 1, 1, 1]), response([1, 1, 1, 1], model="other")], (), "several models"),
    ],
)
def test_what_does_not_follow_is_refused_and_nothing_written(
    cli: Cli, tmp_path: Path, rows: list[Any], more: tuple[str, ...], why: str
) -> None:
    path = written(tmp_path / "file.jsonl", *rows)
    refused = cli("replay", path, *(more or ("--curve",)), "--out", tmp_path / "curve")
    assert refused.code == 3
    assert why in refused.err
    assert not (tmp_path / "curve").exists()


@pytest.mark.thorough
def test_an_audit_takes_texts_where_a_tool_keeps_them(cli: Cli, tmp_path: Path) -> None:
    own = [(row["prompt_ids"], row["completion_ids"]) for row in drawn()[:24]]
    answers = [
        response([1, 0, 0, 1], choices=[{"prompt_token_ids": prompt, "token_ids": tokens}])
        for prompt, tokens in own
    ]
    result = cli("audit", written(tmp_path / "answers.jsonl", *answers), *TARGET, "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["texts"] == 24
    for row, tokens in zip(answers, own, strict=True):  # the control: other texts than the target's
        row["choices"][0]["token_ids"] = tokens[1][::-1]
    wrong = cli("audit", written(tmp_path / "wrong.jsonl", *answers), *TARGET)
    assert wrong.code == 4
    for rows, why in (
        ([BENCH], "generated_texts has no prompts"),
        ([guidellm({"messages": [1]})], "body.prompt"),
    ):
        refused = cli("audit", written(tmp_path / "none.json", *rows), *TARGET)
        assert refused.code == 3
        assert why in refused.err
