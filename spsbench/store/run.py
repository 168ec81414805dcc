"""The store of one run: append, resume, read.

The journal is the truth; every other table is derived from it and may be thrown away.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from itertools import chain, zip_longest
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from spsbench.base import files
from spsbench.base.errors import IncompleteError, UsageError
from spsbench.base.records import SHARD, SHARDS_APART, Generation, Prompt, Sample
from spsbench.config.files import read_yaml
from spsbench.store import checks, codec, opening, tables, timings
from spsbench.store.journal import Journal, Row
from spsbench.store.opening import CONFIG_FILE, PROMPTS_FILE
from spsbench.store.schema import RUN_FILE, condition, differences, joined, of_any_board, read_run
from spsbench.store.timings import Key, Timing

SAMPLES_FILE = "samples.jsonl"
SCORES_FILE = "scores.jsonl"
REPORT_FILE = "report.md"


class RunStore:
    """The files of one run. Made by ``create`` or ``open``; a context manager."""

    def __init__(self, directory: Path, run: Row, lock_descriptor: int | None) -> None:
        self.directory = directory
        self._run = run
        self._lock = lock_descriptor
        if lock_descriptor is not None:
            # What a crash left is repaired now, not at the first sample.
            _ = self._timings, self._scores

    @cached_property
    def _journal(self) -> Journal:
        """The journal, read as a whole when it is first needed: a report of a long run may never need it."""
        return Journal(self.directory / SAMPLES_FILE, _timing, writable=self._lock is not None)

    @cached_property
    def _score_journal(self) -> Journal:
        return Journal(self.directory / SCORES_FILE, _score, writable=self._lock is not None)

    @cached_property
    def _timings(self) -> dict[int, Timing]:
        """Every line's timing by the line's offset."""
        return dict(self._journal.digests)

    @cached_property
    def _first_offsets(self) -> dict[Key, int]:
        """Offset of each sample's last line of the first attempt."""
        return {timing.key: offset for offset, timing in self._timings.items() if timing.attempt == 1}

    @cached_property
    def _counted_offsets(self) -> dict[Key, list[int]]:
        """Offsets of each sample's lines that count, in order of attempts; a failed sample's last line."""
        attempts = timings.rounds([*self._timings.values()])
        offset_of: dict[Key, dict[int, int]] = {}
        for offset, timing in self._timings.items():
            offset_of.setdefault(timing.key, {})[timing.attempt] = offset
        counted = {}
        for key, offsets in offset_of.items():
            place = self._timings[next(iter(offsets.values()))].round
            own = [number for number in timings.counting(attempts[place]) if number in offsets]
            counted[key] = [offsets[number] for number in sorted(own or offsets)[: None if own else 1]]
        return counted

    @cached_property
    def _scores(self) -> dict[Key, dict[str, float]]:
        scores: dict[Key, dict[str, float]] = {}
        for key, sample_scores in self._score_journal.digests.values():
            scores.setdefault(key, {}).update(sample_scores)
        return scores

    @classmethod
    def create(
        cls,
        directory: Path,
        *,
        identity: Row,
        config: Row,
        info: Row,
        prompts: Sequence[Prompt],
        resume: bool = False,
    ) -> Self:
        """Begin a run in a directory that is missing or empty, or with ``resume`` continue the one there.

        Its identity must be the same. Limits may have grown: the configuration and the prompts are brought
        up to date, and ``run.json`` notes the continuation with its ``info`` under ``resumed``.
        """
        held = opening.take(directory)
        with _released_on_failure(held):
            there = (directory / RUN_FILE).exists()
            if there and not resume:
                remedy = f"Continue it with --resume {directory}, or name another directory."
                raise UsageError(f"{directory} already holds a run.", flag="--out", remedy=remedy)
            run = opening.prepare(directory, identity, config, info, prompts, again=there)
            return cls(directory, run, held)

    @classmethod
    def open(cls, directory: Path, *, writable: bool = False) -> Self:
        """Open an existing run, to read it (even while it is running) or, with the lock, to add to it."""
        run = read_run(directory)
        held = files.acquire_lock(directory, "RUN") if writable else None
        with _released_on_failure(held):
            return cls(directory, run, held)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for name in ("_journal", "_score_journal"):
            if name in self.__dict__:
                self.__dict__[name].close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def append(self, sample: Sample) -> Timing:
        """Write a finished or failed sample, which is on the disk when this returns; return its timing.

        One whose line would be damaged has failed: a number that our own arithmetic got wrong stays seen.
        """
        row = codec.encode_sample(sample)
        try:
            checks.check_sample(row)
        except ValueError as problem:
            sample.error, sample.scores, sample.conditions = f"its record is unsound: {problem}", {}, {}
            sample.generation = Generation([], "", None, 0.0, 0.0, "error")
            row = codec.encode_sample(sample)
        timing = self._timings[self._journal.append(row)] = Timing.of(row)
        for name in ("_counted_offsets", *(["_first_offsets"] if sample.attempt is None else [])):
            self.__dict__.pop(name, None)
        return timing

    def append_scores(self, key: Key, scores: dict[str, float]) -> None:
        """Add scores to the sample under ``key``; a later value of the same metric wins."""
        example_id, sample_index, arm = key
        row = {"example_id": example_id, "sample_index": sample_index, "arm": arm, "scores": scores}
        self._score_journal.append(row)
        self._scores.setdefault(key, {}).update(scores)

    def done(self) -> set[Key]:
        """Return the keys of the samples that need not be generated again; failed ones are not among them."""
        return {
            key for key, (offset, *_) in self._counted_offsets.items() if not self._timings[offset].failed
        }

    def failed(self) -> set[Key]:
        return {key for key, (offset, *_) in self._counted_offsets.items() if self._timings[offset].failed}

    def timings(self) -> list[Timing]:
        """Return every timing of every sequence, in the order in which they were made."""
        return [*self._timings.values()]

    def replaced(self) -> int:
        """Return how many first timings do not count, because a later one was disturbed less."""
        return sum(self._timings[offset].attempt > 1 for offset, *_ in self._counted_offsets.values())

    def first(self, key: Key) -> Sample:
        """Return the sample under ``key`` as written before any was timed again; KeyError without one."""
        (row,) = self._journal.read([self._first_offsets[key]])
        return codec.decode_sample(row)

    def samples(self) -> Iterator[Sample]:
        """Yield every sample with its scores, in journal order; see ``timings`` for which lines count."""
        return map(codec.decode_sample, self._rows_with_scores())

    def frames(self) -> tables.Frames:
        """Return the run's tables: from Parquet if it was made of the present journal, else from that."""
        journal_exists = (self.directory / SAMPLES_FILE).exists()
        stored = tables.read_tables(self.directory, self._state() if journal_exists else None)
        arrow_tables = tables.build_tables(self._rows_with_scores()) if stored is None else stored
        return tables.to_frames(arrow_tables, self.arms())

    def write_parquet(self) -> None:
        """Write ``arms``, ``samples``, ``loops``, ``tokens`` and ``evidence.parquet``, each atomically."""
        state = self._state()
        tables.write_tables(self.directory, tables.build_tables(self._rows_with_scores()), self.arms(), state)
        if any(timing.attempt > 1 for timing in self._timings.values()):
            counted = {offset for offsets in self._counted_offsets.values() for offset in offsets}
            rows = zip(self._timings, self._journal.read(self._timings), strict=True)
            tables.write_timings(self.directory, ((row, offset in counted) for offset, row in rows))

    def write_report(self, text: str) -> None:
        files.write_text(self.directory / REPORT_FILE, text)

    def note(self, **facts: object) -> None:
        """Add what became known after the run began, e.g. the models' sizes, to ``run.json``."""
        self._run = self._run | files.plain(facts)
        files.write_json(self.directory / RUN_FILE, self._run)

    def run_info(self) -> Row:
        return dict(self._run)

    def arms(self) -> list[Row]:
        return list(self._run.get("arms") or [])

    def prompts(self) -> list[Prompt]:
        return codec.read_prompts(self.directory / PROMPTS_FILE)

    def _state(self) -> tables.JournalState:
        return tables.state_of([self.directory / name for name in (SAMPLES_FILE, SCORES_FILE)])

    def _rows_with_scores(self) -> Iterator[Row]:
        """In journal order."""
        for offsets in sorted(self._counted_offsets.values()):
            row = timings.averaged([*self._journal.read(offsets)])
            row["scores"] = row["scores"] | self._scores.get(_key(row), {})
            yield row


