"""The run in pictures; every figure is a pure function of what the run recorded."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from spsbench.base.arrays import Floats
from spsbench.base.axes import label, place
from spsbench.report.figures import style
from spsbench.report.figures.style import Drawing, FigureSkipped, Plate, printed, quiet, stacked
from spsbench.report.measured import Measured, Series
from spsbench.report.messages import figures as captions
from spsbench.report.results import batch_sizes, surface_title
from spsbench.report.wording import full_name, milliseconds, phase_ms, printable, speedup
from spsbench.stats.latency import FEWEST_FOR_P99
from spsbench.stats.predict.costs import one_launch
from spsbench.store.summary_types import ArmPrediction, ArmRow, LoopLine, RatioInterval, Surface

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Formula = Literal["leviathan", "chen"]

_DASHED, _DOTTED = (0, (5, 2)), (0, (1, 1.2))


@dataclass(frozen=True, slots=True)
class Gallery:
    """What could be drawn and what could not."""

    plates: tuple[Plate, ...]
    left_out: tuple[tuple[str, str], ...]


def draw(measured: Measured, *, narrow: bool = False) -> Gallery:
    """Every figure that the run has the data for."""
    if measured.summary.get("conditions"):
        return Gallery((), tuple((title, captions.SEVERAL_CONDITIONS) for title in FIGURES))
    of_batches = {"Speedup against batch size": against_batch} if measured.summary.get("surfaces") else {}
    plates, left_out = [], []
    with quiet():
        for title, figure in (FIGURES | of_batches).items():
            try:
                beside, below = figure(measured), None
                if narrow:
                    with stacked():
                        below = figure(measured)
                plates.append(printed(beside, below))
            except FigureSkipped as reason:
                left_out.append((title, str(reason)))
    return Gallery(tuple(plates), tuple(left_out))


def _sheet_of(
    measured: Measured, shown: Sequence[Any], panel: Callable[[Axes, Any], None]
) -> tuple[Figure, list[Axes]]:
    figure, panels = style.sheet(measured, [1.0] * len(shown), 2.9)
    for axes, one in zip(panels, shown, strict=True):
        panel(axes, one)
    return figure, panels


def _look(measured: Measured, series: Series) -> dict[str, Any]:
    return style.look(measured.series.index(series))


def _plot(axes: Axes, points: Sequence[tuple[float, float | None]], **look: Any) -> None:
    """A line through the points that have a value, if there are any."""
    known = [(x, y) for x, y in points if y is not None]
    if known:
        axes.plot(*zip(*known, strict=True), **look)


def _sped(rows: Sequence[ArmRow]) -> list[tuple[ArmRow, RatioInterval]]:
    return [(row, row["speedup"]) for row in rows if row["speedup"]]


def _ratios(intervals: Sequence[RatioInterval]) -> tuple[Floats, Floats]:
    """Speedups, and the [2, n] ends of their intervals; the ratio where there is none."""
    ratios = np.asarray([one["ratio"] for one in intervals])
    ends = [[one["ratio"] if one[end] is None else one[end] for one in intervals] for end in ("low", "high")]
    return ratios, np.asarray(ends, dtype=np.float64)


# --- speedups ---


def by_arm(measured: Measured) -> Drawing:
    """A bar for every speculative arm, in the order of the tables."""
    rows = _sped([row for row in measured.summary["rows"] if row["method"] == "sps"])
    if not rows:
        raise FigureSkipped("no arm has a speedup")
    several = len({row["sampling"] for row, _ in rows}) > 1
    names = [full_name(row) if several else label(row) for row, _ in rows]
    names = [textwrap.fill(printable(name), 26) for name in names]
    ratios, intervals = _ratios([found for _, found in rows])
    lines = max(name.count("\n") + 1 for name in names)
    figure, (axes,) = style.sheet(measured, [1.0], 1.0 + max(0.36, 0.22 * lines) * len(rows))
    places = range(len(rows))
    colors = [style.SERIES[0] if low > 1 else style.TONES[2] for low in intervals[0]]
    bars = axes.barh(places, ratios, height=0.62, color=colors)
    unknown = [bar for bar, (_, found) in zip(bars, rows, strict=True) if found["low"] is None]
    for bar in unknown:
        bar.set(facecolor=style.PAPER, edgecolor=style.FAINT, hatch=style.NO_INTERVAL)
    axes.set_yticks(places, names)
    if any(found["low"] is not None for _, found in rows):
        axes.errorbar(ratios, places, xerr=np.abs(intervals - ratios), fmt="none", color=style.INK)
    for at, high, (_, found) in zip(places, intervals[1], rows, strict=True):
        axes.annotate(speedup(found), (max(1.0, high), at), (5, 0), textcoords="offset points", va="center")
    axes.axvline(1.0, color=style.FAINT, linewidth=0.9)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.45 * max(1.0, intervals[1].max()))
    style.name_axes(axes, "Speedup by arm", "", captions.SPEEDUP_AXIS)
    caption = captions.SpeedupsByArm(without_interval=bool(unknown))
    return Drawing("arms", "Speedup by arm", str(caption), figure)


_FORMULAE: dict[Formula, tuple[str, Any]] = {
    "leviathan": (captions.BY_LEVIATHAN, _DASHED),
    "chen": (captions.BY_CHEN, _DOTTED),
}


def _predicted(row: ArmRow, name: Formula) -> float | None:
    found = row.get("prediction")
    return found[name] if found else None


def against_k(measured: Measured) -> Drawing:
    """One panel per series; skipped without two measured speedups in any."""
    shown = [series for series in measured.series if len(_sped(series.speculative)) > 1]
    if not shown:
        raise FigureSkipped("fewer than two lookaheads have a speedup")

    def panel(axes: Axes, series: Series) -> None:
        rows = _sped(series.speculative)
        ratios, intervals = _ratios([found for _, found in rows])
        axes.axhline(1.0, color=style.FAINT, linewidth=0.9)
        for name, (_, dash) in _FORMULAE.items():
            points = [(row["k"], _predicted(row, name)) for row in series.speculative]
            _plot(axes, points, color=style.FAINT, linestyle=dash, linewidth=1.2)
        ks, bars = [row["k"] for row, _ in rows], np.abs(intervals - ratios)
        hollow = {"mfc": style.PAPER} if all(found["low"] is None for _, found in rows) else {}
        axes.errorbar(ks, ratios, yerr=bars, elinewidth=1.0, **_look(measured, series) | hollow)
        style.over_k(axes, [k for k in measured.ks if k > 0])
        style.name_axes(axes, f"Speedup, {series.label}", "speedup (x)")

    figure, panels = _sheet_of(measured, shown, panel)
    style.same_top(panels)
    every = [row for series in shown for row in series.speculative]
    formulae = [name for name in _FORMULAE if any(_predicted(row, name) is not None for row in every)]
    intervals = any(found["low"] is not None for _, found in _sped(every))
    seen = "measured, 95% interval" if intervals else "measured, no interval"
    keys = [style.key(seen, color=style.INK, marker="o", mfc=style.INK if intervals else style.PAPER)]
    for title, dash in (_FORMULAE[name] for name in formulae):
        keys.append(style.key(title, color=style.FAINT, linestyle=dash, lw=1.2))
    style.legend(figure, keys)
    return Drawing("speedup", "Speedup against K", str(captions.SpeedupsByK(intervals, formulae)), figure)


def against_batch(measured: Measured) -> Drawing:
    """One panel per surface of a run that has any."""
    shown = measured.summary["surfaces"]
    cells = [cell for surface in shown for cell in surface["cells"]]
    ks = sorted({cell["k"] for cell in cells} - {0})

    def panel(axes: Axes, surface: Surface) -> None:
        sizes = batch_sizes(surface)
        axes.axhline(1.0, color=style.FAINT, linewidth=0.9)
        for number, k in enumerate(ks):
            own = [cell for cell in surface["cells"] if cell["k"] == k and cell["speedup"] is not None]
            if not own:
                continue
            ratios, intervals = _ratios([found for cell in own if (found := cell["speedup"])])
            places, bars = [sizes.index(cell["batch"]) for cell in own], np.abs(intervals - ratios)
            axes.errorbar(places, ratios, yerr=bars, elinewidth=1.0, **style.look(number))
        axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        axes.set_ylim(bottom=0)
        style.name_axes(axes, surface_title(surface), "speedup (x)", "batch size B (sequences)")

    figure, _ = _sheet_of(measured, shown, panel)
    style.legend(figure, [style.key(f"K={k}", **style.look(number)) for number, k in enumerate(ks)])
    intervals = any(found["low"] is not None for cell in cells if (found := cell["speedup"]))
    return Drawing("batches", "Speedup against batch size", str(captions.SpeedupsByBatch(intervals)), figure)


# --- Figure 1 of Chen et al. 2023 ---

_APART, _SPREAD = 0.2, 0.7
"""Between marks of the same K, and of all of them at most, in units of K."""

_MOST_NOTES = 2
"""More series than this have their slopes in the caption alone."""


def figure1(measured: Measured) -> Drawing:
    """Time, r' and loop time over K; skipped where fewer than two lookaheads were measured."""
    if len([k for k in measured.ks if k > 0]) < 2:
        raise FigureSkipped("one lookahead makes no sweep; `spsbench sweep-k` measures several")
    figure, (time, share, loop) = style.sheet(measured, (1, 1, 1), 3.1)
    clocks = _time(time, measured)
    _r_prime(share, measured)
    slopes = _loop_time(loop, measured)
    keys = [style.key(series.label, **style.look(index)) for index, series in enumerate(measured.series)]
    if clocks:
        keys.append(style.key("the paper's clock", color=style.FAINT, marker="o", mfc="w", linestyle=""))
    style.legend(figure, keys)
    caption = captions.Figure1(measured.fixed_length, slopes)
    return Drawing("figure1", captions.FIGURE1_TITLE, str(caption), figure)


