"""Heads that were trained for the target and read its last hidden states: EAGLE and Medusa."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor

from spsbench.base.axes import CHAIN
from spsbench.base.errors import UsageError
from spsbench.base.paths import embedded_dir
from spsbench.base.plugins import Options
from spsbench.base.records import SamplingParams
from spsbench.decode import rows
from spsbench.decode.beam import Node, TreeModel
from spsbench.decode.protocols import read_prompt
from spsbench.decode.rejection import Draft
from spsbench.drafters.forced import StatesUpTo, by_chain, by_proposals, chain_rows
from spsbench.drafters.model import ModelDrafter
from spsbench.drafters.registry import TREE, Context
from spsbench.drafters.shape import Shape, shape_of
from spsbench.drafters.tree import ModelTreeDrafter
from spsbench.models.block_folders import load_block
from spsbench.models.causal_lm import LAST, CausalLM, HiddenStates, States, text_config
from spsbench.models.heads import HeadChain, Heads, PEagleChain, load_chain, load_heads
from spsbench.models.kinds import (
    AS_WRITTEN,
    BLOCKS,
    CONVENTIONS,
    DFLASH,
    EAGLE,
    EAGLE3,
    MEDUSA,
    MODEL,
    PEAGLE,
)
from spsbench.models.live_tree import Branches, LiveTree
from spsbench.models.reading import read_draft
from spsbench.models.source import ModelSource, embedding_of, fingerprint
from spsbench.models.trained import TrainedDraft

if TYPE_CHECKING:
    from spsbench.drafters.tree import Siblings

_NAME = "heads"
_FLAG = "--drafter"


class EagleModel:
    """An EAGLE head (Li et al. 2024) over its target, as a language model that drafts.

    Where the target has read a token its feature is the target's own; after that it is what the head
    predicted, one token at a time. To roll back is to forget every entry of the second kind: the tokens that
    stood are read again from the target's features. The first token of a sequence has no entry, since there
    is no feature before it.

    Args:
        chain: the head.
        hidden: the target's states; the caller has rolled the target back to what was decided.
        vocab_size: V.
        context_window: of the target, in tokens.
        device: where it is.
    """

    def __init__(
        self,
        chain: HeadChain,
        hidden: HiddenStates,
        vocab_size: int,
        context_window: int,
        device: torch.device,
    ) -> None:
        self.vocab_size = vocab_size
        self.context_window = context_window
        self._chain, self._hidden = chain, hidden
        self._read = 0
        self._true = 0  # how many of the chain's entries use the target's features
        self.device = device
        self._nothing = torch.zeros(1, vocab_size, device=device)
        self._dtype = torch.float32
        self._predicted = torch.empty(0)

    @property
    def length(self) -> int:
        """Number of tokens read."""
        return self._read

    def begin(self, prompt: Sequence[int]) -> Tensor:
        return read_prompt(self, prompt, self.device)

    def room_behind(self, prompt: Sequence[int]) -> int:
        return self.context_window - len(prompt)

    def score(self, tokens: Tensor, last: int) -> Tensor:
        """See ``LanguageModel.score``; ``last`` is 1, and the first token's row is all zeros."""
        assert last == 1
        new = tokens if self._read else tokens[1:]
        self._read += len(tokens)
        if not len(new):
            return self._nothing
        start = self._chain.length
        end = self._chain.length + len(new)
        is_predicted = self._hidden.length < end
        assert not is_predicted or len(new) == 1, "several tokens that the target has not read"
        if is_predicted:
            features = self._predicted
        else:
            read = self._hidden.features(start, end, self._chain.reads)
            features = self._chain.combined(read)
            self._true, self._dtype = end, read.dtype
        logits, self._predicted = self._chain.extend(new, features)
        return logits.to(self._dtype)

    def rollback(self, length: int) -> None:
        """Keep at most the first ``length`` tokens, and no entry over the head's own feature."""
        self._read = min(self._read, length, self._true + 1)
        self._true = max(0, min(self._true, self._read - 1))
        self._chain.rollback(self._true)

    def forward_bytes(self) -> int:
        """Bytes of weights that a forward reads."""
        return self._chain.forward_bytes()

    def predicted(self) -> Tensor:
        """[1, hidden] a copy of the feature that the last entry predicted."""
        return self._predicted.clone()

    def branch(self, nodes: Sequence[Node], features: Tensor, branches: Branches) -> tuple[Tensor, Tensor]:
        """See ``HeadChain.branch``: entries over the head's own features, until it is rolled back."""
        tokens = torch.tensor([node.token for node in nodes], device=self.device)
        logits, predicted = self._chain.branch(tokens, features, branches)
        return logits.to(self._dtype), predicted.clone()


