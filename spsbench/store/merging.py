"""One run from its shards, in the order in which one process would have written it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import yaml

from spsbench.errors import IncompleteError, UsageError
from spsbench.files import ordinary
from spsbench.records import Prompt, Sample
from spsbench.store.conditions import condition, joined
from spsbench.store.opening import CONFIG_FILE, differences
from spsbench.store.run import RunStore

FLAG = "SHARD"
MIXED = "mixed"

_PER_ARM = ("target_mode", "draft_mode")
_OWN = (
    *("environment", "models", "target_mode", "draft_mode", "peak_memory_bytes", "bandwidth_bytes_per_s"),
    *("proof", "workers"),
)


def merge(directories: Sequence[Path], out: Path, *, allow_mixed: bool = False) -> None:
    """Put the shards of a run together into a new run directory."""
    with ExitStack() as stack:
        shards = _in_order([stack.enter_context(RunStore.open(directory)) for directory in directories])
        infos = [shard.run_info() for shard in shards]
        identity = _same_identity(shards, infos)
        prompts = _dealt_back([shard.prompts() for shard in shards])
        for shard, info in zip(shards, infos, strict=True):
            _require_complete(shard, info)
        conditions = joined(infos, [{sample.condition for sample in shard.samples()} for shard in shards])
        if len(conditions) > 1 and not allow_mixed:
            raise _mixed(conditions)
        with open(shards[0].directory / CONFIG_FILE, "rb", opener=ordinary) as file:
            config = yaml.safe_load(file)
        merged = stack.enter_context(
            RunStore.create(
                out,
                identity=identity,
                config=config | {"shard": None},
                info=_told(shards, infos) | {"conditions": conditions},
                prompts=prompts,
            )
        )
        for sample in _samples(shards, infos, prompts, conditions):
            merged.append(sample)
            if sample.scores:
                merged.append_scores(sample.key, sample.scores)


def _in_order(shards: list[RunStore]) -> list[RunStore]:
    """The shards 1 to n, each there once."""
    names = [str(shard.run_info().get("shard")) for shard in shards]
    counts = {name.rpartition("/")[2] for name in names}
    if len(counts) != 1 or "None" in counts:
        told = ", ".join(f"{shard.directory} is {name}" for shard, name in zip(shards, names, strict=True))
        raise UsageError(
            f"these are not the shards of one run: {told}.",
            flag=FLAG,
            remedy="Name the directories of `run --shard 1/N` to `--shard N/N`.",
        )
    count = int(counts.pop())
    found = Counter(int(name.partition("/")[0]) for name in names)
    twice = [index for index, times in found.items() if times > 1]
    missing = [index for index in range(1, count + 1) if not found[index]]
    for indices, what in ((twice, "given twice"), (missing, "missing")):
        if indices:
            listed = ", ".join(f"{index}/{count}" for index in sorted(indices))
            raise UsageError(f"shard {listed} is {what}.", flag=FLAG, remedy="Name every shard once.")
    return sorted(shards, key=lambda shard: int(shard.run_info()["shard"].partition("/")[0]))


def _same_identity(shards: Sequence[RunStore], infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    bare = [{key: value for key, value in info["identity"].items() if key != "shard"} for info in infos]
    for shard, identity in zip(shards, bare, strict=True):
        if lines := differences(bare[0], identity):
            head = f"{shard.directory} is of another run than {shards[0].directory} (its value last):"
            raise UsageError(
                "\n".join([head, *lines, ""]), flag=FLAG, remedy="Merge shards of the same settings."
            )
    return bare[0]


def _dealt_back(hands: Sequence[Sequence[Prompt]]) -> list[Prompt]:
    """The prompts in the order they had before they were dealt out to the shards, one each in turn."""
    total = sum(len(hand) for hand in hands)
    for number, hand in enumerate(hands, start=1):
        due = len(range(number - 1, total, len(hands)))
        if len(hand) != due:
            raise UsageError(
                f"shard {number}/{len(hands)} has {len(hand)} prompts where {due} are due.",
                flag=FLAG,
                remedy="All shards need the same --limit.",
            )
    prompts = [prompt for prompt in chain.from_iterable(zip_longest(*hands)) if prompt is not None]
    repeated = [name for name, times in Counter(p.example_id for p in prompts).items() if times > 1]
    if repeated:
        raise UsageError(f"the shards overlap: {repeated[0]!r} is in two of them.", flag=FLAG)
    return prompts


def _require_complete(shard: RunStore, info: Mapping[str, Any]) -> None:
    due, there = int(info["expected_sequences"]) * len(info["arms"]), len(shard.done())
    if there < due:
        raise IncompleteError(
            f"{shard.directory} lacks {due - there} of {due} sequences.",
            flag=FLAG,
            remedy=f"Continue it: spsbench run --resume {shard.directory}",
        )


def _mixed(conditions: Sequence[Mapping[str, Any]]) -> UsageError:
    lines = [line for other in conditions[1:] for line in differences(conditions[0], other)]
    head = f"the shards were measured under {len(conditions)} conditions (the first's value -> another's):"
    return UsageError(
        "\n".join([head, *dict.fromkeys(lines), ""]),
        flag="--allow-mixed",
        remedy="Measure them alike, with --threads given, or add --allow-mixed: the report then shows the "
        "times under each and pools none.",
    )


def _samples(
    shards: Sequence[RunStore],
    infos: Sequence[Mapping[str, Any]],
    prompts: Sequence[Prompt],
    conditions: Sequence[Mapping[str, Any]],
) -> list[Sample]:
    """Every sample, prompt by prompt; its condition counts in the whole run's list."""
    place = {prompt.example_id: number for number, prompt in enumerate(prompts)}
    found = []
    for shard, info in zip(shards, infos, strict=True):
        for sample in shard.samples():
            sample.condition = conditions.index(condition(info, sample.condition))
            found.append(sample)
    return sorted(found, key=lambda sample: place[sample.example_id])


def _told(shards: Sequence[RunStore], infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What ``run.json`` records besides the identity: what adds up, what is common, and each shard's own."""
    own = ("schema_version", "created_utc", "identity", "resumed")
    told = {key: value for key, value in infos[0].items() if key not in own}
    told |= {key: sum(info[key] for info in infos) for key in ("expected_sequences", "truncated_prompts")}
    texts: dict[str, str] = {}
    for info in infos:
        texts |= info.get("token_texts", {})
    for of_one_shard in ("proof", "corpus_figures", "workers"):
        told.pop(of_one_shard, None)
    told |= {key: _common([info.get(key, {}) for info in infos]) for key in _PER_ARM}
    told |= {"shard": None, "token_texts": texts}
    told["peak_memory_bytes"] = max((info.get("peak_memory_bytes", 0) for info in infos), default=0)
    told["shards"] = [
        {"shard": info["shard"], "directory": shard.directory.name, **{key: info.get(key) for key in _OWN}}
        for shard, info in zip(shards, infos, strict=True)
    ]
    return told


def _common(modes: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """By arm what all shards did, or ``mixed``."""
    arms = dict.fromkeys(arm for mode in modes for arm in mode)
    return {
        arm: next(iter(seen)) if len(seen := {str(mode.get(arm)) for mode in modes}) == 1 else MIXED
        for arm in arms
    }
