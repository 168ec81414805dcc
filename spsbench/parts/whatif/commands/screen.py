"""What ``bench``, ``replay`` and ``advise`` print: facts for JSON, tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from spsbench.parts.whatif.messages import advice as advice_says
from spsbench.parts.whatif.messages import bench as bench_says
from spsbench.parts.whatif.messages import replay as replay_says
from spsbench.parts.whatif.messages.advice import slower_by
from spsbench.parts.whatif.messages.bench import short
from spsbench.parts.whatif.replay.advice import Advice, Candidate, Check
from spsbench.parts.whatif.replay.policies import Choice, Curve, PolicyCell
from spsbench.parts.whatif.replay.prediction import DrafterForecast, Predicted
from spsbench.parts.whatif.replay.study import Study
from spsbench.parts.whatif.replay.times import TimeSource
from spsbench.report import (
    NOTHING,
    Cell,
    Column,
    Heading,
    Row,
    Styled,
    Table,
    interval,
    left,
    milliseconds,
    percent,
    right,
    speedup,
)
from spsbench.stats import at_any


def replay_facts(study: Study, curves: Sequence[Curve]) -> dict[str, Any]:
    """Return all of a replay for JSON."""
    written = study.written
    facts: dict[str, Any] = {
        "source": str(written.source),
        "sampling": written.sampling_name,
        "texts": len(written.texts),
        "tokens": written.tokens,
        "cells": [_forecast_facts(forecast) for forecast in study.forecasts],
    }
    if curves:
        facts["policies"] = [
            {
                "drafter": str(curve.drafter),
                "k": curve.k,
                "cells": [_policy_facts(cell) for cell in curve.cells],
                "oracle": _policy_facts(curve.oracle),
                "choices": [asdict(choice) | {"policy": str(choice.policy)} for choice in curve.choices],
                "beyond_ms": {name: asdict(seconds) for name, seconds in curve.beyond_ms.items()},
                "rollouts": curve.rollouts,
            }
            for curve in curves
        ]
    return facts


def _forecast_facts(forecast: DrafterForecast) -> dict[str, Any]:
    break_even, predicted = forecast.even, forecast.predicted
    return {
        "drafter": str(forecast.drafter),
        "draft": forecast.draft or None,
        "rule": forecast.rule,
        "k": forecast.k,
        "nodes": forecast.nodes,
        "tokens_per_loop": asdict(forecast.tokens_per_loop),
        "r_prime": forecast.r_prime,
        "emitted": forecast.emitted.tolist(),
        "loops": dict(zip(("p50", "p90", "p99"), forecast.loops, strict=True)),
        "break_even": None if break_even is None else asdict(break_even),
        "predicted": None if predicted is None else asdict(predicted),
        **({} if (again := forecast.reading_again) is None else {"states_kept_saves": again}),
        "measured_tokens_per_loop": forecast.measured,
    }


def _policy_facts(cell: PolicyCell) -> dict[str, Any]:
    return asdict(cell) | {"policy": None if cell.policy is None else str(cell.policy)}


def replay_screen(study: Study, curves: Sequence[Curve], times: TimeSource | None) -> RenderableType:
    """Return a table of cells, one of each curve, the best K's distance from break-even, and whose times."""
    written = study.written
    rows = []
    for forecast in study.forecasts:
        p50, _, p99 = forecast.loops
        ran = "" if forecast.measured is None else f"{forecast.measured:.2f}"
        times_of = _times(forecast.predicted)
        rows.append(
            (
                forecast.label,
                [_size(forecast), interval(forecast.tokens_per_loop), ran, f"{p50}, {p99}", *times_of],
            )
        )
    titles = ("tokens/loop [95%]", "in the run", "loops P50, P99", "ms/token", "speedup [95%]")
    break_evens = _break_evens(study.forecasts)
    return Group(
        str(
            replay_says.TextsReplayed(
                written.label, written.sampling_name, len(written.texts), written.tokens
            )
        ),
        "",
        _table_by_group([left(), *map(right, titles)], rows).as_rich(),
        *(part for curve in curves for part in _policies_of_drafter(curve)),
        "",
        *([*break_evens, ""] if break_evens else []),
        *_reading_again(study.forecasts),
        replay_says.PREDICTED if times is None else f"{replay_says.PREDICTED} {times.origin}",
    )


