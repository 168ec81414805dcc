"""``spsbench list``: what can be named, what it needs and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base.errors import SpsbenchError, UsageError
from spsbench.base.paths import embedded_dir, results_dir, way_to_install
from spsbench.base.plugins import unknown
from spsbench.base.records import OptionValue, Spec
from spsbench.cli.console import out, present, print_json
from spsbench.cli.doctor import ELSEWHERE, model_is_here, package_of, way_to_fetch
from spsbench.cli.messages import (
    BETTER_UNLESS_ERROR_RATE,
    EVALUATE_METRIC,
    NEEDS_OF_EVALUATE_METRIC,
    NEEDS_OF_FIELD,
    NEEDS_OF_GRAPHED,
    NEEDS_OF_PASS_AT_K,
    NEEDS_OF_WORKER,
    PASS_AT_K,
    FieldOfTasks,
    WayToEngines,
)
from spsbench.cli.options import Common, asks, option
from spsbench.config import list_pairs, list_protocols, load_pair, load_protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spsbench.base.plugins import Registry
    from spsbench.config import PairConfig
    from spsbench.tasks.spec import TaskSpec

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ListOptions(Common):
    """The options of ``list``."""

    what: str | None = option(
        "[WHAT]",
        "tasks, pairs, protocols, drafters, rules, policies, engines, metrics or runs. Default: all "
        "but runs.",
    )
    folder: Path | None = option("[FOLDER]", "Where the runs are, at any depth. Default: results/.")


@asks(ListOptions)
def list_(asked: ListOptions) -> None:
    """List tasks, pairs, protocols, drafters, rules, policies, engines and metrics; or the runs of a folder.

    Example: spsbench list drafters
    """
    if asked.what == RUNS:
        _list_runs(asked.folder or results_dir(), json=asked.json, quiet=asked.quiet)
        return
    if asked.folder is not None:
        why = f"{asked.folder} is given, and {asked.what or 'what can be named'} is not in a folder."
        raise UsageError(why, flag="FOLDER", remedy="Leave it out, or list runs.")
    if asked.what is not None and asked.what not in LISTS:
        raise unknown(asked.what, (*LISTS, RUNS), "WHAT")
    found = {name: LISTS[name]() for name in (LISTS if asked.what is None else [asked.what])}
    if asked.json:
        print_json(found)
    elif not asked.quiet:
        for name, rows in found.items():
            external = [row for row in rows if EXTERNAL in row]
            _print_table(name, [row for row in rows if EXTERNAL not in row])
            if external:
                _print_table(name, [{title: row[title] for title in _EXTERNAL_COLUMNS} for row in external])
                _print_limits(external)


RUNS = "runs"


def _list_runs(folder: Path, *, json: bool, quiet: bool) -> None:
    from spsbench.cli.runs import runs_in, table

    rows = runs_in(folder)
    present(lambda: {RUNS: rows}, lambda: table(rows).as_rich(), json=json, quiet=quiet)


SPSBENCH, NOTHING = "spsbench", "nothing"
EXTERNAL = "external engine"
"""How an engine is named that the user has installed."""
_EXTERNAL_COLUMNS = (EXTERNAL, "version", "greedy", "sampled", "statistics", "installed")
_MODELS, _FIXED = _WHOLE = ("target, draft", "drafter and rule")


def _task_rows() -> list[Row]:
    """Shipped ones, the field of tasks, and installed ones."""
    from spsbench.tasks.catalogue import TASKS, list_tasks
    from spsbench.tasks.spec import FIELD, FIELD_TASKS

    ours = [
        {"task": spec.name, "what": spec.title, "samplings": _lines(spec.samplings)}
        | {"needs": _needs_of_task(spec), "from": SPSBENCH}
        for spec in list_tasks()
    ]

    def about(kind: Any) -> Row:
        return {"samplings": _lines(kind.samplings), "needs": kind.needs}

    several = {
        "task": FIELD,
        "what": str(FieldOfTasks(tuple(FIELD_TASKS))),
        "samplings": "greedy",
        "needs": NEEDS_OF_FIELD,
        "from": SPSBENCH,
    }
    return [*ours, several, *_kind_rows("task", TASKS, about)]


def _needs_of_task(spec: TaskSpec) -> str:
    data = spec.data
    if data.docstrings or (data.mini and not data.hub and not data.package):
        return NOTHING if data.mini is None else way_to_install(data.mini.folder) or NOTHING
    source = f"{spec.data.hub[0].repository} from the hub" if spec.data.hub else "--data FILE"
    official = f"package {spec.data.package}" if spec.data.package else source
    mini = [] if spec.data.mini is None else [f"mini: {NOTHING}"]
    return "\n".join([*mini, f"official: {official}", *(["a sandbox"] if spec.kind == "code" else [])])


def _pair_rows() -> list[Row]:
    return [
        {"pair": pair.name, _MODELS: f"{pair.target.id}\n{pair.draft.id}", "notes": pair.notes}
        | {"needs": _needs_of_pair(pair), "from": SPSBENCH}
        for pair in map(load_pair, list_pairs())
    ]


def _needs_of_pair(pair: PairConfig) -> str:
    if embedded_dir(pair.target.id) is not None:
        return way_to_install(pair.target.id) or NOTHING
    here = all(model_is_here(ref.id, ref.revision) for ref in (pair.target, pair.draft))
    packaged = package_of(pair.target.id)
    away = "from the hub" if packaged is None else way_to_fetch(packaged)
    return f"weights, {'here' if here else away}"


def _protocol_rows() -> list[Row]:
    return [
        {
            "protocol": protocol.name,
            "K": ", ".join(map(str, protocol.ks)),
            "prompts": "all" if protocol.limit is None else str(protocol.limit),
            "notes": protocol.notes,
            "needs": NOTHING,
            "from": SPSBENCH,
        }
        for protocol in map(load_protocol, list_protocols())
    ]


def _drafter_rows() -> list[Row]:
    from spsbench.drafters.registry import DRAFTERS

    name_of = {"draft": "a draft model", "hidden": "a trained head"}

    def about(kind: Any) -> Row:
        needs = next((name_of[need] for need in sorted(kind.needs & name_of.keys())), NOTHING)
        return {"options": _options_as_typed(kind.options), "needs": needs}

    return _kind_rows("drafter", DRAFTERS, about)


def _rule_rows() -> list[Row]:
    from spsbench.drafters.registry import RULES

    def about(kind: Any) -> Row:
        lossless = "yes" if kind.lossless else "NO"
        return {"options": _options_as_typed(kind.options), "lossless": lossless, "needs": NOTHING}

    return _kind_rows("rule", RULES, about)


def _policy_rows() -> list[Row]:
    from spsbench.base.axes import FIXED
    from spsbench.drafters.registry import DRAFTERS, POLICIES

    heeding = " or ".join(name for name, kind in DRAFTERS.items() if kind.adaptive)

    def about(kind: Any) -> Row:
        needs = NOTHING if kind.name == FIXED else f"the drafter {heeding}"
        return {"options": _options_as_typed(kind.options), "needs": needs}

    return _kind_rows("policy", POLICIES, about)


def _engine_rows() -> list[Row]:
    from spsbench.engines.arms import ENGINES, FIXED_DRAFTING

    needs = {"graphed": NEEDS_OF_GRAPHED}
    ours = [
        {
            "engine": name,
            "methods": _lines(methods),
            _FIXED: _lines(FIXED_DRAFTING.get(name, ("any",))) if "sps" in methods else "-",
            "needs": needs.get(name, NOTHING),
            "from": "transformers" if name.startswith("hf-") else SPSBENCH,
        }
        for name, methods in ENGINES.items()
    ]
    by_name = [
        {"engine": 'worker:"COMMAND"', "methods": "its own", _FIXED: "its own"}
        | {"needs": NEEDS_OF_WORKER, "from": "you"},
        {"engine": "openai:URL", "methods": "its own", _FIXED: "its own"}
        | {"needs": "a running server", "from": "you"},
    ]
    return [*ours, *by_name, *_external_engine_rows()]


def _external_engine_rows() -> list[Row]:
    from spsbench.models.messages import megabytes
    from spsbench.parts.external.install import load_entry
    from spsbench.parts.external.registry import NAMED

    def facts_of(name: str) -> Row:
        entry = load_entry(name, "WHAT")
        here, options_known = entry.environment.is_here, NAMED[name].options
        rules = entry.rules
        size = megabytes(entry.kept_bytes)
        return {
            EXTERNAL: entry.name,
            "version": entry.version,
            "installed": "yes" if here else f"no, {size}",
            "greedy": rules.greedy,
            "sampled": rules.sampled,
            "statistics": _lines(entry.statistics),
            "options": _options_as_typed(
                {name: "" if each.theirs else each.default for name, each in options_known.items()}
            ),
            "limits": _lines(entry.limits),
            "needs": NOTHING if here else f"`spsbench get {entry.name}`, {size}",
            "from": entry.package,
        }

    return [facts_of(name) for name in sorted(NAMED)]


def _metric_rows() -> list[Row]:
    from spsbench.tasks.metrics.registry import METRICS, PREFIX
    from spsbench.tasks.spec import PROGRAMS

    programs = {
        "metric": "\n".join(PROGRAMS),
        "what": PASS_AT_K,
        "better": "higher",
        "needs": NEEDS_OF_PASS_AT_K,
        "from": SPSBENCH,
    }

    def about(kind: Any) -> Row:
        return {"better": "higher" if kind.higher_is_better else "lower", "needs": kind.needs}

    by_name = {
        "metric": f"{PREFIX}NAME",
        "what": EVALUATE_METRIC,
        "better": BETTER_UNLESS_ERROR_RATE,
        "needs": NEEDS_OF_EVALUATE_METRIC,
        "from": "evaluate",
    }
    return [programs, *_kind_rows("metric", METRICS, about), by_name]


def _options_as_typed(options: Mapping[str, OptionValue]) -> str:
    return _lines(str(Spec("", (option,))).lstrip(":") for option in options.items())


def _kind_rows(title: str, registry: Registry[Any], about: Callable[[Any], Row]) -> list[Row]:
    """Of a registry, other packages' kinds too; an unavailable one gives the reason."""
    rows: list[Row] = []
    for name, source in registry.names().items():
        try:
            kind = registry.find(name)
            cells = {"what": kind.summary, **about(kind)}
        except SpsbenchError as problem:
            cells = {"what": problem.message, "needs": problem.remedy or ""}
        rows.append({title: name, **cells, "from": source})
    return rows


