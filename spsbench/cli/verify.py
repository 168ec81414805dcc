"""``spsbench verify``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from spsbench.axes import label
from spsbench.cli.console import out, print_json, say
from spsbench.cli.options import takes
from spsbench.cluster import require_alone, started
from spsbench.errors import GateFailed, UsageError
from spsbench.plugins import unknown
from spsbench.records import Arm

if TYPE_CHECKING:
    from spsbench.config import RunConfig
    from spsbench.decode.stopping import TextDecoder
    from spsbench.report.tables import Cell
    from spsbench.verify.effort import Effort, Finding
    from spsbench.verify.subject import SamplerUnderTest


TESTED = "What to test"


@takes(
    "task pair target draft revision draft_revision data prompts k drafter rule policy control controls "
    "effort engine sampling temperature top_p top_k chat_template seed device dtype quantise "
    "draft_quantise threads backend tensor_parallel",
    {
        TESTED: {
            "--control NAME": "Inject one known fault; the tests must fail.",
            "--controls": "Inject every known fault and print which test caught it.",
            "--effort full|reduced": "How many samples are drawn. Default: full; with --controls reduced.",
            "--engine NAME": (
                'Test instead whether an external engine follows the protocol, e.g. worker:"python '
                'my_engine.py".'
            ),
        }
    },
)
def verify(**params: Any) -> None:
    """Test whether SpS, with any drafter and rule, keeps the target's distribution.

    Example: spsbench verify --effort reduced --sampling nucleus
    """
    if params["tensor_parallel"] is None:
        require_alone("test", f"Add --tensor-parallel {started()}, or start spsbench without torchrun.")
    if params["engine"] is not None:
        from spsbench.cli.audit_engine import verify_engine

        verify_engine(params)
    else:
        verify_here(params)


def verify_here(params: Mapping[str, Any]) -> None:
    """Test a sampler or the planted ones, over as many processes as the target is split over."""
    from spsbench.cli.run import among_processes, require_possible

    work, effort = (verify_controls, "reduced") if params["controls"] else (verify_sampler, "full")
    _known_control(params["control"])
    config = _settings(params, _effort(params, effort))
    require_possible(config)
    if params["tensor_parallel"] is None:
        work(params)
    else:
        among_processes(config, lambda: work(params))


_NOT_OFFERED = {
    **dict.fromkeys(("out", "resume", "config", "fail_on", "set", "protocol", "samples", "arms")),
    **dict.fromkeys(("max_new_tokens", "engine", "trace")),
    **dict.fromkeys(("fixed_length", "unsafe_exec", "json", "debug"), False),
    "no_score": True,
}


def verify_sampler(params: Mapping[str, Any]) -> None:
    """Test one sampler, real or planted, under each sampling that was asked for."""
    from spsbench.verify.verification import findings

    effort, quiet = _effort(params, "full"), params["quiet"]
    results: dict[str, _Result] = {}
    for tested in _subjects(params, effort):
        found: list[Finding] = []
        for finding in findings(tested.subject, tested.prompts, tested.decoder, effort):
            say(f"  {finding.test}: {finding.verdict}", quiet=quiet)
            found.append(finding)
        results[tested.name] = _Result(tested.arm, found)
    if params["json"]:
        print_json(_as_json(params["control"], results))
    elif not quiet:
        for result in results.values():
            out().print(_verdicts(result))
    _judge(params, results)
    for sentence in _closing(results):
        say(sentence, quiet=quiet)


@dataclass(frozen=True, slots=True)
class _Result:
    """One way of drafting, accepting and sampling, and what every test found of it."""

    arm: Arm
    found: list[Finding]

    @property
    def is_lossless(self) -> bool:
        """Whether its rule is said to keep the target's law."""
        from spsbench.drafters.registry import rule_kind

        return rule_kind(self.arm.rule.name).lossless

    @property
    def label(self) -> str:
        """As people say it, with what is lossy called so."""
        return label(self.arm.axes() | {"arm": self.arm.name, "lossless": self.is_lossless})


