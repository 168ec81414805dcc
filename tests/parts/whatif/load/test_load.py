"""Load on fake servers, through the real command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.commandline import BRIEF, Result, call
from support.fake_server import Fake, Letters, serving, written

from spsbench.base.errors import UsageError
from spsbench.base.protocol import Ask, Sampling
from spsbench.parts.external.server import Server
from spsbench.parts.whatif.load.measure import FEWEST_WAVES, listened, server_names, turns

ASK = Ask([5, 9, 1], 6, sampling=Sampling(greedy=True))


def load(out: Path, *arguments: object) -> Result:
    return call(
        "run",
        "xsum",
        *BRIEF,
        "--limit",
        4,
        "--max-new-tokens",
        6,
        "--sampling",
        "greedy",
        "--out",
        out,
        *arguments,
    )


def read(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "load.json").read_text())
    return found


@pytest.mark.parametrize("dialect", ["vllm", "llama", "sglang", "ids-in", "text"])
def test_tokens_are_counted_in_every_dialect(dialect: str) -> None:
    with serving(Fake(dialect)) as url:
        found = listened(Server(url, texts=Letters()), ASK, 0.0)
    assert found.tokens == 6
    assert len(found.times) == len(found.counts) == 6
    assert found.counts == (1, 2, 3, 4, 5, 6)
    assert found.ttft_s is not None
    assert found.tpot_s is not None


def test_both_servers_get_the_same_requests_and_take_turns() -> None:
    asks = [Ask([place], 4) for place in range(5)]
    found = list(turns(asks, 2, [1, 8], 2, 0))
    for concurrency in (1, 8):
        of = [[turn for turn in found if (turn.server, turn.concurrency) == (s, concurrency)] for s in (0, 1)]
        assert [turn.asks for turn in of[0]] == [turn.asks for turn in of[1]]
        assert len(of[0]) == FEWEST_WAVES
    assert {len(turn.asks) for turn in found if turn.concurrency == 8} == {16}
    firsts = [turn.server for turn in found[::2]]
    assert firsts.count(0) == firsts.count(1)
    seeds = [ask.seed for turn in found if turn.server == 0 for ask in turn.asks]
    assert len(set(seeds)) == len(seeds)
    assert found == list(turns(asks, 2, [1, 8], 2, 0))


@pytest.mark.thorough
def test_two_servers_end_to_end(tmp_path: Path) -> None:
    plain, drafting = Fake("llama", step_s=0.002), Fake("llama", k=4, step_s=0.001)
    with serving(plain) as one, serving(drafting) as other:
        done = load(tmp_path / "out", "--engine", f"openai:{one},openai:{other}", "--concurrency", "2,1")
    assert done.code == 0, done.err
    assert max(map(len, done.out.splitlines())) <= 80
    assert "Speculation pays up to this many in flight: " in done.out
    # A request counts until its handler has returned, when the client may have sent the next one.
    assert 2 <= plain.most_busy <= 4
    assert 2 <= drafting.most_busy <= 4
    found = read(tmp_path / "out")
    assert [(row["server"], row["concurrency"]) for row in found["rows"]] == [(0, 1), (1, 1), (0, 2), (1, 2)]
    assert found["rows"][1]["acceptance"] == 3 / 24
    assert found["rows"][0]["acceptance"] is None
    assert found["rows"][1]["speedup"]["estimate"] > 0
    assert found["servers"][0]["engine"] == "llama.cpp"
    assert found["pays_up_to"] is not None
    tokens = {each["tokens"] for wave in found["waves"] for each in wave["requests"]}
    assert max(tokens) == 6
    assert (tmp_path / "out" / "load.md").read_text().startswith("# ")


def test_counts_of_metrics_only_where_one_is_in_flight(tmp_path: Path) -> None:
    with serving(Fake("vllm", k=4)) as url:
        done = load(tmp_path / "out", "--engine", f"openai:{url}", "--concurrency", "1,2", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert "waves" not in found
    assert [row["acceptance"] is None for row in found["rows"]] == [False, True]
    assert [row["speedup"] for row in found["rows"]] == [None, None]
    assert found["pays_up_to"] is None


def test_a_server_of_text_alone_is_measured_with_the_pairs_tokenizer(tmp_path: Path) -> None:
    fake = Fake("text", fault="uncounted-prompt")
    with serving(fake) as url:
        done = load(tmp_path / "out", "--engine", f"openai:{url}", "--concurrency", "2")
    assert done.code == 0, done.err
    assert all(isinstance(body["prompt"], str) for body in fake.seen[1:])  # the first asked for ids


def test_the_client_needs_no_memory_for_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spsbench.models.memory.available_bytes", lambda device: 1 << 20)
    with serving(Fake("vllm")) as url:
        done = load(tmp_path / "out", "--engine", f"openai:{url}", "--concurrency", "1")
    assert done.code == 0, done.err


def test_a_server_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    with serving(Fake("text")) as url:  # a token for each letter
        done = load(tmp_path / "out", "--engine", f"openai:{url}", "--concurrency", "2")
    assert done.code == 3
    assert "it read a prompt of" in done.err


def test_servers_of_different_models_are_refused(tmp_path: Path) -> None:
    with serving(Fake()) as one, serving(Fake(fault="wrong-model")) as other:
        done = load(tmp_path / "out", "--engine", f"openai:{one},openai:{other}", "--concurrency", "1")
    assert done.code == 3
    assert "serve different models: at 4 of 4 prompts" in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("fault", ["500", "html", "401", "404"])
def test_a_server_that_does_not_serve_ends_with_3(tmp_path: Path, fault: str) -> None:
    with serving(Fake(fault=fault)) as url:
        done = load(tmp_path / "out", "--engine", f"openai:{url}", "--concurrency", "4")
    assert done.code == 3
    assert len(done.err.strip().splitlines()[-1:]) == 1
    assert url in done.err


def test_a_server_that_ends_midway_leaves_what_was_measured(tmp_path: Path) -> None:
    fake = Fake("llama", lasts=40)
    with serving(fake) as url:
        done = load(tmp_path / "out", "--engine", f"openai:{url}", "--concurrency", "1,2")
    assert done.code == 3, done.err
    assert "the measurement ended early" in done.err
    assert 0 < len(read(tmp_path / "out")["waves"]) < 12
    assert "in flight" in done.out


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with serving(Fake()) as url:
        done = load(tmp_path, "--engine", f"openai:{url}", "--concurrency", "1")
    assert (done.code, "is not empty" in done.err) == (2, True)


def test_streams_that_break_off_are_failures(tmp_path: Path) -> None:
    with serving(Fake(fault="midway")) as url:
        done = load(tmp_path / "out", "--engine", f"openai:{url}", "--concurrency", "1")
    assert done.code == 3
    assert "worker died" in done.err


@pytest.mark.parametrize("case", ["vllm", "llama", "sglang", "text", "llama backwards"])
def test_counts_that_cannot_be_are_no_measurement(case: str) -> None:
    dialect, _, backwards = case.partition(" ")
    with serving(Fake(dialect, fault=backwards or "too-many")) as url:
        said = backwards or "wrote more than the 6 tokens"
        assert said in str(listened(Server(url, texts=Letters()), ASK, 0.0).error)


def test_dropped_connections_cost_themselves(tmp_path: Path) -> None:
    with serving(Fake("llama", fault="drops")) as url:
        done = load(tmp_path / "out", "--engine", f"openai:{url}", "--concurrency", "1")
    assert done.code == 5, done.err
    requests = [each for wave in read(tmp_path / "out")["waves"] for each in wave["requests"]]
    assert {each["tokens"] for each in requests if each["error"] is None} == {6}
    assert {str(each["error"]).partition(" ")[2] for each in requests if each["error"]} == {
        "closed the connection early"
    }


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ("--engine", "openai:http://a", "--concurrency", "0"),
            "--concurrency must be whole numbers from 1 to 1024, got 0",
        ),
        (("--engine", "openai:http://a", "--concurrency", "1,,2"), "--concurrency"),
        (("--engine", "eager", "--concurrency", "1"), "must name one or two servers"),
        (("--concurrency", "1"), "must name one or two servers"),
        (("--engine", "openai:a", "--concurrency", "1"), "is not the URL of a server"),
        (("--engine", "openai:http://a,openai:http://a", "--concurrency", "1"), "is named twice"),
        (
            ("--engine", "openai:http://a", "--concurrency", "1", "--k", "4"),
            "--k: 4 has no effect on a server",
        ),
        (
            ("--engine", "openai:http://a", "--concurrency", "1", "--sampling", "greedy,nucleus"),
            "under one sampling",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], text: str) -> None:
    done = call("run", "xsum", *BRIEF, "--limit", "1", *arguments)
    assert done.code == 2
    assert text in done.err


def test_a_comma_may_belong_to_a_url() -> None:
    assert server_names("openai:http://a/x,y,openai:http://b") == ("openai:http://a/x,y", "openai:http://b")
    with pytest.raises(UsageError, match="one or two servers"):
        server_names("openai:http://a,openai:http://b,openai:http://c")


def test_the_fake_writes_what_the_tests_believe() -> None:
    assert written([5], 3, []) == [6, 13, 30]
