"""The pytest plugin: green for a right engine, red for each planted fault, and never green by accident."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pandas  # noqa: F401 - a test of pytester forgets what it imports first
import pytest
import yaml
from support.fake_server import serving
from support.gated import AMONG_OTHERS, PROMPTS
from support.mini_server import MiniServer
from support.tiny_engine import Folders, in_process, saved_pair

from spsbench.base.protocol import Ask, Sampling
from spsbench.cli.main import main
from spsbench.parts.audit import engine_audit, repro  # noqa: F401 - the same
from spsbench.parts.audit.gate.audits import DEFAULTS, options_of
from spsbench.parts.audit.gate.inside import Inside, Wanted
from tests.project.test_floors import HEAVY

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[4]
PLUGIN = ("-p", "spsbench.parts.audit.gate.plugin", "-p", "no:cacheprovider", "--import-mode=importlib")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return saved_pair(tmp_path_factory.mktemp("pair"))


def ran(
    pytester: pytest.Pytester, folders: Folders, engine: str, arguments: tuple[str, ...] = (), **options: Any
) -> tuple[dict[str, int], str, str]:
    """Outcomes, what was printed, and the report, of one test that an engine's developer might write."""
    target, draft = map(str, folders)
    given = ", ".join(f"{name}={value!r}" for name, value in options.items())
    pytester.makepyfile(
        f"""
        from functools import partial
        import pytest
        from support.gated import FEW, Engine, function

        @pytest.mark.lossless(engine={engine}, **(FEW | dict(target={target!r}, draft={draft!r}, {given})))
        def test_lossless(lossless_engine):
            lossless_engine()
        """
    )
    done = pytester.runpytest_inprocess(*PLUGIN, "--lossless-report", "report.md", *arguments)
    outcomes = {name: count for name, count in done.parseoutcomes().items() if not name.startswith("warning")}
    return outcomes, done.stdout.str(), Path("report.md").read_text(encoding="utf-8")


def test_a_right_engine_is_green_and_its_bound_is_reported(
    pytester: pytest.Pytester, folders: Folders
) -> None:
    outcomes, screen, report = ran(pytester, folders, "Engine", in_flight=(1, 4), texts=20)
    assert outcomes == {"passed": 1}, screen
    for text in (screen, report):
        assert "K=2, T=1.5: no alarm after 20 texts; leakage above " in text
        assert "K=2, T=1.5: quiet alone and at 4 in flight." in text
    assert "## test_a_right_engine_is_green_and_its_bound_is_reported.py::test_lossless: passed" in report
    assert "| setting | texts |" in report


FAULTS = {
    "inverted-ratio": "not the target's distribution: K=2, T=1.5",
    "row-off-by-one": "not the target's distribution: K=2, T=1.5",
    "bonus-from-draft": "not the target's distribution: K=2, T=1.5",
    "stale-cache": "not the target's distribution: K=2, T=1.5",
    "leaked-prompt": "not the target's distribution: K=2, T=1.5",
    "reused-seed": "it reuses the random numbers of text 1 before",
    "drafts nothing": "A draft is loaded, and in",
    "accepts nothing": "No drafted token was accepted in",
    "counts too many": "more tokens are counted than the last loop can have",
}


@pytest.mark.thorough_but("inverted", "drafts", "reused")
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_red(
    fault: str, pytester: pytest.Pytester, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_audit, "TO_LOCATE", 1)
    # A rule that compares draws accepts next to nothing of hot rows, and no rule is taken on trust.
    cold = {"temperature": 0.3} if fault == "accepts nothing" else {}
    outcomes, screen, report = ran(pytester, folders, f"partial(Engine, fault={fault!r})", **cold)
    assert outcomes == {"failed": 1}
    for text in (FAULTS[fault], "prompt_ids [", "output_ids [", "seed "):
        assert text in screen
    if "not the target's distribution" in screen:
        assert "law that fits best: " in screen
    assert "again: pytest test_planted_faults_are_red.py::test_lossless --lossless-texts 40" in screen
    assert "::test_lossless: failed" in report


