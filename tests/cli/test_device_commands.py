"""Commands on a CUDA device (an emulated one), with one pair that is loaded once.

Tests have the commands as their names; ``--device cuda`` is added to each that takes it. What samples has the
tokens that it has on the CPU, and no operation mixes devices, waits in a capture or fails.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commandline import call, journal
from support.device import Device, emulated
from support.tiny_heads import save_head
from support.tiny_models import make_pair, save

from spsbench.models.torch_lm import TorchLM
from spsbench.parts.verify import analytic, parts
from spsbench.parts.verify.effort import EFFORTS, Effort
from spsbench.runner.execution import load as load_pair_of

pytestmark = pytest.mark.usefixtures("quick_rehearsals")

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = "--limit 1 --max-new-tokens 4 --threads 1 --no-score --set warmup=false --remeasure 0 --quiet"
PLAIN = "--no-proof"

GRAPHED = (
    "run PROMPTS --k 3 --proof",
    "run PROMPTS --k 1 --sampling greedy",
    "run PROMPTS --k 3 --arms ars,sps,draft",
    "run PROMPTS --k 3 --top-k 20 --temperature 1.2",
    "run PROMPTS --batch 2 --k 1 --limit 2",
    "sweep-k PROMPTS --k 0..2",
)
"""Commands whose loops run as graphs where no engine is named."""

EVERY_ENGINE = "eager,graphed,hf-generate,hf-assisted,hf-prompt-lookup"
DRAFTERS = "model,lookup,suffix,bigram,ngram,early-exit,union,ECHO --limit 2 --max-new-tokens 5"
ROUNDED = "model,lookup,early-exit,union --limit 2 --max-new-tokens 5"
EAGER = (
    "run PROMPTS --pair mini --k 2 --engine eager,graphed --proof --max-new-tokens 5",
    f"run PROMPTS --k 3 --engine {EVERY_ENGINE} --limit 2 --max-new-tokens 5",
    f"run PROMPTS --k 3 --drafter {DRAFTERS}",
    f"run PROMPTS --k 3 --engine eager --dtype bfloat16 --drafter {ROUNDED}",
    "run PROMPTS --batch 1,2 --drafter model,lookup --limit 2 --max-new-tokens 5",
    "run PROMPTS --k 2,adaptive",
    "run PROMPTS --k 4,adaptive --policy entropy,momentum",
    "run PROMPTS --k 3 --rule block,lenience:l=0.8,typical-acceptance,LIKELY",
    "run PROMPTS --k 3 --rule sample-and-compare --sampling greedy",
    "run PROMPTS --k 2 --tree chain+2,1",
    "run PROMPTS --k 2 --tree 2,2 --drafter lookup,early-exit",
    "run PROMPTS --k 2 --tree 2,1 --rule traversal,one-hot",
    "run PROMPTS --k 3 --process min_p=0.1:typical_p=0.9",
    "run PROMPTS --k 3 --process repetition_penalty=1.2:presence_penalty=0.5 --process frequency_penalty=0.1",
    "run PROMPTS --k 3 --process 'logit_bias=65:2,66:-1:bad_words=67,68 69:min_new_tokens=4'",
    "run PROMPTS --k 3 --process grammar=SCHEMA",
    "run PROMPTS --k 2 --sampling beam:width=3",
    "run PROMPTS --k 2 --batch 2 --drafter model,lookup --rule block --limit 2",
    "run PROMPTS --k 2 --drafter heads:from=EAGLE,heads:from=MEDUSA",
)
"""Commands that have no graphs, or that name their engines."""


def _written(target: Any) -> Iterator[dict[str, list[int]]]:
    """Texts that transformers samples."""
    torch.manual_seed(1)
    for prompt in (b"A council met.", b"No bus ran."):
        ids = torch.tensor([[*prompt]])
        text = target.generate(ids, do_sample=True, top_k=0, min_new_tokens=12, max_new_tokens=12)[0].tolist()
        yield {"prompt_ids": text[: ids.shape[1]], "completion_ids": text[ids.shape[1] :]}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path | str]:
    """What the commands name in capitals."""
    folder = tmp_path_factory.mktemp("files")
    target, draft = make_pair("llama", num_hidden_layers=3, max_position_embeddings=2048)
    (folder / "prompts.txt").write_text("A council met.\nRain fell, rain fell, rain.\nNo bus ran.\n")
    (folder / "schema.json").write_text(json.dumps({"type": "object", "properties": {"a": {"type": "null"}}}))
    texts = folder / "texts.jsonl"
    texts.write_text("".join(json.dumps(row) + "\n" for row in _written(target)))
    layer = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 32}
    heads = {
        kind.upper(): save_head(folder / kind, TorchLM(target), kind, scale=0.02, config=layer)
        for kind in ("eagle", "medusa")
    }
    return {
        "PROMPTS": folder / "prompts.txt",
        "SCHEMA": folder / "schema.json",
        "TEXTS": texts,
        "TARGET": save(target, folder / "target"),
        "DRAFT": save(draft, folder / "draft"),
        "ECHO": f"{EXAMPLES / 'echo_drafter.py'}:KIND",
        "LIKELY": f"{EXAMPLES / 'likely_rule.py'}:KIND",
        **heads,
    }


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    """A device on which every pair is loaded once."""
    pairs: dict[Any, Any] = {}

    def load(plan: Any, **named: Any) -> Any:
        own = (
            plan.source.target.location,
            plan.source.draft.location,
            plan.dtypes,
            plan.device,
            plan.backend,
        )
        if own not in pairs:
            pairs[own] = load_pair_of(plan, **named)
        return pairs[own]

    with pytest.MonkeyPatch.context() as patch, emulated() as found:
        patch.setitem(vars(sys.modules[load_pair_of.__module__]), "load", load)
        yield found


def typed(command: str, files: dict[str, Path | str]) -> list[str]:
    words = shlex.split(command)
    for name, value in files.items():
        words = [word.replace(name, str(value)) if name in word else word for word in words]
    return words


def sampled(command: str, files: dict[str, Path | str], *more: object) -> dict[Any, list[int]]:
    """The tokens of a command of which nothing failed, by arm without its engine."""
    proof = () if "--proof" in command else (PLAIN,)
    words = [word for word in typed(command, files) if word != "--proof"]
    pair = () if "--pair" in words else ("--target", files["TARGET"], "--draft", files["DRAFT"])
    machine = () if "--dtype" in words else ("--dtype", "float32")
    done = call(
        words[0], *shlex.split(SHORT), *words[1:], *pair, *machine, "--backend", "torch", *proof, *more
    )
    assert done.code == 0, done.err
    rows = journal(Path(str(more[-1])))
    assert rows
    assert not [row["error"] for row in rows if row["error"]]
    return {(row["arm"], row["example_id"], row["sample_index"]): row["token_ids"] for row in rows}


@pytest.mark.thorough_but("k 3 --proof")
@pytest.mark.parametrize("command", [*GRAPHED, *EAGER])
def test_tokens_are_those_of_the_cpu(
    command: str, files: dict[str, Path | str], device: Device, tmp_path: Path
) -> None:
    graphed = command in GRAPHED
    engine = ("--engine", "graphed") if graphed else ()  # it is in the names of arms, by which they draw
    expected = sampled(command, files, *engine, "--device", "cpu", "--out", tmp_path / "cpu")
    before = sum(device.counts.kernels.values())
    found = sampled(command, files, "--device", "cuda", "--out", tmp_path / "cuda")
    assert found == expected
    info = json.loads((tmp_path / "cuda/run.json").read_text())
    assert not info["engine_fallbacks"]
    if named := re.search("--engine ([^ ]+)", command):
        assert {arm.partition("@")[2] or "eager" for arm, *_ in found} == {*named[1].split(",")}
    else:
        assert info["usual_engine"]["name"] == ("graphed" if graphed else "eager")
        assert (info["usual_engine"]["reason"] is None) == graphed
    assert sum(device.counts.kernels.values()) > before
    assert not device.broken
    assert device.capturing is None
    if "--proof" in command:
        summary = json.loads((tmp_path / "cuda/summary.json").read_text())
        assert summary["losslessness"]["verdict"] == "ok"


ASKED = (
    "verify PROMPTS --effort reduced --sampling nucleus --top-p 1 --k 2",
    (
        "verify PROMPTS --effort reduced --k 2 --sampling nucleus "
        "--drafter model:tree=1-2 --rule recursive-rejection"
    ),
    "verify PROMPTS --effort reduced --sampling greedy --k 2 --rule block",
    "audit TEXTS",
    "trace 'A council met.' --k 3 --max-new-tokens 4 --chat-template none",
    "bench --k 1 --seconds 0.05 --context 16 --batch 1,2",
)
"""Commands of which something else than tokens is asked."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """``verify`` draws little."""
    sizes: dict[str, Any] = {"tables": ((2, 2),), "wide_tables": ((3, 1),)}
    few = Effort(draws=20, end_to_end=3, contexts=1, prompts=1, outputs=1, **sizes)
    monkeypatch.setitem(EFFORTS, "reduced", few)
    monkeypatch.setattr(analytic, "TOKENS", 6)
    monkeypatch.setattr(parts, "LONG", parts.LONG // 8)
    monkeypatch.setattr(parts, "LOOPS", 4)


@pytest.mark.thorough
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("command", ASKED)
def test_a_question_is_answered(command: str, files: dict[str, Path | str], device: Device) -> None:
    name, *words = typed(command, files)
    models = ("--target", files["TARGET"], "--draft", files["DRAFT"], "--dtype", "float32")
    machine = ("--backend", "torch", "--threads", "1")
    more = {"audit": ("--target", files["TARGET"], "--dtype", "float32")}.get(name, (*models, *machine))
    done = call(name, *words, *more, "--device", "cuda")
    assert done.code == 0, done.err
    assert not device.broken
    if name == "verify":
        assert "cuda:0, engine eager" in " ".join(done.err.split())


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sweep_is_proven_reported_and_compared(
    files: dict[str, Path | str], device: Device, tmp_path: Path, dtype: str
) -> None:
    sweep = f"sweep-k PROMPTS --k 0,2 --engine eager,graphed --limit 2 --proof --dtype {dtype}"
    sampled(sweep, files, "--device", "cuda", "--out", tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["losslessness"]["verdict"] == "ok"
    for command in (("report", tmp_path), ("compare", tmp_path, tmp_path)):
        shown = call(*command)
        assert shown.code == 0, shown.err
    assert not device.broken


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_forwards_of_a_configuration_are_timed(device: Device, tmp_path: Path, dtype: str) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 300} | sizes
    (tmp_path / "config.json").write_text(json.dumps(config))
    models = ("--target", tmp_path / "config.json", "--draft", tmp_path / "config.json")
    asked = ("--k", "2", "--seconds", "0.1", "--context", "16", "--threads", "1")
    result = call("bench", *models, *asked, "--device", "cuda", "--dtype", dtype, "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["forwards"]["target"]
    assert not device.broken


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_prompt_is_traced_with_the_embedded_pair(device: Device, dtype: str) -> None:
    machine = ("--device", "cuda", "--dtype", dtype, "--threads", "1")
    result = call("trace", "A council met.", "--k", "3", "--max-new-tokens", "8", *machine)
    assert result.code == 0, result.err
    assert re.search(r"\d tokens in \d+ loops", result.out)
    assert not device.broken


@pytest.mark.thorough
def test_a_run_is_resumed_replayed_scored_reported_and_compared(
    files: dict[str, Path | str], device: Device, tmp_path: Path
) -> None:
    asked: tuple[object, ...] = (
        "run",
        files["PROMPTS"],
        "--target",
        files["TARGET"],
        "--draft",
        files["DRAFT"],
        "--k",
        "2",
    )
    asked += (*shlex.split(SHORT), "--limit", "2", "--max-new-tokens", "100", "--set", "fixed_length=true")
    machine = ("--backend", "torch", "--dtype", "float32", "--device", "cuda")
    run = tmp_path / "run"
    done = call(*asked, PLAIN, *machine, "--out", run)
    assert done.code == 0, done.err
    whole = journal(run)
    lines = (run / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (run / "samples.jsonl").write_bytes(b"".join(lines[:1]))  # as after a kill
    again = call("run", "--resume", run)
    assert again.code == 0, again.err
    same = ("arm", "example_id", "token_ids")
    assert [[row[name] for name in same] for row in journal(run)] == [
        [row[name] for name in same] for row in whole
    ]
    assert {row["arm"] for row in whole} == {"ars-nucleus@graphed", "sps-k2-nucleus@graphed"}
    for command in (("report", run, "--html"), ("score", run), ("compare", run, run)):
        shown = call(*command)
        assert shown.code == 0, shown.err
    replayed = call("replay", run, "--k", "2", "--budget", "0.05", "--json")
    assert replayed.code == 0, replayed.err
    (cell,) = [cell for cell in json.loads(replayed.out)["cells"] if cell["drafter"] == "model"]
    assert cell["predicted"] is not None
    assert cell["measured_tokens_per_loop"] > 1, "what the graphs measured stands beside it"
    assert not device.broken
