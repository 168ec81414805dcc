"""The axes of an arm as its rows carry them: in run.json, in the summary and in every table made from it.

An arm is what it is on each axis. Rows are compared along one axis with all others held equal
(``series``), never by a name or by K alone: two drafters at one K are two arms.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict, TypeVar

Method = Literal["ars", "sps", "draft"]

AXES = ("method", "sampling", "engine", "drafter", "rule", "policy", "batch", "k")
"""``drafter``, ``rule`` and ``policy`` are those of speculative arms; None elsewhere."""

GROUND = ("sampling", "engine", "batch")
"""What arms of any method have in common where one is compared with another."""

MODEL = "model"
MODIFIED_REJECTION = "modified-rejection"
FIXED = "fixed"
"""What a speculative arm has unless it says otherwise: the drafter, rule and policy of Chen et al. 2023."""

CHAIN = "chain"
"""The shape of drafts that have one branch."""

BLOCK = "block"
RECURSIVE = "recursive-rejection"
ONE_HOT = "one-hot"
K_SEQ = "k-seq"
TREE_RULE = RECURSIVE
"""Block verification (Sun et al. 2024), and rules for trees: ``TREE_RULE`` unless another is named."""

EAGER = "eager"
"""The engine that an arm has unless it says otherwise: our own loop, without graphs."""

WORKER, OPENAI, RELEASE = "worker:", "openai:", "@"
"""How an external engine is named: by a command, by a server's address, by a release
(``transformers@4.44.2``)."""

OWN_RULE = "own-rule"
"""The rule of an external engine: what it reports of it is in ``verification_rule``."""

BEAM = "beam"
"""The sampling that samples nothing; an arm of it is named by the width too, e.g. ``beam(4)``."""

RECOMMENDED = "model"
"""The sampling that the target's own ``generation_config.json`` recommends."""

_PLAIN_ENGINES = {"hf-assisted": "hf-generate", "hf-prompt-lookup": "hf-generate"}

_USUAL = {"drafter": MODEL, "rule": MODIFIED_REJECTION, "policy": FIXED}


class SeriesAxes(TypedDict):
    """The axes but K: what arms have in common that differ in K alone. ``called``, no axis: how an arm drafts
    and accepts, by the names that kinds from files declare."""

    method: Method
    sampling: str
    engine: str
    drafter: str | None
    rule: str | None
    policy: str | None
    batch: int
    called: NotRequired[str]


class Axes(SeriesAxes):
    """An arm's place on every axis."""

    k: int


class ArmIdentity(Axes):
    """An arm's name and its place on every axis."""

    arm: str


Row = Mapping[str, Any]
AnyRow = TypeVar("AnyRow", bound=Row)


def _usual(row: Row) -> Mapping[str, str | None]:
    return _USUAL if row["method"] == "sps" else dict.fromkeys(_USUAL)


def series_axes(row: Row) -> SeriesAxes:
    """Return the arm's place on every axis but K; a row from before an axis existed is at its usual place."""
    usual = _usual(row)
    on_axes: SeriesAxes = {
        "method": row["method"],
        "sampling": row["sampling"],
        "engine": row["engine"],
        "drafter": row.get("drafter", usual["drafter"]),
        "rule": row.get("rule", usual["rule"]),
        "policy": row.get("policy", usual["policy"]),
        "batch": row.get("batch", 1),
    }
    if "called" in row:
        on_axes["called"] = row["called"]
    return on_axes


def axes(row: Row) -> Axes:
    return {**series_axes(row), "k": row["k"]}


def identity(row: Row) -> ArmIdentity:
    """Return the arm's name and axes: what every entry about an arm begins with."""
    return {"arm": row["arm"], **axes(row)}


def place(row: Row, *without: str) -> tuple[Any, ...]:
    """Return the axes as a key, without those in the given names."""
    return tuple(value for name, value in axes(row).items() if name in AXES and name not in without)


