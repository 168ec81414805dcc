"""An alarm whose cause is another reading of the checkpoint says so; one of the sampling does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import tiny_models
from support.tiny_engine import Folders, InProcess, Models, served

from spsbench.base import SamplingParams, protocol
from spsbench.base.errors import GateFailed
from spsbench.base.protocol import Answer, Ask
from spsbench.config.models import TORCH
from spsbench.models.causal_lm import CausalLM
from spsbench.models.loading import load
from spsbench.parts.audit import engine_audit
from spsbench.parts.audit.course import conclude
from spsbench.parts.audit.engine_audit import Effort, Row, Setting, Subject, audit_engine
from spsbench.parts.audit.first_forward import differing_forward
from spsbench.parts.external.registry import PeerKind
from spsbench.report.judgement import audit_sentences
from spsbench.store.summary_types import FirstForward

PROMPTS = [tuple((7 * i + 11 * j) % 250 for j in range(24)) for i in range(8)]
ASKS = [Ask([*prompt], 4) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def misread(folders: Folders, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights, read with rotary positions of another base."""
    folder = tmp_path_factory.mktemp("misread") / "target"
    shutil.copytree(folders[0], folder)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    rope = config.get("rope_parameters") or {"rope_type": "default"}
    file.write_text(json.dumps(config | {"rope_parameters": rope | {"rope_theta": 2.0}}))
    return folder


def loaded(folder: Path, dtype: str = "float32") -> CausalLM:
    source = tiny_models.pair_of(folder, folder)
    return load(source.target, dtype, torch.device("cpu"), source.vocab_size, "--target", TORCH)


class Telling:
    """Draws the first token by one model's rows, and tells its log-probability."""

    def __init__(
        self, model: CausalLM, changed: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> None:
        self.model, self.changed = model, changed or (lambda row: row)
        self.generator = torch.Generator().manual_seed(0)
        self.tells = True

    def generate(self, ask: Ask) -> Answer:
        row = self.model.score_uncached(torch.tensor(ask.prompt_ids), last=1)[-1].float()
        logprobs = self.changed(row).log_softmax(-1)
        token = int(torch.multinomial(logprobs.exp(), 1, generator=self.generator))
        if ask.sampling.greedy:
            token = int(logprobs.argmax())
        told = [float(logprobs[token])] if ask.logprobs and self.tells else None
        return Answer([token], protocol.LENGTH, logprobs=told)


def found(peer: Any, models: Models, *, exact: bool = True, plain: bool = True) -> FirstForward | None:
    return differing_forward(peer, ASKS, models, exact=exact, plain=plain)


def test_another_base_of_positions_is_another_model(misread: Path, models: Models) -> None:
    first = found(Telling(loaded(misread)), models)
    assert first is not None
    assert first["nats"] is not None
    assert (first["prompts"], first["expected"]) == (8, None)
    assert first["differ"] > 4
    assert first["nats"] > 0.01


def test_without_logprobs_the_best_tokens_are_compared(
    misread: Path, folders: Folders, models: Models
) -> None:
    peer = Telling(loaded(folders[1]))
    peer.tells = False
    first = found(peer, models)
    assert first is not None
    assert first["nats"] is None
    assert first["token"] != first["expected"]
    right = Telling(models[0])
    right.tells = False
    assert found(right, models) is None
    # Of an engine that drafts a greedy token is also what it accepts drafts by.
    assert found(peer, models, plain=False) is None


def test_a_few_other_tokens_are_no_other_model(models: Models) -> None:
    """A penalty or a ban changes some most probable tokens; another model changes most."""

    class Banning(Telling):
        def generate(self, ask: Ask) -> Answer:
            answer = super().generate(ask)
            other = [(answer.output_ids[0] + 1) % 50]
            return replace(answer, output_ids=other) if ask.prompt_ids in BANNED else answer

    peer = Banning(models[0])
    peer.tells = False
    BANNED = [list(ask.prompt_ids) for ask in ASKS[: len(ASKS) // 2]]
    assert found(peer, models) is None
    BANNED = [list(ask.prompt_ids) for ask in ASKS[: len(ASKS) // 2 + 1]]
    assert found(peer, models) is not None


@pytest.mark.parametrize(
    "changed",
    [None, lambda row: row / 0.83, lambda row: row.masked_fill(row < row.topk(40).values[-1], -torch.inf)],
)
def test_the_same_rows_drawn_otherwise_are_no_other_model(changed: Any, models: Models) -> None:
    assert found(Telling(models[0], changed), models) is None


def test_rounding_to_16_bits_is_no_other_model(folders: Folders, models: Models) -> None:
    assert found(Telling(loaded(folders[0], "bfloat16")), models, exact=False) is None


def test_an_engine_that_draws_where_it_is_to_be_greedy_says_nothing(models: Models) -> None:
    class Drawing(Telling):
        def generate(self, ask: Ask) -> Answer:
            return super().generate(replace(ask, sampling=protocol.Sampling()))

    peer = Drawing(models[0])
    peer.tells = False
    assert found(peer, models) is None


def rows_of(target: Path, folders: Folders, models: Models, folder: Path, fault: str | None) -> list[Row]:
    kind = PeerKind(
        "worker:here", lambda load, log, paused: InProcess(served((target, folders[1]), fault, 2))
    )
    subject = Subject(kind, models, folders, PROMPTS, [tiny_models.EOS], threads=1)
    effort = Effort(0.5, 60, 600.0, 16)
    settings = [Setting(SamplingParams(), k) for k in (0, 2)]
    return [*audit_engine(subject, settings, effort, 0, folder, lambda _: None)]


def test_the_alarm_names_the_model_and_not_the_sampling(
    folders: Folders, models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_audit, "TO_LOCATE", 1)
    rows = rows_of(folders[1], folders, models, tmp_path, None)
    assert [(row.decision, row.located) for row in rows] == [("alarm", None)] * 2
    row = rows[1]  # which has it from the plain one
    said = " ".join(audit_sentences([row.facts()], 0.5))
    assert "It computes another model from this checkpoint" in said
    assert "Closest of the laws" not in said
    with pytest.raises(GateFailed, match=r"most probable first token differs at \d of \d prompts"):
        conclude([row], 0.5, None)


@pytest.mark.thorough
def test_an_alarm_of_the_sampling_does_not_name_the_model(
    folders: Folders, models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_audit, "TO_LOCATE", 1)
    row = rows_of(folders[0], folders, models, tmp_path, "bonus-from-draft")[1]
    assert row.decision == "alarm"
    assert row.forward is None
    assert "another model" not in " ".join(audit_sentences([row.facts()], 0.5))