def _reading_again(forecasts: Sequence[DrafterForecast]) -> list[str]:
    """What an engine that keeps running states would save, at the fastest forecast."""
    known = [one for one in forecasts if one.timed is not None and one.reading_again is not None]
    if not known:
        return []
    best = min(known, key=lambda one: one.timed.mean_s() if one.timed else 0.0)
    return [str(replay_says.StatesWouldSave(best.reading_again or 0.0, best.name, best.k))]


def _size(one: DrafterForecast) -> str:
    return f"K={one.k}" + ("" if one.tree is None else f", {one.nodes} nodes")


def _table_by_group(columns: Sequence[Column], rows: Iterable[tuple[str, Row]]) -> Table:
    lines: list[Row | Heading] = []
    before = None
    for name, row in rows:
        if name != before:
            before = name
            lines.append(Heading(name))
        lines.append(row)
    return Table(columns, lines)


def _times(predicted: Predicted | None) -> list[str]:
    if predicted is None:
        return ["", ""]
    return [f"{predicted.ms_per_token.estimate:.3g}", interval(predicted.speedup, "x")]


def _break_evens(forecasts: Sequence[DrafterForecast]) -> list[str]:
    """From which alpha on each drafter gains, at its fastest K."""
    best: dict[str, tuple[float, replay_says.GainsFrom]] = {}
    for forecast in forecasts:
        even = forecast.even
        if forecast.timed is not None and even is not None:
            taken_s = forecast.timed.mean_s()
            name = forecast.label
            if name not in best or taken_s < best[name][0]:
                at = replay_says.GainsFrom(name, forecast.k, even.cost, even.alpha, even.c, even.c_allowed)
                best[name] = taken_s, at
    return [str(even) for _, even in best.values()]


def _policies_of_drafter(curve: Curve) -> Iterator[RenderableType]:
    rows = []
    for cell in (*curve.cells, curve.oracle):
        name, _, threshold = ("oracle" if cell.policy is None else str(cell.policy)).partition(":")
        low, high = cell.bounds.low, cell.bounds.high
        between = "" if high - low < 0.005 else f" ({low:.2f}-{high:.2f})"
        drafted = f"{cell.drafted_per_loop.estimate:.2f}{between}"
        rows.append((name, [threshold, interval(cell.tokens_per_loop), drafted, *_times(cell.predicted)]))
    titles = ("tokens/loop [95%]", "drafted/loop", "ms/token", "speedup [95%]")
    table = _table_by_group([left(whole=True), *map(right, titles)], rows)
    yield from ("", f"{curve.drafter}, up to K={curve.k}, by policy", "", table.as_rich(), "")
    for choice in curve.choices:
        yield from _judged(choice)
    for cell in curve.cells:
        if cell.ran is not None:
            yield str(replay_says.PolicyRan(cell.policy, cell.ran.tokens_per_loop))
    if curve.rollouts:
        yield str(replay_says.DraftsSampled(curve.rollouts))
    if curve.choices:
        yield str(replay_says.OracleBounds(curve.k))
    if curve.beyond_ms:
        yield str(replay_says.PoliciesCost(curve.beyond_ms))


def _judged(choice: Choice) -> Iterator[str]:
    policy, fixed_k = choice.policy, choice.fixed_k
    yield str(replay_says.PolicyChosen(policy, choice.chosen_on, choice.gain, fixed_k, choice.judged_on))
    if choice.fixed_share is not None and choice.policy_share is not None:
        yield str(replay_says.ShareOfOracle(fixed_k, choice.fixed_share, policy, choice.policy_share))