def _time(axes: Axes, measured: Measured) -> bool:
    """Mean and deviation by both clocks; whether the paper's could be drawn."""
    length, paper = measured.fixed_length, False
    style.name_axes(axes, f"Time for {length} tokens" if length else "Time per token", "time (ms)")
    for index, series in enumerate(measured.series):
        apart = min(_APART, _SPREAD / (2 * len(measured.series)))
        look, shift = style.look(index), (2 * index + 1 - len(measured.series)) * apart
        points = [(row["k"], *_ms_by_clock(measured, row)) for row in series.rows]
        walls = [(k + shift - apart / 2, *wall) for k, wall, _ in points]
        _bars(axes, walls, markerfacecolor=look["color"], **look)
        papers = [(k + shift + apart / 2, *clock) for k, _, clock in points if clock is not None]
        if papers:
            paper = True
            _bars(axes, papers, markerfacecolor=style.PAPER, **look | {"linestyle": ""})
    style.over_k(axes, measured.ks)
    axes.set_ylim(bottom=0)
    return paper


def _bars(axes: Axes, points: list[tuple[float, float, float]], **look: Any) -> None:
    x, mean, deviation = (np.asarray(column) for column in zip(*points, strict=True))
    axes.errorbar(x, mean, yerr=deviation, elinewidth=0.8, capsize=0, markersize=3.8, lw=1.1, **look)