def _as_json(control: str | None, results: Mapping[str, _Result]) -> dict[str, Any]:
    return {
        "control": control,
        "passed": all(f.passed for result in results.values() for f in result.found),
        "arms": {
            name: result.arm.axes() | {"lossless": result.is_lossless} for name, result in results.items()
        },
        "findings": {
            name: [asdict(f) | {"verdict": f.verdict} for f in result.found]
            for name, result in results.items()
        },
    }


def _judge(params: Mapping[str, Any], results: Mapping[str, _Result]) -> None:
    """Raise ``GateFailed`` for every test that failed, with a drafter's fault in its own words."""
    failed = [(f, name) for name, result in results.items() for f in result.found if not f.passed]
    if not failed:
        return
    faults = list(dict.fromkeys(f.fault for f, _ in failed if f.fault))
    caught = ", ".join(f"{f.test} ({name})" for f, name in failed)
    what = f"the drafter broke its contract: {faults[0]};" if faults else "the sampler is wrong:"
    raise GateFailed(f"{what} caught by {caught}.", flag=_flag(params))


def _closing(results: Mapping[str, _Result]) -> Iterator[str]:
    """What may be said where nothing failed."""
    from spsbench.verify.effort import LOSSY

    if any(result.is_lossless for result in results.values()):
        yield "No test found a difference from the target's distribution."
    for result in results.values():
        if not result.is_lossless:
            yield f"{result.label}, {result.arm.sampling_name}: {LOSSY}, {_leakage(result)}."


def verify_controls(params: Mapping[str, Any]) -> None:
    """Plant every control in turn and print which test caught it."""
    from spsbench.verify.verification import control_matrix

    effort = _effort(params, "reduced")
    matrices: dict[str, dict[str, dict[str, bool]]] = {}
    quiet: bool = params["quiet"]

    def told(control: str, found: list[Finding]) -> None:
        caught = ", ".join(f.test for f in found if not f.passed) or "NOTHING"
        say(f"  {control}: caught by {caught}", quiet=quiet)

    for tested in _subjects(params, effort):
        if not tested.subject.sampling.greedy:  # most controls are right when nothing is left to chance
            matrices[tested.name] = control_matrix(
                tested.subject, tested.prompts, tested.decoder, effort, told
            )
    missed = [
        f"{c} ({name})" for name, m in matrices.items() for c, row in m.items() if not any(row.values())
    ]
    if params["json"]:
        print_json({"passed": not missed, "matrix": matrices})
    elif not quiet:
        for name, matrix in matrices.items():
            out().print(_matrix(name, matrix))
    if missed:
        raise GateFailed(f"not caught: {', '.join(missed)}.", flag="--controls")


@dataclass(frozen=True, slots=True)
class _Tested:
    """What is tested, with what it is tested on; the name tells it from the others."""

    name: str
    arm: Arm
    subject: SamplerUnderTest
    decoder: TextDecoder
    prompts: list[tuple[int, ...]]


def _subjects(params: Mapping[str, Any], effort: Effort) -> Iterator[_Tested]:
    """Each sampling and way of drafting to test, with the pair loaded once."""
    from spsbench.drafters.registry import HIDDEN, drafter_kind
    from spsbench.runner import plan
    from spsbench.runner.execute import load
    from spsbench.verify.subject import SamplerUnderTest

    config = _settings({**params, "quiet": True}, effort)  # how a file is read has been said
    say("Checking task, data and models", quiet=params["quiet"])
    ready = plan(config)
    pair = load(ready)
    prompts = [prompt.ids for prompt in ready.prompts]
    arms = [arm for arm in ready.arms if arm.method == "sps"]
    alone = len({arm.sampling_name for arm in arms}) == len(arms)
    for arm in arms:
        reads_states = HIDDEN in drafter_kind(arm.drafter.name).needs_of(arm.drafter)
        say(f"Testing {_Result(arm, []).label}, {arm.sampling_name}", quiet=params["quiet"])
        subject = SamplerUnderTest(
            pair.target.with_features("--drafter") if reads_states else pair.target,
            pair.draft,
            arm.sampling,
            arm.k,
            pair.device,
            params["control"],
            config.seed,
            arm.drafter,
            arm.rule,
            arm.policy,
            tuple(prompts),
        )
        name = arm.sampling_name if alone else arm.name
        yield _Tested(name, arm, subject, ready.source.tokenizer, prompts)


