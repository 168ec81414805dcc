"""A ``Server`` against servers that speak the dialects of real ones, and against broken ones."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fake_server import VOCAB, Fake, Letters, following, serving, written

import spsbench
from spsbench.base.errors import UnavailableError, UsageError
from spsbench.base.protocol import (
    LENGTH,
    STOP,
    Ask,
    Drafting,
    Load,
    PeerError,
    PeerGone,
    Sampling,
    Wave,
    checked,
)
from spsbench.decode.processors import LAST_N
from spsbench.parts.external.dialects import texts_in
from spsbench.parts.external.registry import find_peer, server_address
from spsbench.parts.external.server import Server, require_same_model

GREEDY = Sampling(greedy=True)
PROMPT = [5, 9, 1]
ASK = Ask(PROMPT, 6, [0], sampling=GREEDY)
DIALECTS = ("vllm", "llama", "sglang", "ids-in", "text")
STOPPING = [18]  # its successors: 1, 10, 9, 2, 17, 26, 25, 18


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_gives_the_same_ids(dialect: str) -> None:
    fake = Fake(dialect)
    with serving(fake) as url:
        server = Server(url, texts=Letters())
        answer = checked(server.generate(ASK), ASK, VOCAB)
    assert answer.output_ids == written(PROMPT, 6, [0])
    assert answer.finish == LENGTH
    assert answer.retokenised is (dialect in ("ids-in", "text"))
    assert answer.wall_ms > 0


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_stop_token_belongs_to_the_output(dialect: str) -> None:
    last = 26
    wanted = written(STOPPING, 9, [last])
    ask = Ask(STOPPING, 9, [last], [chr(65 + last)], GREEDY)
    with serving(Fake(dialect)) as url:
        answer = Server(url, texts=Letters()).generate(ask)
    assert checked(answer, ask, VOCAB).output_ids == wanted
    assert answer.finish == STOP


@pytest.mark.parametrize("fault", ["", "keeps-stop"])
def test_llama_cpp_ends_at_a_string(fault: str) -> None:
    start = next(token for token in range(VOCAB) if following(token) == 31)
    ask = Ask([start], 9, [31], ["\n"], GREEDY)
    with serving(Fake("llama", fault=fault)) as url:
        answer = Server(url).generate(ask)
    assert answer.hidden_stop is bool(fault)
    assert checked(answer, ask, VOCAB).output_ids == [31]
    assert (answer.decoded, answer.prefill_ms, answer.decode_ms) == (0, 1.0, 2.0)


def test_an_end_that_nobody_asked_for_is_an_error() -> None:
    start = next(token for token in range(VOCAB) if following(token) == 0)
    ask = Ask([start], 9, [31], [], GREEDY)
    with serving(Fake("llama")) as url, pytest.raises(PeerError, match="ended after 1 of 9 tokens"):
        checked(Server(url).generate(ask), ask, VOCAB)


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_the_url_may_end_in_v1(path: str) -> None:
    with serving(Fake()) as url:
        assert Server(url + path).describe().engine == "vLLM"


@pytest.mark.parametrize(
    ("dialect", "engine", "version", "vocab"),
    [
        ("vllm", "vLLM", "0.32.0", None),
        ("llama", "llama.cpp", "b11434-abc", VOCAB),
        ("sglang", "SGLang", "0.5.9", None),
        ("ids-in", "OpenAI API", "unknown", None),
        ("text", "TGI", "3.3", None),
    ],
)
def test_it_knows_whom_it_asks(dialect: str, engine: str, version: str, vocab: int | None) -> None:
    with serving(Fake(dialect)) as url:
        found = Server(url).describe()
    assert (found.engine, found.version, found.vocab_size, found.rule) == (engine, version, vocab, None)
    assert found.limits


def test_one_that_refuses_what_it_does_not_know_is_not_taken_for_chat_alone() -> None:
    fake = Fake("strict")
    with serving(fake) as url:
        answer = checked(Server(url, texts=Letters()).generate(ASK), ASK, VOCAB)
    assert answer.output_ids == written(PROMPT, 6, [0])
    assert not any("messages" in body for body in fake.seen)


def _sent(dialect: str, ask: Ask) -> dict[str, Any]:
    fake = Fake(dialect)
    with serving(fake) as url:
        Server(url, texts=Letters()).generate(ask)
    return fake.seen[-1]


def test_sampling_is_set_and_what_bends_it_is_off() -> None:
    ask = Ask(PROMPT, 3, [0], sampling=Sampling(temperature=0.7, top_k=9, top_p=0.8), seed=2**70 + 11)
    vllm, llama, sglang = (_sent(dialect, ask) for dialect in ("vllm", "llama", "sglang"))
    wanted = {"temperature": 0.7, "top_k": 9, "top_p": 0.8, "min_p": 0.0}
    for body in (vllm, llama, sglang["sampling_params"]):
        assert wanted.items() <= body.items()
        assert body["presence_penalty"] == body["frequency_penalty"] == 0.0
    assert vllm["seed"] == sglang["sampling_params"]["sampling_seed"] == 11
    assert llama["samplers"] == ["temperature", "top_k", "top_p"]
    assert llama["repeat_penalty"] == vllm["repetition_penalty"] == 1.0
    assert llama["cache_prompt"] is False
    assert 0 <= llama["seed"] < 2**32 - 1


@pytest.mark.parametrize("dialect", ["vllm", "llama", "sglang"])
def test_log_probabilities_are_asked_for_where_they_are_wanted(dialect: str) -> None:
    fake = Fake(dialect)
    with serving(fake) as url:
        plain, told = (Server(url).generate(replace(ASK, logprobs=wanted)) for wanted in (False, True))
    assert plain.logprobs is None
    assert told.logprobs == [-float(token) for token in told.output_ids]
    name = {"vllm": "logprobs", "llama": "n_probs", "sglang": "return_logprob"}[dialect]
    assert [name in body for body in fake.seen] == [False, True]


@pytest.mark.parametrize(("k", "fault"), [(4, ""), (0, "half-character")])
def test_log_probabilities_that_llama_cpp_makes_up_or_leaves_out_are_none(k: int, fault: str) -> None:
    with serving(Fake("llama", k=k, fault=fault)) as url:
        assert Server(url).generate(replace(ASK, logprobs=True)).logprobs is None


def test_processors_have_the_names_of_each_server() -> None:
    steps = Sampling(min_p=0.1, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.4)
    vllm, llama, sglang = (
        _sent(dialect, Ask(PROMPT, 3, [0], sampling=steps)) for dialect in ("vllm", "llama", "sglang")
    )
    wanted = {"min_p": 0.1, "presence_penalty": 0.3, "frequency_penalty": 0.4}
    for body in (vllm, sglang["sampling_params"]):
        assert (wanted | {"repetition_penalty": 1.2}).items() <= body.items()
    assert (wanted | {"repeat_penalty": 1.2, "repeat_last_n": LAST_N}).items() <= llama.items()
    assert llama["samplers"] == ["penalties", "top_k", "typ_p", "top_p", "min_p", "temperature"]
    more = Sampling(typical_p=0.9, logit_bias={"7": -1.5}, grammar='{"type": "object"}')
    llama = _sent("llama", Ask(PROMPT, 3, [0], sampling=more))
    assert (llama["typical_p"], llama["logit_bias"]) == (0.9, [[7, -1.5]])
    assert llama["json_schema"] == {"type": "object"}


def test_greedy_leaves_nothing_to_chance() -> None:
    bodies = [_sent(dialect, Ask(PROMPT, 3, sampling=GREEDY)) for dialect in ("vllm", "llama", "sglang")]
    assert [body.get("temperature", 0.0) for body in bodies] == [0.0] * 3
    assert bodies[2]["sampling_params"]["temperature"] == 0.0
    assert bodies[1]["samplers"] == ["top_k"]
    assert bodies[1]["ignore_eos"] is True  # no token is to end it


def test_what_the_api_cannot_say_is_refused() -> None:
    with serving(Fake("text")) as url, pytest.raises(PeerError, match="no top-k, and top-k 9 is asked for"):
        Server(url, texts=Letters()).generate(Ask(PROMPT, 3, sampling=Sampling(top_k=9)))


def test_text_without_a_tokenizer_is_refused() -> None:
    with serving(Fake("ids-in")) as url, pytest.raises(PeerError, match="there is no tokenizer"):
        Server(url).generate(ASK)


def test_a_prompt_read_otherwise_is_an_error() -> None:
    class Longer(Letters):
        def text(self, ids: list[int]) -> str:
            return super().text([*ids, 1])

    with serving(Fake("text")) as url, pytest.raises(PeerError, match="prompt of 4 tokens where 3 were sent"):
        Server(url, texts=Longer()).generate(ASK)


@pytest.mark.parametrize("dialect", ["llama", "sglang"])
def test_counts_come_with_the_answer(dialect: str) -> None:
    with serving(Fake(dialect, k=4)) as url:
        answer = Server(url).generate(ASK)
    assert (answer.drafted, answer.accepted) == (24, 3)
    assert answer.loops == (3 if dialect == "sglang" else None)


def test_counts_come_from_two_looks_at_metrics() -> None:
    with serving(Fake("vllm", k=4)) as url:
        server = Server(url)
        answers = [server.generate(ASK) for _ in range(2)]
        beside_others = Server(url, alone=False).generate(ASK)
    assert [(answer.drafted, answer.accepted) for answer in answers] == [(24, 3)] * 2
    assert beside_others.drafted is None


def test_what_another_client_adds_is_noticed() -> None:
    with serving(Fake("vllm", k=4, fault="counts-more")) as url:
        answer = Server(url).generate(ASK)
    assert answer.drafted is None
    assert answer.accepted is None


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_stream_counts_up(dialect: str) -> None:
    with serving(Fake(dialect, k=2)) as url:
        heard = list(Server(url, texts=Letters()).stream(ASK))
    assert heard[-1].tokens == 6
    assert sum(each.text for each in heard) == 6
    if dialect not in ("ids-in", "text"):
        assert [each.tokens for each in heard if each.text] == [1, 2, 3, 4, 5, 6]
    if dialect in ("llama", "sglang"):
        assert (heard[-1].drafted, heard[-1].accepted) == (12, 3)


def test_a_stream_that_breaks_off_is_an_error() -> None:
    with serving(Fake(fault="midway")) as url, pytest.raises(PeerError, match="worker died"):
        list(Server(url).stream(ASK))


def test_a_silent_stream_ends_in_time() -> None:
    with serving(Fake(step_s=1.0)) as url, pytest.raises(PeerError, match=r"no answer from .* within 0\.3 s"):
        list(Server(url, answer_s=0.3).stream(ASK))


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("html", "answers text/html, no JSON: '<html>"),
        ("401", "answers 401; set its key in SPSBENCH_API_KEY"),
        ("404", "answers 404; give the URL of the server's root or of /v1"),
    ],
)
def test_what_is_no_such_server_is_gone(fault: str, text: str) -> None:
    with serving(Fake(fault=fault)) as url, pytest.raises(PeerGone, match=text):
        Server(url).describe()


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("500", "answers 500: 'out of memory'"),
        ("rubbish", "answers something other than an object"),
        ("slow", r"no answer from .* within 0\.3 s"),
    ],
)
def test_a_request_that_fails_costs_itself_and_three_the_engine(fault: str, text: str) -> None:
    fake = Fake(fault=fault)
    with serving(fake) as url:
        server = Server(url, answer_s=0.3)
        for _ in range(2):
            with pytest.raises(PeerError, match=text) as failed:
                server.generate(ASK)
            assert not isinstance(failed.value, PeerGone)
        with pytest.raises(PeerGone, match="3 requests in a row failed"):
            server.generate(ASK)
        fake.fault = ""
        assert len(server.generate(ASK).output_ids) == 6


def test_three_waves_without_an_answer_cost_the_engine() -> None:
    """Requests that are to be aborted count for nothing of their own."""
    wave = Wave([ASK] * 6, [0] * 6, [None, 2, 2, 2, 2, None], 2)
    with serving(Fake(fault="500")) as url:
        server = Server(url)
        for _ in range(2):
            with pytest.raises(PeerError, match=r"nothing is answered: .*out of memory") as failed:
                server.together(wave)
            assert not isinstance(failed.value, PeerGone)
        with pytest.raises(PeerGone, match="3 requests in a row failed"):
            server.together(wave)


def test_nobody_answers() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(PeerGone, match=f"no server answers at http://127.0.0.1:{port}$"):
        Server(f"http://127.0.0.1:{port}").describe()


def test_the_key_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPSBENCH_API_KEY", "secret")
    fake = Fake()
    with serving(fake) as url:
        Server(url).describe()
    assert fake.keys[-1] == "Bearer secret"


def _opened(text: str) -> Any:
    return find_peer(text).open(Load("nowhere"), Path("log"), False)


def test_text_gets_the_ids_of_the_target_folder() -> None:
    target = Path(spsbench.__file__).parent / "mini" / "target"
    with serving(Fake("ids-in")) as url:
        answer = find_peer(f"openai:{url}").open(Load(str(target)), Path("log"), False).generate(ASK)
    texts = texts_in(str(target))
    assert texts.text(answer.output_ids) == Letters().text(written(PROMPT, 6, [0]))
    assert answer.retokenised
    assert checked(answer, ASK, 1024) == answer  # whatever their number


def test_of_several_models_one_is_named() -> None:
    with serving(Fake(names=("big", "small:8b"))) as url:
        with pytest.raises(PeerGone, match="it serves big, small:8b: choose with :model=NAME"):
            _opened(f"openai:{url}").describe()
        with pytest.raises(PeerGone, match="'tiny' is not served"):
            _opened(f"openai:{url}:model=tiny").describe()
        peer = _opened(f"openai:{url}/v1:model=small:8b")
        assert peer.generate(ASK).output_ids == written(PROMPT, 6, [0])


@pytest.mark.parametrize("text", ["openai:", "openai:127.0.0.1:8000", "openai:ftp://a", "openai:http://"])
def test_what_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not the URL of a server"):
        find_peer(text)


def test_an_empty_model_name_is_refused() -> None:
    with pytest.raises(UsageError, match="a name is missing after"):
        find_peer("openai:http://a:model=")


@pytest.mark.parametrize(
    ("text", "address", "drafting"),
    [
        ("http://a:1/v1", ("http://a:1/v1", None), None),
        ("http://a:1:draft_p_min=0.6:draft_n_min=2", ("http://a:1", None), Drafting(0.6, 2)),
        ("http://a:draft_top_k=10:model=x/y:8b", ("http://a", "x/y:8b"), Drafting(top_k=10)),
        ("http://a/v1:model=x=1:draft_p_min=1", ("http://a/v1", "x=1"), Drafting(1)),
        ("http://me:b=c@a:1", ("http://me:b=c@a:1", None), None),
    ],
)
def test_how_its_drafts_end_is_declared_behind_the_address(
    text: str, address: tuple[str, str | None], drafting: Drafting | None
) -> None:
    assert server_address(f"openai:{text}", "--engine") == address
    assert find_peer(f"openai:{text}").drafting == drafting


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("p_min=0.6", "openai:URL has no option p_min. It has model, draft_p_min, draft_n_min, draft_top_k"),
        ("draft_min=2", "openai:URL has no option draft_min"),
        ("draft_p_min=1.5", "openai:URL:draft_p_min=1.5 is not valid. Give a number from 0 to 1"),
        ("draft_n_min=two", "openai:URL:draft_n_min=two is not valid. Give a whole number"),
    ],
)
@pytest.mark.parametrize("url", ["http://a:1", "http://a/v1"])
def test_what_a_server_cannot_declare_is_refused(url: str, option: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        find_peer(f"openai:{url}:{option}")
    assert said in str(refused.value)


ROWS = [([token], following(token), 2.0) for token in range(8)]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_target_is_known_by_its_tokens(dialect: str) -> None:
    with serving(Fake(dialect)) as url:
        require_same_model(Server(url, texts=Letters()), ROWS, url)


def test_a_near_tie_may_fall_either_way() -> None:
    with serving(Fake()) as url:
        require_same_model(Server(url), [*ROWS, ([1], 0, 0.1)], url)


def test_another_model_is_refused() -> None:
    with serving(Fake(fault="wrong-model")) as url:
        with pytest.raises(UnavailableError, match="at 8 of 8 prompts") as refused:
            require_same_model(Server(url), ROWS, url)
        assert url in str(refused.value)
        assert refused.value.exit_code == 3


def test_near_ties_alone_prove_nothing() -> None:
    with serving(Fake()) as url, pytest.raises(UnavailableError, match="no prompt of 1 distinguishes"):
        require_same_model(Server(url), [([1], following(1), 0.1)], url)


def test_a_server_that_does_not_answer_is_named() -> None:
    with serving(Fake(fault="500")) as url, pytest.raises(UnavailableError, match="out of memory"):
        require_same_model(Server(url), ROWS, url)
