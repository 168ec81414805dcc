"""What is typed wrong is refused before torch, transformers, pandas, scipy or matplotlib are imported.

All cases run in one subprocess, which cannot import any of them: a command that needed one before it
refuses would end with another message.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "pandas", "scipy", "matplotlib")

CODE = f"""
import contextlib, io, json, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {HEAVY}:
            raise ImportError(f"{{name}} was imported")

sys.meta_path.insert(0, Refuse())
from spsbench.cli.main import main

for line in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(json.loads(line))
    print(json.dumps([code, err.getvalue()]), flush=True)
"""

# Command lines and the flag that the error names.
CASES: list[tuple[str, str]] = [
    *(
        (f"{command} {wrong}", wrong.split()[0] if wrong.startswith("--") else "TASK")
        for command in ("run", "sweep-k")
        for wrong in (
            "no-such-task",
            "no-such-file.jsonl",
            "--pair no-such-pair",
            "--protocol no-such-protocol",
            "--limit 0",
            "--limit x",
            "--samples 0",
            "--shard 5/4",
            "--until 5",
            "--budget soon",
            "--arms both",
            "--k -1",
            "--k 65",
            "--k ,",
            "--config nothing.yaml",
            "--set limit",
            "--set limits=3",
            "--sampling loud",
            "--temperature 0",
            "--temperature nan",
            "--top-p 1.5",
            "--top-k -1",
            "--beams 0",
            "--draft-beams x",
            "--length-penalty x",
            "--max-new-tokens 0",
            "--chat-template maybe",
            "--extract some",
            "--seed -1",
            "--drafter nobody",
            "--drafter lookup:max_n=0",
            "--drafter model:x=1",
            "--rule none",
            "--rule lenience:l=2",
            "--policy none",
            "--policy stop-below:tau=2",
            "--engine steam",
            "--engine openai:nowhere",
            "--batch 0",
            "--concurrency x",
            "--device gpu",
            "--dtype int3",
            "--draft-dtype half",
            "--quantise int2",
            "--draft-quantise x",
            "--threads 0",
            "--threads 4096",
            "--backend jax",
            "--tensor-parallel 0",
            "--draft-placement last",
            "--processes 1",
            "--on slurm",
            "--resume nowhere",
            "--trace -1",
            "--fail-on speed",
            "--expect x",
        )
    ),
    ("run --target only-one", "--draft"),
    ("run --temperature 0.7 --sampling greedy", "--temperature"),
    ("advise --top-p 0.7 --sampling greedy", "--top-p"),
    ("bench --threads 4096", "--threads"),
    ("paper --of nobody", "--of"),
    ("paper --limit 0", "--limit"),
    ("paper --samples x", "--samples"),
    ("paper --device gpu", "--device"),
    ("paper --threads 0", "--threads"),
    ("paper --backend jax", "--backend"),
    ("paper --dtype int3", "--dtype"),
    ("paper --pair no-such-pair", "--pair"),
    ("paper --seed -1", "--seed"),
    ("paper --extract some", "--extract"),
    ("paper --resume nowhere", "--resume"),
    ("paper --of leviathan --draft =", "--draft"),
    ("bench --k 0", "--k"),
    ("bench --context x", "--context"),
    ("bench --batch x", "--batch"),
    ("bench --seconds 0", "--seconds"),
    ("bench --alpha 1.5", "--alpha"),
    ("bench --acceptance-from nowhere", "--acceptance-from"),
    ("bench --seed x", "--seed"),
    ("bench --dtype int3", "--dtype"),
    ("bench --device gpu", "--device"),
    ("bench --threads 0", "--threads"),
    ("bench --backend jax", "--backend"),
    ("bench --pair no-such-pair", "--pair"),
    ("bench --target only-one", "--draft"),
    ("bench --target-config only-one", "--draft-config"),
    ("replay nowhere", "RUN"),
    ("replay --k 0", "--k"),
    ("replay --drafter nobody", "--drafter"),
    ("replay --policy none", "--policy"),
    ("replay --budget soon", "--budget"),
    ("replay --times nowhere", "--times"),
    ("replay --threads 0", "--threads"),
    ("advise --k 0", "--k"),
    ("advise --drafter nobody", "--drafter"),
    ("advise --budget 0", "--budget"),
    ("advise --objective best", "--objective"),
    ("advise --memory much", "--memory"),
    ("advise --limit x", "--limit"),
    ("advise --limit 1", "--limit"),
    ("advise --sampling loud", "--sampling"),
    ("advise --top-p 1.5", "--top-p"),
    ("advise --threads 0", "--threads"),
    ("advise --pair no-such-pair", "--pair"),
    ("advise no-such-task", "TASK"),
    ("simulate --alpha 1.5", "--alpha"),
    ("simulate --cost -1", "--cost"),
    ("simulate --k 0", "--k"),
    ("simulate --source dice", "--source"),
    ("simulate --rule none", "--rule"),
    ("simulate --fault none", "--fault"),
    ("simulate --tokens 0", "--tokens"),
    ("simulate --seed x", "--seed"),
    ("simulate --concentration 0", "--concentration"),
    ("simulate --vocabulary 1", "--vocabulary"),
    ("simulate --contexts x", "--contexts"),
    ("simulate --sharpness -1", "--sharpness"),
    ("simulate --variation 1", "--variation"),
    ("simulate --stay 2", "--stay"),
    ("simulate --operations x", "--operations"),
    ("simulate --temperature 0", "--temperature"),
    ("simulate --top-p 2", "--top-p"),
    ("simulate --top-k -1", "--top-k"),
    ("simulate --formula --alpha 2", "--alpha"),
    ("verify no-such-task", "TASK"),
    ("verify --control none", "--control"),
    ("verify --effort small", "--effort"),
    ("verify --engine steam", "--engine"),
    ("verify --drafter nobody", "--drafter"),
    ("verify --rule none", "--rule"),
    ("verify --policy none", "--policy"),
    ("verify --k x", "--k"),
    ("verify --top-p 1.5", "--top-p"),
    ("verify --sampling loud", "--sampling"),
    ("verify --threads 0", "--threads"),
    ("audit", "SAMPLES"),
    ("audit nowhere.jsonl", "SAMPLES"),
    ("audit nowhere.jsonl --top-p 1.5", "--top-p"),
    ("audit nowhere.jsonl --temperature -1", "--temperature"),
    ("audit nowhere.jsonl --samples-dtype int3", "--samples-dtype"),
    ("audit nowhere.jsonl --dtype int3", "--dtype"),
    ("audit nowhere.jsonl --seed x", "--seed"),
    ("audit --engine steam", "--engine"),
    ("audit --engine worker:true --bound 2", "--bound"),
    ("audit --engine worker:true --texts 0", "--texts"),
    ("audit --engine worker:true --budget soon", "--budget"),
    ("audit --engine worker:true --arms both", "--arms"),
    ("audit --engine worker:true --k x", "--k"),
    ("audit --engine worker:true --top-p 2", "--top-p"),
    ("audit --engine worker:true --task no-such-task", "--task"),
    ("audit --engine worker:true --limit 0", "--limit"),
    ("audit --engine worker:true --max-new-tokens 0", "--max-new-tokens"),
    ("audit --engine worker:true --threads 0", "--threads"),
    ("compare a b", "RUN"),
    ("compare a b --gate x", "--gate"),
    ("report nowhere", "RUN"),
    ("report --csv --json", "--csv"),
    ("report --out x", "--out"),
    ("trace text --k 0", "--k"),
    ("trace text --sampling a,b", "--sampling"),
    ("trace text --sampling loud", "--sampling"),
    ("trace text --top-p 2", "--top-p"),
    ("trace text --max-new-tokens 0", "--max-new-tokens"),
    ("trace text --threads 0", "--threads"),
    ("trace text --device gpu", "--device"),
    ("trace text --pair no-such-pair", "--pair"),
    ("distill", "--target"),
    ("distill --target x --out y --kind z", "--kind"),
    ("distill --target x --out y --layers 0", "--layers"),
    ("distill --target x --out y --tokens 0", "--tokens"),
    ("distill --target x --out y --minutes 0", "--minutes"),
    ("distill --target x --out y --vocabulary -1", "--vocabulary"),
    ("distill --target x --out y --seed x", "--seed"),
    ("distill --target x --out y --data nothing", "--data"),
    ("distill --target x --out y --threads 0", "--threads"),
    ("distill --target x --out y --device gpu", "--device"),
    ("list nothing", "WHAT"),
    ("get nothing", "NAME"),
    ("score nowhere", "SAMPLES"),
    ("score . --k 1", "--k"),
    ("score . --timeout 0", "--timeout"),
    ("score . --n-workers 0", "--n-workers"),
    ("score .", "RUN"),
    ("merge nowhere --out x", "SHARD"),
    ("run --k 2 --k 4", "--k"),
    ("sweep-k --engine openai:http://localhost:9 --concurrency 1", "--k"),
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """(exit code, stderr) of every case."""
    typed = "".join(json.dumps(case.split()) + "\n" for case, _ in CASES)
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        input=typed,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path_factory.mktemp("empty"),
        env={
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            "PATH": "/usr/bin:/bin",
            "HF_HUB_OFFLINE": "1",
        },
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(CASES), done.stderr
    return {case: (code, text) for (case, _), (code, text) in zip(CASES, found, strict=True)}


@pytest.mark.parametrize(("case", "flag"), CASES)
def test_it_is_refused_in_one_line_that_names_the_flag(
    case: str, flag: str, answers: dict[str, tuple[int, str]]
) -> None:
    code, text = answers[case]
    assert code in (2, 3), text
    assert text.startswith(f"error: {flag}"), text
    assert text.count("\n") == 1, text


def test_the_blocker_blocks() -> None:
    """The control: a command that does need torch cannot run there."""
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        input=json.dumps(["run", "--limit", "1", "--quiet"]),
        capture_output=True,
        text=True,
        check=False,
    )
    code, text = json.loads(done.stdout)
    assert code == 1
    assert "was imported" in text
