"""The figures show what the run recorded."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text
from support.drawing import as_svg
from support.synthetic_run import gallery, measured

from spsbench.report import figures
from spsbench.report.figures import draw, style
from spsbench.report.figures.style import Drawing, FigureSkipped, printed, quiet
from spsbench.report.measured import Measured

Draw = Callable[[Measured], Drawing]


@pytest.fixture(autouse=True)
def styled() -> Iterator[None]:
    with quiet(), as_svg():
        yield


def lines(axes: Any) -> list[Any]:
    """Lines that connect something: no error bars, no rules."""
    return [line for line in axes.get_lines() if len(line.get_xdata()) > 2]


def test_figure_1_shows_both_clocks() -> None:
    """The wall's mean and deviation are those of the sequences, the paper's those of their loop counts."""
    drawing = figures.figure1(measured())
    axes = drawing.figure.axes[0]
    assert axes.get_title(loc="left") == "Time for 24 tokens"
    bars = [container for container in axes.containers if container.has_yerr]
    wall, paper = bars[0], bars[1]
    sequences = measured().sequences["sps-k4-nucleus"]
    expected = 1e3 * sequences["decode_s"]
    assert wall[0].get_ydata()[-1] == pytest.approx(expected.mean())
    (low, high) = wall[2][0].get_segments()[-1][:, 1]
    assert (high - low) / 2 == pytest.approx(expected.std(ddof=1))
    row = next(row for row in measured().summary["rows"] if row["arm"] == "sps-k4-nucleus")
    by_loops = sequences["loops"] * row["loop_time"]["loop_ms"]
    assert paper[0].get_ydata()[-1] == pytest.approx(by_loops.mean())
    (low, high) = paper[2][0].get_segments()[-1][:, 1]
    assert (high - low) / 2 == pytest.approx(by_loops.std(ddof=1))


def test_figure_1_shows_r_prime_and_the_fitted_loop_time() -> None:
    _, share, loop = figures.figure1(measured()).figure.axes
    rows = measured().series[1].rows
    assert lines(share)[1].get_ydata().tolist() == [1.0, *(r["acceptance"]["r_prime"] for r in rows[1:])]
    assert lines(loop)[0].get_ydata().tolist() == [
        r["loop_time"]["loop_ms"] for r in measured().series[0].rows
    ]
    line = measured().summary["prediction"]["samplings"][0]["loop"]
    fitted = next(li for li in loop.get_lines() if li.get_xdata().tolist() == [1.0, 4.0])
    assert np.diff(fitted.get_ydata())[0] == pytest.approx(3 * line["slope_ms"])


def test_the_caption_says_which_line_is_no_fit() -> None:
    alone = "ms per drafted token, through two K alone"
    assert alone in figures.figure1(measured(ks=(0, 2, 4), samplings=("nucleus",))).caption
    assert alone not in figures.figure1(measured()).caption


def test_outputs_of_free_length_are_told_by_token() -> None:
    drawing = figures.figure1(measured(fixed_length=False))
    axes = drawing.figure.axes[0]
    assert axes.get_title(loc="left") == "Time per token"
    assert "outputs differ in length" in drawing.caption
    wall = next(container for container in axes.containers if container.has_yerr)
    rows = measured(fixed_length=False).series[0].rows
    assert wall[0].get_ydata().tolist() == pytest.approx([row["ms_per_token"] for row in rows])


def test_speedup_has_its_interval_and_its_predictions() -> None:
    drawing = figures.against_k(measured())
    rows = measured().series[0].speculative
    axes = drawing.figure.axes[0]
    (bars,) = [container for container in axes.containers if container.has_yerr]
    assert bars[0].get_ydata().tolist() == [row["speedup"]["ratio"] for row in rows]
    ends = np.asarray([segment[:, 1] for segment in bars[2][0].get_segments()])
    np.testing.assert_allclose(ends, [[row["speedup"]["low"], row["speedup"]["high"]] for row in rows])
    predicted = [row["prediction"]["chen"] for row in rows]
    assert any(line.get_ydata().tolist() == predicted for line in lines(axes) if len(line.get_xdata()) == 3)
    without = {**measured().summary, "rows": [{**r, "prediction": None} for r in measured().summary["rows"]]}
    plain = figures.against_k(dataclasses.replace(measured(), summary=without))
    assert "Predictions" in drawing.caption
    assert "Predictions" not in plain.caption


def test_a_long_legend_stays_inside_the_figure() -> None:
    figure, _ = style.sheet(measured(), [1.0])
    style.legend(figure, [style.key(f"a curve with rather a long name, number {i}") for i in range(3)])
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_acceptance_by_position_is_that_of_the_deepest_arm() -> None:
    position, along = figures.positions(measured()).figure.axes
    deepest = measured().series[0].rows[-1]["acceptance"]
    assert lines(position)[0].get_ydata().tolist() == deepest["acceptance_per_position"]
    assert lines(position)[1].get_ydata().tolist() == deepest["conditional_acceptance"]
    shown = lines(along)[0].get_ydata()
    parts = [measured().loops_by_arm[row["arm"]] for row in measured().series[0].speculative]
    first = [part[part["start"] < 2] for part in parts]
    rate = sum(p["accepted"].sum() for p in first) / sum(p["tested"].sum() for p in first)
    assert shown[0] == pytest.approx(rate)


def test_outputs_too_short_for_a_rate_leave_no_empty_panel() -> None:
    few = dataclasses.replace(measured(), loops=measured().loops.assign(tested=0))
    _, along = figures.positions(few).figure.axes
    assert [text.get_text() for text in along.texts] == ["no stretch has 20 tested tokens"]
    _, along = figures.positions(measured()).figure.axes
    assert not along.texts


def test_histograms_are_shares_of_loops() -> None:
    axes = figures.lengths(measured()).figure.axes[-1]
    assert axes.get_title(loc="left") == "K = 4"
    heights = [bar.get_height() for bar in axes.containers[0]]
    accepted = measured().loops_by_arm["sps-k4-nucleus"]["accepted"]
    assert heights == pytest.approx([(accepted == j).mean() for j in range(5)])
    assert sum(heights) == pytest.approx(1.0)


def test_the_parts_of_a_loop_add_up_to_it() -> None:
    axes = figures.phases(measured()).figure.axes[0]
    tops = np.sum([[bar.get_height() for bar in part] for part in axes.containers], axis=0)
    assert tops == pytest.approx([row["loop_time"]["loop_ms"] for row in measured().series[0].rows])


def test_percentiles_and_slower_prompts() -> None:
    drawing = figures.tails(measured())
    nucleus, _, slower = drawing.figure.axes
    times = 1e3 * measured().sequences["sps-k4-nucleus"]["decode_s"]
    assert [line.get_ydata()[-1] for line in lines(nucleus)] == pytest.approx(
        np.percentile(times, [50, 90, 99])
    )
    heights = [bar.get_height() for bar in slower.containers[0]]
    rows = measured().series[0].speculative
    assert heights == pytest.approx([100 * row["share_slower"] for row in rows])
    assert "With 12 sequences P99" in drawing.caption


def test_every_arm_has_a_bar_with_its_interval_and_doubts_are_stamped_on_it() -> None:
    run = measured()
    rows = [row for row in run.summary["rows"] if row["method"] == "sps"]
    (axes,) = figures.by_arm(run).figure.axes
    assert [bar.get_width() for bar in axes.patches] == [row["speedup"]["ratio"] for row in rows]
    assert [text.get_text() for text in axes.get_yticklabels()][:2] == [
        "SpS (K=1), nucleus",
        "SpS (K=2), nucleus",
    ]
    (bars,) = [lines for container in axes.containers for lines in getattr(container, "lines", ((),) * 3)[2]]
    ends = [(row["speedup"]["low"], row["speedup"]["high"]) for row in rows]
    assert np.asarray([segment[:, 0] for segment in bars.get_segments()]) == pytest.approx(np.asarray(ends))
    stamped = printed(figures.by_arm(doubted(run)))
    assert "UNDECIDED, CPU contention: xsum" in stamped.svg


def doubted(run: Measured) -> Measured:
    """A run on a busy machine, of a model that has a long name."""
    rows = [row | {"speedup": unsure(row["speedup"])} for row in run.summary["rows"]]
    labels = {"synthetic": False, "pair": "large", "model": "SmolLM2-135M-Instruct-of-some-length"}
    contention = {**run.summary["contention"], "reasons": ["others computed"]}
    summary: Any = {**run.summary, **labels, "rows": rows, "contention": contention, "verdict": None}
    return dataclasses.replace(run, summary=summary)


def unsure(found: Any) -> Any:
    return found and {**found, "low": None, "high": None}


def test_a_bar_without_an_interval_is_hatched() -> None:
    assert not any(bar.get_hatch() for bar in figures.by_arm(measured()).figure.axes[0].patches)
    drawing = figures.by_arm(doubted(measured()))
    assert all(bar.get_hatch() == style.NO_INTERVAL for bar in drawing.figure.axes[0].patches)
    assert "Hatched: no interval" in drawing.caption


@pytest.mark.parametrize("is_narrow", [False, True])
def test_long_names_of_arms_have_room(is_narrow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "SpS (K=3, own-rule) @vllm:python=vllm:head=/models/a-head-of-its-own:mended=true"
    for name in ("label", "full_name"):
        monkeypatch.setattr(figures, name, lambda row: long)
    with style.stacked() if is_narrow else nullcontext():
        drawing = figures.by_arm(doubted(measured()))
    printed(drawing)
    (axes,) = drawing.figure.axes
    boxes = [text.get_window_extent() for text in axes.get_yticklabels()]
    assert all(not box.overlaps(other) for box, other in itertools.pairwise(boxes))


@pytest.mark.parametrize("is_narrow", [False, True])
@pytest.mark.parametrize("figure", figures.FIGURES.values(), ids=figures.FIGURES)
def test_no_text_is_cut_off(figure: Draw, is_narrow: bool) -> None:
    """The warning, the model's name, titles and labels lie within the picture, on a page and on a phone."""
    with style.stacked() if is_narrow else nullcontext():
        drawing = figure(doubted(measured()))
    plate = printed(drawing)
    page = drawing.figure.bbox
    for text in drawing.figure.findobj(Text):
        box = text.get_window_extent()
        if re.search("[A-Za-z]", text.get_text()):  # ticks beyond an axis have numbers that are not drawn
            inside = page.x0 - 1 <= box.x0 and box.x1 <= page.x1 + 1 and box.y0 >= page.y0 - 1
            assert inside, f"{text.get_text()!r} at {box}"
    assert "UNDECIDED, CPU contention" in plate.svg
    assert "SmolLM2-135M-Instruct" in plate.svg


