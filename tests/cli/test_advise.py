"""``spsbench advise``: a choice, judged on other prompts and run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commandline import BRIEF, Cli, call

from spsbench.paths import mini_dir

pytestmark = pytest.mark.usefixtures("quick_rehearsals")

ONE = ("--threads", "1", "--quiet")
SHORT = ("--limit", "8", "--max-new-tokens", "30", "--budget", "0.1")
FEW = (*BRIEF, *SHORT, "--k", "2", "--drafter", "lookup,model")


@pytest.fixture(scope="module")
def advised(tmp_path_factory: pytest.TempPathFactory, quick_rehearsals: None) -> tuple[Path, Any]:
    """The folder of an advice that was run, not to be changed, and what was said."""
    folder = tmp_path_factory.mktemp("advised") / "advice"
    result = call("advise", "xsum", *FEW, *ONE, "--json", "--out", folder)
    assert result.code == 0, result.err
    return folder, json.loads(result.out)


def test_a_choice_is_judged_elsewhere_and_run(cli: Cli, advised: tuple[Path, Any]) -> None:
    folder, facts = advised
    assert facts["chosen_on"] == facts["judged_on"] == 4
    named = [facts["advised"]["drafter"], *(other["drafter"] for other in facts["others"])]
    assert sorted(map(str, named)) == ["None", "lookup", "model"]
    assert facts["advised"]["slower"]["estimate"] == pytest.approx(1.0)
    ran = facts["live"]
    assert (ran is None) == (facts["advised"]["drafter"] is None)
    # What was written for the advice is a run like any other.
    again = cli("replay", folder, "--k", "2", "--budget", "0", "--threads", "1")
    assert again.code == 0, again.err


def test_the_better_draft_is_chosen_and_run(cli: Cli, tmp_path: Path) -> None:
    """A draft whose every token is a forward as long as the target's cannot win."""
    asked = ("--draft", mini_dir() / "target", "--draft", mini_dir() / "draft", "--drafter", "model")
    few = ("--target", mini_dir() / "target", *SHORT, "--k", "4", "--data", "mini")
    result = cli("advise", "xsum", *asked, *few, *ONE, "--json", "--out", tmp_path / "advice")
    assert result.code == 0, result.err
    facts = json.loads(result.out)
    others = {other["draft"] for other in facts["others"]}
    assert str(mini_dir() / "target") in others
    if facts["advised"]["draft"] is not None:
        told = json.loads((tmp_path / "advice" / "check" / "run.json").read_text())
        assert told["identity"]["pair"]["draft"]["name"] == str(mini_dir() / "draft")


def test_what_does_not_fit_into_the_memory_is_left_out(
    cli: Cli, tmp_path: Path, advised: tuple[Path, Any]
) -> None:
    asked, (_, free) = (*FEW, *ONE, "--no-check", "--json"), advised
    sizes = {each["drafter"]: each["bytes"] for each in (free["advised"], *free["others"])}
    assert sizes[None] == sizes["lookup"] < sizes["model"]
    tight = ("--memory", f"{(sizes[None] + sizes['model']) / 2e6}MB", "--objective", "p99")
    found = json.loads(cli("advise", "xsum", *asked, *tight, "--out", tmp_path / "tight").out)
    assert free["too_large"] == []
    assert found["too_large"] == ["model"]
    assert {found["advised"]["drafter"], *(other["drafter"] for other in found["others"])} == {None, "lookup"}
    assert found["advised"]["p99_s"] > 0
    none = cli("advise", "xsum", *asked, "--memory", "1MB", "--out", tmp_path / "none")
    assert none.code == 2
    assert "the target alone needs" in " ".join(none.err.split())


def test_the_screen_fits_a_terminal_and_says_what_was_advised(cli: Cli, tmp_path: Path) -> None:
    result = cli("advise", "xsum", *FEW, *ONE[:-1], "--no-check", "--out", tmp_path / "advice")
    assert result.code == 0, result.err
    assert "Use " in result.out or "Does not pay here" in result.out
    assert "Run live" not in result.out
    assert max(map(len, result.out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--limit", "4"), 2, "too few to choose on and to judge on"),
        (("--budget", "0"), 2, "--budget must be above 0"),
        (("--drafter", "heads"), 2, "was made for package:smollm2"),
        (("--drafter", "suffix:across=true"), 2, "cannot be replayed"),
        (("--k", "x"), 2, "--k"),
        (("--k", "0"), 2, "--k needs at least one value above 0"),
        (("--objective", "median"), 2, "Choose from mean, p99"),
        (("--memory", "much"), 2, "--memory must be a size"),
    ],
)
def test_what_cannot_be_advised_on_is_refused(
    cli: Cli, tmp_path: Path, flags: tuple[str, ...], code: int, said: str
) -> None:
    given = ("advise", "xsum", "--limit", "8", "--max-new-tokens", "30", *ONE, "--out", tmp_path / "advice")
    result = cli(*given, *flags)
    assert result.code == code, result.err
    assert said in result.err.replace("\n", " ")
