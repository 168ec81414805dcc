"""Processed laws: enumerated through the production loop, with planted faults, and against transformers'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spsbench.base.records import Processing, SamplingParams
from spsbench.decode import algorithms, processors
from spsbench.decode.processors import CONVENTIONS, Bound, Grammar, Mask, bound, with_history
from spsbench.decode.rows import warped
from spsbench.decode.sampling import warp
from spsbench.testing import assert_lossless

V = 4


def only_after(output: Sequence[int]) -> Tensor | None:
    """A grammar of V tokens: no token follows itself, and 0 only where the output is of even length."""
    if any(first == second for first, second in pairwise(output)):
        return None
    allowed = torch.ones(V, dtype=torch.bool)
    if output:
        allowed[output[-1]] = False
    allowed[0] &= len(output) % 2 == 0
    return allowed


def at_most_one(output: Sequence[int]) -> Tensor | None:
    """A grammar that ends with 3 after one token, or at once."""
    return torch.tensor([not output, not output, not output, True])


PROCESSES: dict[str, dict[str, Any]] = {
    "min-p": {"min_p": 0.3},
    "typical-p": {"typical_p": 0.6},
    "repetition": {"repetition_penalty": 1.7},
    "presence": {"presence_penalty": 0.9},
    "frequency": {"frequency_penalty": 0.7},
    "bias": {"logit_bias": ((1, 1.5), (2, -2.0))},
    "min-new-tokens": {"min_new_tokens": 3, "stop_ids": (3,)},
    "bad-words": {"bad_words": ((3,), (1, 0))},
    "grammar": {"grammar": "{}", "mask": only_after},
    "grammar that ends early": {"grammar": "{}", "mask": at_most_one, "min_new_tokens": 3, "stop_ids": (3,)},
    "all": {
        "min_p": 0.05,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "logit_bias": ((0, 0.5),),
        "min_new_tokens": 2,
        "stop_ids": (3,),
        "bad_words": ((1, 1),),
    },
}


def sampling(name: str, convention: str = "transformers", **drawn: Any) -> SamplingParams:
    return SamplingParams(**drawn, process=Bound(**PROCESSES[name], convention=convention))


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("drafter", ["model", "model:processed=false", "lookup"])
@pytest.mark.parametrize("name", PROCESSES)
def test_a_loop_keeps_a_processed_law(name: str, drafter: str) -> None:
    drawn = (sampling(name), sampling(name, "vllm" if name != "typical-p" else "llama-cpp", top_p=0.9))
    assert_lossless(drafter, ks=(2,), samplings=drawn)


def proved(name: str, drafter: str, convention: str, ks: Sequence[int]) -> None:
    """Under a nucleus, a top-k and greedily; a tree of four nodes has 81 drafts of 3 tokens, of 2 16."""
    drawn = (
        sampling(name, convention, temperature=0.7, top_p=0.8),
        sampling(name, convention, top_k=2 if "tree" in drafter and max(ks) < 3 else 3),
        sampling(name, convention, greedy=True),
    )
    rule = "one-hot" if "tree" in drafter else "modified-rejection"
    assert_lossless(drafter, rule=rule, ks=ks, samplings=drawn)


DRAFTERS = ("model", "model:processed=false", "ngram", "model:tree=2-1")


@pytest.mark.thorough
@pytest.mark.soak_but("pairs")
@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", PROCESSES)
def test_every_convention_keeps_its_law(name: str, drafter: str, convention: str) -> None:
    proved(name, drafter, convention, (1, 2))


@pytest.mark.thorough
@pytest.mark.soak_but("[all-model-vllm", "[all-ngram-llama")
@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", PROCESSES)
def test_it_does_so_behind_three_drafted_tokens(name: str, drafter: str, convention: str) -> None:
    proved(name, drafter, convention, (3,))


Step = Callable[[Tensor, Processing, Sequence[int], int], Tensor]


def counted_twice(
    right: Step, logits: Tensor, process: Processing, tokens: Sequence[int], prompt: int
) -> Tensor:
    """A penalty that counts what was drafted in this loop once more."""
    drafted = list(tokens)[len(tokens) - len(logits) + 1 :]
    rows = [
        right(
            logits[i : i + 1],
            process,
            [*list(tokens)[: len(tokens) - len(drafted) + i], *drafted[:i]],
            prompt,
        )
        for i in range(len(logits))
    ]
    return torch.cat(rows)


def none_behind_a_draft(
    right: Step, logits: Tensor, process: Processing, tokens: Sequence[int], prompt: int
) -> Tensor:
    """Steps skipped in all rows but the first."""
    first = right(logits[:1], process, list(tokens)[: len(tokens) - len(logits) + 1], prompt)
    return torch.cat([first, logits[1:]])


def as_before_the_draft(
    right: Step, logits: Tensor, process: Processing, tokens: Sequence[int], prompt: int
) -> Tensor:
    """Every row processed as the first: an accepted token never reaches penalties or grammar."""
    before = list(tokens)[: len(tokens) - len(logits) + 1]
    return torch.cat([right(row, process, before, prompt) for row in logits.split(1)])


FAULTS = {
    ("frequency", "penalty counted twice for drafted tokens"): counted_twice,
    ("min-new-tokens", "not applied to drafted rows"): none_behind_a_draft,
    ("repetition", "not applied to drafted rows"): none_behind_a_draft,
    ("grammar", "not applied after an accepted token"): as_before_the_draft,
    ("bad-words", "not applied after an accepted token"): as_before_the_draft,
}


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("drafter", ["model", "lookup"])
@pytest.mark.parametrize("fault", FAULTS, ids=" ".join)
def test_planted_faults_are_found(
    fault: tuple[str, str], drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, wrong = processors.with_history, FAULTS[fault]
    assert_lossless(drafter, ks=(2,), samplings=[sampling(fault[0])])
    monkeypatch.setattr(algorithms, "with_history", lambda *given: wrong(right, *given))
    with pytest.raises(AssertionError, match="with probability"):
        assert_lossless(drafter, ks=(2,), samplings=[sampling(fault[0])])


def test_min_p_skipped_behind_a_draft_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def skipping(logits: Tensor, params: SamplingParams) -> Any:
        if len(logits) == 1:
            return warped(logits, params)
        held = torch.cat(
            [warped(logits[:1], params).dense(), warp(logits[1:], replace(params, process=None))]
        )
        return algorithms.rows.as_in_a_loop(held)

    monkeypatch.setattr(algorithms.rows, "warped", skipping)
    with pytest.raises(AssertionError, match="with probability"):
        assert_lossless("lookup", ks=(2,), samplings=[sampling("min-p")])


@given(
    seed=st.integers(0, 1000),
    history=st.lists(st.integers(0, 19), min_size=1, max_size=12),
    new=st.integers(0, 6),
    temperature=st.sampled_from((0.6, 1.0, 1.7)),
    top_k=st.sampled_from((0, 5, 12)),
    top_p=st.sampled_from((0.7, 0.95, 1.0)),
    min_p=st.sampled_from((0.0, 0.05, 0.3)),
    typical_p=st.sampled_from((0.5, 0.9, 1.0)),
    penalty=st.sampled_from((0.8, 1.0, 1.4)),
    words=st.lists(st.lists(st.integers(0, 18), min_size=1, max_size=2).map(tuple), max_size=3),
    least=st.sampled_from((0, 2, 5)),
)
@settings(max_examples=150, deadline=None)
def test_the_convention_of_transformers_is_its_own(
    seed: int,
    history: list[int],
    new: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    typical_p: float,
    penalty: float,
    words: list[tuple[int, ...]],
    least: int,
) -> None:
    from transformers.generation import logits_process as theirs

    new = min(new, len(history) - 1)
    prompt, logits = (
        len(history) - new,
        torch.randn(1, 20, generator=torch.Generator().manual_seed(seed)).double(),
    )
    bias = ((3, 1.25), (7, -2.0))
    process = Bound(
        min_p=min_p,
        typical_p=typical_p,
        repetition_penalty=penalty,
        logit_bias=bias,
        min_new_tokens=least,
        bad_words=tuple(words),
        stop_ids=(19,),
    )
    params = SamplingParams(temperature, top_k, top_p, process=process)
    steps: list[Any] = [theirs.SequenceBiasLogitsProcessor({(token,): value for token, value in bias})]
    steps += [theirs.RepetitionPenaltyLogitsProcessor(penalty)]
    steps += [theirs.NoBadWordsLogitsProcessor([list(word) for word in words])] if words else []
    steps += [theirs.MinNewTokensLengthLogitsProcessor(prompt, least, [19])] if least else []
    steps += [theirs.TemperatureLogitsWarper(temperature)]
    steps += [theirs.TopKLogitsWarper(top_k)] if top_k else []
    steps += [theirs.TopPLogitsWarper(top_p)] if top_p < 1 else []
    steps += [theirs.MinPLogitsWarper(min_p)] if min_p else []
    steps += [theirs.TypicalLogitsWarper(typical_p)] if typical_p < 1 else []
    expected = logits.clone()
    for step in steps:
        expected = step(torch.tensor([history]), expected)
    ours = warp(with_history(logits, process, history, prompt), params)
    assert torch.allclose(ours, expected.softmax(-1), atol=1e-12)
    assert torch.equal(warped(with_history(logits, process, history, prompt), params).dense(), ours)


def test_the_conventions_differ_where_their_sources_do() -> None:
    logits = torch.tensor([[2.0, 1.5, 1.0, 0.2, -1.0]])
    prompt = [0, 1]
    # llama.cpp counts the prompt too, and cuts before the temperature.
    for process in ({"presence_penalty": 1.0}, {"min_p": 0.4}):
        rows = {}
        for name in CONVENTIONS:
            params = SamplingParams(temperature=0.5, process=Processing(**process, convention=name))
            assert params.process is not None
            rows[name] = warp(with_history(logits, params.process, [*prompt, 3], 2), params)
        assert torch.equal(rows["transformers"], rows["vllm"])
        assert not torch.equal(rows["llama-cpp"], rows["vllm"])


def test_llama_cpp_forgets_after_64_tokens() -> None:
    process = Processing(repetition_penalty=2.0, convention="llama-cpp")
    logits = torch.ones(1, 5)
    assert with_history(logits, process, [0, *[1] * 63], 1)[0, 0] == 0.5
    assert with_history(logits, process, [0, *[1] * 64], 1)[0, 0] == 1.0


def test_the_end_of_a_grammar_wins_over_the_least_length() -> None:
    process = Bound(grammar="{}", mask=at_most_one, min_new_tokens=3, stop_ids=(3,))
    rows = warp(with_history(torch.zeros(2, V), process, [0, 1], 1), SamplingParams(process=process))
    assert torch.allclose(rows[0], torch.tensor([1.0, 1, 1, 0]) / 3)  # a longer text is possible
    assert rows[1].tolist() == [0, 0, 0, 1]


def test_what_needs_a_model_says_so() -> None:
    with pytest.raises(ValueError, match="not bound"):
        with_history(torch.ones(1, 5), Processing(min_new_tokens=1), [0], 1)


class Parity:
    """A matcher of four tokens: 1 and 2 take turns, 3 ends after an even number of them."""

    def __init__(self, taken: tuple[int, ...] = ()) -> None:
        self.taken = taken

    def deep_copy(self) -> Parity:
        return Parity(self.taken)

    def _allowed(self) -> set[int]:
        return {1 + len(self.taken) % 2, *([3] if len(self.taken) % 2 == 0 else [])}

    def consume_token(self, token: int) -> bool:
        right = token in self._allowed()
        self.taken += (token,)
        return right

    def compute_bitmask(self) -> bytes:
        return bytes([sum(1 << token for token in self._allowed()), 0, 0, 0])


def test_a_grammar_forgets_a_rejected_draft() -> None:
    grammar = Grammar("", None, (), False, Parity())

    def allowed(*output: int) -> list[int] | None:
        mask = grammar(output)
        return None if mask is None else mask.nonzero().flatten().tolist()

    assert allowed() == [1, 3]
    assert allowed(1, 2, 1) == [2]
    assert allowed(1) == [2]
    assert allowed(2) is None
    assert allowed(2, 1) is None
    assert allowed(1, 2) == [1, 3]


def test_a_schema_is_followed_by_llguidance() -> None:
    """Where nothing but ``rue`` can follow, its own convention allows the tokenizer's ``ru`` alone."""
    pytest.importorskip("llguidance")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = {chr(i): i - 32 for i in range(32, 127)} | {"</s>": 95, "ru": 96}
    bare = Tokenizer(models.BPE(vocab=letters, merges=[("r", "u")], unk_token=None))
    bare.pre_tokenizer, bare.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()

    class Known:
        hugging_face = PreTrainedTokenizerFast(tokenizer_object=bare, eos_token="</s>")
        eos_ids = frozenset({95})

    words: dict[int, str] = {number: letter for letter, number in letters.items()}
    for convention, after_t in (("transformers", {"ru"}), ("vllm", {"r", "ru"}), ("llama-cpp", {"r", "ru"})):
        process = Processing(grammar='{"type": "boolean"}', convention=convention)
        found = bound(SamplingParams(process=process), Known(), frozenset({0})).process
        assert isinstance(found, Bound)
        assert found.mask is not None
        grammar = found.mask

        def next_words(*tokens: str, grammar: Mask = grammar) -> set[str]:
            mask = grammar([letters[token] for token in tokens])
            assert mask is not None
            return {words[i] for i in mask.nonzero().flatten().tolist()}

        assert next_words() == {"t", "f"}
        assert next_words("t") == after_t
        assert next_words("t", "ru", "e") == {"</s>"} | ({" "} if convention == "vllm" else set())
        assert grammar([letters["x"]]) is None
