"""Every model type of the installed transformers, tiny and random, through spsbench.

::

    python -m benchmarks.architectures                      # all that has no row yet
    python -m benchmarks.architectures --types gemma4,lfm2 --again
    python -m benchmarks.architectures --page               # write results/reference/models.md from the rows

A type is saved as its published checkpoints are: of images and text the whole, towers included. The draft is
the target with noise on its weights, so that drafts are accepted sometimes. `spsbench run` answers two
prompts greedily with K = 4, in float32 and bfloat16, and proves itself on more at temperature 1; its texts
are held against a loop of transformers without a cache. Each type has a process of its own, and a row in
``build/architectures``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

from benchmarks.tiny_types import PADDING, START, VOCABULARY, known_types, tiny_config

ROWS = Path("build/architectures")
PAGE = Path("results/reference/models.md")
BEGIN, END = "<!-- benchmarks.architectures -->", "<!-- /benchmarks.architectures -->"
PROMPTS = ("The bridge.", "The bridge in Avon was closed on Monday. People said that")
"""One below the windows of 16, one above."""

NEW_TOKENS, K, NOISE, _SECONDS, _MEMORY_BYTES = 8, 4, 0.08, 600, 12 << 30
LANGUAGE = 65
DTYPES = ("float32", "bfloat16")
_TIE = {"float32": 1e-4, "bfloat16": 0.1}
"""Of the largest logit: two tokens nearer than that are a tie for a forward that rounds otherwise."""


def tokenizer() -> Any:
    """Return a byte-level tokenizer with BOS, EOS and the token that transformers adds for Qwen's types."""
    import tokenizers
    import transformers
    from tokenizers import decoders, models, pre_tokenizers

    vocabulary = {byte: index for index, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<s>", "</s>", "<|endoftext|>"])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=False
    )


