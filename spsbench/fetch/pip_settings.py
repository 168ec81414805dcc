"""Where pip would look for packages, and how it would get there: its files and its variables.

pip itself is not asked: it may be absent, and what it reads is documented
(https://pip.pypa.io/en/stable/topics/configuration/). Later sources win: the files of the machine, of the
user and of the environment, the one that ``PIP_CONFIG_FILE`` names, then the variables ``PIP_...``.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_INDEX = "https://pypi.org/simple"

_TIMEOUT_S = 15.0
_SECTIONS = ("global", "install", "download")
_FALSE = ("", "0", "false", "no", "off", "n", "f")


@dataclass(frozen=True, slots=True)
class PipSettings:
    """What pip's configuration says of fetching.

    Attributes:
        indexes: the index and the extra ones; none with ``no-index``.
    """

    indexes: tuple[str, ...] = (DEFAULT_INDEX,)
    find_links: tuple[str, ...] = ()
    proxy: str | None = None
    cert: str | None = None
    client_cert: str | None = None
    trusted_hosts: tuple[str, ...] = ()
    timeout_s: float = _TIMEOUT_S


def pip_settings(environ: Mapping[str, str] = os.environ) -> PipSettings:
    """Read pip's configuration; a file that cannot be read is passed over, as it concerns pip first."""
    found: dict[str, str] = {}
    for file in _files(environ):
        found |= _read(file)
    found |= {
        name.removeprefix("PIP_").lower().replace("_", "-"): value
        for name, value in environ.items()
        if name.startswith("PIP_") and value
    }
    no_index = found.get("no-index", "").strip().lower() not in _FALSE
    indexes = (found.get("index-url", DEFAULT_INDEX).strip(), *found.get("extra-index-url", "").split())
    return PipSettings(
        indexes=() if no_index else indexes,
        find_links=tuple(found.get("find-links", "").split()),
        proxy=found.get("proxy"),
        cert=found.get("cert"),
        client_cert=found.get("client-cert"),
        trusted_hosts=tuple(found.get("trusted-host", "").split()),
        timeout_s=_seconds(found.get("timeout") or found.get("default-timeout")),
    )


def _seconds(text: str | None) -> float:
    try:
        return max(float(text or ""), 1.0)
    except ValueError:
        return _TIMEOUT_S


def _files(environ: Mapping[str, str]) -> Iterator[Path]:
    """The files that pip reads, the weakest first; they need not exist."""
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return
    home = Path.home()
    if sys.platform == "win32":
        yield Path(environ.get("PROGRAMDATA", "C:/ProgramData")) / "pip/pip.ini"
        yield home / "pip/pip.ini"
        yield Path(environ.get("APPDATA", home)) / "pip/pip.ini"
        yield Path(sys.prefix) / "pip.ini"
    else:
        for folder in reversed(environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(os.pathsep)):
            yield Path(folder) / "pip/pip.conf"
        yield Path("/etc/pip.conf")
        yield Path("/Library/Application Support/pip/pip.conf")
        yield home / ".pip/pip.conf"
        yield home / "Library/Application Support/pip/pip.conf"
        yield Path(environ.get("XDG_CONFIG_HOME", home / ".config")) / "pip/pip.conf"
        yield Path(sys.prefix) / "pip.conf"
    if named:
        yield Path(named)


def _read(file: Path) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(file, encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError):
        return {}
    present = [section for section in _SECTIONS if parser.has_section(section)]
    return {name.replace("_", "-"): value for section in present for name, value in parser.items(section)}
