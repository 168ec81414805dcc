"""``--k adaptive``: the same run as with a policy, and one that can be continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.commandline import BRIEF, SMALL, call

from spsbench.base.errors import UsageError
from spsbench.config import resolve


@pytest.mark.parametrize(
    ("given", "ks", "policies"),
    [
        ({"k": "adaptive"}, (4,), ("stop-below",)),
        ({"k": "8,adaptive"}, (8,), ("fixed", "stop-below")),
        ({"k": "2, adaptive,4"}, (2, 4), ("fixed", "stop-below")),
        ({"k": "0..3,adaptive"}, (0, 1, 2, 3), ("fixed", "stop-below")),
        ({"k": "0,adaptive"}, (0, 4), ("stop-below",)),
        ({"k": [2, "adaptive"]}, (2,), ("fixed", "stop-below")),
        ({"k": "adaptive", "policy": "entropy:h=1.5"}, (4,), ("entropy:h=1.5",)),
        ({"k": "2,adaptive", "policy": "entropy,momentum"}, (2,), ("fixed", "entropy", "momentum")),
        ({"k": "adaptive", "policy": "fixed,momentum"}, (4,), ("fixed", "momentum")),
    ],
)
def test_it_is_a_policy_up_to_the_largest_k(
    given: dict[str, Any], ks: tuple[int, ...], policies: object
) -> None:
    config = resolve(given)
    assert (config.ks, config.policies) == (ks, policies)
    assert resolve({"ks": list(ks), "policies": list(policies)}) == config  # type: ignore[call-overload]


def test_alone_the_bound_is_the_protocols(tmp_path: Path) -> None:
    protocol = tmp_path / "mine.yaml"
    protocol.write_text("ks: [1, 6]\nlimit: 3\n")
    config = resolve({"k": "adaptive", "protocol": str(protocol)})
    assert (config.ks, config.policies) == ((1, 6), ("stop-below",))


def test_a_file_may_say_it_and_does_not_contradict_it(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("ks: [3, adaptive]\n")
    assert resolve({}, file).policies == ("fixed", "stop-below")
    file.write_text(resolve({"k": "2"}).to_yaml())
    assert resolve({"k": "adaptive"}, file).policies == ("stop-below",)
    assert resolve({}, None, ["k=[2, adaptive]"]).policies == ("fixed", "stop-below")


def test_fixed_alone_contradicts_it() -> None:
    with pytest.raises(UsageError, match="--policy: the policy fixed always drafts K"):
        resolve({"k": "4,adaptive", "policy": "fixed"})


@pytest.mark.parametrize("k", ["adaptve", "4,adaptive,x", "adaptive,99"])
def test_what_is_no_k_is_refused_as_ever(k: str) -> None:
    with pytest.raises(UsageError, match="--k must be"):
        resolve({"k": k})


@pytest.mark.thorough
def test_the_run_holds_what_it_stands_for_and_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = call("run", *BRIEF, "--k", "2,adaptive", *SMALL, "--no-proof", "--quiet", "--out", run)
    assert result.code == 0, result.err
    arms = [row["arm"] for row in json.loads((run / "summary.json").read_text())["rows"]]
    assert arms == ["ars-nucleus", "sps-k2-nucleus", "sps-k2-nucleus+stop-below"]
    assert "adaptive" not in (run / "config.yaml").read_text()
    assert call("run", "--resume", run, "--limit", "2", "--quiet").code == 0
    assert len((run / "samples.jsonl").read_text().splitlines()) == 6


@pytest.mark.parametrize("others", [["--drafter", "lookup"], ["--engine", "graphed"]])
def test_what_does_not_heed_it_runs_beside_a_fixed_k(tmp_path: Path, others: list[str]) -> None:
    """Alone it is refused, see ``test_refusals``."""
    done = call(
        *("run", *BRIEF, *SMALL, "--k", "2,adaptive", *others, "--no-proof", "--quiet"),
        *("--out", tmp_path / "run"),
    )
    assert done.code == 0, done.err
