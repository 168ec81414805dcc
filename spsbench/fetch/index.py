"""Find a file on a package index: the simple API in JSON (PEP 691), else in HTML (PEP 503)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from spsbench.config.addresses import NotThere, Unreachable
from spsbench.fetch.http import Http
from spsbench.fetch.pip_settings import PipSettings

_JSON = "application/vnd.pypi.simple.v1+json"
_PAGE_S, _PAGE_BYTES = 300.0, 64 << 20
_ACCEPT = f"{_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


@dataclass(frozen=True, slots=True)
class Search:
    """What came of a search."""

    url: str | None
    problems: tuple[str, ...]


def find_file(package: str, file: str, http: Http) -> Search:
    """Look for a file of a package, in ``find-links`` first, then in every index."""
    problems = []
    for page in _pages(package, file, http.settings):
        try:
            links = [page] if page.endswith(f"/{file}") else _links(page, http)
        except NotThere:
            continue
        except Unreachable as problem:
            problems.append(str(problem))
            continue
        for link in links:
            if unquote(urlsplit(link).path).endswith(f"/{file}"):
                return Search(link, tuple(problems))
    return Search(None, tuple(problems))


def _pages(package: str, file: str, settings: PipSettings) -> Iterator[str]:
    """Addresses of pages with links, or of the file itself where a folder has it."""
    for place in settings.find_links:
        path = Path(place.removeprefix("file://")).expanduser()
        if (path / file).is_file():
            yield (path / file).absolute().as_uri()
        elif not path.is_dir() and urlsplit(place).scheme in ("http", "https", "file"):
            yield place
    normal = re.sub(r"[-_.]+", "-", package).lower()
    for index in settings.indexes:
        yield f"{index.rstrip('/')}/{normal}/"


def _links(page: str, http: Http) -> list[str]:
    """The absolute addresses that a page names."""
    with http.open(page, accept=_ACCEPT, within_s=_PAGE_S, most=_PAGE_BYTES) as answer:
        text = b"".join(answer.chunks).decode("utf-8", "replace")
        if "json" in answer.content_type:
            return [urljoin(answer.url, link) for link in _links_of_json(text)]
    parser = _Anchors(answer.url)
    parser.feed(text)
    return parser.links


def _links_of_json(text: str) -> list[str]:
    try:
        return [str(file["url"]) for file in json.loads(text)["files"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []  # another kind of page than an index's


class _Anchors(HTMLParser):
    """Collects where the links of a page lead."""

    def __init__(self, base: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self._base = base

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See ``HTMLParser``."""
        href = dict(attrs).get("href")
        if tag == "base" and href:
            self._base = urljoin(self._base, href)
        elif tag == "a" and href:
            self.links.append(urljoin(self._base, href))
