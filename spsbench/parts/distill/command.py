"""``spsbench distill``."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base import Spec, UsageError, require_makeable, write_text
from spsbench.cli import (
    Common,
    MachineOptions,
    asks,
    continued_by,
    option,
    options,
    out,
    print_json,
    say,
    task_named_by,
    typed,
    values,
)

if TYPE_CHECKING:
    from spsbench.models import ModelSource
    from spsbench.parts.distill.evaluation import Forecast
    from spsbench.parts.distill.making import Made, StageProgress, Watch
    from spsbench.parts.distill.recipe import Recipe

TEXT, TRAINING = "Training text", "Training"
_LINE_EVERY_S = 20.0
_FORECAST_CONTEXT, _FORECAST_S = 256, 10.0


@dataclass(frozen=True, kw_only=True)
class DistillOptions(Common):
    """The options of ``distill``; those of a recipe have the names of its fields."""

    target: str | None
    out: Path | None = option("--out FOLDER", "Folder of the draft; training resumes if it was begun there.")
    kind: str | None = option(
        "--kind KIND",
        "model, eagle, eagle3, mtp, dflash or medusa. Behind it model:layers=2; eagle3:states=3, "
        "or 1, the last one; dflash:layers=2:block=8; medusa:heads=4, tokens ahead; of any "
        "but mtp vocabulary=8000, tokens it can propose, 0 for all. Default: model.",
    )
    data: str | None = option(
        "--data LIST", "own (the target's text), python, or prompts files. Default: own,python."
    )
    tokens: str | None = option("--tokens N", "Tokens of training text. Default: 2000000.")
    minutes: str | None = option(
        "--minutes M", "Shorten text and training to fit into M minutes. Default: no limit."
    )
    seed: str | None
    epochs: str | None = option("--epochs N", "Passes over the text. Default: 2.", TRAINING)
    batch_tokens: str | None = option(
        "--batch-tokens N", "Tokens of an update, padding included. Default: 2048.", TRAINING
    )
    corpus: Path | None = option(
        "--corpus FOLDER", "Folder of the training text, shared by several drafts. Default: OUT/corpus.", TEXT
    )
    evaluated: list[str] | None = option(
        "--evaluated TASK...", "Another task or prompts file to keep out of the text; may be repeated.", TEXT
    )
    device: str | None
    threads: str | None = option("--threads N", "CPU threads. Default: all.", options.Panel.MACHINE)


@asks(DistillOptions, needed="device")
def distill(options: DistillOptions) -> None:
    """Train a draft model or head for a target on the target's own distributions.

    Example: spsbench distill --target package:smollm2 --kind eagle --out head
    """
    recipe = _recipe(options)
    values.require_machine(MachineOptions(device=options.device))
    threads = (
        None
        if options.threads is None
        else int(values.number(options.threads, "--threads", 1, 1, whole=True))
    )
    if options.target is None or options.out is None:
        missing = "--target" if options.target is None else "--out"
        remedy = "For example: --target package:smollm2 --out head."
        raise UsageError("it is required.", flag=missing, remedy=remedy)
    _require_there(options.target, recipe.data, options.evaluated or (), options.out, options.corpus)
    say(f"Reading {options.target}", quiet=options.quiet)
    continued_by(typed)
    watch = _progress_watcher(options.quiet)
    made, forecasts, measured_by = _draft_with_card(
        options.target, options.out, options, recipe, threads, watch
    )
    if options.json:
        print_json(made.record | {"forecast": [asdict(forecast) for forecast in forecasts]})
    elif not options.quiet:
        _print(made, forecasts, measured_by)


def _require_there(
    target: str, data: Sequence[str], evaluated: Sequence[str], out: Path, corpus: Path | None
) -> None:
    """Refuse, before torch is imported, a target, data or tasks that are not there, and unusable folders."""
    from spsbench.config import ModelRef
    from spsbench.models import stated_config
    from spsbench.parts.distill.recipe import SOURCES
    from spsbench.tasks import load_task, read_prompts_file

    stated = stated_config(ModelRef(id=target), "--target")
    if stated.get("is_encoder_decoder"):
        raise _encoder_decoder(target)
    for folder, flag in ((out, "--out"), (corpus, "--corpus")):
        if folder is not None:
            require_makeable(folder, flag)
    with task_named_by("--data"):
        for name in data:
            if name not in SOURCES:
                read_prompts_file(Path(name), every_turn=True)
    with task_named_by("--evaluated"):
        for name in evaluated:
            load_task(name)


def _encoder_decoder(name: str) -> UsageError:
    why = f"{name} is an encoder-decoder, for which no draft is trained here."
    return UsageError(why, flag="--target", remedy="Choose a decoder-only language model.")


def _draft_with_card(
    target: str, folder: Path, options: DistillOptions, recipe: Recipe, threads: int | None, watch: Watch
) -> tuple[Made, list[Forecast], str]:
    """(the draft in the folder, what it is worth, the command line that measures it)."""
    import torch

    from spsbench.config import ModelRef
    from spsbench.models import find, resolve_device
    from spsbench.parts.distill.corpus import evaluated_texts
    from spsbench.parts.distill.making import make_draft
    from spsbench.parts.distill.messages import DraftCard

    # Kernels for every shape that ever came would take gigabytes; read when the first is made.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16")
    named = ModelRef(id=target)
    source = find(named.id, named.revision, "--target")
    if source.is_encoder_decoder:
        raise _encoder_decoder(source.name)
    device = resolve_device(options.device or "auto")
    if threads is not None:
        torch.set_num_threads(threads)
    corpus = options.corpus or folder / "corpus"
    texts = evaluated_texts(options.evaluated or ())
    made = make_draft(source, recipe, folder, corpus, texts, device, watch)
    forecasts = _forecasts(source, made, device)
    measured_by = _measuring_command(source.name, made)
    write_text(folder / "README.md", str(DraftCard(made, forecasts, measured_by)))
    return made, forecasts, measured_by


def _forecasts(source: ModelSource, made: Made, device: Any) -> list[Forecast]:
    """What the draft is worth, with the target's forwards timed here as a run would compute them."""
    from spsbench.models import choose_backend, load, model_not_covered
    from spsbench.parts.distill.evaluation import KS, forecasts
    from spsbench.parts.whatif.bench.forwards import time_forwards

    reason = model_not_covered(source, "float32", device, "--target")
    backend, _ = choose_backend("auto", [(source.name, reason)], device)
    model = load(source, "float32", device, source.tokenizer.size, "--target", backend)
    rows = (1, *(k + 1 for k in KS))
    timed = time_forwards(model, rows, min(_FORECAST_CONTEXT, model.context_window // 2), _FORECAST_S)
    width = 4  # bytes of a weight in float32, of target and draft
    share = width * made.forward_parameters / model.forward_bytes()
    return forecasts(made.held_out, timed, share, made.recipe.kind)


def _recipe(options: DistillOptions) -> Recipe:
    """What was typed, with the defaults of its kind."""
    from spsbench.parts.distill.recipe import OPTIONS, Recipe, require_kind

    least = {"vocabulary": 0, "seed": 0, "batch_tokens": 64}
    kind = Spec.parse(options.kind or Recipe.kind)
    of_kind = {name: str(value) for name, value in kind.options}
    require_kind(kind.name, of_kind)
    changes: dict[str, Any] = {} if kind.name in OPTIONS["vocabulary"] else {"vocabulary": 0}
    for field in fields(Recipe):
        inner = field.name in OPTIONS
        if (text := of_kind.get(field.name) if inner else getattr(options, field.name)) is None:
            continue
        if field.name == "data":
            changes["data"] = tuple(part.strip() for part in text.split(","))
        elif field.name == "kind":
            changes["kind"] = kind.name
        else:
            flag = f"--kind {kind.name}:{field.name}" if inner else f"--{field.name.replace('_', '-')}"
            value = values.number(text, flag, least.get(field.name, 1), 1, whole=True)
            changes[field.name] = float(value) if field.name == "minutes" else int(value)
    recipe = Recipe(**changes)
    recipe.require_possible()
    return recipe


def _progress_watcher(quiet: bool) -> Watch:
    """Prints on stderr: text every few seconds, training at each evaluation."""
    last = 0.0

    def watch(so_far: StageProgress) -> None:
        nonlocal last
        now = time.monotonic()
        if not so_far.held_out and now - last < _LINE_EVERY_S and so_far.done < so_far.planned:
            return
        last = now
        if so_far.stage == "text":
            say(
                f"text: {so_far.done:,} of {so_far.planned:,} tokens, {so_far.seconds / 60:.0f} min",
                quiet=quiet,
            )
            return
        seen = "".join(f", {text.kind} alpha {_alphas(text.alphas)}" for text in so_far.held_out)
        place = f"training: {so_far.done:,} of {so_far.planned:,} updates, {so_far.seconds / 60:.0f} min"
        say(f"{place}, loss {so_far.loss:.2f}{seen}", quiet=quiet)

    return watch


def _alphas(alphas: list[float]) -> str:
    return "/".join(f"{alpha:.2f}".removeprefix("0") for alpha in alphas)


def _measuring_command(target: str, made: Made) -> str:
    from spsbench.models import MODEL, MTP

    drafter = MTP if made.recipe.kind == MTP else "heads"
    draft = (
        f"--draft {made.folder}" if made.recipe.kind == MODEL else f"--drafter {drafter}:from={made.folder}"
    )
    return f"spsbench run humaneval --target {target} {draft}"


def _print(made: Made, forecasts: list[Forecast], measured_by: str) -> None:
    from spsbench.parts.distill.messages import FORECAST
    from spsbench.report import Table, left, right

    titles = ("alpha", "best K", "tokens/loop", "forecast")
    columns = [left("held-out text"), *map(right, titles)]
    texts = {text.kind: text for text in made.held_out}
    cells = [
        [
            f.kind,
            _alphas(texts[f.kind].alphas),
            str(f.k or "-"),
            f"{f.tokens_per_loop:.2f}",
            f"{f.speedup:.2f}x",
        ]
        for f in forecasts
    ]
    console = out()
    console.print(Table(columns, cells).as_rich())
    console.print(FORECAST, style="dim")
    console.print(f"Draft: {made.folder}. Measure it:\n  {measured_by}", highlight=False, soft_wrap=True)
