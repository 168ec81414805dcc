"""How a run is continued."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def resume_command(directory: Path) -> str:
    """The command that continues a run, as it can be typed here."""
    program = Path(sys.argv[0])
    typed = program.stem == "spsbench" and shutil.which("spsbench") != str(program)
    return shlex.join([str(program) if typed else "spsbench", "run", "--resume", str(directory)])
