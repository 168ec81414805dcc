"""The shell's completion, by the protocol that its scripts speak; torch is not imported for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.commandline import is_present

from spsbench.cli import options

LINES = {
    "spsbench r": ["replay", "report", "run"],
    "spsbench run x": ["xsum"],
    "spsbench run --pair mini": ["mini", "mini-t5"],
    "spsbench run --drafter model,lo": ["model,lookup"],
    "spsbench run --drafter model,mo": [],
    "spsbench run --rule le": ["lenience"],
    "spsbench run --policy st": ["stop-below"],
    "spsbench run --engine eager,gr": ["eager,graphed"],
    "spsbench run --protocol q": ["quick"],
    "spsbench run xsum --sampling nucleus,g": ["nucleus,greedy"],
    "spsbench run --process b": ["bad_words="],
    "spsbench trace --process min_p=0.1:frequency_penalty=1:re": [
        "min_p=0.1:frequency_penalty=1:repetition_penalty="
    ],
    "spsbench run --backend o": ["onnxruntime"],
    "spsbench distill --kind eagle": ["eagle", "eagle3"],
    "spsbench bench --alpha results/": ["results/one", "results/two"],
    "spsbench report results/": ["results/one", "results/two"],
    "spsbench report elsewhere/": ["elsewhere/three"],
    "spsbench compare results/one results/t": ["results/two"],
    "spsbench list dra": ["drafters"],
    "spsbench get smol": ["smollm2"],
    "spsbench audit --engine open": ["openvino"],
    "spsbench run --see": ["--seed"],
    "spsbench run --top": ["--top-k", "--top-p"],  # which `run --help` does not show
    "spsbench run --help": ["--help", "--help-all"],
}

LINES = {line: offers for line, offers in LINES.items() if is_present(line.removeprefix("spsbench "))}

CODE = """
import contextlib, io, json, os, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "pandas", "scipy"):
            raise ImportError(f"{name} was imported")

sys.meta_path.insert(0, Refuse())
from spsbench.cli.main import main

for line in sys.stdin:
    words = json.loads(line)
    os.environ |= {"_SPSBENCH_COMPLETE": "complete_bash", "COMP_WORDS": words}
    os.environ["COMP_CWORD"] = str(len(words.split()) - 1)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([])
    print(json.dumps(out.getvalue().split()), flush=True)
"""


@pytest.fixture(scope="module")
def offered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("completion")
    for run in ("results/one", "results/two", "elsewhere/three"):
        (folder / run).mkdir(parents=True)
        (folder / run / "run.json").write_text("{}")
    (folder / "results" / "empty").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        input="".join(json.dumps(line) + "\n" for line in LINES),
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    return dict(zip(LINES, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("line", LINES)
def test_it_offers(line: str, offered: dict[str, list[str]]) -> None:
    assert sorted(offered[line]) == LINES[line]


def test_a_run_is_offered_below_an_absolute_path(tmp_path: Path) -> None:
    for name in ("three", "two", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    assert options._run_directories(f"{tmp_path}/t") == [f"{tmp_path}/three", f"{tmp_path}/two"]
    assert options._run_directories(f"{tmp_path}/") == [
        f"{tmp_path}/{name}" for name in ("other", "three", "two")
    ]


def test_scripts_can_be_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from spsbench.cli.main import main

    monkeypatch.setenv("_SPSBENCH_COMPLETE", "source_bash")
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0
    assert "_SPSBENCH_COMPLETE=complete_bash" in capsys.readouterr().out
