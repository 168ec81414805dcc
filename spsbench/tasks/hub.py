"""Fetch a task's official data from the Hugging Face hub, or from what it left in the cache."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spsbench.errors import UnavailableError
from spsbench.tasks.local import parquet_rows, read_rows
from spsbench.tasks.rows import Row
from spsbench.tasks.spec import HubSource


@dataclass(frozen=True, slots=True)
class HubData:
    """The split asked for, some rows of the train split, and the commit both came from."""

    repository: str
    revision: str
    rows: list[Row]
    train: list[Row]


def fetch(sources: Sequence[HubSource], split: str) -> HubData:
    """Data of the first source that has the split.

    Offline, the hub's cache (``HF_HOME``) serves. Of the train split one file is fetched and one
    row group read: it only has to yield an exemplar, and the whole would be hundreds of megabytes.

    Raises:
        UnavailableError: no source could be had; names each with its reason and the other ways.
    """
    tried: dict[str, list[str]] = {}
    for source in sources:
        try:
            return _fetch_one(source, split)
        except Exception as error:  # the client also raises whatever its HTTP library raised
            tried.setdefault(_first_sentence(error), []).append(f"{source.repository} at {source.revision}")
    reasons = [f"{', '.join(names)}: {reason}" for reason, names in tried.items()]
    raise UnavailableError(
        f"the split {split!r} could not be had from the hub ({'; '.join(reasons) or 'no source is named'}).",
        flag="--data official",
        remedy="Give a local file with --data PATH, point HF_HOME to a cache that holds the data, go online "
        "(with HF_TOKEN if access is gated), or use --data mini.",
    )


def _fetch_one(source: HubSource, split: str) -> HubData:
    import huggingface_hub

    snapshot = huggingface_hub.snapshot_download(
        source.repository,
        repo_type="dataset",
        revision=source.revision,
        allow_patterns=[f"*{split}*", "*train/0000.parquet", "*train-00000-of-*", "*train.jsonl*"],
    )
    root = Path(snapshot)
    files = _files(root, source.config, split)
    if not files:
        raise UnavailableError(f"the snapshot {root} has no Parquet or JSON lines file of {split!r}.")
    rows = [row for path in files for row in read_rows(path, split)]
    train = [row for path in _files(root, source.config, "train")[:1] for row in _first_rows(path)]
    return HubData(source.repository, root.name, rows, train)


def _files(root: Path, config: str | None, split: str) -> list[Path]:
    """Data files of a split, by its name in the file's or a folder's name, in order."""
    named = re.compile(rf"{re.escape(split)}([-_.]|$)")

    def belongs(path: Path) -> bool:
        parts = path.relative_to(root).parts
        in_config = config is None or config in parts[:-1]
        return in_config and (split in parts[:-1] or named.match(parts[-1]) is not None)

    found = (path for form in ("*.parquet", "*.jsonl", "*.jsonl.gz") for path in root.rglob(form))
    return sorted(path for path in found if belongs(path))


def _first_rows(path: Path) -> Iterator[Row]:
    return parquet_rows(path, row_group=0) if path.suffix == ".parquet" else iter(read_rows(path, "train"))


def _first_sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}, {lines[0]}" if lines else type(error).__name__