@pytest.mark.thorough
def test_texts_that_change_with_others_in_flight_are_red(
    pytester: pytest.Pytester, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_audit, "TO_LOCATE", 1)
    engine = f"partial(Engine, fault={AMONG_OTHERS!r})"
    outcomes, screen, _ = ran(pytester, folders, engine, in_flight="1,4", texts=200, bound=0.1)
    assert outcomes == {"failed": 1}
    assert "K=2, T=1.5: quiet alone, ALARM at 4 in flight." in screen


@pytest.mark.thorough
@pytest.mark.parametrize(("fault", "outcome"), [(None, "passed"), ("inverted-ratio", "failed")])
def test_a_function_of_ids_is_audited(
    fault: str | None, outcome: str, pytester: pytest.Pytester, folders: Folders
) -> None:
    outcomes, screen, _ = ran(pytester, folders, f"partial(function, fault={fault!r})")
    assert outcomes == {outcome: 1}
    assert "Not judged: logprobs (None were returned); counters (" in screen


def test_what_stays_open_is_red_and_the_command_line_has_the_last_word(
    pytester: pytest.Pytester, folders: Folders
) -> None:
    few = ("--lossless-texts", "3")
    outcomes, screen, _ = ran(pytester, folders, "Engine", few, bound="0.1%", texts=200)
    assert outcomes == {"failed": 1}
    assert "undecided: that less than 0.1% leaks could not be shown: K=2, T=1.5." in screen
    assert "no alarm after 3 texts" in screen


@pytest.mark.parametrize(
    ("engine", "options", "said"),
    [
        ("Engine", {"kay": 4}, "lossless: kay is unknown. Options are arms,"),
        ("Engine", {"repro": True}, "lossless: repro is unknown."),
        ("Engine", {"out": "here"}, "lossless: out is unknown."),  # texts of another version would be read
        ("None", {}, "lossless: no engine is given."),
        ("'worker:'", {}, "--engine: no command follows the colon."),
        ("'worker:true'", {"repro": True, "process": "min_p=0.1"}, "--process: min_p=0.1 is given together"),
        ("'worker:true'", {"process": "minp=0.1"}, "--process: the setting minp is unknown."),
        ("'worker:true'", {"k": 0}, "--k needs at least one value above 0"),
        ("'worker:false'", {}, "worker:false cannot be asked"),
    ],
)
def test_what_cannot_be_audited_is_red(
    engine: str, options: dict[str, Any], said: str, pytester: pytest.Pytester, folders: Folders
) -> None:
    outcomes, screen, report = ran(pytester, folders, engine, **options)
    assert outcomes == {"failed": 1}
    for text in (screen, report):
        assert "not audited: " in text
        assert said in text


def test_an_error_of_the_engine_is_the_tests(pytester: pytest.Pytester, folders: Folders) -> None:
    outcomes, screen, report = ran(pytester, folders, "lambda asked: lambda ids, how, seed: 1 / 0")
    assert outcomes == {"failed": 1}
    assert "ZeroDivisionError" in screen
    assert "No engine was audited." in report


