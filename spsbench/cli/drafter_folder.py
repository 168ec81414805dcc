"""``spsbench doctor FOLDER``: what a trained drafter's folder is, and what engines would make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base.errors import UsageError
from spsbench.cli.console import out, print_json, say
from spsbench.cli.messages import (
    HOW_ENGINES_READ,
    LAST_STATE,
    NO_LAYERS_NAMED,
    BestReading,
    ClustersProposed,
    KeysAndValuesRead,
    LayersRead,
    PredictionModules,
    TextsToRead,
    TokensLost,
)
from spsbench.cli.options import Common, option

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spsbench.base.records import Spec
    from spsbench.drafters.read_otherwise import Accepted
    from spsbench.drafters.served_drafts import Served
    from spsbench.models.trained import TrainedDraft
    from spsbench.report.tables import Table

TEXTS, TOKENS, K = 8, 64, 5
FLAG = "FOLDER"


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(Common):
    """The options of ``doctor``."""

    folder: Path | None = option(
        "[FOLDER]", "A trained drafter's folder: what it is, and how engines read it."
    )
    target: str | None = option("--target MODEL", "Measure what this model accepts of it under each reading.")
    task: str | None = option("--task TASK", "Prompts for that; as of `run`.")
    limit: str | None = option("--limit N", "The first N of them. Default: 8.")


@dataclass(frozen=True, slots=True)
class Examined:
    """A drafter's folder, described; with acceptance by reading where a target was given."""

    draft: TrainedDraft
    engines: list[Served]
    measured: Sequence[Accepted] = ()


def examine_folder(folder: Path, asked: DoctorOptions) -> None:
    """Print what a folder is; with a target, measure what it accepts under each reading too."""
    from spsbench.drafters.served_drafts import served
    from spsbench.models.kinds import CONFIG
    from spsbench.models.published import read_config_file

    if asked.target is None and (asked.task or asked.limit):
        flag = "--task" if asked.task else "--limit"
        raise UsageError(
            f"{flag} names prompts for a target, and none is given.", flag=flag, remedy="Give --target MODEL."
        )
    draft = _described(folder)
    engines = served(draft, read_config_file(folder / CONFIG, FLAG) or {})
    measured: Sequence[Accepted] = ()
    if asked.target is not None:
        measured = _measured(draft, engines, replace(asked, quiet=asked.quiet or asked.json))
    examined = Examined(draft, engines, measured)
    if asked.json:
        print_json(facts(examined))
    elif not asked.quiet:
        for part in screen(examined):
            out().print(part)


def _described(folder: Path) -> TrainedDraft:
    """Describe a drafter's folder, an assistant's, or the prediction modules in a target's own."""
    from spsbench.models.assistant import ASSISTANTS, describe_assistant
    from spsbench.models.kinds import is_trained
    from spsbench.models.module_folders import describe_modules
    from spsbench.models.published import open_published
    from spsbench.models.reading import read_draft

    if not is_trained(folder) and (published := open_published(folder, FLAG)) is not None:
        if published.config.get("model_type") in ASSISTANTS:
            return describe_assistant(folder, FLAG)
        modules = describe_modules(published)
        if modules is not None:
            return modules
    return read_draft(folder, FLAG)


def _drafter(draft: TrainedDraft) -> Spec:
    from spsbench.base.records import Spec
    from spsbench.models.kinds import ASSISTANT, MTP

    if draft.kind != MTP:
        name = ASSISTANT if draft.kind == ASSISTANT else "heads"
        return Spec(name, (("from", str(draft.folder)),))
    return Spec(MTP, (("from", str(draft.folder)),) if draft.extra["apart"] else ())


def _measured(draft: TrainedDraft, engines: list[Served], asked: DoctorOptions) -> Sequence[Accepted]:
    from spsbench.cli.settings import data_by_task, read_material
    from spsbench.drafters.read_otherwise import by_reading
    from spsbench.drafters.registry import drafter_kind
    from spsbench.drafters.served_drafts import readings
    from spsbench.models.causal_lm import text_config
    from spsbench.runner.material import find_material

    if draft.refused:
        raise UsageError(f"{draft.folder} is {draft.kind}: {draft.refused}.", flag=FLAG)
    with data_by_task():
        settings = read_material(asked, limit=asked.limit or str(TEXTS))
        material = find_material(settings)
    spec = _drafter(draft)
    drafter_kind(spec.name).require_target(spec, material.source.target)
    layers = text_config(material.source.target.config).num_hidden_layers
    wanted = readings(draft, engines, layers)
    say(TextsToRead(len(material.prompts), TOKENS, len(wanted)), quiet=asked.quiet)
    prompts = [prompt.ids for prompt in material.prompts]
    loaded = material.load().target
    return by_reading(loaded, spec, wanted, prompts, k=K, tokens=TOKENS, seed=settings.seed)


