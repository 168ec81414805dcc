"""The commands that people type, on a GPU: checkpoints of real shapes in a folder, run, proved and recorded.

    python -m benchmarks.gpu_street [--out results/reference/gpu] [--minutes 6]     on a GPU that holds 24 GB
    python -m benchmarks.gpu_street --tiny --device cpu                             the same commands, small

The checkpoints have the shapes of Qwen3-8B and Qwen3-0.6B in bfloat16 and random weights: loading, loops, the
proof in 16 bits, batches and long contexts cost what those models cost. The draft's proposals are those of
RANDOM weights, so that no speedup of ``run`` says anything here; ``bench`` forces the acceptance (0.8 a
token, SYNTHETIC). Prompts are random words. Each command is a process of its own, whose screen is kept in
``--out``; what does not fit into the minutes is left out, and the table says so.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from spsbench.base.paths import mini_dir

_QWEN3 = {"model_type": "qwen3", "vocab_size": 151_936, "head_dim": 128, "max_position_embeddings": 40_960}
SHAPES: dict[str, dict[str, Any]] = {
    "8b": _QWEN3
    | {"hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False},
    "0.6b": _QWEN3
    | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28}
    | {"num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": True},
    "tiny": _QWEN3
    | {
        "vocab_size": 4096,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "head_dim": 16,
    }
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True},
}
_WORDS = ("river", "stone", "garden", "window", "copper", "harbour", "lantern", "meadow", "signal", "winter")


@dataclass(frozen=True)
class Step:
    """A command, and the least seconds that it takes on a large GPU (estimated, not measured)."""

    name: str
    arguments: tuple[str, ...]
    needs_s: float


def main() -> int:
    """Make the checkpoints, run the commands, write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes")
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--only", help="the steps whose names contain this")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    asked = {"tiny": given.tiny, "budget_s": 60 * given.minutes, "out": given.out, "only": given.only or ""}
    print(street(given.device, **asked))
    return 0


def street(device: str, *, tiny: bool, budget_s: float, out: Path | None, only: str = "") -> str:
    """The table of all steps, as Markdown; the screens go to ``out``, which is written after every step."""
    ends = time.monotonic() + budget_s
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        started = time.monotonic()
        for role, shape in (("target", "tiny" if tiny else "8b"), ("draft", "tiny" if tiny else "0.6b")):
            save(place / role, SHAPES[shape], torch.device(device), seed=role == "draft")
        gc.collect()  # the commands are processes of their own, and need the device's memory
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        lines = [
            "| command | exit | s | arm | ms/token | tokens/loop | verdict of losslessness |",
            "|---|--:|--:|---|--:|--:|---|",
            f"| (checkpoints made and saved) | | {time.monotonic() - started:.0f} | | | | |",
        ]
        for step in steps(place, device, tiny=tiny):
            if only not in step.name:
                continue
            if time.monotonic() + step.needs_s > ends and not tiny:
                lines.append(f"| {step.name} | | | left out: no time | | | |")
            else:
                lines += _rows(step, place, out)
            if out is not None:
                (out / "street.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return "\n".join(lines)


def save(folder: Path, sizes: dict[str, Any], device: torch.device, seed: int) -> None:
    """Write a checkpoint as a hub's would be: shards of 4 GB, configuration, the embedded tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = mini_dir() / "target"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(tokenizer / name, folder / name)
    own = json.loads((tokenizer / "config.json").read_text(encoding="utf-8"))
    ends = {name: own[name] for name in ("eos_token_id", "bos_token_id") if name in own}
    with torch.random.fork_rng(devices=[]), device:
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**sizes, **ends), dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="4GB")


def steps(place: Path, device: str, *, tiny: bool) -> Iterator[Step]:
    """The commands: a run on both engines, a batch, long contexts, forced acceptance, the environment."""
    short, long = (place / f"{name}.jsonl" for name in ("short", "long"))
    for path, words, count in ((short, 60, 16), (long, 150 if tiny else 3000, 2)):
        generator = random.Random(words)
        texts = [" ".join(generator.choices(_WORDS, k=words)) for _ in range(count)]
        path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts), encoding="utf-8")
    models = ("--target", str(place / "target"), "--draft", str(place / "draft"), "--device", device)
    sixteen = (*models, "--dtype", "bfloat16")
    sizes = ("--max-new-tokens", "8" if tiny else "64", "--fixed-length", "--remeasure", "0")
    proof = "1" if tiny else "8"
    run = ("run", str(short), *sixteen, *sizes, "--k", "4")
    engines = ("--engine", "eager,graphed") if device.startswith("cuda") else ("--engine", "eager")
    yield Step("doctor", ("doctor",), 10)
    yield Step("run, as typed", (*run, "--limit", proof), 60)
    yield Step("run, both engines", (*run, "--limit", proof, *engines, "--no-proof"), 60)
    yield Step("run, batches of 1 and 8", (*run, "--limit", "16", "--batch", "1,8", "--no-proof"), 60)
    yield Step("run, 8,000 tokens of prompt", ("run", str(long), *sixteen, *sizes, "--k", "4"), 60)
    seconds = "1" if tiny else "30"
    forced = ("--k", "4", "--alpha", "0.8", "--seconds", seconds, "--dtype", "bfloat16")
    yield Step("bench, acceptance 0.8 (synthetic)", ("bench", *models, *forced), 75)


def _rows(step: Step, place: Path, out: Path | None) -> Iterator[str]:
    """One line an arm of a run, one line of any other command."""
    directory = place / "runs" / re.sub("[^a-z0-9]+", "-", step.name)
    writes = ("--out", str(directory)) if step.arguments[0] == "run" else ()
    started = time.monotonic()
    command = [sys.executable, "-m", "spsbench", *step.arguments, *writes]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    taken = time.monotonic() - started
    if out is not None:
        screen = done.stderr + done.stdout
        (out / f"{directory.name}.txt").write_text(screen.replace(str(place), "MODELS"), encoding="utf-8")
    begin = f"| {step.name} | {done.returncode} | {taken:.0f} |"
    summary = directory / "summary.json"
    if not summary.is_file():
        last = next(iter(reversed(done.stderr.splitlines())), "") if done.returncode else ""
        yield f"{begin} {last} | | | |"
        return
    yield from _arms(begin, json.loads(summary.read_text(encoding="utf-8")))


def _arms(begin: str, summary: dict[str, Any]) -> Sequence[str]:
    proofs = {arm["arm"]: arm["verdict"] for arm in (summary["losslessness"] or {}).get("arms", ())}
    return [
        f"{begin if number == 0 else '| | | |'} {row['arm']} @ {row['engine']}, B = {row['batch']} "
        f"| {_number(row['ms_per_token'])} | {_number(row['tokens_per_loop'])} "
        f"| {proofs.get(row['arm'], '')} |"
        for number, row in enumerate(summary["rows"])
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    sys.exit(main())
