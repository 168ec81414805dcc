"""What is taken of a part by name, so that a part can be deleted; see ``docs/architecture.md``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from spsbench.base.errors import UnavailableError


def of_part(place: str) -> Any:
    """Return what a part offers, e.g. ``audit.command:audit``.

    Raises:
        UnavailableError: the part is not in this installation.
    """
    module, _, name = place.partition(":")
    try:
        imported = import_module(f"spsbench.parts.{module}")
    except ModuleNotFoundError as error:
        part = module.partition(".")[0]
        if error.name != f"spsbench.parts.{part}":
            raise
        raise UnavailableError(f"the part {part} is not in this installation of spsbench.") from error
    return getattr(imported, name)
