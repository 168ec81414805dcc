"""``spsbench advise``: a choice, judged on other prompts and run."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console
from support.commandline import BRIEF, Cli, call

from spsbench.base.paths import mini_dir
from spsbench.base.records import Interval, Spec
from spsbench.parts.whatif.commands import advise
from spsbench.parts.whatif.commands.screen import advice_screen
from spsbench.parts.whatif.replay.advice import Advice, Candidate, Check, Readings
from spsbench.parts.whatif.replay.advice import advised as use_of
from spsbench.parts.whatif.replay.steps import Part, Round, StepTimes

if TYPE_CHECKING:
    from spsbench.parts.whatif.replay.prediction import DrafterForecast

pytestmark = pytest.mark.usefixtures("quick_rehearsals")

ONE = ("--threads", "1", "--quiet")
SHORT = ("--limit", "8", "--max-new-tokens", "30", "--budget", "0.1")
MORE = ("--limit", "10", *SHORT[2:])
FEW = (*BRIEF, *SHORT, "--k", "2", "--drafter", "lookup,model")


@pytest.fixture(scope="module")
def advised(tmp_path_factory: pytest.TempPathFactory, quick_rehearsals: None) -> tuple[Path, Any]:
    """The folder of an advice that was run, not to be changed, and what was said."""
    folder = tmp_path_factory.mktemp("advised") / "advice"
    result = call("advise", "xsum", *FEW, *MORE, *ONE, "--json", "--out", folder)
    assert result.code == 0, result.err
    return folder, json.loads(result.out)


def test_a_choice_is_judged_elsewhere_and_run(cli: Cli, advised: tuple[Path, Any]) -> None:
    folder, facts = advised
    assert facts["chosen_on"] == facts["judged_on"] == 4, "the budget was over, and two prompts not needed"
    every = [facts["advised"], *facts["others"]]
    assert sorted(str(each["drafter"]) for each in every) == ["None", "lookup", "model"]
    assert (facts["live"] is None) == (facts["advised"]["drafter"] is None)
    ran = {check["drafter"]: check["live"] for check in facts["checked"]}
    assert {*ran} in ({"lookup", "model"}, set()), "the two best, or none where ArS is predicted to be faster"
    if facts["live"] is not None:
        assert facts["live"]["ratio"] == max(live["ratio"] for live in ran.values()) > 1
    for part, share in (("", 0.5), ("check-*/", 0.2)):
        for path in folder.glob(f"{part}config.yaml"):
            assert yaml.safe_load(path.read_text())["until"] == f"{share * 0.1}s"
    # What was written for the advice is a run like any other.
    again = cli("replay", folder, "--k", "2", "--budget", "0", "--threads", "1")
    assert again.code == 0, again.err


def test_a_variable_of_the_template_is_that_of_the_texts_and_of_what_is_advised() -> None:
    nothing: dict[str, Any] = {field.name: None for field in fields(advise.AdviseOptions)}
    wanted = advise.AdviseOptions(**nothing | {"task": "xsum", "template_arg": ["thinking=false", "depth=2"]})
    assert advise._ars_alone(wanted).template_args == {"thinking": False, "depth": 2}
    found = SimpleNamespace(draft="", drafter="model", rule="block", k=4)
    use = SimpleNamespace(candidate=SimpleNamespace(forecast=found))
    words = str(advise._command(wanted, torch.device("cpu"), cast(Any, use)))
    assert "--template-arg thinking=false --template-arg depth=2" in words


@pytest.mark.thorough
def test_every_draft_is_weighed_and_the_chosen_one_run(cli: Cli, tmp_path: Path) -> None:
    """Which one is chosen is a matter of times; that a slow draft loses is shown in test_advice.py."""
    asked = ("--draft", mini_dir() / "target", "--draft", mini_dir() / "draft", "--drafter", "model")
    few = ("--target", mini_dir() / "target", *SHORT, "--k", "4", *BRIEF)
    result = cli("advise", "xsum", *asked, *few, *ONE, "--json", "--out", tmp_path / "advice")
    assert result.code == 0, result.err
    facts = json.loads(result.out)
    weighed = {each["draft"] for each in (facts["advised"], *facts["others"])}
    assert weighed == {None, str(mini_dir() / "draft"), str(mini_dir() / "target")}
    if facts["advised"]["draft"] is not None:
        runs = [json.loads(path.read_text()) for path in (tmp_path / "advice").glob("check-*/run.json")]
        names = {told["identity"]["pair"]["draft"]["name"] for told in runs}
        assert facts["advised"]["draft"] in names <= {str(mini_dir() / "draft"), str(mini_dir() / "target")}


@pytest.mark.thorough
def test_what_was_read_and_timed_is_kept_and_each_row_is_read_once(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C within the fifth text, after its first drafter, and again within the second round of times."""
    from spsbench.parts.whatif.replay import advice
    from spsbench.parts.whatif.replay import reading as readers

    read: Counter[tuple[str, tuple[int, ...]]] = Counter()
    ends, rounds, forced, time_round = [10], [3], readers.forced_drafts, advice.time_round

    def reading(drafter: Any, text: Any, k: int, name: str) -> Any:
        if read.total() + 1 in ends:
            ends.clear()
            raise KeyboardInterrupt
        read[name, tuple(text.prompt)] += 1
        return forced(drafter, text, k, name)

    def timing(*arguments: Any) -> Any:
        rounds.append(rounds.pop() - 1)
        if rounds == [0]:
            raise KeyboardInterrupt
        return time_round(*arguments)

    monkeypatch.setattr(readers, "forced_drafts", reading)
    monkeypatch.setattr(advice, "time_round", timing)
    asked = (*BRIEF, "--k", "2", "--drafter", "lookup,model,union:of=lookup+model", "--no-check", "--json")
    command = ("advise", "xsum", *SHORT, *asked, *ONE, "--out", tmp_path / "advice")
    journal = tmp_path / "advice/advice.jsonl"
    for kept in (9, 2 * 8 + 1):
        result = cli(*command)
        assert result.code == 130
        assert result.err.splitlines()[-1].split()[:2] == ["spsbench", "advise"]
        assert len(journal.read_text().splitlines()) == kept
    result = cli(*command)
    assert result.code == 0, result.err
    assert len(read) == 2 * 8
    assert {*read.values()} == {1}
    assert len(journal.read_text().splitlines()) == 2 * 8 + 2
    assert json.loads(result.out)["checked"] == []


