"""The museum: its driver with engines that have a planted fault, its environments, and its worker."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support import tiny_models
from support.fake_engine import FakeRun, write_catalogue
from support.tiny_engine import Folders, kind_with, loaded_pair, saved_pair

from benchmarks.museum import __main__ as command
from benchmarks.museum.environments import environment_of
from benchmarks.museum.exhibits import EXHIBITS, Exhibit, Release
from benchmarks.museum.head import trained_head
from benchmarks.museum.pages import read_rows, write_rows
from benchmarks.museum.visit import Room, Visited, kind_in, visit
from spsbench.base.errors import UnavailableError
from spsbench.base.protocol import Ask, Load, Sampling
from spsbench.base.records import SamplingParams
from spsbench.parts.audit.engine_audit import Effort, Subject
from spsbench.parts.audit.options import TOKENS
from spsbench.parts.external.install import Environment
from spsbench.parts.external.registry import PeerKind
from spsbench.parts.verify.served import Served

K, STOP = 2, tiny_models.EOS
PROMPTS = [tuple((7 * i + 11 * j) % 250 for j in range(6)) for i in range(8)]


def opened(release: Release) -> PeerKind:
    """An engine of ours with the fault that the release's options name."""
    return kind_with(release.options.get("fault"), release.shown)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return saved_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def room(folders: Folders, tmp_path_factory: pytest.TempPathFactory) -> Room:
    nobody = opened(Release("", "nobody"))
    subject = Subject(nobody, loaded_pair(folders), folders, PROMPTS, [STOP], threads=1)
    return Room(subject, Effort(0.001, 80, 600.0, 32), 0, tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def caught(room: Room) -> Visited:
    """An exhibit with a planted fault, and a control without one."""
    releases = [Release("ours", "a release", K, options={"fault": each}) for each in ("inverted-ratio", None)]
    exhibit = Exhibit(EXHIBITS[0].name, ["https://a.thread/1"], "It does.", SamplingParams(), *releases)
    return visit(exhibit, opened, room)


@pytest.mark.thorough
def test_a_defect_is_caught_and_as_many_texts_of_the_control_are_not(caught: Visited) -> None:
    assert caught.is_caught
    facts = caught.facts()
    assert 0 < facts["flawed"]["alarm_after"] <= facts["flawed"]["texts"]
    assert facts["control"]["texts"] == facts["flawed"]["texts"] == 40
    assert facts["control"]["alarm_after"] is None
    assert facts["control"]["bound"] is not None


@pytest.mark.thorough
def test_an_exhibit_of_contexts_is_audited_with_short_requests_at_them(room: Room, folders: Folders) -> None:
    """They are cut out of texts that the target expects; the control continues the same ones."""
    target = Served(Load(str(folders[0]), threads=1), None)
    greedy = [Ask(list(prompt), 60, [STOP], sampling=Sampling(greedy=True)) for prompt in PROMPTS]
    texts = [tuple(target.generate(ask).output_ids) for ask in greedy]
    releases = [Release("ours", "a release", K, options={"fault": each}) for each in ("inverted-ratio", None)]
    cool = SamplingParams(temperature=0.3)
    exhibit = Exhibit(EXHIBITS[0].name, ["https://a.thread/1"], "It does.", cool, *releases, contexts=2)
    visited = visit(exhibit, opened, replace(room, subject=replace(room.subject, prompts=texts)))
    assert visited.is_caught
    flawed, control = ({each.prompt for each in found.drawn} for found in (visited.flawed, visited.control))
    assert len(flawed) == visited.facts()["contexts"] == 2
    assert flawed == control
    assert not flawed & {*texts, *PROMPTS}
    assert max(len(each.completion) for each in visited.flawed.drawn) == TOKENS


def test_no_alarm_a_faulty_control_and_fewer_texts_are_no_catch(caught: Visited) -> None:
    quiet, alarm = caught.control, caught.flawed
    assert not replace(caught, flawed=quiet).is_caught
    assert not replace(caught, control=alarm).is_caught
    assert not replace(caught, control=replace(quiet, drawn=quiet.drawn[:39])).is_caught
    assert replace(caught, flawed=quiet).facts()["flawed"]["alarm_after"] is None


def test_the_page_keeps_exhibits_that_are_not_audited_again(caught: Visited, tmp_path: Path) -> None:
    asked = {"task": "xsum", "prompts": 8, "max_new_tokens": 32, "threads": 1, "seed": 0}
    more = {"date": "2026-01-01", "environment": {"cpu": {"model": "a CPU"}}, "asked": asked}
    facts = caught.facts() | more
    other = facts | {"name": EXHIBITS[1].name}
    out = tmp_path / "deep" / "museum"
    assert read_rows(out) == {}
    write_rows(out, {other["name"]: other})
    write_rows(out, dict(read_rows(out)) | {facts["name"]: facts})
    written = json.loads(out.with_suffix(".json").read_text())["exhibits"]
    assert list(written) == [EXHIBITS[0].name, EXHIBITS[1].name]
    text = out.with_suffix(".md").read_text()
    assert text.count("https://a.thread/1") == 4
    assert "at most 32 tokens, seed 0, 1 thread(s), a CPU, 2026-01-01" in text


def test_every_exhibit_has_a_report_and_another_release_or_setting_as_its_control() -> None:
    names = [each.name for each in EXHIBITS]
    assert len(set(names)) == len(names)
    for each in EXHIBITS:
        assert each.reports
        assert all(address.startswith("https://github.com/") for address in each.reports)
        assert each.flawed != each.control
        assert each.flawed.k > 0


def test_releases_are_installed_once_and_engines_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_catalogue(tmp_path, monkeypatch)
    execute = FakeRun()
    release = Release("tiny@0.9", "an old one")
    assert environment_of(release, None, execute).is_here
    assert len(execute.ran) == 2
    assert execute.ran[1][-1] == "tiny-engine==0.9"
    environment_of(release, None, execute)
    assert len(execute.ran) == 2
    with pytest.raises(UnavailableError, match="tiny is not installed"):
        environment_of(Release("tiny", "tiny"), None, execute)
    (tmp_path / "peers" / "tiny").mkdir(parents=True)
    assert environment_of(Release("tiny", "tiny"), tmp_path / "peers").folder == tmp_path / "peers" / "tiny"


def test_an_older_release_reads_what_the_installed_one_has_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    def kind(environment: Environment, release: Release, head: object, converter: Environment) -> PeerKind:
        return PeerKind(str(environment.folder), NotImplemented, lambda model: str(converter.folder))

    def place(release: Release, peers: None) -> Environment:
        return Environment(Path("older" if "@" in release.engine else "installed"))

    monkeypatch.setattr(command, "environment_of", place)
    monkeypatch.setattr(command, "kind_in", kind)
    release = next(each for each in EXHIBITS if each.name == "openvino-2331").flawed
    found = command._opener(argparse.Namespace(peers=None), NotImplemented)(release)
    assert (found.name, found.converted(Path("model"))) == ("older", "installed")


def test_an_older_release_converts_models_itself_where_no_other_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def place(release: Release, peers: None) -> Environment:
        if "@" in release.engine:
            return Environment(Path("older"))
        raise UnavailableError("It is not installed.", flag="--exhibit", remedy="Install it.")

    monkeypatch.setattr(command, "environment_of", place)
    monkeypatch.setattr(command, "kind_in", lambda environment, release, head, converter: converter)
    release = next(each for each in EXHIBITS if each.name == "llama-cpp-short-drafts").flawed
    assert command._opener(argparse.Namespace(peers=None), NotImplemented)(release) is None


def test_a_failed_installation_or_training_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: Folders
) -> None:
    write_catalogue(tmp_path, monkeypatch)
    with pytest.raises(UnavailableError):
        environment_of(Release("tiny@0.9", "an old one"), None, FakeRun(fails="install"))
    with pytest.raises(UnavailableError):
        trained_head(Environment(tmp_path), folders[0], PROMPTS, [STOP], FakeRun(fails=str(folders[0])))
    left = [each for room in (tmp_path / "cache").iterdir() for each in room.iterdir() if each.is_dir()]
    assert left == []


