"""Find and read files of a package index as pip would: its settings, proxy, certificates and logins.

pip itself is not asked: it may be absent, and what it reads is documented
(https://pip.pypa.io/en/stable/topics/configuration/). Later sources win: the files of the machine, of the
user and of the environment, the one that ``PIP_CONFIG_FILE`` names, then the variables ``PIP_...``. Indexes
are read by the simple API in JSON (PEP 691), else in HTML (PEP 503).
"""

from __future__ import annotations

import configparser
import io
import json
import math
import os
import platform
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from html.parser import HTMLParser
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import url2pathname

import requests
from packaging.specifiers import SpecifierSet
from packaging.tags import sys_tags
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from spsbench.base.addresses import NotThere, Unreachable, host_of
from spsbench.base.errors import UnavailableError, first_line
from spsbench.models.fetch.cache import Stored, part_of, received_bytes, sha256_of, watcher, writable
from spsbench.models.messages import megabytes

DEFAULT_INDEX = "https://pypi.org/simple"

_TIMEOUT_S = 15.0
_FALSE = ("", "0", "false", "no", "off", "n", "f")


@dataclass(frozen=True, slots=True)
class PipSettings:
    indexes: tuple[str, ...] = (DEFAULT_INDEX,)  # and the extra ones; none with ``no-index``
    find_links: tuple[str, ...] = ()
    proxy: str | None = None
    cert: str | None = None
    client_cert: str | None = None
    trusted_hosts: tuple[str, ...] = ()
    timeout_s: float = _TIMEOUT_S


def pip_settings(environ: Mapping[str, str] = os.environ) -> PipSettings:
    """Read pip's configuration; a file that cannot be read is passed over, as it concerns pip first."""
    settings: dict[str, str] = {}
    for file in _pip_files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue
        for section in filter(parser.has_section, ("global", "install", "download")):
            settings |= {name.replace("_", "-"): value for name, value in parser.items(section)}
    settings |= {
        name.removeprefix("PIP_").lower().replace("_", "-"): value
        for name, value in environ.items()
        if name.startswith("PIP_") and value
    }
    no_index = settings.get("no-index", "").strip().lower() not in _FALSE
    try:
        timeout_s = max(float(settings.get("timeout") or settings.get("default-timeout") or ""), 1.0)
    except ValueError:
        timeout_s = _TIMEOUT_S
    indexes = (settings.get("index-url", DEFAULT_INDEX).strip(), *settings.get("extra-index-url", "").split())
    return PipSettings(
        indexes=() if no_index else indexes,
        find_links=tuple(settings.get("find-links", "").split()),
        proxy=settings.get("proxy"),
        cert=settings.get("cert"),
        client_cert=settings.get("client-cert"),
        trusted_hosts=tuple(settings.get("trusted-host", "").split()),
        timeout_s=timeout_s,
    )


def _pip_files(environ: Mapping[str, str]) -> list[Path]:
    """Of settings, the weakest first; they need not exist."""
    named = environ.get("PIP_CONFIG_FILE")
    home = Path.home()
    name = "pip.conf"
    if named == os.devnull:
        return []
    if sys.platform == "win32":
        name = "pip.ini"
        folders = [Path(environ.get("PROGRAMDATA", "C:/ProgramData")) / "pip", home / "pip"]
        folders += [Path(environ.get("APPDATA", home)) / "pip"]
    else:
        shared = reversed(environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(os.pathsep))
        folders = [*(Path(folder) / "pip" for folder in shared), Path("/etc")]
        folders += [Path("/Library/Application Support/pip"), home / ".pip"]
        folders += [home / "Library/Application Support/pip"]
        folders += [Path(environ.get("XDG_CONFIG_HOME", home / ".config")) / "pip"]
    files = [folder / name for folder in (*folders, Path(sys.prefix))]
    return [*files, Path(named)] if named else files


