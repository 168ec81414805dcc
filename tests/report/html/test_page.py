"""The page is whole, safe and says what report.md says."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from html.parser import HTMLParser

from support.synthetic_run import gallery, measured

from spsbench.report.figures import Gallery
from spsbench.report.html import page

NOTHING = Gallery((), (("Figure 1", "a <reason>"),))
VOID = {"meta", "link", "br", "img", "hr", "path", "use", "rect", "stop"}


class Reader(HTMLParser):
    """Collects tags, attributes and whether every element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


def test_it_is_one_well_formed_file_that_asks_for_nothing() -> None:
    reader = read(page([(measured(), gallery())]))
    assert reader.open == []
    for tag, attributes in reader.seen:
        for name in ("src", "href", "xlink:href", "action", "data", "srcset"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, value)
    text = page([(measured(), gallery())])
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


def test_the_policy_allows_its_own_script_alone() -> None:
    text = page([(measured(), NOTHING)])
    (script,) = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    assert "default-src 'none'" in text


def test_text_that_nobody_vouches_for_is_shown_and_does_nothing() -> None:
    hostile = '<script>alert("x")</script><img src=x onerror=alert(1)>'
    summary = {
        **measured().summary,
        "task_label": hostile,
        "pair": hostile,
        "warnings": [hostile, "[a](javascript:alert(1))"],
    }
    run = {**measured().run, "environment": {"cpu": hostile}, "command": ["spsbench", hostile]}
    tokens = measured().tokens.assign(example_id="<script>doc</script>")
    told = dataclasses.replace(
        measured(), name=hostile, summary=summary, run=run, tokens=tokens, loops=measured().loops
    )
    reader = read(page([(told, NOTHING), (measured(), NOTHING)]))
    assert [tag for tag, _ in reader.seen].count("script") == 1
    assert "img" not in {tag for tag, _ in reader.seen}
    assert not any(name.startswith("on") for _, attributes in reader.seen for name in attributes)
    assert not any("javascript" in (attributes.get("href") or "") for _, attributes in reader.seen)
    text = page([(measured(), NOTHING)])
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text  # a token of the fixture
    assert "\x1b" not in text


def test_a_token_carries_what_stands_behind_it() -> None:
    seen = read(page([(measured(), NOTHING)])).seen
    rejected = [a for tag, a in seen if tag == "span" and a.get("class") == "t rejected" and "data-u" in a]
    assert rejected
    assert all({"data-target", "data-draft", "data-u"} <= set(attributes) for attributes in rejected)
    loops = [a for tag, a in seen if tag == "span" and a.get("class") == "loop"]
    assert all({"data-loop", "data-ms"} <= set(attributes) for attributes in loops)
    fates = {attributes["class"] for tag, attributes in seen if tag == "span" and "data-u" in attributes}
    assert fates == {"t accepted", "t rejected", "t correction", "t bonus"}


def test_tables_of_the_report_are_sortable() -> None:
    text = page([(measured(), NOTHING)])
    assert text.count('<table class="sortable"') == text.count("<table")
    assert '<h2 id="r0-acceptance">Acceptance</h2>' in text
    assert "a &lt;reason&gt;" in text


def test_several_runs_stand_side_by_side() -> None:
    other = dataclasses.replace(measured(ks=(0, 4), samplings=("nucleus",), seed=9), name="other")
    text = page([(measured(), NOTHING), (other, NOTHING)])
    assert "2 runs side by side" in text
    table = text[text.index('id="compared"') : text.index("In what the runs differ")]
    assert table.count("<tr>") == 1 + 8 + 2
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", text)
    assert cells[cells.index("seed") :][:3] == ["seed", "7", "9"]
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids))


def test_an_empty_run_is_reported_as_empty() -> None:
    text = page([(measured(prompts=0), Gallery((), ()))])
    assert read(text).open == []
    assert 'class="card"' not in text