def facts(examined: Examined) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    draft = examined.draft
    best = _best(examined.measured)
    return {
        "folder": str(draft.folder),
        "kind": draft.kind,
        "writer": draft.writer,
        "refused": draft.refused or None,
        "target": {
            "name": draft.target.name,
            "hidden": draft.target.hidden,
            "vocab_size": draft.target.vocab_size,
        },
        "layers": (draft.config or {}).get("num_hidden_layers"),
        "heads": draft.heads or None,
        "modules": draft.extra.get("modules"),
        "attends": draft.extra.get("attends"),
        "ids": None if draft.reads is None else list(draft.reads),
        "proposes": None if draft.vocabulary is None else len(draft.vocabulary),
        "d2t": draft.extra.get("d2t"),
        "conventions": [
            {"name": c.name, "value": c.value, "because": c.because, "certain": c.certain}
            for c in draft.conventions
        ],
        "engines": [
            {"engine": e.engine, "loads": e.loads, "says": str(e.says), "options": e.options}
            for e in examined.engines
        ],
        "readings": [
            {
                "options": dict(reading.options),
                "acceptance_by_place": list(reading.by_place),
                # JSON has no infinity: one text leaves both ends open.
                "tokens_per_loop": {
                    name: value if isfinite(value) else None
                    for name, value in mean_of(reading.lengths).items()
                },
                "best": reading is best,
            }
            for reading in examined.measured
        ],
    }


def mean_of(values: Sequence[float]) -> dict[str, float]:
    """Return the mean of one number a text, with its 95% interval."""
    from spsbench.stats import interval_of_mean

    found = interval_of_mean(values)
    # One text has no interval.
    low, high = (-inf if found.low is None else found.low, inf if found.high is None else found.high)
    return {"mean": found.estimate, "low": low, "high": high}


def _best(measured: Sequence[Accepted]) -> Accepted | None:
    return max(measured, key=lambda reading: sum(reading.lengths), default=None)


def named(options: Mapping[str, str]) -> str:
    """Return a reading as options of the drafter."""
    return ":".join(f"{name}={value}" for name, value in options.items()) or "as written"


def screen(examined: Examined) -> list[RenderableType | str]:
    """Return what a terminal shows, part by part."""
    from spsbench.report.tables import Table, left

    draft = examined.draft
    what: list[list[Any]] = [
        [
            "kind",
            f"{draft.kind}, in the layout of {draft.writer if draft.writer != 'authors' else 'its authors'}",
        ],
        [
            "target",
            f"{draft.target.name}: states {draft.target.hidden} wide, {draft.target.vocab_size:,} tokens",
        ],
        *_modules(draft),
        ["reads", _read(draft)],
        ["proposes", _proposed(draft)],
    ]
    what += [
        [c.name, f"{c.value}: {c.because}" + ("" if c.certain else " (not certain)")]
        for c in draft.conventions
    ]
    drafter = str(_drafter(draft)).replace(str(draft.folder), FLAG)
    own = f"no: {draft.refused}" if draft.refused else f"as above; --drafter {drafter}"
    engines: list[list[Any]] = [
        [
            e.engine,
            "" if e.loads else "does not load",
            str(e.says) + (f" ({named(e.options)} here)" if e.options else ""),
        ]
        for e in examined.engines
    ]
    engines.append(["spsbench", "" if not draft.refused else "does not run", own])
    parts: list[RenderableType | str] = [
        Table([left(), left()], what).as_rich(),
        "",
        Table([left("engine"), left(), left(HOW_ENGINES_READ)], engines).as_rich(),
    ]
    if examined.measured:
        parts += ["", _acceptance(examined.measured).as_rich(), *_best_reading_and_others(examined)]
    return parts


def _modules(draft: TrainedDraft) -> list[list[Any]]:
    if "modules" not in draft.extra:
        return []
    return [["modules", str(PredictionModules(draft.extra["modules"], draft.extra["own_heads"]))]]


def _read(draft: TrainedDraft) -> str:
    from spsbench.models.kinds import ASSISTANT, READ_LAYERS

    if draft.kind == ASSISTANT:
        return str(KeysAndValuesRead(tuple(draft.extra["attends"])))
    if draft.kind not in READ_LAYERS:
        return LAST_STATE
    return NO_LAYERS_NAMED if draft.reads is None else str(LayersRead(tuple(draft.reads)))


def _proposed(draft: TrainedDraft) -> str:
    if clusters := draft.extra.get("clusters"):
        return str(ClustersProposed(clusters))
    if draft.vocabulary is None:
        return "all tokens"
    way = f"; d2t has {draft.extra['d2t']}" if "d2t" in draft.extra else ""
    return f"{len(draft.vocabulary):,} tokens{way}"


def _acceptance(measured: Sequence[Accepted]) -> Table:
    from spsbench.report.tables import Table, left, right

    rows: list[list[Any]] = []
    for accepted in measured:
        mean = mean_of(accepted.lengths)
        shown = f"{mean['mean']:.2f} [{mean['low']:.2f}, {mean['high']:.2f}]"
        rows.append([named(accepted.options), *(f"{chance:.3f}" for chance in accepted.by_place), shown])
    places = [right(f"{number + 1}") for number in range(len(measured[0].by_place))]
    return Table([left("read"), *places, right("tokens per loop")], rows)


def _best_reading_and_others(examined: Examined) -> list[str]:
    """By pairs of the same texts."""
    best = _best(examined.measured)
    assert best is not None
    others = []
    for reading in examined.measured:
        if reading is not best:
            lost = mean_of([one - other for one, other in zip(best.lengths, reading.lengths, strict=True)])
            who = tuple(
                e.engine for e in examined.engines if e.options and dict(e.options) == dict(reading.options)
            )
            others.append(TokensLost(named(reading.options), who, **lost))
    is_certain = all(each.low > 0 for each in others) if others else None
    return ["", str(BestReading(named(best.options), is_certain)), *map(str, others)]
