"""``spsbench verify``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from spsbench.base import EAGER, Arm, GateFailed, UsageError, label, of_part, require_alone, started, unknown
from spsbench.cli import CHECKING, Common, asks, option, option_of, options, out, print_json, say

if TYPE_CHECKING:
    from spsbench.base import Message
    from spsbench.config import RunConfig
    from spsbench.decode import TextDecoder
    from spsbench.parts.verify.effort import Effort, Finding
    from spsbench.parts.verify.subject import SamplerUnderTest
    from spsbench.report import Cell


TESTED = "What to test"

ALL = "all"
"""With ``--control``: every fault."""


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(Common):
    task: str | None
    pair: str | None
    target: str | None
    draft: str | None
    data: str | None
    k: str | None = option(
        "--k LIST", "Lookahead K, from 1: 4, 2,4 or 1..7; adaptive leaves it to a policy. Default: 4."
    )
    drafter: str | None
    rule: str | None
    policy: str | None
    control: str | None = option(
        "--control NAME",
        "Inject one known fault, which the tests must find; or all, one after another, with the test "
        "that found each.",
        TESTED,
    )
    effort: str | None = option(
        "--effort full|reduced",
        "How many samples are drawn. Default: full; with --control all reduced.",
        TESTED,
    )
    engine: str | None = option(
        "--engine NAME",
        'Test instead whether an external engine follows the protocol, e.g. worker:"python my_engine.py".',
        TESTED,
        names="external engines",
    )
    sampling: str | None = option_of(options.PresetOptions, "sampling")
    temperature: str | None
    top_p: str | None
    top_k: str | None
    chat_template: str | None
    template_arg: list[str] | None
    seed: str | None
    device: str | None
    dtype: str | None
    process: list[str] | None
    threads: str | None
    backend: str | None
    tensor_parallel: str | None


@asks(VerifyOptions, needed="rule control effort")
def verify(wanted: VerifyOptions) -> None:
    """Test whether SpS, with any drafter and rule, keeps the target's distribution.

    Example: spsbench verify --effort reduced --sampling nucleus
    """
    if wanted.tensor_parallel is None:
        require_alone(
            "test", remedy=f"Add --tensor-parallel {started()}, or start spsbench without torchrun."
        )
    if wanted.engine is not None:
        of_part("audit.command:verify_engine")(wanted, wanted.engine)
    else:
        verify_here(wanted)


def verify_here(wanted: VerifyOptions) -> None:
    """Test a sampler or the planted ones, over as many processes as the target is split over."""
    from spsbench.cli import among_processes, require_material, require_possible
    from spsbench.parts.verify.effort import EFFORTS, FAULTS

    control = wanted.control
    each_in_turn = wanted.control == ALL
    name = wanted.effort or ("reduced" if each_in_turn else "full")
    if control is not None and control not in (*FAULTS, ALL):
        raise unknown(control, (*FAULTS, ALL), "--control")
    if name not in EFFORTS:
        raise UsageError(f"{name} is unknown.", flag="--effort", remedy="Choose full or reduced.")
    work = verify_controls if each_in_turn else verify_sampler
    if each_in_turn:
        wanted = replace(wanted, control=None)
    config = _settings(wanted, EFFORTS[name])
    task, _ = require_possible(config)
    require_material(config, task)
    if wanted.tensor_parallel is None:
        work(wanted, EFFORTS[name])
    else:
        with among_processes(config) as leads:
            if leads:
                work(wanted, EFFORTS[name])


@dataclass(frozen=True, slots=True)
class _Tested:
    """One way of drafting, accepting and sampling, what it is tested on, and what every test found of it.

    The name distinguishes it from the others.
    """

    name: str
    arm: Arm
    subject: SamplerUnderTest
    decoder: TextDecoder
    prompts: list[tuple[int, ...]]
    found: list[Finding] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The tested sampler's name, marked if it is lossy."""
        return label(self.arm.axes() | {"arm": self.arm.name, "lossless": self.subject.is_lossless})


