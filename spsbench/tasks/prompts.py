"""Wordings of the summarization prompt.

The paper does not tell Chinchilla's prompt. ``default`` is ours. ``helm`` and ``lighteval`` use the
wording of those harnesses (Liang et al. 2022, and the ``lighteval`` package) with our single
exemplar; how those harnesses choose exemplars and stop is not imitated, so their numbers need not
come out. A document and its summary take the places of ``{document}`` and ``{summary}``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """How the solved example and the question are put.

    The model's answer begins where ``query`` ends; with ``default`` it begins with a space.
    """

    exemplar: str
    query: str

    def sha256(self, exemplar_text: str) -> str:
        """Hash of the template with the filled exemplar: what all prompts of a run share."""
        return hashlib.sha256(f"{exemplar_text}\0{self.query}".encode()).hexdigest()


_DEFAULT = "Article: {document}\n\nSummarize the above article in one sentence.\nSummary:"
_HELM = "###\nArticle: {document}\n\nSummarize the above article in 1 sentence.\n"
_LIGHTEVAL = "###\nArticle:{document}\n\nSummarize the above article in 1 sentence.\n"

SUMMARIZATION: dict[str, PromptTemplate] = {
    "default": PromptTemplate(
        exemplar=f"{_DEFAULT} {{summary}}\n\n",
        query=_DEFAULT,
    ),
    "helm": PromptTemplate(
        exemplar=f"{_HELM}{{summary}}\n\n",
        query=_HELM,
    ),
    "lighteval": PromptTemplate(
        exemplar=f"{_LIGHTEVAL}{{summary}}\n\n",
        query=_LIGHTEVAL,
    ),
}


def presets(kind: Literal["summarization", "code"]) -> tuple[str, ...]:
    """Names of the prompt presets of a kind of task."""
    return tuple(SUMMARIZATION) if kind == "summarization" else ("raw",)
