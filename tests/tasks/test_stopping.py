"""Both arms stop at the same token, wherever their loops begin and end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spsbench.base.records import FinishReason, Request, SamplingParams
from spsbench.decode.stopping import StopRule

EOS = 0
# Byte-level tokens, some of them parts of the two- and three-byte characters "é" and "€".
PIECES = [b"", b"\n", b"c", b"l", b"ass", b"class", b"\ncl", b"d", b"ef", b" ", b"#", b"x\n#y", b"s\n",
          b"\xc3", b"\xa9", b"\xe2\x82", b"\xac", b"\xac\n", "é".encode(), b"e", b"f", b"as"]  # fmt: skip
STOPS = ["\n", "\nclass", "\ndef", "\n#", "é", "a€", " s", "ass", "c", "fé\n"]


def decode(ids: Sequence[int]) -> str:
    return b"".join(PIECES[i] for i in ids).decode(errors="replace")


def ids(text: str) -> list[int]:
    """Greedy longest-match tokens of a text."""
    rest, found = text.encode(), []
    while rest:
        piece = max((p for p in PIECES if p and rest.startswith(p)), key=len)
        found.append(PIECES.index(piece))
        rest = rest[len(piece) :]
    return found


def rule(*stop: str, limit: int = 100, fixed_length: bool = False) -> StopRule:
    return StopRule(decode, stop, frozenset({EOS}), limit, fixed_length)


def by_definition(r: StopRule, tokens: Sequence[int]) -> tuple[int, FinishReason | None]:
    """The stopping rule as its definition reads: look at the whole text after every token."""
    for count in range(1, len(tokens) + 1):
        if not r.fixed_length and tokens[count - 1] == EOS:
            return count, "eos"
        if not r.fixed_length and any(s in decode(tokens[:count]) for s in r.stop):
            return count, "stop"
        if count == r.max_new_tokens:
            return count, "length"
    return len(tokens), None


def in_loops(r: StopRule, tokens: Sequence[int], sizes: Sequence[int]) -> tuple[int, FinishReason | None]:
    output: list[int] = []
    at = 0
    for size in sizes:
        fresh = list(tokens[at : at + size])
        at += size
        kept, reason = r.cut(output, fresh)
        output += fresh[:kept]
        if reason is not None:
            return len(output), reason
        assert kept == len(fresh)
    return len(output), None


@given(
    tokens=st.lists(st.integers(0, len(PIECES) - 1).map(lambda i: i or 1), max_size=40),
    eos_at=st.integers(0, 80),
    stop=st.lists(st.sampled_from(STOPS), max_size=3).map(tuple),
    limit=st.integers(1, 50),
    fixed_length=st.booleans(),
    data=st.data(),
)
def test_chunks_tokens_and_definition_agree(
    tokens: list[int], eos_at: int, stop: tuple[str, ...], limit: int, fixed_length: bool, data: st.DataObject
) -> None:
    tokens = [EOS if i == eos_at else token for i, token in enumerate(tokens)]
    r = rule(*stop, limit=limit, fixed_length=fixed_length)
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=len(tokens), max_size=len(tokens)))
    expected = by_definition(r, tokens)
    assert in_loops(r, tokens, sizes) == expected
    assert in_loops(r, tokens, [1] * len(tokens)) == expected


def test_stop_string_across_loops_and_inside_a_draft() -> None:
    tokens = ids("d\nclassd")
    assert [PIECES[t] for t in tokens] == [b"d", b"\ncl", b"ass", b"d"]
    assert rule("\nclass").cut(tokens[:2], tokens[2:]) == (1, "stop")
    assert rule("\nclass").cut([], tokens) == (3, "stop")
    assert rule("\nclass").text(tokens[:3]) == "d"


@pytest.mark.parametrize(
    ("limit", "fresh", "expected"),
    [
        (3, [EOS, 1, 2], (1, "eos")),
        (3, [2, 1, EOS], (2, "stop")),
        (1, [1], (1, "stop")),  # a stop string in the last token that the limit allows
        (1, [EOS], (1, "eos")),
        (2, [2, 2, 1], (2, "length")),  # the stop string lies beyond the limit
        (4, [2, 2, 2], (3, None)),
        (3, [2, 2, 2], (3, "length")),
    ],
)
def test_earliest_event_wins(limit: int, fresh: list[int], expected: tuple[int, str | None]) -> None:
    assert rule("\n", limit=limit).cut([], fresh) == expected


def test_fixed_length_ignores_all_but_the_limit() -> None:
    r = rule("\n", limit=4, fixed_length=True)
    assert r.cut([], [1, EOS, 1]) == (3, None)
    assert r.cut([1, EOS, 1], [2, 2, 2]) == (1, "length")
    assert r.text([2, 1, EOS, 2]) == "c"


def test_text_leaves_out_eos_and_the_earliest_stop_string() -> None:
    r = rule("\n#", "\ndef")
    assert r.text([*ids("c\ndef\n#"), EOS]) == "c"
    assert r.text([*ids("cé"), EOS]) == "cé"
    assert r.text([*ids("c"), PIECES.index(b"\xc3")]) == "c\ufffd"
    assert r.text([]) == ""


def test_decodes_only_when_a_token_can_complete_a_stop_string() -> None:
    calls: list[int] = []

    def counting(tokens: Sequence[int]) -> str:
        calls.append(len(tokens))
        return decode(tokens)

    r = StopRule(counting, ("\nclass",), frozenset({EOS}), 10_000, False)
    output: list[int] = []
    for _ in range(200):
        output += ids("def")
        r.cut(output, ids("def"))
    assert calls == [1, 1]  # "d" and "ef", once each
    r.cut(output, ids("class"))
    assert max(calls) <= len("\nclass") + 4  # a window, however long the output


def test_space_dropped_at_the_start_of_a_decode() -> None:
    words = ["<s>", "a", " the", " b"]

    def decode_words(tokens: Sequence[int]) -> str:
        return "".join(words[t] for t in tokens).removeprefix(" ")

    r = StopRule(decode_words, ("a ", "a the"), frozenset({EOS}), 10, False)
    assert r.cut([3, 1], [2]) == (1, "stop")


def test_rule_of_a_request() -> None:
    class Decoder:
        eos_ids = frozenset({EOS})
        decode = staticmethod(decode)

    request = Request((1,), 7, ("\n",), SamplingParams(), seed=0)
    r = StopRule.of(request, Decoder())
    assert (r.stop, r.eos_ids, r.max_new_tokens, r.fixed_length) == (("\n",), {EOS}, 7, False)
    assert r.cut([], [2, 1]) == (2, "stop")


@pytest.mark.parametrize(("stop", "limit"), [(("",), 5), (("\n",), 0)])
def test_senseless_rules_are_refused(stop: tuple[str, ...], limit: int) -> None:
    with pytest.raises(ValueError):
        rule(*stop, limit=limit)


def test_a_trained_byte_level_tokenizer() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    code = ["def f(x):\n    return x\n\nclass A:\n    pass\n", "print('naïve €5')\n"] * 5
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(code, trainer)
    tokens = tokenizer.encode("    return 'naïve €5'\n\nclass A:\n    pass\n").ids
    r = StopRule(lambda t: str(tokenizer.decode(list(t))), ("\nclass", "\ndef"), frozenset(), 512, False)
    stops = {size: in_loops(r, tokens, [size] * len(tokens)) for size in (1, 2, 3, 5, 8)}
    assert len(set(stops.values())) == 1
    kept, reason = stops[1]
    assert reason == "stop"
    assert r.text(tokens[:kept]) == "    return 'naïve €5'\n"
