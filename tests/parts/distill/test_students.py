"""A student predicts in training what it drafts with in a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_heads import TOKENS, VOCABULARY, stirred
from support.tiny_models import over_onnx
from torch import Tensor

from spsbench.models.block_folders import load_block
from spsbench.models.checkpoint import Checkpoint
from spsbench.models.heads import load_chain, load_heads
from spsbench.models.kinds import POST, PRE
from spsbench.models.mtp import MtpChain, MtpModule, find_modules
from spsbench.models.reading import read_draft
from spsbench.models.torch_lm import TorchLM
from spsbench.models.trained import MadeFor, TrainedDraft, read_trained
from spsbench.parts.distill.folders import write_draft, write_speculators
from spsbench.parts.distill.students import (
    BlockHead,
    Eagle3Head,
    EagleHead,
    MedusaHeads,
    ModuleHead,
    Teacher,
    log_probs,
    shortened,
    spread,
    states_between,
)
from spsbench.parts.distill.training import cross_entropy, rejected


@pytest.fixture
def teacher(model: Any) -> Teacher:
    return Teacher(model, VOCABULARY)


@pytest.fixture
def features(model: Any) -> Tensor:
    with torch.inference_mode():
        states: Tensor = model.get_decoder()(input_ids=TOKENS[:, :-1]).last_hidden_state
    return states.clone()


def saved(student: Any, model: Any, kind: str, folder: Path, config: Any, heads: int = 0) -> TrainedDraft:
    loaded = TorchLM(model)
    rows, width = loaded.embedding_shape
    made = MadeFor("tiny", width, rows, loaded.embedding_fingerprint())
    write_draft(folder, kind, made, config, heads, student.weights(), VOCABULARY)
    return read_trained(folder, "--drafter")


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_each_depth_of_an_eagle_head_is_a_draft_behind_what_was_true(
    teacher: Teacher, features: Tensor, model: Any, tmp_path: Path, backend: str
) -> None:
    student = stirred(EagleHead(teacher, 3))
    config = shortened(model.config.to_dict(), student.numbers)
    draft = saved(student, model, "eagle", tmp_path / "head", config)
    loaded = over_onnx(model) if backend == "onnx" else TorchLM(model)
    with torch.inference_mode():
        depths = [depth.states[0] for depth in student.predict(TOKENS, features)]
        chain = load_chain(draft, loaded, 0, "--drafter")
        for last in (0, 4, 8):  # the last entry that is made from the target's feature
            chain.rollback(0)
            entries = slice(0, last + 1)
            logits, own = chain.extend(TOKENS[0, 1:][entries], features[0, entries])
            for depth, states in enumerate(depths):
                if depth:
                    place = last + depth
                    logits, own = chain.extend(TOKENS[0, 1:][place : place + 1], own.clone())
                expected = log_probs(states[last + depth][None], teacher.head_rows(torch.float32), 1.0)
                found = logits[:, VOCABULARY].log_softmax(-1)
                torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_each_medusa_head_drafts_what_it_learnt(
    teacher: Teacher, features: Tensor, model: Any, tmp_path: Path, backend: str
) -> None:
    student = stirred(MedusaHeads(teacher, 3))
    draft = saved(student, model, "medusa", tmp_path / "heads", None, 3)
    loaded = over_onnx(model) if backend == "onnx" else TorchLM(model)
    with torch.inference_mode():
        heads = load_heads(draft, loaded, 0, "--drafter")
        logits = heads(features[0, 6:7], 3)
        for number, depth in enumerate(student.predict(TOKENS, features)):
            assert depth.ahead == 2 + number
            expected = log_probs(depth.states[0, 6][None], teacher.head_rows(torch.float32), 1.0)
            found = logits[number, VOCABULARY].log_softmax(-1)[None]
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def published(student: Any, teacher: Teacher, folder: Path) -> Path:
    loaded = TorchLM(teacher.model)
    rows, width = loaded.embedding_shape
    write_speculators(
        folder, MadeFor("tiny", width, rows, loaded.embedding_fingerprint()), "tiny", teacher, student
    )
    return folder


def rows_of(states: Tensor, teacher: Teacher) -> Tensor:
    return log_probs(states, teacher.head_rows(torch.float32), 1.0)


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_a_head_over_states_between_layers_drafts_what_it_learnt(
    teacher: Teacher, features: Tensor, tmp_path: Path, backend: str
) -> None:
    student = stirred(Eagle3Head(teacher, 2, (1, 2)))
    draft = read_draft(published(student, teacher, tmp_path / "head"), "--drafter")
    assert draft.states_of(3) == (1, 2)
    target: Any = over_onnx(teacher.model) if backend == "onnx" else TorchLM(teacher.model)
    keeping = target.with_features("--drafter", draft.states_of(3))
    with torch.inference_mode():
        first, second = (depth.states[0] for depth in student.predict(TOKENS, features))
        keeping.score(TOKENS[0], last=1)
        chain = load_chain(draft, target, 0, "--drafter")
        read = chain.combined(keeping.features(0, 5, chain.reads))
        row, own = chain.extend(TOKENS[0, 1:6], read)
        found = [row.clone(), chain.extend(TOKENS[0, 6:7], own.clone())[0]]
    for logits, states in zip(found, (first[4:5], second[5:6]), strict=True):
        torch.testing.assert_close(
            logits[:, VOCABULARY].log_softmax(-1), rows_of(states, teacher), rtol=1e-3, atol=1e-3
        )


def test_a_module_drafts_what_it_learnt_from_its_own_state_after_the_norm(
    model: Any, features: Tensor, tmp_path: Path
) -> None:
    teacher = Teacher(model, torch.arange(258))
    student = stirred(ModuleHead(teacher, 3))
    stored = Checkpoint(published(student, teacher, tmp_path / "module"))
    (names,) = find_modules(stored, model.config).modules
    target = TorchLM(model)
    with torch.inference_mode():
        depths = [depth.states[0] for depth in student.predict(TOKENS, features)]

        def drafted(recycle: str) -> Tensor:
            chain = MtpChain(MtpModule(stored, names, 0, False, target), recycle, target)
            row, own = chain.extend(TOKENS[0, 1:6], features[0, :5])
            rows = [row.clone()]
            for place in (6, 7):
                row, own = chain.extend(TOKENS[0, place : place + 1], own.clone())
                rows.append(row.clone())
            return torch.cat(rows).log_softmax(-1)

        expected = torch.cat([rows_of(depths[depth][4 + depth][None], teacher) for depth in range(3)])
        torch.testing.assert_close(drafted(POST), expected, rtol=1e-3, atol=1e-3)
        assert not torch.allclose(drafted(PRE)[1:], expected[1:], atol=1e-2)


@pytest.mark.parametrize("anchor_predicts", [False, True])
@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_a_block_drafts_what_it_learnt_behind_the_same_text(
    teacher: Teacher, features: Tensor, tmp_path: Path, backend: str, anchor_predicts: bool
) -> None:
    student = stirred(BlockHead(teacher, 2, 4, 3, (1, 2), anchor_predicts=anchor_predicts))
    folder = published(student, teacher, tmp_path / "block")
    # Not of its layers, which have no window; vLLM takes its opposite as causal for all of them.
    assert json.loads((folder / "config.json").read_text())["sliding_window_non_causal"] is True
    draft = read_draft(folder, "--drafter")
    target: Any = over_onnx(teacher.model) if backend == "onnx" else TorchLM(teacher.model)
    keeping = target.with_features("--drafter", draft.states_of(3))
    learnt = torch.zeros(TOKENS.shape, dtype=torch.bool)
    learnt[:, 5:] = True
    with torch.inference_mode():
        depths = list(student.predict(TOKENS, features, learnt))
        keeping.score(TOKENS[0], last=1)
        block = load_block(draft, target, "--drafter")
        assert len(depths) == block.form.drafts
        at = depths[0].at
        assert at is not None
        assert int(at.min()) >= 4, "what is not learnt from begins no block"
        for number, place in enumerate(at.tolist()):
            block.rollback(0)
            block.read(keeping.features(0, place, draft.states_of(3)))
            slots = block.block(TOKENS[0, place : place + 1], len(depths))
            found = slots.all_logits()[:, VOCABULARY].log_softmax(-1)
            expected = torch.cat([rows_of(depth.states[0, number][None], teacher) for depth in depths])
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("layers", "after"), [(2, (1,)), (3, (1, 2)), (6, (1, 3, 5)), (7, (2, 3, 4)), (32, (2, 16, 29))]
)
def test_states_are_read_where_the_authors_read_them(layers: int, after: tuple[int, ...]) -> None:
    assert states_between(layers) == after


@pytest.mark.parametrize(("count", "total", "wanted"), [(1, 30, [29]), (2, 30, [0, 29]), (3, 5, [0, 2, 4])])
def test_layers_are_taken_from_the_first_to_the_last(count: int, total: int, wanted: list[int]) -> None:
    assert spread(count, total) == wanted


def test_rejection_is_one_minus_what_both_distributions_share() -> None:
    wanted, offered = torch.tensor([[0.5, 0.25, 0.125]]), torch.tensor([[0.25, 0.25, 0.5]])
    assert rejected(offered.log(), wanted.log()).item() == pytest.approx(1 - (0.25 + 0.25 + 0.125))


def test_cross_entropy_is_least_where_the_student_agrees() -> None:
    wanted = torch.tensor([[0.5, 0.25, 0.25]])
    least = cross_entropy(wanted.log(), wanted.log())
    other = cross_entropy(torch.tensor([[0.4, 0.3, 0.3]]).log(), wanted.log())
    assert float(other) > float(least)
