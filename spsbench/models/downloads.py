"""Repositories of the hub, of models and of data: commits, sizes of files, and the fetching of large ones.

Large files are received by a process of their own (``fetch.hub``), since the hub's client cannot be
interrupted. They go to where it looks for them in its cache, unfinished ones as ``blobs/ETAG.incomplete``.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from spsbench.base.addresses import host_of
from spsbench.base.errors import SpsbenchError, UnavailableError
from spsbench.base.files import MOST_BYTES, require_ordinary
from spsbench.base.messages import listed
from spsbench.config.models import ModelRef
from spsbench.models.fetch import hub
from spsbench.models.fetch.cache import watcher
from spsbench.models.fetch.hub import HubFile
from spsbench.models.hf_errors import (
    ANSWERS_WITHIN_S,
    WebPage,
    failure_of,
    leave_alone,
    require_room,
    say_cached,
    typed_errors,
)
from spsbench.models.kinds import CONFIG
from spsbench.models.messages import megabytes

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile, RepoSibling

_INDEX = ".index.json"
_WEIGHTS = tuple(
    f"{stem}{index}" for stem in ("model.safetensors", "pytorch_model.bin") for index in ("", _INDEX)
)
"""Files of weights in the order in which transformers looks for them."""

MODELOPT = "hf_quant_config.json"
"""Says in place of config.json how weights were quantised; transformers does not read it, nor them."""

_HASH = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_LOOKS_EVERY_S = 0.1
"""At how much of a file is there."""

Kind = Literal["model", "dataset"]
_FETCHED: Mapping[Kind, str] = {"model": "weights", "dataset": "data"}


class RemoteFile(NamedTuple):
    """Size in bytes and the name of its content in the hub's cache: a SHA-256 of large files."""

    bytes: int
    etag: str


@dataclass(frozen=True, slots=True)
class Repository:
    name: str
    commit: str
    files: Mapping[str, RemoteFile]
    kind: Kind = "model"

    @property
    def folder(self) -> Path:
        """The repository's folder in the hub's cache."""
        from huggingface_hub import constants
        from huggingface_hub.file_download import repo_folder_name

        return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=self.name, repo_type=self.kind)

    def is_here(self, file: str) -> bool:
        return (self.folder / "snapshots" / self.commit / file).is_file()

    def blob(self, file: str) -> Path:
        """Return where the hub's cache has a file's content once all of it is there.

        Raises:
            UnavailableError: what the hub calls it is no hash, and would be a path.
        """
        from huggingface_hub import constants

        if _HASH.fullmatch(self.files[file].etag) is None:
            why = (
                f"{host_of(constants.ENDPOINT)} does not name the content of {file} of {self.name} by a hash."
            )
            raise UnavailableError(why, remedy="Unset HF_ENDPOINT, or choose another mirror.")
        return self.folder / "blobs" / self.files[file].etag


_asked: dict[tuple[str, ...], Repository] = {}


def forget() -> None:
    _asked.clear()


def repository(name: str, revision: str | None, kind: Kind = "model") -> Repository:
    """Ask the hub for a repository, once in a process. Raises what its client raises, and WebPage."""
    from huggingface_hub import HfApi, constants

    key = (constants.ENDPOINT, kind, name, revision or constants.DEFAULT_REVISION)
    if key not in _asked:
        try:
            info: Any = HfApi().repo_info(
                name, revision=revision, repo_type=kind, timeout=ANSWERS_WITHIN_S, files_metadata=True
            )
        except json.JSONDecodeError as error:
            raise WebPage(name) from error
        siblings = info.siblings or ()
        if all(each.blob_id or each.lfs for each in siblings):
            files = {each.rfilename: _remote(each) for each in siblings}
        else:  # some mirrors leave out here what they say of each file where the folders are listed
            files = _listed(name, str(info.sha), kind)
        answer = Repository(name, str(info.sha), files, kind)
        _asked[key] = _asked[(*key[:-1], answer.commit)] = answer
    return _asked[key]


def _remote(file: RepoSibling | RepoFile) -> RemoteFile:
    return RemoteFile(file.size or 0, file.lfs.sha256 if file.lfs else file.blob_id or "")


def _listed(name: str, commit: str, kind: Kind) -> dict[str, RemoteFile]:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    entries = HfApi().list_repo_tree(name, recursive=True, revision=commit, repo_type=kind)
    return {each.path: _remote(each) for each in entries if isinstance(each, RepoFile)}


