"""Every drafter without a model keeps the target's law: by enumeration, through the production loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from spsbench.base.records import SamplingParams, Spec
from spsbench.decode.algorithms import DecodedLoop, start
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.decode.protocols import Drafter
from spsbench.decode.rejection import Draft, accept_draft
from spsbench.decode.sampling import ScriptedUniforms, warp
from spsbench.drafters.lookup import LookupDrafter
from spsbench.drafters.model import ModelDrafter
from spsbench.drafters.ngram import NgramDrafter
from spsbench.drafters.registry import Context, build_drafter
from spsbench.drafters.suffix import SuffixDrafter
from spsbench.drafters.union import UnionDrafter
from spsbench.law.enumeration import Point, Scene, TableModel, random_rows, worst_difference

EXACT = 1e-12
CORPUS = ((0, 1, 2, 0, 1), (1, 1, 0, 2), (2,))
WARPERS = {
    "plain": SamplingParams(),
    "greedy": SamplingParams(greedy=True),
    "all": SamplingParams(temperature=0.8, top_k=3, top_p=0.9),
}
PROMPTS = {
    "one token": (0,),
    "no repetition": (0, 1, 2),
    "repetition": (2, 0, 1, 2, 0),
    "one token repeated": (1, 1, 1),
    "match near the end": (0, 1, 0, 1),
    "long": (0, 1, 2, 2, 1, 0, 0, 1, 2),
}
COPIES = ["lookup", "lookup:max_n=1", "lookup:min_n=2", "suffix", "suffix:min_length=2", "suffix:across=true"]
SAMPLERS = ["unigram", "bigram", "ngram", "ngram:adapt=false", "union", "union:of=suffix+bigram"]
BEFORE: tuple[Point, ...] = ((0.11, 0.42, 0.73, 0.2, 0.9, 0.05, 0.6), (0.35,) * 7)
"""Numbers of two loops with K = 3."""


def scene(
    name: str,
    prompt: tuple[int, ...],
    k: int,
    vocab_size: int = 3,
    sampling: SamplingParams = WARPERS["plain"],
    loops: int = 0,
) -> Scene:
    target, draft = (
        TableModel(random_rows(vocab_size, seed=seed, sharpness=1.5), vocab_size) for seed in (1, 2)
    )
    context = Context(target, draft, sampling, torch.device("cpu"), vocab_size, lambda: CORPUS)
    before = tuple(numbers[: 2 * k + 1] for numbers in BEFORE[:loops])
    return made(target, lambda: build_drafter(Spec.parse(name), context), prompt, k, sampling, before)


def made(
    target: TableModel,
    make: Callable[[], Drafter],
    prompt: tuple[int, ...],
    k: int,
    sampling: SamplingParams = WARPERS["plain"],
    before: tuple[Point, ...] = (),
) -> Scene:
    return Scene(target, make, accept_draft, prompt, k, sampling, before)


def law_error(scene: Scene) -> float:
    """Largest difference between the law of a loop and the target's over K+1 tokens."""
    return worst_difference(scene).size


@pytest.mark.thorough_but("each")
@pytest.mark.soak_but("each", "pairs")
@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS.keys())
@pytest.mark.parametrize("sampling", WARPERS.values(), ids=WARPERS.keys())
@pytest.mark.parametrize("name", COPIES)
def test_a_copy_keeps_the_law(name: str, sampling: SamplingParams, prompt: tuple[int, ...]) -> None:
    for k in (1, 4):
        assert law_error(scene(name, prompt, k, sampling=sampling)) < EXACT


@pytest.mark.thorough_but(2)
@pytest.mark.parametrize("name", COPIES)
def test_a_copy_keeps_the_law_at_vocabulary_5(name: str) -> None:
    assert law_error(scene(name, (4, 0, 3, 1, 4, 0), 4, vocab_size=5)) < EXACT


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("prompt", [(0,), (0, 1, 2, 0, 1)], ids=["one token", "repetition"])
@pytest.mark.parametrize("sampling", WARPERS.values(), ids=WARPERS.keys())
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_keeps_the_law(name: str, sampling: SamplingParams, prompt: tuple[int, ...]) -> None:
    assert law_error(scene(name, prompt, 2, sampling=sampling)) < EXACT


@pytest.mark.thorough_but(1)
@pytest.mark.parametrize("name", ["ngram", "union:of=lookup+ngram"])
def test_a_sampler_keeps_the_law_at_vocabulary_5(name: str) -> None:
    assert law_error(scene(name, (4, 3), 2, vocab_size=5)) < EXACT


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("loops", [1, 2])
@pytest.mark.parametrize("name", [*COPIES, *SAMPLERS])
def test_the_law_holds_in_later_loops(name: str, loops: int) -> None:
    assert law_error(scene(name, (0, 2, 1), 2, loops=loops)) < EXACT