def _settings(params: Mapping[str, Any], effort: Effort) -> RunConfig:
    """The run's settings, with as many prompts as the tests read, and both samplings by default."""
    from spsbench.arms.choice import refuse_beams
    from spsbench.cli.run import read_settings

    own = {"control", "controls", "effort", "json", "debug"}
    asked = {name: value for name, value in params.items() if name not in own}
    asked["limit"] = str(effort.needed)
    if asked["sampling"] is None:
        asked["sampling"] = "nucleus,greedy"
    config = read_settings(_NOT_OFFERED | asked)
    refuse_beams(config, "verify")
    return config


def _effort(params: Mapping[str, Any], default: str) -> Effort:
    from spsbench.verify.effort import EFFORTS

    name = params["effort"] or default
    if name not in EFFORTS:
        raise UsageError(f"{name} is unknown.", flag="--effort", remedy="Choose full or reduced.")
    return EFFORTS[name]


def _leakage(result: _Result) -> str:
    """How much of the draft model came through, by the re-score of whole outputs."""
    numbers: Mapping[str, Any] = next(f.numbers for f in result.found if f.test == "outputs")
    if "leakage" not in numbers:
        return "but nothing was left to chance"
    return f"leakage {numbers['leakage']:.1%}, at most {numbers['leakage_bound']:.1%} (95%)"


def _known_control(name: str | None) -> None:
    from spsbench.verify.effort import FAULTS

    if name is not None and name not in FAULTS:
        raise unknown(name, FAULTS, "--control")


def _flag(params: Mapping[str, Any]) -> str | None:
    """The first option that made the sampler another one than the paper's."""
    named = (name for name in ("control", "drafter", "rule", "policy") if params[name])
    return next((f"--{name} {params[name]}" for name in named), None)


def _verdicts(result: _Result) -> RenderableType:
    from spsbench.report.tables import Styled, Table, left

    columns = [left("test", whole=True), left("verdict", whole=True), left("found"), left("a pass excludes")]
    rows: list[list[Cell]] = [
        [
            finding.test,
            Styled(finding.verdict, _STYLES.get(finding.verdict, "yellow")),
            finding.found,
            Styled(finding.bounds, "dim"),
        ]
        for finding in result.found
    ]
    return _titled(_title(result), Table(columns, rows).as_rich())


_STYLES = {"ok": "green", "FAILED": "bold red"}


def _title(result: _Result) -> str:
    from spsbench.verify.effort import LOSSY
    from spsbench.verify.subject import PAPERS

    arm = result.arm
    who = "SpS" if (arm.drafter, arm.rule, arm.policy) == PAPERS else result.label
    asked = f"Is {who} lossless?" if result.is_lossless else f"{who} is {LOSSY}"
    return f"{asked} ({arm.sampling_name})"


def _matrix(name: str, matrix: dict[str, dict[str, bool]]) -> RenderableType:
    """Marks fit on a screen of 80 characters where words would be cut."""
    from spsbench.report.tables import Table, left
    from spsbench.verify.verification import TESTS

    tests = [test for test in TESTS if any(test in row for row in matrix.values())]
    rows = [[control, *("x" if row.get(test) else "-" for test in tests)] for control, row in matrix.items()]
    table = Table([left("planted", whole=True), *map(left, tests)], rows)
    return _titled(f"Controls ({name}): x where a test caught what was planted", table.as_rich(gap=1))


def _titled(title: str, table: RenderableType) -> RenderableType:
    return Group(Text(title, style="italic"), table)
