"""A run as lm-evaluation-harness logs its samples (0.4): a file for each arm, a line for each prompt."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base import write_rows

if TYPE_CHECKING:
    from spsbench.parts.export.exported import ArmSamples, ExportedRun
    from spsbench.parts.export.messages import NoBinaryScore


def write(run: ExportedRun, folder: Path) -> tuple[list[Path], list[NoBinaryScore]]:
    """Write ``samples_TASK-ARM_DATE.jsonl`` for each arm; nothing is left out."""
    date = str(run.run.get("created_utc") or "")[:26].replace(":", "-")
    task = Path(str(run.run.get("task"))).stem
    paths = list[Path]()
    for arm in run.arms:
        name = f"samples_{task}-{arm.name}_{date}.jsonl"
        path = folder / name.replace("/", "-")  # of a worker's arm its command is a part
        write_rows(path, _lines(arm))
        paths.append(path)
    return paths, []


def _lines(arm: ArmSamples) -> Iterator[dict[str, Any]]:
    """A line for each prompt: ``resps`` holds all its samples' texts, each score is their mean."""
    for index, (prompt, samples) in enumerate(arm.by_prompt):
        doc = {"id": prompt.example_id, "prompt": prompt.text, "reference": prompt.reference}
        texts = [sample.generation.text for sample in samples]
        scores = _means([sample.scores for sample in samples])
        yield {
            "doc_id": index,
            "doc": doc,
            "target": prompt.reference,
            "arguments": {"gen_args_0": {"arg_0": prompt.text, "arg_1": arm.sampling}},
            "resps": [texts],
            "filtered_resps": texts[:1],
            "filter": "none",
            "metrics": list(scores),
            "doc_hash": _hash(json.dumps(doc, indent=2, ensure_ascii=False)),
            "prompt_hash": _hash(prompt.text),
            "target_hash": _hash(prompt.reference),
            **scores,
        }


def _means(scores: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of each score, over the samples that have it."""
    names = dict.fromkeys(name for score in scores for name in score)
    values_of = {name: [each[name] for each in scores if name in each] for name in names}
    return {name: sum(values) / len(values) for name, values in values_of.items()}


def _hash(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()