def test_the_page_describes_every_figure() -> None:
    source = Path(figures.__file__).read_text(encoding="utf-8")
    page = (Path(__file__).parents[3] / "docs/report.md").read_text(encoding="utf-8")
    section = page.partition("## Figures")[2].partition("\n## ")[0]
    assert {*re.findall(r"^\| `(\w+)`", section, re.MULTILINE)} == {*re.findall(r'Drawing\("(\w+)"', source)}


@pytest.mark.thorough
def test_one_lookahead_gives_the_sensible_rest() -> None:
    drawn = draw(measured(ks=(0, 4), samplings=("nucleus",)))
    names = ["arms", "loop_time", "acceptance", "tokens_per_loop", "tails"]
    assert [plate.name for plate in drawn.plates] == names
    assert [title for title, _ in drawn.left_out] == [
        "Figure 1",
        "Speedup against K",
        "Tokens per loop by replay",
    ]


def test_ars_alone_and_nothing_at_all_are_named() -> None:
    alone = draw(measured(ks=(0,), samplings=("nucleus",)))
    assert [plate.name for plate in alone.plates] == ["loop_time"]
    assert all(reason for _, reason in alone.left_out)
    empty = measured(prompts=0)
    nothing = draw(empty)
    assert nothing.plates == ()
    assert len(nothing.left_out) == 8


