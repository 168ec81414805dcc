"""Heads draft from the target's features where it has read, from their own behind that, and lose nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.published_heads import save_medusa, save_published
from support.remembered import DRAWN, LONG, prove, prove_drawn, remembered
from support.tiny_heads import layer_config, save_head
from support.tiny_models import config_of, make, over_onnx
from torch import Tensor
from torch.nn.functional import linear, silu
from transformers import LlamaModel

from spsbench.base.errors import UsageError
from spsbench.base.records import SamplingParams, Spec
from spsbench.decode.algorithms import DecodedLoop, start, start_tree
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.decode.protocols import Drafter
from spsbench.decode.rejection import Draft, accept_draft
from spsbench.decode.sampling import UniformStream, warp
from spsbench.decode.trees import recursive_rejection
from spsbench.drafters.heads import EagleDrafter
from spsbench.drafters.registry import DRAFTERS, Context, build_drafter
from spsbench.law.enumeration import TableModel, proposals, worst_difference
from spsbench.models.beam_lm import tree_of
from spsbench.models.causal_lm import CausalLM
from spsbench.models.torch_lm import TorchLM
from spsbench.testing import assert_lossless, context_of, scenes

CPU = torch.device("cpu")
GREEDY, PLAIN = SamplingParams(greedy=True), SamplingParams()
PROMPT = [7, 3, 11, 200, 64, 9, 9, 31]
SOME = list(range(0, 250, 2))
KINDS = ["eagle", "medusa"]
BACKENDS = ["onnx", "torch"]


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def target_of(backend: str) -> CausalLM:
    model = make(config_of("llama", head_dim=16))
    return over_onnx(model) if backend == "onnx" else TorchLM(model)


def context(target: CausalLM, sampling: SamplingParams = GREEDY) -> Context:
    kept = target if target.keeps_features else target.with_features("--drafter")
    return Context(kept, None, sampling, CPU, kept.vocab_size, hidden=kept)


def spec_of(folder: Path, **options: int) -> Spec:
    return Spec("heads", (("from", str(folder)), *options.items()))


def tree_loops(
    context: Context, drafter: Drafter, prompt: Sequence[int], nodes: int
) -> Iterator[DecodedLoop]:
    assert isinstance(context.target, CausalLM)
    given = (tree_of(context.target), drafter, prompt, nodes, context.sampling, UniformStream(3, CPU))
    return start_tree(*given, recursive_rejection)(Stopwatch(FakeClock()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tree_of_one_branch_is_the_chain(backend: str, kind: str, tmp_path: Path) -> None:
    target = context(target_of(backend), PLAIN)
    folder = save_head(tmp_path / "h", target.target, kind)
    spec = spec_of(folder)
    chain = loops(target, build_drafter(spec, target), PROMPT, 3)
    expected = [loop.tokens for loop in islice(chain, 12)]
    tree = build_drafter(replace(spec, options=(*spec.options, ("tree", "1-1-1"))), target)
    assert [loop.tokens for loop in islice(tree_loops(target, tree, PROMPT, 3), 12)] == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_branch_of_a_tree_has_the_rows_of_its_own_chain(backend: str, tmp_path: Path) -> None:
    """Also after a loop in which another branch than the first stood."""
    target = context(target_of(backend), PLAIN)
    spec = spec_of(save_head(tmp_path / "h", target.target, "eagle"))
    tree = build_drafter(replace(spec, options=(*spec.options, ("tree", "2-2-1"))), target)
    reading = target_of(backend)
    tokens, ways = list(PROMPT), set[tuple[int, ...]]()
    for loop in islice(tree_loops(target, tree, PROMPT, 10), 40):
        assert loop.draft is not None
        drafted, told = loop.draft.tokens.tolist(), loop.draft.own_rows
        assert told is not None
        texts: list[list[int]] = [[]]
        for node, parent in enumerate(loop.draft.above):
            texts.append([*texts[parent + 1], drafted[node]])
            first = list(loop.draft.above).index(parent) == node
            if first:  # its row is the whole one
                ids, count = torch.tensor([*tokens, *texts[-1]]), len(texts[-1])
                again = DRAFTERS["heads"].read_again(spec, reading, ids, [(len(tokens), count)])
                assert again is not None
                assert torch.allclose(told.take([node]).dense(), warp(again[-1:], PLAIN), atol=1e-5)
        tokens += loop.tokens
        ways.add(loop.path or ())
    assert any(path and path[0] == 1 for path in ways)


def loops(context: Context, drafter: Drafter | None, prompt: Sequence[int], k: int) -> Iterator[DecodedLoop]:
    assert isinstance(context.target, CausalLM)
    begin = start(context.target, drafter, prompt, k, context.sampling, UniformStream(3, CPU))
    return begin(Stopwatch(FakeClock()))


def output(context: Context, drafter: Drafter | None, prompt: Sequence[int], tokens: int) -> list[int]:
    new: list[int] = []
    for loop in loops(context, drafter, prompt, 3):
        new += loop.tokens
        if len(new) >= tokens:
            break
    return new[:tokens]


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("bits", [0, 8])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_greedy_output_is_that_of_the_target_alone(
    tmp_path: Path, backend: str, kind: str, bits: int
) -> None:
    if backend == "torch" and bits:
        pytest.skip("only ONNX Runtime rounds")
    target = context(target_of(backend))
    assert isinstance(target.target, CausalLM)
    folder = save_head(tmp_path / "head", target.target, kind, vocabulary=SOME)
    drafter = build_drafter(spec_of(folder, bits=bits), target)
    for prompt in (PROMPT, PROMPT[:1], PROMPT[:2], PROMPT[:3]):
        assert output(target, drafter, prompt, 40) == output(target, None, prompt, 40)


def true_features(model: TorchLM, tokens: Sequence[int]) -> Tensor:
    """[n, hidden] by an uncached forward."""
    ids = torch.tensor([tokens])
    states: Tensor = model.model.model(input_ids=ids, use_cache=False).last_hidden_state[0]
    return states


def eagle_rows(folder: Path, model: TorchLM, tokens: Sequence[int], drafted: Sequence[int]) -> Tensor:
    """[K, V] logits of the drafted tokens, everything computed anew for each of them."""
    stored = load_file(folder / "model.safetensors")
    body = LlamaModel(layer_config(32)).eval()
    body.load_state_dict({name.removeprefix("model."): part for name, part in stored.items()}, strict=False)
    table, head = model.model.model.embed_tokens.weight, model.model.lm_head.weight
    features = true_features(model, tokens[:-1])
    rows = []
    for i in range(len(drafted)):
        ids = torch.tensor([*tokens, *drafted[:i]])[1:]
        states = torch.cat([table[ids], features], dim=-1) @ stored["fc.weight"].T
        predicted = body(inputs_embeds=states.unsqueeze(0), use_cache=False).last_hidden_state[0, -1:]
        rows.append(predicted @ head.T)
        features = torch.cat([features, predicted])
    return torch.cat(rows)


def medusa_rows(folder: Path, model: TorchLM, tokens: Sequence[int], drafted: Sequence[int]) -> Tensor:
    stored = load_file(folder / "model.safetensors")
    feature = true_features(model, tokens[:-1])[-1:]
    heads = [(stored[f"heads.{j}.weight"], stored[f"heads.{j}.bias"]) for j in range(len(drafted))]
    states = torch.cat([feature + silu(linear(feature, weight, bias)) for weight, bias in heads])
    return states @ model.model.lm_head.weight.T


ROWS: dict[str, Callable[[Path, TorchLM, Sequence[int], Sequence[int]], Tensor]] = {
    "eagle": eagle_rows,
    "medusa": medusa_rows,
}


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_row_is_that_of_the_definition_loop_after_loop(tmp_path: Path, backend: str, kind: str) -> None:
    """The head is small beside the feature, so that some drafts are accepted and some are not."""
    sampling = SamplingParams(temperature=0.8, top_p=0.9)
    target = target_of(backend)
    reference = target.reference()
    folder = save_head(tmp_path / "head", target, kind, scale=0.1)
    given = context(target, sampling)
    drafter = build_drafter(spec_of(folder), given)
    tokens, accepted = list(PROMPT), set[int]()
    for loop in islice(loops(given, drafter, PROMPT, 3), 60):
        assert loop.draft.probs is not None
        drafted = loop.draft.tokens.tolist()
        rows = warp(ROWS[kind](folder, reference, tokens, drafted), sampling)
        # Rounding may move a token across the edge of the nucleus, in a rare row.
        errors = (loop.draft.probs - rows).abs().amax(-1)
        assert float(errors.median()) < 1e-3, len(tokens)
        assert len(drafted) == 3
        tokens += loop.tokens
        accepted.add(loop.accepted)
    assert accepted >= {0, 1}


@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_as_a_fresh_one_would(tmp_path: Path, kind: str) -> None:
    target = target_of("onnx")
    folder = save_head(tmp_path / "head", target, kind)
    given = context(target, SamplingParams(temperature=1.5))
    used = build_drafter(spec_of(folder), given)
    tokens = [*PROMPT, *(token for loop in islice(loops(given, used, PROMPT, 3), 4) for token in loop.tokens)]
    u = torch.tensor([0.2, 0.7, 0.4])
    continued = used.draft(tokens, 3, u)
    again = context(target_of("onnx"), given.sampling)
    fresh = build_drafter(spec_of(folder), again)
    loops(again, fresh, tokens, 3)
    expected = fresh.draft(tokens, 3, u)
    assert continued.probs is not None
    assert expected.probs is not None
    assert torch.equal(continued.tokens, expected.tokens)
    assert torch.allclose(continued.probs, expected.probs, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_arms_that_take_turns_on_one_target_do_not_meet(tmp_path: Path, kind: str) -> None:
    target = context(target_of("onnx"), PLAIN)
    assert isinstance(target.target, CausalLM)
    folder = save_head(tmp_path / "head", target.target, kind)
    one, other = (build_drafter(spec_of(folder), target) for _ in range(2))
    alone = output(target, one, PROMPT, 30)
    output(target, other, PROMPT[::-1], 30)
    output(target, None, PROMPT[3:], 10)
    assert output(target, one, PROMPT, 30) == alone == output(target, other, PROMPT, 30)


def test_medusa_proposes_as_many_tokens_as_it_has_heads(tmp_path: Path) -> None:
    target = context(target_of("onnx"), PLAIN)
    assert isinstance(target.target, CausalLM)
    drafter = build_drafter(spec_of(save_head(tmp_path / "h", target.target, "medusa", heads=2)), target)
    drafted = {len(loop.draft.tokens) for loop in islice(loops(target, drafter, PROMPT, 4), 5) if loop.draft}
    assert drafted == {2}


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_token_has_no_draft(tmp_path: Path, kind: str) -> None:
    target = context(target_of("onnx"), PLAIN)
    assert isinstance(target.target, CausalLM)
    drafter = build_drafter(spec_of(save_head(tmp_path / "h", target.target, kind)), target)
    drafted = [len(loop.draft.tokens) for loop in islice(loops(target, drafter, [5], 3), 3) if loop.draft]
    assert drafted == [0, 3, 3]


def test_only_tokens_of_its_vocabulary_are_proposed(tmp_path: Path) -> None:
    target = context(target_of("onnx"), SamplingParams(temperature=3.0))
    assert isinstance(target.target, CausalLM)
    for kind in KINDS:
        folder = save_head(tmp_path / kind, target.target, kind, vocabulary=[5, 77, 200])
        drafter = build_drafter(spec_of(folder), target)
        drafts = [loop.draft for loop in islice(loops(target, drafter, PROMPT, 3), 20) if loop.draft]
        assert {token for draft in drafts for token in draft.tokens.tolist()} == {5, 77, 200}
        for draft in drafts:
            assert torch.equal(draft.probs.nonzero()[:, 1].unique(), torch.tensor([5, 77, 200]))


SIZES = ((2, 3), (3, 2), (5, 1))


def small_head(folder: Path, kind: str, vocab_size: int) -> str:
    """A head for the small model behind the tables that are enumerated; it leaves out token 1."""
    model = context_of(vocab_size, PLAIN, needs=DRAFTERS["heads"].needs).target
    assert isinstance(model, CausalLM)
    ids = [i for i in range(vocab_size) if i != 1] if vocab_size > 3 else None
    return str(spec_of(save_head(folder / f"{kind}{vocab_size}", model, kind, vocabulary=ids, heads=7)))


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("sampling", [PLAIN, GREEDY, SamplingParams(top_k=2)], ids=["plain", "greedy", "two"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_law_is_the_targets_exactly(tmp_path: Path, kind: str, sampling: SamplingParams) -> None:
    for vocab_size, k in SIZES:
        drafter = small_head(tmp_path, kind, vocab_size)
        assert_lossless(drafter, vocab_size=vocab_size, ks=(k,), samplings=(sampling,))


PUBLISHED = ("eagle3", "peagle", "own medusa")


def small_published(folder: Path, kind: str, vocab_size: int) -> str:
    """As ``small_head``, of those that others publish."""
    hidden, out = 32, folder / f"{kind}{vocab_size}"
    if kind == "own medusa":
        save_medusa(out, hidden, vocab_size, heads=7)
    else:
        ids = torch.tensor([i for i in range(vocab_size) if i != 1]) if vocab_size > 3 else None
        save_published(out, hidden, vocab_size, kind, vocabulary=ids, norm_before_fc=True)
    return str(spec_of(out))


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize(
    "sampling", [PLAIN, GREEDY, SamplingParams(top_p=0.8)], ids=["plain", "greedy", "nucleus"]
)
@pytest.mark.parametrize("kind", PUBLISHED)
def test_the_law_is_the_targets_exactly_under_heads_of_others(
    tmp_path: Path, kind: str, sampling: SamplingParams
) -> None:
    for vocab_size, k in SIZES:
        drafter = small_published(tmp_path, kind, vocab_size)
        assert_lossless(drafter, vocab_size=vocab_size, ks=(k,), samplings=(sampling,))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [*KINDS, *PUBLISHED])
def test_the_greedy_law_is_exact_up_to_seven_tokens(tmp_path: Path, kind: str) -> None:
    drafter = (small_head if kind in KINDS else small_published)(tmp_path, kind, 3)
    for k in (4, 5, 6, 7):
        prove(scenes(drafter, accept_draft, 3, (k,), (GREEDY,)), k)


@pytest.mark.parametrize("kind", [*KINDS, *PUBLISHED])
@pytest.mark.parametrize(("k", "law"), LONG)
def test_the_drawn_law_is_exact_up_to_seven_tokens(tmp_path: Path, kind: str, k: int, law: str) -> None:
    """Of two tokens there are 128 drafts of seven; each is computed once."""
    make = small_head if kind in KINDS else small_published
    prove_drawn(scenes(make(tmp_path, kind, 2), accept_draft, 2, (k,), (DRAWN[law],)), k)


@pytest.mark.parametrize("kind", ["eagle", "medusa", "peagle"])
def test_what_is_remembered_is_what_is_computed(tmp_path: Path, kind: str) -> None:
    """Every draft, its chance and its rows; of fewer forwards than there are questions."""
    make = small_head if kind in KINDS else small_published
    for scene in scenes(make(tmp_path, kind, 2), accept_draft, 2, (2,), (PLAIN,)):
        found = remembered(scene)
        for one, other in zip(proposals(found), proposals(scene), strict=True):
            assert one.chance == pytest.approx(other.chance, abs=1e-12)
            assert torch.equal(one.draft.tokens, other.draft.tokens)
            if other.draft.probs is not None:
                assert one.draft.probs is not None
                assert torch.allclose(one.draft.probs, other.draft.probs, atol=1e-12)


def test_a_faulty_drafter_is_found_where_its_model_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own code runs in every loop: rows that it did not draw from give another law."""
    *_, scene = scenes(small_head(tmp_path, "eagle", 2), accept_draft, 2, (2,), (PLAIN,))
    usual = EagleDrafter.draft

    def flatter(drafter: EagleDrafter, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        draft = usual(drafter, tokens, k, u)
        assert draft.probs is not None
        flat = draft.probs.sqrt()
        return Draft(draft.tokens, flat / flat.sum(-1, keepdim=True))

    monkeypatch.setattr(EagleDrafter, "draft", flatter)
    with pytest.raises(AssertionError, match="emits"):
        prove_drawn([scene], 2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", PUBLISHED)
def test_what_heads_of_others_draft_is_read_again_from_the_text_alone(
    tmp_path: Path, kind: str, backend: str
) -> None:
    """Rows of every loop against those of one forward over the text, and against another head's."""
    target = target_of(backend)
    folders = []
    for seed in (0, 1):
        folder = tmp_path / f"{kind}{seed}"
        if kind == "own medusa":
            save_medusa(folder, 32, 258)
        else:
            save_published(folder, 32, 258, kind, ids=(0, 1, 2), seed=seed)
        folders.append(folder)
    options = DRAFTERS["heads"].settled(spec_of(folders[0]))
    states = DRAFTERS["heads"].states_of(spec_of(folders[0]), target.layers)
    kept = target.with_features("--drafter", states)
    drafter = build_drafter(spec_of(folders[0]), context(kept, PLAIN))
    text, spans, shown = list(PROMPT), [], []
    for loop in islice(loops(context(kept, PLAIN), drafter, PROMPT, 3), 12):
        assert loop.draft is not None
        spans.append((len(text), min(len(loop.draft.tokens), len(loop.tokens))))
        assert loop.draft.probs is not None
        shown.append(loop.draft.probs[: spans[-1][1]].clone())
        text += [int(token) for token in loop.tokens]
    again = DRAFTERS["heads"].again
    assert again is not None
    logits = again(options, target, torch.tensor(text), spans)
    assert logits is not None
    found = [warp(logits[start - len(PROMPT) :][:count], PLAIN) for start, count in spans]
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(found, shown, strict=True))
    if kind != "own medusa":
        wrong = again(DRAFTERS["heads"].settled(spec_of(folders[1])), target, torch.tensor(text), spans)
        assert wrong is not None
        assert not torch.allclose(wrong, logits, atol=1e-2)


class Misreporting:
    """Tells flatter rows than it drew from."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.begin, self.observe = drafter.begin, drafter.observe

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        draft = self._drafter.draft(tokens, k, u)
        if draft.probs is None:
            return draft
        flat = draft.probs.pow(0.5)
        return Draft(draft.tokens, flat / flat.sum(-1, keepdim=True))


def misreporting(make: Callable[[], Drafter]) -> Drafter:
    return Misreporting(make())


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_were_not_drawn_from_are_found_out(tmp_path: Path, kind: str) -> None:
    for scene in scenes(small_head(tmp_path, kind, 3), accept_draft, 3, (2,), (PLAIN,)):
        right = worst_difference(scene)
        make: Callable[[], Drafter] = partial(misreporting, scene.make)
        wrong = worst_difference(replace(scene, make=make))
        assert right.is_none
        assert right.limit == 1e-12
        if max(right.drafted):
            assert wrong.size > 1e-3


REFUSED = {
    "nowhere": r"nowhere is not a trained draft: it has no draft\.json\. Name a folder",
    "model": r"is a draft model, not a head\. Give it as --draft ",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_head_is_refused_before_anything_is_loaded(tmp_path: Path, case: str) -> None:
    folder = "nowhere"
    if case == "model":
        folder = str(save_head(tmp_path / "h", target_of("torch"), "model"))
    with pytest.raises(Exception, match=rf"--drafter: .*{REFUSED[case]}"):
        DRAFTERS["heads"].settled(Spec("heads", (("from", folder),)))


def test_what_keeps_no_states_is_refused(tmp_path: Path) -> None:
    target = target_of("onnx")
    folder = save_head(tmp_path / "h", target)
    table = TableModel(lambda text: [0.25] * 4, 4)
    build = partial(build_drafter, spec_of(folder))
    for given in (table, target):
        with pytest.raises(
            UsageError, match=r"--drafter: heads reads hidden states, and here the target keeps"
        ):
            build(Context(given, None, GREEDY, CPU, given.vocab_size))
