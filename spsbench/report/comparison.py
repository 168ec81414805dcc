"""Runs side by side, and two runs compared, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from spsbench.axes import label
from spsbench.report import wording
from spsbench.report.measured import Measured
from spsbench.report.tables import Table, left, right
from spsbench.summary_types import ArmRow

if TYPE_CHECKING:
    from rich.console import RenderableType


CAVEAT = (
    "Paired by prompt; the runs were not interleaved, so a drift of the machine between them is in the ratio "
    "and not in its interval."
)


def screen(compared: Mapping[str, Any]) -> RenderableType:
    """Times, then metrics, then what may explain a difference."""
    title = f"B against A on {compared['prompts']} common prompts"
    names = [f"{side.upper()}  {wording.printable(str(compared[side]))}" for side in ("a", "b")]
    parts: list[RenderableType] = [Text(), Text(title, style="bold"), *map(Text, names), Text()]
    parts.append(_times(compared["arms"]).as_rich())
    metrics = [*_metrics(compared["arms"])]
    if metrics:
        parts += [Text(), *map(Text, metrics)]
    tokens = [*_tokens(compared["arms"])]
    if tokens:
        parts += [Text(), *map(Text, tokens)]
    notes = [*compared["refusals"], *compared["machine"], *compared["warnings"]]
    notes += [f"{arm} is in A only" for arm in compared["only_a"]]
    notes += [f"{arm} is in B only" for arm in compared["only_b"]]
    parts += [Text(), *(Text(f"! {wording.printable(text)}.") for text in notes)]
    return Group(*parts, Text(CAVEAT, style="dim"), Text())


def _times(arms: list[dict[str, Any]]) -> Table:
    columns = [left("ms/token and speedup"), right("A"), right("B"), right("B/A time", note="95%")]
    cells = [
        [
            f"{label(arm)}, {arm['sampling']}",
            wording.milliseconds(arm["a_ms_per_token"]),
            wording.milliseconds(arm["b_ms_per_token"]),
            _ratio(arm["time_ratio"]),
            *(_times_faster(arm[name]) for name in ("a_speedup", "b_speedup")),
        ]
        for arm in arms
    ]
    return Table([*columns, right("A"), right("B")], cells)


def _times_faster(value: float | None) -> str:
    return wording.NOTHING if value is None else f"{value:.2f}x"


def _ratio(found: Mapping[str, Any]) -> str:
    interval = "" if found["low"] is None else f" [{found['low']:.3f}, {found['high']:.3f}]"
    return f"{found['ratio']:.3f}{interval}"


def _tokens(arms: list[dict[str, Any]]) -> Iterator[str]:
    """Which outputs are the same, and how close the decision was where two first parted."""
    for arm in arms:
        same = arm["tokens"]
        if same is None:
            continue
        name, count = f"{label(arm)}, {arm['sampling']}", same["sequences"]
        identical = round(same["identical"] * count)
        if identical == count:
            yield f"{name}: identical tokens in all {count} outputs"
            continue
        place = same["first_divergence"]
        gap = _gap(place) if "gap" in place else ""
        yield (
            f"{name}: {identical} of {count} outputs identical; the earliest difference is token "
            f"{place['position']} of {wording.printable(place['example_id'])}{gap}"
        )


def _gap(place: Mapping[str, Any]) -> str:
    ours, theirs = (_token(place, side) for side in ("a", "b"))
    head = f": {ours} in A, {theirs} in B; "
    if place["gap"] is None:
        return f"{head}the gap of the two largest logits there is unknown ({place['gap_unknown']})"
    return f"{head}the two largest logits there are {place['gap']:.2g} apart ({place['dtype']})"


def _token(place: Mapping[str, Any], side: str) -> str:
    if place[f"{side}_token"] is None:
        return "the end"
    text = place.get(f"{side}_text")
    return f"{place[f'{side}_token']}" + (f" {wording.printable(text)!r}" if text else "")


def _metrics(arms: list[dict[str, Any]]) -> Iterator[str]:
    for arm in arms:
        for found in arm["metrics"]:
            digits = wording.difference_digits(found["metric"])
            ends = (
                "" if found["low"] is None else f" [{found['low']:+.{digits}f}, {found['high']:+.{digits}f}]"
            )
            title = wording.metric_title(found["metric"])
            yield (
                f"{label(arm)}, {arm['sampling']}: {title} {found['a']:.{digits}f} -> "
                f"{found['b']:.{digits}f}, {found['difference']:+.{digits}f}{ends}"
            )


NOTE = (
    "Each speedup is against the run's own ArS. Times of different runs compare only where nothing below "
    "differs; `spsbench compare` pairs their prompts."
)

_FACTS = {
    "task": ("task_label",),
    "data": ("data", "source"),
    "prompts": ("identity", "prompt_sha256"),
    "pair": ("pair",),
    "synthetic": ("synthetic",),
    "dtype": ("identity", "dtype"),
    "device": ("identity", "device"),
    "max_new_tokens": ("identity", "max_new_tokens"),
    "fixed_length": ("identity", "fixed_length"),
    "seed": ("identity", "seed"),
    "threads": ("models", "threads"),
    "cpu": ("environment", "cpu", "model"),
    "gpus": ("environment", "gpus"),
    "spsbench": ("environment", "spsbench"),
    "git": ("environment", "git"),
    "torch": ("environment", "libraries", "torch"),
}


def compared(runs: Sequence[Measured], names: Sequence[str]) -> Table:
    """One row per arm of every run; quality goes by the metric's name where all runs have the same."""
    metrics = {_metric(measured) for measured in runs}
    mixed = len(metrics) > 1
    columns = [
        *map(left, ("run", "arm", "sampling")),
        right("quality" if mixed else wording.metric_title(metrics.pop())),
        right("ms/token"),
        left("speedup", note="95%", whole=True),
        right("tokens/loop"),
    ]
    rows = [
        [
            *(name, label(row), row["sampling"], _quality(row, _metric(measured), mixed)),
            wording.milliseconds(row["ms_per_token"]),
            wording.row_speedup(row),
            wording.number(row["tokens_per_loop"], 2),
        ]
        for name, measured in zip(names, runs, strict=True)
        for row in measured.summary["rows"]
    ]
    return Table(columns, rows)


