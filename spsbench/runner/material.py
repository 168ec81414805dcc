"""What is measured: the prompts of a task, beside the models that continue them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from spsbench.base.axes import EAGER
from spsbench.base.records import Arm, Prompt, SamplingParams
from spsbench.config import MaterialSettings
from spsbench.models.pair import PairSource
from spsbench.runner.models import Models, about_weights, find_models
from spsbench.runner.room import room_of
from spsbench.tasks.answers import ExtractionRule
from spsbench.tasks.catalogue import load_task
from spsbench.tasks.reading import read_data
from spsbench.tasks.task import Task, TaskData, thought_switch


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