def test_an_arm_with_an_alarm_is_never_advised_nor_one_that_did_not_gain() -> None:
    nothing: Any = {"speedup": None, "slower": None, "p99_s": 1.0, "bytes": 1}
    best, other = (Candidate(cast("DrafterForecast", name), **nothing) for name in ("best", "other"))
    advice = Advice(best, (Candidate(None, **nothing), other), (), (), (), None, ())

    def use(*checks: tuple[float, bool]) -> Any:
        lives: list[Any] = [{"ratio": ratio, "low": None, "high": None} for ratio, _ in checks]
        own = zip((best, other), lives, checks, strict=False)
        return use_of(advice, [Check(who, live, alarm) for who, live, (_, alarm) in own]).candidate.forecast

    assert use() == use((1.5, False), (1.4, False)) == "best"
    assert use((1.4, False), (1.5, False)) == use((1.9, True), (1.1, False)) == "other"
    assert use((1.9, True), (1.8, True)) is use((0.9, False), (0.8, False)) is None


@pytest.mark.parametrize(
    ("predicted", "live", "first"),
    [
        ((1.4, 1.2, 1.6), None, "Use lookup, K=3: 1.40x [1.20, 1.60] per token predicted."),
        ((1.4, 0.2, 9.0), {"ratio": 1.5, "low": 1.1, "high": 1.9}, "Use lookup, K=3: 1.40x [0.20, 9.00]"),
        ((1.4, 0.2, 9.0), None, "No clear gain: lookup, K=3, the fastest, 1.40x [0.20, 9.00] per token"),
        ((1.4, None, None), {"ratio": 1.5, "low": 0.9, "high": 1.9}, "No clear gain: lookup, K=3, "),
    ],
)
def test_what_may_not_gain_is_not_to_be_used(
    predicted: tuple[float, float | None, float | None], live: Any, first: str
) -> None:
    found: Any = SimpleNamespace(label="lookup", k=3, tree=False, timed=None)
    best = Candidate(found, Interval(*predicted), Interval(1.0, 1.0, 1.0), 1.0, 1)
    ars = Candidate(None, Interval(1.0, None, None), Interval(1.4, None, None), 1.0, 1)
    use = Check(best, live, alarm=False)
    advice = Advice(best, (ars,), (), ("a",), ("b",), None, ())
    checks = [] if live is None else [use]
    file = io.StringIO()
    Console(file=file, width=200).print(advice_screen("xsum", "nucleus", advice, checks, use, None))
    assert file.getvalue().splitlines()[2].startswith(first)


