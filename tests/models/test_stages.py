"""Programs of a loop's stages over ONNX Runtime: what they cut, draw and accept is the definition's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from onnxruntime import InferenceSession
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from support.onnx_variants import variant
from support.tiny_models import make_pair, over_onnx
from torch import Tensor

from spsbench.base.records import Processing, SamplingParams
from spsbench.decode import algorithms, rows
from spsbench.decode.algorithms import DecodedLoop
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.decode.rejection import Draft, accept_draft, decide
from spsbench.decode.rows import HostRows, StagedRows
from spsbench.decode.sampling import UniformStream
from spsbench.decode.stages import Unstaged, no_programs
from spsbench.drafters.model import ModelDrafter
from spsbench.models import onnx_lm
from spsbench.models.onnx_graph import Graph
from spsbench.models.onnx_lm import OnnxLM, session_of
from spsbench.models.onnx_stages import (
    Cut,
    Operators,
    ProposeProgram,
    VerifyProgram,
    law_inputs,
    law_values,
    row_outputs,
)

CPU = torch.device("cpu")
PROMPT = [5, 17, 200, 41, 9, 88]
LAWS = {
    "greedy": SamplingParams(greedy=True),
    "nucleus": SamplingParams(temperature=0.3, top_p=0.9),
    "top-k": SamplingParams(temperature=0.8, top_k=20),
    "both": SamplingParams(temperature=0.5, top_k=40, top_p=0.9),
    "all": SamplingParams(),
    "wide": SamplingParams(temperature=1.05, top_p=0.93),
}


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@cache
def pair(name: str = "llama") -> tuple[OnnxLM, OnnxLM]:
    """A family's target and its first layers as the draft; of the first one they often agree."""
    if name != "llama":
        target = over_onnx(variant(name).model)
        return target, over_onnx(variant(name).model).truncated(2, "--drafter")
    one, other = make_pair(name, late=0.5, hidden_size=64, initializer_range=0.3)
    return over_onnx(one), over_onnx(other)


def loops(
    models: tuple[OnnxLM, OnnxLM], law: SamplingParams, k: int, count: int, seed: int = 0
) -> list[DecodedLoop]:
    """The first loops after the prompt: of SpS, or of ArS where k is 0."""
    target, draft = (model.twin() for model in models)
    drafter = ModelDrafter(draft, law, CPU) if k else None
    begun = algorithms.start(target, drafter, PROMPT, k, law, UniformStream(seed, CPU))
    running = begun(Stopwatch(FakeClock()))
    return [next(running) for _ in range(count)]


def _texts(found: list[DecodedLoop]) -> list[list[int]]:
    return [loop.tokens for loop in found]


@pytest.mark.parametrize("k", [0, 1, 4])
@pytest.mark.parametrize("law", LAWS)
def test_tokens_are_those_of_the_host(law: str, k: int) -> None:
    """Past the first cache of 256 tokens too, and where every other row is too wide for a program."""
    staged = loops(pair(), LAWS[law], k, 300 if k == 4 else 80)
    with no_programs():
        plain = loops(pair(), LAWS[law], k, len(staged))
    assert _texts(staged) == _texts(plain)
    for one, other in zip(staged, plain, strict=True):
        assert torch.allclose(one.target_probs, other.target_probs, atol=1e-6)
    ran = [loop.target_rows for loop in staged if isinstance(loop.target_rows, StagedRows)]
    cuts = k > 0 or LAWS[law].top_p == 1.0
    assert bool(ran) == cuts
    assert not any(isinstance(loop.target_rows, StagedRows) for loop in plain)
    whole = len(ran) == len(staged) and not any(held.others for held in ran)
    assert whole == (cuts and law != "wide")


@pytest.mark.parametrize("name", ["gemma", "granite", "qwen3", "phi3", "llama, tied"])
def test_other_families_have_programs(name: str) -> None:
    """Those that scale embeddings, norm queries, fuse matrices, or tie the embedding to the head."""
    staged = loops(pair(name), LAWS["top-k"], 3, 30)
    assert isinstance(staged[0].target_rows, StagedRows)
    with no_programs():
        assert _texts(staged) == _texts(loops(pair(name), LAWS["top-k"], 3, 30))


