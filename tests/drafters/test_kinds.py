"""What is declared apart from its code: every kind can be built, and a wrong value is refused without it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spsbench.decode.rule_kinds import RULES
from spsbench.decode.rules import Rule, build_rule
from spsbench.drafters.policy import build_policy
from spsbench.drafters.policy_kinds import POLICIES
from spsbench.drafters.registry import DRAFTERS, drafter_kind
from spsbench.errors import UsageError
from spsbench.plugins import deferred
from spsbench.records import Spec


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
    code = (
        "import sys, spsbench.arms.choice, spsbench.drafters.registry, spsbench.decode.rule_kinds;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
