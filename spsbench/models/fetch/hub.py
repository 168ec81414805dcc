"""Receive files of repositories into the hub's cache by its client, in a process that can be ended.

Run as ``python -m spsbench.models.fetch.hub`` with a line of JSON on stdin, a list of ``HubFile``. It ends
with its stdin, and so with the process that holds that; an error goes to stdout, pickled.

The client's ``hf_hub_download`` begins a file again in every process, leaves what a killed one received and
checks no hash (2.4.0). Its ``http_get``, one call below, continues a file that it is given.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.base.errors import UnavailableError, causes_of, first_line
from spsbench.models.fetch.cache import received_bytes, sha256_of
from spsbench.models.hf_errors import WebPage, failure_of
from spsbench.models.messages import megabytes

_THREADS = 4
_SHA256_DIGITS = 64


class HubFile(NamedTuple):
    """A file that is to be received, and where the cache has its content once all of it is there."""

    repository: str
    kind: str
    commit: str
    file: str
    bytes: int
    blob: str

    @property
    def incomplete(self) -> Path:
        return Path(f"{self.blob}.incomplete")

    @property
    def come(self) -> int:
        """Bytes that are on the disk so far."""
        return min(received_bytes(self.incomplete) or received_bytes(Path(self.blob)), self.bytes)


def receive(part: HubFile) -> None:
    """Receive a file; what is above the client's limit for HTTP is left to it, with all checks."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    blob = Path(part.blob)
    repository = blob.parents[1]
    lock = repository.parent / ".locks" / repository.name / f"{blob.name}.lock"
    for folder in (blob.parent, lock.parent):
        folder.mkdir(parents=True, exist_ok=True)
    if part.bytes <= constants.MAX_HTTP_DOWNLOAD_SIZE:
        with WeakFileLock(lock):
            if not blob.exists():  # else another process was first
                _continue(part)
                if len(blob.name) == _SHA256_DIGITS and sha256_of(part.incomplete) != blob.name:
                    part.incomplete.unlink()
                    why = (
                        f"{part.file} of {part.repository} is not the content that the hub names by its hash."
                    )
                    raise UnavailableError(why, remedy="It was thrown away. Fetch it again.")
                part.incomplete.rename(blob)
    # Puts the content under its name.
    hf_hub_download(part.repository, part.file, revision=part.commit, repo_type=part.kind)


def _continue(part: HubFile) -> None:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    url = hf_hub_url(part.repository, part.file, revision=part.commit, repo_type=part.kind)
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}
    if received_bytes(part.incomplete) > part.bytes:
        part.incomplete.unlink()
    try:
        with part.incomplete.open("ab") as file:
            http_get(url, file, resume_size=file.tell(), headers=headers, expected_size=part.bytes)
    except Exception as error:  # whatever the HTTP library raises
        if _fails_again(error):
            raise
        failed = failure_of(error)
        reason = failed.message if failed else first_line(error).rstrip(".")
        size = f"{megabytes(part.come)} of {megabytes(part.bytes)}"
        why = f"{part.file} of {part.repository} broke off at {size}: {reason}."
        remedy = "What was received is kept: repeat the command to continue."
        raise UnavailableError(why, remedy=remedy) from error


def _fails_again(error: Exception) -> bool:
    """Whether a later command would: a refusal, a login page, this machine's disk."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code < 500 and error.response.status_code not in (408, 429)
    return isinstance(error, WebPage) or (isinstance(error, OSError) and error.errno is not None)


def _refuse_web_page(answer: Any) -> None:
    if answer.is_success and answer.headers.get("Content-Type", "").startswith("text/html"):
        raise WebPage(str(answer.url))


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    from huggingface_hub import constants, get_session

    parts = [HubFile(*each) for each in json.loads(sys.stdin.buffer.readline())]
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    constants.DOWNLOAD_CHUNK_SIZE = None  # type: ignore[assignment]  # written as it comes, not by 10 MB
    get_session().event_hooks["response"].append(_refuse_web_page)
    pool = ThreadPoolExecutor(_THREADS)
    try:
        for received in as_completed([pool.submit(receive, part) for part in parts]):
            received.result()
    except Exception as error:
        sys.stdout.buffer.write(pickle.dumps(_picklable_causes(error)))
        sys.stdout.flush()
    os._exit(0)  # the other threads are left where they are


def _picklable_causes(error: Exception) -> list[BaseException]:
    """With the error itself as the first."""
    portable = list[BaseException]()
    for cause in causes_of(error):
        with suppress(Exception):
            portable.append(pickle.loads(pickle.dumps(cause)))
    return portable or [OSError(first_line(error, kind=True))]


if __name__ == "__main__":
    main()
