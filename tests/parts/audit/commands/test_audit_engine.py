"""``audit --engine`` and ``verify --engine`` from end to end, on our own engine behind the protocol."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.commandline import Cli
from support.fake_server import serving
from support.mini_server import MiniServer
from support.tiny_engine import InProcess, in_process
from support.tiny_models import config_of, make, save

from spsbench.base.errors import UsageError
from spsbench.base.protocol import Answer, Ask, Described, Drafting
from spsbench.cli import read_material
from spsbench.parts.external import registry
from spsbench.parts.external.registry import PeerKind
from spsbench.parts.verify.served import Served

pytestmark = pytest.mark.thorough_but("test_a_wrong_engine")

WRONG_WORKER = Path(__file__).resolve().parents[3] / "support/wrong_worker.py"
PROMPTS = Path(__file__).resolve().parents[3] / "support/short_prompts.txt"
AT_1 = ("--temperature", "1")
FEW = ("--task", PROMPTS, "--limit", "20", "--max-new-tokens", "24", "--threads", "1")


def test_a_right_engine_passes_and_its_texts_can_be_audited_again(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "audit"
    asked = ("--arms", "sps", "--bound", "60%", "--texts", "20", *AT_1, *FEW, "--json")
    worker = f"worker:{sys.executable} -m spsbench.parts.verify.served"
    done = cli("audit", "--engine", worker, *asked, "--out", out)
    assert done.code == 0, done.err
    (row,) = json.loads(done.out)["rows"]
    assert (row["setting"], row["decision"], row["impossible"]) == ("K=4, T=1", "quiet", 0)
    assert row["bound"] <= 0.6
    assert row["engine"]["rule"].startswith("modified rejection")
    kept = json.loads((out / "audit.json").read_text())
    assert kept["rows"] == json.loads(done.out)["rows"]
    assert kept["environment"]["cpu"]["model"]
    again = cli("audit", out / row["texts_file"], "--json")
    assert again.code == 0, again.err
    facts = json.loads(again.out)
    assert (facts["texts"], facts["tokens"]) == (row["texts"], row["tokens"])
    assert facts["leakage"] == pytest.approx(row["leakage"])


@pytest.mark.thorough
def test_a_wrong_engine_is_found_beside_its_right_plain_sampling(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain raises no alarm, speculation does, and where it comes from is said."""
    asked = ("--temperature", "0.8", "--texts", "20", *FEW)
    worker = in_process("inverted-ratio", monkeypatch)
    done = cli("audit", "--engine", worker, *asked, "--out", tmp_path / "audit")
    assert done.code == 4
    assert "not the target's distribution: K=4, T=0.8" in done.err
    said = " ".join(done.out.split())
    assert "plain, T=0.8: no alarm after 20 texts, and at most" in said
    assert "K=4, T=0.8: not the target's distribution, known after" in said
    assert "Log-score z by place in the loop: accepted -" in said
    assert "from the draft" in said


