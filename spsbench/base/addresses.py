"""What an address names, and why it cannot be read; without what reads it, which takes long to import."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname


class NotThere(Exception):
    """There is nothing at an address."""


class Unreachable(Exception):
    """An address cannot be read; the text says who and why, without secrets that the address may hold."""


def host_of(url: str) -> str:
    """Return the host of an address, or a file's path; never a password."""
    parts = urlsplit(url)
    return parts.hostname or url2pathname(parts.path)


_SERVER = re.compile(
    r"""(openai:https?://)([^/?#\s"']*@)?([^?#\s"']*?)(\?[^#\s"']*?)?(\#[^\s"']*?)?"""
    r"""(?=:model=|,openai:|[\s"'\],]|$)""",
    re.IGNORECASE,
)
_withheld: dict[str, tuple[tuple[str, str] | None, str]] = {}


def withhold(text: str) -> str:
    """Take user, password and query out of the URLs of servers in what was typed.

    Nothing else learns them but ``withheld``: they are in no setting, name, record or message.
    """
    return _SERVER.sub(_without, text)


def _without(match: re.Match[str]) -> str:
    scheme, user, place, query, _ = match.groups()
    name, _, password = (user or "").removesuffix("@").partition(":")
    if user or query:
        login = (unquote(name), unquote(password)) if user else None
        _withheld[_root(scheme[len("openai:") :] + place)] = login, (query or "")[1:]
    return f"{scheme}{place}"


def withheld(url: str) -> tuple[tuple[str, str] | None, str]:
    """Return user and password, if any, and the query of a server's URL as it was typed to this process."""
    return _withheld.get(_root(url), (None, ""))


def _root(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")
