"""Every row of what the pages say is tested names a test of the fast tier, and of the thorough one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from support.tiers import TIERS

ROOT = Path(__file__).parents[2]
TESTS = yaml.safe_load((ROOT / "tests/project/propositions.yaml").read_text())
BULLETS = {
    "promised": ("docs/reliability.md", "What is promised"),
    "rulebook": ("docs/rulebook.md", "Adaptive verification"),
}
TABLES = {
    "losslessness": ("docs/losslessness.md", "What is tested", 1),
    "reliability": ("results/reference/reliability.md", "What was injected", 0),
}


def section(page: str, heading: str) -> str:
    return (ROOT / page).read_text().split(f"\n## {heading}")[1].split("\n## ")[0]


def cells(page: str) -> list[str]:
    """Of the column that says what is proved, or the bullets of what is stated."""
    if page in BULLETS:
        return [part.split("\n")[0] for part in section(*BULLETS[page]).split("\n* ")[1:]]
    path, heading, column = TABLES[page]
    table = re.split(r"\n\|[-|]+\|\n", section(path, heading))[1].split("\n\n")[0]
    return [row.strip("| ").split(" | ")[column] for row in table.splitlines()]


@pytest.mark.parametrize("page", TESTS)
def test_every_row_is_listed_once(page: str) -> None:
    found = cells(page)
    assert len(found) == len(TESTS[page])
    assert [cell for cell in found if sum(map(cell.startswith, TESTS[page])) != 1] == []


def of_a_deleted_part(name: str) -> bool:
    """Whether a test's folder went with its part."""
    part = re.match(r"tests/parts/\w+/", name)
    return part is not None and not (ROOT / part[0]).is_dir()


@pytest.mark.parametrize("page", TESTS)
def test_the_tests_exist_in_their_tiers(page: str, pytestconfig: pytest.Config) -> None:
    tiers = pytestconfig.stash[TIERS]
    order = ("fast", "thorough")
    named = [
        pair
        for tests in TESTS[page].values()
        for pair in zip(tests, order, strict=False)
        if not of_a_deleted_part(pair[0])
    ]
    if not {name.split("::")[0] for name, _ in named} <= {name.split("::")[0] for name in tiers}:
        pytest.skip("the whole suite has to be collected")
    assert [(name, tier) for name, tier in named if tier not in tiers.get(name, ())] == []
