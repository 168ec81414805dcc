"""The store of one run: append, resume, read.

The journal is the truth; every other table is derived from it and may be thrown away.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from spsbench import files
from spsbench.errors import UsageError
from spsbench.records import Prompt, Sample
from spsbench.store import codec, opening, tables
from spsbench.store.journal import Journal, Row
from spsbench.store.opening import PROMPTS_FILE, RUN_FILE

Key = tuple[str, int, str]

SAMPLES_FILE = "samples.jsonl"
SCORES_FILE = "scores.jsonl"
REPORT_FILE = "report.md"


class _Entry(NamedTuple):
    offset: int
    failed: bool


class RunStore:
    """The files of one run. Made by ``create``, ``open_or_create`` or ``open``; a context manager."""

    def __init__(self, directory: Path, run: Row, lock_descriptor: int | None) -> None:
        self.directory = directory
        self._run = run
        self._lock = lock_descriptor
        if lock_descriptor is not None:
            # What a crash left is repaired now, not at the first sample.
            _ = self._entries, self._scores

    @cached_property
    def _journal(self) -> Journal:
        """Read whole when it is first needed: a report of a long run may never need it."""
        return Journal(self.directory / SAMPLES_FILE, _entry, writable=self._lock is not None)

    @cached_property
    def _score_journal(self) -> Journal:
        return Journal(self.directory / SCORES_FILE, _score, writable=self._lock is not None)

    @cached_property
    def _entries(self) -> dict[Key, _Entry]:
        """Where the last attempt at each sample stands."""
        digests = self._journal.digests.items()
        return {key: _Entry(offset, failed) for offset, (key, failed) in digests}

    @cached_property
    def _scores(self) -> dict[Key, dict[str, float]]:
        scores: dict[Key, dict[str, float]] = {}
        for key, found in self._score_journal.digests.values():
            scores.setdefault(key, {}).update(found)
        return scores

    @classmethod
    def create(
        cls, directory: Path, *, identity: Row, config: Row, info: Row, prompts: Sequence[Prompt]
    ) -> Self:
        """Begin a run in a directory that is missing or empty."""
        held = opening.take(directory)
        try:
            if (directory / RUN_FILE).exists():
                raise UsageError(
                    f"{directory} already holds a run.",
                    flag="--out",
                    remedy=f"Continue it with --resume {directory}, or name another directory.",
                )
            return cls(directory, opening.begin(directory, identity, config, info, prompts), held)
        except BaseException:
            os.close(held)
            raise

    @classmethod
    def open_or_create(
        cls, directory: Path, *, identity: Row, config: Row, info: Row, prompts: Sequence[Prompt]
    ) -> Self:
        """Continue the run in ``directory`` if its identity is the same, else as ``create``.

        Limits may have grown: the configuration and the prompts are brought up to date, and ``run.json``
        notes the continuation with its ``info`` under ``resumed``.
        """
        held = opening.take(directory)
        try:
            if not (directory / RUN_FILE).exists():
                run = opening.begin(directory, identity, config, info, prompts)
            else:
                run = opening.resume(directory, identity, config, info, prompts)
            return cls(directory, run, held)
        except BaseException:
            os.close(held)
            raise

    @classmethod
    def open(cls, directory: Path, *, writable: bool = False) -> Self:
        """Open an existing run, to read it (even while it is running) or, with the lock, to add to it."""
        run = opening.read_run(directory)
        held = files.acquire_lock(directory, "RUN") if writable else None
        try:
            return cls(directory, run, held)
        except BaseException:
            if held is not None:
                os.close(held)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the journals and give the lock back."""
        for name in ("_journal", "_score_journal"):
            if name in self.__dict__:
                self.__dict__[name].close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def append(self, sample: Sample) -> None:
        """Write a finished or failed sample; it is on the disk when this returns."""
        offset = self._journal.append(codec.encode_sample(sample))
        self._entries[sample.key] = _Entry(offset, sample.error is not None)

    def append_scores(self, key: Key, scores: dict[str, float]) -> None:
        """Add scores to the sample under ``key``; a later value of the same metric wins."""
        example_id, sample_index, arm = key
        row = {"example_id": example_id, "sample_index": sample_index, "arm": arm, "scores": scores}
        self._score_journal.append(row)
        self._scores.setdefault(key, {}).update(scores)

    def done(self) -> set[Key]:
        """Keys of the samples that need not be generated again; failed ones are not among them."""
        return {key for key, entry in self._entries.items() if not entry.failed}

    def failed(self) -> set[Key]:
        """Keys of the samples whose last attempt failed."""
        return {key for key, entry in self._entries.items() if entry.failed}

    def samples(self) -> Iterator[Sample]:
        """Every sample with its scores, in journal order; of several attempts the last."""
        return map(codec.decode_sample, self._rows())

    def frames(self) -> tables.Frames:
        """The tables of the run: from Parquet if it shows the present journal, else from the journal."""
        journal_exists = (self.directory / SAMPLES_FILE).exists()
        stored = tables.read_tables(self.directory, _stamp(self.directory) if journal_exists else None)
        found = tables.build_tables(self._rows()) if stored is None else stored
        return tables.to_frames(found, self.arms())

    def write_parquet(self) -> None:
        """Write ``arms``, ``samples``, ``loops``, ``tokens`` and ``evidence.parquet``, each atomically."""
        stamp = _stamp(self.directory)
        tables.write_tables(self.directory, tables.build_tables(self._rows()), self.arms(), stamp)

    def write_report(self, text: str) -> None:
        """Write ``report.md``."""
        files.write_text(self.directory / REPORT_FILE, text)

    def note(self, **facts: object) -> None:
        """Add what became known after the run began, e.g. the models' sizes, to ``run.json``."""
        self._run = self._run | files.plain(facts)
        files.write_json(self.directory / RUN_FILE, self._run)

    def run_info(self) -> Row:
        """What ``run.json`` says."""
        return dict(self._run)

    def arms(self) -> list[Row]:
        """Every arm of the run with its axes, see ``Arm.axes``."""
        return list(self._run.get("arms") or [])

    def prompts(self) -> list[Prompt]:
        """Every prompt of the run."""
        return codec.read_prompts(self.directory / PROMPTS_FILE)

    def _rows(self) -> Iterator[Row]:
        """The row that counts of every sample, in journal order, with its scores."""
        for row in self._journal.read(sorted(entry.offset for entry in self._entries.values())):
            row["scores"] = row["scores"] | self._scores.get(_key(row), {})
            yield row


def read_frames(directory: Path) -> tables.Frames:
    """The tables of a run, see ``RunStore.frames``."""
    with RunStore.open(directory) as store:
        return store.frames()


def _key(row: Row) -> Key:
    return row["example_id"], row["sample_index"], row["arm"]


def _entry(row: Row) -> tuple[Key, bool]:
    """Key of a sample's row, and whether it failed."""
    codec.check_sample(row)
    return _key(row), row["error"] is not None


def _score(row: Row) -> tuple[Key, dict[str, float]]:
    codec.check_scores(row)
    return _key(row), row["scores"]


def _stamp(directory: Path) -> str:
    """The journals' sizes: they only grow, so equal sizes mean equal contents."""
    paths = (directory / SAMPLES_FILE, directory / SCORES_FILE)
    return "+".join(str(path.stat().st_size if path.exists() else 0) for path in paths)
