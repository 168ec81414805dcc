"""``spsbench list``: what can be named, what it needs and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spsbench.cli import options
from spsbench.cli.console import print_json, say
from spsbench.errors import UsageError
from spsbench.records import Spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spsbench.plugins import Options

Row = dict[str, Any]


def list_(
    what: Annotated[
        str | None,
        typer.Argument(metavar="[WHAT]", help="Only these, e.g. drafters. Default: all.", show_default=False),
    ] = None,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """List tasks, pairs, protocols, drafters, rules, policies and engines.

    Example: spsbench list drafters
    """
    if what is not None and what not in LISTS:
        raise UsageError(f"{what!r} is unknown.", flag="WHAT", remedy=f"Choose from {', '.join(LISTS)}.")
    wanted = LISTS if what is None else {what: LISTS[what]}
    found = {name: rows() for name, rows in wanted.items()}
    if json:
        print_json(found)
        return
    for name, rows in found.items():
        _print(name, rows)


def tasks() -> None:
    """List the tasks."""
    _old("tasks")


def pairs() -> None:
    """List the pairs of target and draft."""
    _old("pairs")


def protocols() -> None:
    """List the protocols: how much is measured."""
    _old("protocols")


def _old(name: str) -> None:
    say(f"`spsbench {name}` is now `spsbench list {name}`.")
    _print(name, LISTS[name]())


def _tasks() -> list[Row]:
    from spsbench.tasks.catalogue import list_tasks

    return [
        {"task": spec.name, "what": spec.title, "samplings": ", ".join(spec.samplings)}
        for spec in list_tasks()
    ]


def _pairs() -> list[Row]:
    from spsbench.config import list_pairs, load_pair

    found = [load_pair(name) for name in list_pairs()]
    return [
        {"pair": pair.name, "target, draft": f"{pair.target.id}\n{pair.draft.id}", "notes": pair.notes}
        for pair in found
    ]


def _protocols() -> list[Row]:
    from spsbench.config import list_protocols, load_protocol

    found = [load_protocol(name) for name in list_protocols()]
    return [
        {
            "protocol": protocol.name,
            "K": ", ".join(map(str, protocol.ks)),
            "prompts": "all" if protocol.limit is None else str(protocol.limit),
            "notes": protocol.notes,
        }
        for protocol in found
    ]


def _drafters() -> list[Row]:
    from spsbench.drafters.registry import DRAFTERS, GROUP, drafter_kind

    return _kinds("drafter", DRAFTERS, GROUP, drafter_kind, _needs)


def _rules() -> list[Row]:
    from spsbench.decode.rules import GROUP, RULES, rule_kind

    return _kinds(
        "rule", RULES, GROUP, rule_kind, lambda kind: {"lossless": "yes" if kind.lossless else "NO"}
    )


def _policies() -> list[Row]:
    from spsbench.drafters.policy import GROUP, POLICIES, policy_kind

    return _kinds("policy", POLICIES, GROUP, policy_kind, lambda kind: {})


def _needs(kind: Any) -> Row:
    return {"needs": "a draft model" if kind.needs_draft else "no model of its own"}


def _kinds(
    title: str,
    ours: Mapping[str, Any],
    group: str,
    kind_of: Callable[[str], Any],
    more: Callable[[Any], Row],
) -> list[Row]:
    """One row for each kind of a registry, another package's too."""
    from spsbench.plugins import names

    found = [(name, kind_of(name), source) for name, source in names(ours, group).items()]
    return [
        {title: name, "what": kind.summary, "options": _written(kind.options)} | more(kind) | {"from": source}
        for name, kind, source in found
    ]


def _engines() -> list[Row]:
    from spsbench.runner.arms import ENGINES, FIXED_DRAFTING

    return [
        {
            "engine": name,
            "methods": ", ".join(methods),
            "drafter and rule": ", ".join(FIXED_DRAFTING.get(name, ("any",))) if "sps" in methods else "-",
        }
        for name, methods in ENGINES.items()
    ]


def _written(options: Options) -> str:
    """As they are typed, one a line."""
    return "\n".join(str(Spec("", (option,))).lstrip(":") for option in options.items())


LISTS: Mapping[str, Callable[[], list[Row]]] = {
    "tasks": _tasks,
    "pairs": _pairs,
    "protocols": _protocols,
    "drafters": _drafters,
    "rules": _rules,
    "policies": _policies,
    "engines": _engines,
}


def _print(name: str, rows: Sequence[Row]) -> None:
    from spsbench.cli.console import out
    from spsbench.report.tables import Table, left

    first, *more = rows[0] if rows else (name,)
    columns = [left(first, whole=True), *map(left, more)]
    out().print(Table(columns, [[str(cell) for cell in row.values()] for row in rows]).as_rich())
    out().print()