class EagleTree:
    """An EAGLE head as a ``TreeModel``: what it has not read of its target, a node's parent predicts.

    Args:
        head: reads the pending token, the tree's root, with the target's features.
    """

    def __init__(self, head: EagleModel) -> None:
        self._head = head
        self._text: list[int] = []
        self._prompt = 0
        self._root: Node | None = None
        self._tree = LiveTree(0)
        self._predicted: dict[Node, Tensor] = {}

    def begin(self, prompt: Sequence[int]) -> None:
        self._text, self._prompt, self._root = list(prompt), len(prompt), None
        self._predicted = {}
        self._head.begin(prompt)

    def score(self, nodes: Sequence[Node]) -> Tensor:
        if not self._predicted:
            (self._root,) = nodes
            pending = torch.tensor(self._text[self._head.length :], device=self._head.device)
            logits = self._head.score(pending, last=1)
            self._predicted[self._root] = self._head.predicted()
            # An entry stands for the token after it: the first token has none.
            self._tree = LiveTree(self._prompt - 2, self._root.depth + 1)
            return logits
        fresh = self._tree.add(nodes)
        assert fresh == sorted(nodes, key=lambda node: node.depth), "a parent is scored before its children"
        above = torch.cat([self._predicted[node.parent] for node in fresh if node.parent is not None])
        logits, predicted = self._head.branch(fresh, above, self._tree.last(len(fresh)))
        self._predicted |= zip(fresh, torch.split(predicted, 1), strict=True)
        place = {node: index for index, node in enumerate(fresh)}
        return logits[[place[node] for node in nodes]]

    def keep(self, nodes: Sequence[Node]) -> None:
        (node,) = nodes
        self._text += _tokens_below(self._root, node)
        self._root, self._predicted = node, {}
        self._head.rollback(len(self._text) - 1)


def _tokens_below(root: Node | None, node: Node) -> list[int]:
    """Return the tokens of a node and of its ancestors below the root, first to last."""
    tokens: list[int] = []
    above: Node | None = node
    while above is not root and above is not None and above.parent is not None:
        tokens.append(above.token)
        above = above.parent
    return tokens[::-1]


class Ahead(Protocol):
    """What gives the rows of several places after a text at once: none depends on what another draws."""

    @property
    def count(self) -> int:
        """How many places at most; 0 for any number."""

    def begin(self) -> None:
        """Forget the last text."""
        ...

    def rows(self, ids: Sequence[int] | Tensor, start: int, places: int) -> Tensor:
        """[places, V] logits of the places from ids[start] on; of the ids those before it are read."""
        ...

    def forward_bytes(self) -> int:
        """Bytes of weights that a call reads, of however many places."""
        ...


class MedusaAhead:
    """Blockwise heads (Stern et al. 2018, Medusa, Cai et al. 2024) on the feature of the last token read."""

    def __init__(self, heads: Heads, hidden: HiddenStates) -> None:
        self._heads, self._hidden, self.count = heads, hidden, heads.count

    def begin(self) -> None:
        """Do nothing: the heads keep nothing from one loop to the next."""

    def rows(self, ids: Sequence[int] | Tensor, start: int, places: int) -> Tensor:
        feature = self._hidden.features(start - 2, start - 1)
        return self._heads(feature, places).to(feature.dtype)

    def forward_bytes(self) -> int:
        return self._heads.forward_bytes()


