"""What tests of other people's drafters, rules and policies import.

>>> from spsbench.testing import assert_lossless
>>> from mydrafter import KIND
>>> assert_lossless(KIND)
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product

import torch
from torch import Tensor

from spsbench.base.axes import FIXED, MODEL, MODIFIED_REJECTION
from spsbench.base.records import SamplingParams, Spec
from spsbench.decode.clock import FakeClock
from spsbench.decode.protocols import Drafter, LanguageModel
from spsbench.decode.rejection import Accept
from spsbench.drafters.registry import (
    HIDDEN,
    TREE,
    WEIGHTS,
    Context,
    DrafterKind,
    RuleKind,
    build_policy,
    built,
    drafter_kind,
    rule_kind,
    shape_in,
    siblings_of,
)
from spsbench.drafters.shape import Shape
from spsbench.engines.local import EagerEngine, Engine
from spsbench.law.enumeration import (
    EXACT,
    Difference,
    Law,
    RowFunction,
    Scene,
    TableModel,
    TableTree,
    law_of_loop,
    paths,
    random_rows,
    worst_difference,
)
from spsbench.models.causal_lm import LAST, CausalLM, HiddenStates, States, columns_of
from spsbench.models.checkpoint import LoadedWeights
from spsbench.models.live_tree import Branches
from spsbench.models.onnx_lm import OnnxLM
from spsbench.models.torch_lm import TorchLM

__all__ = [
    "EXACT",
    "Difference",
    "FakeClock",
    "Law",
    "Letters",
    "Scene",
    "TableModel",
    "assert_lossless",
    "fake_engine",
    "law_of_loop",
    "paths",
    "random_rows",
    "scenes",
    "worst_difference",
]

SAMPLINGS = (SamplingParams(), SamplingParams(temperature=0.8, top_p=0.8), SamplingParams(greedy=True))

Factory = Callable[[Context], Drafter]

_SHARPNESS = 1.5

SMALL_LAYERS = 2
"""Of the target that drafters take layers or states from where the law is a table."""
# A prompt and how many loops come before the one under test. A copy finds nothing in the first one,
# K tokens in the second, and fewer after a loop of the third.
_SITUATIONS: tuple[tuple[tuple[int, ...], int], ...] = (
    ((0,), 0),
    ((0, 1, 2, 2, 1, 0, 0, 1, 2), 0),
    ((2, 0, 1, 2, 0), 1),
)


def assert_lossless(
    drafter: str | DrafterKind | Factory = MODEL,
    *,
    rule: str | RuleKind | Accept = MODIFIED_REJECTION,
    policy: str = FIXED,
    vocab_size: int = 4,
    ks: Sequence[int] = (1, 2, 3),
    samplings: Sequence[SamplingParams] = SAMPLINGS,
) -> None:
    """Prove by enumeration that a loop with this drafter and rule keeps the target's law.

    Target and draft are tables of random rows. Each loop is the production one; see ``enumeration``. Also
    tested are a loop that comes after another one, and a prompt that repeats itself. Drafts may be trees:
    those of ``model:tree=2-1:siblings=top``, of a small shape, and those of any drafter that proposes some.

    Args:
        drafter: one by name, with options if need be (``lookup:max_n=2``), a kind with its default options,
            or what builds a drafter from a context.
        rule: one by name, with options if need be (``lenience:l=0.5``), a kind, or what it accepts by.
        policy: one by name; without effect on a drafter that heeds none.
        vocab_size: V; at 4 and K = 3 there are 64 drafts.
        ks: every lookahead to prove; of trees the most nodes. A shape has its own.
        samplings: of target and draft.

    Raises:
        AssertionError: a probability is off by ``EXACT`` or more, with the worst one and where it was met; or
            what is proposed does not follow from the numbers that the drafter is given.
        UsageError: a name is unknown, an option is wrong, or a rule for chains gets trees.
        DrafterFault: the drafter broke its contract.
    """
    kind, accept = _judge(rule)
    for scene in scenes(drafter, accept, vocab_size, ks, samplings, policy):
        if scene.depth is not None and kind is not None:
            kind.require_tree(
                siblings_of(spec) if shape_in(spec := _name_and_options(drafter)) else "independent"
            )
        worst = worst_difference(scene)
        if not worst.is_none:
            raise AssertionError(described(worst, scene))


def scenes(
    drafter: str | DrafterKind | Factory,
    accept: Accept,
    vocab_size: int,
    ks: Sequence[int],
    samplings: Sequence[SamplingParams],
    policy: str = FIXED,
) -> Iterator[Scene]:
    """Yield everything that ``assert_lossless`` enumerates; see there for the arguments.

    Args:
        accept: the rule.
    """
    make, needs = _factory_and_needs(drafter)
    shape = shape_in(_name_and_options(drafter))
    # (the most tokens of a draft, the most that stand of a tree)
    sizes = [(k, k) for k in ks] if shape is None else sorted({(shape.nodes, shape.depth(k)) for k in ks})
    for sampling, (k, most) in product(samplings, sizes):
        target = _target_of_scene(vocab_size, needs)
        build: Callable[[], Drafter] = partial(_build_drafter, make, target, sampling, policy, needs, most)
        if WEIGHTS in needs:
            build = cache(build)  # cutting and rounding take long; ``begin`` forgets the last sequence
        for prompt, earlier in _SITUATIONS:
            prompt_ids = tuple(token % vocab_size for token in prompt)
            generator = torch.Generator().manual_seed(k)
            numbers = torch.rand(earlier, 2 * k + 1, generator=generator, dtype=torch.float64).tolist()
            before = tuple(map(tuple, numbers))
            depth = most if shape is not None or _proposes_trees(target, build(), prompt_ids, k) else None
            yield Scene(target, build, accept, prompt_ids, k, sampling, before, depth)


class Letters:
    """A tokenizer whose token i is the i-th character of an alphabet; the last token is EOS."""

    def __init__(self, alphabet: str) -> None:
        self.alphabet = alphabet
        self.eos_ids = frozenset({len(alphabet)})

    def decode(self, ids: Sequence[int]) -> str:
        """The characters of the ids, EOS left out."""
        return "".join(self.alphabet[i] for i in ids if i < len(self.alphabet))


def fake_engine(
    k: int, drafter: str | DrafterKind = "model", *, vocab_size: int = 4, tick_s: float = 0.001
) -> Engine:
    """An engine in which only the models and the clock are fakes: the production's loops over tables.

    The same request gives the same generation everywhere, times included. Its last token is EOS; requests
    with ``fixed_length`` go on after it.

    Args:
        k: lookahead; 0 for ArS.
        drafter: one by name, with options if need be, or a kind with its default options.
        vocab_size: V.
        tick_s: seconds that pass at every look at the clock.
    """
    make, needs = _factory_and_needs(drafter)
    decoder = Letters(string.ascii_letters[: vocab_size - 1])
    clock = FakeClock(tick_s)
    target = _target_of_scene(vocab_size, needs)
    build = partial(_build_drafter, make, target, policy=FIXED, needs=needs, k=k) if k else None
    return EagerEngine(target, None, k, decoder, torch.device("cpu"), clock, make_drafter=build)


def context_of(
    vocab_size: int,
    sampling: SamplingParams,
    policy: str = FIXED,
    *,
    needs: frozenset[str] = frozenset(),
    hidden: HiddenStates | None = None,
    k: int = 0,
) -> Context:
    """Return what a drafter may be built from: tables, and a corpus in which some tokens follow others often.

    Args:
        vocab_size: V.
        sampling: of target and draft.
        policy: by name.
        needs: of the drafter; with ``weights`` a small model stands in place of the target's table.
        hidden: the states of what the loop's target has read, if it has any.
        k: lookahead.
    """
    table = partial(TableModel, vocab_size=vocab_size)
    target: LanguageModel = table(random_rows(vocab_size, seed=1, sharpness=_SHARPNESS))
    return Context(
        target=_small_model(vocab_size) if WEIGHTS in needs else target,
        draft=table(random_rows(vocab_size, seed=2, sharpness=_SHARPNESS)),
        sampling=sampling,
        device=torch.device("cpu"),
        vocab_size=vocab_size,
        corpus=lambda: tuple(tuple((i * step) % vocab_size for i in range(12)) for step in (1, 2, 3)),
        policy=None if policy == FIXED else build_policy(Spec.parse(policy)),
        hidden=hidden,
        k=k,
        trees=TableTree,
    )


def described(worst: Difference, scene: Scene) -> str:
    """Return where a law is farthest from the target's, and by how much."""
    return (
        f"Behind {worst.context} the loop emits {worst.tokens} with probability {worst.law:.15g}, the target "
        f"with {worst.target:.15g}: a difference of {worst.size:.3g}, a total variation of "
        f"{worst.variation:.3g} (K = {scene.k}, {scene.sampling})."
    )


