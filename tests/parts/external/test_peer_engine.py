"""A peer as an engine: what it is asked, where its output ends, what its times and loops are of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from spsbench.base.protocol import Answer, Ask, Described, PeerError, PeerGone
from spsbench.base.records import Request, SamplingParams
from spsbench.parts.external.engine import PeerEngine, loops_of, spent

EOS, NEWLINE, LONGER = 0, 5, 6
PIECES = {EOS: "", 1: "a", 2: "b", 3: "Q", 4: ":", NEWLINE: "\n", LONGER: " x\n"}
ASKED = Request((1, 2), 6, ("\n",), SamplingParams(top_p=0.8), seed=3)


class Decoder:
    """Seven tokens."""

    eos_ids = frozenset({EOS})

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(PIECES[token] for token in ids)


class Scripted:
    """Gives its answers in turn; an exception among them is raised."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self.answers, self.asked = list(answers), list[Ask]()

    def describe(self) -> Described:
        return Described("scripted", "1", vocab_size=7)

    def generate(self, ask: Ask) -> Answer:
        self.asked.append(ask)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        pass


def engine(peer: Scripted, k: int = 0, took_s: float = 1.0) -> PeerEngine:
    """Each request takes so long on its clock."""
    ticks = iter(took_s * n for n in range(1000))
    return PeerEngine("worker:x", peer, Decoder(), 7, k, lambda: next(ticks))


def answer(ids: list[int], finish: str = "length", **told: Any) -> Answer:
    return Answer(ids, finish, **({"prefill_ms": 10.0, "decode_ms": 60.0, "decoded": len(ids)} | told))


def test_a_request_names_every_token_that_ends_it() -> None:
    peer = Scripted(answer([1, 2, LONGER], "stop"), answer([1] * 6))
    found = engine(peer).generate(ASKED)
    asked = peer.asked[0]
    assert (asked.stop_ids, asked.stop) == ([EOS, NEWLINE, LONGER], ["\n"])
    assert (asked.prompt_ids, asked.max_new_tokens, asked.seed) == ([1, 2], 6, 3)
    assert (asked.sampling.greedy, asked.sampling.top_p) == (False, 0.8)
    assert (found.tokens, found.text, found.finish_reason) == ([1, 2, LONGER], "ab x", "stop")
    engine(peer).generate(replace(ASKED, fixed_length=True))
    assert (peer.asked[1].stop_ids, peer.asked[1].stop) == ([], [])


def test_seeds_are_such_as_engines_take() -> None:
    peer = Scripted(answer([1] * 6))
    engine(peer).generate(replace(ASKED, seed=2**62 + 5))
    assert peer.asked[0].seed == 5


def test_a_stop_string_of_several_characters_cuts_afterwards_and_shares_the_time() -> None:
    peer = Scripted(answer([1, 3, 4, 2, 2, 2]))
    found = engine(peer).generate(replace(ASKED, stop=("Q:",)))
    assert (peer.asked[0].stop_ids, peer.asked[0].stop) == ([EOS], [])
    assert (found.tokens, found.text, found.finish_reason) == ([1, 3, 4], "a", "stop")
    assert found.decode_s == pytest.approx(0.030)
    assert found.prefill_s == pytest.approx(0.010)


@pytest.mark.parametrize(
    ("told", "prefill_s", "decode_s"),
    [
        ({"decoded": 6}, 0.010, 0.060),
        ({"decoded": 5, "decode_ms": 50.0, "prefill_ms": 30.0}, 0.020, 0.060),  # the prefill gave one
        ({"decoded": 5, "decode_ms": 50.0, "prefill_ms": 3.0}, 0.0, 0.060),
        ({"decoded": None, "decode_ms": 50.0}, 0.0, 0.060),  # not told: against it
        ({"decoded": 8}, 0.010, 0.060),  # its last loop went beyond the end
        ({"decoded": 0, "decode_ms": 0.0}, 0.0, 0.010),
        ({"decode_ms": None}, 0.0, 1.0),
        ({"decode_ms": None, "wall_ms": 80.0}, 0.0, 0.080),
        ({"prefill_ms": None, "wall_ms": 80.0}, 0.020, 0.060),
        ({"prefill_ms": None}, 0.940, 0.060),
    ],
)
def test_every_token_costs_what_one_that_was_paid_for_does(
    told: dict[str, Any], prefill_s: float, decode_s: float
) -> None:
    found = spent(answer([1] * 6, **told), kept=6, took_s=1.0)
    assert found == pytest.approx((prefill_s, decode_s))