class Bounded(HTTPAdapter):  # type: ignore[misc]  # requests has no types
    """Ends an answer that takes too long or is too long, however little of it comes at a time.

    The timeouts of requests are for the wait between two bytes, and begin again with each. ``most`` are bytes
    with all headers.
    """

    def __init__(
        self, within_s: float, most: float, late: Exception, long: Exception, max_retries: Any = 0
    ) -> None:
        super().__init__(max_retries=max_retries)
        ends = time.monotonic() + within_s
        self._response = partial(_Response, ends=ends, most=most, late=late, long=long)

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        pool = super().get_connection_with_tls_context(*args, **kwargs)
        pool.ConnectionCls = type("Connection", (pool.ConnectionCls,), {"response_class": self._response})
        return pool


class _Response(HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **bounds: Any) -> None:
        own = {name: bounds.pop(name) for name in ("ends", "most", "late", "long")}
        super().__init__(sock, *args, **bounds)
        self.fp = io.BufferedReader(_Reader(sock, self.fp.detach(), **own))


class _Reader(io.RawIOBase):
    def __init__(
        self,
        sock: socket.socket,
        raw: io.RawIOBase,
        *,
        ends: float,
        most: float,
        late: Exception,
        long: Exception,
    ) -> None:
        self._sock, self._raw, self._wait_s = sock, raw, sock.gettimeout()
        self._ends = ends
        self._left = most
        self._late = late
        self._long = long

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._ends - time.monotonic()
        if left_s <= 0:
            raise self._late
        self._sock.settimeout(left_s if self._wait_s is None else min(left_s, self._wait_s))
        try:
            count = self._raw.readinto(buffer) or 0
        except TimeoutError:
            if time.monotonic() < self._ends:
                raise
            raise self._late from None
        self._left -= count
        if self._left < 0:
            raise self._long
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


CHUNK = 1 << 18
_ATTEMPTS = 3
_NOT_THERE = (404, 410, 416)  # 416: the range begins after the end
_RETRIES = Retry(total=3, connect=2, backoff_factor=0.3, status_forcelist=(500, 502, 503, 504))


@dataclass(frozen=True, slots=True)
class Response:
    """What an address answers, from the byte ``start`` on."""

    url: str
    start: int
    content_type: str
    chunks: Iterator[bytes]