def test_options_come_from_ini_marker_call_and_command_line(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nlossless_texts = 1\nlossless_seconds = 2\n")
    pytester.makepyfile(
        """
        import pytest
        import spsbench.parts.audit.gate.audits

        @pytest.mark.lossless("openai:http://one", k=3, texts=10)
        class TestIt:
            @pytest.mark.lossless(k=5)
            def test_it(self, lossless_engine, monkeypatch):
                seen = []
                def audited(*given):
                    seen.append(given)
                    return spsbench.parts.audit.gate.audits.GateResult("", "")
                monkeypatch.setattr("spsbench.parts.audit.gate.audits.audited", audited)
                lossless_engine()
                lossless_engine("openai:http://two", texts=20)
                (one, first, *_), (two, second, *_) = seen
                assert (one, two) == ("openai:http://one", "openai:http://two")
                assert (first["k"], first["texts"], first["seconds"]) == (5, 10, TYPED)
                assert second["texts"] == 20
        """.replace("TYPED", "'7'")
    )
    done = pytester.runpytest_inprocess(*PLUGIN, "--lossless-seconds", "7")
    done.assert_outcomes(passed=1)


def test_options_are_those_of_the_command() -> None:
    given = {"bound": 0.05, "k": (2, 4), "task": PROMPTS, "temperature": 0.0, "seconds": 9, "seed": None}
    options = options_of("worker:x", given)
    wanted = {
        "bound": "0.05",
        "k": "2,4",
        "task": str(PROMPTS),
        "temperature": "0.0",
        "budget": "9",
        "seed": None,
    }
    assert {name: getattr(options, name) for name in wanted} == wanted
    assert options.in_flight == DEFAULTS["in_flight"]


@pytest.mark.parametrize(
    ("sampling", "temperature"), [(Sampling(greedy=True), 0), (Sampling(temperature=0.7), 0.7)]
)
def test_a_function_is_asked_greedily_by_its_temperature(sampling: Sampling, temperature: float) -> None:
    """Of the three that most engines take: one that reads no flag would draw at 1."""
    heard = list[float]()

    def generate(prompt_ids: list[int], wanted: Wanted, seed: int | None) -> list[int]:
        heard.append(wanted.temperature)
        return [5]

    Inside("it", generate).generate(Ask([1, 2], 1, sampling=sampling))
    assert heard == [temperature]


@pytest.mark.thorough
def test_the_callable_of_the_page_is_audited(pytester: pytest.Pytester) -> None:
    """With so few texts that nothing is clear: every setting is asked, and the answers are read."""
    page = (ROOT / "docs/gate.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(import my_engine\nimport pytest\n.*?)```", page, re.DOTALL)
    pytester.makepyfile(
        my_engine="""
        from spsbench.base.protocol import Ask, Load, Sampling
        from spsbench.parts.verify.served import Served

        class Engine:
            def __init__(self, target, draft, k):
                self.engine = Served(Load(target, draft, k, threads=1), None)

            def generate(self, ids, most, stops, seed, **how):
                sampling = Sampling(greedy=True) if how["temperature"] == 0 else Sampling(**how)
                return self.engine.generate(Ask(ids, most, stops, [], sampling, seed)).output_ids
        """,
        test_page=block,
    )
    pytester.syspathinsert()
    done = pytester.runpytest_inprocess(*PLUGIN, "--lossless-texts", "2", "test_page.py")
    assert done.parseoutcomes() == {"failed": 1}
    screen = done.stdout.str()
    assert "undecided: that less than 10.0% leaks could not be shown: K=4, T=1.5; plain" in screen
    assert "plain sampling is judged after 80 texts: plain, T=1.5." in screen
    assert "no alarm after 2 texts" in screen


@pytest.mark.thorough
def test_the_command_of_a_failure_shows_it_again(
    pytester: pytest.Pytester, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_audit, "TO_LOCATE", 1)
    worker = in_process("inverted-ratio", monkeypatch)
    outcomes, screen, _ = ran(pytester, folders, repr(worker))
    assert outcomes == {"failed": 1}
    again = next(line for line in screen.splitlines() if line.startswith("again: "))
    program, *typed = shlex.split(again.removeprefix("again: "))
    assert program == "spsbench"
    assert main([*typed, "--out", str(tmp_path / "again")]) == 4


@pytest.mark.thorough
@pytest.mark.parametrize(("fault", "outcome"), [(None, "passed"), ("inverted-ratio", "failed")])
def test_a_server_is_audited(
    fault: str | None, outcome: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_audit, "TO_LOCATE", 1)
    with serving(MiniServer(planted=fault)) as url:
        pytester.makepyfile(
            f"""
            import pytest
            from support.gated import FEW

            @pytest.fixture
            def server():
                return "openai:{url}"

            def test_server(lossless_engine, server):
                without = {{"k": None, "arms": None, "pair": "mini"}}  # it is asked as it is served
                lossless_engine(server, **(FEW | without))
            """
        )
        done = pytester.runpytest_inprocess(*PLUGIN)
    assert done.parseoutcomes() == {outcome: 1}, done.stdout.str()


# --- in an environment, and on a host -----------------------------------------------------------------


def test_the_plugin_is_found_by_name_and_costs_no_import(tmp_path: Path) -> None:
    """Its name is that of its module, so that naming it loads no second one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {
        "spsbench.parts.audit.gate.plugin": "spsbench.parts.audit.gate.plugin"
    }
    heavy = {*HEAVY, "numpy", "pydantic", "rich"}
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_it():\n"
        f"    assert not {heavy} & sys.modules.keys()\n"
        "    ours = {name for name in sys.modules if name.startswith('spsbench')}\n"
        "    rooms = {'spsbench', 'spsbench.faces', 'spsbench.parts', 'spsbench.parts.audit'}\n"
        "    assert ours == rooms | {'spsbench.parts.audit.gate', 'spsbench.parts.audit.gate.plugin'}\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "spsbench.parts.audit.gate.plugin",
        "-p",
        "no:cacheprovider",
        ".",
    ]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


GATE = ROOT / ".ci/gate"


def hosted(tmp_path: Path, test: str, steps: list[str], **given: str) -> subprocess.CompletedProcess[str]:
    """What the steps of a host do in the repository of an engine."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_engine.py").write_text(f"import pytest\n{test}\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    # A pip of nobody: what these steps install must never reach the environment of the suite.
    no_pip = 'if [ "$1 $2" = "-m pip" ]; then echo "$@"; exit; fi'
    (programs / "python").write_text(f'#!/bin/sh\n{no_pip}\nexec "{sys.executable}" "$@"\n')
    (programs / "python").chmod(0o755)
    path = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    command = ["bash", "-euc", "\n".join(steps)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "PYTEST"))}
    return subprocess.run(
        command, cwd=tmp_path, env=kept | path | given, capture_output=True, text=True, check=False
    )


