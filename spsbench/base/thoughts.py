"""The marks of thoughts: a format that models think in is added here, and nowhere else."""

from __future__ import annotations

from typing import NamedTuple


class ThoughtMarks(NamedTuple):
    """How a thought is written.

    Attributes:
        begin, end: in a text.
        tokens: the marks as tokens. Some tokenizers call them special, and would leave them out of a text.
    """

    begin: str
    end: str
    tokens: tuple[str, ...]


THOUGHT_MARKS = (
    ThoughtMarks("<think>", "</think>", ("<think>", "</think>")),  # DeepSeek, Qwen, GLM and most
    ThoughtMarks("[THINK]", "[/THINK]", ("[THINK]", "[/THINK]")),  # Mistral
    ThoughtMarks("<|channel>thought", "<channel|>", ("<|channel>", "<channel|>")),  # Gemma 4
)

HARMONY = ThoughtMarks(
    "<|channel|>analysis<|message|>", "<|end|>", ("<|start|>", "<|channel|>", "<|message|>")
)
"""OpenAI's, whose messages may have other channels too."""
