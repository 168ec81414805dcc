"""What is declared apart from its code: every kind can be built, and a wrong value is refused without it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.commandline import BRIEF, call

import spsbench.drafters
from spsbench.base.errors import UsageError
from spsbench.base.plugins import deferred
from spsbench.base.records import Spec
from spsbench.cli import options
from spsbench.decode.rules import Rule
from spsbench.drafters.registry import (
    DRAFTERS,
    POLICIES,
    RULES,
    build_policy,
    build_rule,
    drafter_kind,
    is_ours,
)
from spsbench.testing import assert_lossless


@pytest.mark.parametrize("name", RULES)
def test_rules_are_where_their_kinds_say(name: str) -> None:
    assert isinstance(build_rule(Spec(name)), Rule)


@pytest.mark.parametrize("name", POLICIES)
def test_policies_are_where_their_kinds_say(name: str) -> None:
    assert build_policy(Spec(name)).lookahead(4) >= 1


@pytest.mark.parametrize("name", DRAFTERS)
def test_drafters_are_where_their_kinds_say(name: str) -> None:
    with pytest.raises(Exception) as raised:
        DRAFTERS[name].build({}, None)  # type: ignore[arg-type]
    assert not isinstance(raised.value, ImportError)
    assert "module" not in str(raised.value)


def test_a_place_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        deferred("spsbench.drafters.lookup:nothing")()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("suffix:min_length=0", "suffix:min_length must be at least 1, got 0."),
        ("ngram:order=0", "ngram:order must be at least 1, got 0."),
        ("quantised:bits=5", "quantised:bits must be 8 or 4, got 5."),
        ("early-exit:layers=-1", "early-exit:layers must be at least 0, got -1."),
    ],
)
def test_a_value_is_refused_when_it_is_settled(text: str, said: str) -> None:
    spec = Spec.parse(text)
    with pytest.raises(UsageError) as raised:
        drafter_kind(spec.name).settled(spec)
    assert str(raised.value) == f"--drafter: {said}"


def test_the_kinds_come_without_torch() -> None:
    code = "import sys, spsbench.engines.arms, spsbench.drafters.registry;assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


FICTITIOUS = """
from __future__ import annotations

import torch

from spsbench.decode.rejection import Draft
from spsbench.drafters.registry import DrafterKind


class Echo:
    def begin(self, prompt): pass
    def observe(self, tokens, accepted): pass
    def draft(self, tokens, k, u): return Draft(torch.tensor([tokens[-1]] * k), None)


KIND = DrafterKind("fictitious-echo", "Repeats the last token.", lambda options, context: Echo())
"""


def test_a_drafter_of_ours_is_one_file_and_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in the room is listed, offered, proved, measured and taken for ours; nothing else changes."""
    (tmp_path / "fictitious_echo.py").write_text(FICTITIOUS)
    monkeypatch.setattr(spsbench.drafters, "__path__", [*spsbench.drafters.__path__, str(tmp_path)])
    try:
        assert "fictitious-echo" in options._names("drafters", "", None)
        with pytest.raises(UsageError, match="Did you mean fictitious-echo"):
            drafter_kind("fictitious-ecko")
        listed = json.loads(call("list", "drafters", "--json").out)["drafters"]
        (row,) = (row for row in listed if row["drafter"] == "fictitious-echo")
        assert (row["what"], row["from"]) == ("Repeats the last token.", "spsbench")
        assert is_ours(Spec("fictitious-echo"))
        assert_lossless("fictitious-echo", ks=(1, 2), vocab_size=3)
        flags = ("--limit", "1", "--max-new-tokens", "8", "--threads", "1", "--no-score", "--k", "2")
        run = call(
            "run",
            "xsum",
            *BRIEF,
            "--drafter",
            "fictitious-echo",
            *flags,
            "--quiet",
            "--out",
            tmp_path / "run",
        )
        assert run.code == 0, run.err
        rows = json.loads((tmp_path / "run/summary.json").read_text())["rows"]
        assert rows[-1]["drafter"] == "fictitious-echo"
    finally:
        DRAFTERS.pop("fictitious-echo", None)
        sys.modules.pop("spsbench.drafters.fictitious_echo", None)


@pytest.mark.parametrize(
    ("drafter", "remedy"),
    [
        ("heads:bits=8", "Give --drafter heads, or --dtype float32"),
        ("heads:bits=4:siblings=top", "Give --drafter heads:siblings=top, or --dtype float32"),
        (
            "quantised:bits=8",
            "Choose another drafter, or --dtype float32",
        ),  # it rounds without the option too
    ],
)
def test_in_16_bits_the_drafter_that_rounds_nothing_is_named(drafter: str, remedy: str) -> None:
    spec = Spec.parse(drafter)
    with pytest.raises(UsageError, match=f"^--drafter: {drafter} rounds weights .* {remedy}"):
        drafter_kind(spec.name).require_backend(spec, "torch", "bfloat16")
