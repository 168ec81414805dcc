"""The documentation as a site: it builds strictly, holds every page, and loads nothing from elsewhere."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import spsbench

ROOT = Path(__file__).parents[2]


def built(configuration: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", configuration, "-d", site]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=quiet)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("site")
    done = built(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.thorough
def test_every_page_of_docs_is_there(site: Path) -> None:
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).with_suffix(".html") for path in docs.rglob("*.md")}
    expected = {page.with_name("index.html") if page.name == "README.html" else page for page in pages}
    assert [str(page) for page in sorted(expected) if not (site / page).is_file()] == []
    assert not (site / "hooks.py").exists()
    assert (site / "examples/echo_drafter.py").read_text() == (ROOT / "examples/echo_drafter.py").read_text()


PAGE = ROOT / "docs/api.md"
ENTRIES = re.findall(r"^::: (\S+)$", PAGE.read_text(), re.M)
"""The names that the build puts signatures and docstrings in the place of."""


def test_the_reference_has_every_public_name_and_no_other() -> None:
    assert set(spsbench.__all__) <= {entry.rpartition(".")[2] for entry in ENTRIES}
    places = [
        (importlib.import_module(module), name) for module, _, name in (e.rpartition(".") for e in ENTRIES)
    ]
    assert [(module.__name__, name) for module, name in places if not hasattr(module, name)] == []


@pytest.mark.thorough
def test_the_reference_shows_signatures_and_docstrings(site: Path) -> None:
    page = (site / "api.html").read_text()
    assert [entry for entry in ENTRIES if f'id="{entry}"' not in page] == []
    assert "no progress on stderr." in page
    assert ":::" not in page


@pytest.mark.thorough
def test_reading_it_loads_nothing_from_elsewhere(site: Path) -> None:
    loads = re.compile(
        r"<(?:script|img|iframe|source)[^>]*\ssrc=[\"']?(?:https?:)?//|<link[^>]*rel=[\"']?"
        r"(?:stylesheet|preconnect|preload)[^>]*href=[\"']?(?:https?:)?//"
    )
    assert loads.search('<link href="a.css"><script async src="//cdn.example/x.js"></script>')
    assert [str(page) for page in site.rglob("*.html") if loads.search(page.read_text())] == []


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("[guide](docs/guide.md#how) and [code](tools/a.py)", None),
        ("[guide](docs/giude.md)", "giude.md"),
        ("[guide](docs/guide.md#why)", "#why"),
        ("[code](tools/b.py)", "tools/b.py"),
    ],
)
def test_a_link_that_is_wrong_in_the_repository_fails_the_build(
    link: str, said: str | None, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    for folder in ("docs", "tools"):
        (repository / folder).mkdir(parents=True)
    shutil.copy(ROOT / "docs/hooks.py", repository / "docs")
    (repository / "README.md").write_text(f"# Start\n\n{link}\n")
    (repository / "docs/guide.md").write_text("# Guide\n\n## How\n\n[up](../README.md)\n")
    (repository / "tools/a.py").write_text("print()\n")
    hook = "hooks: [docs/hooks.py]\nexclude_docs: hooks.py\n"
    settings = f"site_name: s\n{hook}plugins: []\nvalidation: {{anchors: warn}}\n"
    (repository / "mkdocs.yml").write_text(settings)
    done = built(repository / "mkdocs.yml", tmp_path / "site")
    assert (done.returncode == 0) == (said is None), done.stderr
    assert said is None or said in done.stderr
