"""Trees of tokens and blocks over long contexts: rows are those of each branch in line, on both backends."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.onnx_variants import RELATIVE, VARIANTS, apart, tokens, variant
from support.tiny_beam_models import loaded
from support.tiny_models import WINDOW, config_of, make, over_onnx

from spsbench.base.errors import UsageError
from spsbench.base.paths import mini_dir
from spsbench.base.records import SamplingParams
from spsbench.decode import trees
from spsbench.decode.algorithms import Loops, start, start_tree
from spsbench.decode.beam import Node
from spsbench.decode.clock import Stopwatch, SystemClock
from spsbench.decode.rejection import accept_draft
from spsbench.decode.sampling import UniformStream
from spsbench.drafters.model import ModelDrafter
from spsbench.drafters.shape import Shape
from spsbench.drafters.tree import ModelTreeDrafter
from spsbench.models import onnx_lm
from spsbench.models.beam_lm import tree_of
from spsbench.models.live_tree import Branches, LiveTree
from spsbench.models.onnx_lm import OnnxLM
from spsbench.models.torch_lm import TorchLM

SAMPLING = SamplingParams(temperature=1.0, top_p=0.95)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(params=["one session", "two sessions"])
def sessions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of attention in one graph, as in large models, and in a session each."""
    if request.param == "one session":
        monkeypatch.setattr(onnx_lm, "_LARGE", 0)


def grown(root: Node, rng: random.Random, n: int, vocab_size: int) -> list[Node]:
    """The root and n distinct nodes below it, in an order in which parents may come late."""
    nodes = [root]
    while len(nodes) <= n:
        node = rng.choice(nodes).child(rng.randrange(vocab_size))
        nodes += [node] if node not in nodes else []
    rng.shuffle(nodes)
    return nodes


def test_columns_are_those_of_ancestors_and_the_tree_does_not_grow_with_the_text() -> None:
    rng = random.Random(0)
    tree, root = LiveTree(7), Node(0)
    cache: list[Any] = [None] * 7  # what each column holds
    for loop in range(60):
        nodes = grown(root, rng, rng.randrange(9), 50)
        fresh = tree.add(nodes)
        assert set(nodes) <= set(fresh)
        cache += fresh
        seen = tree.last(len(fresh))
        first = len(cache) - len(seen.positions)
        assert first == tree.prefix
        for row, node in zip(seen.sees, fresh, strict=True):
            line = [node]
            while line[-1].parent is not None:
                line.append(line[-1].parent)
            prompt: list[Any] = [None] * 7
            visible = cache[:first] + [cache[first + column] for column in np.flatnonzero(row)]
            assert visible == prompt + line[::-1]
        assert list(seen.positions) == [7 + node.depth for node in cache[first:]]
        tips = rng.sample(nodes, 1 if loop % 3 else min(2, len(nodes)))
        start, columns = tree.keep([tip.child(99) for tip in tips])
        cache[start:] = [cache[column] for column in columns]
        root = tips[0].child(99)
        if loop % 3:
            assert tree.prefix == len(cache)  # one branch is left, and it is the trunk


@pytest.mark.parametrize("name", VARIANTS)
def test_rows_of_a_tree_are_those_of_its_branches(name: str, sessions: None) -> None:
    """Loop after loop, with large and small trees, beyond every window and across growth of the cache."""
    model = over_onnx(variant(name).model)
    tree, rng = tree_of(model), random.Random(1)
    prompt = tokens(245).tolist()
    tree.begin(prompt)
    root = Node(prompt[-1])
    for n in (65, 5, 0, 9, 3):
        nodes = grown(root, rng, n, 200)
        rows = tree.score(nodes).clone()
        for place in rng.sample(range(len(nodes)), min(3, len(nodes))):
            line = tree.in_line(prompt, nodes[place].tokens())
            assert apart(rows[place], line) < RELATIVE
        root = rng.choice(nodes).child(201)
        tree.keep([root])
        assert model.length == 244 + root.depth
    line = torch.tensor([*prompt, *root.tokens()])
    assert apart(model.score(line[-1:], 1)[0], model.score_uncached(line, 1)[0]) < RELATIVE


@pytest.mark.parametrize("bits", [8, 4])
def test_rounded_weights_take_a_tree(bits: int) -> None:
    tree_of(over_onnx(variant("llama").model).rounded(bits))


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen3", "olmo2", "phi3"])
def test_the_models_of_torch_take_a_tree(architecture: str) -> None:
    tree_of(TorchLM(make(config_of(architecture))))


@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_a_mask_that_is_ignored_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = LiveTree.last

    def all_seen(tree: LiveTree, n: int) -> Branches:
        return replace(right(tree, n), sees=np.ones_like(right(tree, n).sees))

    monkeypatch.setattr(LiveTree, "last", all_seen)
    reference = variant("llama")
    with pytest.raises(UsageError, match="from those in line") as refused:
        tree_of(reference if kind == "torch" else over_onnx(reference.model))
    assert refused.value.flag == "--tree"


