"""A draft that cannot propose some tokens loses nothing: by enumeration, and in runs over both backends."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from support.commandline import BRIEF, call
from support.tiny_heads import save_small
from support.tiny_models import make_pair, pair_of, save
from torch import Tensor

from spsbench.base.records import Request, SamplingParams
from spsbench.config.models import TORCH
from spsbench.decode.clock import FakeClock
from spsbench.decode.protocols import Drafter, LanguageModel
from spsbench.decode.rows import warped
from spsbench.decode.sampling import draw, warp
from spsbench.drafters.model import ModelDrafter
from spsbench.drafters.registry import WEIGHTS, Context
from spsbench.engines.cuda_graph import GraphedEngine, StagedBatch, uncaptured
from spsbench.engines.hf import ASSISTED, HFGenerateEngine
from spsbench.engines.local import EagerEngine
from spsbench.engines.rescore import score_stats, teacher_force, token_evidence
from spsbench.law.rederive import own_law, rounding_slack
from spsbench.models.batched import StaticLM
from spsbench.models.loading import onnx_under, torch_under
from spsbench.models.onnx_lm import OnnxLM
from spsbench.models.pair import load_pair
from spsbench.models.torch_lm import TorchLM
from spsbench.models.trained import TrainedDraft, layer_config, read_trained
from spsbench.testing import assert_lossless, context_of

CPU = torch.device("cpu")
PLAIN, GREEDY = SamplingParams(), SamplingParams(greedy=True)
NUCLEUS, FEW = SamplingParams(temperature=0.7, top_p=0.8), SamplingParams(temperature=1.3, top_k=4)
SAMPLINGS = (PLAIN, GREEDY, NUCLEUS, FEW)
BACKENDS = ("onnxruntime", "torch")
NEVER = float("-inf")


class Wide:
    """A model with rows in float64, so that an enumeration adds up to rounding of that size."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.begin, self.rollback, self.vocab_size = model.begin, model.rollback, model.vocab_size
        self.room_behind = model.room_behind

    @property
    def length(self) -> int:
        return self._model.length

    def score(self, tokens: Tensor, last: int) -> Tensor:
        return self._model.score(tokens, last).double()


def drafting(tmp_path: Path, backend: str, vocab_size: int) -> Callable[[Context], Drafter]:
    """Drafts with a small model that leaves out token 1, whatever the target is."""

    @cache
    def model() -> LanguageModel:
        target = context_of(vocab_size, PLAIN, needs=frozenset({WEIGHTS})).target
        assert isinstance(target, OnnxLM)
        ids = [i for i in range(vocab_size) if i != 1]
        reference = target.reference()
        folder = save_small(tmp_path / backend, target, reference.model, layers=1, vocabulary=ids)
        draft = read_trained(folder, "--draft")
        config = config_of(draft, vocab_size)
        if backend == "torch":
            return Wide(torch_under(reference, draft, config, vocab_size, torch.float32, "--draft"))
        return Wide(onnx_under(target, draft, config, vocab_size, None))

    return lambda given: ModelDrafter(model(), given.sampling, given.device, given.policy)


def config_of(draft: TrainedDraft, vocab_size: int) -> Any:
    config = layer_config(draft)
    config.vocab_size = vocab_size
    return config


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sampling", [PLAIN, GREEDY, SamplingParams(temperature=0.8, top_p=0.8)], ids=str)
@torch.inference_mode()
def test_the_law_is_the_targets_exactly(tmp_path: Path, backend: str, sampling: SamplingParams) -> None:
    for vocab_size, k in ((3, 2), (5, 1)):
        make = drafting(tmp_path / str(vocab_size), backend, vocab_size)
        assert_lossless(make, vocab_size=vocab_size, ks=(k,), samplings=(sampling,))


def masked(n: int = 40, vocab_size: int = 300, possible: int = 50, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(logits [n, V], [V] which are possible)."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, vocab_size, generator=generator)
    ids = torch.randperm(vocab_size, generator=generator)[:possible]
    kept = torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, ids, True)
    return logits.masked_fill(~kept, NEVER), kept


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("possible", [1, 2, 50])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_a_row_with_tokens_that_are_never_is_the_row_of_the_others(
    sampling: SamplingParams, possible: int
) -> None:
    logits, kept = masked(possible=possible)
    short = warp(logits[:, kept], sampling)
    u = torch.rand(len(logits), generator=torch.Generator().manual_seed(1))
    for rows in (warp(logits, sampling), warped(logits.clone(), sampling).dense()):
        assert torch.allclose(rows[:, kept], short, atol=1e-6)
        assert not rows[:, ~kept].any()
        assert bool(kept[draw(rows, u)].all())
    assert bool(kept[warped(logits.clone(), sampling).draw(u)].all())
    law = own_law(logits, sampling, rounding_slack(torch.float32))
    alone = own_law(logits[:, kept], sampling, rounding_slack(torch.float32)) if possible > 1 else None
    assert all(bool(part.isfinite().all()) for part in (law.probs, law.tolerance))
    assert torch.allclose(law.probs.float(), warp(logits, sampling), atol=1e-6)
    assert not law.doubtful[:, ~kept].any()
    if alone is not None:  # what rounding may do is not more for the tokens that are never
        assert torch.allclose(law.tolerance, alone.tolerance)


