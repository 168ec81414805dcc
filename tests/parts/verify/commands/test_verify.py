"""``spsbench verify`` end to end on the mini pair, at an effort that takes seconds."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console
from support.commandline import BRIEF, Cli

from spsbench.parts.verify import analytic, parts
from spsbench.parts.verify import command as verify
from spsbench.parts.verify.effort import EFFORTS, FAULTS, Effort, Sizes
from spsbench.parts.verify.verification import TESTS

TABLES: dict[str, Sizes] = {"tables": ((2, 2), (3, 2)), "wide_tables": ((3, 2),)}
TINY = Effort(draws=80, end_to_end=10, contexts=1, prompts=2, outputs=1, **TABLES)
FLAGS = ("xsum", *BRIEF, "--effort", "full", "--threads", "1", "--sampling", "nucleus", "--top-p", "1")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EFFORTS, "full", TINY)
    monkeypatch.setattr(analytic, "TOKENS", 16)
    monkeypatch.setattr(parts, "LONG", parts.LONG // 4)


def test_the_real_sampler_passes_and_tells_what_was_tested(cli: Cli) -> None:
    result = cli("verify", *FLAGS, "--json")
    assert result.code == 0, result.err
    answer = json.loads(result.out)
    assert answer["passed"] is True
    tests = [finding["test"] for finding in answer["findings"]["nucleus"]]
    parts = ["contract", "enumeration", "rows", "warp", "uniforms", "clock"]
    assert tests == [*parts, "analytic", "sampling", "end to end", "outputs", "decisions"]
    assert all(finding["bounds"] for finding in answer["findings"]["nucleus"])
    assert {finding["verdict"] for finding in answer["findings"]["nucleus"]} == {"ok"}
    assert answer["arms"]["nucleus"]["drafter"] == "model"


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--k", "0"), "--k needs at least one value above 0, got 0."),
        (("--control", "all", "--sampling", "greedy"), "--sampling: greedily nothing is drawn"),
    ],
)
def test_what_leaves_nothing_to_test_is_refused(cli: Cli, flags: tuple[str, ...], why: str) -> None:
    result = cli("verify", "xsum", *BRIEF, "--threads", "1", *flags)
    assert result.code == 2
    assert why in result.err


@pytest.mark.thorough
def test_a_planted_sampler_ends_with_4_and_what_caught_it(cli: Cli) -> None:
    result = cli("verify", *FLAGS, "--control", "inverted-ratio")
    assert result.code == 4
    assert "FAILED" in result.out
    assert "--control inverted-ratio: the sampler is wrong: caught by analytic (nucleus)" in result.err


@pytest.mark.thorough
def test_all_plants_every_fault_into_the_real_sampler_and_misses_none(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted: list[tuple[object, Effort]] = []

    def matrix(subject: Any, prompts: object, decoder: object, effort: Effort, told: object) -> object:
        planted.append((subject.control, effort))
        return {"no-residual": {"analytic": True}, "raw-draft": {"analytic": not planted[1:]}}

    monkeypatch.setattr("spsbench.parts.verify.verification.control_matrix", matrix)
    asked = ("xsum", *BRIEF, "--threads", "1", "--sampling", "nucleus", "--control", "all")
    caught = cli("verify", *asked, "--json")
    assert (caught.code, json.loads(caught.out)["passed"]) == (0, True)
    missed = cli("verify", *asked)
    assert missed.code == 4
    assert "--control: not caught: raw-draft (nucleus)." in missed.err
    assert planted == [(None, EFFORTS["reduced"])] * 2


@pytest.mark.thorough
def test_a_fault_outside_of_the_sampler_can_be_planted_too(cli: Cli) -> None:
    result = cli("verify", *FLAGS, "--control", "nucleus-at-one")
    assert result.code == 4
    assert "--control nucleus-at-one: the sampler is wrong: caught by warp (nucleus)" in result.err


@pytest.mark.thorough
def test_greedy_is_compared_token_by_token(cli: Cli) -> None:
    result = cli("verify", "xsum", *BRIEF, "--effort", "full", "--threads", "1", "--sampling", "greedy")
    assert result.code == 0, result.err
    assert "2 of 2 outputs identical" in " ".join(result.out.split())


def test_the_table_of_controls_fits_a_narrow_screen() -> None:
    """Every test but greedy, which has no controls, against the longest name."""
    row = {test: test == "warp" for test in TESTS if test != "greedy"}
    file = io.StringIO()
    Console(file=file, width=80).print(verify._control_table("nucleus", {max(FAULTS, key=len): row}))
    lines = file.getvalue().splitlines()
    assert "…" not in file.getvalue()
    assert lines[-1].split() == [max(FAULTS, key=len), *("x" if row[test] else "-" for test in row)]