@pytest.mark.parametrize("law", LAWS)
def test_a_verdict_is_that_of_the_rule_on_the_same_rows(law: str) -> None:
    """To the bit: the host's rule gives the tokens from the rows and numbers of every loop."""
    found = loops(pair(), LAWS[law], 4, 200, seed=3)
    for loop in found:
        assert loop.draft is not None
        again = decide(accept_draft, loop.target_rows, loop.draft, loop.u[-len(loop.draft.tokens) - 1 :])
        assert [*again.drafted[: again.accepted], again.token] == loop.tokens
    accepted = [loop.accepted for loop in found]
    assert {0, 4} <= set(accepted), "rejected at once, and all accepted"


@pytest.mark.parametrize("law", LAWS)
def test_a_draft_is_drawn_from_its_own_rows(law: str) -> None:
    """To the bit: the host draws the same tokens from them by the same numbers; by others it draws others."""
    found = loops(pair(), LAWS[law], 4, 100)
    others = 0
    for loop in found:
        assert loop.draft is not None
        told = loop.draft.own_rows
        assert told is not None
        assert told.draw(loop.u[:4]).tolist() == loop.draft.tokens.tolist()
        others += told.draw(1 - loop.u[:4]).tolist() != loop.draft.tokens.tolist()
    assert (others > 0) == (law != "greedy")


def _cut(logits: Tensor, law: SamplingParams) -> tuple[StagedRows, list[bool]]:
    """Rows of any logits by the program's operators, and which of them are marked."""
    cut = Cut.of(logits.shape[1], law)
    assert isinstance(cut, Cut)
    write = Operators()
    write.cut(cut, "logits")
    value = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", cut.width])
    model = write.model([value, *law_inputs(cut)], row_outputs(cut, "n"))
    session, _ = session_of(Graph(model, {}), 1)
    outputs = [each.name for each in session.get_outputs()]
    given = {"logits": logits.numpy(), **law_values(cut, law)}
    found = dict(zip(outputs, session.run(outputs, given), strict=True))
    return StagedRows(found.get("ids"), found["weights"], cut.width), found["wide"][:, 0].tolist()


def test_ties_at_the_edge_are_all_kept() -> None:
    """Of a nucleus and of top-k, as the definition keeps them; the mass is theirs too."""
    logits = torch.full((1, 400), -9.0)
    logits[0, [7, 300]] = 3.0
    logits[0, [11, 12, 250]] = 2.0
    for law in (SamplingParams(top_p=0.75), SamplingParams(top_k=3)):
        held, marked = _cut(logits, law)
        assert marked == [False]
        assert held[0].ids is not None
        assert held[0].ids.tolist() == [7, 11, 12, 250, 300]
        expected = rows.warped(logits, law)
        assert isinstance(expected, HostRows)
        assert np.allclose(held[0].weights, expected[0].weights, rtol=1e-6)


def test_a_row_that_does_not_fit_is_marked() -> None:
    """A flat row, ties that reach over the border, and logits that are no numbers; a common row is not."""
    rising = torch.linspace(0, 40, 400).unsqueeze(0)
    flat, tied = torch.zeros(1, 400), torch.cat([rising[:, :300], torch.full((1, 100), 60.0)], dim=1)
    broken = rising.clone()
    broken[0, 3] = float("nan")
    endless = rising.clone()
    endless[0, 3] = float("inf")
    logits = torch.cat([flat, rising, tied, broken, endless])
    assert _cut(logits, SamplingParams(top_p=0.9))[1] == [True, False, True, True, True]
    assert _cut(logits, SamplingParams(top_k=5))[1] == [True, False, True, True, True]
    assert _cut(logits, SamplingParams(greedy=True))[1] == [False, False, False, True, True]
    assert _cut(logits, SamplingParams())[1] == [False, False, False, True, True]


def test_a_broken_model_fails_as_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = pair()
    target = target.twin()
    monkeypatch.setitem(LAWS, "spoilt", replace(LAWS["nucleus"], temperature=1e-38))  # logits beyond float32
    found = loops((target, draft), LAWS["spoilt"], 0, 1)
    assert not found[0].target_rows.is_finite()


@pytest.mark.parametrize(
    ("width", "law", "why"),
    [
        (1 << 15, SamplingParams(top_p=0.9), "a vocabulary of 32,768"),
        (151_936, SamplingParams(), "a vocabulary of 151,936"),
        (4096, SamplingParams(), "all of 4,096 tokens"),
        (4096, SamplingParams(top_k=2000), "top-k 2,000"),
        (100, SamplingParams(top_p=0.9), "a vocabulary of 100, too small to cut"),
        (258, SamplingParams(process=Processing(min_p=0.1)), "the law is processed"),
    ],
)
def test_what_has_no_program_is_the_hosts(width: int, law: SamplingParams, why: str) -> None:
    assert Cut.of(width, law) == Unstaged(why)