def pinned(name: str, revision: str | None, flag: str) -> str | None:
    """Return the commit of a model's revision, whose configuration is then in the hub's cache.

    Where the hub fails, the commit in the cache; None where there is none and the hub is not asked.
    """
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import RevisionNotFoundError

    with typed_errors(name, flag):
        cached = try_to_load_from_cache(name, CONFIG, revision=revision)
        here = Path(cached).parent.name if isinstance(cached, str) else None
        if constants.HF_HUB_OFFLINE or (here is not None and here == revision):
            if here is not None:
                say_cached(name)
            return here
        try:
            there = repository(name, revision)
            if CONFIG not in there.files:
                raise _foreign_repository(there, f"no {CONFIG}", flag)
            if there.commit != here:
                hf_hub_download(name, CONFIG, revision=revision, etag_timeout=ANSWERS_WITHIN_S)
            return there.commit
        except (UnavailableError, RevisionNotFoundError):
            raise
        except Exception as error:
            if here is None or not _cache_serves(name, error):
                raise
            return here


def _cache_serves(name: str, error: Exception) -> bool:
    """Whether the hub failed, so that the cache is used; the hub is then not asked again."""
    if (failed := failure_of(error)) is None:
        return False
    leave_alone(failed.message)
    say_cached(name)
    return True


def snapshot(name: str, revision: str, patterns: Sequence[str], flag: str) -> Path:
    """Return a dataset's folder at a revision with the files of these patterns, fetched where missing.

    Where the hub fails, as it is in the cache; else whatever the hub's client raises, and WebPage.
    """
    from huggingface_hub import constants, hf_hub_download, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError
    from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

    kind: Kind = "dataset"
    try:
        here = Path(
            snapshot_download(
                name, revision=revision, repo_type=kind, allow_patterns=list(patterns), local_files_only=True
            )
        )
    except LocalEntryNotFoundError:
        if constants.HF_HUB_OFFLINE:
            raise
        here = None
    if here is not None and constants.HF_HUB_OFFLINE:
        say_cached(name)
        return here
    try:
        there = repository(name, revision, kind)
        files = list(filter_repo_objects(there.files, allow_patterns=list(patterns)))
        fetch([(there, files)], flag)
        if files and (here is None or here.name != there.commit):  # the cache's name of the revision follows
            hf_hub_download(name, files[0], revision=revision, repo_type=kind, etag_timeout=ANSWERS_WITHIN_S)
        return there.folder / "snapshots" / there.commit
    except UnavailableError:
        raise
    except Exception as error:
        if here is None or not _cache_serves(name, error):
            raise
        return here


_ON_HUB = re.compile(rf"(?!\.)(?P<model>[\w.-]+(/[\w.-]+)?(?<!\.json)(@\S+?)?)(/{CONFIG})?")


def configuration(name: str, flag: str) -> Path:
    """Return a model's config.json: a file, a folder's, or a hub model's, fetched if need be.

    The hub model's may be named itself, as in ``ORG/NAME@REVISION/config.json``.
    """
    from huggingface_hub import hf_hub_download

    path = Path(name).expanduser()
    if path.exists():
        file = path / CONFIG if path.is_dir() else path
        try:
            if file.exists():
                require_ordinary(file, MOST_BYTES)
        except OSError as problem:
            why = f"{file} cannot be read ({problem.strerror})."
            remedy = "Give a config.json, its folder or a hub id."
            raise UnavailableError(why, flag=flag, remedy=remedy) from problem
        return file
    match = _ON_HUB.fullmatch(name)
    if match is None:
        remedy = "Give a config.json, its folder or a hub id."
        raise UnavailableError(f"{name} does not exist.", flag=flag, remedy=remedy)
    ref = ModelRef(id=match["model"])
    commit = pinned(ref.id, ref.revision, flag)
    with typed_errors(ref.id, flag):
        return Path(hf_hub_download(ref.id, CONFIG, revision=commit))


def _foreign_repository(there: Repository, lack: str, flag: str) -> UnavailableError:
    others = sorted(there.files, key=lambda file: -there.files[file].bytes)
    why = f"{there.name} has {lack}; there is {listed(others, 3) or 'nothing'}."
    remedy = "Choose a repository with model.safetensors."
    if any(file.endswith(".gguf") for file in others):
        remedy = "Download its .gguf file and give the path of it, or choose one with model.safetensors."
    elif "adapter_config.json" in others:
        remedy = "It is an adapter: merge it into its base model and give the folder."
    return UnavailableError(why, flag=flag, remedy=remedy)


def _weight_files(names: Collection[str], read: Callable[[str], bytes]) -> list[str]:
    """Their index first; none if none of ``names`` is there."""
    first = next((file for file in _WEIGHTS if file in names), None)
    if first is None or not first.endswith(_INDEX):
        return [] if first is None else [first]
    return [first, *sorted(set(json.loads(read(first))["weight_map"].values()))]