def _lines(names: Iterable[str]) -> str:
    return "\n".join(names)


LISTS: Mapping[str, Callable[[], list[Row]]] = {
    "tasks": _task_rows,
    "pairs": _pair_rows,
    "protocols": _protocol_rows,
    "drafters": _drafter_rows,
    "rules": _rule_rows,
    "policies": _policy_rows,
    "engines": _engine_rows,
    "metrics": _metric_rows,
}


_COMMON = {"needs": NOTHING, "from": SPSBENCH}
"""What a column would repeat in every row of most lists: said once beneath the table."""
_SAID = {"needs": "need nothing", "from": f"come from {SPSBENCH}"}


def _print_limits(external: Sequence[Row]) -> None:
    for row in external:
        options = " ".join(row["options"].splitlines())
        more = f" Options: {options}" if options else ""
        sentence = f"{row[EXTERNAL]}: {' '.join(row['limits'].splitlines())}{more}"
        out().print(sentence, style="dim", highlight=False, markup=False)
    out().print(str(WayToEngines(ELSEWHERE)), style="dim", highlight=False, markup=False)


def _print_table(name: str, rows: Sequence[Row]) -> None:
    from spsbench.report.tables import Table, left

    common = {
        title: usual for title, usual in _COMMON.items() if all(row.get(title) == usual for row in rows)
    }
    shown = [{title: cell for title, cell in row.items() if title not in common} for row in rows]
    header = tuple(dict.fromkeys(title for row in shown for title in row)) or (name,)
    columns = [left(title, whole=index == 0 or title in _WHOLE) for index, title in enumerate(header)]
    cells = [[str(row.get(title, "")) for title in header] for row in shown]
    out().print(Table(columns, cells).as_rich())
    if common:
        out().print(f"All {' and '.join(_SAID[title] for title in common)}.\n", style="dim", highlight=False)
    out().print()
