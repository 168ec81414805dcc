"""Odd inputs and failing disks: one clear line, the documented exit code, and nothing finished is lost.

What is tested elsewhere is not repeated: signals in ``test_interruption.py``, damaged files in
``test_fuzz.py``, model folders and data in ``test_run.py``, the journal's own errors in ``test_store.py``.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commandline import ALONE, BRIEF, SMALL, Cli, Result, call, journal

from spsbench.base.files import acquire_lock

ROOT = Path(__file__).parents[2]
RUN = ("run", *BRIEF, *SMALL, "--no-score", "--no-proof")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three prompts; not to be changed."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    done = call("run", *BRIEF, *SMALL, "--limit", "3", "--no-proof", "--out", directory)
    assert done.code == 0, done.err
    return directory


def prompts(*texts: str) -> str:
    """A prompts file of such texts."""
    Path("odd.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return "odd.jsonl"


def refused(result: Result, code: int, said: str) -> None:
    """One error on one line, before a model is loaded."""
    assert result.code == code, result.err
    assert [line for line in result.err.splitlines() if line.startswith("error: ")] == [
        result.err.splitlines()[-1]
    ]
    assert said in result.err
    assert "fault of spsbench" not in result.err
    assert "Loading" not in result.err
    assert not Path("results").exists()


# --- what is typed


@pytest.mark.parametrize("command", [("run", *SMALL), ("bench",), ("verify",)])
def test_cuda_where_there_is_none(
    cli: Cli, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    refused(cli(*command, "--device", "cuda"), 2, "error: --device: ")


@pytest.mark.parametrize(
    "flags",
    [
        ("run", *SMALL, "--max-new-tokens", "100000"),
        ("run", "odd.jsonl", "--max-new-tokens", "100000"),
        ("sweep-k", "odd.jsonl", "--max-new-tokens", "100000"),
        ("advise", "odd.jsonl", "--max-new-tokens", "100000"),
    ],
)
def test_more_new_tokens_than_the_context_are_refused_before_measuring(
    cli: Cli, flags: tuple[str, ...]
) -> None:
    prompts(*"abcdefgh")
    refused(cli(*flags), 2, "error: --max-new-tokens: ")


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        ('{"prompt": ""}', 3, "column 'prompt' is empty"),
        ('{"prompt": " \\n"}', 3, "column 'prompt' is empty"),
        ('{"turns": [""]}', 3, "turns holds '' instead of text"),
        ('{"prompt": "half \\ud83d"}', 3, r"character 6 is half of a surrogate pair, \ud83d"),
        ('{"turns": ["\\udc00"]}', 3, "half of a surrogate pair"),
        (
            json.dumps({"prompt": "word " * 20_000}),
            2,
            "TASK: the prompt of 1 has 20002 tokens and the context window 4096.",
        ),
    ],
)
def test_a_prompt_that_cannot_be_asked(cli: Cli, content: str, code: int, said: str) -> None:
    Path("odd.jsonl").write_text(content + "\n")
    refused(cli("run", "odd.jsonl", "--max-new-tokens", "8"), code, said)


def test_an_article_with_half_a_character_is_refused(cli: Cli) -> None:
    Path("data.jsonl").write_text('{"id": "1", "document": "a \\ud83d", "summary": "s"}\n')
    refused(cli("run", "--data", "data.jsonl"), 3, "character 3 is half of a surrogate pair")


def test_nul_emoji_and_umlauts_are_text_like_any_other(cli: Cli) -> None:
    odd = prompts("a\0b", "Grüße 👩‍👩‍👧 🎉", "\x1b[31mred")
    done = cli("run", odd, "--max-new-tokens", "6", *ALONE, "--out", "run")
    assert done.code == 0, done.err
    assert len(journal(Path("run"))) == 6
    shown = cli("report", "run", "--html")
    assert shown.code == 0, shown.err
    assert "\x1b[31m" not in shown.out
    assert Path("run/report.html").is_file()


@pytest.mark.parametrize(("prompt", "said"), [("", "nothing to continue"), ("\udce4", "not UTF-8")])
def test_trace_refuses_what_is_no_text(cli: Cli, prompt: str, said: str) -> None:
    refused(cli("trace", prompt), 2, said)


@pytest.mark.thorough
def test_the_least_temperature_is_greedy_and_less_is_refused(cli: Cli) -> None:
    """Logits divided by 1e-38 are infinite in float32."""
    for name, flags in (("cold", ("--temperature", "1e-30")), ("greedy", ("--sampling", "greedy"))):
        for backend in ("onnxruntime", "torch"):
            out = ("--backend", backend, "--out", f"{name}-{backend}")
            done = cli(*RUN, *flags, *out)
            assert done.code == 0, done.err
    for backend in ("onnxruntime", "torch"):
        cold, greedy = (journal(Path(f"{name}-{backend}")) for name in ("cold", "greedy"))
        tokens = [[row["token_ids"] for row in rows] for rows in (cold, greedy)]
        assert tokens[0] == tokens[1]
        assert all(row["error"] is None for row in cold)
    for colder in ("1e-31", "1e-320", "0"):
        refused(cli("run", *SMALL, "--temperature", colder), 2, "error: --temperature must be ")


# --- where it is written


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--limit 1", "--limit: run has 4 sequences that 1 leaves out; it was 3. Leave it out, or measure"),
        ("--limit 2-4", "--limit: run has 2 sequences that 2-4 leaves out; it was 3."),
        ("--id short-4", "sequences that short-4 leaves out; it was nothing."),
    ],
)
def test_a_run_is_not_made_smaller(cli: Cli, whole: Path, typed: str, said: str) -> None:
    shutil.copytree(whole, "run")
    before = {path.name: path.read_bytes() for path in Path("run").iterdir() if path.is_file()}
    refused(cli("run", "--resume", "run", *typed.split()), 2, said)
    assert {path.name: path.read_bytes() for path in Path("run").iterdir() if path.is_file()} == before


def test_an_interrupted_run_may_end_earlier(cli: Cli, whole: Path) -> None:
    shutil.copytree(whole, "run")
    lines = Path("run/samples.jsonl").read_text().splitlines(keepends=True)
    Path("run/samples.jsonl").write_text("".join(lines[:3]))
    assert cli("run", "--resume", "run", "--limit", "2", "--quiet").code == 0
    assert len(Path("run/samples.jsonl").read_text().splitlines()) == 4
    assert json.loads(Path("run/run.json").read_text())["expected_sequences"] == 2


def test_two_runs_into_one_folder_at_once(cli: Cli, whole: Path) -> None:
    shutil.copytree(whole, "run")
    before = Path("run/samples.jsonl").read_bytes()
    lock = acquire_lock(Path("run"), "--out")
    try:
        refused(cli("run", "--resume", "run", "--limit", "4"), 2, "another process is writing to run.")
    finally:
        os.close(lock)
    assert Path("run/samples.jsonl").read_bytes() == before
    assert cli("run", "--resume", "run", "--limit", "3", "--quiet").code == 0


@pytest.mark.parametrize(
    "command",
    [
        (*RUN, "--out"),
        (*RUN, "--processes", "2", "--out"),
        ("paper", "--limit", "1", "--samples", "1", "--out"),
        ("distill", "--target", "embedded:mini/draft", "--kind", "model:layers=1:vocabulary=0", "--out"),
        ("simulate", "--alpha", "0.8", "--out"),
    ],
)
def test_a_folder_that_cannot_be_made(
    cli: Cli, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system that is mounted read-only; root ignores the modes of folders."""

    def read_only(self: Path, *arguments: Any, **options: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    monkeypatch.setattr(Path, "mkdir", read_only)
    result = cli(*command, "new")
    assert result.code == 2, result.err
    assert "error: --out: new cannot be " in result.err
    assert "(Read-only file system)" in result.err


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a file system of a size, and mounts it again with another."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = False

    def of(options: str) -> Path:
        nonlocal mounted
        again = "remount," if mounted else ""
        command = ["mount", "-t", "tmpfs", "-o", f"{again}{options}", "tmpfs", str(place)]
        if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting is not permitted here; the tests with a failing write hold everywhere")
        mounted = True
        return place

    yield of
    if mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_in_the_middle_of_a_run(cli: Cli, small_disk: Callable[[str], Path]) -> None:
    run = small_disk("size=32k") / "run"
    flags = ("--limit", "4", "--no-score", "--no-proof", "--threads", "1", "--max-new-tokens", "8")
    full = cli("run", *flags, "--out", run)
    assert full.code == 1, full.err
    assert full.err.splitlines()[-1].startswith(f"error: {run}/")
    assert "No space left on device" in full.err
    assert f"Make room, then continue with `spsbench run --resume {run}`" in full.err
    kept = journal(run)
    small_disk("size=20m")
    again = cli("run", "--resume", run, "--quiet")
    assert again.code == 0, again.err
    assert journal(run)[: len(kept)] == kept
    assert len(journal(run)) == 8


def test_a_full_disk_before_the_first_sequence(cli: Cli, small_disk: Callable[[str], Path]) -> None:
    run = small_disk("size=8k") / "run"
    full = cli(*RUN, "--out", run)
    assert full.code == 1, full.err
    assert "Make room, then repeat the command" in full.err
    small_disk("size=20m")
    assert cli(*RUN, "--out", run, "--quiet").code == 0


@pytest.mark.thorough
@pytest.mark.parametrize("room_kb", [8, 120])
def test_a_full_disk_while_report_and_figures_are_written(
    cli: Cli, whole: Path, small_disk: Callable[[str], Path], room_kb: int, drawn: None
) -> None:
    run = small_disk("size=20m") / "run"
    shutil.copytree(whole, run)
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.suffix in (".jsonl", ".json")}
    used = sum(path.stat().st_blocks // 2 for path in [run, *run.rglob("*")])
    small_disk(f"size={used + room_kb}k")
    full = cli("report", run, "--html")
    assert full.code == 1, full.err
    assert "No space left on device" in full.err
    assert "fault of spsbench" not in full.err
    assert {name: (run / name).read_bytes() for name in before} == before
    assert not list(run.rglob(".*.tmp"))
    small_disk("size=20m")
    assert cli("report", run, "--html").code == 0


def test_a_read_only_disk_still_shows_a_report(
    cli: Cli, whole: Path, small_disk: Callable[[str], Path]
) -> None:
    run = small_disk("size=20m") / "run"
    shutil.copytree(whole, run)
    small_disk("ro")
    shown = cli("report", run)
    assert shown.code == 0, shown.err
    assert "SpS (K=4)" in shown.out
    assert "Make the folder writable" in shown.err
    for command in (("run", "--resume", run, "--limit", "4"), ("score", run), (*RUN, "--out", run / "new")):
        answer = cli(*command)
        assert answer.code == 2, answer.err
        assert "cannot be written to (Read-only file system)" in answer.err


FAILING = ("samples.parquet", "summary.json", "report.md")


@pytest.mark.parametrize("name", FAILING)
def test_a_file_that_cannot_be_written_costs_no_sequence(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The same everywhere, without a mount: opening the file's new version fails."""
    real = os.open

    def full(path: Any, *arguments: Any, **options: Any) -> Any:
        if str(path).startswith(f".{name}."):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        broken = cli(*RUN, "--out", "run")
    assert broken.code == 1, broken.err
    assert f"error: run/{name} could not be written (No space left on device)." in broken.err
    assert len(journal(Path("run"))) == 2
    again = cli("run", "--resume", "run", "--quiet")
    assert again.code == 0, again.err
    assert (Path("run") / name).is_file()


# --- where it runs


def spsbench(*arguments: str, settings: dict[str, str], **options: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own with these variables alone."""
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **settings}
    command = [sys.executable, "-m", "spsbench", *arguments]
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command,
        capture_output=True,
        env=variables,
        encoding="utf-8",
        errors="replace",
        check=False,
        **options,
    )
    return done


@pytest.mark.thorough
def test_without_a_home_a_cache_a_language_or_colours(tmp_path: Path) -> None:
    nowhere = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "HF_HOME", "MPLCONFIGDIR"), "/dev/null/x")
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "NO_COLOR": "1"}
    done = spsbench(*RUN, "--out", "läuf 1", settings=nowhere | plain, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert len(journal(tmp_path / "läuf 1")) == 2


@pytest.mark.thorough
def test_a_file_that_may_not_grow_ends_a_run_with_one_sentence(tmp_path: Path) -> None:
    """As a quota does: the kernel refuses the write itself, also where nothing can be mounted."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))

    flags = ("run", "--limit", "6", "--threads", "1", "--no-score", "--no-proof", "--quiet", "--out", "run")
    # Python takes a short write of bytecode for a whole one: every later process would stumble over it.
    settings = {"HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = spsbench(*flags, settings=settings, cwd=tmp_path, preexec_fn=limit)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: run/")
    assert "could not be written (File too large)" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_reader_that_leaves_ends_a_pipe_silently(tmp_path: Path) -> None:
    command = f"{sys.executable} -m spsbench list | head -c 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.endswith("141\n")


DRIVING = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp"
"""Sets a window's title, clears the screen, colours, and turns the direction of reading."""


@pytest.mark.parametrize(
    "command",
    [
        ("run", f"{DRIVING}.jsonl"),
        ("run", f"./{DRIVING}/"),
        ("run", "--target", DRIVING),
        ("run", "--config", f"{DRIVING}.yaml"),
        ("run", "--config", "keys.yaml"),
        ("run", "--set", f"{DRIVING}=1"),
        ("--debug", "run", "--set", f"{DRIVING}=1"),
        ("report", DRIVING),
        ("compare", DRIVING, DRIVING),
        ("score", "samples.jsonl"),
        ("replay", "requests.jsonl"),
        ("audit", "evidence.jsonl", "--target", "embedded:mini/target"),
        ("get", DRIVING),
        (DRIVING,),
        ("run", f"--{DRIVING}"),
    ],
    ids=lambda command: " ".join(command).encode("unicode_escape").decode(),
)
def test_names_do_not_drive_a_terminal(command: tuple[str, ...], cli: Cli) -> None:
    Path("keys.yaml").write_text(json.dumps({DRIVING: 1}))
    Path("samples.jsonl").write_text(json.dumps({"task_id": DRIVING, "completion": "x"}) + "\n")
    Path("requests.jsonl").write_text(json.dumps({DRIVING: 1}) + "\n")
    Path("evidence.jsonl").write_text(json.dumps({"spsbench": DRIVING, "engine": DRIVING}) + "\n")
    result = cli(*command)
    assert result.code in (2, 3)
    assert not any((ord(char) < 32 and char != "\n") or char in "\x7f\x9b\u202e" for char in result.err)
    assert result.out == ""


def test_neither_do_those_in_a_table_nor_those_of_a_run(whole: Path, cli: Cli, tmp_path: Path) -> None:
    run = shutil.copytree(whole, tmp_path / DRIVING.replace("/", ""))
    for name in ("run.json", "summary.json"):
        path = run / name
        path.write_text(path.read_text().replace("embedded:mini/target", json.dumps(DRIVING)[1:-1]))
    for command in (("report", run), ("report", run, run), ("trace", run), ("report", "--csv", run)):
        result = cli(*command)
        assert result.code == 0, result.err
        shown = result.out + result.err
        assert not any(char in "\x07\x9b\u202e" for char in shown), command
        assert "\x1b]" not in shown
        assert "\x1b[2J" not in shown


def test_a_directory_is_no_task(whole: Path, cli: Cli) -> None:
    refused(cli("run", "."), 2, "TASK: . is a directory, and not a task. Name a file of prompts in it")
    refused(
        cli("run", whole), 2, f"is the directory of a run, and not a task. Type `spsbench report {whole}`."
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "prompts.data",
            "prompts.data has the unknown ending .data. Prompts and data end in .jsonl, .jsonl.gz",
        ),
        (
            "prompts",
            "prompts has no ending. Prompts and data end in .jsonl, .jsonl.gz, .json, .parquet, .txt",
        ),
        ("task.py", "task.py is a file of Python. Name what it defines: "),
    ],
)
def test_a_file_that_is_there_is_not_unknown(name: str, why: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"prompt": "a"}\n')
    refused(cli("run", tmp_path / name), 2, why)


def test_what_leaves_no_room_is_counted_in_tokens_of_the_output_and_its_draft(cli: Cli) -> None:
    given = prompts("word " * 4088)
    told = cli("run", given, *ALONE, "--max-new-tokens", "8", "--k", "4")
    assert told.code == 2
    assert "an output of up to 12, its last draft included, leaves room for" in told.err


def test_more_samples_than_there_are_are_not_asked_for(cli: Cli) -> None:
    row = {"task_id": "HumanEval/0", "completion": "    return True\n"}
    Path("two.jsonl").write_text(f"{json.dumps(row)}\n" * 2)
    told = cli("score", "two.jsonl", "--k", "1,10", "--ignore-missing")
    refused(told, 2, "--k: pass@10 needs 10 samples of each problem, HumanEval/0 has 2. Name none above 2.")


@pytest.mark.parametrize("place", ["run", "report", "compare", "score", "replay", "audit"])
def test_a_name_that_no_file_can_have_is_no_fault_of_ours(place: str, cli: Cli) -> None:
    name = "x" * 5000
    done = cli(place, name, *([name] if place == "compare" else []))
    assert done.code in (2, 3)
    told = "or a path, got xxx" if place == "run" else "is longer than a file's name can be"
    assert told in done.err
    assert max(map(len, done.err.splitlines())) < 200
