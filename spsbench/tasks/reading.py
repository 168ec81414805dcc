"""Which examples of a task's data are wanted."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches

from spsbench.base.errors import UsageError, as_typed
from spsbench.config import MaterialSettings
from spsbench.tasks.task import Task, TaskData


def read_data(task: Task, settings: MaterialSettings) -> TaskData:
    """Load the examples that are wanted: a range of the seed's order, or those with some ids."""
    first, last = settings.span
    data = task.load(settings.data, None if settings.ids else last, settings.seed)
    if settings.ids:
        by_id = {example.example_id: example for example in data.examples}
        for name in settings.ids:
            if name not in by_id:
                close = get_close_matches(name, by_id, n=3) or list(by_id)[:3]
                remedy = f"Its ids are like {', '.join(close)}."
                raise UsageError(f"{data.label} has no prompt {as_typed(name)}.", flag="--id", remedy=remedy)
        return replace(data, examples=[example for name, example in by_id.items() if name in settings.ids])
    if first > len(data.examples):
        why = f"{first}-{last} begins after the last of the {len(data.examples)} prompts of {data.label}."
        raise UsageError(why, flag="--limit", remedy="Give a range that begins earlier.")
    return replace(data, examples=data.examples[first - 1 :])
