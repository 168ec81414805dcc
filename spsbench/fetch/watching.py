"""Observers of slow work: a model is fetched or converted deep inside of whatever first needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol


class Watcher(Protocol):
    """Is notified of progress; nothing depends on it."""

    def said(self, message: str) -> None:
        """A sentence."""

    def transfer(self, what: str, total: int, done: int) -> AbstractContextManager[Callable[[int], None]]:
        """Bytes are coming; what is entered takes how many came.

        Args:
            total: bytes in all.
            done: bytes that are here already.
        """


class Silent:
    """Notifies nobody."""

    def said(self, message: str) -> None:
        """See ``Watcher``."""

    @contextmanager
    def transfer(self, what: str, total: int, done: int) -> Iterator[Callable[[int], None]]:
        """See ``Watcher``."""
        yield lambda count: None


_WATCHER: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


def watcher() -> Watcher:
    """The watcher of the innermost ``watched_by``; a silent one outside of all."""
    return _WATCHER.get() or Silent()


@contextmanager
def watched_by(somebody: Watcher) -> Iterator[None]:
    """Notify ``somebody`` of what happens inside the block."""
    token = _WATCHER.set(somebody)
    try:
        yield
    finally:
        _WATCHER.reset(token)
