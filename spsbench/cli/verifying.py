"""What ``verify`` does: load the pair, run the tests, show the verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from spsbench.cli.console import out, print_json, say
from spsbench.cli.measure import read_settings
from spsbench.config import RunConfig
from spsbench.errors import GateFailed, UsageError
from spsbench.report.tables import Cell, Styled, Table, left
from spsbench.runner import Plan, plan
from spsbench.runner.execute import load
from spsbench.verify.controls import NAMES
from spsbench.verify.finding import Finding
from spsbench.verify.subject import SamplerUnderTest
from spsbench.verify.verification import TESTS, Effort, control_matrix, findings

_EFFORTS = {"full": Effort(), "reduced": Effort.reduced()}
_NOT_OFFERED = {
    **dict.fromkeys(("out", "resume", "config", "fail_on", "set", "protocol", "samples", "arms")),
    "no_score": True,
}


def verify_sampler(params: Mapping[str, Any]) -> None:
    """Test one sampler, real or planted, under each sampling that was asked for.

    Raises:
        GateFailed: a test found it wrong.
    """
    _known_control(params["control"])
    effort = _effort(params, "full")
    results: dict[str, list[Finding]] = {}
    for name, subject, ready, prompts in _subjects(params, effort):
        found: list[Finding] = []
        for finding in findings(subject, prompts, ready.source.tokenizer, effort):
            say(f"  {finding.test}: {'ok' if finding.passed else 'FAILED'}", quiet=params["quiet"])
            found.append(finding)
        results[name] = found
    failed = [f"{f.test} ({name})" for name, found in results.items() for f in found if not f.passed]
    if params["json"]:
        by_sampling = {name: [asdict(f) for f in found] for name, found in results.items()}
        print_json({"control": params["control"], "passed": not failed, "findings": by_sampling})
    else:
        for name, found in results.items():
            out().print(_verdicts(name, found))
    if failed:
        raise GateFailed(
            f"the sampler is wrong: caught by {', '.join(failed)}.", flag=_flag(params["control"])
        )
    say("No test found a difference from the target's distribution.", quiet=params["quiet"])


def verify_controls(params: Mapping[str, Any]) -> None:
    """Plant every control in turn and print which test caught it.

    Raises:
        GateFailed: a control went unnoticed.
    """
    effort = _effort(params, "reduced")
    matrices: dict[str, dict[str, dict[str, bool]]] = {}
    quiet: bool = params["quiet"]

    def told(control: str, found: list[Finding]) -> None:
        caught = ", ".join(f.test for f in found if not f.passed) or "NOTHING"
        say(f"  {control}: caught by {caught}", quiet=quiet)

    for name, subject, ready, prompts in _subjects(params, effort):
        if not subject.sampling.greedy:  # most controls are right when nothing is left to chance
            matrices[name] = control_matrix(subject, prompts, ready.source.tokenizer, effort, told)
    missed = [
        f"{c} ({name})" for name, m in matrices.items() for c, row in m.items() if not any(row.values())
    ]
    if params["json"]:
        print_json({"passed": not missed, "matrix": matrices})
    else:
        for name, matrix in matrices.items():
            out().print(_matrix(name, matrix))
    if missed:
        raise GateFailed(f"not caught: {', '.join(missed)}.", flag="--controls")


def _subjects(
    params: Mapping[str, Any], effort: Effort
) -> Iterator[tuple[str, SamplerUnderTest, Plan, list[tuple[int, ...]]]]:
    """Each sampling to test, with the pair loaded once."""
    config = _settings(params, effort)
    say("Checking task, data and models", quiet=params["quiet"])
    ready = plan(config)
    pair = load(ready)
    prompts = [prompt.ids for prompt in ready.prompts]
    for arm in ready.arms:
        if arm.method == "sps":
            say(f"Testing SpS (K={arm.k}), {arm.sampling_name}", quiet=params["quiet"])
            subject = SamplerUnderTest(
                pair.target, pair.draft, arm.sampling, arm.k, pair.device, params["control"], config.seed
            )
            yield arm.sampling_name, subject, ready, prompts


def _settings(params: Mapping[str, Any], effort: Effort) -> RunConfig:
    """The run's settings, with as many prompts as the tests read, and both samplings by default."""
    own = {"control", "controls", "effort", "quiet", "json", "debug"}
    asked = {name: value for name, value in params.items() if name not in own}
    asked |= {"quiet": False, "json": False, "debug": False, "limit": str(effort.needed)}
    asked |= {"max_new_tokens": None}
    asked |= {"fixed_length": False, "engine": None, "trace": None, "unsafe_exec": False}
    asked |= {"allow_code_exec": False}
    if asked["sampling"] is None:
        asked["sampling"] = "nucleus,greedy"
    return read_settings(_NOT_OFFERED | asked)


def _effort(params: Mapping[str, Any], default: str) -> Effort:
    name = params["effort"] or default
    if name not in _EFFORTS:
        raise UsageError(f"{name!r} is unknown.", flag="--effort", remedy="Choose full or reduced.")
    return _EFFORTS[name]


def _known_control(name: str | None) -> None:
    if name is not None and name not in NAMES:
        close = get_close_matches(name, NAMES, n=1)
        hint = f"Did you mean {close[0]}? " if close else ""
        raise UsageError(
            f"{name!r} is unknown.", flag="--control", remedy=f"{hint}Choose from {', '.join(NAMES)}."
        )


def _flag(control: str | None) -> str | None:
    return f"--control {control}" if control else None


def _verdicts(name: str, found: list[Finding]) -> RenderableType:
    columns = [left("test", whole=True), left("verdict", whole=True), left("found"), left("a pass excludes")]
    ok, failed = Styled("ok", "green"), Styled("FAILED", "bold red")
    rows: list[list[Cell]] = [
        [finding.test, ok if finding.passed else failed, finding.found, Styled(finding.bounds, "dim")]
        for finding in found
    ]
    return _titled(f"Is SpS lossless? ({name})", Table(columns, rows).as_rich())


def _matrix(name: str, matrix: dict[str, dict[str, bool]]) -> RenderableType:
    """Marks fit on a screen of 80 characters where words would be cut."""
    tests = [test for test in TESTS if any(test in row for row in matrix.values())]
    rows = [[control, *("x" if row.get(test) else "-" for test in tests)] for control, row in matrix.items()]
    table = Table([left("planted", whole=True), *map(left, tests)], rows)
    return _titled(f"Controls ({name}): x where a test caught what was planted", table.as_rich(gap=1))


def _titled(title: str, table: RenderableType) -> RenderableType:
    return Group(Text(title, style="italic"), table)