def published_class(config: Any) -> Any:
    """Return the class whose checkpoints are published: of images and text the whole."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForSeq2SeqLM

    kinds = [AutoModelForImageTextToText, AutoModelForCausalLM]
    for auto in [AutoModelForSeq2SeqLM, *kinds] if config.is_encoder_decoder else kinds:
        if type(config) in auto._model_mapping:
            found = auto._model_mapping[type(config)]
            return found[0] if isinstance(found, (list, tuple)) else found
    raise LookupError(config.model_type)


def whole_model(config: Any) -> Any:
    """Return the whole model of a configuration with random weights, in eval mode."""
    import torch

    from spsbench.models.text_part import without_towers

    kind = published_class(config)
    own = config if config.is_encoder_decoder or isinstance(config, kind.config_class) else None
    if own is None:
        text = config.get_text_config()
        own = text if isinstance(text, kind.config_class) else config
    with torch.device("meta"):
        try:
            size = sum(part.numel() for part in kind._from_config(own, dtype=torch.float32).parameters())
        except ImportError:  # a package of its tower
            kind = without_towers(kind)
            size = sum(part.numel() for part in kind._from_config(own, dtype=torch.float32).parameters())
    if size > 200_000_000:
        raise ValueError(f"{size:,} parameters are not tiny")
    torch.manual_seed(0)
    model = kind._from_config(own, dtype=torch.float32).eval()
    _spread(model)
    return model


def _spread(model: Any) -> None:
    """Give matrices weights that keep a row's size, so that logits differ as a trained model's do."""
    import torch

    with torch.no_grad():
        for name, part in model.named_parameters():
            kept = any(word in name for word in ("A_log", "conv", "dt_", "time_", "norm", "rel"))
            if part.ndim >= 2 and not kept and part.is_floating_point():
                is_table = "embed" in name or "wte" in name or "shared" in name
                part.normal_(0.0, 0.3 if is_table else 1.2 / part.shape[-1] ** 0.5)
            elif name.endswith("bias") and part.shape == (VOCABULARY,):
                # As a trained model writes no padding, whose positions some count otherwise behind a cache.
                part[PADDING] = -100.0


def _noisy(model: Any, noise: float) -> None:
    import torch

    with torch.no_grad():
        for part in model.parameters():
            if part.ndim >= 2 and part.is_floating_point():
                part.add_(torch.randn_like(part) * noise * part.std())


def saved(kind: str, folder: Path, noise: float = NOISE, **changes: Any) -> tuple[Path, Path, Any]:
    """Save target and draft of a type; return their folders and the whole target.

    The draft is the target with noise of that share of its weights' spread. Of a type that cannot be built
    the target's configuration alone is saved, and the error is returned.
    """
    target, draft = folder / "target", folder / "draft"
    config = tiny_config(kind, **changes)
    for place in (target, draft):
        shutil.rmtree(place, ignore_errors=True)
        tokenizer().save_pretrained(place)
        config.save_pretrained(place)
    try:
        model = whole_model(config)
    except Exception as error:
        return target, target, error
    if config.is_encoder_decoder:
        model.generation_config.decoder_start_token_id = START
        model.config.decoder_start_token_id = START
        if config.model_type == "mbart":  # a language, which its users write there
            model.generation_config.forced_bos_token_id = LANGUAGE
    # Published configurations are the whole's, whatever class of text saved the weights.
    for place in (target, draft):
        model.save_pretrained(place)
        if model.config is not config:
            config.save_pretrained(place)
        if place is target:
            kept = {name: part.clone() for name, part in model.state_dict().items()}
            _noisy(model, noise)
    model.load_state_dict(kept)
    return target, draft, model


def uncached(model: Any, prompt: Sequence[int], dtype: str) -> tuple[list[int], list[float]]:
    """Return greedy tokens of transformers without a cache, and each one's lead over the next best."""
    import torch

    # As a checkpoint is read: some keep parts of theirs in float32, some compute tables that were saved.
    own = model.config
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        model = type(model).from_pretrained(folder, config=own, dtype=getattr(torch, dtype)).eval()
    encoder_decoder = model.config.is_encoder_decoder
    forced = model.generation_config.forced_bos_token_id if encoder_decoder else None
    ids = [START, *([] if forced is None else [forced])] if encoder_decoder else list(prompt)
    first, leads = len(ids), list[float]()
    with torch.inference_mode():
        for _ in range(NEW_TOKENS):
            given: dict[str, Any] = {"use_cache": False}
            if encoder_decoder:
                given |= {"input_ids": torch.tensor([prompt]), "decoder_input_ids": torch.tensor([ids])}
            else:
                given |= {"input_ids": torch.tensor([ids])}
            row = model(**given).logits[0, -1, :VOCABULARY].float()
            best = row.topk(2)
            leads.append(float((best.values[0] - best.values[1]) / row.abs().max()))
            ids.append(int(best.indices[0]))
    return ids[first:], leads


def _cache_of(config: Any) -> str:
    """Return the kinds of layers that transformers' cache of a configuration has."""
    from transformers import DynamicCache

    from spsbench.models.text_part import class_of

    if config.is_encoder_decoder:
        return "encoder-decoder"
    stateful = getattr(class_of(config), "_is_stateful", False)  # read first: some have layers of their own
    try:
        kinds = Counter(type(layer).__name__ for layer in DynamicCache(config=config).layers)
    except Exception as error:
        return f"{type(error).__name__}"
    state = "stateful: " if stateful else ""
    names = sorted(name.removeprefix("Dynamic").removesuffix("Layer") or "full" for name in kinds)
    return state + " + ".join(names)