def advice_facts(directory: Path, advice: Advice, checks: Sequence[Check], use: Check) -> dict[str, Any]:
    """Return all of an advice for JSON; ``use`` is what is advised."""
    return {
        "run": str(directory),
        "chosen_on": len(advice.choosing),
        "judged_on": len(advice.judging),
        "advised": _candidate(use.candidate),
        "close_k": list(advice.close) if use.candidate is advice.best else [],
        "too_large": list(advice.too_large),
        "untrusted": advice.untrusted,
        "others": [_candidate(each) for each in (advice.best, *advice.others) if each is not use.candidate],
        "break_even": None if advice.even is None else asdict(advice.even),
        "live": use.live,
        "within": use.within,
        "checked": [
            {
                **{name: _candidate(check.candidate)[name] for name in ("drafter", "draft", "k", "rule")},
                "live": check.live,
                "within": check.within,
                "alarm": check.alarm,
                "prompts": check.prompts,
                "untrusted": check.untrusted,
            }
            for check in checks
        ],
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    forecast = candidate.forecast
    return {
        "drafter": None if forecast is None else str(forecast.drafter),
        "draft": None if forecast is None else forecast.draft or None,
        "k": 0 if forecast is None else forecast.k,
        "rule": None if forecast is None else forecast.rule,
        "speedup": asdict(candidate.speedup),
        "slower": asdict(candidate.slower),
        "p99_s": candidate.p99_s,
        "bytes": candidate.bytes,
    }


def advice_screen(
    label: str, sampling: str, advice: Advice, checks: Sequence[Check], use: Check, command: str | None
) -> RenderableType:
    """Return what to use, how sure that is, the alternatives, and the command that measures the advice."""
    rows = []
    for each in (advice.best, *advice.others):
        slower = "" if each is advice.best else slower_by(each.slower)
        rows.append([each.name, interval(each.speedup, "x"), slower, f"{each.p99_s:.2f}"])
    titles = ("speedup [95%]", "slower by [95%]", "P99 [s]")
    return Group(
        str(advice_says.ChosenOn(label, sampling, len(advice.choosing), len(advice.judging))),
        "",
        *map(str, _conclusions(advice, checks, use)),
        "",
        Table([left(whole=True), *map(right, titles)], rows).as_rich(),
        *(("", Text(command)) if command else ()),
    )


def _conclusions(advice: Advice, checks: Sequence[Check], use: Check) -> Iterator[object]:
    """Why times are doubted stands before what they show."""
    yield from filter(None, [advice.untrusted])
    chosen = use.candidate
    if chosen.forecast is None:
        yield advice_says.NothingPays(was_run=bool(checks))
    else:
        lows = chosen.speedup.low, None if use.live is None else use.live["low"]
        yield advice_says.Advised(
            chosen.name, chosen.speedup, any(low is not None and low > 1.0 for low in lows)
        )
    yield from _live_runs(advice, checks, use)
    best = chosen is advice.best
    if best and advice.close:
        yield advice_says.CloseK(advice.close)
    for other in advice.others:
        if best and not checks and other.slower.estimate < 1.0:
            yield advice_says.FasterWhereMeasured(other.name)
    if best and advice.even is not None and advice.even.c_allowed is not None:
        yield advice_says.DraftingAllowed(advice.even.c_allowed, advice.even.c)
    if best and advice.plain is not None:
        yield advice_says.WithoutBlock(advice.plain.name, advice.plain.slower)
    yield from _reading_again([] if chosen.forecast is None else [chosen.forecast])
    if advice.too_large:
        yield advice_says.CellsTooLarge(advice.too_large)


def _live_runs(advice: Advice, checks: Sequence[Check], use: Check) -> Iterator[object]:
    yield from dict.fromkeys(check.untrusted for check in checks if check.untrusted)
    for check in checks:
        name = check.candidate.name
        yield advice_says.MeasuredLive("" if check is use else name, check.prompts, check.live, check.within)
        if check.alarm:
            yield advice_says.DoesNotFollow(name)
    forecasts = [each.forecast for each in (advice.best, *advice.others)]
    ran = [id(check.candidate.forecast) for check in checks]
    if checks and any(
        forecast is not None and forecast.tree and id(forecast) not in ran for forecast in forecasts
    ):
        yield advice_says.TREES_NOT_RUN


_REGIMES = {"dispatch-bound": bench_says.READ_FROM_CACHE, "unknown": bench_says.BANDWIDTH_UNKNOWN}
Facts = Mapping[str, Any]


def bench_screen(facts: Facts) -> RenderableType:
    """Return models, then what was measured, and one sentence."""
    rows = []
    for role in ("target", "draft"):
        model = facts[role]
        kind = "random weights" if model["random_weights"] else ""
        size = f"{model['parameters'] / 1e6:,.1f}M"
        rows.append([role, model["name"], f"{model['model_type']}, {size}, {model['dtype']}", kind])
    if "step_ms" in facts:
        parts = _by_batch(facts)
    else:
        parts = _by_context(facts) if "contexts" in facts else _at_one_context(facts)
    return Group(Table([left()] * 4, rows).as_rich(), "", *parts)


def _titled(tables: Mapping[str, Table]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for title, table in tables.items():
        parts += [Group(Text(title, style="bold"), "", table.as_rich()), ""]
    return parts


def _device(facts: Facts) -> str:
    gpu = facts.get("gpu")
    return str(facts["device"]) if gpu is None else f"{gpu['name']}, {gpu['device']}"


def _at_one_context(facts: Facts) -> list[RenderableType]:
    """Forwards, floors, the grid, and loops with synthetic acceptance if there are any."""
    place = f"{_device(facts)}, {facts['threads']} threads, {facts['modes']['target']}"
    title = f"Forwards after {facts['context']} tokens of context, {place}"
    columns = [right("model"), right("rows"), right("ms"), right("t(n)/t(1)", note="95%")]
    rows = []
    for role in ("target", "draft"):
        for row in facts["forwards"][role]:
            ratio = f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}]" if row["rows"] > 1 else "1"
            times = milliseconds(row["ms"]), ratio, milliseconds(row["floor_ms"])
            rows.append([role, str(row["rows"]), *times, percent(row["share"])])
    forwards = _titled({title: Table([*columns, right("floor ms"), right("of floor")], rows)})
    floor = _REGIMES.get(facts["regime"], bench_says.FLOOR_OF_BYTES)
    if _is_floor_beaten(row for role in facts["forwards"].values() for row in role):
        floor += bench_says.FLOOR_BEATEN
    memory = f"{bench_says.MemoryRead(facts['bandwidth_bytes_per_s'])}{floor}"
    grid = _titled({"Predicted speedup, forwards alone, independent tests": _grid(facts["payoff"])})
    predicted = _predictions_or_doubts(grid, facts["verdict"], [facts["untrusted"]])
    forced = [] if facts["forced"] is None else _forced_table(facts["forced"])
    return [*forwards, memory, "", *predicted, *forced]


