"""What loops do: where their time goes, what they accept and yield, and the tails of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spsbench.report.figures import style
from spsbench.report.figures.style import Drawing, FigureSkipped
from spsbench.report.measured import Measured, Series
from spsbench.report.wording import phase_ms
from spsbench.summary_types import ArmPrediction, ArmRow

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


PARTS = ("verify", "draft", "sample", "other")
COMM = "comm"
"""A part more where the target is split over processes."""


def phases(measured: Measured) -> Drawing:
    """One panel per series; raises LeftOut where no engine told its phases apart."""
    shown = [series for series in measured.series if _told(series)]
    if not shown:
        raise FigureSkipped("no engine told the parts of a loop apart (on a GPU work is asynchronous)")
    figure, panels = style.sheet(measured, [1.0] * len(shown), 2.9)
    for axes, series in zip(panels, shown, strict=True):
        _phases_panel(axes, series)
    top = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(0, top)
    style.label_beside(panels, "time per loop (ms)")
    parts = _parts([row for series in shown for row in _told(series)])
    style.legend(figure, [_toned(part, _TONES[part]) for part in parts])
    split = f"{_PHASES_CAPTION[:-1]}; comm, collectives between the processes that share the target."
    caption = split if COMM in parts else _PHASES_CAPTION
    return Drawing("loop_time", "Where a loop's time goes", caption, figure)


_TONES = {**dict(zip(PARTS, style.TONES, strict=True)), COMM: style.SERIES[4]}


def _parts(rows: list[ArmRow]) -> tuple[str, ...]:
    """The parts that the loops of these arms have."""
    split = any(phase_ms(row["loop_time"], COMM) is not None for row in rows)
    return (*PARTS, COMM) if split else PARTS


_PHASES_CAPTION = (
    "Mean milliseconds of a loop: verify, the target's pass over K + 1 tokens (one at K = 0, which is ArS); "
    "draft, K passes of the draft; sample, warping, tests and draws; other, the host's own work."
)


def _told(series: Series) -> list[ArmRow]:
    return [
        row
        for row in series.rows
        if row["loop_time"] and all(phase_ms(row["loop_time"], part) is not None for part in PARTS)
    ]


def _phases_panel(axes: Axes, series: Series) -> None:
    rows = _told(series)
    x = np.arange(len(rows))
    bottom = np.zeros(len(rows))
    for part in _parts(rows):
        heights = np.asarray([phase_ms(row["loop_time"], part) or 0.0 for row in rows], dtype=np.float64)
        axes.bar(x, heights, 0.7, bottom, color=_TONES[part], edgecolor=style.PAPER, linewidth=0.6)
        bottom += heights
    style.places(axes, [row["k"] for row in rows])
    axes.set_title(f"Loop time, {series.label}")


def _toned(label: str, tone: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(facecolor=tone, edgecolor=style.PAPER, label=label)


Floats = npt.NDArray[np.float64]

_BINS = 16
_FEWEST_TESTS = 20
_HEADROOM = 1.04


def positions(measured: Measured) -> Drawing:
    """Both panels; raises LeftOut where no acceptance was seen."""
    shown = [series for series in measured.series if _deepest(series)]
    if not shown:
        raise FigureSkipped("no engine saw what was accepted")
    figure, (position, along) = style.sheet(measured, (1, 1.25), 2.9)
    _by_position(position, measured, shown)
    _along(along, measured, shown)
    keys = [style.key(s.label, **style.look(measured.series.index(s))) for s in shown]
    keys.append(style.key("joint", color=style.FAINT, marker="o"))
    keys.append(style.key("conditional", color=style.FAINT, marker="o", mfc="w", linestyle=(0, (1, 1.2))))
    style.legend(figure, keys)
    deepest = max(row["k"] for series in shown for row in [_deepest(series)] if row)
    return Drawing(
        "acceptance",
        "Acceptance by draft position and along the output",
        _acceptance_caption(deepest),
        figure,
    )


def _acceptance_caption(k: int) -> str:
    return (
        f"By position, K = {k}: joint, the share of loops that accepted j tokens or more (filled), and "
        "conditional, the share accepted at position j of those tested there (hollow). Along the output: "
        "accepted / tested tokens by where the loop begins, all K together; band: one standard error over "
        "prompts."
    )


def _deepest(series: Series) -> ArmRow | None:
    """The row with the largest K: it sees the most positions."""
    rows = [row for row in series.counting_tokens if row["acceptance"]]
    return max(rows, key=lambda row: row["k"], default=None)


def _by_position(axes: Axes, measured: Measured, shown: list[Series]) -> None:
    axes.set_title("Acceptance by draft position j")
    axes.set_ylabel("share accepted")
    most = 1
    for series in shown:
        row = _deepest(series)
        look = style.look(measured.series.index(series))
        assert row is not None
        assert row["acceptance"] is not None
        most = max(most, row["k"])
        hollow = {"mfc": style.PAPER, "linestyle": (0, (1, 1.2)), "linewidth": 1.1}
        for values, changes in (
            (row["acceptance"]["acceptance_per_position"], {}),
            (row["acceptance"]["conditional_acceptance"], hollow),
        ):
            points = [(j, value) for j, value in enumerate(values, 1) if value is not None]
            if points:
                axes.plot(*zip(*points, strict=True), **look | changes)
    axes.set_xlabel("position j in the draft")
    axes.set_xticks(range(1, most + 1, 1 + most // 12))
    axes.set_xlim(0.6, most + 0.4)
    axes.set_ylim(0, _HEADROOM)


def _along(axes: Axes, measured: Measured, shown: list[Series]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title("Acceptance along the output")
    axes.set_ylabel("accepted / tested")
    for series in shown:
        look = style.look(measured.series.index(series))
        centres, rates, errors = _profile(measured, series)
        if len(centres):
            axes.fill_between(centres, rates - errors, rates + errors, color=look["color"], alpha=0.15, lw=0)
            axes.plot(centres, rates, **look | {"markersize": 3.5})
    axes.set_xlabel("position of the loop (output tokens before it)")
    axes.set_ylim(0, _HEADROOM)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _profile(measured: Measured, series: Series) -> tuple[Floats, Floats, Floats]:
    """Centre of each stretch of the output, accepted / tested there, and its standard error."""
    parts = [
        measured.loops_by_arm[r["arm"]] for r in series.counting_tokens if r["arm"] in measured.loops_by_arm
    ]
    columns = ["example_id", "start", "accepted", "tested"]
    loops = _joined([part[columns] for part in parts])
    loops = loops[loops["accepted"].notna() & (loops["tested"] > 0)]
    if loops.empty:
        return np.empty(0), np.empty(0), np.empty(0)
    width = max(1, -(-(int(loops["start"].max()) + 1) // _BINS))
    cells = loops.assign(bin=loops["start"] // width).groupby(["bin", "example_id"], sort=True)
    sums = cells[["accepted", "tested"]].sum().reset_index()
    points = [_point(int(part["bin"].iloc[0]), width, part) for _, part in sums.groupby("bin")]
    kept = [point for point in points if point is not None]
    if not kept:
        return np.empty(0), np.empty(0), np.empty(0)
    centres, rates, errors = (np.asarray(column) for column in zip(*kept, strict=True))
    return centres, rates, errors


def _joined(parts: list[pd.DataFrame]) -> pd.DataFrame:
    import pandas as pd

    return pd.concat(parts, ignore_index=True)


def _point(number: int, width: int, prompts: pd.DataFrame) -> tuple[float, float, float] | None:
    """One stretch: a ratio of sums, its error from the scatter between prompts; None with few tests."""
    accepted, tested = (prompts[name].to_numpy(dtype=np.float64) for name in ("accepted", "tested"))
    if tested.sum() < _FEWEST_TESTS:
        return None
    rate, n = accepted.sum() / tested.sum(), len(prompts)
    scatter = np.square(accepted - rate * tested).sum() * (n / (n - 1) if n > 1 else 0.0)
    return (number + 0.5) * width, float(rate), float(np.sqrt(scatter) / tested.sum())


_MOST_PANELS = 7


def lengths(measured: Measured) -> Drawing:
    """One panel per K, the series side by side; raises LeftOut where no acceptance was seen."""
    ks = _chosen(
        sorted(
            {row["k"] for series in measured.series for row in series.counting_tokens if row["acceptance"]}
        )
    )
    if not ks:
        raise FigureSkipped("no engine saw what was accepted")
    figure, panels = style.sheet(measured, [k + 2.5 for k in ks], 2.5, _MOST_PANELS)
    top = max(_lengths_panel(axes, measured, k) for axes, k in zip(panels, ks, strict=True))
    for axes in panels:
        axes.set_ylim(0, min(1.0, 1.08 * top))
    style.label_beside(panels, "share of loops")
    keys: list[Any] = [_patch(series.label, index) for index, series in enumerate(measured.series)]
    keys.append(style.key("if tests were independent", color=style.INK, marker="_", linestyle="", mew=1.4))
    style.legend(figure, keys)
    return Drawing("tokens_per_loop", "Tokens per loop", _LENGTHS_CAPTION, figure)


_LENGTHS_CAPTION = (
    "Tokens of a loop: accepted + 1, before truncation. Dashes: the shares if tests were independent with "
    "the same alpha_tested. Measured bars above the dashes at both ends mean that acceptance is correlated: "
    "easy tokens follow easy ones, and hard tokens hard ones."
)


def _chosen(ks: list[int]) -> list[int]:
    """At most so many lookaheads, the ends among them."""
    if len(ks) <= _MOST_PANELS:
        return ks
    return [ks[i] for i in sorted({*np.linspace(0, len(ks) - 1, _MOST_PANELS).round().astype(int).tolist()})]


def _lengths_panel(axes: Axes, measured: Measured, k: int) -> float:
    """The histogram of one K; its highest bar."""
    width, top = 0.8 / len(measured.series), 0.0
    lengths = np.arange(1, k + 2)
    for index, series in enumerate(measured.series):
        rows = [row for row in series.counting_tokens if row["k"] == k]
        seen = [(row["arm"], found) for row in rows if (found := row["acceptance"])]
        if not seen:
            continue
        arm, acceptance = seen[0]
        accepted = measured.loops_by_arm[arm]["accepted"].to_numpy(dtype=np.int64)
        shares = np.bincount(accepted, minlength=k + 1)[: k + 1] / len(accepted)
        x = lengths + (index - (len(measured.series) - 1) / 2) * width
        axes.bar(x, shares, width * 0.92, color=style.look(index)["color"])
        expected = _independent(acceptance["alpha_tested"], k)
        axes.hlines(expected, x - width * 0.46, x + width * 0.46, color=style.INK, linewidth=1.2)
        top = max(top, float(shares.max()), float(expected.max()))
    axes.set_title(f"K = {k}")
    axes.set_xlabel("tokens")
    axes.set_xticks(lengths)
    axes.set_xlim(0.4, k + 1.6)
    return top


def _independent(alpha: float | None, k: int) -> Floats:
    """Shares of loops with 1..K+1 tokens if every test passed with ``alpha``, whatever came before."""
    if alpha is None:
        return np.full(k + 1, np.nan)
    return np.asarray([*(alpha**j * (1 - alpha) for j in range(k)), alpha**k])


def _patch(label: str, index: int) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=style.look(index)["color"], label=label)


def replayed(measured: Measured) -> Drawing:
    """One panel per series; raises FigureSkipped where no ArS text was read with the draft."""
    shown = [(series, arms) for series in measured.series if len(arms := _replayed(measured, series)) > 1]
    if not shown:
        raise FigureSkipped(
            "fewer than two lookaheads are replayed: that takes ArS texts read with the draft"
        )
    figure, panels = style.sheet(measured, [1.0] * len(shown), 2.9)
    for axes, (series, arms) in zip(panels, shown, strict=True):
        _replay_panel(axes, measured, series, arms)
    style.legend(
        figure,
        [
            style.key("measured", color=style.INK, marker="o", linestyle=""),
            style.key("by replay of ArS texts, 95%", color=style.INK, linestyle="-"),
            style.key(
                "if tests were independent (Leviathan)", color=style.FAINT, linestyle=_REPLAY_DASHES, lw=1.2
            ),
        ],
    )
    return Drawing("replay", "Tokens per loop by replay", _REPLAY_CAPTION, figure)


_REPLAY_DASHES = (0, (5, 2))
_REPLAY_CAPTION = (
    "Tokens kept per loop. Points: measured. Line: predicted for each K by replay of this run's ArS texts; "
    "band: 95% interval over prompts. Dashes: the same alpha at every position."
)


def _replayed(measured: Measured, series: Series) -> list[ArmPrediction]:
    """The arms of a series along K that were replayed, by K."""
    found = measured.summary.get("prediction")
    names = {row["arm"] for row in series.speculative}
    arms = [arm for arm in (found["arms"] if found else ()) if arm["arm"] in names]
    return sorted((arm for arm in arms if arm["tokens_per_loop_replayed"]), key=lambda arm: arm["k"])


def _replay_panel(axes: Axes, measured: Measured, series: Series, arms: Sequence[ArmPrediction]) -> None:
    look = style.look(measured.series.index(series))
    ks = [arm["k"] for arm in arms]
    lengths = [found for arm in arms if (found := arm["tokens_per_loop_replayed"])]
    axes.plot(ks, [found["estimate"] for found in lengths], color=look["color"], linewidth=1.4)
    band = np.array([[found["low"] or np.nan, found["high"] or np.nan] for found in lengths]).T
    axes.fill_between(ks, *band, color=look["color"], alpha=0.2, linewidth=0)
    kept = [arm["tokens_per_loop_kept"] or np.nan for arm in arms]
    independent = [arm["tokens_per_loop_predicted"] or np.nan for arm in arms]
    axes.plot(ks, kept, **{**look, "linestyle": ""})
    axes.plot(ks, independent, color=style.FAINT, linestyle=_REPLAY_DASHES)
    style.over_k(axes, ks)
    axes.set_ylabel("tokens per loop")
    axes.set_title(f"Tokens per loop, {series.label}")


PERCENTILES = (50, 90, 99)
_PERCENTILE_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)))
_FEW_FOR_P99 = 100


def tails(measured: Measured) -> Drawing:
    """Percentiles per series and the share of prompts slower; raises LeftOut without an SpS arm."""
    shown = [series for series in measured.series if series.speculative]
    if not shown:
        raise FigureSkipped("no speculative arm finished a sequence")
    sweep = len([k for k in measured.ks if k > 0]) > 1
    figure, panels = style.sheet(measured, [1.0] * (len(shown) + sweep), 2.9)
    timed = panels[: len(shown)]
    for axes, series in zip(timed, shown, strict=True):
        _percentiles(axes, measured, series)
    top = max(axes.get_ylim()[1] for axes in timed)
    for axes in timed:
        axes.set_ylim(0, 1.04 * top)
    if sweep:
        _slower(panels[-1], measured, shown)
    keys = [
        style.key(f"P{percentile}", color=style.INK, linestyle=dash)
        for percentile, dash in zip(PERCENTILES, _PERCENTILE_DASHES, strict=True)
    ]
    if sweep and len(shown) > 1:
        keys += [_patch(series.label, measured.series.index(series)) for series in shown]
    style.legend(figure, keys)
    return Drawing("tails", "Slow sequences and slower prompts", _tails_caption(measured, sweep), figure)


def _tails_caption(measured: Measured, sweep: bool) -> str:
    fewest = min(row["sequences"] for series in measured.series for row in series.rows)
    unit = f"for {measured.fixed_length} tokens" if measured.fixed_length else "per token"
    text = f"Percentiles over sequences of the decoding time {unit}; K = 0 is ArS."
    if sweep:
        text += " Slower prompts: the share whose own time per token is longer than under ArS."
    if fewest < _FEW_FOR_P99:
        text += f" With {fewest} sequences P99 is close to the slowest one."
    return text


def _percentiles(axes: Axes, measured: Measured, series: Series) -> None:
    scale = measured.fixed_length or 1
    values = []
    for row in series.rows:
        part = measured.sequences[row["arm"]]
        per_token = 1e3 * scale * part["decode_s"].to_numpy(float) / part["new_tokens"].to_numpy(float)
        values.append(np.percentile(per_token, PERCENTILES))
    look = style.look(measured.series.index(series))
    ks = [row["k"] for row in series.rows]
    for column, dash in zip(np.asarray(values).T, _PERCENTILE_DASHES, strict=True):
        axes.plot(ks, column, **look | {"linestyle": dash, "markersize": 3.5})
    length = measured.fixed_length
    axes.set_title(f"{f'Time for {length} tokens' if length else 'Time per token'}, {series.label}")
    axes.set_ylabel("time (ms)")
    style.over_k(axes, measured.ks)


def _slower(axes: Axes, measured: Measured, shown: list[Series]) -> None:
    ks = [k for k in measured.ks if k > 0]
    width = 0.75 / len(shown)
    for number, series in enumerate(shown):
        told = [(row["k"], row["share_slower"]) for row in series.speculative]
        slower = [(k, 100 * share) for k, share in told if share is not None]
        x = [ks.index(k) + (number - (len(shown) - 1) / 2) * width for k, _ in slower]
        color = style.look(measured.series.index(series))["color"]
        shares = [share for _, share in slower]
        axes.bar(x, shares, width * 0.9, color=color, label=series.label)
        for place, share in zip(x, shares, strict=True):
            if share == 0:
                axes.text(
                    place, 0.8, "0", ha="center", va="bottom", fontsize=style.SMALL_PT, color=style.FAINT
                )
    style.places(axes, ks)
    axes.set_ylim(0, max(10.0, axes.get_ylim()[1]))
    axes.set_title("Prompts slower than under ArS")
    axes.set_ylabel("prompts (%)")