def local_weights(folder: Path) -> list[Path]:
    """Return the files of a model's weights in a folder, missing ones included; none if there are none."""
    names = {path.name for path in folder.iterdir()}
    return [folder / file for file in _weight_files(names, lambda file: (folder / file).read_bytes())]


def has_weights(folder: Path) -> bool:
    files = local_weights(folder)
    return bool(files) and all(file.is_file() for file in files)


def packed_by_modelopt(name: str, flag: str) -> UnavailableError:
    why = f"{name} is quantised by modelopt ({MODELOPT}), which transformers does not read."
    remedy = "Choose the unquantised checkpoint; or serve this one and time it by --engine openai:URL"
    return UnavailableError(why, flag=flag, remedy=f"{remedy} --concurrency 1.")


def remote_weights(name: str, commit: str, flag: str) -> tuple[Repository, list[str]]:
    """Return the files of a model's weights on the hub; UnavailableError if any is missing."""
    from huggingface_hub import hf_hub_download

    there = repository(name, commit)
    if MODELOPT in there.files:
        raise packed_by_modelopt(name, flag)
    files = _weight_files(
        there.files, lambda file: Path(hf_hub_download(name, file, revision=commit)).read_bytes()
    )
    if not files:
        raise _foreign_repository(there, "no weights that transformers reads", flag)
    if lost := [file for file in files if file not in there.files]:
        why = f"{name} lacks {listed(lost, 1)}, which its {files[0]} names."
        raise UnavailableError(why, flag=flag, remedy="Choose another revision, or tell its owner.")
    return there, files


def fetch(wanted: Sequence[tuple[Repository, Collection[str]]], flag: str) -> None:
    """Fetch the missing files into the hub's cache; their disk space is checked first.

    An interruption is raised at once, and what came is kept.
    """
    from huggingface_hub import constants

    parts = [
        HubFile(there.name, there.kind, there.commit, file, there.files[file].bytes, str(there.blob(file)))
        for there, files in wanted
        for file in files
        if not there.is_here(file)
    ]
    if not parts:
        return
    total, come = sum(part.bytes for part in parts), _come(parts)
    sizes = {
        there.name: megabytes(sum(part.bytes for part in parts if part.repository == there.name))
        for there, _ in wanted
    }
    named = " and ".join(f"{name} ({size})" for name, size in sizes.items())
    named = f"{_FETCHED[wanted[0][0].kind]} of {named}"
    require_room(total - come, named, flag)
    here = f", {megabytes(come)} of it are here" if come else ""
    about = f"{named} from {host_of(constants.ENDPOINT)}{here}"
    with watcher().transfer(about, max(total, 1), come) as came:
        _receive(sorted(parts, key=lambda part: -part.bytes), come, came, flag)


def _come(parts: Iterable[HubFile]) -> int:
    return sum(part.come for part in parts)


def _receive(parts: Sequence[HubFile], come: int, came: Callable[[int], None], flag: str) -> None:
    """Have a process receive the files, which is ended where this one is interrupted, and ends with it."""
    from huggingface_hub import constants

    environment = {
        **os.environ,
        "HF_ENDPOINT": constants.ENDPOINT,
        "HF_HUB_CACHE": constants.HF_HUB_CACHE,
        "HF_HUB_DOWNLOAD_TIMEOUT": f"{ANSWERS_WITHIN_S:.0f}",
        "HF_HUB_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    with (
        tempfile.TemporaryFile() as answer,
        subprocess.Popen(
            [sys.executable, "-P", "-m", hub.__name__],
            stdin=subprocess.PIPE,
            stdout=answer,
            env=environment,
            start_new_session=True,  # Ctrl-C is for this process to handle
        ) as process,
    ):
        assert process.stdin is not None
        try:
            process.stdin.write(f"{json.dumps(parts)}\n".encode())
            process.stdin.flush()
            code = None
            while code is None:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(_LOOKS_EVERY_S)
                before, come = come, _come(parts)
                came(come - before)
        finally:
            process.kill()
        answer.seek(0)
        problems = answer.read()
    if problems:
        raise _chained(pickle.loads(problems), flag)
    if code != 0:
        why = f"the process that fetches {parts[0].file} of {parts[0].repository} ended with code {code}."
        remedy = "What was received is kept: repeat the command to continue."
        raise UnavailableError(why, flag=flag, remedy=remedy)


def _chained(errors: Sequence[Exception], flag: str) -> Exception:
    """The first, each with the next as its cause."""
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    first = errors[0]
    if isinstance(first, SpsbenchError):
        first.flag = flag
    return first
