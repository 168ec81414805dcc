"""Everything that a configuration alone decides, before torch is imported and a model is looked for."""

from __future__ import annotations

from spsbench.arms.batches import require_batchable
from spsbench.arms.choice import arms_of, require_stoppable
from spsbench.config import RunConfig
from spsbench.records import Arm
from spsbench.tasks.catalogue import load_task
from spsbench.tasks.task import Task


def task_and_arms(config: RunConfig) -> tuple[Task, tuple[Arm, ...]]:
    """The task and the arms that a configuration asks for."""
    every = config.turns == "all"
    task = load_task(config.task, unsafe_exec=config.unsafe_exec, extract=config.extract, every_turn=every)
    arms = arms_of(config, task.samplings, task.default_sampling)
    require_stoppable(config, arms)
    require_batchable(arms, config)
    return task, arms