def test_where_a_graph_judges_forward_and_verdict_are_one_bar_of_every_arm() -> None:
    """Else a forward alone would stand beside one that has the verdict in it."""
    rows = [{**row, "target_mode": "graphs" if row["k"] else "stock"} for row in measured().summary["rows"]]
    judged = dataclasses.replace(measured(), summary={**measured().summary, "rows": rows})
    drawing, apart = figures.phases(judged), figures.phases(measured())
    series = judged.series[0].rows
    bars = [[bar.get_height() for bar in part] for part in drawing.figure.axes[0].containers]
    assert bars[0] == pytest.approx(
        [row["loop_time"]["verify_ms"] + row["loop_time"]["sample_ms"] for row in series]
    )
    assert "verify and judge, the target's pass" in drawing.caption
    assert "sample, warping" in apart.caption
    assert np.sum(bars, axis=0) == pytest.approx([row["loop_time"]["loop_ms"] for row in series])


def test_without_phases_their_figure_is_left_out() -> None:
    rows = [
        {**row, "loop_time": {**row["loop_time"], "draft_ms": None}} for row in measured().summary["rows"]
    ]
    blind = dataclasses.replace(measured(), summary={**measured().summary, "rows": rows})
    with pytest.raises(FigureSkipped, match="parts of a loop"):
        figures.phases(blind)


@pytest.mark.thorough
def test_synthetic_data_is_stamped_on_every_figure() -> None:
    assert len(gallery().plates) == 8
    for plate in gallery().plates:
        assert "SYNTHETIC" in plate.svg
        assert "xsum-fixture (synthetic), pair simulated, 12 prompts" in plate.svg


def test_real_data_is_not_stamped_and_names_are_no_markup() -> None:
    summary = {**measured().summary, "synthetic": False, "task_label": "$x$ <b>&amp;"}
    real = printed(figures.phases(dataclasses.replace(measured(), summary=summary)))
    assert "SYNTHETIC" not in real.svg
    assert "$x$ &lt;b&gt;&amp;amp;" in real.svg


def test_tokens_per_loop_by_replay_stand_beside_the_measured_ones() -> None:
    axes = figures.replayed(measured()).figure.axes[0]
    arms = [arm for arm in measured().summary["prediction"]["arms"] if arm["sampling"] == "nucleus"]
    told, kept, independent = axes.get_lines()
    assert told.get_ydata().tolist() == [arm["tokens_per_loop_replayed"]["estimate"] for arm in arms]
    assert kept.get_ydata().tolist() == [arm["tokens_per_loop_kept"] for arm in arms]
    # Simulated texts of the same ease as the simulated loops; 12 prompts of 24 tokens.
    assert np.allclose(told.get_ydata(), kept.get_ydata(), rtol=0.15)
    assert len(independent.get_ydata()) == len(arms) == 3


def test_a_run_without_read_texts_has_no_such_figure() -> None:
    without = [{**arm, "tokens_per_loop_replayed": None} for arm in measured().summary["prediction"]["arms"]]
    summary = {**measured().summary, "prediction": {**measured().summary["prediction"], "arms": without}}
    with pytest.raises(FigureSkipped, match="fewer than two"):
        figures.replayed(dataclasses.replace(measured(), summary=summary))