def _ms_by_clock(measured: Measured, row: ArmRow) -> tuple[tuple[float, float], tuple[float, float] | None]:
    """(mean, deviation) by the wall and by the paper's clock, for N tokens or one token."""
    sequences = measured.sequences[row["arm"]]
    tokens, wall_s, counts = (
        sequences[name].to_numpy(dtype=np.float64) for name in ("new_tokens", "decode_s", "loops")
    )
    scale = measured.fixed_length or 1
    wall = _spread(1e3 * wall_s / tokens * scale, tokens)
    if row["loop_time"] is None or row["loop_time"]["loop_ms"] is None or np.isnan(counts).any():
        return wall, None
    return wall, _spread(counts * row["loop_time"]["loop_ms"] / tokens * scale, tokens)


def _spread(values: Floats, weights: Floats) -> tuple[float, float]:
    """Mean and standard deviation; weighted by tokens the mean is that of the result table."""
    mean, n = float(np.average(values, weights=weights)), len(values)
    variance = float(np.average((values - mean) ** 2, weights=weights)) * n / max(n - 1, 1)
    return mean, variance**0.5


def _r_prime(axes: Axes, measured: Measured) -> None:
    style.name_axes(axes, "r'", "(accepted + 1) / (K + 1)")
    for index, series in enumerate(measured.series):
        points: list[tuple[float, float | None]] = []
        for row in series.rows:
            seen = row["acceptance"]
            points.append((row["k"], 1.0 if row["k"] == 0 else seen["r_prime"] if seen else None))
        _plot(axes, points, **style.look(index))
    style.over_k(axes, measured.ks)
    axes.set_ylim(0, 1.05)


