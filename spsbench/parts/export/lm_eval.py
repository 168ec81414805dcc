"""A run as lm-evaluation-harness logs its samples (0.4): a file for each arm, a line for each prompt."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spsbench.parts.export.exported import ArmSamples

Line = dict[str, Any]


def lines(arm: ArmSamples) -> Iterator[Line]:
    """Yield a line for each prompt: ``resps`` holds all its samples' texts, each score is their mean."""
    for index, (prompt, samples) in enumerate(arm.by_prompt):
        doc = {"id": prompt.example_id, "prompt": prompt.text, "reference": prompt.reference}
        texts = [sample.generation.text for sample in samples]
        scores = means([sample.scores for sample in samples])
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


def means(scores: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each score over the samples that have it."""
    names = dict.fromkeys(name for score in scores for name in score)
    values_of = {name: [each[name] for each in scores if name in each] for name in names}
    return {name: sum(values) / len(values) for name, values in values_of.items()}


def _hash(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()
