"""What ``run`` and ``sweep-k`` do: plan, execute with progress, show."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.cli.console import out, print_json, say
from spsbench.cli.progress import watching
from spsbench.cli.resume import resume_command
from spsbench.cli.settings import gates_of, read_settings
from spsbench.errors import GateFailed, IncompleteError, UsageError
from spsbench.paths import results_dir
from spsbench.store import fresh_directory

if TYPE_CHECKING:
    from spsbench.runner import Plan


def measure(params: Mapping[str, Any]) -> None:
    """Carry out a run as the options ask.

    Raises:
        IncompleteError: some sequences failed; the results are shown all the same.
    """
    config = read_settings(params)
    expected = _expected(params["expect"])
    quiet: bool = params["quiet"]
    say("Checking task, data and models", quiet=quiet)
    from spsbench.runner import execute, plan

    ready = plan(config)
    _require_lossless_rules(ready, gates_of(params["fail_on"]))
    named: Path | None = params["resume"] or params["out"]
    directory = named or fresh_directory(results_dir(), config.task, config.pair.name)
    with _leaving_no_litter(directory, fresh=named is None), watching(quiet=quiet) as watcher:
        outcome = execute(
            ready,
            directory,
            resume=named is not None,
            watcher=watcher,
            allow_mixed=params["allow_mixed"],
        )
    show_summary(outcome.summary, as_json=params["json"])
    say(f"Everything is in {outcome.directory}", quiet=quiet)
    say(f"Figures and a page with every token: spsbench report {outcome.directory} --html", quiet=quiet)
    if not outcome.complete:
        raise _incomplete(outcome.summary, directory)
    _judge(outcome.summary, gates_of(params["fail_on"]))
    _require_tokens(outcome.summary, expected)


def _expected(text: str | None) -> str | None:
    """What ``--expect`` gives, checked before anything is loaded."""
    if text is None or re.fullmatch(r"[0-9a-f]{8,64}", text):
        return text
    raise UsageError(
        f"{text!r} is not a hash.",
        flag="--expect",
        remedy="Give the 16 digits that a run prints as the hash of all token ids, or at least 8 of them.",
    )


def _require_tokens(summary: dict[str, Any], expected: str | None) -> None:
    """Raise ``GateFailed`` unless the run wrote the tokens that ``--expect`` names."""
    found = summary["token_sha256"] or ""
    if expected is not None and not found.startswith(expected):
        raise GateFailed(
            f"the token ids hash to {found[: len(expected)]}, not to {expected}.",
            flag="--expect",
            remedy="`spsbench compare` of both runs shows the first token that differs.",
        )


def _require_lossless_rules(ready: Plan, gates: list[str]) -> None:
    """Refuse a gate on losslessness that a rule cannot pass, before anything is loaded."""
    from spsbench.decode.rules import rule_kind

    rules = {arm.rule.name for arm in ready.arms if arm.method == "sps"}
    lossy = sorted(name for name in rules if not rule_kind(name).lossless)
    if lossy and "lossless" in gates:
        raise UsageError(
            f"{', '.join(lossy)} is lossy by design and cannot pass the gate lossless.",
            flag="--fail-on",
            remedy="Leave the gate or the rule out.",
        )


def _judge(summary: dict[str, Any], gates: list[str]) -> None:
    """Raise ``GateFailed`` for what ``--fail-on`` names and the run did not pass."""
    from spsbench.analysis.gate import failures

    failed = [f"{gate}: {reason}" for gate in gates for reason in failures(summary, gate)]
    if failed:
        raise GateFailed(" ".join(failed), flag="--fail-on")


def show_summary(summary: dict[str, Any], *, as_json: bool) -> None:
    """Print a summary on stdout, as a table or as JSON."""
    if as_json:
        print_json(summary)
        return
    from spsbench.report.terminal import show

    show(summary, out())


@contextmanager
def _leaving_no_litter(directory: Path, *, fresh: bool) -> Iterator[None]:
    """Take away a directory of ours in which nothing was measured; tell how to continue any other."""
    try:
        yield
    except BaseException as error:
        if fresh and not _has_samples(directory):
            shutil.rmtree(directory, ignore_errors=True)
            if isinstance(error, KeyboardInterrupt):
                say("\nInterrupted before anything was measured.")
        elif isinstance(error, KeyboardInterrupt):
            say(f"\nInterrupted; nothing finished is lost. Continue with:\n  {resume_command(directory)}")
        raise


def _has_samples(directory: Path) -> bool:
    journal = directory / "samples.jsonl"
    return journal.is_file() and journal.stat().st_size > 0


def _incomplete(summary: dict[str, Any], directory: Path) -> IncompleteError:
    failed = sum(row["failed"] for row in summary["rows"])
    missing = sum(row["missing"] for row in summary["rows"])
    return IncompleteError(
        f"of the sequences {failed} failed and {missing} are missing.",
        remedy=f"{directory / 'samples.jsonl'} tells why; `{resume_command(directory)}` tries them again.",
    )
