"""Read an address, of the network or of a folder, the way pip would: its proxy, certificates and names."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import requests
from urllib3.util import Retry

from spsbench.config.addresses import NotThere, Unreachable, host_of
from spsbench.fetch.bounded import Bounded
from spsbench.fetch.pip_settings import PipSettings

CHUNK = 1 << 18
_GONE = (404, 410)
_NOT_SATISFIABLE = 416
_RETRIES = Retry(total=3, connect=2, backoff_factor=0.3, status_forcelist=(500, 502, 503, 504))


@dataclass(frozen=True, slots=True)
class Answer:
    """What an address answers.

    Attributes:
        chunks: the bytes.
    """

    url: str
    start: int
    content_type: str
    chunks: Iterator[bytes]


class Http:
    """Reads addresses."""

    def __init__(self, settings: PipSettings) -> None:
        self.settings = settings
        self._logins: dict[str, tuple[str, str]] = {}
        self._session = requests.Session()

    @contextmanager
    def open(
        self,
        url: str,
        *,
        accept: str = "*/*",
        start: int = 0,
        within_s: float = math.inf,
        most: float = math.inf,
    ) -> Iterator[Answer]:
        """Begin to read.

        Args:
            within_s, most: seconds and bytes of all that is answered.
        """
        if urlsplit(url).scheme == "file":
            yield _of_file(url, start)
            return
        late = Unreachable(f"{host_of(url)}: no end of its answer within {within_s:g} s")
        long = Unreachable(f"{host_of(url)}: an answer of more than {most / 1e6:,.0f} MB")
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, Bounded(within_s, most, late, long, _RETRIES))
        try:
            with self._get(url, accept, start) as response:
                _require_content(response)
                begins = start if response.status_code == requests.codes.partial_content else 0
                kind = response.headers.get("Content-Type", "")
                yield Answer(response.url, begins, kind, response.iter_content(CHUNK))
        except requests.RequestException as error:
            raise Unreachable(f"{host_of(url)}: {_reason(error)}") from error

    def _get(self, url: str, accept: str, start: int) -> Any:
        # Without this a server may compress the wheel, and bytes could not be counted.
        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        proxy = self.settings.proxy
        return self._session.get(
            url,
            headers=headers,
            stream=True,
            auth=self._login(url),
            timeout=self.settings.timeout_s,
            verify=self._verify(url),
            cert=self.settings.client_cert,
            proxies={"http": proxy, "https": proxy} if proxy else None,
        )

    def _verify(self, url: str) -> bool | str | None:
        """None leaves it to the variables that requests itself knows."""
        parts = urlsplit(url)
        if {parts.hostname, parts.netloc.rpartition("@")[2]} & {*self.settings.trusted_hosts}:
            return False
        return self.settings.cert

    def _login(self, url: str) -> tuple[str, str] | None:
        """That of an index holds for the files on the same host, as with pip."""
        parts = urlsplit(url)
        if parts.username is not None and parts.hostname is not None:
            self._logins[parts.hostname] = (parts.username, parts.password or "")
        return self._logins.get(parts.hostname or "")


def _require_content(response: Any) -> None:
    if response.status_code in _GONE:
        raise NotThere
    if response.status_code == _NOT_SATISFIABLE:
        raise NotThere
    if not response.ok:
        raise Unreachable(f"{host_of(response.url)}: HTTP {response.status_code} {response.reason}")


def _of_file(url: str, start: int) -> Answer:
    path = Path(url2pathname(urlsplit(url).path))
    if path.is_dir():
        path = path / "index.html"
    if not path.is_file():
        raise NotThere
    return Answer(url, start, "text/html" if path.suffix == ".html" else "", _chunks(path, start))


def _chunks(path: Path, start: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(start)
            while chunk := file.read(CHUNK):
                yield chunk
    except OSError as error:
        raise Unreachable(f"{path}: {error.strerror}") from error


def _reason(error: Exception) -> str:
    """A few words: what requests says itself has a hundred."""
    match error:
        case requests.exceptions.SSLError():
            return "its certificate is not trusted"
        case requests.exceptions.ProxyError():
            return "the proxy gives no way"
        case requests.Timeout():
            return "no answer in time"
        case requests.exceptions.ChunkedEncodingError():
            return "the connection broke off"
        case requests.ConnectionError():
            return "no connection"
    return next(iter(str(error).splitlines()), type(error).__name__)[:80]