def test_few_contexts_are_asked_often_and_what_they_leave_open_is_said(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our engine has no free first token, so every second context is of use; six texts rule nothing out.

    What it drafted does, if it says so.
    """

    class Silent(InProcess):
        def generate(self, ask: Ask) -> Answer:
            return replace(super().generate(ask), drafted_ids=None)

    asked = ("--contexts", "2", "--texts", "6", "--temperature", "1.5", "--arms", "sps", *FEW[:4])
    out = tmp_path / "audit"
    worker = in_process(None, monkeypatch)
    telling = cli("audit", "--engine", worker, *asked, "--out", tmp_path / "telling")
    assert (telling.code, "is ruled out at" in " ".join(telling.out.split())) == (0, True), telling.err
    monkeypatch.setattr(
        registry,
        "find_peer",
        lambda text, flag="--engine": PeerKind(text, lambda load, log, paused: Silent(Served(load, None))),
    )
    done = cli("audit", "--engine", worker, *asked, "--out", out)
    assert done.code == 5, done.err
    assert "withdrawn drafts are not ruled out" in done.err
    (file,) = out.glob("k4-*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len({tuple(row["prompt_ids"]) for row in rows}) == 2
    assert {row["max_new_tokens"] for row in rows} == {6}
    kept = json.loads((out / "audit.json").read_text())
    assert (kept["asked"]["contexts"], kept["effort"]["contexts"]) == (2, 2)
    other = cli("audit", "--engine", worker, *asked[2:], "--out", out)
    assert other.code == 2
    assert "holds the texts of another audit" in other.err


def test_contexts_are_chosen_by_how_a_worker_says_that_its_drafts_end(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked before a text is; at nine thresholds other contexts are chosen."""
    told = Drafting(0.4, 0, 0)

    class Declaring(InProcess):
        def describe(self) -> Described:
            return replace(super().describe(), drafting=told)

    def kind(text: str, flag: str = "--engine") -> PeerKind:
        return PeerKind(text, lambda asked, log, paused: Declaring(Served(asked, None)))

    asked = ("--contexts", "2", "--texts", "4", "--temperature", "1.5", "--arms", "sps", *FEW[:4])
    worker = in_process(None, monkeypatch)
    plain = cli("audit", "--engine", worker, *asked, "--out", tmp_path / "silent")
    monkeypatch.setattr(registry, "find_peer", kind)
    own = cli("audit", "--engine", worker, *asked, "--out", tmp_path / "declared")
    assert (plain.code, own.code) == (0, 0)
    kept = json.loads((tmp_path / "declared/audit.json").read_text())
    assert kept["effort"]["drafting"] == {"p_min": 0.4, "n_min": 0, "top_k": 0, "n_max": None}
    assert kept["asked"]["drafting"] == "p_min 0.4, n_min 0, top_k 0"
    file = kept["rows"][0]["texts_file"]
    chosen = [
        [json.loads(line)["prompt_ids"] for line in (tmp_path / name / file).read_text().splitlines()]
        for name in ("silent", "declared")
    ]
    assert chosen[0] != chosen[1]


def test_contexts_are_chosen_by_what_is_declared_for_a_server(cli: Cli, tmp_path: Path) -> None:
    """It is not asked how its drafts end, and what is declared is kept beside its texts."""
    asked = ("--contexts", "2", "--texts", "4", "--temperature", "1.5", *FEW[:4])
    chosen = []
    with serving(MiniServer()) as url:
        for name, declared in (("silent", ""), ("declared", ":draft_p_min=0.4:draft_top_k=0")):
            done = cli("audit", "--engine", f"openai:{url}{declared}", *asked, "--out", tmp_path / name)
            assert done.code == 5, done.err
            kept = json.loads((tmp_path / name / "audit.json").read_text())
            rows = (tmp_path / name / kept["rows"][0]["texts_file"]).read_text().splitlines()
            chosen.append([json.loads(line)["prompt_ids"] for line in rows])
    assert kept["effort"]["drafting"] == {"p_min": 0.4, "n_min": 0, "top_k": 0, "n_max": None}
    assert kept["asked"]["drafting"] == "p_min 0.4, n_min 0, top_k 0"
    assert chosen[0] != chosen[1]


def test_a_worker_that_declares_what_is_not_known_is_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file, the option and what there is are named, before anything is drawn."""
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    told = {'engine': 'own', 'version': '1', 'drafting': {'p_mni': 0.6}}\n"
        "    print(json.dumps({'id': json.loads(line)['id'], 'result': told}), flush=True)\n"
    )
    asked = ("--contexts", "2", "--temperature", "1.5", *FEW[:4], "--out", tmp_path / "audit")
    done = cli("audit", "--engine", f"worker:{sys.executable} {worker}", *asked)
    assert done.code == 3, done.err
    assert "drafting has no 'p_mni': it has p_min, n_min, top_k" in done.err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--temperature", "0"), "--contexts: greedily no token is drawn"),
        (("--in-flight", "4"), "--in-flight: the contexts of --contexts are for one request"),
        (("--prefix-cache", "on"), "--prefix-cache: the contexts of --contexts are for one request"),
    ],
)
def test_what_contexts_do_not_go_with_is_refused(cli: Cli, more: tuple[str, ...], said: str) -> None:
    done = cli("audit", "--engine", "openai:http://127.0.0.1:1", "--contexts", "2", *more)
    assert done.code == 2
    assert said in done.err


def test_contexts_beside_a_file_of_texts_are_refused(cli: Cli) -> None:
    done = cli("audit", "texts.jsonl", "--contexts", "2")
    assert done.code == 2
    assert "--contexts is for texts that are drawn from an engine" in done.err


def test_what_is_not_clear_exits_5(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("--arms", "sps", "--bound", "0.1%", "--texts", "3", *AT_1, *FEW)
    done = cli("audit", "--engine", in_process(None, monkeypatch), *asked, "--out", tmp_path / "audit")
    assert done.code == 5
    assert "that less than 0.1% leaks could not be shown: K=4, T=1." in done.err


def test_greedy_text_that_is_not_clear_waits_for_no_leakage(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--arms", "sps", "--temperature", "0", "--texts", "1", *FEW)
    done = cli("audit", "--engine", in_process(None, monkeypatch), *asked, "--out", tmp_path / "audit")
    assert done.code == 5
    said = " ".join(done.err.split())
    assert "--texts: greedy text is judged once every prompt has a text: K=4, greedy. Give more" in said
    assert "leak" not in said
    assert "--temperature" not in said


def test_what_an_engine_cannot_do_is_no_pass(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside what is quiet it exits 5; alone, as nothing is left, 3."""
    asked = ("--arms", "sps", "--bound", "60%", "--texts", "20", *AT_1, *FEW)
    worker = in_process(None, monkeypatch)
    done = cli("audit", "--engine", worker, *asked, "--in-flight", "1,8", "--out", tmp_path / "both")
    assert done.code == 5
    assert "not audited: K=4, T=1, 8 in flight (it takes one request at a time)." in done.err
    assert "quiet" in done.out
    done = cli("audit", "--engine", worker, *asked, "--in-flight", "8", "--out", tmp_path / "alone")
    assert done.code == 3
    assert "none of the settings can be audited: it takes one request at a time." in done.err


def test_an_engine_that_does_not_start_exits_3(cli: Cli, tmp_path: Path) -> None:
    worker = f"worker:{sys.executable} {WRONG_WORKER} never-starts"
    done = cli("audit", "--engine", worker, *FEW, "--out", tmp_path / "audit")
    assert done.code == 3
    assert "does not load the models" in done.err


def test_missing_data_are_said_of_an_option_that_audit_has(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    target = save(make(config_of("llama", head_dim=16)), tmp_path / "target")
    worker = f"worker:{sys.executable} -m spsbench.parts.verify.served"
    models = ("--target", target, "--draft", target)
    missing = cli("audit", "--engine", worker, "--task", "xsum", *models, "--out", tmp_path / "audit")
    assert (missing.code, "error: --task: the split" in missing.err) == (3, True), missing.err
    assert "--data" not in missing.err


def test_an_engine_that_gives_up_keeps_what_it_wrote(cli: Cli, tmp_path: Path) -> None:
    """It answers another law than the target, and fails for good after some texts."""
    worker = f"worker:{sys.executable} {WRONG_WORKER} fails"
    done = cli("audit", "--engine", worker, "--arms", "sps", *AT_1, *FEW, "--out", tmp_path / "audit")
    assert done.code == 3
    assert "out of memory" in done.err


def test_a_worker_can_be_tested_for_its_form(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    done = cli("verify", "--engine", in_process("reused-seed", monkeypatch), "--k", "2")
    assert done.code == 4
    assert "--engine does not follow the protocol: seeds (plain), seeds (K=2)" in done.err


def test_prompts_that_an_engine_is_verified_on_are_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "a"}\n')
    settings = read_material(task=str(file), limit="2", quiet=True)
    assert (settings.task, settings.span) == (str(file), (1, 2))
    assert read_material(quiet=True, device="cpu").device == "cpu"
    with pytest.raises(UsageError, match="TASK: nobody is unknown"):
        read_material(task="nobody", quiet=True)


def test_a_target_needs_no_draft_beside_it() -> None:
    settings = read_material(target="embedded:mini/target", quiet=True)
    assert settings.pair.draft == settings.pair.target
    assert settings.pair.draft.id == "embedded:mini/target"


def test_the_task_of_an_audit_is_an_option(cli: Cli) -> None:
    refused = cli("audit", "--engine", "worker:true", "--task", "nobody")
    assert refused.code == 2
    assert "--task: nobody is unknown" in " ".join(refused.err.split())
