"""A comparison of two runs for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from spsbench.axes import label
from spsbench.report import wording

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
    parts.append(_times(compared["arms"]))
    metrics = [*_metrics(compared["arms"])]
    if metrics:
        parts += [Text(), *map(Text, metrics)]
    tokens = [*_tokens(compared["arms"])]
    if tokens:
        parts += [Text(), *map(Text, tokens)]
    told = [*compared["refusals"], *compared["machine"], *compared["warnings"]]
    told += [f"{arm} is in A only" for arm in compared["only_a"]]
    told += [f"{arm} is in B only" for arm in compared["only_b"]]
    parts += [Text(), *(Text(f"! {wording.printable(text)}.") for text in told)]
    return Group(*parts, Text(CAVEAT, style="dim"), Text())


def _times(arms: list[dict[str, Any]]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="not bold dim",
    )
    table.add_column("ms/token and speedup", overflow="fold")
    for title in ("A", "B", "B/A time [95%]", "A", "B"):
        table.add_column(title, justify="right", no_wrap=True)
    for arm in arms:
        table.add_row(
            Text(wording.printable(f"{label(arm)}, {arm['sampling']}")),
            wording.milliseconds(arm["a_ms_per_token"]),
            wording.milliseconds(arm["b_ms_per_token"]),
            Text(_ratio(arm["time_ratio"])),
            *(_times_faster(arm[name]) for name in ("a_speedup", "b_speedup")),
        )
    return table


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
    told = f": {ours} in A, {theirs} in B; "
    if place["gap"] is None:
        return f"{told}the gap of the two largest logits there is unknown ({place['gap_unknown']})"
    return f"{told}the two largest logits there are {place['gap']:.2g} apart ({place['dtype']})"


def _token(place: Mapping[str, Any], side: str) -> str:
    if place[f"{side}_token"] is None:
        return "the end"
    text = place.get(f"{side}_text")
    return f"{place[f'{side}_token']}" + (f" {wording.printable(text)!r}" if text else "")


def _metrics(arms: list[dict[str, Any]]) -> Iterator[str]:
    for arm in arms:
        for found in arm["metrics"]:
            interval = "" if found["low"] is None else f" [{found['low']:+.4f}, {found['high']:+.4f}]"
            title = wording.metric_title(found["metric"])
            yield (
                f"{label(arm)}, {arm['sampling']}: {title} {found['a']:.4f} -> {found['b']:.4f}, "
                f"{found['difference']:+.4f}{interval}"
            )