class Fixed(TorchLM):
    """Answers with given rows."""

    def __init__(self, rows: Tensor) -> None:
        self.rows, self.device, self.dtype = rows, CPU, torch.float32

    def score_uncached(self, tokens: Tensor, last: int = 0) -> Tensor:
        return self.rows[-last:]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_what_a_reading_says_is_finite(sampling: SamplingParams) -> None:
    draft_rows, kept = masked()
    target_rows, _ = masked(possible=300, seed=3)
    tokens = warp(target_rows, sampling).argmax(-1).tolist()
    tokens[7] = int((~kept).nonzero()[0])
    reading = teacher_force(Fixed(target_rows), Fixed(draft_rows), [1], tokens, sampling)
    assert all(math.isfinite(value) for value in score_stats(reading, 0).values())
    assert reading.p is not None
    told = token_evidence(reading.tokens, reading.q, reading.p, reading.draft_logits)
    assert told.log_draft[7] == NEVER
    assert told.draft_rank[7] >= 50
    assert all(math.isfinite(value) for part in (told.draft_max, told.draft_entropy) for value in part)
    assert not any(math.isnan(value) for value in (*told.log_target, *told.log_draft))


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_a_draft_alone_that_writes_what_it_cannot_is_found_out(sampling: SamplingParams) -> None:
    rows, kept = masked()
    tokens = warp(rows, sampling).argmax(-1).tolist()
    outside, unlikely = int((~kept).nonzero()[0]), int(rows[9].masked_fill(~kept, 99.0).argmin())
    tokens[5], tokens[9] = outside, unlikely
    draft = Fixed(rows)
    reading = teacher_force(draft, draft, [1], tokens, sampling)
    found = set(reading.impossible.nonzero().flatten().tolist())
    assert found == ({5} if sampling == PLAIN else {5, 9})
    assert not reading.edge.any()
    assert all(math.isfinite(value) for value in score_stats(reading, 0).values())


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target, and a draft with two of its layers and a third of its tokens."""
    base: Path = tmp_path_factory.mktemp("small")
    model, _ = make_pair("llama", head_dim=16, max_position_embeddings=4096)
    ids = [*range(0, 250, 3), 257]
    return save(model, base / "target"), save_small(base / "draft", TorchLM(model), model, vocabulary=ids)


def run(folders: tuple[Path, Path], out: Path, *more: str) -> dict[str, Any]:
    named = ("--target", folders[0], "--draft", folders[1], *BRIEF, "--threads", "1")
    small = ("--limit", "1", "--max-new-tokens", "12", "--set", "warmup=false", "--quiet")
    done = call("run", "xsum", *named, *small, "--out", out, *more)
    assert done.code == 0, done.err
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text(), parse_constant=pytest.fail)
    return summary


@pytest.mark.thorough
@pytest.mark.parametrize("sampling", ["nucleus", "greedy"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_with_such_a_draft_is_complete_and_proves_itself(
    folders: tuple[Path, Path], tmp_path: Path, backend: str, sampling: str, request: pytest.FixtureRequest
) -> None:
    if (backend, sampling) == ("onnxruntime", "nucleus"):  # its figures have every arm
        request.getfixturevalue("drawn")
    engines = ("--engine", "eager,graphed,hf-generate,hf-assisted") if sampling == "nucleus" else ()
    arms = ("--arms", "ars,sps,draft", "--k", "1,3", "--sampling", sampling, "--backend", backend)
    summary = run(folders, tmp_path / "run", *arms, *engines)
    assert summary["complete"]
    judged = summary["losslessness"]["arms"]
    ours = [arm for arm in judged if "@hf" not in arm["arm"]]
    assert len(ours) == (8 if engines else 4)
    for arm in ours:
        assert arm["decisions"]["verdict"] == "ok", arm["decisions"]
        assert arm["decisions"]["decisions"] > 0
    for arm in judged:
        assert arm["rescored"]["impossible"] == 0
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["models"]["draft"]["vocabulary"] == 85
    assert info["models"]["draft"]["backend"] == backend
    rows = pd.read_parquet(next((tmp_path / "run").glob("evidence*")))
    assert not rows.isna().any(axis=None)
    assert (rows["log_draft"] == NEVER).any()
    assert rows[["log_target", "draft_max", "draft_entropy"]].map(math.isfinite).all(axis=None)
    report = call("report", tmp_path / "run")
    assert report.code == 0
    assert "nan" not in report.out.split()


@pytest.mark.thorough
def test_a_rounded_draft_runs(folders: tuple[Path, Path], tmp_path: Path) -> None:
    summary = run(folders, tmp_path / "run", "--k", "2", "--dtype", "auto:draft=int8", "--temperature", "1.5")
    assert "draft rounded to int8" in json.dumps(summary)
    assert [arm["decisions"]["verdict"] for arm in summary["losslessness"]["arms"]] == ["ok", "ok"]


def test_a_pair_file_may_name_it(folders: tuple[Path, Path], tmp_path: Path) -> None:
    pair = tmp_path / "pair.yaml"
    pair.write_text(f"name: own\ntarget: {{id: {folders[0]}}}\ndraft: {{id: {folders[1]}}}\n")
    small = ("--limit", "1", "--max-new-tokens", "6", "--set", "warmup=false", "--quiet", "--threads", "1")
    done = call("run", "xsum", *BRIEF, "--pair", pair, *small, "--out", tmp_path / "run")
    assert done.code == 0, done.err


def test_the_command_line_says_what_is_wrong(folders: tuple[Path, Path], tmp_path: Path) -> None:
    target, draft = folders
    done = call("run", "xsum", *BRIEF, "--target", draft, "--draft", draft, "--out", tmp_path / "r")
    assert done.code == 2
    assert "--target:" in done.err
    assert "is a trained draft" in done.err
    assert "Traceback" not in done.err
    told = json.loads((draft / "draft.json").read_text())
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").symlink_to(draft / "model.safetensors")
    (other / "draft.json").write_text(json.dumps(told | {"kind": "eagle"}))
    done = call("run", "xsum", *BRIEF, "--target", target, "--draft", other, "--out", tmp_path / "r")
    assert done.code == 2
    assert "--drafter heads:from=" in " ".join(done.err.split())


def test_bench_and_audit_take_it(folders: tuple[Path, Path], tmp_path: Path) -> None:
    named = ("--target", folders[0], "--draft", folders[1])
    done = call("bench", *named, "--threads", "1", "--k", "2", "--seconds", "1", "--context", "32", "--json")
    assert done.code == 0, done.err
    samples = tmp_path / "samples.jsonl"
    lines = [{"prompt": f"word {i}", "completion": "and another one of them"} for i in range(3)]
    samples.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    done = call("audit", samples, *named, "--json")
    assert json.loads(done.out), done.err


@pytest.mark.thorough_but("each")
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("k", [1, 4])
def test_in_fixed_shapes_it_writes_what_it_writes_eagerly(
    folders: tuple[Path, Path], sampling: SamplingParams, k: int
) -> None:
    """The very stages that are graphs on CUDA, run as they are."""
    pair = load_pair(pair_of(*folders), ("float32", "float32"), CPU, TORCH, threads=1)
    models = [model for model in (pair.target, pair.draft) if isinstance(model, TorchLM)]
    target, draft = (StaticLM(model, 64) for model in models)
    decoder, clock = pair.tokenizer, FakeClock(0.001)
    request = Request(tuple(range(5, 25)), 20, (), sampling, 3, fixed_length=True)
    engine = GraphedEngine(StagedBatch(target, draft, k, sampling, uncaptured), decoder, clock)
    eager = EagerEngine(pair.target, pair.draft, k, decoder, CPU, clock)
    assert engine.generate(request).tokens == eager.generate(request).tokens


@pytest.mark.parametrize("backend", BACKENDS)
def test_assisted_generation_of_transformers_writes_the_targets_greedy_text(
    folders: tuple[Path, Path], backend: str
) -> None:
    pair = load_pair(pair_of(*folders), ("float32", "float32"), CPU, backend, threads=1)
    target, draft = pair.target.reference(), pair.draft.reference()
    request = Request(tuple(range(5, 25)), 20, (), GREEDY, 3, fixed_length=True)
    alone = EagerEngine(pair.target, None, 0, pair.tokenizer, CPU, FakeClock(0.001)).generate(request)
    found = HFGenerateEngine(ASSISTED, target, draft, 3, pair.tokenizer).generate(request)
    assert found.tokens == alone.tokens
    assert found.loops is not None
    assert any(loop.drafted for loop in found.loops)
