"""What looks at finished runs works on machines where torch cannot be imported."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.commandline import Result

HERE = Path(__file__).resolve().parents[2]
CODE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "datasets", "evaluate", "tokenizers"):
            raise ImportError(f"{name} cannot be imported here")

sys.meta_path.insert(0, Refuse())
from spsbench.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.thorough_but("arguments0")
@pytest.mark.parametrize("arguments", [("report", "{run}", "--html"), ("compare", "{run}", "{run}")])
def test_it_works(arguments: tuple[str, ...], finished: tuple[Path, Result], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished[0], run)
    (run / "summary.json").unlink()
    typed = [argument.format(run=run) for argument in arguments]
    done = subprocess.run(
        [sys.executable, "-c", CODE, *typed], cwd=HERE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "SpS (K=4)" in done.stdout


def test_a_run_that_is_no_shard_is_refused(finished: tuple[Path, Result], tmp_path: Path) -> None:
    typed = ("merge", str(finished[0]), "--out", str(tmp_path / "whole"))
    done = subprocess.run(
        [sys.executable, "-c", CODE, *typed], cwd=HERE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "is no shard" in done.stderr
    assert not (tmp_path / "whole").exists()
