"""A task defined by a YAML file: what its kinds have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spsbench.errors import UnavailableError, UsageError
from spsbench.metrics.kind import MetricKind
from spsbench.paths import mini_dir
from spsbench.records import SamplingParams
from spsbench.tasks.data import is_mini
from spsbench.tasks.spec import MiniSource, TaskSpec
from spsbench.tasks.task import Task


@dataclass(frozen=True)
class YamlTask(Task):
    """What the YAML of a task says."""

    spec: TaskSpec
    metrics: tuple[MetricKind, ...] = ()

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def samplings(self) -> dict[str, SamplingParams]:
        return {name: sampling.params() for name, sampling in self.spec.samplings.items()}

    @property
    def default_sampling(self) -> str:
        return self.spec.default_sampling

    @property
    def stop(self) -> tuple[str, ...]:
        return tuple(self.spec.stop)

    @property
    def max_new_tokens(self) -> int:
        return self.spec.max_new_tokens

    @property
    def headline(self) -> str:
        return self.spec.headline


def mini_path(spec: TaskSpec) -> Path:
    """The file of a task's synthetic examples."""
    return _mini_file(spec, _mini(spec).examples)


def mini_exemplars_path(spec: TaskSpec) -> Path | None:
    """The file of a task's synthetic exemplars, or None if it names none; see ``mini_path``."""
    name = _mini(spec).exemplars
    return None if name is None else _mini_file(spec, name)


def describe(spec: TaskSpec, data: str) -> tuple[str, bool]:
    """(label, synthetic) of a task with data from ``official``, ``mini`` or a path."""
    if data == "mini" or (data != "official" and is_mini(Path(data))):
        return f"{spec.name.removesuffix('-mini')}-mini (synthetic)", True
    if data == "official":
        return spec.name, False
    return f"{spec.name} ({', '.join(Path(part).name for part in paths_in(data))})", False


def paths_in(data: str) -> list[Path]:
    """The files that a local ``--data`` names: one, or several with commas between them."""
    return [Path(data)] if Path(data).exists() else [Path(part) for part in data.split(",")]


def source_of(data: str, split: str) -> dict[str, Any]:
    """Provenance of data that came from a path or with the package."""
    source = "synthetic data of the package" if data == "mini" else data
    return {"source": source, "revision": None, "split": None if data == "mini" else split}


def _mini(spec: TaskSpec) -> MiniSource:
    if spec.data.mini is None:
        raise UsageError(
            f"the task {spec.name} has no synthetic data.",
            flag="--data mini",
            remedy="Give official or a path.",
        )
    return spec.data.mini


def _mini_file(spec: TaskSpec, name: str) -> Path:
    path = mini_dir(_mini(spec).folder) / "data" / name
    if not path.is_file():
        raise UnavailableError(
            f"the synthetic data of {spec.name} are missing ({path}).",
            flag="--data mini",
            remedy="Install the package again, or give --data official or a path.",
        )
    return path