def _loop_time(axes: Axes, measured: Measured) -> list[captions.LoopSlope]:
    """Loop time by K with the summary's fitted line and the ideal one; what the slopes are."""
    style.name_axes(axes, "Loop time", "time (ms)")
    slopes = []
    for index, series in enumerate(measured.series):
        look = style.look(index)
        points = [(row["k"], row["loop_time"]["loop_ms"]) for row in series.rows if row["loop_time"]]
        if not points:
            continue
        # Smaller from series to series: loops of equal cost lie on one another.
        marks = look | {"linestyle": "", "markersize": max(3, 7 - 2.5 * index)}
        axes.plot(*zip(*points, strict=True), **marks)
        line = _loop_line(measured, series.rows[-1])
        if line is None:
            continue
        ends = np.asarray([min(line["ks"]), max(line["ks"])], dtype=np.float64)
        fitted = line["intercept_ms"] + line["slope_ms"] * ends
        axes.plot(ends, fitted, color=look["color"], linestyle=look["linestyle"])
        draft = line["drafting_ms_per_token"]
        if line["draft_alone_ms_per_token"] is not None:  # run alone, rather than within the loops
            draft = line["draft_alone_ms_per_token"]
        slope = line["slope_ms"]
        shown = milliseconds(slope) if slope >= 0 else f"{slope:.3f}"
        step = None if draft is None else milliseconds(draft)
        slopes.append(captions.LoopSlope(series.label, shown, len(line["ks"]) == 2, step))
        if len(measured.series) <= _MOST_NOTES and len(line["ks"]) > 2:
            _note(axes, index, line["slope_ms"], draft)
        if draft is not None and line["ars_ms"] is not None:
            # Where loops lie if verifying K + 1 tokens costs one target step and nothing else comes to it.
            k, target_ms = max(line["ks"]), line["ars_ms"]
            axes.plot([0, k], [target_ms, target_ms + k * draft], color=style.FAINT, linewidth=0.8)
    style.over_k(axes, measured.ks)
    axes.set_ylim(0, 1.04 * axes.get_ylim()[1])
    return slopes


def _loop_line(measured: Measured, row: ArmRow) -> LoopLine | None:
    prediction = measured.summary.get("prediction")
    for found in prediction["samplings"] if prediction else ():
        if place({"k": None, **found}, "k") == place(row, "k"):
            return found["loop"]
    return None


def _note(axes: Axes, index: int, slope: float, draft: float | None) -> None:
    text = f"{slope:.2f} ms per K" + ("" if draft is None else f", draft {draft:.2f}")
    box = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 1.0}
    small: dict[str, Any] = {"fontsize": style.SMALL_PT, "color": style.look(index)["color"], "bbox": box}
    axes.text(0.04, 0.04 + 0.085 * index, text, transform=axes.transAxes, **small)


# --- loops ---

SAMPLE = "sample"
VERIFY, SAMPLE = "verify", "sample"
PARTS = (VERIFY, "draft", SAMPLE, "other")
COMM = "comm"
"""A part more where the target is split over processes."""

_TONES = {**dict(zip(PARTS, style.TONES, strict=True)), COMM: style.SERIES[4]}


def _timed(series: Series) -> list[ArmRow]:
    rows = [row for row in series.rows if row["loop_time"]]
    return [row for row in rows if all(phase_ms(row["loop_time"], part) is not None for part in PARTS)]


def _parts(rows: Sequence[ArmRow]) -> tuple[str, ...]:
    """The parts of a loop that all of the rows have: where a program did two of them, these are one."""
    split = any(phase_ms(row["loop_time"], COMM) is not None for row in rows)
    parts = [part for part in PARTS if part != SAMPLE or not one_launch(*rows)]
    return (*parts, COMM) if split else tuple(parts)


def _part_ms(row: ArmRow, part: str, parts: Sequence[str]) -> float:
    judging = phase_ms(row["loop_time"], SAMPLE) if part == VERIFY and SAMPLE not in parts else None
    return (phase_ms(row["loop_time"], part) or 0.0) + (judging or 0.0)