def _predictions_or_doubts(
    tables: list[RenderableType], verdict: str, doubts: Sequence[str | None]
) -> list[RenderableType]:
    """Of times that are doubted the doubts first, and no verdict."""
    said = [text for text in doubts if text is not None]
    return [*said, "", *tables[:-1]] if said else [*tables, verdict]


def _is_floor_beaten(rows: Iterable[Facts]) -> bool:
    return any((row["share"] or 0.0) > 1.0 for row in rows)


def _grid(facts: Facts) -> Table:
    ks = list(facts["costs"])
    rows: list[list[Cell]] = []
    for row in facts["grid"]:
        cells = [
            Styled(f"{value:.2f}", "bold") if k == row["best_k"] else f"{value:.2f}"
            for k, value in row["speedups"].items()
        ]
        rows.append([f"{row['alpha']:.2f}", *cells])
    needed = facts["break_even"]
    rows.append(["pays from", *(_needed(needed[k]) for k in ks)])
    return Table([right("alpha"), *(right(f"K={k}") for k in ks)], rows)


def _needed(alpha: float | None) -> str:
    if alpha is None:
        return "never"
    return "any" if at_any(alpha) else f"{alpha:.2f}"


def _forced_table(facts: Facts) -> list[RenderableType]:
    shares = " ".join(f"{p:.2f}" for p in facts["acceptance_by_position"])
    title = f"Measured with SYNTHETIC acceptance ({shares}), {facts['rounds']} rounds"
    columns = [right("arm"), right("ms/token"), right("tokens/loop"), right("speedup", note="95%")]
    rows = [
        [
            f"SpS (K={arm['k']})" if arm["k"] else "ArS",
            milliseconds(arm["ms_per_token"]),
            f"{arm['tokens_per_loop']:.2f}",
            speedup(arm["speedup"]) if arm["k"] else "1x",
            NOTHING if arm["predicted"] is None else f"{arm['predicted']:.2f}x",
        ]
        for arm in facts["arms"]
    ]
    return ["", *_titled({title: Table([*columns, right("predicted")], rows)})[:-1]]


def _by_context(facts: Facts) -> list[RenderableType]:
    place = f"{_device(facts)}, {facts['threads']} threads, {facts['modes']['target']}"
    forwards = _titled({f"Forwards by context, {place}": forwards_table(facts)})
    allowed = _titled({"What they read and allow": payoff_table(facts)})
    beaten = _is_floor_beaten(context["forwards"]["target"][0] for context in facts["contexts"])
    memory = str(bench_says.ReadByContext(facts["bandwidth_bytes_per_s"], beaten))
    doubts = [
        str(bench_says.UntrustedAfter(context["context"], context["untrusted"]))
        for context in facts["contexts"]
        if context["untrusted"] is not None
    ]
    return [*forwards, *_predictions_or_doubts([*allowed, memory, ""], facts["sentence"], doubts)]


