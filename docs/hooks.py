"""Makes one site of `docs/` and of the files of the repository that its pages link to.

The pages are written for the repository: README.md stands at its top, and docs/extending.md links to
../examples/echo_drafter.py. Here README.md becomes the index, `docs/` the root, and every other file that a
page links to keeps its path, as a page if it is Markdown. So no page is written twice, and a link that is
wrong in the repository fails the strict build, too.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)(?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")
"""The target of a relative link or image."""

_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add README.md and, from page to page, every file outside of `docs/` that is linked to."""
    waiting = ["README.md", *(f"docs/{file.src_uri}" for file in files if file.src_uri.endswith(".md"))]
    known = set(waiting)
    for path in waiting:
        if place(path) not in files.src_uris:
            files.append(File.generated(config, place(path), abs_src_path=str(ROOT / path)))
        if path.endswith(".md"):
            found = {target for target in targets(path) if (ROOT / target).is_file()} - known
            known |= found
            waiting += sorted(found)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the links of the repository into links of the site."""
    here = repository_path(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        to = place(target_of(here, link["path"]))
        relative = posixpath.relpath(to, posixpath.dirname(page.file.src_uri) or ".")
        return relative + (link["anchor"] or "")

    return LINK.sub(moved, markdown)


def targets(path: str) -> set[str]:
    """Paths in the repository that a page of the site links to; code is not read."""
    text = _CODE.sub("", (ROOT / path).read_text(encoding="utf-8"))
    return {target_of(path, link["path"]) for link in LINK.finditer(text)}


def target_of(page: str, link: str) -> str:
    """The path in the repository that a link on a page means; of a folder its README.md."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(link)))
    return f"{path}/README.md" if (ROOT / path).is_dir() else path


def place(path: str) -> str:
    """Where a file of the repository is in the site's sources."""
    if path == "README.md":
        return "index.md"
    parts = PurePosixPath(path).parts
    return posixpath.join(*parts[1:]) if parts[0] == "docs" and len(parts) > 1 else path


def repository_path(src_uri: str) -> str:
    """The inverse of `place`."""
    if src_uri == "index.md":
        return "README.md"
    return f"docs/{src_uri}" if (ROOT / "docs" / src_uri).is_file() else src_uri
