"""A task's YAML: what is told of each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from spsbench.base.errors import UsageError
from spsbench.base.records import SamplingParams
from spsbench.tasks.spec import read_spec

GOOD = {
    "name": "news",
    "title": "News",
    "kind": "summarization",
    "prompt": "default",
    "stop": ["\n"],
    "max_new_tokens": 16,
    "samplings": {"nucleus": {"top_p": 0.8}, "greedy": {"greedy": True}},
    "default_sampling": "nucleus",
    "headline": "rouge2",
}


def spec_file(folder: Path, **changes: object) -> Path:
    path = folder / "news.yaml"
    content = {key: value for key, value in (GOOD | changes).items() if value is not None}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def test_a_spec_is_read(tmp_path: Path) -> None:
    spec = read_spec(spec_file(tmp_path))
    assert spec.samplings["nucleus"].params() == SamplingParams(top_p=0.8)
    assert spec.samplings["greedy"].params() == SamplingParams(greedy=True)


@pytest.mark.parametrize(
    ("changes", "key", "told"),
    [
        ({"promt": "x"}, "promt", "Did you mean prompt?"),
        ({"data": {"hub": [], "splitt": "x"}}, "data.splitt", "Did you mean split?"),
        (
            {"data": {"hub": [{"repo": "x", "revision": "m", "repository": "y"}]}},
            "data.hub.0.repo",
            "Choose from",
        ),
        ({"data": {"mini": {"examples": "x", "exemplar": "y"}}}, "data.mini.exemplar", "exemplars"),
        ({"samplings": {"nucleus": {"topp": 0.8}}}, "samplings.nucleus.topp", "top_p"),
        ({"samplings": {"nucleus": {"top_p": 1.5}}}, "samplings.nucleus.top_p", "1.5"),
        ({"samplings": {"nucleus": {"temperature": 0}}}, "samplings.nucleus.temperature", "greater than 0"),
        ({"samplings": {}}, "samplings", "at least 1"),
        ({"max_new_tokens": 0}, "max_new_tokens", "0 is not valid"),
        ({"max_new_tokens": "many"}, "max_new_tokens", "many is not valid"),
        ({"title": None}, "title", "the value is missing"),
        ({"kind": "poetry"}, "kind", "poetry is not valid"),
        ({"default_sampling": "beam"}, "", "default_sampling is beam, not one of"),
        ({"prompt": "raw"}, "", "prompt is raw, not one of default"),
        ({"stop": ["\n", ""]}, "", "empty string"),
        ({"name": "../x"}, "name", "../x is not valid"),
    ],
)
def test_a_mistake_is_told_with_file_and_key(
    tmp_path: Path, changes: dict[str, object], key: str, told: str
) -> None:
    path = spec_file(tmp_path, **changes)
    with pytest.raises(UsageError) as caught:
        read_spec(path)
    assert caught.value.flag == (f"{path}: {key}" if key else str(path))
    assert told in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("content", [b"", b"- a\n", b"a: [\n", b"\xff\xfe\x00"])
def test_a_file_that_is_no_mapping(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"broken\.yaml"):
        read_spec(path)
