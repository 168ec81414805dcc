"""Docstrings as documents with summaries: from fake trees of source, and from this Python's own."""

from __future__ import annotations

import platform
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from spsbench.base.errors import UnavailableError
from spsbench.tasks.catalogue import load_task
from spsbench.tasks.docstrings import names_in, read_docstrings
from spsbench.tasks.text_tokenizer import TextTokenizer

PROSE = " ".join(["The buffer is filled from the file, and what is left of it stays for the next call."] * 5)
OTHER = PROSE.replace("buffer", "queue")
SUMMARY = "Read one more block of the file."
Tree = Callable[..., None]


def source(summary: str = SUMMARY, document: str = PROSE, name: str = "read") -> str:
    text = f"{summary}\n\n{document}"
    return f"def {name}():\n" + f'    r"""{text}\n    """\n'.replace("\n", "\n    ").rstrip() + "\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Install a package of given files; importing any of them would fail."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(files: dict[str, str], name: str = "blocks", version: str = "1.2") -> None:
        for file, content in {"__init__.py": "", **files}.items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{content}\nraise SystemExit('imported')\n" if content else "")
        information = tmp_path / f"py_{name}-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: py-{name}\nVersion: {version}\n")
        (information / "top_level.txt").write_text(f"{name}\n")

    return install


def found(*names: str) -> dict[str, str]:
    rows, _ = read_docstrings(names or ("blocks",))
    return {str(row.fields["id"]): str(row.fields["summary"]) for row in rows}


def test_the_first_line_is_the_summary_and_the_rest_the_document(package: Tree) -> None:
    package({"io/__init__.py": source()})
    rows, versions = read_docstrings(["blocks"])
    assert [row.fields for row in rows] == [{"id": "blocks.io.read", "document": PROSE, "summary": SUMMARY}]
    assert versions == "py-blocks 1.2"


def test_modules_classes_and_whatever_they_hold(package: Tree) -> None:
    names = ("Describe how blocks are read.", "Read blocks of one file.", "Read the last block of all.")
    texts = [PROSE.replace("buffer", name) for name in ("cache", "list", "heap")]
    module = (
        f'"""{names[0]}\n\n{texts[0]}"""\n'
        f'if True:\n    class Reader:\n        """{names[1]}\n\n        {texts[1]}"""\n'
        f'        async def last(self):\n            """{names[2]}\n\n            {texts[2]}"""\n'
    )
    package({"deep.py": module})
    ids = ("blocks.deep", "blocks.deep.Reader", "blocks.deep.Reader.last")
    assert found() == dict(zip(ids, names, strict=True))


@pytest.mark.parametrize(
    ("summary", "document"),
    [
        pytest.param("Read one more block of the file", PROSE, id="no sentence"),
        pytest.param("read one more block of the file.", PROSE, id="no capital"),
        pytest.param("Read a block.", PROSE, id="few words"),
        pytest.param("Read one more block\nof the file.", PROSE, id="two lines"),
        pytest.param(" ".join(["Read"] + ["blocks"] * 40) + ".", PROSE, id="many words"),
        pytest.param(SUMMARY, "It is read.", id="short"),
        pytest.param(SUMMARY, PROSE * 6, id="long"),
        pytest.param(SUMMARY, "internationalization " * 150, id="many characters"),
        pytest.param(SUMMARY, PROSE + "\n\n" + ">>> read(1)\n" * 20, id="doctests"),
        pytest.param(SUMMARY, PROSE + "\n\n" + "x = f(1) + 2\n" * 10, id="code"),
        pytest.param(SUMMARY, PROSE + "\n\n" + "==== ==== 0x1f |\n" * 10, id="a table"),
    ],
)
def test_what_is_no_summary_or_no_prose_is_left_out(package: Tree, summary: str, document: str) -> None:
    package({"a.py": source(summary, document), "b.py": source("Read what is left of it.", OTHER)})
    assert list(found()) == ["blocks.b.read"]


@pytest.mark.parametrize("file", ["tests/a.py", "test_a.py", "a_test.py", "conftest.py", "testing/a.py"])
def test_tests_are_left_out(package: Tree, file: str) -> None:
    package({file: source(), "latest.py": source("Read what is left of it.", OTHER)})
    assert list(found()) == ["blocks.latest.read"]


