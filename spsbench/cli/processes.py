"""``run --processes N``: the same run in several fresh processes, and one interval over all of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spsbench.cli.console import say
from spsbench.cli.interruption import Interrupted, continued_by, written
from spsbench.cli.measure import read_settings, require_unsplit
from spsbench.config import RunConfig
from spsbench.errors import IncompleteError, UsageError
from spsbench.files import make_folder, write_text
from spsbench.paths import results_dir
from spsbench.store import fresh_directory

_MOST = 64
_GRACE_S = 20.0
"""Less than the 30 s that Slurm and Kubernetes leave between SIGTERM and SIGKILL."""


def measure_processes(params: Mapping[str, Any]) -> None:
    """Carry a run out in N processes, one after another, and conclude over all.

    One process is one draw: memory layout, trials at load and clocks differ between processes, and
    the interval of a single run does not contain that. Each process leaves a complete run in
    ``process-i``; one that was there before is continued.
    """
    count = _count(params["processes"])
    if params["resume"] is not None:
        raise UsageError(
            f"{params['resume']} is given together with --processes.",
            flag="--resume",
            remedy="Give --out with the same directory: what is finished there is kept.",
        )
    config = read_settings({name: value for name, value in params.items() if name != "processes"})
    _require_fixed_prompts(config)
    require_unsplit(config, "--processes")
    out: Path = params["out"] or fresh_directory(results_dir(), config.task, config.pair.name)
    make_folder(out, "--out")
    settings = out / "settings.yaml"
    write_text(settings, config.to_yaml())
    again = ("run", "--processes", str(count), "--config", str(settings), "--out", str(out))
    continued_by(lambda: written(*again))
    for index in range(count):
        say(f"Process {index + 1} of {count}", quiet=params["quiet"])
        _measure_one(settings, out / f"process-{index}", quiet=params["quiet"])
    _conclude(out, count, config, as_json=params["json"], quiet=params["quiet"])


def _require_fixed_prompts(config: RunConfig) -> None:
    """Refuse what would give each process another number of prompts."""
    for flag, value in (("--until", config.until), ("--budget", config.budget_s)):
        if value is not None:
            raise UsageError(
                f"{value} is given together with --processes, which must all run the same prompts.",
                flag=flag,
                remedy="Give --limit in its place, or leave --processes out.",
            )


def _count(text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= _MOST:
        raise UsageError(f"it must be a whole number from 2 to {_MOST}, got {text}.", flag="--processes")
    return int(text)


def _measure_one(settings: Path, directory: Path, *, quiet: bool) -> None:
    command = [sys.executable, "-m", "spsbench", "run", "--config", str(settings), "--out", str(directory)]
    process = subprocess.Popen([*command, *(["--quiet"] if quiet else [])], stdout=subprocess.DEVNULL)
    try:
        code = process.wait()
    except KeyboardInterrupt as error:
        _end(process, error)
        raise
    if code != 0:
        raise IncompleteError(
            f"the process for {directory} ended with code {code}.",
            flag="--processes",
            remedy="Its message is above; the same command with --out goes on where it stopped.",
        )


def _end(process: subprocess.Popen[bytes], error: KeyboardInterrupt) -> None:
    """Let a process finish its interruption: Ctrl-C went to it too, another signal may not have."""
    patience_s = 0.0 if isinstance(error, Interrupted) else _GRACE_S
    for end in (process.terminate, process.kill):
        try:
            process.wait(patience_s)
            return
        except subprocess.TimeoutExpired:
            end()
        patience_s = _GRACE_S
    process.wait()


def _conclude(out: Path, count: int, config: RunConfig, *, as_json: bool, quiet: bool) -> None:
    """Summarise the tables of all processes as one, and show it as a run is shown."""
    import pandas as pd

    from spsbench.cli.measure import show_summary
    from spsbench.store import read_frames, write_summary
    from spsbench.store.conditions import condition, joined
    from spsbench.summary import summarise

    directories = [out / f"process-{index}" for index in range(count)]
    frames = [read_frames(directory) for directory in directories]
    infos = [_info(directory) for directory in directories]
    conditions = joined(infos, [f.samples["condition"] for f in frames])
    samples = pd.concat(
        [
            f.samples.assign(
                process=i,
                condition=[conditions.index(condition(infos[i], c)) for c in f.samples["condition"]],
            )
            for i, f in enumerate(frames)
        ],
        ignore_index=True,
    )
    loops = pd.concat([f.loops.assign(process=i) for i, f in enumerate(frames)], ignore_index=True)
    expected = int(infos[0]["expected_sequences"]) * count
    info = infos[0] | {"expected_sequences": expected, "conditions": conditions}
    summary = summarise(samples, loops, info)
    write_summary(out, summary)
    show_summary(summary, as_json=as_json, quiet=quiet)
    say(f"{count} processes of {config.task}; everything is in {out}", quiet=quiet)


def _info(directory: Path) -> dict[str, Any]:
    from spsbench.store import RunStore

    with RunStore.open(directory) as store:
        return store.run_info()
