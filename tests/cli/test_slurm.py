"""The script of docs/scale.md, run as Slurm would: a task for each index, and the merge behind them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from support.commandline import Cli

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
SMALL = (
    "--limit",
    "3",
    "--max-new-tokens",
    "6",
    "--set",
    "warmup=false",
    "--no-score",
    "--no-proof",
    "--quiet",
)
TASKS = 3


def scripts() -> tuple[str, str]:
    """The batch script, and the command line that merges."""
    found = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    script, merge = (text for text in found if "sbatch" in text.lower())
    words = shlex.split(merge)
    return script, words[words.index("--wrap") + 1]


def typed(script: str, folder: Path, index: int) -> list[str]:
    """What a shell makes of the script's ``spsbench``: its arguments, with the variables of an array task."""
    shims = folder / "bin"
    shims.mkdir(exist_ok=True)
    for name, body in (("srun", 'exec "$@"'), ("spsbench", 'printf "%s\\n" "$@" >> typed')):
        (shims / name).write_text(f"#!/bin/sh\n{body}\n")
        (shims / name).chmod(0o755)
    variables = {"SLURM_ARRAY_TASK_ID": str(index), "SLURM_ARRAY_TASK_COUNT": str(TASKS)}
    path = {"PATH": f"{shims}{os.pathsep}{os.environ['PATH']}", "SLURM_CPUS_PER_TASK": "1"}
    subprocess.run(["bash", "-c", script], cwd=folder, env=variables | path, check=True)
    arguments = (folder / "typed").read_text().splitlines()
    (folder / "typed").unlink()
    return arguments


@pytest.mark.thorough
def test_the_script_measures_every_shard_and_merge_makes_one_run(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, merge = scripts()
    assert f"--array=1-{TASKS}" in script
    assert len(script.splitlines()) <= 10
    monkeypatch.chdir(tmp_path)
    for index in range(1, TASKS + 1):
        arguments = typed(script, tmp_path, index)
        assert f"{index}/{TASKS}" in arguments
        done = cli(*arguments, *SMALL)
        assert done.code == 0, done.err
    program, *arguments = shlex.split(merge)
    assert program == "spsbench"
    done = cli(*arguments, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["complete"]
    lines = (tmp_path / "merged/samples.jsonl").read_text().splitlines()
    assert len(lines) == 6


@pytest.mark.thorough
def test_a_requeued_task_goes_on_where_it_was(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, _ = scripts()
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        done = cli(*typed(script, tmp_path, 1), *SMALL)
        assert done.code == 0, done.err
    assert len((tmp_path / "shards/1/samples.jsonl").read_text().splitlines()) == 2