def phases(measured: Measured) -> Drawing:
    """One panel per series; skipped where no engine told its phases apart."""
    shown = [series for series in measured.series if _timed(series)]
    if not shown:
        raise FigureSkipped("no engine timed the parts of a loop")
    parts = _parts([row for series in shown for row in _timed(series)])

    def panel(axes: Axes, series: Series) -> None:
        rows = _timed(series)
        bottom = np.zeros(len(rows))
        for part in parts:
            heights = np.asarray([_part_ms(row, part, parts) for row in rows], dtype=np.float64)
            x, tone = np.arange(len(rows)), _TONES[part]
            axes.bar(x, heights, 0.7, bottom, color=tone, edgecolor=style.PAPER, linewidth=0.6)
            bottom += heights
        style.places(axes, [row["k"] for row in rows])
        axes.set_title(f"Loop time, {series.label}")

    figure, panels = _sheet_of(measured, shown, panel)
    style.same_top(panels)
    style.label_beside(panels, "time per loop (ms)")
    apart = SAMPLE in parts
    titles = {VERIFY: VERIFY if apart else "verify and judge"}
    patches = [
        style.patch(titles.get(part, part), facecolor=_TONES[part], edgecolor=style.PAPER) for part in parts
    ]
    style.legend(figure, patches)
    caption = captions.LoopParts(titles[VERIFY], judged=apart, split=COMM in parts)
    return Drawing("loop_time", captions.LOOP_TITLE, str(caption), figure)


_BINS = 16
_FEWEST_TESTS = 20
_HEADROOM = 1.04