def test_what_makes_times_doubtful_stands_before_what_follows_from_them() -> None:
    found: Any = SimpleNamespace(label="lookup", k=3, tree=False, timed=None)
    best = Candidate(found, Interval(1.4, 0.2, 9.0), Interval(1.0, 1.0, 1.0), 1.0, 1)
    ars = Candidate(None, Interval(1.0, None, None), Interval(1.4, None, None), 1.0, 1)
    live: Any = {"ratio": 1.5, "low": 0.9, "high": 1.9}
    use = Check(best, live, alarm=False, untrusted="UNDECIDED: CPU contention took 75%.")
    advice = Advice(
        best, (ars,), (), ("a",), ("b",), None, (), untrusted="UNDECIDED: CPU contention took 31%."
    )
    file = io.StringIO()
    Console(file=file, width=200).print(advice_screen("xsum", "nucleus", advice, [use], use, None))
    begin = [line.split(" CPU contention took ")[-1][:10] for line in file.getvalue().splitlines()[2:6]]
    assert begin == ["31%.", "No clear g", "75%.", "Measured l"]


def test_an_engine_that_keeps_states_is_told_of_where_tokens_are_read_again() -> None:
    def screen(again: float | None) -> str:
        timed = SimpleNamespace(mean_s=lambda: 0.1)
        found: Any = SimpleNamespace(
            label="lookup", name="lookup", k=3, tree=False, timed=timed, reading_again=again
        )
        best = Candidate(found, Interval(1.4, 1.2, 1.6), Interval(1.0, 1.0, 1.0), 1.0, 1)
        ars = Candidate(None, Interval(1.0, None, None), Interval(1.4, None, None), 1.0, 1)
        use = Check(best, None, alarm=False)
        advice = Advice(best, (ars,), (), ("a",), ("b",), None, ())
        file = io.StringIO()
        Console(file=file, width=200).print(advice_screen("xsum", "nucleus", advice, [], use, None))
        return file.getvalue()

    assert "keeps its states would take 20% less time a token: lookup, K=3." in screen(0.2)
    assert "keeps its states" not in screen(None)


def test_times_that_are_not_to_be_trusted_agree_with_no_prediction() -> None:
    wide = Interval(1.4, 0.2, 9.0)
    candidate, live = Candidate(None, wide, wide, 1.0, 1), {"ratio": 1.8, "low": 0.4, "high": 9.0}
    check: Any = {"candidate": candidate, "live": live, "alarm": False}
    assert Check(**check).within is True
    assert Check(**check, untrusted="Disturbed: CPU contention took 75%.").within is None


def test_a_loops_time_is_that_of_its_parts() -> None:
    """A union that copies 2 tokens in a quarter of its loops, and has the head draft 3 in the others."""
    copy, head = (Part("", Spec(name)) for name in ("lookup", "heads"))
    rounds = [
        Round(9, [1.0, 1.1, 1.2, 1.3], {copy: [0.0, 0.0], head: [0.1, 0.5]}),
        Round(11, [2.0, 2.2, 2.4, 2.6], {copy: [0.0, 0.0], head: [0.2, 1.0]}),
    ]
    steps = StepTimes(rounds, (1, 5))
    shares = np.zeros((2, 4))
    shares[0, 2], shares[1, 3] = 0.25, 0.75
    found = steps.of_chain([copy, head], shares, 3)
    assert found.seconds == pytest.approx([0.25 * 1.2 + 0.75 * (1.3 + 0.3), 0.25 * 2.4 + 0.75 * (2.6 + 0.6)])
    assert found.drafting == pytest.approx([0.75 * 0.3, 0.75 * 0.6])
    assert found.drafted == pytest.approx([2.75, 2.75])
    assert steps.ars().seconds == pytest.approx([1.0, 2.0])
    assert found.costs.at_zero[0, 0] == pytest.approx(found.seconds.mean())
    assert found.costs.slope[0, 0] == 0.0


@pytest.mark.thorough
def test_what_does_not_fit_into_the_memory_is_left_out(
    cli: Cli, tmp_path: Path, advised: tuple[Path, Any]
) -> None:
    asked, (_, free) = (*FEW, *ONE, "--no-check", "--json"), advised
    sizes = {each["drafter"]: each["bytes"] for each in (free["advised"], *free["others"])}
    assert sizes[None] == sizes["lookup"] < sizes["model"]
    tight = (
        "--dtype",
        "float32",
        "--device",
        "cpu",
        "--choose",
        f"p99:memory={(sizes[None] + sizes['model']) / 2e6}MB",
    )
    found = json.loads(cli("advise", "xsum", *asked, *tight, "--out", tmp_path / "tight").out)
    assert free["too_large"] == []
    assert found["too_large"] == ["model"]
    assert {found["advised"]["drafter"], *(other["drafter"] for other in found["others"])} == {None, "lookup"}
    assert found["advised"]["p99_s"] > 0
    none = cli("advise", "xsum", *asked, "--choose", "mean:memory=1MB", "--out", tmp_path / "none")
    assert none.code == 2
    assert "the target alone needs" in " ".join(none.err.split())


