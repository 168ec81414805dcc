"""A folder in which an engine is installed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment, always used by its interpreter: the scripts in ``bin`` name the folder in
    which they were made, and it is renamed once it is whole.
    """

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter; not resolved, since the link is what makes it an environment."""
        return self.folder / "bin" / "python"

    @property
    def server(self) -> Path:
        """llama.cpp's server, where that is what was installed."""
        return self.folder / "bin" / "llama-server"

    @property
    def is_here(self) -> bool:
        """Whether it is installed, and the interpreter that it was made with is still there."""
        return self.python.exists()

    @property
    def packages(self) -> Path:
        """Its packages."""
        found = next(self.folder.glob("lib/python3*/site-packages"), None)
        if found is None:
            raise FileNotFoundError(f"{self.folder} has no packages")
        return found
