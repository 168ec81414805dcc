"""What is measured: the prompts of a task, and the models that continue them, found but not loaded."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch

from spsbench.base.axes import EAGER
from spsbench.base.records import Arm, Prompt, SamplingParams
from spsbench.config import MaterialSettings, PairConfig
from spsbench.config.models import AUTO, TORCH, Precision
from spsbench.models.device import resolve_device
from spsbench.models.kernels import kernels_of_config
from spsbench.models.memory import Weights
from spsbench.models.pair import Pair, PairSource, find_pair, fitting_weights, load_pair, pair_backend
from spsbench.models.placement import Placement
from spsbench.models.quantised import LIBRARY, described
from spsbench.models.tensor_parallel import Ranks
from spsbench.models.tokenizer import Tokenizer
from spsbench.runner.room import room_of
from spsbench.tasks.answers import ExtractionRule
from spsbench.tasks.catalogue import load_task
from spsbench.tasks.reading import read_data
from spsbench.tasks.task import Task, TaskData, thought_switch


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Hold a target and a draft that are found but not loaded, and what will compute them.

    Attributes:
        dtypes: to load target and draft in.
        fallback: why the models are not computed by the backend that is usual on the device.
        placement: of a target that is spread over devices.
        threads: of a CPU to compute on; None for as many as suit the target.
        weights: what both will take; nothing is known of models that are not loaded here.
    """

    pair: PairConfig
    source: PairSource
    device: torch.device
    dtypes: tuple[str, str]
    backend: str
    fallback: str | None
    placement: Placement | None
    threads: int | None
    weights: Weights

    @property
    def tokenizer(self) -> Tokenizer:
        return self.source.tokenizer

    @property
    def quantiser(self) -> str | None:
        """What quantises weights over torch, otherwise than ONNX Runtime does; None where nothing does."""
        quantised = any(Precision(dtype).quantise for dtype in self.dtypes)
        return LIBRARY if quantised and self.backend == TORCH else None

    @property
    def layer_kernels(self) -> dict[str, str]:
        """What computes the layers that have several kernels, by package; see ``kernels_of``."""
        if self.backend != TORCH:
            return {}
        found = [kernels_of_config(model.config) for model in (self.source.target, self.source.draft)]
        return found[1] | found[0]

    def load(
        self, *, threads: int | None = None, beside: Pair | None = None, ranks: Ranks | None = None
    ) -> Pair:
        """Load both models, and set torch's number of threads.

        Args:
            threads: to compute on in place of the settings' own.
            beside: a pair that is loaded, whose target is this one's, too.
            ranks: the processes that the target is split over.
        """
        return load_pair(
            self.source,
            self.dtypes,
            self.device,
            self.backend,
            threads or self.threads,
            beside,
            self.placement,
            ranks,
        )

    def shared(self) -> dict[str, Any]:
        """Name every field of ``Models``, for what is made of them."""
        return {field.name: getattr(self, field.name) for field in fields(Models)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Material(Models):
    """Hold the prompts of a task beside the models that continue them.

    Attributes:
        max_new_tokens: the longest output.
        chat_template: whether prompts are put into the tokenizer's chat template.
    """

    task: Task
    data: TaskData
    prompts: tuple[Prompt, ...]
    max_new_tokens: int
    chat_template: bool
    seed: int

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end an output."""
        return self.task.stop_for(self.prompts[0])

    @property
    def extract(self) -> ExtractionRule | None:
        """How code is taken from answers; None for a task without code."""
        return self.task.extraction(self.prompts[0])

    @property
    def longest(self) -> int:
        """Number of tokens of the longest prompt."""
        return max(len(prompt.ids) for prompt in self.prompts)

    def label(self) -> str:
        """Name the task, and say what every table must say of it.

        That is what is synthetic (the data, or only what the pair learned from), and which weights were
        quantised before or are rounded now: outputs follow the law of these weights, not of the original's.
        """
        made = self.pair.synthetic and not self.data.synthetic
        label = f"{self.data.label} (synthetic pair)" if made else self.data.label
        return ", ".join([label, *about_weights(self.source, self.dtypes, self.backend)])


def find_models(settings: MaterialSettings, *, rolls_back: bool = True) -> Models:
    """Find the pair, and what computes it on the device, which has memory for its weights; load none."""
    device = resolve_device(settings.device)
    source = find_pair(settings.pair, rolls_back=rolls_back).with_template_args(settings.template_args)
    dtypes = settings.dtypes
    placement, choice = Placement.beside(settings.backend, settings.device_map)
    backend, fallback = pair_backend(choice, source, dtypes, device)
    weights = fitting_weights(source, dtypes, device, backend, placement)
    return Models(
        pair=settings.pair,
        source=source,
        device=device,
        dtypes=dtypes,
        backend=backend,
        fallback=fallback,
        placement=placement,
        threads=settings.threads,
        weights=weights,
    )


def find_material(settings: MaterialSettings, *, rolls_back: bool = True) -> Material:
    """Load the task, find the pair, read the data, build every prompt; load no weight.

    The device must have room for the models and one plain sequence. Where they score texts of others alone,
    nothing ``rolls_back``: see ``find_pair``.
    """
    task = load_task(settings.task, turns=settings.turns)
    models = find_models(settings, rolls_back=rolls_back)
    read = read_prompts(settings, task, models.source)
    slots = max(len(prompt.ids) for prompt in read.prompts) + read.max_new_tokens
    plain = Arm("ars", 0, EAGER, task.default_sampling, SamplingParams())
    room_of(models, [plain], slots, read.max_new_tokens)
    return Material(
        task=task,
        data=read.data,
        prompts=read.prompts,
        max_new_tokens=read.max_new_tokens,
        chat_template=read.chat_template,
        seed=settings.seed,
        **models.shared(),
    )


class Prompts(NamedTuple):
    """What a task asks of a pair of models: as the attributes of ``Material``.

    Attributes:
        room: tokens that a prompt may have.
    """

    data: TaskData
    prompts: tuple[Prompt, ...]
    max_new_tokens: int
    chat_template: bool
    room: int


def read_prompts(settings: MaterialSettings, task: Task, source: PairSource, *, beyond: int = 0) -> Prompts:
    """Read the task's data and build the prompt of every example.

    What of the data the tokenizer decided is added to the data's provenance.

    Args:
        beyond: tokens of the window that are kept free behind the longest output.
    """
    data = read_data(task, settings)
    data.provenance.update(task.read_by(source.tokenizer))
    chat_template = settings.chat_template == "auto" and task.uses_template(source.tokenizer)
    max_new_tokens = settings.max_new_tokens or task.max_new_tokens
    reserve = max_new_tokens + beyond
    window = source.window_for(reserve)
    prompts = tuple(
        task.prompt(example, data, source.tokenizer, window, reserve, chat_template)
        for example in data.examples
    )
    if opened := sum(prompt.thinks for prompt in prompts):
        switch = thought_switch(source.tokenizer)
        data.provenance["opens_thought"] = {"prompts": opened, "switch": switch}
    return Prompts(data, prompts, max_new_tokens, chat_template, window - reserve)


def about_weights(source: PairSource, dtypes: tuple[str, str], backend: str) -> list[str]:
    """Say what the weights of target and draft went through; once where it holds for the same model."""
    undone = [part.dequantised for part in (source.target, source.draft)]
    same = source.target.location == source.draft.location
    roles = ["weights"] if same else ["target", "draft"]
    # A dequantised checkpoint is in float32, and onnxruntime computes in nothing else.
    computed = [Precision(dtype).dtype if backend == TORCH else AUTO for dtype in dtypes]
    sentences = [
        f"{role} {kind} dequantised to {'float32' if dtype == AUTO else dtype}"
        for role, kind, dtype in zip(roles, undone, computed, strict=False)
        if kind
    ]
    kept = [Precision(dtype).quantise for dtype in dtypes]
    if backend != TORCH:
        return sentences + [
            f"{role} rounded to {bits}" for role, bits in zip(("target", "draft"), kept, strict=True) if bits
        ]
    if kept[0] == kept[1]:
        return sentences + [f"weights quantised to {described(bits)}" for bits in kept[:1] if bits]
    roles_kept = zip(("target", "draft"), kept, strict=True)
    return sentences + [f"{role} quantised to {described(bits)}" for role, bits in roles_kept if bits]