def test_a_window_that_is_ignored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = over_onnx(variant("ministral").model)
    monkeypatch.setattr(model, "plan", replace(model.plan, windows=(None, 1 << 20, None, 1 << 20)))
    model._forward = model._new_forward()
    with pytest.raises(UsageError, match="from those in line"):
        tree_of(model)


def test_what_takes_no_tree_is_refused_with_a_reason() -> None:
    with pytest.raises(UsageError, match="encoder-decoder"):
        tree_of(loaded("t5", 0))
    with pytest.raises(UsageError, match=f"attention window of {WINDOW}"):
        tree_of(variant("mistral"))


@pytest.mark.parametrize("name", ["llama", "ministral", "qwen3", "phi3"])
def test_blocks_over_a_long_context_are_its_tokens_one_by_one(name: str, sessions: None) -> None:
    """Either side of the length from which several rows are matrix products."""
    reference = variant(name)
    reference.config.max_position_embeddings = 2048
    model, ids = over_onnx(reference.model), tokens(onnx_lm.LONG + 40)
    expected = reference.score_uncached(ids)
    first = onnx_lm.LONG - 5
    model.score(ids[:first], 1)
    for n in (5, 5, 1, 2, 9, 1):
        rows = model.score(ids[first : first + n], n)
        assert apart(rows, expected[first : first + n]) < RELATIVE
        first += n


def test_a_short_sequence_after_a_long_one_has_a_cache_of_its_own_length() -> None:
    """Products go over all of a cache: what a long sequence left would be paid for in every forward."""
    model = over_onnx(variant("llama").model)
    model.score(tokens(4 * onnx_lm.LONG), 1)
    ids = tokens(onnx_lm.LONG + 9)
    model.begin(ids[:-4].tolist())
    assert model._forward.caches.shape[3] < 2 * onnx_lm.LONG
    assert apart(model.score(ids[-5:], 5), model.score_uncached(ids, 5)) < RELATIVE


@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_states_of_the_kept_branch_are_those_in_line(kind: str) -> None:
    reference = variant("llama")
    lm: Any = reference if kind == "torch" else over_onnx(reference.model)
    kept, plain = lm.with_features("--drafter"), lm.with_features("--drafter")
    tree, prompt = tree_of(kept), tokens(12).tolist()
    tree.begin(prompt)
    root, rng = Node(prompt[-1]), random.Random(2)
    for n in (6, 9, 4):
        nodes = grown(root, rng, n, 200)
        tree.score(nodes)
        root = max(nodes, key=lambda node: node.depth).child(7)
        tree.keep([root])
    line = torch.tensor([*prompt, *root.tokens()])
    plain.score(line[:-1], 1)
    assert kept.length == plain.length == len(line) - 1
    assert apart(kept.features(0, kept.length), plain.features(0, plain.length)) < RELATIVE


def mini(name: str) -> OnnxLM:
    from transformers import AutoModelForCausalLM

    return over_onnx(AutoModelForCausalLM.from_pretrained(mini_dir() / name, dtype=torch.float32).eval())


def written(loops: Loops, n: int) -> list[list[int]]:
    watch = Stopwatch(SystemClock())
    watch.start()
    found = loops(watch)
    return [next(found).tokens for _ in range(n)]


@pytest.fixture(scope="module")
def pair() -> tuple[OnnxLM, OnnxLM]:
    return mini("target"), mini("draft")


def test_chains_over_a_tree_are_speculative_sampling_token_for_token(pair: tuple[OnnxLM, OnnxLM]) -> None:
    target, draft = pair
    prompt = tokens(40, target.vocab_size).tolist()

    def drafter() -> ModelDrafter:
        return ModelDrafter(draft, SAMPLING, torch.device("cpu"))

    def uniforms() -> UniformStream:
        return UniformStream(5, torch.device("cpu"))

    chain = written(start(target, drafter(), prompt, 4, SAMPLING, uniforms()), 25)
    found = start_tree(tree_of(target), drafter(), prompt, 4, SAMPLING, uniforms(), accept_draft)
    assert written(found, 25) == chain
    assert max(map(len, chain)) > 2


@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_a_tree_of_a_draft_model_is_decoded(pair: tuple[OnnxLM, OnnxLM], backend: str) -> None:
    target, draft = pair
    lms: Any = pair if backend == "onnx" else (target.reference(), draft.reference())
    prompt = tokens(40, target.vocab_size).tolist()
    drafter = ModelTreeDrafter(tree_of(lms[1]), SAMPLING, Shape((3, 2, 1)), "without")
    uniforms = UniformStream(5, torch.device("cpu"))
    loops = start_tree(tree_of(lms[0]), drafter, prompt, 15, SAMPLING, uniforms, trees.recursive_rejection)
    found = written(loops, 20)
    assert all(
        1 <= len(loop) <= 4 and all(0 <= token < target.vocab_size for token in loop) for loop in found
    )
    assert max(map(len, found)) > 1
    assert lms[0].length == len(prompt) - 1 + sum(map(len, found))
