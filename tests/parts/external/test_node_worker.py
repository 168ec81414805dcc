"""The worker in JavaScript speaks the protocol, here over a model that counts; node is not everywhere."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from spsbench.base.protocol import Ask, Load, PeerError, Sampling, checked
from spsbench.parts.external.worker import Worker, WorkerCommand

NODE = shutil.which("node")
ROOT = Path(__file__).resolve().parents[3]
FAKE = ROOT / "tests/support/fake_node_llama_cpp.mjs"
GREEDY = Sampling(greedy=True)
ASK = Ask([5, 6, 7], 4, stop_ids=[50], sampling=GREEDY)

pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed")


@contextmanager
def worker(folder: Path, *files: str, draft: str | None = None) -> Iterator[Worker]:
    script = str(ROOT / "examples/node_llama_cpp.mjs")
    command = [str(NODE), script, *files, "--library", str(FAKE)]
    load = Load("target", draft, 4 if draft else 0, threads=1)
    with Worker(WorkerCommand(command, folder / "log", answer_s=30.0), load) as started:
        yield started


def test_it_answers_by_the_protocol(tmp_path: Path) -> None:
    """What the library prints is in the log, however it prints."""
    with worker(tmp_path, "chatty", "draft", draft="draft") as peer:
        told = peer.describe()
        assert (told.engine, told.vocab_size, told.rule) == ("node-llama-cpp", 100, "sample-and-compare")
        assert told.settings["dtype"] == "float32"
        answer = checked(peer.generate(ASK), ASK, 100)
        assert (answer.output_ids, answer.finish) == ([8, 9, 10, 11], "length")
        assert (answer.decoded, answer.drafted, answer.accepted, answer.loops) == (4, 4, 4, None)
        early = replace(ASK, stop_ids=[9])
        stopped = checked(peer.generate(early), early, 100)
        assert (stopped.output_ids, stopped.finish) == ([8, 9], "stop")
        one = replace(ASK, prompt_ids=[7], max_new_tokens=1)
        assert peer.generate(one).output_ids == [8]
    assert "loading" in (tmp_path / "log").read_text()


def test_a_seed_is_given_on_and_no_two_requests_without_one_share_it(tmp_path: Path) -> None:
    with worker(tmp_path, "target") as peer:
        assert peer.describe().rule is None
        drawn = replace(ASK, sampling=Sampling(), seed=1, max_new_tokens=20, stop_ids=[])
        texts = [peer.generate(replace(drawn, seed=seed)).output_ids for seed in (1, 1, 2)]
        assert texts[0] == texts[1] != texts[2]
        plain = peer.generate(drawn)
        assert (plain.loops, plain.drafted) == (20, None)
        for _ in range(2):
            peer.generate(replace(drawn, seed=None))
    options = [json.loads(line.split(" ", 1)[1]) for line in (tmp_path / "log").read_text().splitlines()]
    seeds = [each["seed"] for each in options]
    assert seeds[:4] == [1, 1, 2, 1]
    assert seeds[4] != seeds[5]
    assert {(each["topK"], each["topP"], each["minP"]) for each in options} == {(0, 1, 0)}


def test_what_it_cannot_do_is_an_answer_of_one_line(tmp_path: Path) -> None:
    """And the next request is answered."""
    with worker(tmp_path, "target") as peer:
        peer.describe()
        with pytest.raises(PeerError, match="cannot: this worker has no min_p, bad_words"):
            peer.generate(replace(ASK, sampling=Sampling(min_p=0.1, bad_words=[[1]])))
        assert peer.generate(ASK).output_ids == [8, 9, 10, 11]
    for files, said in ((("broken",), "'it is no GGUF file'"), (("target",), "no draft.gguf stands behind")):
        with (
            worker(tmp_path, *files, draft=None if "broken" in files else "draft") as peer,
            pytest.raises(PeerError, match=said),
        ):
            peer.describe()
