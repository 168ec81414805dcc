"""A catalogue with one engine in it, and commands that only pretend to install it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from spsbench.base.errors import UnavailableError
from spsbench.parts.external.registry import NAMED

ENTRY = """\
title: Tiny
package: tiny-engine
version: 1.0
fetch_bytes: 1000
kept_bytes: 2000
duration: 1 second
rules: {greedy: none, sampled: none}
statistics: []
limits: [It does nothing.]
"""


def write_catalogue(
    folder: Path, patch: pytest.MonkeyPatch, more: str = "", lock: str = "tiny-engine==1.0\n"
) -> Path:
    """The only engine, ``tiny``; its cache is beside it.

    Args:
        folder: of catalogue and cache.
        patch: undone by the caller.
        more: further lines of its entry.
        lock: its lock file.
    """
    catalogue = folder / "engines"
    catalogue.mkdir()
    (catalogue / "tiny.yaml").write_text(ENTRY.replace("1.0", "'1.0'") + more)
    (catalogue / "tiny.txt").write_text(lock)
    patch.setattr("spsbench.parts.external.install.data_dir", lambda kind: catalogue)
    patch.setattr("spsbench.parts.external.registry.NAMED", {**NAMED, "tiny": NAMED["openvino"]})
    patch.setenv("SPSBENCH_CACHE", str(folder / "cache"))
    return catalogue


@dataclass
class FakeRun:
    """Runs nothing: makes the files that commands would, and remembers them.

    Attributes:
        fails: a word; a command that holds it fails.
        lacks: a requirement that the usual index does not have.
        stops: a word; Ctrl-C comes in a command that holds it.
        ran: every command.
        variables: of the last one.
    """

    fails: str = ""
    lacks: str = ""
    stops: str = ""
    ran: list[list[str]] = field(default_factory=list)
    variables: Mapping[str, str] = field(default_factory=dict)

    def __call__(
        self,
        argv: Sequence[str | Path],
        log: Path,
        environment: Mapping[str, str],
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        words = [str(word) for word in argv]
        self.ran.append(words)
        self.variables = environment
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        if self.stops and self.stops in words:
            raise KeyboardInterrupt
        lacking = self.lacks in words and "--index-url" not in words
        if lacking or (self.fails and self.fails in words):
            raise UnavailableError("`pip install` failed.", remedy=f"See {log}.")
        if "venv" in words:
            folder = Path(words[-1])
            (folder / "bin").mkdir(parents=True)
            (folder / "bin" / "python").write_text("")
            (folder / "lib/python3.99/site-packages").mkdir(parents=True)
        if "--build" in words:
            built = Path(words[words.index("--build") + 1]) / "bin"
            built.mkdir(parents=True)
            (built / "llama-server").write_text("built")
        tick()