def positions(measured: Measured) -> Drawing:
    """By position and along the output; skipped where no acceptance was seen."""
    from matplotlib.ticker import MaxNLocator

    shown = [(series, row) for series in measured.series if (row := _deepest(series))]
    if not shown:
        raise FigureSkipped("no engine saw what was accepted")
    figure, (position, along) = style.sheet(measured, (1, 1.25), 2.9)
    hollow: dict[str, Any] = {"mfc": style.PAPER, "linestyle": _DOTTED, "linewidth": 1.1}
    for series, row in shown:
        look, found = _look(measured, series), row["acceptance"]
        assert found is not None
        _plot(position, list(enumerate(found["acceptance_per_position"], 1)), **look)
        _plot(position, list(enumerate(found["conditional_acceptance"], 1)), **look | hollow)
        profile = _profile(measured, series)
        if len(profile):
            centres, rates, errors = profile.T
            along.fill_between(centres, rates - errors, rates + errors, color=look["color"], alpha=0.15, lw=0)
            along.plot(centres, rates, **look | {"markersize": 3.5})
    if not along.lines:
        why = f"no stretch has {_FEWEST_TESTS} tested tokens"
        along.text(0.5, 0.5, why, transform=along.transAxes, ha="center", color=style.FAINT)
    most = max(row["k"] for _, row in shown)
    title = captions.BY_POSITION
    style.name_axes(position, title, "share accepted", captions.POSITION_AXIS)
    position.set_xticks(range(1, most + 1, 1 + most // 12))
    position.set_xlim(0.6, most + 0.4)
    x = captions.OUTPUT_AXIS
    style.name_axes(along, "Acceptance along the output", "accepted / tested", x)
    for axes in (position, along):
        axes.set_ylim(0, _HEADROOM)
    along.set_xlim(left=0)
    along.xaxis.set_major_locator(MaxNLocator(integer=True))
    keys = [style.key(series.label, **_look(measured, series)) for series, _ in shown]
    keys.append(style.key("joint", color=style.FAINT, marker="o"))
    keys.append(style.key("conditional", color=style.FAINT, marker="o", mfc="w", linestyle=_DOTTED))
    style.legend(figure, keys)
    caption = captions.AcceptanceByPosition(most, _FEWEST_TESTS)
    return Drawing("acceptance", captions.ACCEPTANCE_TITLE, str(caption), figure)


def _deepest(series: Series) -> ArmRow | None:
    """The row with the largest K: it sees the most positions."""
    rows = [row for row in series.counting_tokens if row["acceptance"]]
    return max(rows, key=lambda row: row["k"], default=None)


def _profile(measured: Measured, series: Series) -> Floats:
    """[n, 3] centre of each stretch of the output, accepted / tested there, and its standard error."""
    import pandas as pd

    arms = [row["arm"] for row in series.counting_tokens if row["arm"] in measured.loops_by_arm]
    columns = ["example_id", "start", "accepted", "tested"]
    loops = pd.concat([measured.loops_by_arm[arm][columns] for arm in arms], ignore_index=True)
    loops = loops[loops["accepted"].notna() & (loops["tested"] > 0)]
    if loops.empty:
        return np.empty((0, 3))
    width = max(1, -(-(int(loops["start"].max()) + 1) // _BINS))
    cells = loops.assign(bin=loops["start"] // width).groupby(["bin", "example_id"], sort=True)
    sums = cells[["accepted", "tested"]].sum().reset_index()
    points = [_point(int(part["bin"].iloc[0]), width, part) for _, part in sums.groupby("bin")]
    return np.asarray([point for point in points if point is not None])


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
    """One panel per K, the series side by side; skipped where no acceptance was seen."""
    seen = [row for series in measured.series for row in series.counting_tokens if row["acceptance"]]
    ks = sorted({row["k"] for row in seen})
    if len(ks) > _MOST_PANELS:  # the ends among them
        ks = [
            ks[i] for i in sorted({*np.linspace(0, len(ks) - 1, _MOST_PANELS).round().astype(int).tolist()})
        ]
    if not ks:
        raise FigureSkipped("no engine saw what was accepted")
    figure, panels = style.sheet(measured, [k + 2.5 for k in ks], 2.5, _MOST_PANELS)
    top = max(_lengths_panel(axes, measured, k) for axes, k in zip(panels, ks, strict=True))
    for axes in panels:
        axes.set_ylim(0, min(1.0, 1.08 * top))
    style.label_beside(panels, "share of loops")
    keys = [style.patch(series.label, color=_look(measured, series)["color"]) for series in measured.series]
    keys.append(style.key("if tests were independent", color=style.INK, marker="_", linestyle="", mew=1.4))
    style.legend(figure, keys)
    return Drawing("tokens_per_loop", "Tokens per loop", captions.LENGTHS, figure)


def _lengths_panel(axes: Axes, measured: Measured, k: int) -> float:
    """The histogram of one K; its highest bar."""
    width, top = 0.8 / len(measured.series), 0.0
    lengths = np.arange(1, k + 2)
    for index, series in enumerate(measured.series):
        rows = [row for row in series.counting_tokens if row["k"] == k and row["acceptance"]]
        if not rows or rows[0]["acceptance"] is None:
            continue
        accepted = measured.loops_by_arm[rows[0]["arm"]]["accepted"].to_numpy(dtype=np.int64)
        shares = np.bincount(accepted, minlength=k + 1)[: k + 1] / len(accepted)
        x = lengths + (index - (len(measured.series) - 1) / 2) * width
        axes.bar(x, shares, width * 0.92, color=style.look(index)["color"])
        # Shares of loops with 1..K+1 tokens if every test passed with alpha, whatever came before.
        alpha = rows[0]["acceptance"]["alpha_tested"]
        alpha = np.nan if alpha is None else alpha
        expected = np.asarray([*(alpha**j * (1 - alpha) for j in range(k)), alpha**k])
        axes.hlines(expected, x - width * 0.46, x + width * 0.46, color=style.INK, linewidth=1.2)
        top = max(top, float(shares.max()), float(expected.max()))
    style.name_axes(axes, f"K = {k}", "", "tokens")
    axes.set_xticks(lengths)
    axes.set_xlim(0.4, k + 1.6)
    return top


def replayed(measured: Measured) -> Drawing:
    """One panel per series; skipped where no ArS text was read with the draft."""
    shown = [(series, arms) for series in measured.series if len(arms := _replayed(measured, series)) > 1]
    if not shown:
        raise FigureSkipped(captions.NO_LOOKAHEADS_REPLAYED)

    def panel(axes: Axes, curve: tuple[Series, list[ArmPrediction]]) -> None:
        series, arms = curve
        look, ks = _look(measured, series), [arm["k"] for arm in arms]
        lengths = [length for arm in arms if (length := arm["tokens_per_loop_replayed"])]
        axes.plot(ks, [length["estimate"] for length in lengths], color=look["color"], linewidth=1.4)
        band = np.array([[length["low"] or np.nan, length["high"] or np.nan] for length in lengths]).T
        axes.fill_between(ks, *band, color=look["color"], alpha=0.2, linewidth=0)
        kept = [arm["tokens_per_loop_kept"] or np.nan for arm in arms]
        independent = [arm["tokens_per_loop_predicted"] or np.nan for arm in arms]
        axes.plot(ks, kept, **{**look, "linestyle": ""})
        axes.plot(ks, independent, color=style.FAINT, linestyle=_DASHED)
        style.over_k(axes, ks)
        style.name_axes(axes, f"Tokens per loop, {series.label}", "tokens per loop")

    figure, _ = _sheet_of(measured, shown, panel)
    keys = [
        style.key("measured", color=style.INK, marker="o", linestyle=""),
        style.key(captions.REPLAYED, color=style.INK, linestyle="-"),
        style.key(captions.INDEPENDENT, color=style.FAINT, linestyle=_DASHED, lw=1.2),
    ]
    style.legend(figure, keys)
    return Drawing("replay", captions.REPLAY_TITLE, captions.REPLAY, figure)


def _replayed(measured: Measured, series: Series) -> list[ArmPrediction]:
    found = measured.summary.get("prediction")
    names = {row["arm"] for row in series.speculative}
    arms = [arm for arm in (found["arms"] if found else ()) if arm["arm"] in names]
    return sorted((arm for arm in arms if arm["tokens_per_loop_replayed"]), key=lambda arm: arm["k"])


# --- sequences and prompts ---

PERCENTILES: dict[int, Any] = {50: "-", 90: _DASHED, 99: _DOTTED}


def tails(measured: Measured) -> Drawing:
    """Percentiles per series and the share of prompts slower; skipped without an SpS arm."""
    shown = [series for series in measured.series if series.speculative]
    if not shown:
        raise FigureSkipped("no speculative arm finished a sequence")
    ks = [k for k in measured.ks if k > 0]
    sweep = len(ks) > 1
    figure, panels = style.sheet(measured, [1.0] * (len(shown) + sweep), 2.9)
    timed = panels[: len(shown)]
    for axes, series in zip(timed, shown, strict=True):
        _percentiles(axes, measured, series)
    style.same_top(timed, 1.04)
    keys = [style.key(f"P{part}", color=style.INK, linestyle=dash) for part, dash in PERCENTILES.items()]
    fewest = min(row["sequences"] for series in measured.series for row in series.rows)
    if sweep:
        _slower(panels[-1], measured, shown, ks)
        for series in shown if len(shown) > 1 else ():
            keys.append(style.patch(series.label, color=_look(measured, series)["color"]))
    style.legend(figure, keys)
    caption = captions.TailPercentiles(
        measured.fixed_length, sweep, fewest if fewest < FEWEST_FOR_P99 else None
    )
    return Drawing("tails", captions.TAILS_TITLE, str(caption), figure)


def _percentiles(axes: Axes, measured: Measured, series: Series) -> None:
    length, values = measured.fixed_length, []
    for row in series.rows:
        part = measured.sequences[row["arm"]]
        per_token = (
            1e3 * (length or 1) * part["decode_s"].to_numpy(float) / part["new_tokens"].to_numpy(float)
        )
        values.append(np.percentile(per_token, list(PERCENTILES)))
    ks = [row["k"] for row in series.rows]
    for column, dash in zip(np.asarray(values).T, PERCENTILES.values(), strict=True):
        axes.plot(ks, column, **_look(measured, series) | {"linestyle": dash, "markersize": 3.5})
    what = f"Time for {length} tokens" if length else "Time per token"
    style.name_axes(axes, f"{what}, {series.label}", "time (ms)")
    style.over_k(axes, measured.ks)


def _slower(axes: Axes, measured: Measured, shown: Sequence[Series], ks: Sequence[int]) -> None:
    width = 0.75 / len(shown)
    for number, series in enumerate(shown):
        color, apart = _look(measured, series)["color"], (number - (len(shown) - 1) / 2) * width
        known = [(row["k"], row["share_slower"]) for row in series.speculative]
        slower = [(ks.index(k) + apart, 100 * share) for k, share in known if share is not None]
        x, shares = [at for at, _ in slower], [share for _, share in slower]
        axes.bar(x, shares, width * 0.9, color=color, label=series.label)
        for at in (at for at, share in slower if share == 0):
            axes.text(at, 0.8, "0", ha="center", va="bottom", fontsize=style.SMALL_PT, color=style.FAINT)
    style.places(axes, ks)
    axes.set_ylim(0, max(10.0, axes.get_ylim()[1]))
    style.name_axes(axes, captions.SLOWER_TITLE, "prompts (%)")


FIGURES: dict[str, Callable[[Measured], Drawing]] = {
    "Speedup by arm": by_arm,
    "Figure 1": figure1,
    "Speedup against K": against_k,
    captions.LOOP_TITLE: phases,
    "Acceptance": positions,
    "Tokens per loop": lengths,
    captions.REPLAY_TITLE: replayed,
    "Tails": tails,
}
