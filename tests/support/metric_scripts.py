"""Metric scripts of the evaluate library, written by tests."""

from __future__ import annotations

from pathlib import Path

SCRIPT = '''"""Figures of first words and lengths."""
import datasets
import evaluate


class Agreement(evaluate.Metric):
    def _info(self):
        text = datasets.Value("string")
        features = datasets.Features({"predictions": text, "references": text})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        pairs = list(zip(predictions, references))
        same = [float(p.split()[:1] == r.split()[:1]) for p, r in pairs]
        lengths = sum(len(p) for p in predictions) / sum(len(r) for r in references)
        return {ANSWER}
'''


def write_script(folder: Path, name: str, answer: str) -> Path:
    """A script whose ``compute`` answers the expression ``answer``.

    Args:
        folder: where it is written.
        name: of the metric, not used by any other test: evaluate keeps modules by their names.
        answer: of ``pairs``, ``same`` (1 where the first words are equal, for each pair) and ``lengths``.
    """
    path = folder / f"{name}.py"
    path.write_text(SCRIPT.replace("{ANSWER}", answer))
    return path
