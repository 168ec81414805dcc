"""Load on fake servers, through the real command line."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.commandline import BRIEF, Result, call
from support.fake_server import METRICS, SHAPES, Fake, Letters, serving, written

from spsbench.base.errors import UsageError
from spsbench.base.protocol import Ask, Sampling
from spsbench.parts.external.server import Server
from spsbench.parts.load.measure import FEWEST_WAVES, listened, server_names, turns

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


@pytest.mark.parametrize("dialect", ["vllm", "llama", "sglang", "ids-in", "text", "chat"])
@pytest.mark.parametrize("fault", ["", "midway", "error-object", "error-event", "error-text", "cut", "abort"])
def test_an_answer_that_does_not_come_to_its_end_is_lost(dialect: str, fault: str) -> None:
    asked = {"texts": _Spoken()} if dialect == "chat" else {"texts": Letters()}
    with serving(Fake(dialect, fault=fault)) as url:
        found = listened(Server(url, **asked), ASK, 0.0)
    if not fault:
        assert (found.error, found.tokens) == (None, 6)
        return
    assert found.tokens == 0
    assert found.error is not None
    why = {"cut": "it was cut", "abort": "it was cut|with 'abort'"}.get(fault, "worker died")
    assert re.search(why, found.error)


@pytest.mark.parametrize(
    ("shape", "why"),
    [("error-in-choice", "says .*worker died"), ("detail", "it was cut behind .*worker died")],
)
@pytest.mark.parametrize("dialect", ["vllm", "text", "chat"])
def test_an_error_is_told_wherever_it_stands(dialect: str, shape: str, why: str) -> None:
    with serving(Fake(dialect, shape=SHAPES[shape])) as url:
        found = listened(Server(url, texts=_Spoken()), ASK, 0.0)
    assert found.error is not None
    assert re.search(why, found.error)


@pytest.mark.parametrize(
    ("kind", "page", "why"),
    [
        ("application/json", b'{"error": {"message": "worker died"}}', "'worker died'"),
        ("text/html", b"<html>Welcome</html>", "'<html>Welcome</html>'"),
        ("text/event-stream", b"", "an empty page"),
    ],
)
def test_a_page_in_place_of_a_stream_is_told(kind: str, page: bytes, why: str) -> None:
    with serving(Fake("vllm", page=(kind, page))) as url:
        found = listened(Server(url), ASK, 0.0)
    assert found.error == f"/v1/completions answers {kind} and no stream: {why}"


@pytest.mark.parametrize("shape", ["another-output", "half-characters", "tgi"])
def test_one_output_is_read_however_it_is_told(shape: str) -> None:
    with serving(Fake("text", shape=SHAPES[shape])) as url:
        found = listened(Server(url, texts=_Encoding()), ASK, 0.0)
    assert (found.error, found.tokens, len(found.times), found.retokenised) == (None, 6, 6, False)


class _Encoding(Letters):
    """A tokenizer that takes whole characters alone, as real ones do."""

    def ids(self, text: str) -> list[int]:
        return super().ids(text.encode().decode())


def test_a_call_of_a_tool_ends_an_answer_and_is_timed() -> None:
    with serving(Fake("chat", shape=SHAPES["calls"])) as url:
        found = listened(Server(url, texts=_Spoken()), ASK, 0.0)
    assert (found.error, found.tokens, len(found.times)) == (None, 6, 6)


def test_an_output_of_which_nothing_came_has_no_times() -> None:
    with serving(Fake("text", shape=SHAPES["wordless"])) as url:
        found = listened(Server(url, texts=Letters()), ASK, 0.0)
    assert (found.error, found.tokens, found.unstreamed) == (None, 0, 6)
    assert (found.ttft_s, found.tpot_s) == (None, None)


def test_fewer_tokens_than_events_with_text_are_counted_again() -> None:
    with serving(Fake("text", shape=SHAPES["counts-less"])) as url:
        found = listened(Server(url, texts=Letters()), ASK, 0.0)
    assert (found.error, found.tokens, found.retokenised) == (None, 6, True)
    with serving(Fake("vllm", shape=SHAPES["counts-less"])) as url:
        by_ids = listened(Server(url), ASK, 0.0)
    assert (by_ids.error, by_ids.tokens, by_ids.retokenised) == (None, 6, False)


@pytest.mark.parametrize("more", [False, True])
def test_more_cached_tokens_than_the_prompt_has_are_none(more: bool) -> None:
    shape = SHAPES["cached-more"] if more else None
    with serving(Fake("text", prefix_s=0.001, shape=shape)) as url:
        server = Server(url, texts=Letters())
        assert listened(server, ASK, 0.0).error is None
        assert listened(server, ASK, 0.0).cached == (None if more else 2)


class _Spoken(Letters):
    def asked(self, ids: list[int]) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": self.text(ids)}]}


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("data_lines", [1, 2])
def test_streams_are_read_as_their_format_says(line_end: str, data_lines: int) -> None:
    with serving(Fake("text", line_end=line_end, data_lines=data_lines)) as url:
        found = listened(Server(url, texts=Letters()), ASK, 0.0)
    assert (found.error, found.tokens) == (None, 6)


@pytest.mark.parametrize(("hidden", "reasoning"), [(60, ""), (0, "reasoning"), (0, "")])
def test_tokens_that_are_counted_and_not_streamed_make_no_time(hidden: int, reasoning: str) -> None:
    with serving(Fake("chat", hidden=hidden, reasoning=reasoning)) as url:
        found = listened(Server(url, texts=_Spoken()), replace(ASK, max_new_tokens=90), 0.0)
    assert found.error is None
    assert (found.tokens, found.unstreamed) == (90 - hidden, hidden)


@pytest.mark.parametrize(
    ("dialect", "reasoning", "shape", "thought"),
    [
        ("chat", "reasoning", "", 2),
        ("chat", "", "in-tags", 2),
        ("text", "", "in-tags", 2),
        ("chat", "", "", 0),
    ],
)
def test_the_answer_behind_a_thought_is_timed(dialect: str, reasoning: str, shape: str, thought: int) -> None:
    fake = Fake(dialect, reasoning=reasoning, shape=SHAPES.get(shape), step_s=0.01)
    with serving(fake) as url:
        found = listened(Server(url, texts=_Spoken()), ASK, 0.0)
        short = listened(Server(url, texts=_Spoken()), replace(ASK, max_new_tokens=2), 0.0)
    assert (found.error, found.tokens, found.thought) == (None, 6, thought)
    assert shape or found.thought_tokens == thought  # shares are by characters, and marks are long
    if not thought:
        assert found.answer_ttft_s is None
        return
    assert found.ttft_s is not None
    assert found.answer_ttft_s is not None
    assert found.answer_ttft_s - found.ttft_s > 0.01
    assert (short.thought_tokens, short.answer_ttft_s) == (2, None)


def test_the_servers_own_count_of_a_thought_is_taken() -> None:
    with serving(Fake("chat", reasoning="reasoning", shape=SHAPES["reasoning-told"])) as url:
        found = listened(Server(url, texts=_Spoken()), ASK, 0.0)
    assert (found.thought, found.thought_tokens, found.tokens) == (2, 3, 6)


def test_thoughts_are_told(tmp_path: Path) -> None:
    with serving(Fake("chat", reasoning="reasoning")) as url:
        done = load(tmp_path / "out", "--engine", f"openai:{url}", "--concurrency", "1")
    assert done.code == 0, done.err
    assert "36 of 36 answers begin with a thought, 72 tokens in all" in " ".join(done.out.split())
    requests = [request for wave in read(tmp_path / "out")["waves"] for request in wave["requests"]]
    assert all(request["answer_ttft_s"] > request["ttft_s"] > 0 for request in requests)
    assert {request["thought_tokens"] for request in requests} == {2}


def test_prompts_that_come_again_are_told_apart(tmp_path: Path) -> None:
    fake = Fake("ids-in", prefix_s=0.05)
    with serving(fake) as url:
        done = load(tmp_path / "out", "--engine", f"openai:{url}", "--concurrency", "1")
    assert done.code == 0, done.err
    (row,) = read(tmp_path / "out")["rows"]
    requests = [request for wave in read(tmp_path / "out")["waves"] for request in wave["requests"]]
    assert [len(wave["requests"]) for wave in read(tmp_path / "out")["waves"]] == [4] * 9
    assert (row["requests"], row["again"]) == (36, 32)
    assert row["ttft_ms"]["p50"] > 50 > row["ttft_again_ms"]["p50"]
    assert row["cached_tokens"] == sum(request["cached_tokens"] for request in requests) > 0
    assert "the prompts of 32 of 36 requests had come before" in " ".join(done.out.split())


def test_a_prompt_is_not_asked_twice_in_a_wave_unless_it_is_wanted() -> None:
    asks = [Ask([place], 4) for place in range(7)]
    once = list(turns(asks, 1, [1, 3], 1, 0))
    assert all(len({tuple(ask.prompt_ids) for ask in turn.asks}) == len(turn.asks) for turn in once)
    of_one = Counter(tuple(ask.prompt_ids) for turn in once if turn.concurrency == 1 for ask in turn.asks)
    assert max(of_one.values()) - min(of_one.values()) <= 1
    again = list(turns(asks[:2], 2, [4], 1, 0))
    assert {len(turn.asks) for turn in again} == {8}
    with pytest.raises(UsageError, match="2 prompts do not keep 4 requests in flight"):
        list(turns(asks[:2], 1, [4], 1, 0))
    with pytest.raises(UsageError, match="1 prompts do not keep 2"):
        list(turns([asks[0], asks[0]], 1, [2], 1, 0))


def test_a_counter_that_is_no_number_counts_nothing(tmp_path: Path) -> None:
    with serving(Fake("vllm", k=4, fault="nan")) as url:
        done = load(tmp_path / "out", "--engine", f"openai:{url}", "--concurrency", "1")
    assert done.code == 0, done.err
    assert read(tmp_path / "out")["rows"][0]["acceptance"] is None


@pytest.mark.parametrize("wrong", METRICS)
def test_counters_that_cannot_be_count_nothing(wrong: str) -> None:
    found = []
    for page in (METRICS[wrong], str):
        with serving(Fake("vllm", k=4, page_of_metrics=page)) as url:
            server = Server(url)
            counted = server.counting()
            found.append(counted(listened(server, ASK, 0.0).tokens))
    assert found == [(None, None), (24, 3)]


@pytest.mark.parametrize(
    "page",
    [
        lambda text: text.replace("\n", ' # {trace="a b"} 1.0\n'),
        lambda text: text.replace("a tiny model", r"{a} \"tiny\" } 5"),
        lambda text: text.replace("\n", " 1790000000000\r\n"),
    ],
)
def test_what_stands_beside_a_counter_is_read_over(page: Callable[[str], str]) -> None:
    with serving(Fake("vllm", k=4, page_of_metrics=page)) as url:
        server = Server(url)
        counted = server.counting()
        assert counted(listened(server, ASK, 0.0).tokens) == (24, 3)


@pytest.mark.parametrize("dialect", ["vllm", "llama", "sglang"])
def test_more_kept_than_proposed_is_not_believed(tmp_path: Path, dialect: str) -> None:
    with serving(Fake(dialect, k=0 if dialect == "vllm" else 4, shape=SHAPES["keeps-more"])) as url:
        done = load(tmp_path / "out", "--engine", f"openai:{url}", "--concurrency", "1")
    assert done.code == 0, done.err
    told = read(tmp_path / "out")
    assert told["rows"][0]["acceptance"] in (None, 0.125)  # of /metrics
    assert told["waves"][0]["requests"][0]["accepted"] == 9
    assert "36 answers count more draft tokens kept than proposed" in " ".join(done.out.split())


@pytest.mark.parametrize("refused", [(), ("stream_options",), ("return_token_ids",)])
@pytest.mark.parametrize("dialect", ["text", "chat"])
def test_fields_are_tried_in_the_mode_that_is_used(dialect: str, refused: tuple[str, ...]) -> None:
    fake = Fake(dialect, counted="ids" if dialect == "chat" else "", not_in_streams=refused)
    with serving(fake) as url:
        server = Server(url, texts=_Spoken(), alone=False)
        found = listened(server, ASK, 0.0)
    assert (found.error, found.tokens) == (None, 6)
    assert found.retokenised is (refused == ("stream_options",) and dialect == "text")
