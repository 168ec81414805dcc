"""A training learns, goes on where it was stopped, and keeps to its plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from spsbench.parts.distill.evaluation import held_out
from spsbench.parts.distill.own_text import SAMPLINGS
from spsbench.parts.distill.sampler import Sampled, Writer
from spsbench.parts.distill.students import Depth, EagleHead, SmallModel, Teacher
from spsbench.parts.distill.training import FLAT_UNTIL, Batch, Progress, Training, batches_of, rate
from spsbench.stats import by_place

CPU = torch.device("cpu")
PLANNED = 24


@pytest.fixture(scope="module")
def texts(model: Any) -> list[Sampled]:
    prompts = [[256, token] for token in range(24)]
    writer = Writer(model, [257], 258)
    return writer.write(prompts, 24, SAMPLINGS["chat"], torch.Generator().manual_seed(0))


@pytest.fixture
def teacher(model: Any) -> Teacher:
    return Teacher(model, torch.arange(0, 256))


def batches(texts: list[Sampled], epoch: int) -> Iterator[Batch]:
    return batches_of({"chat": texts}, 256, epoch, CPU, torch.float32)


def trained(teacher: Teacher, texts: list[Sampled], folder: Path, stop_at: int = PLANNED) -> Any:
    """A student after ``stop_at`` of the planned updates."""
    torch.manual_seed(0)
    student = SmallModel(teacher, 1)
    folder.mkdir(exist_ok=True)
    training = Training(teacher, student, folder, Progress(PLANNED))

    def stop(progress: Progress, loss: float) -> None:
        if progress.updates == stop_at and stop_at < PLANNED:
            training._save()
            raise KeyboardInterrupt

    def evaluate() -> dict[str, Any]:
        return {"chat": [0.0]}

    try:
        training.run(lambda epoch: batches(texts, epoch), evaluate, 10, stop)
    except KeyboardInterrupt:
        assert stop_at < PLANNED
    return student


def test_a_student_is_accepted_more_often_after_its_training(
    teacher: Teacher, texts: list[Sampled], tmp_path: Path
) -> None:
    before = held_out(teacher, SmallModel(teacher, 1), {"chat": texts}, 256, 10_000)[0]
    after = held_out(teacher, trained(teacher, texts, tmp_path), {"chat": texts}, 256, 10_000)[0]
    assert after.alphas[0] > before.alphas[0] + 0.02


def test_a_training_that_was_stopped_ends_with_the_same_weights(
    teacher: Teacher, texts: list[Sampled], tmp_path: Path
) -> None:
    whole = trained(teacher, texts, tmp_path / "whole").state_dict()
    trained(teacher, texts, tmp_path / "stopped", stop_at=9)
    resumed = trained(teacher, texts, tmp_path / "stopped").state_dict()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_embedding_and_target_stay_as_they_are(
    model: Any, teacher: Teacher, texts: list[Sampled], tmp_path: Path
) -> None:
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    trained(teacher, texts, tmp_path)
    assert all(torch.equal(before[name], weight) for name, weight in model.named_parameters())
    assert not any("embed" in name for name in SmallModel(teacher, 1).weights())


def test_a_deadline_cuts_the_plan(teacher: Teacher, texts: list[Sampled], tmp_path: Path) -> None:
    training = Training(teacher, EagleHead(teacher, 1), tmp_path, Progress(10_000))
    training.end_by(0.0)  # long ago
    told: list[int] = []
    training.run(
        lambda epoch: batches(texts, epoch),
        dict,
        10_000,
        lambda progress, loss: told.append(progress.planned),
    )
    assert told[-1] == len(told) < 100


def test_a_batch_learns_from_every_drawn_token_that_a_depth_predicts(texts: list[Sampled]) -> None:
    for batch in batches(texts, 0):
        for ahead in (1, 2, 3):
            depth = Depth(batch.features, ahead)
            drawn = sum(int(row[ahead:].sum()) for row in batch.continued)
            assert len(batch.at(depth)) == len(batch.at_target(depth)) == drawn


def test_wanted_probabilities_are_the_targets_own(teacher: Teacher, texts: list[Sampled]) -> None:
    batch = next(batches(texts, 0))
    found = batch.target_log_probs(Depth(batch.features, 1), teacher.head_rows(torch.float32)).exp()
    with torch.inference_mode():
        logits = teacher.model(input_ids=batch.tokens).logits[:, :-1][batch.continued[:, 1:]]
    expected = (logits / batch.temperature).softmax(-1)[:, teacher.vocabulary]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_the_rate_rises_stays_and_falls_to_nothing() -> None:
    shares = [rate(i / 100) for i in range(101)]
    assert shares[0] < shares[1] < shares[5] == 1.0 == rate(FLAT_UNTIL - 0.01)
    assert shares[-1] == pytest.approx(0.0)


def test_tokens_per_loop_are_those_of_the_alphas_in_turn() -> None:
    tokens = by_place([0.5, 0.25])
    assert tokens(1) == 1.5
    assert tokens(3) == 1 + 0.5 + 0.5 * 0.25 + 0.5 * 0.25 * 0.25
