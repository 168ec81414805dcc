"""Which rule takes the code from an answer: ``none`` runs it as it is, ``fence`` looks for a block in it."""

from __future__ import annotations

from typing import Literal

Rule = Literal["none", "fence"]
Choice = Literal["auto", "none", "fence"]


def rule_for(choice: Choice, chat: bool) -> Rule:
    """The rule for an answer; ``auto`` is fence in a chat, whose answers are Markdown, and none elsewhere."""
    if choice == "auto":
        return "fence" if chat else "none"
    return choice


def identity(rule: Rule | None, chat: bool) -> dict[str, str]:
    """What a run's identity tells of the rule: nothing where it is that of ``auto``.

    So a run from before there was a choice can be continued.

    Args:
        rule: None for a task without code.
        chat: whether the prompts went through a chat template.
    """
    return {} if rule in (None, rule_for("auto", chat)) else {"extract": str(rule)}
