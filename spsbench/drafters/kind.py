"""A way of drafting: what it is called, what it takes, and how it is built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spsbench.errors import UsageError
from spsbench.plugins import Check, Options, settled
from spsbench.records import OptionValue, SamplingParams, Spec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from spsbench.decode.protocols import Drafter, LanguageModel
    from spsbench.drafters.policy import Policy
    from spsbench.models.causal_lm import CausalLM, HiddenStates
    from spsbench.models.source import ModelSource

DRAFT, WEIGHTS, HIDDEN = "draft", "weights", "hidden"
"""What a drafter may need; see ``DrafterKind.needs``."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a drafter may be built from.

    Attributes:
        target: the target, whose memory is its own.
        draft: the pair's draft model; None where the run has none.
        sampling: of target and draft.
        device: where the models are.
        vocab_size: V; a proposed token is below it, a row is V wide.
        corpus: token ids of the run's prompts, for drafters that count.
        policy: how many tokens a loop drafts, up to K; None for K always.
        hidden: the last hidden states of what the loop's target has cached; None unless the kind needs them.
    """

    target: LanguageModel
    draft: LanguageModel | None
    sampling: SamplingParams
    device: torch.device
    vocab_size: int
    corpus: Callable[[], Sequence[Sequence[int]]] = field(default=tuple)
    policy: Policy | None = None
    hidden: HiddenStates | None = None


@dataclass(frozen=True, slots=True)
class DrafterKind:
    """A drafter by name.

    Attributes:
        name: as typed.
        summary: one sentence on what it does, for lists.
        build: makes one from all options and the context.
        options: their names and defaults; a value given must be of the default's type.
        needs: what it is built from: ``draft``, the pair's draft model; ``weights``, the target's layers, so
            that the target must be a loaded model and not a table; ``hidden``, ``Context.hidden``.
        needs_by: the same by its options; None where they change nothing.
        point_mass: whether it is certain of each token (``Draft.probs`` is None), so that no row is drawn.
        adaptive: whether it heeds ``Context.policy``; one that does not has no arm under a policy.
        content: a hash of the files that options name, or a typed error that refuses them before anything is
            loaded; None where they name none. Runs are continued with the same content alone.
        suits: refuses a target that it was not made for, before its weights are loaded; None if any will do.
        forwards: how many forwards of the draft model a loop costs, as a function of K; none by default.
        remembers: whether, by its options, what it proposes depends on earlier sequences: tokens are then
            those of one order of prompts, which several workers do not keep. By default it does not.
        check: what the values of the options must be.
        again: [n, V] its logits over an output by an independent forward, from the options, the target, the
            ids of prompt and output, and per loop where in the ids it began and how many places of its
            drafted tokens are in the output. None where there is none: the rows that it showed must do.
    """

    name: str
    summary: str
    build: Callable[[Options, Context], Drafter]
    options: Options = field(default_factory=dict)
    needs: frozenset[str] = frozenset()
    needs_by: Callable[[Options], frozenset[str]] | None = None
    point_mass: bool = False
    adaptive: bool = False
    content: Callable[[Options], str | None] | None = None
    suits: Callable[[Options, ModelSource], None] | None = None
    forwards: Callable[[int], int] = lambda k: 0
    remembers: Callable[[Options], bool] = lambda options: False
    check: Check | None = None
    again: Callable[[Options, CausalLM, Tensor, Sequence[tuple[int, int]]], Tensor | None] | None = None

    def settled(self, spec: Spec, flag: str = "--drafter") -> dict[str, OptionValue]:
        """Every option, as given or by default; see ``plugins.settled`` and ``content``."""
        options = settled(self.name, self.options, spec, flag, self.check)
        if self.content is not None:
            self.content(options)
        return options

    def needs_of(self, spec: Spec) -> frozenset[str]:
        """What it needs with a spec's options; see ``needs``."""
        return self.needs if self.needs_by is None else self.needs_by(self._options(spec))

    def content_of(self, spec: Spec) -> str | None:
        """See ``content``."""
        return None if self.content is None else self.content(self._options(spec))

    def read_again(
        self, spec: Spec, target: CausalLM, ids: Tensor, loops: Sequence[tuple[int, int]]
    ) -> Tensor | None:
        """See ``again``; None without one."""
        return None if self.again is None else self.again(self._options(spec), target, ids, loops)

    def outlives(self, spec: Spec) -> bool:
        """See ``remembers``."""
        return self.remembers(self._options(spec))

    def require_target(self, spec: Spec, target: ModelSource) -> None:
        """Refuse a target that the drafter does not suit (``suits``), before a weight is loaded.

        Raises:
            UsageError: so does one that reads its target's weights or states, of an encoder-decoder.
        """
        if target.is_encoder_decoder and self.needs_of(spec) & {WEIGHTS, HIDDEN}:
            raise UsageError(
                f"{self.name} reads the layers of a decoder alone; {target.name} is an encoder-decoder.",
                flag="--drafter",
                remedy="Draft with a model, lookup, suffix or ngram.",
            )
        if self.suits is not None:
            self.suits(self._options(spec), target)

    def _options(self, spec: Spec) -> dict[str, OptionValue]:
        """Of a spec that was checked before."""
        return settled(self.name, self.options, spec, "")