def test_a_head_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: Folders) -> None:
    write_catalogue(tmp_path, monkeypatch)
    execute = FakeRun()

    def train() -> Path:
        return trained_head(Environment(tmp_path), folders[0], PROMPTS, [STOP], execute)

    folder = train()
    assert json.loads((folder / "asked.json").read_text()) == {
        "prompts": [list(prompt) for prompt in PROMPTS],
        "stop": [STOP],
    }
    assert train() == folder
    assert len(execute.ran) == 1


def no_head(environment: Environment) -> Path:
    raise AssertionError("nobody asked for a head")


@pytest.mark.thorough
def test_the_worker_speaks_the_protocol_on_our_own_transformers(folders: Folders, tmp_path: Path) -> None:
    """Greedy, its text with the assistant is that of our engine without a draft."""
    kind = kind_in(Environment(Path(sys.prefix)), Release("transformers", "ours"), no_head)
    target, draft = map(str, folders)
    ask = Ask(list(PROMPTS[0]), 12, [STOP], sampling=Sampling(greedy=True))
    peer = kind.open(Load(target, draft, K, 1), tmp_path / "log.txt", False)
    try:
        told = peer.describe()
        found = peer.generate(ask)
    finally:
        peer.close()
    assert (told.engine, told.rule, told.settings["threads"]) == ("transformers", "modified rejection", 1)
    assert found.output_ids == Served(Load(target, threads=1), None).generate(ask).output_ids


def test_the_command_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPSBENCH_CACHE", str(tmp_path))
    flags = ["--exhibit", "openvino-4190", "--prompts", "2", "--out", str(tmp_path / "museum")]
    monkeypatch.setattr(sys, "argv", ["museum", *flags])
    assert command.main() == 1
    assert "spsbench get openvino" in capsys.readouterr().err
    assert read_rows(tmp_path / "museum") == {}
