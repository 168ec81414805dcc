"""What an address names, and why it cannot be read; without what reads it, which takes long to import."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import url2pathname


class NotThere(Exception):
    """There is nothing at an address."""


class Unreachable(Exception):
    """An address cannot be read; the text says who and why, without secrets that the address may hold."""


def host_of(url: str) -> str:
    """Whom an address names: its host, or a file's path; never a password."""
    parts = urlsplit(url)
    return parts.hostname or url2pathname(parts.path)