def _judge(rule: str | RuleKind | Accept) -> tuple[RuleKind | None, Accept]:
    if not isinstance(rule, (str, RuleKind)):
        return None, rule
    spec = Spec.parse(rule) if isinstance(rule, str) else Spec(rule.name)
    kind = rule_kind(spec.name) if isinstance(rule, str) else rule
    return kind, kind.build(kind.settled(spec)).accept


def _proposes_trees(target: TableModel, drafter: Drafter, prompt: Sequence[int], k: int) -> bool:
    """After a prompt, for a few of its numbers."""
    target.begin(prompt)
    for u in (0.01, 0.5, 0.99):
        drafter.begin(prompt)
        if drafter.draft(list(prompt), k, torch.full((k,), u, dtype=torch.float64)).parents is not None:
            return True
    return False


def small_tree(drafter: Spec) -> Spec:
    """Return a drafter with a tree small enough to enumerate; one that proposes chains as it is.

    Of a static tree two siblings with a child each remain, or one with at most two; of a dynamic one 3 nodes.
    """
    shape = shape_in(drafter)
    if shape is None:
        return drafter
    if shape.dynamic:
        small = Shape(dynamic=3)
    else:
        siblings = min(shape.branching[0], 2)
        small = Shape((siblings, *(min(children, 3 - siblings) for children in shape.branching[1:2])))
    options = dict(drafter.options) | {TREE: str(small)}
    return replace(drafter, options=tuple(options.items()))


