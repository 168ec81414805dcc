"""Commands that get a signal at a chosen place, each in a process of its own.

    python tests/support/interrupting.py FOLDER

FOLDER/cases.json lists them; see ``Case``. FOLDER/results.json gets what became of each: exit code, stdout
and stderr. The children are forked, so that they begin with everything imported; this process computes
nothing. A case whose command is empty runs the last line of stderr of the case before it.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.killing import IMPORTED


@dataclass(frozen=True)
class Case:
    """One command.

    Attributes:
        command: its arguments.
        at: ``module:function`` that sends the signal when it is called, or, of a generator, when it has
            made its first item. Empty: no signal.
        signal: its name.
        ignored: whether the process is started with the signal ignored, as by nohup.
    """

    command: list[str]
    at: str = ""
    signal: str = "SIGTERM"
    ignored: bool = False

    def plant(self) -> None:
        """Have the place send the signal to this process."""
        signum = signal.Signals[self.signal]
        if self.ignored:
            signal.signal(signum, signal.SIG_IGN)
        elif signum == signal.SIGINT:  # a shell's background has it ignored
            signal.signal(signum, signal.default_int_handler)
        else:  # as has nohup, under which these tests may run
            signal.signal(signum, signal.SIG_DFL)
        if not self.at:
            return
        place, _, name = self.at.partition(":")
        module = importlib.import_module(place)
        whole = getattr(module, name)

        def called(*args: Any, **kwargs: Any) -> Any:
            result = whole(*args, **kwargs)
            if isinstance(result, Iterator):
                return after_the_first(result)
            os.kill(os.getpid(), signum)
            return result

        def after_the_first(items: Iterator[Any]) -> Iterator[Any]:
            for item in items:
                yield item
                os.kill(os.getpid(), signum)

        setattr(module, name, called)


def carry_out(case: Case, folder: Path) -> dict[str, Any]:
    """The command in a child; what became of it."""
    streams = [folder / "stdout", folder / "stderr"]
    child = os.fork()
    if not child:
        for descriptor, path in enumerate(streams, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        case.plant()
        from spsbench.cli.main import main

        code = main(case.command)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    out, err = (path.read_text() for path in streams)
    return {"code": os.waitstatus_to_exitcode(status), "out": out, "err": err}


def main(folder: Path) -> None:
    """Every case, one after another, in the folder."""
    for name in (*IMPORTED, "spsbench.parts.whatif.bench.study"):
        importlib.import_module(name)
    importlib.import_module("spsbench.runner.execution").measured_bandwidth = lambda device: None  # type: ignore[attr-defined]
    os.chdir(folder)
    results: list[dict[str, Any]] = []
    for fields in json.loads((folder / "cases.json").read_text()):
        case = Case(**fields)
        if not case.command:
            case = Case(shlex.split(results[-1]["err"].splitlines()[-1])[1:])
        results.append(carry_out(case, folder))
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