def _quality(row: ArmRow, metric: str | None, mixed: bool) -> str:
    value = wording.metric(metric, row["metrics"].get(metric)) if metric else wording.NOTHING
    return f"{wording.metric_title(metric)} {value}" if mixed and value != wording.NOTHING else value


def _metric(measured: Measured) -> str | None:
    return wording.headline_metric(measured.summary)


def differences(runs: Sequence[Measured], names: Sequence[str]) -> Table:
    """What makes the runs different experiments: a row per fact, its value in each run."""
    found = []
    for fact, path in _FACTS.items():
        values = [_text(_at(measured.run, path)) for measured in runs]
        if len(set(values)) > 1:
            found.append([fact, *values])
    return Table([left("differs"), *map(left, names)], found)


def _at(content: Any, path: Sequence[str]) -> Any:
    for key in path:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


def _text(value: Any) -> str:
    if value is None:
        return wording.NOTHING
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(part)}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    text = str(value)
    return text[:12] if len(text) == 64 and text.isalnum() else text


def side_by_side(runs: Sequence[Measured]) -> RenderableType:
    """The table for a terminal of 80 columns: runs go by letters, listed above it."""
    letters = [_letter(place) for place in range(len(runs))]
    titles = [
        Text(f"{letter}  {run.name}: {wording.title(run.summary)}", overflow="fold")
        for letter, run in zip(letters, runs, strict=True)
    ]
    parts: list[RenderableType] = [Text(), *titles, Text(), compared(runs, letters).as_rich()]
    different = differences(runs, letters)
    if different.rows:
        parts += [Text(), different.as_rich()]
    return Group(*(Padding(part, (0, 1)) for part in parts), Text())


def _letter(place: int) -> str:
    return chr(ord("A") + place) if place < 26 else str(place + 1)