class PEagleAhead:
    """A P-EAGLE head: entries of all tokens that the target has read, and places after them."""

    count = 0

    def __init__(self, chain: PEagleChain, hidden: HiddenStates, device: torch.device) -> None:
        self._chain, self._hidden, self._device = chain, hidden, device

    def begin(self) -> None:
        self._chain.rollback(0)

    def rows(self, ids: Sequence[int] | Tensor, start: int, places: int) -> Tensor:
        # The last entry is read again where it is there: its row is wanted.
        self._chain.rollback(start - 2)
        first = self._chain.length
        new = torch.as_tensor(ids[first + 1 : start], device=self._device)
        features = self._hidden.features(first, start - 1, self._chain.reads)
        kept = self._chain.ahead(new, self._chain.combined(features), places)
        return kept.to(features.dtype)

    def forward_bytes(self) -> int:
        return self._chain.forward_bytes()


class AheadTree:
    """Places at once as a ``TreeModel``: all nodes of a depth have one row."""

    def __init__(self, ahead: Ahead, depth: int) -> None:
        self._ahead, self._depth = ahead, depth
        self._text: list[int] = []
        self._rows = torch.empty(0)
        self._root: Node | None = None

    def begin(self, prompt: Sequence[int]) -> None:
        self._ahead.begin()
        self._text, self._root = list(prompt), None

    def score(self, nodes: Sequence[Node]) -> Tensor:
        if self._root is None:
            (self._root,) = nodes
            depth = min(self._depth, self._ahead.count or self._depth)
            self._rows = self._ahead.rows(self._text, len(self._text), depth).clone()
        return self._rows[[node.depth - self._root.depth for node in nodes]]

    def keep(self, nodes: Sequence[Node]) -> None:
        (node,) = nodes
        self._text += _tokens_below(self._root, node)
        self._root = None


class HeadTreeDrafter(ModelTreeDrafter):
    """Drafts a tree from heads; none after a single token."""

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        return super().draft(tokens, k, u) if len(tokens) > 1 else _nothing(u)


class EagleDrafter(ModelDrafter):
    """Samples K tokens from an EAGLE head, one after the other; none after a single token."""

    model: EagleModel

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        return super().draft(tokens, k, u) if len(tokens) > 1 else _nothing(u)

    forced = by_chain

    def along(self, ids: Tensor, start: int, count: int) -> Tensor:
        """Yield [count, V] logits before tokens of a text, of a draft that began before ids[start]."""
        return torch.cat([row.clone() for row in chain_rows(self.model, ids, start, count)])

    def forward_bytes(self) -> int:
        """Bytes of weights that one forward for one token reads; a draft of K tokens takes K forwards."""
        return self.model.forward_bytes()


class AheadDrafter:
    """Samples up to K tokens at once, each from the row of its place and independent of the others.

    None after a single token, and no more than there are places.

    Args:
        ahead: gives the rows.
        sampling: of draft and target.
    """

    def __init__(self, ahead: Ahead, sampling: SamplingParams) -> None:
        self._ahead, self._sampling = ahead, sampling

    def begin(self, prompt: Sequence[int]) -> None:
        self._ahead.begin()

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        """Draft one token a place, each from its own row."""
        if len(tokens) < 2:
            return _nothing(u)
        places = min(k, self._ahead.count or k)
        own_rows = rows.warped(self._ahead.rows(tokens, len(tokens), places), self._sampling)
        return Draft(own_rows.draw(u[:places]), own_rows)

    def observe(self, tokens: Sequence[int], accepted: int) -> None:
        """Do nothing: what is kept is of decided tokens alone."""

    forced = by_proposals

    def along(self, ids: Tensor, start: int, count: int) -> Tensor:
        """See ``EagleDrafter.along``; the ids from ``start`` on are not read."""
        return self._ahead.rows(ids, start, count)

    def forward_bytes(self) -> int:
        """Bytes of weights that a draft reads, of however many tokens."""
        return self._ahead.forward_bytes()


def _nothing(u: Tensor) -> Draft:
    return Draft(torch.empty(0, dtype=torch.int64, device=u.device), None)


