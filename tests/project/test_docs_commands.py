"""Every command that the documentation shows is one; those that the embedded pair can carry out run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.commandline import ABSENT, call
from support.docs_commands import (
    LAUNCHERS,
    ROOT,
    Command,
    Mention,
    commands,
    mentions,
    refused,
    shown,
    unknown,
)

SHOWN = commands()

NOT_RUN = {
    r"--target |--draft |--pair (?!mini)|^get |package:": "a model from a hub or a package index",
    r"openai:|openvino|llama-cpp|xllamacpp|onnxruntime-genai|mlx-lm|--engine transformers|my_engine": (
        "an engine or server of others; tests/cli/test_peers.py"
    ),
    r"--hardware": "configurations of the reader's; tests/parts/whatif/commands/test_hardware.py",
    r"--device cuda": "a GPU",
    r"--follow|^audit FILE": "others' files; tests/parts/audit/commands",
    r"^replay \w+\.(json|yaml)": "others' files; tests/cli/test_foreign.py",
    r"int8|int4": "the extra `large`; tests/cli/test_settings.py",
    r"--on ray|--shard": "workers; tests/cli/test_ray.py, tests/cli/test_slurm.py",
    r"--tensor-parallel": "processes; tests/cli/test_tensor_parallel.py",
    r"^paper|--protocol paper": "hours; tests/parts/paper/commands",
    r"^run field": "seven runs; tests/parts/paper/commands",
    r"^bench": "a minute of forwards; tests/parts/whatif/commands/test_bench.py",
    r"^verify": "minutes; tests/parts/verify/commands",
    r"^simulate": "run with what it prints; tests/parts/whatif/simulate/test_page.py",
    r"\bRUN\b|results/|^merge": "the reader's runs; tests/parts/whatif/commands, tests/cli/test_merge.py",
    r"--batch": "half a minute; tests/cli/test_batch.py",
    r"--expect": "a hash of more prompts; tests/cli/test_run.py",
    r"echo_drafter": "tests/project/test_extending.py",
    r"^doctor FOLDER": "a drafter of the reader's; tests/cli/test_drafter_folder.py",
}
"""Patterns of commands that are parsed but not carried out here, and what they need or what runs them."""

LITTLE = {"--limit": "1", "--max-new-tokens": "4", "--threads": "1", "--set": "warmup=false"}
"""In place of what a page says: a moment's work."""


def reason(command: Command) -> str | None:
    """Why a command is not carried out; None if it is."""
    text = " ".join(command.arguments)
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, text)), None)


RUN = sorted({command.arguments for command in SHOWN if reason(command) is None})


def test_the_pages_show_commands() -> None:
    assert {"README.md", "docs/extending.md", "examples/echo_drafter.py"} <= {c.page for c in SHOWN}
    assert {"run", "sweep-k", "replay", "verify", "bench"} <= {c.arguments[0] for c in SHOWN if c.arguments}
    assert all(not c.launcher or c.launcher[0] in LAUNCHERS for c in SHOWN)


def test_every_command_is_one_that_the_command_line_takes() -> None:
    assert {str(command): said for command in SHOWN if (said := refused(command))} == {}


def test_every_option_that_a_sentence_names_exists() -> None:
    assert len(mentions()) > 40
    assert [mention for mention in mentions() if unknown(mention)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("report --html", []),
        ("report --htlm", ["--htlm"]),
        ("run --k 4 --lookahead", ["--lookahead"]),
        ("rnu", ["rnu"]),
        ("--version", []),
    ],
)
def test_a_wrong_option_in_a_sentence_is_found(text: str, found: list[str]) -> None:
    assert unknown(Mention("a.md", text)) == found


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("spsbench run xsum --lookahead 4", "--lookahead"),
        ("spsbench rnu xsum", "rnu"),
        ("spsbench run xsum --k four", "four"),
        ("spsbench run xsum --temperature hot", "hot"),
        ("OMP_NUM_THREADS=1 .venv/bin/spsbench report results/x --pages", "--pages"),
        ("torchrun --nproc-per-node 2 -m spsbench run --tensor-parallel", "--tensor-parallel"),
    ],
)
def test_a_wrong_command_in_a_page_is_found(line: str, said: str, tmp_path: Path) -> None:
    text = f"A page.\n\n```\n{line}   # what it does\n```\n\n`spsbench run --not-code` in a sentence.\n"
    (command,) = shown(text, tmp_path / "page.md")
    assert said in (refused(command) or "")


def test_a_command_over_two_lines_and_one_before_a_pipe_are_read(tmp_path: Path) -> None:
    text = "    spsbench run xsum \\\n        --k 4\n    spsbench list --json | jq .\n    Try spsbench run\n"
    read = list(shown(text, tmp_path / "page.md"))
    assert [command.arguments for command in read] == [("run", "xsum", "--k", "4"), ("list", "--json")]


def test_nothing_is_left_out_for_a_reason_that_no_command_has() -> None:
    texts = [" ".join(command.arguments) for command in SHOWN]
    unused = [pattern for pattern in NOT_RUN if not any(re.search(pattern, text) for text in texts)]
    assert ABSENT or unused == []  # the commands of a deleted part are not among the texts
    named = {path for why in NOT_RUN.values() for path in re.findall(r"tests/[\w/]+\.py", why)}
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []


@pytest.mark.thorough_but(5)
@pytest.mark.parametrize("arguments", RUN, ids=" ".join)
def test_a_command_runs_on_the_embedded_pair(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(_where_a_reader_is(tmp_path))
    result = call(*_with_little(arguments))
    assert result.code == 0, result.err
    if arguments[:1] == ("run",):
        assert json.loads((tmp_path / "out/summary.json").read_text())["complete"]


def _where_a_reader_is(folder: Path) -> Path:
    """A folder with the examples and the files that pages name."""
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "prompts.jsonl").write_text('{"prompt": "The town council"}\n')
    (folder / "test.jsonl").write_text('{"question": "1 + 1?", "answer": "It is 2. #### 2"}\n')
    return folder


def _with_little(arguments: tuple[str, ...]) -> list[str]:
    """A run's arguments with `LITTLE` in place of what it says, and its folder."""
    if arguments[0] not in ("run", "sweep-k"):
        return list(arguments)
    kept = list(arguments)
    for option in LITTLE:
        if option in kept:
            at = kept.index(option)
            del kept[at : at + 2]
    chosen = "--id" in kept  # which is in place of --limit
    more = [word for pair in LITTLE.items() if not (chosen and pair[0] == "--limit") for word in pair]
    return [*kept, *more, "--set", "trace=0", "--no-score", "--no-proof", "--out", "out"]