def verify_sampler(wanted: VerifyOptions, effort: Effort) -> None:
    """Test one sampler, real or planted, under each sampling that was asked for."""
    from spsbench.parts.verify.verification import findings

    quiet = wanted.quiet
    results = list[_Tested]()
    for tested in _subjects(wanted, effort):
        for finding in findings(tested.subject, tested.prompts, tested.decoder, effort):
            say(f"  {finding.test}: {finding.verdict}", quiet=quiet)
            tested.found.append(finding)
        results.append(tested)
    failed = [(f, tested.name) for tested in results for f in tested.found if not f.passed]
    if wanted.json:
        axes = {
            result.name: result.arm.axes() | {"lossless": result.subject.is_lossless} for result in results
        }
        findings_of = {each.name: [finding.record() for finding in each.found] for each in results}
        print_json({"control": wanted.control, "passed": not failed, "arms": axes, "findings": findings_of})
    elif not quiet:
        for tested in results:
            out().print(_verdicts(tested))
    if failed:  # a drafter's fault in its own words, and the first option that made the sampler another one
        faults = [f.fault for f, _ in failed if f.fault]
        caught = ", ".join(f"{f.test} ({name})" for f, name in failed)
        why = f"the drafter broke its contract: {faults[0]};" if faults else "the sampler is wrong:"
        changed = {
            "--control": wanted.control,
            "--drafter": wanted.drafter,
            "--rule": wanted.rule,
            "--policy": wanted.policy,
        }
        typed = (f"{flag} {text}" for flag, text in changed.items() if text)
        raise GateFailed(f"{why} caught by {caught}.", flag=next(typed, None))
    for sentence in _conclusions(results):
        say(str(sentence), quiet=quiet)


def _conclusions(results: Sequence[_Tested]) -> Iterator[Message | str]:
    """What may be concluded where nothing failed; the leakage is by the re-score of whole outputs."""
    from spsbench.parts.verify.effort import LOSSY
    from spsbench.parts.verify.messages import NO_DIFFERENCE, LossyLeakage

    if any(tested.subject.is_lossless for tested in results):
        yield NO_DIFFERENCE
    for tested in results:
        if not tested.subject.is_lossless:
            numbers = next(finding.numbers for finding in tested.found if finding.test == "outputs")
            yield LossyLeakage(tested.label, tested.arm.sampling_name, LOSSY, numbers)


def verify_controls(wanted: VerifyOptions, effort: Effort) -> None:
    """Plant every control in turn and print which test caught it."""
    from spsbench.parts.verify.verification import control_matrix

    matrices: dict[str, dict[str, dict[str, bool]]] = {}
    quiet = wanted.quiet

    def report(control: str, findings: list[Finding]) -> None:
        caught = ", ".join(f.test for f in findings if not f.passed) or "NOTHING"
        say(f"  {control}: caught by {caught}", quiet=quiet)

    for tested in _subjects(wanted, effort, drawn=True):
        matrices[tested.name] = control_matrix(tested.subject, tested.prompts, tested.decoder, effort, report)
    missed = [
        f"{c} ({name})" for name, m in matrices.items() for c, row in m.items() if not any(row.values())
    ]
    if wanted.json:
        print_json({"passed": not missed, "matrix": matrices})
    elif not quiet:
        for name, matrix in matrices.items():
            out().print(_control_table(name, matrix))
    if missed:
        raise GateFailed(f"not caught: {', '.join(missed)}.", flag="--control")


