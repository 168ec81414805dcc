"""Values for the shell's completion: names and run directories, found without loading a model or torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import typer

from spsbench.errors import SpsbenchError

Completer = Callable[[str], list[str]]


def choices(*names: str) -> Completer:
    """Completes one of a few fixed words."""

    def complete(incomplete: str) -> list[str]:
        return _beginning(incomplete, names)

    return complete


def listed(names: Callable[[], Iterable[str]]) -> Completer:
    """Completes the last part of a list that is typed as ``a,b``."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        taken = before.split(",")
        return [f"{before}{comma}{name}" for name in _beginning(last, _offered(names)) if name not in taken]

    return complete


def named(names: Callable[[], Iterable[str]]) -> Completer:
    """Completes a single name."""

    def complete(incomplete: str) -> list[str]:
        return _beginning(incomplete, _offered(names))

    return complete


def runs(incomplete: str) -> list[str]:
    """Run directories: those in ``results/``, and those that the typed path leads to."""
    from spsbench.paths import results_dir

    found = [path.parent for path in results_dir().glob("*/run.json")]
    found += [path.parent for path in Path().glob(f"{incomplete}*/run.json") if incomplete]
    return sorted({str(_relative(path)) for path in found if str(_relative(path)).startswith(incomplete)})


def task_names() -> list[str]:
    """Of the tasks that ship."""
    from spsbench.paths import data_dir

    return sorted(path.stem for path in data_dir("tasks").glob("*.yaml"))


def pair_names() -> list[str]:
    """Of the pairs that ship."""
    from spsbench.config import list_pairs

    return list_pairs()


def protocol_names() -> list[str]:
    """Of the protocols that ship."""
    from spsbench.config import list_protocols

    return list_protocols()


def drafter_names() -> list[str]:
    """Of drafters, those of installed packages included."""
    from spsbench.drafters.registry import DRAFTERS, GROUP
    from spsbench.plugins import names

    return list(names(DRAFTERS, GROUP))


def rule_names() -> list[str]:
    """Of rules, those of installed packages included."""
    from spsbench.decode.rule_kinds import GROUP, RULES
    from spsbench.plugins import names

    return list(names(RULES, GROUP))


def policy_names() -> list[str]:
    """Of policies, those of installed packages included."""
    from spsbench.drafters.policy_kinds import GROUP, POLICIES
    from spsbench.plugins import names

    return list(names(POLICIES, GROUP))


def engine_names() -> list[str]:
    """Of this package's engines and of the external ones that can be installed."""
    from spsbench.arms.choice import ENGINES

    return [*ENGINES, *external_engine_names()]


def external_engine_names() -> list[str]:
    """Of the engines that `spsbench get` installs."""
    from spsbench.peers.install import list_entries

    return list(list_entries())


def gettable_names() -> list[str]:
    """What `spsbench get` takes: pairs and external engines."""
    return [*pair_names(), *external_engine_names()]


def samplings(context: typer.Context, incomplete: str) -> list[str]:
    """The last part of a list of samplings: those of the task that was typed before, else of any."""
    from spsbench.axes import BEAM
    from spsbench.paths import data_dir
    from spsbench.tasks.spec import read_spec

    typed = context.params.get("task")
    tasks = [typed] if typed in task_names() else task_names()
    specs = [read_spec(data_dir("tasks") / f"{task}.yaml") for task in tasks]
    return listed(lambda: dict.fromkeys([*(name for spec in specs for name in spec.samplings), BEAM]))(
        incomplete
    )


def _offered(names: Callable[[], Iterable[str]]) -> list[str]:
    """All names; none where they cannot be read, since completion has nowhere to report an error."""
    try:
        return list(names())
    except SpsbenchError:
        return []


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _relative(path: Path) -> Path:
    """As it is typed from the current folder."""
    return path.relative_to(Path.cwd()) if path.is_absolute() and path.is_relative_to(Path.cwd()) else path
