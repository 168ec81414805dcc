"""``spsbench run``, ``sweep-k`` and ``merge``: settings, plan, execution with progress, the screen."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from spsbench.base.cluster import cluster_of, require_alone, require_cluster
from spsbench.base.errors import GateFailed, IncompleteError, UnavailableError, UsageError
from spsbench.base.files import make_folder, write_text
from spsbench.base.parts import of_part
from spsbench.base.paths import results_dir
from spsbench.cli.console import hint, load_in_runs, out, print_json, say, say_if_busy
from spsbench.cli.interruption import Interrupted, continued_by, written
from spsbench.cli.messages import (
    CHECKING,
    Everything,
    ProcessesFinished,
    ProcessesLeftOut,
    WayToFigures,
    WayToTimeAgain,
)
from spsbench.cli.options import NEEDED, Common, RunOptions, asks, option
from spsbench.cli.settings import (
    gates_of,
    read_settings,
    require_judgeable,
    require_material,
    require_possible,
    say_reading,
)
from spsbench.cli.values import concurrencies, number
from spsbench.config import RunConfig
from spsbench.config.together import refuse_together
from spsbench.store import fresh_directory
from spsbench.store.opening import require_usable
from spsbench.store.schema import PROCESS, RUN_FILE
from spsbench.tasks.spec import FIELD

if TYPE_CHECKING:
    from spsbench.store.summary_types import Summary

DEFAULT_KS = "0..7"
"""The lookaheads of ``sweep-k``: those of Figure 1 in Chen et al. 2023."""


@asks(RunOptions, needed=NEEDED)
def run(options: RunOptions) -> None:
    """Measure ArS and SpS side by side on a task or on your own prompts.

    Example: spsbench run xsum --k 2,4 --drafter model,lookup
    """
    start_run(options)


@asks(RunOptions, needed=NEEDED)
def sweep_k(options: RunOptions) -> None:
    """Measure several lookaheads K in one run, interleaved prompt by prompt.

    Example: spsbench sweep-k xsum --k 0,2,4,8
    """
    if not (options.k or options.resume):  # a run that is continued knows its lookaheads
        if options.concurrency is not None:
            concurrencies(options.concurrency)
        options = replace(options, k=DEFAULT_KS)
        refuse_together("sweep-k", vars(options))  # as if it had been typed
    start_run(options)


@dataclass(frozen=True, kw_only=True)
class MergeOptions(Common):
    """The options of ``merge``."""

    shard: list[Path] = option("SHARD...", "Directories of `run --shard 1/N` to `N/N`.", names="runs")
    out: Path = option("--out DIR", "Directory of the merged run.", required=True)
    allow_mixed: bool


@asks(MergeOptions)
def merge(options: MergeOptions) -> None:
    """Merge the shards of a run into the run that one process would have made.

    Example: spsbench merge shard-1 shard-2 --out whole
    """
    from spsbench.store.schema import read_run

    for directory in options.shard:
        read_run(directory, "SHARD")  # refused before torch is imported, as what merge_shards refuses is
    from spsbench.store.run import RunStore, merge_shards

    merge_shards(options.shard, options.out, allow_mixed=options.allow_mixed)
    from spsbench.runner import finalize

    with RunStore.open(options.out, writable=True) as store:
        summary = finalize(store, None)
    show_summary(summary, as_json=options.json, quiet=options.quiet)
    say(Everything(options.out), quiet=options.quiet)


def start_run(options: RunOptions) -> None:
    """Measure as the options of ``run`` or ``sweep-k`` say.

    That is here, in several processes, at servers, or the tasks of the field one after another.
    """
    named = options.resume or options.out
    if options.task == FIELD or (named is not None and (named / FIELD).is_dir()):
        require_alone("measurement")
        of_part("paper.field:measure_field")(options)
        return
    if options.concurrency is not None or options.processes is not None:
        require_alone("measurement")
    if options.concurrency is not None:
        of_part("load.command:measure_load")(options)
        return
    count = _process_count(options)
    gates = gates_of(options.fail_on, scores=not options.no_score)
    config = read_settings(options)
    known = require_possible(config, is_k_given=options.k is not None, typed=options)
    require_judgeable(known, gates)
    if count is None and named is not None and config.ranks == 1:  # of several processes the first will look
        require_usable(named)
    require_material(config, known[0])
    if count is not None:
        measure_processes(config, count, options, gates)
        return
    with among_processes(config) as leads:
        if not leads:
            return
        from spsbench.cli.progress import watching
        from spsbench.engines.arms import is_repeatable

        quiet, on = options.quiet, options.on
        address = None if on is None else require_cluster(on)
        repeated = on is None and config.remeasure_s != 0 and all(map(is_repeatable, known[1]))
        say_if_busy(load_in_runs(remeasured=repeated), quiet=quiet)
        say_reading(known[0], quiet=quiet)
        say(CHECKING, quiet=quiet)
        from spsbench.runner import execute, execute_on, plan
        from spsbench.stats.conditions import disturbance

        ready = plan(config, known, choose_engine=True, later_turns=True)
        hint(ready.recommendation, quiet=quiet)
        carry_out = execute if address is None else partial(execute_on, address)
        directory = named or fresh_directory(results_dir(), config.task, config.pair.name)
        spread = (*(() if on is None else ("--on", on)), *(("--unsafe-exec",) if config.unsafe_exec else ()))
        continued_by(lambda: resume_command(directory, *spread) if _has_samples(directory) else None)
        with _leaving_no_litter(directory, kept=named), watching(quiet=quiet) as watcher:
            outcome = carry_out(
                ready, directory, resume=named is not None, watcher=watcher, allow_mixed=options.allow_mixed
            )
        show_summary(outcome.summary, as_json=options.json, quiet=quiet)
        say(Everything(outcome.directory), quiet=quiet)
        contention = disturbance(outcome.summary)
        if contention is not None and not contention.decides:
            again = resume_command(outcome.directory, "--remeasure", "10min", *spread)
            say(WayToTimeAgain(contention.purpose, again), quiet=quiet)
        report = shlex.join(["spsbench", "report", str(outcome.directory), "--html"])
        say(WayToFigures(report), quiet=quiet)
        _judge(outcome.summary, gates, options.expect)
        if not outcome.complete:
            raise _incomplete(outcome.summary, directory, *spread)


def resume_command(directory: Path, *more: str) -> str:
    """The command that continues a run, as it can be typed here, with further arguments."""
    return written("run", "--resume", str(directory), *more)


def _process_count(options: RunOptions) -> int | None:
    """Of ``--processes``; what is not a number, hash or cluster is refused."""
    expected = options.expect
    if expected is not None and re.fullmatch(r"[0-9a-f]{8,64}", expected) is None:
        raise UsageError(
            f"{expected} is not a hash.",
            flag="--expect",
            remedy="Give the 16 digits that a run prints as the hash of all token ids, "
            "or at least 8 of them.",
        )
    if options.on is not None:
        cluster_of(options.on)
    if options.processes is None:
        return None
    return int(number(options.processes, "--processes", 2, 2, _MOST_PROCESSES, whole=True))


@contextmanager
def among_processes(config: RunConfig) -> Iterator[bool]:
    """Yield whether this process is to do the work: alone, or as the first one of a split target.

    The others have followed it to its end when they are told that they are not.
    """
    from spsbench.runner.ranks import among_ranks, follow

    with among_ranks(config) as ranks:
        leads = ranks is None or ranks.leads
        if ranks is not None and not leads and (code := follow(ranks)):
            raise typer.Exit(code)
        yield leads


def _judge(summary: Summary, gates: Sequence[str], expected: str | None) -> None:
    """Raise ``GateFailed`` for what ``--fail-on`` and ``--expect`` name and the run did not pass.

    Sequences that are missing are another error, and the hash is of all of them.
    """
    from spsbench.stats.conditions import gate_failures

    asked = [gate for gate in gates if gate != "incomplete"]
    failed = [f"{gate}: {reason}" for gate in asked for reason in gate_failures(summary, gate)]
    if failed:
        raise GateFailed(" ".join(failed), flag="--fail-on")
    found = summary["token_sha256"]
    if expected is not None and summary["complete"] and not (found or "").startswith(expected):
        hashed = f"hash to {found[: len(expected)]}" if found else "have no hash that all processes share"
        raise GateFailed(
            f"the token ids {hashed}, not to {expected}.",
            flag="--expect",
            remedy="`spsbench compare` of both runs shows the first token that differs.",
        )


def show_summary(summary: Summary, *, as_json: bool, quiet: bool) -> None:
    """Print a summary on stdout as tables or as JSON; with ``quiet`` no tables."""
    if as_json:
        print_json(summary)
    elif not quiet:
        from spsbench.report.sections import show

        show(summary, out())


@contextmanager
def _leaving_no_litter(directory: Path, *, kept: Path | None) -> Iterator[None]:
    """Remove what a run that measured nothing has put where nothing was, so that the next one finds it free.

    Args:
        directory: of the run.
        kept: the folder that the user named. What a run left there that was not refused, but failed, is for
            ``--resume``; a folder that was there stays. None if the directory is ours.
    """
    stays = kept is not None and kept.is_dir()
    was_empty = not directory.is_dir() or not any(directory.iterdir())
    try:
        yield
    except BaseException as error:
        refused = isinstance(error, UsageError | UnavailableError)
        if was_empty and not _has_samples(directory) and (refused or kept is None):
            shutil.rmtree(directory, ignore_errors=True)
            if stays:
                directory.mkdir(exist_ok=True)
        raise


def _has_samples(directory: Path) -> bool:
    journal = directory / "samples.jsonl"
    return journal.is_file() and journal.stat().st_size > 0


def _incomplete(summary: Summary, directory: Path, *more: str) -> IncompleteError:
    """How many sequences failed or are missing, and the error that most of them failed with."""
    from spsbench.store import read_frames

    failed, missing = (sum(row[name] for row in summary["rows"]) for name in ("failed", "missing"))
    errors = read_frames(directory).samples["error"].dropna().value_counts()
    most = ""
    if not errors.empty:
        text = next(iter(str(errors.index[0]).splitlines()), "").rstrip(".")
        most = f"; {errors.iloc[0]} with: {text}"
    again = resume_command(directory, *more)
    return IncompleteError(
        f"of the sequences {failed} failed and {missing} are missing{most}.",
        remedy=f"{directory / 'samples.jsonl'} says why; `{again}` tries them again.",
    )


_MOST_PROCESSES = 64
_GRACE_S = 20.0
"""Less than the 30 s that Slurm and Kubernetes leave between SIGTERM and SIGKILL."""


def measure_processes(config: RunConfig, count: int, options: RunOptions, gates: Sequence[str]) -> None:
    """Carry a run out in N processes, one after another, and conclude over those that finished.

    One process is one draw: memory layout and clocks differ between processes, and the interval of a
    single run does not contain that. Each process leaves a complete run in ``process-i``; one that was there
    before is continued. One that fails keeps no other from its turn, unless it could not even begin.
    """
    quiet, more = options.quiet, ["--allow-mixed"] if options.allow_mixed else []
    out = options.out or fresh_directory(results_dir(), config.task, config.pair.name)
    make_folder(out, "--out")
    settings = out / "settings.yaml"
    before = settings.read_text() if settings.is_file() else None
    write_text(settings, config.to_yaml())
    again = written("run", "--processes", str(count), "--config", str(settings), "--out", str(out))
    continued_by(lambda: again)
    codes: dict[Path, int] = {}
    for index in range(count):
        say(f"Process {index + 1} of {count}", quiet=quiet)
        directory = out / f"{PROCESS}{index}"
        try:
            codes[directory] = _exit_code_of_one_process(
                settings, directory, [*more, *(["--quiet"] if quiet else [])]
            )
        except UsageError:
            if before is not None:  # those that what is there was measured with
                write_text(settings, before)
            raise
        if codes[directory] != 0 and not (directory / RUN_FILE).is_file():
            break
    finished = [directory for directory, code in codes.items() if code == 0]
    if finished:
        summary = _conclude(out, finished, count, again)
        show_summary(summary, as_json=options.json, quiet=quiet)
        say(ProcessesFinished(len(finished), count, out), quiet=quiet)
        _judge(summary, gates, options.expect)
    if len(finished) < count:
        ends = [f"{directory} ended with code {code}" for directory, code in codes.items() if code != 0]
        raise IncompleteError(
            f"{count - len(finished)} of {count} processes did not finish: {', '.join(ends)}.",
            flag="--processes",
            remedy=f"Their messages are above; `{again}` goes on where they stopped.",
        )


def _exit_code_of_one_process(settings: Path, directory: Path, more: Sequence[str]) -> int:
    command = [sys.executable, "-m", "spsbench", "run", "--config", str(settings), "--out", str(directory)]
    process = subprocess.Popen([*command, *more], stdout=subprocess.DEVNULL)
    try:
        code = process.wait()
    except KeyboardInterrupt as error:
        _await_or_end(process, error)
        raise
    if code == UsageError.exit_code:
        why = f"the process for {directory} refused the settings."
        raise UsageError(why, flag="--processes", remedy="Its message is above.")
    return code


def _await_or_end(process: subprocess.Popen[bytes], error: KeyboardInterrupt) -> None:
    """Ctrl-C went to the process too, another signal may not have."""
    patience_s = 0.0 if isinstance(error, Interrupted) else _GRACE_S
    for end in (process.terminate, process.kill):
        try:
            process.wait(patience_s)
            return
        except subprocess.TimeoutExpired:
            end()
        patience_s = _GRACE_S
    process.wait()


def _conclude(out: Path, directories: Sequence[Path], count: int, command: str) -> Summary:
    """Summarise the tables of the processes that finished, of so many, as those of one run."""
    import pandas as pd

    from spsbench.report.sections import render
    from spsbench.stats.summary import summarise
    from spsbench.store import RunStore, read_frames, write_summary
    from spsbench.store.run import REPORT_FILE
    from spsbench.store.schema import condition, joined, of_any_board

    frames, infos = [], []
    for directory in directories:
        frames.append(read_frames(directory))
        with RunStore.open(directory) as store:
            infos.append(store.run_info())
    conditions = joined(infos, [f.samples["condition"] for f in frames])
    samples = [
        f.samples.assign(
            process=i,
            condition=[conditions.index(of_any_board(condition(info, c))) for c in f.samples["condition"]],
        )
        for i, (f, info) in enumerate(zip(frames, infos, strict=True))
    ]
    loops = [f.loops.assign(process=i) for i, f in enumerate(frames)]
    expected = int(infos[0]["expected_sequences"]) * len(directories)
    info = infos[0] | {"expected_sequences": expected, "conditions": conditions}
    info.pop("remeasured", None)  # of one process
    summary = summarise(pd.concat(samples, ignore_index=True), pd.concat(loops, ignore_index=True), info)
    if (unfinished := count - len(directories)) > 0:
        summary["complete"] = False
        summary["warnings"].insert(0, str(ProcessesLeftOut(unfinished, count)))
    write_summary(out, summary)
    write_text(out / REPORT_FILE, render(summary, info | {"command": command}))
    return summary