class Http:
    def __init__(self, settings: PipSettings) -> None:
        self.settings = settings
        self._logins: dict[str, tuple[str, str]] = {}
        self._session = requests.Session()

    @contextmanager
    def open(
        self,
        url: str,
        accept: str = "*/*",
        start: int = 0,
        within_s: float = math.inf,
        most: float = math.inf,
    ) -> Iterator[Response]:
        """Open an answer for reading, limited to so many seconds and bytes."""
        if urlsplit(url).scheme == "file":
            path = Path(url2pathname(urlsplit(url).path))
            if path.is_dir():
                path = path / "index.html"
            if not path.is_file():
                raise NotThere
            yield Response(url, start, "text/html" if path.suffix == ".html" else "", _chunks(path, start))
            return
        late = Unreachable(f"{host_of(url)}: no end of its answer within {within_s:g} s")
        long = Unreachable(f"{host_of(url)}: an answer of more than {most / 1e6:,.0f} MB")
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, Bounded(within_s, most, late, long, _RETRIES))
        try:
            with self._get(url, accept, start) as response:
                if response.status_code in _NOT_THERE:
                    raise NotThere
                if not response.ok:
                    reason = f"HTTP {response.status_code} {response.reason}"
                    raise Unreachable(f"{host_of(response.url)}: {reason}")
                begins = start if response.status_code == requests.codes.partial_content else 0
                kind = response.headers.get("Content-Type", "")
                yield Response(response.url, begins, kind, response.iter_content(CHUNK))
        except requests.RequestException as error:
            raise Unreachable(f"{host_of(url)}: {_short_reason(error)}") from error

    def download(self, url: str, wanted: Stored) -> Path:
        """Fetch a file into the cache, where its hash is checked; the caller removes it."""
        part = part_of(wanted.file)
        with writable():
            part.parent.mkdir(parents=True, exist_ok=True)
            if received_bytes(part) > wanted.bytes:
                part.unlink()
            self._receive(url, wanted, part)
        found = sha256_of(part)
        if found != wanted.sha256:
            part.unlink()
            raise UnavailableError(
                f"{wanted.file} from {host_of(url) or 'an earlier attempt'} has the sha256 {found[:16]}..., "
                f"not {wanted.sha256[:16]}....",
                remedy="It was thrown away. Fetch it again, or from another index (pip's index-url).",
            )
        return part

    def _receive(self, url: str, wanted: Stored, part: Path) -> None:
        """Append to ``part`` until it has the size; a connection that breaks off is taken up again."""
        what, reason = f"{wanted.file} from {host_of(url)}", "it ended early"
        with watcher().transfer(what, wanted.bytes, received_bytes(part)) as came:
            for _ in range(_ATTEMPTS):
                if received_bytes(part) >= wanted.bytes:
                    return
                try:
                    self._append(url, wanted.bytes, part, came)
                except Unreachable as problem:
                    reason = str(problem)
                except NotThere:
                    part.unlink(missing_ok=True)
                    raise UnavailableError(
                        f"{wanted.file} is not at {host_of(url)}, although its index says so.",
                        remedy="Try again later, or another index (pip's index-url).",
                    ) from None
        if (received := received_bytes(part)) < wanted.bytes:
            why = f"{what} broke off at {megabytes(received)} of {megabytes(wanted.bytes)} ({reason})."
            raise UnavailableError(why, remedy="What was received is kept: repeat the command to continue.")

    def _append(self, url: str, total: int, part: Path, came: Callable[[int], None]) -> None:
        """One connection's worth; never more than ``total`` bytes, whatever the server sends."""
        have = received_bytes(part)
        with self.open(url, start=have) as answer, part.open("ab", buffering=0) as file:
            if answer.start != have:  # the server begins again
                file.truncate(0)
                came(-have)
                have = 0
            for chunk in answer.chunks:
                taken = chunk[: total - have]
                file.write(taken)
                have += len(taken)
                came(len(taken))
                if have == total:
                    return

    def _get(self, url: str, accept: str, start: int) -> Any:
        """Begin a request from byte ``start`` on, with proxy, logins and certificates as pip has them."""
        # Without this a server may compress the wheel, and bytes could not be counted.
        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        parts = urlsplit(url)
        proxy = self.settings.proxy
        if parts.username is not None and parts.hostname is not None:
            # An index's login is used for files on the same host, as in pip.
            self._logins[parts.hostname] = (parts.username, parts.password or "")
        trusted = {parts.hostname, parts.netloc.rpartition("@")[2]} & {*self.settings.trusted_hosts}
        return self._session.get(
            url,
            headers=headers,
            stream=True,
            auth=self._logins.get(parts.hostname or ""),
            timeout=self.settings.timeout_s,
            verify=False if trusted else self.settings.cert,  # None leaves it to requests' own variables
            cert=self.settings.client_cert,
            proxies={"http": proxy, "https": proxy} if proxy else None,
        )