def forwards_table(facts: Facts) -> Table:
    """Return t(1) of the target, t(K+1)/t(1) for a few K, and c.

    A row of four intervals would be too wide.
    """
    ks = facts["ks_shown"]
    rows = []
    for measured in facts["contexts"]:
        target = {row["rows"]: row for row in measured["forwards"]["target"]}
        ratios = [
            f"{row['ratio']:.2f}\n[{row['low']:.2f}, {row['high']:.2f}]"
            for row in (*(target[k + 1] for k in ks), measured["c"])
        ]
        rows.append([short(measured["context"]), milliseconds(target[1]["ms"]), *ratios])
    titles = ["context", "t(1) ms", *(f"t({k + 1})/t(1)" for k in ks), "c"]
    return Table([*map(right, titles)], rows)


def payoff_table(facts: Facts) -> Table:
    """Return bytes of keys and values beside those of weights, the floor, break-even and the best speedup."""
    rows = []
    for context in facts["contexts"]:
        read, one = context["read_bytes"]["target"], context["forwards"]["target"][0]
        best, kv = context["best"], read["keys_and_values"]
        known = {k: alpha for k, alpha in context["payoff"]["break_even"].items() if alpha is not None}
        k = min(known, key=lambda k: (known[k], k), default=None)
        rows.append(
            [
                short(context["context"]),
                NOTHING if kv is None else f"{kv / 1e6:,.0f}",
                f"{read['weights'] / 1e6:,.0f}",
                milliseconds(one["floor_ms"]),
                percent(one["share"]),
                _needed(None) if k is None else f"{_needed(known[k])} (K={k})",
                f"{best['speedup']:.2f}x (K={best['k']})" if best["k"] else "none gains",
            ]
        )
    titles = ("context", "KV MB", "weights MB", "floor ms", "of floor", "pays from alpha", "best at .8")
    return Table([*map(right, titles)], rows)


def _by_batch(facts: Facts) -> list[RenderableType]:
    """Forwards, the speedups they allow, those of real loops, and where they pay."""
    place = f"{_device(facts)}, {facts['threads']} threads, after {facts['context']} tokens"
    ks = sorted({cell["k"] for cell in facts["cells"]})
    cells = {(cell["batch"], cell["k"]): cell for cell in facts["cells"]}
    rows = []
    for size, step in facts["step_ms"].items():
        ratios = [f"{cells[size, k]['verify_ms'] / step:.2f}" for k in ks[:4]]
        rows.append([str(size), milliseconds(step), milliseconds(step / size), *ratios])
    titles = ["B", "t(B) ms", "t(B)/B", *(f"t(B*{k + 1})/t(B)" for k in ks[:4])]

    def speedups(kind: str) -> Table:
        lines: list[list[Cell]] = []
        for size in facts["step_ms"]:
            shown: list[Cell] = [str(size)]
            for k in ks:
                value = cells[size, k][kind]
                point, clear = (
                    (value, value)
                    if kind == "predicted"
                    else (value["ratio"], value["low"] or value["ratio"])
                )
                shown.append(Styled(f"{point:.2f}", "bold") if clear > 1 else f"{point:.2f}")
            lines.append(shown)
        return Table([right("B"), *(right(f"K={k}") for k in ks)], lines)

    forwards = _titled({f"Forwards by batch size, {place}": Table([*map(right, titles)], rows)})
    tables = {f"Predicted speedup by the forwards alone, {facts['assumed']}": speedups("predicted")}
    if any(cell["measured"] for cell in facts["cells"]):
        tables[f"Measured with SYNTHETIC acceptance, {facts['assumed']}"] = speedups("measured")
    return [
        *forwards,
        *_predictions_or_doubts(_titled(tables), str(_pays_up_to(facts)), [facts["untrusted"]]),
    ]


def _pays_up_to(facts: Facts) -> object:
    """Up to which batch size speculation should pay, at the K that goes furthest."""
    beyond = [k for k, end in facts["pays_up_to"].items() if end is None]
    if beyond:
        return bench_says.PaysUpToLargestBatch(max(facts["step_ms"]), beyond)
    k, furthest = max(facts["pays_up_to"].items(), key=lambda item: item[1] or 0.0)
    return bench_says.BatchByForwards(furthest, k) if furthest else bench_says.NO_BATCH_PAYS
