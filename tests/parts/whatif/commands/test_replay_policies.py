"""``spsbench replay --policy``: what a run of the same policies gives, without running them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.commandline import Cli, sampled_run

pytestmark = [pytest.mark.usefixtures("quick_rehearsals"), pytest.mark.thorough]

POLICIES = "stop-below:tau=0.5,entropy:h=1,momentum"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ArS and three policies on some prompts, under the law that leaves most to chance."""
    return sampled_run(
        tmp_path_factory.mktemp("policies") / "run",
        "--k",
        "5",
        "--policy",
        POLICIES,
        "--max-new-tokens",
        "40",
    )


def facts(cli: Cli, run: Path, *flags: str) -> dict[str, Any]:
    result = cli("replay", run, "--threads", "1", "--json", "--quiet", *flags)
    assert result.code == 0, result.err
    found: dict[str, Any] = json.loads(result.out)
    return found


def test_loops_and_drafts_are_those_of_the_arms_that_were_run(cli: Cli, measured: Path) -> None:
    found = facts(cli, measured, "--k", "5", "--policy", POLICIES, "--budget", "0")
    assert [cell["k"] for cell in found["cells"]] == [1, 2, 3, 4, 5]
    (curve,) = found["policies"]
    assert [cell["policy"] for cell in curve["cells"]] == ["stop-below:tau=0.5", "entropy:h=1", "momentum"]
    for cell in curve["cells"]:
        ran, bounds = cell["ran"], cell["bounds"]
        # Other texts of the same law: each has an interval of about this width of its own, so that the two
        # differ by sqrt(2) standard errors; this allows 5.9 / sqrt(2) = 4.2 of them.
        for name in ("tokens_per_loop", "drafted_per_loop"):
            width = cell[name]["high"] - cell[name]["low"]
            assert cell[name]["low"] - width < ran[name] < cell[name]["high"] + width, (name, cell)
        assert 1 <= bounds["low"] <= bounds["high"] <= 5
        assert cell["predicted"] is None
    assert curve["rollouts"] > 30
    assert curve["choices"] == []
    assert curve["oracle"]["policy"] is None


def test_with_times_a_threshold_is_chosen_and_judged(cli: Cli, measured: Path) -> None:
    found = facts(cli, measured, "--k", "3", "--policy", "stop-below", "--budget", "0.1")
    (curve,) = found["policies"]
    assert len(curve["cells"]) == 9
    for cell in (*curve["cells"], curve["oracle"]):
        assert cell["predicted"]["ms_per_token"]["estimate"] > 0
        assert cell["predicted"]["speedup"]["low"] <= cell["predicted"]["speedup"]["high"]
    (choice,) = curve["choices"]
    assert choice["policy"].startswith("stop-below:tau=")
    assert (choice["chosen_on"], choice["judged_on"]) == (6, 6)
    assert choice["gain"]["low"] <= choice["gain"]["high"]
    assert set(curve["beyond_ms"]) == {"stop-below"}


def test_a_policy_that_no_drafter_can_follow_is_refused(cli: Cli, measured: Path) -> None:
    result = cli("replay", measured, "--policy", "stop-below", "--drafter", "lookup")
    assert result.code == 2
    assert "--policy: no drafter here drafts as stop-below" in " ".join(result.err.split())


def test_the_screen_has_the_curve_and_the_oracle(cli: Cli, measured: Path) -> None:
    asked = ("--drafter", "model,lookup", "--k", "2", "--policy", "stop-below,momentum", "--budget", "0.1")
    result = cli("replay", measured, *asked, "--threads", "1")
    assert result.code == 0, result.err
    said = " ".join(result.out.split())
    for words in (
        "model, up to K=2, by policy",
        "tau=0.9",
        "momentum",
        "oracle",
        "as fast as the best fixed",
    ):
        assert words in said
    assert "lookup, up to" not in said
    assert max(map(len, result.out.splitlines())) <= 80