def _chunks(path: Path, start: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(start)
            while chunk := file.read(CHUNK):
                yield chunk
    except OSError as error:
        raise Unreachable(f"{path}: {error.strerror}") from error


_REASONS = (
    (requests.exceptions.SSLError, "its certificate is not trusted"),
    (requests.exceptions.ProxyError, "the proxy refused the connection"),
    (requests.Timeout, "no answer in time"),
    (requests.exceptions.ChunkedEncodingError, "the connection broke off"),
    (requests.ConnectionError, "no connection"),
)


def _short_reason(error: Exception) -> str:
    """requests' own messages have a hundred words."""
    return next((words for kind, words in _REASONS if isinstance(error, kind)), first_line(error)[:80])


_PAGE_S, _PAGE_BYTES = 300.0, 64 << 20
_SIMPLE = "application/vnd.pypi.simple.v1"
_ACCEPT = f"{_SIMPLE}+json, {_SIMPLE}+html;q=0.2, text/html;q=0.1"


@dataclass(frozen=True, slots=True)
class Listed:
    """A file as an index lists it; size and hash in bytes and sha256, where it says them."""

    url: str
    yanked: bool = False
    requires_python: str = ""
    bytes: int | None = None
    sha256: str | None = None

    @property
    def name(self) -> str:
        return unquote(urlsplit(self.url).path).rpartition("/")[2]


def find_file(package: str, file: str, http: Http) -> tuple[Listed | None, list[str]]:
    """Find a file of a package in ``find-links`` or an index; return it and the problems on the way."""
    problems: list[str] = []
    matches = (each for each in _offered_files(package, http, problems) if each.name == file)
    return next(matches, None), problems


def find_versions(package: str, http: Http, *, sources: bool = False) -> tuple[list[str], list[str]]:
    """Find versions with a wheel (``sources``: a source distribution) for this Python and machine.

    The newest comes first, with what was wrong on the way; no pre-releases, and none that was yanked.
    """
    tags = frozenset(sys_tags())
    here = platform.python_version()
    problems = list[str]()
    versions: set[Version] = set()
    for file in _offered_files(package, http, problems):
        try:
            if sources:
                name, version = parse_sdist_filename(file.name)
            else:
                name, version, _, theirs = parse_wheel_filename(file.name)
                if tags.isdisjoint(theirs):
                    continue
            fits = SpecifierSet(file.requires_python).contains(here, prereleases=True)
        except ValueError:  # a file of another kind
            continue
        is_it = name == canonicalize_name(package)
        if is_it and fits and not file.yanked and not version.is_prerelease:
            versions.add(version)
    return [str(version) for version in sorted(versions, reverse=True)], problems


def _offered_files(package: str, http: Http, problems: list[str]) -> Iterator[Listed]:
    """Of a package, and perhaps of others: from ``find-links`` first, then from every index."""
    for place in http.settings.find_links:
        path = Path(place.removeprefix("file://")).expanduser()
        if path.is_dir():
            yield from (Listed(each.absolute().as_uri()) for each in sorted(path.iterdir()))
        elif urlsplit(place).scheme in ("http", "https", "file"):
            yield from _files_on(place, http, problems)
    for index in http.settings.indexes:
        yield from _files_on(f"{index.rstrip('/')}/{canonicalize_name(package)}/", http, problems)


def _files_on(page: str, http: Http, problems: list[str]) -> list[Listed]:
    try:
        with http.open(page, accept=_ACCEPT, within_s=_PAGE_S, most=_PAGE_BYTES) as answer:
            text = b"".join(answer.chunks).decode("utf-8", "replace")
    except NotThere:
        return []
    except Unreachable as problem:
        problems.append(str(problem))
        return []
    if "json" in answer.content_type:
        try:
            return [
                Listed(
                    urljoin(answer.url, str(file["url"])),
                    bool(file.get("yanked")),
                    str(file.get("requires-python") or ""),
                    file.get("size"),
                    (file.get("hashes") or {}).get("sha256"),
                )
                for file in json.loads(text)["files"]
            ]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return []  # another kind of page than an index's
    parser = _Anchors(answer.url)
    parser.feed(text)
    return parser.files


class _Anchors(HTMLParser):
    def __init__(self, base: str) -> None:
        super().__init__()
        self.files: list[Listed] = []
        self._base = base

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        href = attributes.get("href")
        if tag == "base" and href:
            self._base = urljoin(self._base, href)
        elif tag == "a" and href:
            python = attributes.get("data-requires-python") or ""
            self.files.append(Listed(urljoin(self._base, href), "data-yanked" in attributes, python))