@pytest.mark.thorough
def test_the_screen_fits_a_terminal_and_says_what_was_advised(cli: Cli, tmp_path: Path) -> None:
    result = cli("advise", "xsum", *FEW, *ONE[:-1], "--no-check", "--out", tmp_path / "advice")
    assert result.code == 0, result.err
    assert re.search("Use |No clear gain: |Does not pay here", result.out)
    assert "Run live" not in result.out
    assert max(map(len, result.out.splitlines())) <= 80


@pytest.mark.thorough
def test_a_prediction_from_disturbed_times_is_not_given_without_a_word(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "spsbench.parts.whatif.replay.advice.taken_since", lambda before: {"waited_s": 60.0, "stolen_s": 0.0}
    )
    asked = ("advise", "xsum", *FEW, *ONE[:-1], "--no-check", "--out", tmp_path / "advice")
    result = cli(*asked)
    assert result.code == 0, result.err
    shown = " ".join(result.out.split())
    taken = "UNDECIDED: contention took 100% of the time in which loops were timed"
    assert taken in shown
    again = cli(*asked, "--json")
    assert json.loads(again.out)["untrusted"].startswith(taken)


@pytest.mark.thorough
def test_a_proof_that_the_budget_does_not_pay_is_not_begun(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Readings, "text_s", 1000.0)
    result = cli("advise", "xsum", *FEW, "--threads", "1", "--out", tmp_path / "advice")
    assert result.code == 0, result.err
    assert "Not run: the proof of a prompt takes about" in result.err
    assert "of --budget are left" in result.err
    assert "live beside ArS" not in result.out


def test_what_earlier_prompts_decide_is_refused(cli: Cli, tmp_path: Path) -> None:
    result = cli(
        "advise", "xsum", *FEW, *ONE, "--drafter", "suffix:across=true", "--out", tmp_path / "advice"
    )
    assert result.code == 2
    assert "cannot be replayed" in result.err


def test_a_pair_in_16_bits_is_offered_what_its_backend_can_run(cli: Cli, tmp_path: Path) -> None:
    """Rounded weights are ONNX Runtime's; nobody named a drafter, and none is in the way."""
    asked = ("advise", "xsum", *BRIEF, *SHORT, "--k", "2", "--threads", "1", "--dtype", "bfloat16")
    result = cli(*asked, "--no-check", "--out", tmp_path / "advice")
    assert result.code == 0, result.err
    assert re.search("Use |No clear gain: |Does not pay here", result.out)
    assert "quantised" not in result.out
    if "Does not pay here" not in result.out:
        command = " ".join(result.out.split("spsbench run ")[-1].split())
        assert command.startswith("xsum --")
        assert "--dtype bfloat16" in command
        assert "--k 2" in command


@pytest.mark.parametrize("command", ["advise", "run"])
def test_a_drafter_that_the_backend_cannot_run_is_refused_before_a_weight_is_loaded(
    cli: Cli, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any) -> Any:
        raise AssertionError("a weight was loaded")

    monkeypatch.setattr("spsbench.models.pair.load", never)
    result = cli(command, "xsum", *BRIEF, "--dtype", "bfloat16", "--drafter", "quantised:bits=4")
    assert result.code == 2
    assert (
        "--drafter: quantised:bits=4 rounds weights over onnxruntime; the target runs over torch"
        in result.err
    )


def test_the_command_keeps_a_zero_that_was_typed() -> None:
    """0 is a value of --top-k and --seed, and not a flag that was left out."""
    best = SimpleNamespace(forecast=SimpleNamespace(draft="", drafter=Spec("lookup"), rule="block", k=3))
    nothing: dict[str, Any] = {field.name: None for field in fields(advise.AdviseOptions)}
    wanted = advise.AdviseOptions(**nothing | {"task": "xsum", "top_k": "0", "seed": "0"})
    use = cast("Check", SimpleNamespace(candidate=best))
    words = str(advise._command(wanted, torch.device("cpu"), use)).split()
    assert words[-10:] == [
        "--top-k",
        "0",
        "--seed",
        "0",
        "--drafter",
        "lookup",
        "--rule",
        "block",
        "--k",
        "3",
    ]
    assert "--turns" not in words
    assert "--engine" not in words
    on_gpu = str(advise._command(wanted, torch.device("cuda"), use)).split()
    assert on_gpu == [*words, "--engine", "eager"], "what was timed: the usual engine there is another"
