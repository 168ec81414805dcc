"""What follows measuring: scores, tables, the summary and the report."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from typing import Any

from spsbench.analysis.summary import summarise
from spsbench.records import Sample
from spsbench.report.markdown import render
from spsbench.runner.plan import Plan
from spsbench.runner.vocabulary import TokenReader, token_texts
from spsbench.store import RunStore, read_frames

_BATCH = 256


def score(plan: Plan, store: RunStore, announce: Callable[[int], None]) -> None:
    """Score every finished sample that has no score yet, in batches that are kept as they come."""
    references = {prompt.example_id: prompt for prompt in store.prompts()}
    unscored = [sample for sample in store.samples() if sample.error is None and not sample.scores]
    if not unscored:
        return
    announce(len(unscored))
    for start in range(0, len(unscored), _BATCH):
        batch: list[Sample] = unscored[start : start + _BATCH]
        prompts = [references[sample.example_id] for sample in batch]
        for sample, scores in zip(
            batch, plan.task.score(prompts, [s.generation.text for s in batch]), strict=True
        ):
            store.append_scores(sample.key, scores)


def conclude(store: RunStore, tokenizer: TokenReader) -> dict[str, Any]:
    """Derive tables, summary and report from the journal; the content of ``summary.json``.

    The tokenizer reads the ids of traced tokens, so that a report needs none.
    """
    store.write_parquet()
    frames = read_frames(store.directory)
    store.note(token_texts=token_texts(frames.tokens["token_id"].unique(), tokenizer))
    info = store.run_info()
    summary = summarise(frames.samples, frames.loops, info)
    store.write_summary(summary)
    store.write_report(render(summary, info))
    return summary


def peak_memory_bytes() -> int:
    """Largest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
