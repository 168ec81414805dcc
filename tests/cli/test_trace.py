from __future__ import annotations

import io
import json
import re
import time
from pathlib import Path

import pytest
from support.commandline import Cli

from spsbench.base import environment

PROMPT = "Article: A council met.\n\nSummarize the above article in one sentence.\nSummary:"
SHORT = ("--max-new-tokens", "12", "--threads", "1")


def test_a_prompt_is_continued_and_the_closing_lines_tell_how(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in environment.TAKERS:  # else a busy machine decides
        monkeypatch.setitem(environment.TAKERS, name, lambda: 0.0)
    result = cli("trace", PROMPT, *SHORT, "--k", "3", "--seed", "1")
    assert result.code == 0, result.err
    first, *_ = result.out.splitlines()
    assert first == "accepted  [-rejected-]  [+correction+]  [*bonus*]"
    assert re.search(
        r"mean_acceptance_length \d\.\d{3}  alpha_beta \S+  draft_acceptance_rate \S+\n", result.out
    )
    assert re.search(
        r"12 tokens in \d+ loops: SpS \(K=3\) \S+ ms/token, ArS \S+: \d+\.\d\dx here\.", result.out
    )
    assert all(len(line) <= 80 for line in result.out.splitlines())
    monkeypatch.setitem(environment.TAKERS, "waited_s", time.monotonic)
    again = cli("trace", PROMPT, *SHORT, "--k", "3", "--seed", "1")
    assert again.out.split("\n\n")[0] == result.out.split("\n\n")[0]  # the seed decides
    doubts = ["The times are not trusted: in each second" in each.out for each in (result, again)]
    assert doubts == [False, True]
    assert again.out.index("The times are not trusted") < again.out.index(" ms/token"), "before the times"


def test_a_draft_that_is_its_own_target_is_never_rejected(cli: Cli) -> None:
    from spsbench.base.paths import mini_dir

    folder = mini_dir() / "draft"
    result = cli("trace", PROMPT, "--target", folder, "--draft", folder, "--sampling", "greedy", *SHORT)
    assert result.code == 0, result.err
    shown = result.out.split("\n", 1)[1]
    assert "[-" not in shown
    assert "[+" not in shown
    assert "mean_acceptance_length 5.000" in shown


def test_the_prompt_may_come_from_stdin(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(PROMPT))
    by_pipe = cli("trace", "-", *SHORT)
    assert by_pipe.code == 0, by_pipe.err
    assert by_pipe.out.split("\n\n")[0] == cli("trace", PROMPT, *SHORT).out.split("\n\n")[0]


def test_a_grammar_holds_for_what_is_shown(cli: Cli, tmp_path: Path) -> None:
    """Without it this pair writes prose."""
    pytest.importorskip("llguidance")
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "boolean"}')
    for given in (("--process", f"grammar={schema}"), ()):
        result = cli("trace", PROMPT, *SHORT, "--temperature", "1", "--json", *given)
        assert result.code == 0, result.err
        written = [each["text"] for each in json.loads(result.out)["tokens"] if each["fate"] != "rejected"]
        assert "".join(written).startswith(("true", "false")) is bool(given)


def test_more_tokens_than_the_window_has_are_refused(cli: Cli) -> None:
    result = cli("trace", PROMPT, "--max-new-tokens", "4080")
    assert result.code == 2
    assert "error: PROMPT: a prompt of " in result.err
    assert "do not fit into the window" in result.err  # of this prompt alone, not of a task's