def row_of(kind: str, folder: Path) -> dict[str, Any]:
    """Make a type, run it and return its row."""
    import transformers

    row: dict[str, Any] = {
        "type": kind,
        "of": known_types().get(kind),
        "transformers": transformers.__version__,
    }
    try:
        config = tiny_config(kind)
    except Exception as error:
        return row | {"built": f"{type(error).__name__}: {error}"[:300]}
    row["cache"] = _cache_of(config)
    target, draft, model = saved(kind, folder)
    row["built"] = f"{type(model).__name__}: {model}"[:300] if isinstance(model, Exception) else "yes"
    prompts = folder / "prompts.txt"
    prompts.write_text("\n".join(PROMPTS) + "\n")
    for dtype in DTYPES:
        row[dtype] = _ran(target, draft, None if isinstance(model, Exception) else model, prompts, dtype)
        if row[dtype]["exit"] in (2, 3):
            break
    return row


def _ran(target: Path, draft: Path, model: Any, prompts: Path, dtype: str) -> dict[str, Any]:
    from spsbench.cli.main import main
    from spsbench.store import read_summary

    out = prompts.parent / f"run-{dtype}"
    shutil.rmtree(out, ignore_errors=True)
    said, wrong = io.StringIO(), io.StringIO()
    settings = (
        "--k",
        K,
        "--max-new-tokens",
        NEW_TOKENS,
        "--sampling",
        "greedy",
        "--dtype",
        dtype,
        "--threads",
        1,
    )
    fixed = ("--fixed-length", "--backend", "torch", "--no-score", "--set", "warmup=false", "--remeasure", 0)
    asked = ("run", prompts, "--target", target, "--draft", draft, *settings, *fixed, "--out", out)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(wrong):
        code = main([*map(str, asked)])
    errors = [
        line for line in wrong.getvalue().splitlines() if "error:" in line or "fault of spsbench" in line
    ]
    row: dict[str, Any] = {"exit": code, "message": " ".join(errors).replace(str(target), "T")[:400]}
    if code == 0:
        summary = read_summary(out)
        arms = (summary["losslessness"] or {"arms": []})["arms"]
        order = ("alarm", "no evidence", "ok")
        row["verdict"] = min((arm["verdict"] for arm in arms), key=order.index, default="none")
        row["reasons"] = [reason for arm in arms for reason in arm.get("reasons", [])][:3]
        row["screen"] = [
            line.strip() for line in said.getvalue().splitlines() if "ossless" in line or "ALARM" in line
        ]
        row["texts"] = _texts(out, model, dtype)
    return row


def _texts(run: Path, model: Any, dtype: str) -> str:
    """Say whether the run's greedy texts are those of a loop without a cache."""
    from spsbench.store import read_frames

    samples = read_frames(run).samples
    taken = 0
    for index, prompt in enumerate(PROMPTS):
        ids = tokenizer()(prompt)["input_ids"]
        expected, leads = uncached(model, ids, dtype)
        for given in samples[samples.example_id == sorted(set(samples.example_id))[index]].token_ids:
            first = next(
                (i for i, pair in enumerate(zip(given, expected, strict=False)) if pair[0] != pair[1]), None
            )
            if first is not None and leads[first] > _TIE[dtype]:
                return f"differ at token {first} of prompt {index}, lead {leads[first]:.2g}"
            taken += first is not None
    return "equal" if not taken else f"equal up to ties ({taken})"


def works(row: dict[str, Any]) -> bool:
    """Return whether a type runs in both dtypes, is proven and writes the texts of a loop without a cache."""
    runs = [row.get(dtype, {}) for dtype in DTYPES]
    return all(
        run.get("exit") == 0 and run["verdict"] == "ok" and run["texts"].startswith("equal") for run in runs
    )


def state_of(row: dict[str, Any]) -> str:
    """Return what became of a type: works, refused, or what is wrong."""
    if works(row):
        return "works"
    runs = [run for dtype in DTYPES if (run := row.get(dtype))]
    if not runs:
        return "not made"
    if any(run["exit"] in (2, 3) for run in runs):
        return "refused"
    if any(run["exit"] != 0 for run in runs):
        return "CRASH"
    if any(run["verdict"] == "alarm" for run in runs):
        return "ALARM"
    return "no evidence" if any(run["verdict"] != "ok" for run in runs) else "DIFFERS"


