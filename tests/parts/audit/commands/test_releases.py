"""``audit --releases``: which releases are asked, what is said of them, and what is left on the disk.

The releases are empty wheels in a folder; installed, each is our own engine with the fault of its version.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commandline import Cli, Result
from support.fake_engine import FakeRun, write_catalogue
from support.tiny_engine import InProcess, kind_with

from spsbench.base.errors import UsageError
from spsbench.base.protocol import Answer, Ask, Described, Load, PeerGone
from spsbench.base.records import Interval, Spec
from spsbench.models.fetch.http import Http, PipSettings, find_versions
from spsbench.parts.audit.messages.engines import ReleaseDiffers
from spsbench.parts.audit.releases import Release, changes, chosen, search
from spsbench.parts.external import install as installing
from spsbench.parts.external import registry
from spsbench.parts.external.install import Environment, install, load_entry
from spsbench.parts.external.registry import Named, PeerKind

PROMPTS = Path(__file__).resolve().parents[3] / "support/short_prompts.txt"
ASKED = (
    *("--arms", "sps", "--temperature", "0.8", "--texts", "20"),
    *("--task", PROMPTS, "--limit", "6", "--max-new-tokens", "24", "--threads", "1"),
)
LEAK, BROKEN = "inverted-ratio", "broken"


# --- the search -----------------------------------------------------------------------------------


def release(version: str, alarmed: bool = False, speed: Interval | None = None) -> Release:
    law = "ALARM after 5 texts" if alarmed else "quiet"
    return Release(version, law, alarmed, 80, 4 if alarmed else 0, "", speed=speed)


@dataclass
class World:
    """Releases whose law is known here alone; ``visited`` are those that were asked."""

    leaks: Sequence[bool | None]  # oldest first; None for one that cannot be audited
    results: dict[str, Release | None] = field(default_factory=dict)

    @property
    def versions(self) -> list[str]:
        return [str(n) for n in reversed(range(len(self.leaks)))]

    def visit(self, version: str) -> Release | None:
        leak = self.leaks[int(version)]
        return self.results.setdefault(version, None if leak is None else release(version, leak))

    def found(self, *, halving: bool) -> list[tuple[str, str]]:
        search(self.versions, self.visit, halving=halving)
        return [(each.release.version, each.before.version) for each in changes(self.versions, self.results)]


@given(st.data(), st.integers(2, 40), st.booleans())
def test_halving_names_the_first_bad_release_and_asks_few(
    data: st.DataObject, count: int, good: bool
) -> None:
    first = data.draw(st.integers(1, count - 1))
    gone = data.draw(st.sets(st.integers(0, count - 1), max_size=4))
    leaks = [None if n in gone else (n >= first) == good for n in range(count)]
    world = World(leaks)
    found = world.found(halving=True)
    newer = [n for n in range(first, count) if leaks[n] is not None]
    older = [n for n in range(first) if leaks[n] is not None]
    if newer and older:
        assert found == [(str(min(newer)), str(max(older)))]
        assert len(world.results) <= 2 + len(gone) + math.ceil(math.log2(count))
    else:
        assert found == []


@given(st.lists(st.none() | st.just(False), min_size=2, max_size=20))
def test_without_a_leak_none_is_named_and_all_are_asked(leaks: list[bool | None]) -> None:
    world = World(leaks)
    assert world.found(halving=True) == []
    assert len(world.results) == len(leaks)


def test_a_leak_between_ends_that_are_alike_is_found() -> None:
    assert World([False, True, True, False]).found(halving=True) == [("1", "0"), ("3", "2")]


def test_a_number_asks_all_of_them_newest_first() -> None:
    world = World([False, False, True, True])
    assert world.found(halving=False) == [("2", "1")]
    assert list(world.results) == ["3", "2", "1", "0"]


def test_findings_beside_the_law_do_not_hide_an_alarm() -> None:
    """Both ends of a search fail, the old one without an alarm: as transformers 4.40.2 and 4.44.2."""
    versions = [str(number) for number in range(9, 0, -1)]
    results: dict[str, Release | None] = {
        v: replace(release(v, alarmed=int(v) >= 6), code=4, wrong=True) for v in versions
    }
    asked: list[str] = []

    def visit(version: str) -> Release | None:
        asked.append(version)
        return results[version]

    search(versions, visit, halving=True)
    assert len(asked) < len(versions)
    (found,) = changes(versions, {v: results[v] for v in asked})
    assert (found.release.version, found.before.version, found.quantity) == ("6", "5", "law")


def test_a_release_that_was_not_asked_is_named_beside_the_one_that_differs() -> None:
    results = {"2": release("2", alarmed=True), "0": release("0")}
    (found,) = changes(["2", "1", "0"], results)
    assert found.message(is_first=True) == ReleaseDiffers(
        "2", "0", "law", "ALARM after 5 texts", "quiet", unless=("1",), is_first=True
    )


@pytest.mark.parametrize(
    ("ratio", "differs"),
    [(Interval(0.8, 0.7, 0.9), True), (Interval(1.2, 1.1, 1.3), True), (Interval(0.9, 0.8, 0.97), False)],
)
def test_speed_differs_where_the_whole_interval_is_away_from_1(ratio: Interval, *, differs: bool) -> None:
    same = Interval(1.0, 0.99, 1.01)
    found = changes(["2", "1"], {"2": release("2", speed=same), "1": release("1", speed=ratio)})
    assert [each.quantity for each in found] == (["speed"] if differs else [])
    assert changes(["2", "1"], {"2": release("2"), "1": release("1", speed=ratio)}) == []


KNOWN = ["4.45.0", "4.44.2", "4.44.1", "4.9.0"]


def test_releases_are_chosen_by_their_order_and_not_by_their_letters() -> None:
    assert chosen("4.9..4.44.2", KNOWN, "it") == (KNOWN[1:], True)
    assert chosen("4.44.2..4.9", KNOWN, "it") == (KNOWN[1:], True)
    assert chosen("2", KNOWN, "it") == (KNOWN[:2], False)


@pytest.mark.parametrize(
    "text", ["1", "0", "-3", "one", "4.44.2", "a..b", "..", "4.44.2..", "5..6", "4.44..4.44.0"]
)
def test_what_names_less_than_two_releases_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        chosen(text, KNOWN, "it")
    assert caught.value.flag == "--releases"


NAMES = (
    "tiny_engine-1.0-py3-none-any.whl",
    "tiny_engine-0.10-py3-none-any.whl",
    "tiny_engine-0.9-py3-none-any.whl",
    "tiny_engine-2.0rc1-py3-none-any.whl",
    "tiny_engine-3.0-cp27-none-macosx_10_9_x86_64.whl",
    "tiny_engine-0.8.tar.gz",
    "tiny_engine_more-7.0-py3-none-any.whl",
    "notes.txt",
)


def test_releases_are_those_that_pip_would_take_here(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-engine"
    folder.mkdir()
    more = '<a href="tiny_engine-4.0-py3-none-any.whl" data-yanked="">x</a>'
    more += '<a href="tiny_engine-5.0-py3-none-any.whl" data-requires-python="&lt;3">x</a>'
    links = "".join(f'<a href="{name}#sha256=0">{name}</a>' for name in NAMES)
    (folder / "index.html").write_text(links + more)
    http = Http(PipSettings(indexes=(tmp_path.as_uri(),)))
    assert find_versions("tiny.engine", http) == (["1.0", "0.10", "0.9"], [])
    assert find_versions("tiny-engine", http, sources=True) == (["0.8"], [])


# --- the command ----------------------------------------------------------------------------------


class Peer(InProcess):
    """Counts what it is asked; ``stops_at`` is the request at which Ctrl-C comes."""

    asked = 0
    stops_at: int | None = None

    def generate(self, ask: Ask) -> Answer:
        Peer.asked += 1
        if Peer.asked == Peer.stops_at:
            raise KeyboardInterrupt
        return super().generate(ask)


class Broken:
    def describe(self) -> Described:
        raise PeerGone("it does not load the models: no such head")

    def close(self) -> None:
        pass


@dataclass
class Releases:
    """What installing them ran, and the folder of results."""

    folder: Path
    execute: FakeRun
    cli: Cli

    def audit(self, releases: str, *more: object) -> Result:
        out = self.folder / "out"
        return self.cli("audit", "--engine", "tiny", "--releases", releases, *ASKED, "--out", out, *more)

    def here(self) -> list[str]:
        """Versions that are installed."""
        names = ("1.0", "0.6", "0.5", "0.4", "0.3", "0.2", "0.1")
        return [v for v in names if load_entry(f"tiny@{v}", "NAME").environment.is_here]


def make(folder: Path, patch: pytest.MonkeyPatch, cli: Cli, faults: Mapping[str, str | None]) -> Releases:
    """An index with these releases."""

    class Installs(FakeRun):
        def __call__(self, argv: Sequence[str | Path], *more: Any) -> None:
            super().__call__(argv, *more)
            if "pip" in argv:
                last = str(argv[-1])
                version = last.partition("==")[2] if "==" in last else "1.0"
                Path(argv[0]).write_text(version)

    def opened(environment: Environment, spec: Spec, *more: object) -> PeerKind:
        fault = faults[environment.python.read_text()] if environment.is_here else None

        def opens(asked: Load, log: Path, paused: bool) -> Any:
            if fault == BROKEN:
                return Broken()
            return Peer(kind_with(fault, "").open(asked, log, paused).engine)  # type: ignore[attr-defined]

        return PeerKind(str(spec), opens)

    write_catalogue(folder, patch)
    links = folder / "links"
    links.mkdir()
    for version in faults:
        (links / f"tiny_engine-{version}-py3-none-any.whl").touch()
    for name, value in (("FIND_LINKS", links), ("NO_INDEX", "1"), ("CONFIG_FILE", "/dev/null")):
        patch.setenv(f"PIP_{name}", str(value))
    execute = Installs()
    patch.setattr(installing, "install", partial(install, execute=execute))
    patch.setitem(registry.NAMED, "tiny", Named("none", lambda model, environment, weights: str(model)))  # type: ignore[arg-type]
    patch.setattr(registry, "peer_in", opened)
    patch.setattr(Peer, "asked", 0)
    patch.setattr(Peer, "stops_at", None)
    return Releases(folder, execute, cli)


Index = Callable[[Mapping[str, str | None]], Releases]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> Index:
    return lambda faults: make(tmp_path, monkeypatch, cli, faults)


BISECTED = {"0.1": None, "0.2": LEAK, "0.3": LEAK, "0.4": LEAK}


@pytest.mark.thorough
def test_the_release_that_leaks_first_is_named_and_environments_are_gone(index: Index) -> None:
    releases = index(BISECTED)
    done = releases.audit("0.1..0.4")
    assert done.code == 4, done.err
    said = " ".join(done.out.split())
    assert "The first release that differs: 0.2 (law: ALARM after" in said
    assert "0.1: no alarm)." in said
    assert "0.3 not needed" in said
    assert "the audit of 0.4 ends with: not the target's distribution: K=4, T=0.8" in done.err
    first = next(line for line in done.err.splitlines() if " releases of " in line)
    assert "4 releases of Tiny, 0.1 to 0.4, halving where the ends differ" in first
    assert "2 kB on disk, two at a time" in first
    assert max(map(len, done.out.splitlines())) <= 80
    assert releases.here() == []
    asked = [words[-1] for words in releases.execute.ran if "pip" in words]
    assert asked == ["tiny-engine==0.4", "tiny-engine==0.1", "tiny-engine==0.2"]


@pytest.mark.thorough
def test_without_a_leak_no_release_is_named_and_what_get_installed_stays(index: Index) -> None:
    releases = index({"0.5": None, "0.6": BROKEN, "1.0": None})
    installing.install(load_entry("tiny@0.5", "NAME"))
    done = releases.audit("3", "--json")
    assert done.code == 5, done.err  # 20 texts show no bound of 2%
    facts = json.loads(done.out)
    assert facts["changes"] == []
    assert [row["version"] for row in facts["releases"]] == ["1.0", "0.5"]
    assert "no such head" in facts["skipped"]["0.6"]
    older = facts["releases"][1]
    assert older["loops"] == {"estimate": 1.0, "low": 1.0, "high": 1.0}
    assert older["tokens_per_loop"] == facts["releases"][0]["tokens_per_loop"] > 1
    assert older["speed"]["low"] < older["speed"]["high"]
    assert releases.here() == ["0.5"]


@pytest.mark.thorough
def test_an_interrupted_search_goes_on_and_releases_that_do_not_install_are_skipped(index: Index) -> None:
    releases = index({"0.3": None, "0.4": None, "0.5": LEAK})
    releases.execute.fails = "tiny-engine==0.4"
    Peer.stops_at = 72  # 0.5's 20 texts, its first forward at 6 prompts and 24 + 12 short requests come first
    stopped = releases.audit("3", "--keep")
    assert stopped.code == 130
    assert "--out" in stopped.err.splitlines()[-1]
    assert "Skipped: " in stopped.err
    assert releases.here() == ["0.5", "0.3"]
    Peer.stops_at, before = None, Peer.asked
    done = releases.audit("3", "--keep")
    assert done.code == 4, done.err
    said = " ".join(done.out.split())
    assert "The first release that differs: 0.5 (law: ALARM after" in said
    assert "unless it is 0.4, not audited" in said
    assert "0.4 was skipped: `pip install` failed." in said
    assert releases.here() == ["0.5", "0.3"]
    rest = 20 - 9 + 24 + 12
    assert Peer.asked - before == rest + 2 * (6 + 1), "the rest of 0.3, and greedy texts with the first"
    assert len([words for words in releases.execute.ran if "tiny-engine==0.5" in words]) == 1
    before = Peer.asked
    again = releases.audit("3")
    assert (again.code, again.out, Peer.asked) == (4, done.out, before)


@pytest.mark.parametrize(
    ("engine", "more", "said"),
    [
        ('worker:"python x.py"', ("--releases", "2"), "--releases"),
        ("openai:http://127.0.0.1:9", ("--releases", "2"), "--releases"),
        ("openvino@2026.4.1.0", ("--releases", "2"), "--releases"),
        ("opnvino", ("--releases", "2"), "Did you mean openvino"),
        ("openvino", ("--keep",), "--keep"),
        ("openvino", ("--releases", "2", "--evidence", "x"), "--evidence"),
        ("openvino", ("--releases", "2", "--k", "x"), "--k"),
    ],
)
def test_what_has_no_releases_is_refused(cli: Cli, engine: str, more: tuple[str, ...], said: str) -> None:
    done = cli("audit", "--engine", engine, *more)
    assert done.code == 2
    assert said in done.err


def test_offline_is_exit_3(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "none"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    done = cli("audit", "--engine", "openvino", "--releases", "3", "--out", tmp_path)
    assert done.code == 3
    assert "no package index lists openvino-genai" in done.err