def test_what_was_there_before_is_left_out(package: Tree) -> None:
    """By its summary, its document or its name, however it is wrapped and capitalized."""
    package(
        {
            "a.py": source(),
            "b.py": source("Read another block of the file.", PROSE.replace(". ", ".\n")),
            "c.py": source(SUMMARY.replace("file", "File"), OTHER),
            "d.py": source("Write one more block of it.", OTHER) + source("Write it once again now.", "x"),
        }
    )
    assert list(found()) == ["blocks.a.read", "blocks.d.read"]


def test_files_that_are_no_python_are_passed_over(package: Tree) -> None:
    package({"a.py": source(), "template.py": "def {{ name }}(:\n", "null.py": "\0"})
    assert list(found()) == ["blocks.a.read"]


def test_several_packages_in_an_order_of_their_own(package: Tree) -> None:
    package({"a.py": source()})
    package({"a.py": source("Read what is left of it.", OTHER)}, "ablocks", "3")
    names = names_in("blocks+ablocks+blocks")
    assert names == ("ablocks", "blocks")
    rows, versions = read_docstrings(names)
    assert [row.fields["id"] for row in rows] == ["ablocks.a.read", "blocks.a.read"]
    assert versions == "py-ablocks 3, py-blocks 1.2"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("numpy+stdlib", ("stdlib", "numpy")),
        ("stdlib", ("stdlib",)),
        ("rows.jsonl", None),
        ("./numpy", None),
        ("stdlib+", None),
        ("numpy>=2", None),
    ],
)
def test_names_and_paths_are_told_apart(text: str, names: tuple[str, ...] | None) -> None:
    assert names_in(text) == names


def test_a_package_that_is_not_there_or_holds_nothing(package: Tree) -> None:
    package({"a.py": "x = 1\n"})
    with pytest.raises(UnavailableError, match="--data: blocks has no docstring"):
        read_docstrings(["blocks"])
    with pytest.raises(UnavailableError, match="--data: the package blockz is not installed") as caught:
        read_docstrings(["stdlib", "blockz"])
    assert "stdlib+numpy" in str(caught.value)


@pytest.fixture
def stdlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standard library of three files, two of which are not read."""
    folder = tmp_path / "lib"
    for file in ("queue.py", "idlelib/run.py", "site-packages/queue2.py"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(source(f"Read one more block of {Path(file).stem}.", PROSE + file))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(folder))
    return folder


def test_the_standard_library_is_what_every_distributor_has(stdlib: Path) -> None:
    rows, versions = read_docstrings(["stdlib"])
    assert [row.fields["id"] for row in rows] == ["queue.read"]
    assert versions == f"Python {platform.python_version()}"


def test_the_task_names_its_data(stdlib: Path, package: Tree, tokenizer: TextTokenizer) -> None:
    task = load_task("docsum")
    package({"a.py": source("Read what is left of it.", OTHER)})
    own, both = task.load("official", None, 0), task.load("stdlib+blocks", None, 0)
    assert task.load("stdlib", None, 0) == task.load("mini", None, 0) == own
    assert (own.label, own.synthetic, own.provenance["source"]) == ("docsum", False, "docstrings of stdlib")
    assert (both.label, both.provenance["split_size"]) == ("docsum (stdlib+blocks)", 2)
    assert both.provenance["revision"] == f"Python {platform.python_version()}, py-blocks 1.2"
    assert both.provenance["content_sha256"] != own.provenance["content_sha256"]
    prompt = task.prompt(own.examples[0], own, tokenizer, 5000, 64)
    assert prompt.text.startswith("Documentation: The buffer is filled")
    assert prompt.text.endswith("\n\nSummarize the above documentation in one sentence.\nSummary:")
    assert prompt.reference == "Read one more block of queue."
    assert task.stop_for(prompt) == ("\n",)
    assert task.score([prompt], [" Read one more block of queue."])[0]["rouge2"] == 1.0


@pytest.mark.thorough
def test_this_pythons_own_are_enough_for_a_run() -> None:
    data = load_task("docsum").load("official", None, 0)
    assert len(data.examples) > 200
    assert load_task("docsum").load("official", 5, 0).examples == data.examples[:5]
