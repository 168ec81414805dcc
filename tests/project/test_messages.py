"""Messages are the facts of their sentences: each sentence names facts that its message has."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from string import Formatter

import pytest

from benchmarks.borders import MESSAGES, ROOT, modules
from spsbench.base.messages import Message

FILES = sorted(name for name in modules(ROOT / "spsbench") if MESSAGES in name.split("."))


def all_below(kind: type[Message]) -> list[type[Message]]:
    return [below for own in kind.__subclasses__() for below in (own, *all_below(own))]


def unknown_facts(kind: type[Message]) -> set[str]:
    """What a sentence names that its message has not; all of it where a message has no sentence."""
    if kind.__str__ is not Message.__str__:
        return set()
    if not hasattr(kind, "sentence"):  # what others share may leave it to them
        return set() if kind.__subclasses__() else {"sentence"}
    named = {name for _, name, _, _ in Formatter().parse(kind.sentence) if name is not None}
    facts = {fact.name for fact in fields(kind)}  # type: ignore[arg-type]
    return {name for name in named if name not in facts and not hasattr(kind, name)}


def test_every_sentence_names_facts_of_its_message() -> None:
    for name in FILES:
        import_module(f"spsbench.{name}")
    ours = [kind for kind in all_below(Message) if kind.__module__.startswith("spsbench.")]
    assert len(ours) > 300
    assert {kind.__qualname__: unknown_facts(kind) for kind in ours if unknown_facts(kind)} == {}


def test_a_fact_that_is_not_there_is_found() -> None:
    class Wrong(Message):
        count: int
        sentence = "{count} of {totl} sequences"

    class Silent(Message):
        count: int

    assert unknown_facts(Wrong) == {"totl"}
    assert unknown_facts(Silent) == {"sentence"}


def test_a_message_is_compared_by_its_facts_and_formats_them() -> None:
    class Lost(Message):
        share: float
        sentence = "{share:.0%} was lost, {twice}"

        @property
        def twice(self) -> float:
            return 2 * self.share

    assert str(Lost(0.25)) == "25% was lost, 0.5"
    assert Lost(0.25) == Lost(0.25) != Lost(0.5)
    with pytest.raises(AttributeError):
        Lost(0.25).share = 0.5  # type: ignore[misc]