def _name_and_options(drafter: str | DrafterKind | Factory) -> Spec:
    """For what builds a drafter, none."""
    return Spec.parse(drafter) if isinstance(drafter, str) else Spec("")


def _factory_and_needs(drafter: str | DrafterKind | Factory) -> tuple[Factory, frozenset[str]]:
    if not isinstance(drafter, (str, DrafterKind)):
        return drafter, frozenset()
    spec = Spec.parse(drafter) if isinstance(drafter, str) else Spec(drafter.name)
    kind = drafter_kind(spec.name) if isinstance(drafter, str) else drafter
    return partial(built, kind, spec), kind.needs_of(spec)


def _build_drafter(
    make: Factory, target: TableModel, sampling: SamplingParams, policy: str, needs: frozenset[str], k: int
) -> Drafter:
    """It remembers nothing of an earlier one: its tables and its policy are new, too."""
    hidden = target if isinstance(target, TableWithStates) else None
    return make(context_of(target.vocab_size, sampling, policy, needs=needs, hidden=hidden, k=k))


def _target_of_scene(vocab_size: int, needs: frozenset[str]) -> TableModel:
    rows = random_rows(vocab_size, seed=1, sharpness=_SHARPNESS)
    kind = TableWithStates if HIDDEN in needs else TableModel
    return kind(rows, vocab_size)


ALL_STATES: States = (*LAST, *range(SMALL_LAYERS + 1))
"""What ``TableWithStates`` shows."""


class TableWithStates(TableModel):
    """A table that shows hidden states: those of a small model after the same tokens.

    Whatever they are, a drafter that reads them must keep the table's law; they depend on the tokens read.
    """

    def __init__(self, rows: RowFunction, vocab_size: int) -> None:
        super().__init__(rows, vocab_size)
        self._model = _small_model(vocab_size).with_features("--drafter", ALL_STATES)
        self._states: dict[tuple[int, ...], Tensor] = {}

    def features(self, start: int, end: int, states: States = LAST) -> Tensor:
        """See ``HiddenStates.features``; in float64, as the rows are."""
        rows = torch.cat([self._state(tuple(self._fed[: i + 1])) for i in range(start, end)])
        return columns_of(ALL_STATES, states, rows)

    def _state(self, context: tuple[int, ...]) -> Tensor:
        if context not in self._states:
            self._model.score(self._model.begin(context), last=1)
            self._states[context] = self._model.features(len(context) - 1, len(context), ALL_STATES).clone()
        return self._states[context]


@cache
def _small_model(vocab_size: int) -> CausalLM:
    """Of two random layers; shared, as a drafter that takes its layers has its own cache."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=SMALL_LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
    return _WideLM(config, LoadedWeights(model), vocab_size, 1, lambda: TorchLM(model))


class _WideLM(OnnxLM):
    """Its rows in float64, so that an enumeration adds up to rounding of that size."""

    def score(self, tokens: Tensor, last: int, branches: Branches | None = None) -> Tensor:
        return super().score(tokens, last, branches).double()

    def features(self, start: int, end: int, states: States = LAST) -> Tensor:
        return super().features(start, end, states).double()
