"""A trained student as a folder: in spsbench's own layout, or in that of the ``speculators`` package."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spsbench.base import write_json
from spsbench.models import (
    DESCRIPTION,
    DFLASH,
    EAGLE3,
    FORMAT,
    MTP,
    VOCABULARY,
    WEIGHTS,
    MadeFor,
    block_folders,
    speculators,
)
from spsbench.parts.distill.students import BlockHead, Eagle3Head, ModuleHead, Teacher, shortened

SERVED_TOKENS = 3
"""K that an engine takes from a checkpoint unless it is given another; of a block all of its places."""


def write_draft(
    folder: Path,
    kind: str,
    target: MadeFor,
    config: dict[str, Any] | None,
    heads: int,
    weights: dict[str, Tensor],
    vocabulary: Tensor,
) -> None:
    """Write a draft's weights in bfloat16 and what they are; a reader finds both or no ``draft.json``.

    Args:
        vocabulary: [m] the ids that it proposes, ascending.
    """
    described = {"format": FORMAT, "kind": kind, "target": asdict(target), "config": config} | (
        {"heads": heads} if heads else {}
    )
    tensors = {name: value.bfloat16() for name, value in weights.items()}
    if len(vocabulary) < target.vocab_size:
        tensors[VOCABULARY] = vocabulary.int()
    _write(folder, tensors, described, DESCRIPTION)


def write_speculators(
    folder: Path,
    target: MadeFor,
    location: str,
    teacher: Teacher,
    student: Eagle3Head | BlockHead | ModuleHead,
) -> None:
    """Write a student as ``write_draft`` does, in the format that the ``speculators`` package and vLLM read.

    Args:
        location: of the target, as ``from_pretrained`` takes it.
    """
    describe = {Eagle3Head: _eagle3, BlockHead: _block, ModuleHead: _mtp}
    kind, config, tensors, tokens = next(
        each(teacher, student) for one, each in describe.items() if isinstance(student, one)
    )
    proposal = {"proposal_type": "greedy", "speculative_tokens": tokens}
    described = {
        speculators.TYPE: kind,
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [proposal],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": location, "architectures": teacher.model.config.architectures},
        },
        speculators.FINGERPRINT: target.embedding,
        "tie_word_embeddings": False,
    }
    weights = {name: value.bfloat16() for name, value in student.weights().items()}
    _write(folder, weights | tensors, described | config, speculators.CONFIG)


Described = tuple[str, dict[str, Any], dict[str, Tensor], int]
"""A kind, fields of its configuration, tensors beside its weights, and how many tokens are drafted."""


def _eagle3(teacher: Teacher, student: Any) -> Described:
    vocab_size = len(_table(teacher))
    reads = student.reads or (teacher.config.num_hidden_layers,)
    config = {
        "architectures": ["Eagle3Speculator"],
        speculators.LAYER: student.model.config.to_dict()
        # vLLM counts the states here, and three unless it is told.
        | {"vocab_size": vocab_size, "num_aux_hidden_states": len(reads)},
        speculators.READS: list(reads),
        "draft_vocab_size": len(teacher.vocabulary),
        "norm_before_fc": not student.reads,
        "norm_before_residual": False,
    }
    # The target's table: the package takes it for itself only where torch leaves missing weights as NaN.
    tensors = {
        speculators.OWN_EMBEDDING: _table(teacher),
        speculators.HEAD: teacher.head_rows(teacher.model.dtype),
    }
    if not student.reads:  # the last state of training is the target's after its norm
        tensors[speculators.WHOLE_NORM] = teacher.model.get_decoder().norm.weight
    return EAGLE3, config, tensors | _vocabulary(teacher), SERVED_TOKENS


def _block(teacher: Teacher, student: Any) -> Described:
    form = student.form
    config = {
        "architectures": ["DFlashDraftModel"],
        speculators.LAYER: student.config.to_dict(),
        block_folders.READS: list(student.reads),
        "draft_vocab_size": len(teacher.vocabulary),
        "block_size": form.size,
        "mask_token_id": form.mask_token,
        "sample_from_anchor": form.anchor_predicts,
        # No layer has a window. vLLM (0.33.0) reads False as causal blocks in every layer.
        "sliding_window_non_causal": True,
    }
    reduced = len(teacher.vocabulary) < len(_table(teacher))
    tensors = _vocabulary(teacher) | (
        {speculators.HEAD: teacher.head_rows(teacher.model.dtype)} if reduced else {}
    )
    return DFLASH, config, tensors, form.drafts


def _mtp(teacher: Teacher, student: Any) -> Described:
    layer = shortened(teacher.config.to_dict(), student.numbers)
    config = {
        "architectures": ["MTPDraftModel"],
        speculators.LAYER: layer | {"vocab_size": len(_table(teacher))},
        "num_nextn_predict_layers": 1,
    }
    return MTP, config, {}, SERVED_TOKENS


def _table(teacher: Teacher) -> Tensor:
    weight: Tensor = teacher.model.get_input_embeddings().weight
    return weight.detach()


def _vocabulary(teacher: Teacher) -> dict[str, Tensor]:
    """Which tokens are proposed, both ways; nothing where all are."""
    vocabulary, size = teacher.vocabulary, len(_table(teacher))
    if len(vocabulary) == size:
        return {}
    proposed = torch.zeros(size, dtype=torch.bool, device=vocabulary.device)
    return {
        speculators.D2T: vocabulary - torch.arange(len(vocabulary), device=vocabulary.device),
        speculators.T2D: proposed.index_fill(0, vocabulary, True),
    }


def _write(folder: Path, tensors: dict[str, Tensor], described: dict[str, Any], name: str) -> None:
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights_part, description_part = (folder / f"{each}.part" for each in (WEIGHTS, name))
    kept = {each: value.detach().cpu().contiguous() for each, value in tensors.items()}
    save_file(kept, weights_part, {"format": "pt"})
    weights_part.replace(folder / WEIGHTS)
    write_json(description_part, described)
    description_part.replace(folder / name)
