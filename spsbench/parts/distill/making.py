"""From a target to a draft in a folder: text, training, evaluation and the model card."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from spsbench.base import UnavailableError, UsageError, make_folder, write_json
from spsbench.models import (
    DFLASH,
    EAGLE,
    EAGLE3,
    EMBEDDING,
    MEDUSA,
    MODEL,
    MTP,
    Checkpoint,
    MadeFor,
    ModelSource,
    NotCovered,
    blueprint_of,
    embedding_fingerprint,
    text_config,
    weights_folder,
)
from spsbench.parts.distill.corpus import Corpus, Evaluated, Lessons, lessons_of
from spsbench.parts.distill.evaluation import HeldOut, held_out
from spsbench.parts.distill.folders import write_draft, write_speculators
from spsbench.parts.distill.own_text import OwnText
from spsbench.parts.distill.recipe import DEPTHS, Recipe
from spsbench.parts.distill.sampler import Writer
from spsbench.parts.distill.students import (
    BlockHead,
    Eagle3Head,
    EagleHead,
    MedusaHeads,
    ModuleHead,
    SmallModel,
    Teacher,
    shortened,
    states_between,
)
from spsbench.parts.distill.training import Batch, Progress, Training, batches_of, has_fast_bfloat16

# Of the minutes: what is left is for learning.
_SAMPLING_SHARE = 0.5
_EVALUATIONS = 12
_GLANCED_AT, _MEASURED = 3_000, 20_000
"""Held-out positions of a kind, as it goes and at the end: rows of the whole vocabulary take half a
millisecond each."""
_LEAST_UPDATES = 8


@dataclass(frozen=True, slots=True)
class StageProgress:
    """What is worth a line on the screen while a draft is made.

    Attributes:
        stage: ``text`` or ``training``.
        seconds: since the stage began.
    """

    stage: str
    done: int
    planned: int
    seconds: float
    loss: float | None = None
    held_out: tuple[HeldOut, ...] = ()


Watch = Callable[[StageProgress], None]


@dataclass(frozen=True)
class Made:
    """A draft that was trained.

    Attributes:
        record: everything of ``training.json``.
    """

    folder: Path
    recipe: Recipe
    target: MadeFor
    parameters: int
    forward_parameters: int
    held_out: list[HeldOut]
    record: dict[str, Any]


def make_draft(
    source: ModelSource,
    recipe: Recipe,
    out: Path,
    corpus: Path,
    evaluated: Iterable[str],
    device: torch.device,
    watch: Watch,
) -> Made:
    """Make a draft, or continue an interrupted one."""
    _require_plain(source, recipe.kind)
    made_for = _made_for(source)
    model = _target_model(source, device)
    recipe.require_fitting(model.config.num_hidden_layers, source.tokenizer.size)
    _begin_or_continue(out, recipe.settings() | {"target": made_for.embedding}, "--out")
    _begin_or_continue(
        corpus, {"target": made_for.embedding, "data": list(recipe.data), "seed": recipe.seed}, "--corpus"
    )
    began = time.perf_counter()
    text = Corpus(corpus)
    writer = Writer(model, sorted(source.tokenizer.eos_ids), source.tokenizer.size)
    _write_text(OwnText(writer, source.tokenizer, recipe.data, recipe.seed), text, recipe, watch)
    lessons = lessons_of(text, recipe.tokens, source.tokenizer.decode, Evaluated(evaluated))
    if not lessons.learnt or not lessons.held_out:
        raise UnavailableError(
            "the text has nothing to learn from, or nothing to hold out.",
            flag="--tokens",
            remedy="Ask for more tokens, or for more minutes.",
        )
    size = recipe.vocabulary or source.tokenizer.size
    vocabulary = lessons.vocabulary(size, sorted(source.tokenizer.eos_ids), source.tokenizer.size)
    teacher = Teacher(model, vocabulary.to(device))
    torch.manual_seed(recipe.seed)
    student = _untrained(teacher, recipe, lessons).to(device)
    progress, evaluations = _train(teacher, student, lessons, recipe, out, began, watch)
    parameters = sum(parameter.numel() for parameter in student.parameters())
    if isinstance(student, (Eagle3Head, BlockHead, ModuleHead)):
        location = str(Path(source.location).resolve()) if source.is_local else source.location
        write_speculators(out, made_for, location, teacher, student)
    else:
        config = None
        if not isinstance(student, MedusaHeads):
            config = shortened(teacher.config.to_dict(), student.numbers)
        heads = recipe.heads if recipe.kind == MEDUSA else 0
        write_draft(out, recipe.kind, made_for, config, heads, student.weights(), vocabulary)
    record = _record(recipe, made_for, lessons, progress, evaluations, parameters, device)
    write_json(out / "training.json", record)
    read_parameters = parameters + len(teacher.vocabulary) * teacher.hidden
    return Made(out, recipe, made_for, parameters, read_parameters, evaluations, record)


def _untrained(teacher: Teacher, recipe: Recipe, lessons: Lessons) -> Any:
    layers = teacher.config.num_hidden_layers
    if recipe.kind == DFLASH:
        # Rows of the table are as they are: the token that is written least stands for what is not known yet.
        rarest = lessons.rarest(len(teacher.model.get_input_embeddings().weight))
        return BlockHead(teacher, recipe.layers, recipe.block, rarest, states_between(layers))
    students: dict[str, Callable[[], Any]] = {
        MODEL: lambda: SmallModel(teacher, recipe.layers),
        EAGLE: lambda: EagleHead(teacher, DEPTHS),
        EAGLE3: lambda: Eagle3Head(teacher, DEPTHS, states_between(layers) if recipe.states > 1 else ()),
        MTP: lambda: ModuleHead(teacher, DEPTHS),
        MEDUSA: lambda: MedusaHeads(teacher, recipe.heads),
    }
    return students[recipe.kind]()


def _target_model(source: ModelSource, device: torch.device) -> Any:
    """In bfloat16 where that is fast: learning needs no more precision."""
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if has_fast_bfloat16(device) else torch.float32
    model = AutoModelForCausalLM.from_pretrained(
        source.location, revision=source.commit, dtype=dtype, trust_remote_code=False
    )
    return model.to(device).eval().requires_grad_(False)


def _require_plain(source: ModelSource, kind: str) -> None:
    try:
        plan = blueprint_of(source.config)
        factors = (plan.embedding_scale, plan.residual_scale, plan.logit_scale)
        reason = None if factors == (1.0, 1.0, 1.0) else "it scales its embeddings, blocks or logits"
    except NotCovered as refused:
        reason = str(refused)
    if kind in (EAGLE3, MTP, DFLASH) and not hasattr(text_config(source.config), "rms_norm_eps"):
        reason = f"its final norm is none of the root mean square, which {kind} takes over"
    if reason is not None:
        raise UsageError(
            f"no draft can be trained for {source.name}: {reason}.",
            flag="--target",
            remedy="Choose a model like Llama, Mistral, Qwen or OLMo.",
        )


def _made_for(source: ModelSource) -> MadeFor:
    stored = Checkpoint(weights_folder(source))
    if EMBEDDING not in stored:
        raise UnavailableError(
            f"{source.name} keeps its embedding in no safetensors file.",
            flag="--target",
            remedy="Save it with save_pretrained.",
        )
    rows, width = stored.shape(EMBEDDING)
    return MadeFor(source.name, width, rows, embedding_fingerprint(stored))


def _begin_or_continue(folder: Path, settings: dict[str, Any], flag: str) -> None:
    make_folder(folder, flag)
    path = folder / "recipe.json"
    recipe = json.loads(json.dumps(settings))
    if not path.exists():
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty.", flag=flag, remedy="Give another folder.")
        write_json(path, recipe)
    before = json.loads(path.read_text(encoding="utf-8"))
    free = {"tokens", "minutes"}  # may be raised later
    differing = sorted(name for name in recipe if name not in free and recipe[name] != before.get(name))
    if differing:
        name = differing[0]
        raise UsageError(
            f"{folder} was begun with {name} {before.get(name)}, not {recipe[name]}.",
            flag=flag,
            remedy="Give another folder, or the settings that it was begun with.",
        )


def _write_text(source: OwnText, corpus: Corpus, recipe: Recipe, watch: Watch) -> None:
    began = time.perf_counter()
    done = 0
    number = 0
    limit_s = None if recipe.minutes is None else 60 * recipe.minutes * _SAMPLING_SHARE
    while done < recipe.tokens and (number == 0 or limit_s is None or time.perf_counter() - began < limit_s):
        corpus.require(number, partial(source.shard, number))
        done += corpus.drawn(number)
        number += 1
        watch(StageProgress("text", done, recipe.tokens, time.perf_counter() - began))


def _train(
    teacher: Teacher, student: Any, lessons: Lessons, recipe: Recipe, out: Path, began: float, watch: Watch
) -> tuple[Progress, list[HeldOut]]:
    device = teacher.model.device
    dtype = torch.bfloat16 if has_fast_bfloat16(device) else torch.float32

    def batches(epoch: int) -> Iterator[Batch]:
        return batches_of(lessons.learnt, recipe.batch_tokens, recipe.seed + epoch, device, torch.float32)

    planned = recipe.epochs * sum(1 for _ in batches(0))
    training = Training(teacher, student, out, Progress(max(planned, _LEAST_UPDATES)), dtype)
    if recipe.minutes is not None:
        training.end_by(began + 60 * recipe.minutes)
    evaluations: list[HeldOut] = []

    def evaluate() -> dict[str, Any]:
        most = _MEASURED if training.progress.updates >= training.progress.planned else _GLANCED_AT
        evaluations[:] = held_out(teacher, student, lessons.held_out, recipe.batch_tokens, most)
        return {text.kind: text.alphas for text in evaluations}

    def tell(progress: Progress, loss: float) -> None:
        fresh = (
            tuple(evaluations) if progress.curve and progress.curve[-1]["updates"] == progress.updates else ()
        )
        watch(StageProgress("training", progress.updates, progress.planned, progress.seconds, loss, fresh))

    training.run(batches, evaluate, max(1, training.progress.planned // _EVALUATIONS), tell)
    if not evaluations:
        evaluate()
    return training.progress, evaluations


def _record(
    recipe: Recipe,
    target: MadeFor,
    lessons: Lessons,
    progress: Progress,
    held_out: list[HeldOut],
    parameters: int,
    device: torch.device,
) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    kinds = {kind: sum(len(s.tokens) - s.start for s in group) for kind, group in lessons.learnt.items()}
    return {
        "recipe": recipe.settings(),
        "target": asdict(target),
        "parameters": parameters,
        "tokens_by_kind": kinds,
        "sequences_held_out": {kind: len(group) for kind, group in lessons.held_out.items()},
        "sequences_contaminated": lessons.contaminated,
        "updates": progress.updates,
        "tokens_learnt": progress.tokens,
        "training_s": round(progress.seconds, 1),
        "device": name or f"CPU, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "held_out": [asdict(text) for text in held_out],
        "curve": progress.curve,
    }
