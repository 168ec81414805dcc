"""Drafters from the folders of trained drafts: which one a folder's kind takes, and its rows once more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from spsbench.base.axes import CHAIN
from spsbench.base.errors import UsageError
from spsbench.base.paths import embedded_dir
from spsbench.base.plugins import Options
from spsbench.base.records import SamplingParams
from spsbench.decode.beam import TreeModel
from spsbench.drafters.blocks import BlockAhead, path_drafter
from spsbench.drafters.forced import StatesUpTo
from spsbench.drafters.heads import (
    Ahead,
    AheadDrafter,
    AheadTree,
    EagleDrafter,
    EagleModel,
    EagleTree,
    HeadTreeDrafter,
    MedusaAhead,
    PEagleAhead,
)
from spsbench.drafters.registry import TREE, Context
from spsbench.drafters.shape import Shape, shape_of
from spsbench.models.block_folders import load_block
from spsbench.models.causal_lm import LAST, CausalLM, States, text_config
from spsbench.models.heads import HeadChain, PEagleChain, load_chain, load_heads
from spsbench.models.kinds import AS_WRITTEN, BLOCKS, DFLASH, EAGLE, EAGLE3, MEDUSA, MODEL, OF_HEADS, PEAGLE
from spsbench.models.reading import read_draft
from spsbench.models.source import ModelSource, fingerprint, require_made_for
from spsbench.models.trained import TrainedDraft

if TYPE_CHECKING:
    from spsbench.drafters.tree import Siblings

_NAME = "heads"
_FLAG = "--drafter"


def _read_named_folder(options: Options) -> TrainedDraft:
    """Read the folder that was named; see its readers for further errors."""
    name = str(options["from"])
    folder = embedded_dir(name) or Path(name)
    draft = _read_once(folder, _stamp_of_files(folder))
    if draft.kind == MODEL:
        raise UsageError(
            f"{name} is a draft model, not a head.", flag=_FLAG, remedy=f"Give it as --draft {name}."
        )
    if draft.refused or draft.kind not in RUN:
        why = draft.refused or f"what runs here is {', '.join(RUN)}"
        raise UsageError(f"{name} is {draft.kind}: {why}.", flag=_FLAG, remedy="Choose another drafter.")
    asked = {name: str(options[name]) for name in OF_HEADS if options.get(name, AS_WRITTEN) != AS_WRITTEN}
    return draft.read_as(_FLAG, **asked)


RUN = (EAGLE, EAGLE3, PEAGLE, MEDUSA, *sorted(BLOCKS))
"""Kinds that draft here."""


def _stamp_of_files(folder: Path) -> tuple[tuple[str, int, int], ...]:
    if not folder.is_dir():
        return ()
    found = [(file, file.stat()) for file in sorted(folder.iterdir())]
    return tuple((file.name, told.st_mtime_ns, told.st_size) for file, told in found)


@lru_cache(maxsize=8)
def _read_once(folder: Path, stamp: tuple[tuple[str, int, int], ...]) -> TrainedDraft:
    """Read a folder, whose options are asked for many times in a run."""
    return read_draft(folder, _FLAG)


def states(options: Options, layers: int) -> States:
    return _read_named_folder(options).states_of(layers)


def unsettled(options: Options) -> Options:
    """See ``DrafterKind.unsettled``: conventions that neither the folder nor who wrote it settles."""
    return {each.name: each.value for each in _read_named_folder(options).conventions if not each.certain}


def content(options: Options) -> str:
    return fingerprint(str(_read_named_folder(options).folder))


def suits(options: Options, target: ModelSource) -> None:
    draft = _read_named_folder(options)
    require_made_for(draft, target, _FLAG)
    draft.require_layers(text_config(target.config).num_hidden_layers, _FLAG)


def build(options: Options, context: Context) -> EagleDrafter | AheadDrafter | HeadTreeDrafter:
    target = context.target
    hidden = context.hidden
    draft = _read_named_folder(options)
    if hidden is None or not isinstance(target, CausalLM):
        why = f"{_NAME} reads hidden states, and here the target keeps none."
        raise UsageError(why, flag=_FLAG, remedy="It takes a loaded model, in a run.")
    bits = int(options["bits"])
    shape = shape_of(str(options[TREE]), "--tree")
    if draft.kind in BLOCKS and bits:
        why = f"bits={bits} rounds eagle and medusa heads of spsbench distill; this is {draft.kind}."
        raise UsageError(why, flag=_FLAG, remedy="Leave it out.")
    if draft.kind in BLOCKS and draft.kind != DFLASH:
        return path_drafter(draft, hidden, context, target, shape)
    if draft.kind in (MEDUSA, PEAGLE, DFLASH):
        ahead: Ahead
        if draft.kind == DFLASH:
            ahead = BlockAhead(
                load_block(draft, target, _FLAG), hidden, draft.states_of(target.layers), context.device
            )
        elif draft.kind == MEDUSA:
            ahead = MedusaAhead(load_heads(draft, target, bits, _FLAG), hidden)
        else:
            chain_ahead = load_chain(draft, target, bits, _FLAG)
            assert isinstance(chain_ahead, PEagleChain)
            ahead = PEagleAhead(chain_ahead, hidden, context.device)
        if shape is None:
            return AheadDrafter(ahead, context.sampling)
        depth = shape.depth(context.k)
        if ahead.count and depth > ahead.count:
            why = f"{draft.folder} drafts {ahead.count} tokens, and the tree is {depth} deep."
            raise UsageError(why, flag="--tree", remedy=f"Give a depth of at most {ahead.count}.")
        return tree_drafter(AheadTree(ahead, depth), shape, options, context)
    return chain_drafter(load_chain(draft, target, bits, _FLAG), target, options, context)


def chain_drafter(
    chain: HeadChain, target: CausalLM, options: Options, context: Context
) -> EagleDrafter | HeadTreeDrafter:
    """Build the drafter of a chain over its target's states, for chains or trees."""
    assert context.hidden is not None
    model = EagleModel(chain, target, context.hidden)
    shape = shape_of(str(options[TREE]), "--tree")
    if shape is None:
        return EagleDrafter(model, context.sampling, context.device)
    return tree_drafter(EagleTree(model), shape, options, context)