@contextmanager
def _released_on_failure(lock_descriptor: int | None) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if lock_descriptor is not None:
            os.close(lock_descriptor)
        raise


def read_frames(directory: Path) -> tables.Frames:
    with RunStore.open(directory) as store:
        return store.frames()


def _key(row: Row) -> Key:
    return row["example_id"], row["sample_index"], row["arm"]


def _timing(row: Row) -> Timing:
    checks.check_sample(row)
    return Timing.of(row)


def _score(row: Row) -> tuple[Key, dict[str, float]]:
    checks.check_scores(row)
    return _key(row), row["scores"]


def merge_shards(directories: Sequence[Path], out: Path, *, allow_mixed: bool = False) -> None:
    """Put the shards of a run together, in the order in which one process would have written it."""
    with ExitStack() as stack:
        shards = _shards_in_order(
            [stack.enter_context(RunStore.open(directory)) for directory in directories]
        )
        infos = [shard.run_info() for shard in shards]
        identity = _same_identity(shards, infos)
        prompts = _prompts_dealt_back([shard.prompts() for shard in shards])
        for shard, info in zip(shards, infos, strict=True):
            due = int(info["expected_sequences"]) * len(info["arms"])
            there = len(shard.done())
            if there < due:
                raise IncompleteError(
                    f"{shard.directory} lacks {due - there} of {due} sequences.",
                    flag="SHARD",
                    remedy=f"Continue it: spsbench run --resume {shard.directory}",
                )
        conditions = joined(infos, [{sample.condition for sample in shard.samples()} for shard in shards])
        if len(conditions) > 1 and not allow_mixed:
            lines = [line for other in conditions[1:] for line in differences(conditions[0], other)]
            raise UsageError(
                f"the shards were measured under {len(conditions)} conditions (the first's value -> "
                + "\n".join(["another's):", *dict.fromkeys(lines), ""]),
                flag="--allow-mixed",
                remedy="Measure them alike, with --threads given, or add --allow-mixed: the report then "
                "shows the times under each and pools none.",
            )
        config = read_yaml(shards[0].directory / CONFIG_FILE, "SHARD")
        merged = stack.enter_context(
            RunStore.create(
                out,
                identity=identity,
                config=config | {"shard": None},
                info=_combined_info(shards, infos) | {"conditions": conditions},
                prompts=prompts,
            )
        )
        for sample in _samples_of_shards(shards, infos, prompts, conditions):
            merged.append(sample)
            if sample.scores:
                merged.append_scores(sample.key, sample.scores)