def _read_named_folder(options: Options) -> TrainedDraft:
    """Read the folder that was named; see its readers for further errors."""
    name = str(options["from"])
    folder = embedded_dir(name) or Path(name)
    draft = _read_once(folder, _stamp(folder))
    if draft.kind == MODEL:
        raise UsageError(
            f"{name} is a draft model, not a head.", flag=_FLAG, remedy=f"Give it as --draft {name}."
        )
    if draft.refused or draft.kind not in RUN:
        why = draft.refused or f"what runs here is {', '.join(RUN)}"
        raise UsageError(f"{name} is {draft.kind}: {why}.", flag=_FLAG, remedy="Choose another drafter.")
    asked = {name: str(options[name]) for name in CONVENTIONS if options.get(name, AS_WRITTEN) != AS_WRITTEN}
    return draft.read_as(_FLAG, **asked)


RUN = (EAGLE, EAGLE3, PEAGLE, MEDUSA, *sorted(BLOCKS))
"""Kinds that draft here."""


def _stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return what changes where a folder's files do."""
    if not folder.is_dir():
        return ()
    found = [(file, file.stat()) for file in sorted(folder.iterdir())]
    return tuple((file.name, told.st_mtime_ns, told.st_size) for file, told in found)


@lru_cache(maxsize=8)
def _read_once(folder: Path, stamp: tuple[tuple[str, int, int], ...]) -> TrainedDraft:
    """Read a folder, whose options are asked for many times in a run."""
    return read_draft(folder, _FLAG)


def states(options: Options, layers: int) -> States:
    """See ``DrafterKind.states``."""
    return _read_named_folder(options).states_of(layers)


def unsettled(options: Options) -> Options:
    """See ``DrafterKind.unsettled``: conventions that neither the folder nor who wrote it settles."""
    return {each.name: each.value for each in _read_named_folder(options).conventions if not each.certain}


def content(options: Options) -> str:
    return fingerprint(str(_read_named_folder(options).folder))


def suits(options: Options, target: ModelSource) -> None:
    config = text_config(target.config)
    draft = _read_named_folder(options)
    embedding = (
        embedding_of(target, "--target") or draft.target.embedding
    )  # otherwise it is checked at loading
    draft.require_target(config.hidden_size, config.vocab_size, embedding, _FLAG)
    draft.require_layers(config.num_hidden_layers, _FLAG)


def build(options: Options, context: Context) -> EagleDrafter | AheadDrafter | HeadTreeDrafter:
    """Build the drafter of a trained draft's folder, for chains or trees."""
    target = context.target
    hidden = context.hidden
    draft = _read_named_folder(options)
    if hidden is None or not isinstance(target, CausalLM):
        raise UsageError(
            f"{_NAME} reads hidden states, and here the target keeps none.",
            flag=_FLAG,
            remedy="It takes a loaded model, in a run.",
        )
    bits = int(options["bits"])
    shape = shape_of(str(options[TREE]), "--tree")
    if draft.kind in BLOCKS and bits:
        why = f"bits={bits} rounds eagle and medusa heads of spsbench distill; this is {draft.kind}."
        raise UsageError(why, flag=_FLAG, remedy="Leave it out.")
    if draft.kind in BLOCKS and draft.kind != DFLASH:
        from spsbench.drafters.blocks import path_drafter

        return path_drafter(draft, hidden, context, target, shape)
    if draft.kind in (MEDUSA, PEAGLE, DFLASH):
        ahead: Ahead
        if draft.kind == DFLASH:
            from spsbench.drafters.blocks import BlockAhead

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
            raise UsageError(
                f"{draft.folder} drafts {ahead.count} tokens, and the tree is {depth} deep.",
                flag="--tree",
                remedy=f"Give a depth of at most {ahead.count}.",
            )
        return tree_drafter(AheadTree(ahead, depth), shape, options, context)
    chain = load_chain(draft, target, bits, _FLAG)
    model = EagleModel(chain, hidden, context.vocab_size, target.context_window, context.device)
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