def test_what_is_not_told_of_times_is_said() -> None:
    peer = Scripted(answer([1] * 6, decode_ms=None), answer([1] * 6, decoded=None), answer([1] * 6))
    tested = engine(peer)
    tested.generate(ASKED)
    tested.generate(ASKED)
    tested.generate(ASKED)
    assert len(tested.unseen) == 2


@pytest.mark.parametrize(
    "told",
    [
        {"prefill_ms": -1.0},
        {"decode_ms": 0.0},
        {"decode_ms": 2000.0},
        {"prefill_ms": 990.0},
        {"wall_ms": 1e6},
    ],
)
def test_impossible_times_are_no_answer(told: dict[str, Any]) -> None:
    with pytest.raises(PeerError):
        engine(Scripted(answer([1] * 6, **{"decode_ms": 100.0} | told))).generate(ASKED)


def test_an_engine_that_was_given_up_is_not_asked_again() -> None:
    peer = Scripted(PeerError("late"), answer([1] * 6), PeerGone("3 in a row"), answer([1] * 6))
    tested = engine(peer)
    with pytest.raises(PeerError, match="late"):
        tested.generate(ASKED)
    assert tested.generate(ASKED).tokens == [1] * 6
    for _ in range(2):
        with pytest.raises(PeerGone):
            tested.generate(ASKED)
    assert len(peer.asked) == 3


def test_an_engine_with_another_vocabulary_is_another_model() -> None:
    with pytest.raises(PeerGone, match="another model"):
        PeerEngine("worker:x", Scripted(), Decoder(), 8).describe()


def test_loops_follow_from_what_was_told() -> None:
    told = answer([1] * 6, accepted_per_loop=[2, 0, 2], drafted=6)
    loops = loops_of(told, kept=6, k=2)
    assert loops is not None
    assert [(loop.drafted, loop.accepted, loop.emitted, loop.tested) for loop in loops] == [
        (2, 2, 3, 2),
        (2, 0, 1, 1),
        (2, 2, 2, 2),
    ]
    assert [loop.truncated for loop in loops] == [0, 0, 1]
    assert {loop.draft_s for loop in loops} == {None}
    assert all(loop.loop_s != loop.loop_s for loop in loops)
    cut = loops_of(told, kept=4, k=2)
    assert cut is not None
    assert [loop.emitted for loop in cut] == [3, 1]
    free = loops_of(replace(told, output_ids=[1] * 7, decoded=6), kept=7, k=2)
    assert free is not None
    assert sum(loop.emitted for loop in free) == 6


@pytest.mark.parametrize(
    "told",
    [
        {"drafted": 6, "loops": 3},  # sums alone
        {"accepted_per_loop": [2, 0, 2], "drafted": 5},  # one of them drafted fewer, and it is not said which
        {"accepted_per_loop": [2, 0, 2]},
        {"accepted_per_loop": [2, 0, 3], "drafted": 6},
        {"accepted_per_loop": [2, 0], "drafted": 4},  # two tokens from nowhere
        {"accepted_per_loop": [2, 2, 2], "drafted": 6},  # a loop behind the end
    ],
)
def test_no_loop_is_made_up(told: dict[str, Any]) -> None:
    assert loops_of(answer([1] * 6, **told), kept=6, k=2) is None


def test_without_a_draft_a_loop_is_a_token_where_their_number_is_told() -> None:
    loops = loops_of(answer([1] * 6, loops=6), kept=6, k=0)
    assert loops is not None
    assert [(loop.drafted, loop.emitted, loop.beta_sum) for loop in loops] == [(0, 1, 0.0)] * 6
    assert loops_of(answer([1] * 6), kept=6, k=0) is None
    assert loops_of(answer([1] * 6, loops=4), kept=6, k=0) is None
