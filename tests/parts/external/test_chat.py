"""Servers that only chat: what they are asked, and what is heard of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.commandline import call
from support.fake_server import Fake, Letters, serving, text_of, written

from spsbench.base.protocol import STOP, Ask, Load, PeerError, PeerGone, Sampling
from spsbench.parts.external.messages import CHAT_ALONE
from spsbench.parts.external.registry import find_peer
from spsbench.parts.external.server import Server

GREEDY = Sampling(greedy=True)
ASK = Ask([5, 9, 1], 6, sampling=GREEDY)
WRITTEN = written([2], 6, [])  # the template's last token decides


def listened(*given: Any) -> Any:
    """What a measurement under load hears, by a part that may be gone."""
    return pytest.importorskip("spsbench.parts.load.measure").listened(*given)


class Talk(Letters):
    """A tokenizer that knows the messages."""

    def asked(self, ids: list[int]) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": text_of(ids)}]}


@pytest.mark.parametrize("absent", [400, 404, 405, 501])
def test_chat_is_taken_where_there_are_no_completions(absent: int) -> None:
    fake = Fake("chat", absent=absent)
    with serving(fake) as url:
        server = Server(url, texts=Talk())
        told, answer = server.describe(), server.generate(ASK)
    assert told.engine == "OpenAI API (chat)"
    assert told.limits[0] == CHAT_ALONE
    assert answer.output_ids == WRITTEN
    assert answer.retokenised
    sent = fake.seen[-1]
    assert sent["messages"] == [{"role": "user", "content": text_of(ASK.prompt_ids)}]
    assert (sent["max_tokens"], sent["temperature"], "prompt" in sent) == (6, 0.0, False)


def test_completions_are_preferred() -> None:
    with serving(Fake("ids-in")) as url:
        told = Server(url, texts=Talk()).describe()
    assert told.engine == "OpenAI API"
    assert CHAT_ALONE not in told.limits


def test_a_server_with_neither_says_what_is_not_there() -> None:
    wanted = "/v1/completions answers 404; give the URL of the server's root"
    with serving(Fake("chat", fault="no-chat")) as url, pytest.raises(PeerGone, match=wanted):
        Server(url, texts=Talk()).describe()


def test_an_arm_is_refused() -> None:
    """Its texts would be judged under prompts that the server never read."""
    with serving(Fake("chat")) as url:
        peer = find_peer(f"openai:{url}").open(Load("nowhere"), Path("log"), False)
        with pytest.raises(PeerGone, match=r"it serves chat alone .* cannot be compared with the target's"):
            peer.describe()


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_comes_first_and_counts(name: str) -> None:
    with serving(Fake("chat", reasoning=name)) as url:
        server = Server(url, texts=Talk())
        assert server.generate(ASK).output_ids == WRITTEN
        one = Ask([5], 1, sampling=GREEDY)
        assert server.generate(one).output_ids == WRITTEN[:1]  # of an answer without content
        heard = list(server.stream(ASK))
        reading = listened(server, ASK, 0.0)
    assert [each.said for each in heard if each.text] == list(text_of(WRITTEN))
    assert not heard[0].text  # which names the role
    assert (reading.tokens, len(reading.times)) == (6, 6)


@pytest.mark.parametrize("counted", ["ids", "logprobs", ""])
def test_uneven_events_are_counted_by_what_they_hold(counted: str) -> None:
    with serving(Fake("chat", counted=counted, bursts=(3, 1))) as url:
        server = Server(url, texts=Talk())
        reading = listened(server, ASK, 0.0)
        answer = server.generate(ASK)
    assert reading.counts == (3, 4, 6)
    assert not reading.retokenised
    assert answer.retokenised is (counted != "ids")


def test_without_a_count_the_text_is_tokenized_and_it_is_told() -> None:
    with serving(Fake("chat", fault="uncounted", bursts=(4,))) as url:
        reading = listened(Server(url, texts=Talk()), ASK, 0.0)
    assert (reading.counts, reading.retokenised) == ((4, 6), True)
    with serving(Fake("chat", fault="uncounted", counted="ids")) as url:
        assert not listened(Server(url, texts=Talk()), ASK, 0.0).retokenised


def test_the_limit_has_another_name() -> None:
    fake = Fake("chat", limits_by="max_completion_tokens")
    with serving(fake) as url:
        assert len(Server(url, texts=Talk()).generate(ASK).output_ids) == 6
    assert fake.seen[-1]["max_completion_tokens"] == 6
    assert "max_tokens" not in fake.seen[-1]


def test_what_a_chat_refuses_is_told() -> None:
    with (
        serving(Fake("chat", limits_by="limit")) as url,
        pytest.raises(PeerGone, match="400: 'unknown: max_"),
    ):
        Server(url, texts=Talk()).describe()


def test_stop_strings_end_a_chat() -> None:
    last = WRITTEN[3]
    ask = Ask([5], 6, [last], [text_of([last])], GREEDY)
    with serving(Fake("chat")) as url:
        server = Server(url, texts=Talk())
        answer, reading = server.generate(ask), listened(server, ask, 0.0)
    assert (answer.finish, answer.hidden_stop, answer.output_ids) == (STOP, True, WRITTEN[:3])
    assert reading.tokens == 4  # the server counts the token that it keeps back


def test_an_error_in_the_stream_is_told() -> None:
    with serving(Fake("chat", fault="midway")) as url, pytest.raises(PeerError, match="worker died"):
        list(Server(url, texts=Talk()).stream(ASK))


def test_top_k_is_refused() -> None:
    with serving(Fake("chat")) as url, pytest.raises(PeerError, match="its API has no top-k"):
        Server(url, texts=Talk()).generate(Ask([5], 6, sampling=Sampling(top_k=5)))


@pytest.mark.thorough
def test_its_load_is_measured_and_said(tmp_path: Path) -> None:
    fake = Fake("chat", reasoning="reasoning_content", fault="uncounted")
    out = tmp_path / "out"
    with serving(fake) as url:
        measured = ("--engine", f"openai:{url}", "--concurrency", "2", "--out", out)
        done = call("run", "xsum", "--limit", 4, "--max-new-tokens", 6, "--sampling", "greedy", *measured)
    assert done.code == 0, done.err
    assert f"openai:{url}: {CHAT_ALONE}" in done.err
    shown = " ".join(done.out.split())
    assert CHAT_ALONE in shown
    assert "answers without a count of tokens, or with one below" in shown
    told = json.loads((out / "load.json").read_text())
    assert told["servers"][0]["engine"] == "OpenAI API (chat)"
    contents = {body["messages"][0]["content"] for body in fake.seen[-8:]}
    assert len(contents) == 4
    assert all("Summary" in text or "Article" in text for text in contents)