def test_the_scenes_reach_every_length_of_a_proposal() -> None:
    lengths = [worst_difference(scene("lookup", prompt, 4)).drafted for prompt in PROMPTS.values()]
    assert {0, 1, 2, 4} <= frozenset[int]().union(*lengths)


def test_a_union_asks_a_model_that_missed_a_loop() -> None:
    """It then reads all that it has not seen, and tells the rows behind the whole sequence."""
    target = TableModel(lambda context: (0.5, 0.3, 0.2), 3)
    model, prompt = TableModel(random_rows(3, seed=2), 3), (1, 0, 1, 0)
    pending: list[int] = []
    score = model.score
    model.score = lambda tokens, last: (pending.append(len(tokens)), score(tokens, last))[1]  # type: ignore

    def make() -> Drafter:
        pending.clear()
        members = [
            LookupDrafter(max_n=2, min_n=2),
            ModelDrafter(model, SamplingParams(), torch.device("cpu")),
        ]
        return UnionDrafter(members)

    # Lookup copies the 1, it is accepted, and a 2 is drawn behind it, which occurred nowhere.
    before = (0.5, 0.01, 0.9)
    first, second = two_loops(target, make(), prompt, before)
    tokens = (*prompt, *first.tokens)
    assert tokens == (*prompt, 1, 2)
    assert pending == [3, 3], "the prompt but its last token; then that and the loop's two"
    assert second.draft is not None
    model.rollback(0)
    assert torch.equal(second.draft.probs[0], warp(score(torch.tensor(tokens), 1), SamplingParams())[0])
    assert law_error(made(target, make, prompt, 1, before=(before,))) < EXACT


def two_loops(
    target: TableModel, drafter: Drafter, prompt: tuple[int, ...], numbers: Point
) -> tuple[DecodedLoop, DecodedLoop]:
    """Two loops with K = 1 under the same numbers."""
    script = ScriptedUniforms(torch.tensor(numbers, dtype=torch.float64) for _ in range(2))
    loops = start(target, drafter, prompt, 1, SamplingParams(), script)(Stopwatch(FakeClock()))
    return next(loops), next(loops)


def _lying_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    real = NgramDrafter.draft

    def draft(self: NgramDrafter, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        honest = real(self, tokens, k, u)
        return Draft(honest.tokens, torch.full_like(honest.probs, 1 / honest.probs.shape[-1]))

    monkeypatch.setattr(NgramDrafter, "draft", draft)


def _changed_pick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last token becomes the most probable one after it was drawn."""
    real = NgramDrafter.draft

    def draft(self: NgramDrafter, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        honest = real(self, tokens, k, u)
        return Draft(torch.cat([honest.tokens[:-1], honest.probs[-1:].argmax(-1)]), honest.probs)

    monkeypatch.setattr(NgramDrafter, "draft", draft)


def _copy_by_chance(drafter: type[LookupDrafter] | type[SuffixDrafter]) -> Callable[..., None]:
    """The copied tokens are sometimes others, and are told to be certain."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        real = drafter.draft

        def draft(self: Drafter, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
            honest = real(self, tokens, k, u)
            return Draft(torch.where(u[: len(honest.tokens)] < 0.5, honest.tokens, 1), uniform(honest.tokens))

        monkeypatch.setattr(drafter, "draft", draft)

    return plant


def uniform(tokens: Tensor) -> Tensor:
    return torch.full((len(tokens), 3), 1 / 3, dtype=torch.float64)


def _withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first member withdraws a token that it has drawn, where it does not like it."""
    real = NgramDrafter.draft

    def draft(self: NgramDrafter, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        honest = real(self, tokens, k, u)
        keep = 0 if honest.tokens[0] == 0 else k
        return Draft(honest.tokens[:keep], honest.probs[:keep])

    monkeypatch.setattr(NgramDrafter, "draft", draft)


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("ngram", _lying_rows),
        ("unigram", _lying_rows),
        ("bigram", _changed_pick),
        ("lookup", _copy_by_chance(LookupDrafter)),
        ("suffix", _copy_by_chance(SuffixDrafter)),
        ("union:of=bigram+model", _withdrawn),
    ],
    ids=["ngram", "unigram", "bigram", "lookup", "suffix", "union"],
)
def test_a_planted_wrong_drafter_is_caught(
    monkeypatch: pytest.MonkeyPatch, name: str, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    wrong = scene(name, (2, 0, 1, 2, 0), 2)
    assert law_error(wrong) < EXACT
    plant(monkeypatch)
    assert law_error(wrong) > 1e-3