RED = '@pytest.mark.lossless("worker:")\ndef test_it(lossless_engine): lossless_engine()'


def action_steps() -> tuple[list[str], dict[str, str]]:
    """What the action runs by default, and its environment."""
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    first, upload = action["runs"]["steps"]
    assert (upload["if"], upload["with"]["path"]) == ("always()", "lossless-texts")
    inputs = {f"${{{{ inputs.{name} }}}}": each["default"] for name, each in action["inputs"].items()}
    return [first["run"]], {name: inputs[value] for name, value in first["env"].items()}


def test_the_steps_of_the_action_report_what_fails(tmp_path: Path) -> None:
    steps, given = action_steps()
    summary = tmp_path / "summary.md"
    given |= {"GITHUB_ACTION_PATH": str(ROOT), "GITHUB_STEP_SUMMARY": str(summary), "INSTALL": "none"}
    done = hosted(tmp_path, RED, steps, **given)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "test_it: failed\n" in summary.read_text()
    assert "no command follows the colon" in summary.read_text()
    assert (tmp_path / "lossless-texts").is_dir()


@pytest.mark.thorough
def test_the_steps_of_gitlab_are_the_same(tmp_path: Path) -> None:
    job = yaml.safe_load((ROOT / ".ci/gate.gitlab-ci.yml").read_text(encoding="utf-8"))["lossless"]
    clone, *steps = job["script"]
    assert clone.endswith(' "$SPSBENCH_URL" .spsbench')
    (tmp_path / ".spsbench").symlink_to(ROOT)
    done = hosted(tmp_path, RED, steps, **(job["variables"] | {"INSTALL": "none"}))
    assert done.returncode == 1, done.stdout + done.stderr
    assert {str(path) for path in job["artifacts"]["paths"]} <= {path.name for path in tmp_path.iterdir()}
    assert "no command follows" in (tmp_path / job["artifacts"]["reports"]["junit"]).read_text()


@pytest.mark.thorough
def test_the_action_installs_its_own_version(tmp_path: Path) -> None:
    """Torch is here already, and installed from nowhere."""
    steps, given = action_steps()
    given |= {"GITHUB_ACTION_PATH": str(ROOT)}
    done = hosted(tmp_path, "def test_it(): pass", steps, **given)
    installs = [line for line in done.stdout.splitlines() if line.startswith("-m pip")]
    assert installs == [f"-m pip install {ROOT}[gate]"]


@pytest.mark.thorough
def test_the_steps_are_green_for_a_right_engine(tmp_path: Path, folders: Folders) -> None:
    target, draft = map(str, folders)
    marker = f"@pytest.mark.lossless(engine=Engine, **(FEW | dict(target={target!r}, draft={draft!r})))"
    test = f"from support.gated import FEW, Engine\n{marker}\ndef test_it(lossless_engine): lossless_engine()"
    steps, given = action_steps()
    given |= {"GITHUB_ACTION_PATH": str(ROOT), "INSTALL": "none"}
    done = hosted(tmp_path, test, steps, **given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is ruled out (95%)" in (tmp_path / "lossless.md").read_text()