def _shards_in_order(shards: list[RunStore]) -> list[RunStore]:
    """1 to n, each there once."""
    names = [str(shard.run_info().get("shard")) for shard in shards]
    counts = {name.rpartition("/")[2] for name in names}
    if len(counts) != 1 or "None" in counts:
        listed = ", ".join(
            f"{shard.directory} is {'no shard' if name == 'None' else name}"
            for shard, name in zip(shards, names, strict=True)
        )
        remedy = "Name the directories of `run --shard 1/N` to `--shard N/N`."
        raise UsageError(f"these are not the shards of one run: {listed}.", flag="SHARD", remedy=remedy)
    count = int(counts.pop())
    times_there = Counter(int(name.partition("/")[0]) for name in names)
    twice = [index for index, times in times_there.items() if times > 1]
    missing = [index for index in range(1, count + 1) if not times_there[index]]
    for indices, what in ((twice, "given twice"), (missing, "missing")):
        if indices:
            listed = ", ".join(f"{index}/{count}" for index in sorted(indices))
            raise UsageError(f"shard {listed} is {what}.", flag="SHARD", remedy="Name every shard once.")
    return sorted(shards, key=lambda shard: int(shard.run_info()["shard"].partition("/")[0]))


def _same_identity(shards: Sequence[RunStore], infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    bare = [{key: value for key, value in info["identity"].items() if key != "shard"} for info in infos]
    for shard, identity in zip(shards, bare, strict=True):
        if lines := differences(bare[0], identity):
            why = f"{shard.directory} is of another run than {shards[0].directory} (its value last):"
            remedy = "Merge shards of the same settings."
            raise UsageError("\n".join([why, *lines, ""]), flag="SHARD", remedy=remedy)
    return bare[0]


def _prompts_dealt_back(hands: Sequence[Sequence[Prompt]]) -> list[Prompt]:
    """As they were ordered before they were dealt out to the shards, one each in turn."""
    total = sum(len(hand) for hand in hands)
    for number, hand in enumerate(hands, start=1):
        due = len(range(number - 1, total, len(hands)))
        if len(hand) != due:
            why = f"shard {number}/{len(hands)} has {len(hand)} prompts where {due} are due."
            raise UsageError(why, flag="SHARD", remedy="All shards need the same --limit.")
    prompts = [prompt for prompt in chain.from_iterable(zip_longest(*hands)) if prompt is not None]
    repeated = [name for name, times in Counter(p.example_id for p in prompts).items() if times > 1]
    if repeated:
        raise UsageError(f"the shards overlap: {repeated[0]!r} is in two of them.", flag="SHARD")
    return prompts


def _samples_of_shards(
    shards: Sequence[RunStore],
    infos: Sequence[Mapping[str, Any]],
    prompts: Sequence[Prompt],
    conditions: Sequence[Mapping[str, Any]],
) -> list[Sample]:
    """Prompt by prompt; a sample's condition counts in the whole run's list."""
    place = {prompt.example_id: number for number, prompt in enumerate(prompts)}
    samples = []
    for number, (shard, info) in enumerate(zip(shards, infos, strict=True), start=1):
        for sample in shard.samples():
            sample.conditions = {**sample.conditions, SHARD: float(number)}
            sample.condition = conditions.index(of_any_board(condition(info, sample.condition)))
            sample.attempt = None
            samples.append(sample)
    return sorted(samples, key=lambda sample: place[sample.example_id])


_PER_ARM = ("target_mode", "draft_mode")
_PEAKS = ("peak_memory_bytes", "device_peak_bytes")
_OF_ONE_SHARD = ("environment", "models", *_PER_ARM, *_PEAKS, "bandwidth_bytes_per_s", "proof", "workers")


def _combined_info(shards: Sequence[RunStore], infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What ``run.json`` records besides the identity: sums, common values, and each shard's own."""
    # What was timed again is of one shard: the merged run has the timings that count alone.
    own = (
        "schema_version",
        "created_utc",
        "identity",
        "resumed",
        "proof",
        "corpus_figures",
        "workers",
        "remeasured",
    )
    record = {key: value for key, value in infos[0].items() if key not in own}
    record |= {key: sum(info[key] for info in infos) for key in ("expected_sequences", "truncated_prompts")}
    texts: dict[str, str] = {}
    for info in infos:
        texts |= info.get("token_texts", {})
    for key in _PER_ARM:  # by arm what all shards did
        modes = [info.get(key, {}) for info in infos]
        seen = {arm: {str(mode.get(arm)) for mode in modes} for mode in modes for arm in mode}
        record[key] = {arm: SHARDS_APART.join(sorted(values)) for arm, values in seen.items()}
    record |= {"shard": None, "token_texts": texts}
    record |= {key: max(info.get(key) or 0 for info in infos) for key in _PEAKS if key in record}
    if gpu := record.get("gpu"):  # of one kind; which board, and how it was, differs
        record["gpu"] = gpu | dict.fromkeys(("index", "uuid", "before", "after"))
    record["shards"] = [
        {
            "shard": info["shard"],
            "directory": shard.directory.name,
            **{key: info.get(key) for key in _OF_ONE_SHARD},
        }
        for shard, info in zip(shards, infos, strict=True)
    ]
    return record