def series(rows: Sequence[AnyRow], along: str = "k") -> list[list[AnyRow]]:
    """Group rows that differ on one axis alone, each group with the arms it is compared with.

    ArS and the draft alone draft nothing: they belong to every series of their sampling, engine and batch.
    """
    common = [name for name in GROUND if name != along]

    def ground(row: Row) -> tuple[Any, ...]:
        place = axes(row)
        return tuple(place[name] for name in common)  # type: ignore[literal-required]

    speculative = [row for row in rows if row["method"] == "sps"]
    keys = dict.fromkeys(place(row, along) for row in speculative)
    groups = []
    for key in keys:
        members = [row for row in speculative if place(row, along) == key]
        grounds = {ground(row) for row in members}
        groups.append(
            [row for row in rows if row in members or (row["method"] != "sps" and ground(row) in grounds)]
        )
    covered = {ground(row) for row in speculative}
    for rest in dict.fromkeys(ground(row) for row in rows):
        if rest not in covered:
            groups.append([row for row in rows if ground(row) == rest])
    return groups


def own_ars(row: Row, rows: Sequence[AnyRow]) -> AnyRow | None:
    """Return the ArS of an arm's own engine, batch and sampling; None if there is none, and for ArS itself.

    The plain engine of transformers' speculative ways is ``hf-generate``.
    """
    engine = _PLAIN_ENGINES.get(row["engine"], row["engine"])
    wanted = ("ars", row["sampling"], engine, row.get("batch", 1))
    baselines = (
        other
        for other in rows
        if (other["method"], other["sampling"], other["engine"], other.get("batch", 1)) == wanted
    )
    return None if row["method"] == "ars" else next(baselines, None)


def is_beam(row: Row) -> bool:
    """Return whether an arm is a beam search, which has no rule and no chances of acceptance."""
    return str(row["sampling"]).startswith(f"{BEAM}(")


_FROM_FILE = re.compile(r"[^+]*?([^/+]+)\.py(?::KIND\b)?(?=:|\+|$)")


def unusual(row: Row) -> list[str]:
    """List how a speculative arm drafts and accepts otherwise than in Chen et al. 2023."""
    if "called" in row:
        return [str(row["called"])]
    on_axes = {name: row.get(name, usual) for name, usual in _usual(row).items()}
    kinds = [str(value) for name, value in on_axes.items() if value not in (None, _USUAL[name])]
    # A run from before kinds from files were called by their declared name: no report imports the file.
    return [_FROM_FILE.sub(r"\1", kind) for kind in kinds]


def shown_engine(engine: str) -> str:
    """Return an engine as tables show it: a worker's command without folders, an environment's name."""
    kind, colon, command = engine.partition(":")
    if kind != "worker":
        return re.sub(r"(:python=)(?:[^:]*/)?([^/:]+)/bin/python[^/:]*", r"\1\2", engine)
    return kind + colon + " ".join(word.rstrip("/").rpartition("/")[2] for word in command.split())


def both_arms(arm: Mapping[str, Any]) -> str:
    """Return the name of an arm that was compared; of two names that of A's arm and that of B's."""
    return str(arm["arm"]) if arm["arm"] == arm["b_arm"] else f"{arm['arm']} | {arm['b_arm']}"


def label(row: Row) -> str:
    """Return the arm as readers know it, e.g. ``ArS``, ``SpS (K=4)``, ``SpS (K=4, B=8, lookup) @graphed``."""
    engine = "" if row["engine"] == EAGER else f" @{shown_engine(row['engine'])}"
    batch = [] if row.get("batch", 1) == 1 else [f"B={row['batch']}"]
    alone = f" ({batch[0]})" if batch else ""
    if row["method"] == "ars":
        return f"ArS{alone}{engine}"
    if row["method"] == "draft":
        return f"draft alone{alone}{engine}"
    if row["method"] != "sps":
        return str(row["arm"]) + engine
    lossy = [] if row.get("lossless", True) else ["lossy"]
    inside = ", ".join([f"K={row['k']}", *batch, *unusual(row), *lossy])
    return f"SpS ({inside}){engine}"
