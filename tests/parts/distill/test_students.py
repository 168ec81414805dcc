"""A student predicts in training what it drafts with in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_heads import TOKENS, VOCABULARY, stirred
from support.tiny_models import over_onnx
from torch import Tensor

from spsbench.models.heads import load_chain, load_heads
from spsbench.models.torch_lm import TorchLM
from spsbench.models.trained import MadeFor, TrainedDraft, read_trained
from spsbench.parts.distill.making import write_draft
from spsbench.parts.distill.students import EagleHead, MedusaHeads, Teacher, log_probs, shortened, spread
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
