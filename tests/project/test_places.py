"""Pages name files that exist; that on the architecture and the README of each part names and links, too."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.borders import needs

ROOT = Path(__file__).parents[2]
PARTS = sorted(path.parent for path in (ROOT / "spsbench/parts").glob("*/__init__.py"))
ARCHITECTURE = ROOT / "docs/architecture.md"
PAGES = [ARCHITECTURE, *(part / "README.md" for part in PARTS)]

LONGEST = 60
"""Lines of a part's README: what is longer belongs into docs."""

OF_RUNS = ("summary.json", "report.md", "config.yaml", "run.json", "training.json")
"""Files that a command writes."""

PATH = r"[\w.-]+(?:/[\w.-]+)*(?:/|\.(?:py|pyi|md|ya?ml|json|toml|txt))"


def missing(page: Path, text: str) -> list[str]:
    """What a page names and the repository has not: paths, names that stand beside a path, links."""
    return [f"{page.name}: {name}" for name in _missing(page, text)]


def _missing(page: Path, text: str) -> Iterator[str]:
    rooms = [path for path in (ROOT / "spsbench").iterdir() if path.is_dir()]
    bases = [page.parent, ROOT, ROOT / "spsbench", ROOT / "tests", *rooms]
    tree = "\n".join(re.findall(r"^```\n(.*?)^```", text, re.M | re.S)) if page == ARCHITECTURE else ""
    for path in re.findall(rf"`({PATH})`", text) + re.findall(rf"(?:^|\s)({PATH})(?=\s|$)", tree):
        is_known = path in OF_RUNS or "NAME" in path or any((base / path).exists() for base in bases)
        if not is_known and not (page != ARCHITECTURE and any(page.parent.rglob(path))):
            yield path
    for path, name in re.findall(rf"`({PATH})`\s+\(`([\w.]+)`", text):
        if name.rpartition(".")[2] not in _defined(ROOT / path):
            yield f"{name} in {path}"
    for name, path in re.findall(rf"`(\w+)` in `({PATH})`", text):
        if name not in _defined(ROOT / path):
            yield f"{name} in {path}"
    for link in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", text):
        if not (page.parent / link).exists():
            yield link


def _defined(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return {*re.findall(r"^ *(?:def|class) (\w+)", text, re.M), *re.findall(r"^(\w+)\b.* = ", text, re.M)}


def is_deleted(place: str) -> bool:
    """Whether a place is of a part that is not there: parts may be deleted."""
    gone = [name for name in needs() if not (ROOT / "spsbench/parts" / name).is_dir()]
    return any(re.search(rf"\b{name}/", place) for name in gone)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_names_what_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [each for each in missing(page, text) if not is_deleted(each)] == []
    assert page == ARCHITECTURE or len(text.splitlines()) <= LONGEST


def test_what_is_not_there_is_found() -> None:
    text = (
        "`spsbench/cli/none.py`, `spsbench/decode/algorithms.py` (`spd`), `arm_rows` in "
        "`spsbench/report/results.py`, [a page](nowhere.md#there)\n```\nspsbench/\n  rooms/  none\n```\n"
    )
    assert missing(ARCHITECTURE, text) == [
        "architecture.md: spsbench/cli/none.py",
        "architecture.md: rooms/",
        "architecture.md: spd in spsbench/decode/algorithms.py",
        "architecture.md: arm_rows in spsbench/report/results.py",
        "architecture.md: nowhere.md",
    ]


OWN = re.compile(
    r"`((?:spsbench|tests|benchmarks|training|examples|configs)/[\w./-]+\.\w+)`(?!\s+at\s+commit)"
)
"""Files of the repository, as pages name them."""

FORMER = re.compile(r"`([\w./-]+)`\s+at\s+commit\s+([0-9a-f]{8})\b")
"""Files that left the repository, and the commit that had them."""


def lost(text: str) -> list[str]:
    return [path for path in OWN.findall(text) if "NAME" not in path and not (ROOT / path).exists()]


FORMS = ("*.md", "docs/**/*.md", "results/**/*.md")
OTHERS = [(path.name, path.read_text(encoding="utf-8")) for form in FORMS for path in ROOT.glob(form)]


def test_other_pages_name_files_that_exist() -> None:
    found = [(page, path) for page, text in OTHERS for path in lost(text)]
    assert [(page, path) for page, path in found if not is_deleted(path)] == []
    assert lost("`tests/nowhere.py` and `benchmarks/borders.py`") == ["tests/nowhere.py"]
    assert lost("`tests/nowhere.py` at\ncommit d3b7459b") == []


def had(commit: str, path: str) -> bool:
    """Whether a commit had a file or a folder of that name; an engine's page names what lay beside it."""
    places = (path, f"results/reference/engines/{path}")
    return any(
        subprocess.run(["git", "cat-file", "-e", f"{commit}:{place}"], cwd=ROOT, check=False).returncode == 0
        for place in places
    )


def test_files_that_left_were_in_the_commit_that_is_named() -> None:
    found = {(page, *named) for page, text in OTHERS for named in FORMER.findall(text)}
    commits = {"HEAD", *(commit for _, _, commit in found)}
    if shutil.which("git") is None or not all(had(commit, "pyproject.toml") for commit in commits):
        pytest.skip("the history is not here")
    assert [each for each in sorted(found) if not had(each[2], each[1])] == []
    assert found
    assert not had("HEAD", "tests/nowhere.py")


def test_every_part_is_in_the_table_with_those_who_need_it() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(.*\) \|.*\| ?(.*?) ?\|$", ARCHITECTURE.read_text(), re.M)
    here = {part.name for part in PARTS}
    found = {name: {who for who in needing.split(", ") if who in {"core", *here}} for name, needing in rows}
    assert here <= found.keys()
    assert {name: by for name, by in found.items() if name in here} == {name: needs()[name] for name in here}