def test_a_model_without_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that keeps its states, has another forward, or too many weights. A twin has programs of its own."""
    target, _ = pair()
    law = LAWS["greedy"]
    kept = target.with_features("--drafter")
    assert kept.propose_stage(1, law) == Unstaged("hidden states are kept")
    assert target.propose_stage(1, law) is target.propose_stage(1, law)
    assert target.twin().propose_stage(1, law) is not target.propose_stage(1, law)
    watched = target.twin()
    assert isinstance(watched.propose_stage(1, law), ProposeProgram)
    monkeypatch.setattr(watched, "score", watched.score_uncached)
    assert watched.propose_stage(1, law) == Unstaged("another forward")
    monkeypatch.setattr(onnx_lm, "MOST_BYTES", 1000)
    assert target.twin().propose_stage(1, law) == Unstaged("weights of 0 MiB")
    assert target.twin().verify_stage(4, law) == Unstaged("weights of 0 MiB")


def test_a_draft_of_a_users_class_is_the_one_that_is_judged() -> None:
    """Not that of the program, which its base class would give; one put on a drafter or on the class too."""

    class Shorter(ModelDrafter):
        def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
            return super().draft(tokens, 1, u[:1])

    target, draft = (model.twin() for model in pair())
    law = LAWS["top-k"]

    def drafted(drafter: ModelDrafter) -> set[int]:
        begun = algorithms.start(target, drafter, PROMPT, 3, law, UniformStream(0, CPU))
        running = begun(Stopwatch(FakeClock()))
        return {loop.draft.count for loop in (next(running) for _ in range(8)) if loop.draft is not None}

    assert drafted(ModelDrafter(draft, law, CPU)) == {3}
    assert drafted(Shorter(draft, law, CPU)) == {1}
    replaced = ModelDrafter(draft, law, CPU)
    with patch.object(replaced, "draft", Shorter(draft, law, CPU).draft):
        assert drafted(replaced) == {1}
    right = ModelDrafter.draft
    with patch.object(ModelDrafter, "draft", lambda self, tokens, _, u: right(self, tokens, 1, u[:1])):
        assert drafted(ModelDrafter(draft, law, CPU)) == {1}


def test_numbers_are_the_same_on_the_host() -> None:
    """As arrays or tensors, in turns, over several blocks."""
    stream, other = UniformStream(3, CPU), UniformStream(3, CPU)
    for n in [1, 9, 4000, 3, 2000, 1] * 4:
        assert stream(n).tolist() == other.on_host(n).tolist()
        stream, other = other, stream


def test_a_draft_of_another_kind_is_judged_by_the_host() -> None:
    """Fewer tokens than K, rows of another law, or none: a drafter of a user asks a model as it likes."""
    target, draft = (model.twin() for model in pair())
    verify = target.verify_stage(2, LAWS["top-k"])
    assert isinstance(verify, VerifyProgram)
    one = StagedRows(np.array([[3], [4]]), np.ones((2, 1), np.float32), 258)
    all_ = StagedRows(None, np.ones((2, 64), np.float32), 64)  # of another vocabulary, as wide as the cut
    for tokens, told in (([3], one.part(0, 1)), ([3, 4], one), ([3, 4], None), ([3, 4], all_)):
        assert verify(5, Draft(torch.tensor(tokens), told), np.zeros(3, np.float32)) is None
    law = LAWS["top-k"]
    other = ModelDrafter(draft, LAWS["greedy"], CPU)
    begun = algorithms.start(target, other, PROMPT, 2, law, UniformStream(0, CPU))
    running = begun(Stopwatch(FakeClock()))
    assert len([next(running) for _ in range(20)]) == 20


@contextmanager
def _without(operator: str) -> Iterator[list[str]]:
    """A release of ONNX Runtime that has no such operator; the list grows by every graph that it refuses."""
    refused: list[str] = []

    def picky(graph: Graph, threads: int) -> tuple[InferenceSession, int]:
        if any(node.op_type == operator for node in graph.model.graph.node):
            refused.append(graph.model.graph.name)
            model = graph.model.__class__.FromString(graph.model.SerializeToString())
            for node in model.graph.node:
                node.op_type = node.op_type if node.op_type != operator else "OfTheFuture"
            graph = Graph(model, graph.weights)
        return session_of(graph, threads)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_lm, "session_of", picky)
        yield refused


def test_an_operator_that_the_runtime_lacks() -> None:
    """Its programs are refused once, the rest of them runs, and tokens stay."""
    torch_pair = make_pair("llama", late=0.5, hidden_size=64, initializer_range=0.3)
    target, draft = (over_onnx(model) for model in torch_pair)
    with _without("CumSum") as refused:
        found = [loops((target, draft), LAWS["top-k"], k, 20) for k in (0, 4, 3)]
        greedy = loops((target, draft), LAWS["greedy"], 4, 5)
        # Of the target a step of ArS alone: behind a draft without a program there is none to judge.
        assert len(refused) == 2
        why = target.verify_stage(4, LAWS["top-k"])
    assert isinstance(why, Unstaged)
    assert why.reason.startswith("ONNX Runtime: ")
    assert "OfTheFuture" in why.reason
    assert not any(isinstance(loop.target_rows, StagedRows) for each in found for loop in each)
    assert isinstance(greedy[0].target_rows, StagedRows)
    with no_programs():
        plain = [loops((target, draft), LAWS["top-k"], k, 20) for k in (0, 4, 3)]
    assert [*map(_texts, found)] == [*map(_texts, plain)]


@pytest.mark.parametrize(("role", "k"), [("target", 0), ("target", 4), ("draft", 4)])
@pytest.mark.parametrize(("law", "worked"), [("greedy", 25), ("top-k", 25), ("top-k", 0)])
def test_a_program_that_fails_in_the_middle(law: str, worked: int, role: str, k: int) -> None:
    """After some calls of the runtime, in the middle of a draft: the host goes on with the same tokens."""
    target, draft = (model.twin() for model in pair())
    drafter = ModelDrafter(draft, LAWS[law], CPU) if k else None
    begun = algorithms.start(target, drafter, PROMPT, k, LAWS[law], UniformStream(0, CPU))
    running = begun(Stopwatch(FakeClock()))
    failing = target.verify_stage(k, LAWS[law]) if role == "target" else draft.propose_stage(4, LAWS[law])
    assert isinstance(failing, ProposeProgram | VerifyProgram)
    run, calls = failing._run, 0

    def breaking(binding: object) -> None:
        nonlocal calls
        calls += 1
        run(binding)
        if calls > worked:
            raise Fail("[ONNXRuntimeError] : 1 : FAIL : out of luck\nat a place")

    failing._run = breaking
    found = [next(running) for _ in range(40)]
    with no_programs():
        assert _texts(found) == _texts(loops(pair(), LAWS[law], k, 40))
    assert calls == worked + 1, "it is not called again"
    why = Unstaged(f"{'program in part: ' if worked else ''}ONNX Runtime: out of luck")
    assert algorithms.verified_by(target, drafter, k, LAWS[law], None) == why
    if drafter is not None:
        assert (drafter.propose_stage(4) == why) == (role == "draft")


@pytest.mark.parametrize("law", ["nucleus", "top-k", "both", "all"])
def test_numbers_at_the_ends_draw_a_token_that_is_in_the_row(law: str) -> None:
    """At 0 the first of them, next to 1 the last; as the host draws from the same rows."""
    cut = Cut.of(400, LAWS[law])
    assert isinstance(cut, Cut)
    write, value = Operators(), helper.make_tensor_value_info
    write.cut(cut, "logits")
    write("Identity", write.draw(cut, "u"), out="pick")
    inputs = [value("logits", TensorProto.FLOAT, ["n", 400]), value("u", TensorProto.DOUBLE, ["n", 1])]
    outputs = [*row_outputs(cut, "n"), value("pick", TensorProto.INT64, ["n", 1])]
    session, _ = session_of(Graph(write.model([*inputs, *law_inputs(cut)], outputs), {}), 1)
    logits = 20 * torch.rand(30, 400, generator=torch.Generator().manual_seed(1))
    logits[:, [0, 399]] = -torch.inf
    u = np.array([0.0, 1 - 2**-24] * 15)[:, None]
    names = [each.name for each in session.get_outputs()]
    run = session.run(names, {"logits": logits.numpy(), "u": u, **law_values(cut, LAWS[law])})
    found = dict(zip(names, run, strict=True))
    held = StagedRows(found.get("ids"), found["weights"], 400)
    picks = found["pick"][:, 0].tolist()
    assert picks == held.draw(torch.from_numpy(u[:, 0])).tolist()
    assert all(held.probability(row, token) > 0 for row, token in enumerate(picks))