def _subjects(wanted: VerifyOptions, effort: Effort, *, drawn: bool = False) -> Iterator[_Tested]:
    """Each sampling and way of drafting to test, with the pair loaded once; with ``drawn`` only samplings
    that leave something to chance."""
    from spsbench.decode import bound
    from spsbench.drafters import states_read
    from spsbench.models import title
    from spsbench.parts.verify.subject import SamplerUnderTest
    from spsbench.runner import load, plan

    config = _settings(replace(wanted, quiet=True), effort)  # how a file is read has been said
    say(CHECKING, quiet=wanted.quiet)
    ready = plan(config, scores=False)
    arms = [arm for arm in ready.arms if arm.method == "sps" and not (drawn and arm.sampling.greedy)]
    if not arms:
        why = "greedily nothing is drawn, so that most faults change nothing."
        raise UsageError(why, flag="--sampling", remedy="Name another one, e.g. nucleus.")
    pair = load(ready)
    prompts = [prompt.ids for prompt in ready.prompts]
    alone = len({arm.sampling_name for arm in arms}) == len(arms)
    for arm in arms:
        states = states_read([arm.drafter], pair.target.layers)
        subject = SamplerUnderTest(
            pair.target.with_features("--drafter", states) if states else pair.target,
            pair.draft,
            bound(arm.sampling, ready.tokenizer),
            arm.k,
            pair.device,
            control=wanted.control,
            seed=config.seed,
            drafter=arm.drafter,
            rule=arm.rule,
            policy=arm.policy,
            corpus=tuple(prompts),
        )
        name = arm.sampling_name if alone else arm.name
        tested = _Tested(name, arm, subject, ready.tokenizer, prompts)
        # Not by graphs: faults are planted into the loops, and a run proves what its own graphs decided.
        where = "" if (place := title(pair.device)) is None else f", on {place}"
        where += f", engine {EAGER}" if pair.device.type == "cuda" else ""
        say(f"Testing {tested.label}, {arm.sampling_name}{where}", quiet=wanted.quiet)
        yield tested


def _settings(wanted: VerifyOptions, effort: Effort) -> RunConfig:
    """Both samplings by default, on as many prompts as the tests read."""
    from spsbench.cli import RunOptions, among, read_settings
    from spsbench.engines import refuse_beams

    sampling = "nucleus,greedy" if wanted.sampling is None else wanted.sampling
    config = read_settings(among(RunOptions, wanted, sampling=sampling))
    refuse_beams(config, "verify")
    if not any(config.ks):
        why = "it needs at least one value above 0, got 0."
        raise UsageError(why, flag="--k", remedy="For example: --k 4.")
    return config.model_copy(update={"limit": effort.needed})


def _verdicts(tested: _Tested) -> RenderableType:
    from spsbench.parts.verify.effort import LOSSY
    from spsbench.parts.verify.subject import PAPERS
    from spsbench.report import Styled, Table, left

    styles = {"ok": "green", "FAILED": "bold red"}
    columns = [left("test", whole=True), left("verdict", whole=True), left("found"), left("a pass excludes")]
    rows: list[list[Cell]] = [
        [f.test, Styled(f.verdict, styles.get(f.verdict, "yellow")), f.found, Styled(str(f.bounds), "dim")]
        for f in tested.found
    ]
    arm = tested.arm
    who = "SpS" if (arm.drafter, arm.rule, arm.policy) == PAPERS else tested.label
    question = f"Is {who} lossless?" if tested.subject.is_lossless else f"{who} is {LOSSY}"
    return Group(Text(f"{question} ({arm.sampling_name})", style="italic"), Table(columns, rows).as_rich())


_HYPHENATED = {
    "enumeration": "enume-\nration",
    "uniforms": "uni-\nforms",
    "analytic": "ana-\nlytic",
    "sampling": "samp-\nling",
    "end to end": "end\nto end",
    "outputs": "out-\nputs",
    "decisions": "deci-\nsions",
}


def _control_table(name: str, matrix: dict[str, dict[str, bool]]) -> RenderableType:
    """With marks that fit on 80 columns."""
    from spsbench.parts.verify.messages import ControlMatrix
    from spsbench.parts.verify.verification import TESTS
    from spsbench.report import Table, left

    tests = [test for test in TESTS if any(test in row for row in matrix.values())]
    rows = [[control, *("x" if row.get(test) else "-" for test in tests)] for control, row in matrix.items()]
    table = Table([left("planted", whole=True), *(left(_HYPHENATED.get(test, test)) for test in tests)], rows)
    return Group(Text(str(ControlMatrix(name)), style="italic"), table.as_rich(gap=1))
