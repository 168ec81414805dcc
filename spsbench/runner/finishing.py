"""The end of a run: outputs scored, tables, summary and report derived."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Protocol

from spsbench.base.errors import UsageError
from spsbench.base.records import Prompt, Sample
from spsbench.report.sections import render
from spsbench.stats.corpus import Recorded, RecordedFigure, corpus_metrics, outputs_sha256, shared_prompts
from spsbench.stats.speedup import finished
from spsbench.stats.summary import summarise
from spsbench.store import Key, RunStore, read_frames, write_summary
from spsbench.store.summary_types import Summary
from spsbench.tasks.metrics.kind import MetricKind
from spsbench.tasks.task import Task

if TYPE_CHECKING:
    import pandas as pd


class TokenReader(Protocol):
    """The half of a tokenizer that is needed here."""

    def encode(self, text: str, *, special: bool) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


def token_texts(ids: Iterable[int], tokenizer: TokenReader) -> dict[str, str]:
    """Return the text of each id by the id's digits; empty for special tokens.

    Each is read after an ``a``: some tokenizers drop the space before the first word they decode. A
    part of a character reads as U+FFFD.
    """
    anchor = tokenizer.encode("a", special=False)
    before = tokenizer.decode(anchor)
    return {
        str(token): tokenizer.decode([*anchor, token]).removeprefix(before)
        for token in sorted({*map(int, ids)})
    }


_BATCH = 256

Scores = Iterator[tuple[Key, dict[str, float]]]
Scorer = Callable[[Task, Sequence[Sample], Mapping[str, Prompt]], Scores]
"""Scores samples, given the prompts by example, and yields the scores of each by its key."""


def score_here(task: Task, samples: Sequence[Sample], prompts: Mapping[str, Prompt]) -> Scores:
    """Score in this process, in batches; see ``Scorer``."""
    for start in range(0, len(samples), _BATCH):
        batch = samples[start : start + _BATCH]
        batch_prompts = [prompts[sample.example_id] for sample in batch]
        scores = task.score(batch_prompts, [sample.generation.text for sample in batch])
        yield from zip((sample.key for sample in batch), scores, strict=True)


def score(
    task: Task,
    store: RunStore,
    announce: Callable[[int], None],
    *,
    again: bool = False,
    scorer: Scorer = score_here,
) -> None:
    """Score every finished sample that has no score yet; what comes is kept at once.

    Figures of a whole corpus that no sums give are computed last, and noted for each arm.
    """
    if task.headline is None:
        return
    references = _references(store)
    due = unscored(task, store, again=again)
    if due:
        announce(len(due))
        for key, scores in scorer(task, due, references):
            store.append_scores(key, scores)
    done = [sample for sample in store.samples() if sample.error is None]
    _note_figures(store, _corpus_figures(task, done, references))


def _references(store: RunStore) -> dict[str, Prompt]:
    prompts = {prompt.example_id: prompt for prompt in store.prompts()}
    if strangers := {example for example, _, _ in store.done()} - prompts.keys():
        why = f"{store.directory} holds a sample of {min(strangers)!r}, which is not one of its prompts."
        raise UsageError(why, flag="RUN", remedy="Restore prompts.jsonl.")
    return prompts


def unscored(task: Task, store: RunStore, *, again: bool = False) -> list[Sample]:
    """Return the finished samples that ``score`` would score; arguments are its own."""
    if task.headline is None:
        return []
    references = _references(store)
    return [
        sample
        for sample in store.samples()
        if sample.error is None
        and task.is_scored(references[sample.example_id])
        and (again or not sample.scores)
    ]


def _note_figures(store: RunStore, figures: Mapping[str, Recorded]) -> None:
    if figures:
        store.note(corpus_figures={**(store.run_info().get("corpus_figures") or {}), **figures})


def _corpus_figures(
    task: Task, done: Sequence[Sample], references: Mapping[str, Prompt]
) -> Mapping[str, Recorded]:
    """By metric the figures of each arm's outputs, for metrics that give no sums.

    Where arms finished different prompts, also of the prompts that all of them have.
    """
    kinds = [kind for kind in task.metrics if kind.corpus is not None]
    by_arm: dict[str, list[Sample]] = {}
    for sample in done if kinds else ():
        if sample.generation.tokens:
            by_arm.setdefault(sample.arm, []).append(sample)
    scored = {
        arm: {sample.example_id for sample in arm_samples if task.is_scored(references[sample.example_id])}
        for arm, arm_samples in by_arm.items()
    }
    shared = shared_prompts(scored)
    by_metric: dict[str, dict[str, Any]] = {kind.name: {} for kind in kinds}
    for kind, (arm, arm_samples) in product(kinds, by_arm.items()):
        figures: dict[str, RecordedFigure] = {}
        for part in (
            [arm_samples]
            if shared is None
            else [arm_samples, [one for one in arm_samples if one.example_id in shared]]
        ):
            due = [sample for sample in part if sample.example_id in scored[arm]]
            if due:
                due_prompts = [references[sample.example_id] for sample in due]
                figure = task.corpus_figure(kind, due_prompts, [sample.generation.text for sample in due])
                covered = outputs_sha256((sample.example_id, sample.sample_index) for sample in part)
                figures[covered] = {"figure": figure, "low": None, "high": None}
        if scored[arm]:
            by_metric[kind.name][arm] = figures
    return by_metric


def _figures_of_files(
    samples: pd.DataFrame, info: Mapping[str, Any], kinds: Sequence[MetricKind]
) -> dict[str, Recorded]:
    """Figures and intervals by metrics whose file a report does not run."""
    by_arm = {str(arm): arm_samples for arm, arm_samples in finished(samples).groupby("arm", sort=False)}
    reportable = corpus_metrics(info)
    return {
        name: metric.computed(by_arm)
        for name, metric in corpus_metrics(info, kinds).items()
        if metric.value is not None and reportable[name].value is None
    }


def finalize(store: RunStore, tokenizer: TokenReader | None, task: Task | None = None) -> Summary:
    """Derive tables, summary and report from the journal; return the content of ``summary.json``."""
    store.write_parquet()
    frames = read_frames(store.directory)
    if tokenizer is not None:
        store.note(token_texts=token_texts(frames.tokens["token_id"].unique(), tokenizer))
    kinds = () if task is None else task.metrics
    _note_figures(store, _figures_of_files(frames.samples, store.run_info(), kinds))
    info = store.run_info()
    summary = summarise(frames.samples, frames.loops, info, frames.evidence, kinds)
    write_summary(store.directory, summary)
    store.write_report(render(summary, info))
    return summary


def peak_memory_bytes() -> int:
    """Largest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
