"""A run whose target is split over processes: how they are started, and what cannot be split."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from spsbench.axes import EAGER
from spsbench.config import RunConfig
from spsbench.config.models import ONNXRUNTIME, TORCH, Precision
from spsbench.drafters.kind import HIDDEN, WEIGHTS
from spsbench.drafters.registry import drafter_kind
from spsbench.errors import UsageError
from spsbench.models.pair import PairSource, resolve_device
from spsbench.models.tensor_parallel import Ranks, join, joined, require_splittable
from spsbench.records import Arm
from spsbench.torchrun import FLAG, require_alone, started


def split_over(config: RunConfig) -> dict[str, Any]:
    """What identifies a run of a split target; nothing for any other, so that those continue as before."""
    if config.tensor_parallel == 1:
        return {}
    return {"tensor_parallel": config.tensor_parallel, "draft_placement": config.draft_placement}


def backend_asked(config: RunConfig) -> str:
    """The backend to choose from; a split target has torch alone."""
    if config.tensor_parallel == 1:
        return config.backend
    if config.backend == ONNXRUNTIME:
        raise UsageError(
            f"{ONNXRUNTIME} computes a model in one process, and {FLAG} {config.tensor_parallel} splits it.",
            flag="--backend",
            remedy=f"Use --backend {TORCH}, or leave {FLAG} out.",
        )
    return TORCH


def require_split_arms(config: RunConfig, source: PairSource, arms: Sequence[Arm]) -> None:
    """Refuse what needs a split target whole, before a weight is loaded."""
    if config.tensor_parallel == 1:
        return
    require_splittable(source.target, config.tensor_parallel)
    ranks_of(config)
    if config.device_map is not None:
        raise _whole("a device map places the target's layers", "--device-map")
    if Precision.read(config.model_dtype).quantise is not None:
        raise _whole(f"{config.model_dtype} packs the target's matrices", _flag_of_quantising(config))
    if source.draft.sharing is not None:
        raise _whole(f"{source.draft.name} reads its target's embedding", "--draft")
    for arm in arms:
        if arm.sampling.beam is not None:
            raise _whole("a beam search builds a tree over the target", "--sampling")
        if arm.batch > 1:
            raise _whole("a batch has its own forward", "--batch")
        if arm.engine != EAGER:
            raise _whole(f"the engine {arm.engine} runs its own model", "--engine")
        if arm.method == "sps" and drafter_kind(arm.drafter.name).needs_of(arm.drafter) & {WEIGHTS, HIDDEN}:
            raise _whole(f"the drafter {arm.drafter.name} reads the target's layers", "--drafter")


def _flag_of_quantising(config: RunConfig) -> str:
    """The flag that asked for it: ``--dtype int8`` is a short spelling."""
    return "--quantise" if config.quantise is not None else "--dtype"


def _whole(reason: str, flag: str) -> UsageError:
    return UsageError(
        f"{reason}, and {FLAG} splits the target over processes.",
        flag=flag,
        remedy="Leave one of the two out.",
    )


def ranks_of(config: RunConfig) -> Ranks | None:
    """This process among those that a run's target is split over; None for a target in one process."""
    if config.tensor_parallel == 1:
        return None
    ranks = joined()
    if ranks is None:
        raise UsageError(
            f"{config.tensor_parallel} processes are asked for, and this one stands alone.",
            flag=FLAG,
            remedy="Only the commands run, sweep-k and verify can be split, started by torchrun.",
        )
    return ranks


@contextmanager
def among_ranks(config: RunConfig) -> Iterator[Ranks | None]:
    """Join the processes of a split target, and when the block ends in the first one, end the others."""
    _require_started(config.tensor_parallel)
    if config.tensor_parallel == 1:
        yield None
        return
    ranks = join(_device(config.device), config.draft_placement)
    try:
        yield ranks
    finally:
        ranks.end()


def _require_started(count: int) -> None:
    """Refuse another number of processes than the run asks for."""
    there = started()
    if there == count:
        return
    if count == 1:
        require_alone("run", f"Add {FLAG} {there}, or start spsbench without torchrun.")
    raise UsageError(
        f"{count} processes are asked for, and "
        + ("this one was started alone." if there == 1 else f"{there} were started."),
        flag=FLAG,
        remedy=f"Type: {launch_command(count, sys.argv[1:])}",
    )


def launch_command(count: int, arguments: Sequence[str]) -> str:
    """The command that starts spsbench in so many processes of this machine."""
    command = ("torchrun", "--nproc-per-node", str(count), "-m", "spsbench")
    return shlex.join([*command, *arguments])


def _device(name: str) -> torch.device:
    """The device of a split target: GPUs, one a process, or the CPU where there are none."""
    if name not in ("auto", "cpu", "cuda"):
        raise UsageError(
            f"{name} is one device, and each process has its own.", flag="--device", remedy="Use auto."
        )
    device = resolve_device(name)
    found = torch.accelerator.current_accelerator()
    if found is not None and found.type != device.type:
        raise UsageError(
            f"transformers splits a model over the devices that it sees, which are {found.type}.",
            flag="--device",
            remedy="Use auto, or hide them: CUDA_VISIBLE_DEVICES= before the command.",
        )
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if device.type == "cuda" and here > torch.cuda.device_count():
        raise UsageError(
            f"{here} processes were started on a machine with {torch.cuda.device_count()} GPUs.",
            flag=FLAG,
            remedy="Start as many as there are GPUs.",
        )
    return device
