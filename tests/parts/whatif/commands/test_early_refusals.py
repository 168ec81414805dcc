"""A run that cannot be replayed is refused before torch is imported: that takes seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[4]
RUN = HERE / "tests/contract/folder"
CODE = """
import sys
from spsbench.cli.main import main
code = main(sys.argv[1:])
print([name for name in ("torch", "transformers", "onnxruntime") if name in sys.modules])
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ((), "tokens of ArS; a prediction needs at least 200"),
        (("--pair", "mini"), "--pair:"),
        (("--sampling", "none"), "has no ArS sequences under 'none'. It has nucleus"),
    ],
)
def test_it_is_refused_before_torch_is_imported(typed: tuple[str, ...], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, "replay", str(RUN), *typed],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert done.stdout == "[]\n"