def page(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of all rows, with its counts."""
    versions = sorted({row["transformers"] for row in rows if "transformers" in row})
    lines = [
        BEGIN,
        f"transformers {', '.join(versions)}; written by `python -m benchmarks.architectures --page`.",
        "",
        "| | "
        + " | ".join(wanted := ["works", "refused", "no evidence", "ALARM", "DIFFERS", "CRASH", "not made"])
        + " |",
        "|---|" + "--:|" * len(wanted),
    ]
    for of in ("causal", "decoder", "image-text"):
        counts = Counter(state_of(row) for row in rows if row["of"] == of)
        lines.append(
            f"| {of}, {counts.total()} | " + " | ".join(str(counts[state]) for state in wanted) + " |"
        )
    lines += ["", "| type | cache | state | why |", "|---|---|---|---|"]
    for row in rows:
        why = next((run["message"] for d in DTYPES if (run := row.get(d)) and run["message"]), "")
        if not why and state_of(row) != "works":
            why = next(
                (str(run.get("reasons") or run.get("texts")) for d in DTYPES if (run := row.get(d))),
                row["built"],
            )
        why = why.removeprefix("error: ").replace("|", "/").replace("\n", " ")[:220]
        lines.append(f"| {row['type']} | {row.get('cache', '')} | {state_of(row)} | {why} |")
    return "\n".join([*lines, END])


def in_own_process(kind: str, scratch: Path) -> dict[str, Any]:
    """Return a type's row from a child process that has a time and a memory of its own."""
    import resource

    got, put = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(got)
        try:
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_SECONDS)
            row = row_of(kind, scratch / kind)
        except BaseException as error:
            row = {
                "type": kind,
                "of": known_types().get(kind),
                "built": f"{type(error).__name__}: {error}"[:300],
            }
            row["trace"] = traceback.format_exc()[-1500:]
        os.write(put, json.dumps(row, default=str).encode())
        os._exit(0)
    os.close(put)
    with os.fdopen(got, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    shutil.rmtree(scratch / kind, ignore_errors=True)
    ended = {"type": kind, "of": known_types().get(kind), "built": f"ended without an answer in {_SECONDS} s"}
    return json.loads(answer) if answer else ended


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--types", help="these alone")
    parser.add_argument("--again", action="store_true", help="those of --types that have a row, too")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE} from the rows and run nothing")
    parser.add_argument("--rows", type=Path, default=ROWS)
    arguments = parser.parse_args()
    arguments.rows.mkdir(parents=True, exist_ok=True)
    if not arguments.page:
        kinds = arguments.types.split(",") if arguments.types else [*known_types()]
        scratch = Path(mkdtemp(prefix="architectures-"))
        _warm(scratch)
        for kind in kinds:
            place = arguments.rows / f"{kind}.json"
            if place.is_file() and not arguments.again:
                continue
            started = time.monotonic()
            row = in_own_process(kind, scratch)
            place.write_text(json.dumps(row, indent=1))
            runs = [row.get(dtype, {}) for dtype in DTYPES]
            said = " | ".join(str(run.get("message") or run.get("texts") or "") for run in runs)
            took = f"({time.monotonic() - started:.0f} s)"
            print(f"{kind}: {state_of(row)}; {row['built'][:200]}; {said[:300]} {took}", flush=True)
    rows = [json.loads(path.read_text()) for path in arguments.rows.glob("*.json")]
    rows.sort(key=lambda row: (str(row["of"]), row["type"]))
    table = page(rows)
    print("\n".join(table.splitlines()[:7]))
    if arguments.page:
        text = PAGE.read_text()
        before, _, rest = text.partition(BEGIN)
        PAGE.write_text(before + table + rest.partition(END)[2])


def _warm(scratch: Path) -> None:
    """Import once what every child needs, by running one type."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers

    from spsbench.runner import execute

    vars(execute)["measured_bandwidth"] = lambda device: None  # a second each, of which no row tells
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    row_of("llama", scratch / "warm")


if __name__ == "__main__":
    main()
