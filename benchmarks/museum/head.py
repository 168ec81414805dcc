"""A DFlash head for a target: trained in an environment of transformers, once, and kept in the cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from spsbench.models.fetch.cache import cache_dir, locked, written_whole
from spsbench.parts.external.install import Environment, Run, clean_environment, run
from spsbench.parts.external.launch import LAUNCH

TRAINING = Path(__file__).with_name("head_training.py")


def trained_head(
    environment: Environment,
    target: Path,
    prompts: Sequence[Sequence[int]],
    stop: Sequence[int],
    execute: Run = run,
) -> Path:
    """The folder of a head, trained if it is not there; about five minutes on one core.

    Args:
        environment: with a release of transformers that knows DFlash.
        target: a Hugging Face folder.
        prompts: token ids; the target's own continuations are what the head learns.
        stop: tokens that end a continuation.
        execute: runs a command.

    Raises:
        UnavailableError: the training failed.
    """
    asked = json.dumps({"prompts": [list(ids) for ids in prompts], "stop": list(stop)})
    weights = (target / "model.safetensors").read_bytes()
    hashed = hashlib.sha256(asked.encode() + weights + TRAINING.read_bytes()).hexdigest()[:16]
    folder = cache_dir() / "museum" / f"head-{hashed}"
    with locked(folder, "a DFlash head"):
        if not folder.is_dir():
            with written_whole(folder) as partial:
                file = partial / "asked.json"
                file.write_text(asked)
                log = folder.with_name(f"{folder.name}.log")
                command = [environment.python, LAUNCH, TRAINING, target.absolute(), file, partial]
                execute(command, log, clean_environment() | {"OMP_NUM_THREADS": "1"})
    return folder