def tree_drafter(model: TreeModel, shape: Shape, options: Options, context: Context) -> HeadTreeDrafter:
    siblings = cast("Siblings", options["siblings"])
    return HeadTreeDrafter(model, context.sampling, shape, siblings, context.k)


def again(options: Options, target: CausalLM, ids: Tensor, loops: Sequence[tuple[int, int]]) -> Tensor | None:
    """See ``DrafterKind.again``: the head applied to the target's states, read in one forward.

    None of a head with rounded weights: each product rounds its inputs too, by how many rows it has.
    """
    return None if int(options["bits"]) else rows_again(build, options, target, ids, loops, states)


def rows_again(
    make: Callable[[Options, Context], Any],
    options: Options,
    target: CausalLM,
    ids: Tensor,
    loops: Sequence[tuple[int, int]],
    reads: Callable[[Options, int], States] = lambda options, layers: LAST,
) -> Tensor:
    """[n, V] logits of a drafter over the target's states, read in one forward; see ``DrafterKind.again``.

    Args:
        make: builds the drafter, which has a method ``along``.
        reads: see ``DrafterKind.states``.
    """
    keeping = target.with_features(_FLAG, reads(options, target.layers))
    keeping.score(ids[:-1], last=1)
    hidden = StatesUpTo(keeping)
    vocab_size = target.vocab_size
    begun = loops[0][0]
    context = Context(keeping, None, SamplingParams(), target.device, vocab_size, hidden=hidden)
    drafter = make({**options, TREE: CHAIN}, context)
    logits = torch.zeros(len(ids) - begun, vocab_size, dtype=target.dtype, device=target.device)
    for start, count in loops:
        if count:
            hidden.length = start - 1
            logits[start - begun : start - begun + count] = drafter.along(ids, start, count)
    return logits
