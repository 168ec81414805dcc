"""The documentation as a site: it builds strictly, holds every page, and loads nothing from elsewhere."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

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
    assert not (site / "results/log").exists()
    assert "log/2026-11" not in (site / "results/index.html").read_text()
    assert (site / "examples/echo_drafter.py").read_text() == (ROOT / "examples/echo_drafter.py").read_text()


def stub(name: str) -> ast.stmt:
    """What a page shows of a public name: its signature and docstring, of a class its public members too."""
    module, _, attribute = name.rpartition(".")
    found = inspect.unwrap(getattr(importlib.import_module(module), attribute))
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(found))).body
    return bare(node)


def bare(node: Any) -> Any:
    """A definition without code, decorators other than of dataclasses and properties, and private members."""
    if isinstance(node, ast.AnnAssign):
        return node
    body: list[ast.stmt] = []
    if (text := ast.get_docstring(node)) is not None:
        body.append(ast.Expr(ast.Constant(text)))
    if isinstance(node, ast.ClassDef):
        kept = (ast.AnnAssign, ast.FunctionDef)
        members = [member for member in node.body if isinstance(member, kept)]
        body += [bare(member) for member in members if not named(member).startswith("_")]
        body += [bare(member) for member in members if named(member) == "__init__"]
    shown = [each for each in node.decorator_list if re.match("dataclass|.*property", ast.unparse(each))]
    node.body, node.decorator_list = body or [ast.Expr(ast.Constant(...))], shown
    return node


def named(member: Any) -> str:
    return str(getattr(member, "name", "") or ast.unparse(getattr(member, "target", ast.Name("_"))))


def written(block: str) -> str:
    (node,) = ast.parse(block).body
    return ast.dump(bare(node))


PAGE = ROOT / "docs/api.md"
BLOCK = re.compile(r"^### (\S+)\n\n```python\n(.*?)^```$", re.M | re.S)


def shown(name: str) -> str:
    """The block of the page for a public name, formatted as the code is."""
    command = [sys.executable, "-m", "ruff", "format", "--line-length", "110", "-"]
    source = ast.unparse(stub(name))
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
    return f"### {name}\n\n```python\n{done.stdout}```"


def test_the_reference_can_be_read_as_it_lies_and_is_in_step_with_the_code() -> None:
    """``SPSBENCH_WRITE_GOLDEN=1`` writes the page again."""
    if os.environ.get("SPSBENCH_WRITE_GOLDEN"):
        PAGE.write_text(BLOCK.sub(lambda found: shown(found[1]), PAGE.read_text()))
    blocks = BLOCK.findall(PAGE.read_text())
    stale = [name for name, block in blocks if written(block) != ast.dump(stub(name))]
    assert not stale
    assert set(spsbench.__all__) <= {name.rpartition(".")[2] for name, _ in blocks}


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
        ("[log](results/log/1.md) and [its end](results/log/1.md#end)", None),
        ("[log](results/log/2.md)", "results/log/2.md"),
    ],
)
def test_a_link_that_is_wrong_in_the_repository_fails_the_build(
    link: str, said: str | None, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    for folder in ("docs", "tools", "results/log"):
        (repository / folder).mkdir(parents=True)
    shutil.copy(ROOT / "mkdocs_hooks.py", repository)
    (repository / "README.md").write_text(f"# Start\n\n{link}\n")
    (repository / "docs/guide.md").write_text("# Guide\n\n## How\n\n[up](../README.md)\n")
    (repository / "tools/a.py").write_text("print()\n")
    (repository / "results/log/1.md").write_text("# Log\n\n[gone](../../docs/gone.md)\n")
    settings = "site_name: s\nhooks: [mkdocs_hooks.py]\nplugins: []\nvalidation: {anchors: warn}\n"
    (repository / "mkdocs.yml").write_text(settings)
    done = built(repository / "mkdocs.yml", tmp_path / "site")
    assert (done.returncode == 0) == (said is None), done.stderr
    assert said is None or said in done.stderr
