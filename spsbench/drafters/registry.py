"""Drafters, rules and policies by name, with their options. The code is imported when one is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, ClassVar, Protocol

from spsbench.base.axes import CHAIN, K_SEQ, RECURSIVE
from spsbench.base.errors import SpsbenchError, UsageError
from spsbench.base.plugins import Check, OptionedKind, Options, Registry, deferred, one_of, settled, within
from spsbench.base.records import OptionValue, SamplingParams, Spec
from spsbench.drafters.shape import Shape, shape_of
from spsbench.models.kinds import AS_WRITTEN, BONUS, CONVENTIONS, OF_HEADS

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from spsbench.decode.beam import TreeModel
    from spsbench.decode.protocols import Drafter, LanguageModel
    from spsbench.decode.rules import Rule
    from spsbench.models.causal_lm import CausalLM, HiddenStates, States
    from spsbench.models.source import ModelSource


@dataclass(frozen=True, slots=True)
class RuleKind(OptionedKind):
    """A rule by name.

    Attributes:
        lossless: whether the output keeps the target's law. A lossy rule is called so wherever it shows.
        trees: whether it judges drafts that are trees (``Draft.parents``).
    """

    FLAG: ClassVar[str] = "--rule"

    lossless: bool
    build: Callable[[Options], Rule]
    options: Options = field(default_factory=dict)
    check: Check | None = None
    trees: bool = False

    def require_tree(self, siblings: str = "independent") -> None:
        """Refuse drafts that are trees if this rule judges only chains.

        Args:
            siblings: how a tree's siblings are chosen; see ``drafters.tree``.

        Raises:
            UsageError: the rule judges only chains, or siblings that are chosen otherwise.
        """
        if not self.trees:
            others = ", ".join(name for name, kind in RULES.items() if kind.trees)
            why = f"{self.name} judges chains, and the drafts are trees."
            remedy = f"Choose {others}; a rule from a file that judges trees declares trees=True."
            raise UsageError(why, flag=self.FLAG, remedy=remedy)
        if self.name == K_SEQ and siblings != "independent":
            why = f"{K_SEQ} tests siblings by one law, and they are chosen {siblings}."
            remedy = f"Draw siblings independently, or choose {RECURSIVE}."
            raise UsageError(why, flag=self.FLAG, remedy=remedy)


RULES = Registry(
    RuleKind,
    "spsbench.rules",
    RuleKind.FLAG,
    (
        RuleKind(
            "modified-rejection",
            "Accept with probability min(1, target/draft), else draw from the residual (Chen et al. 2023).",
            lossless=True,
            build=deferred("spsbench.decode.rules:modified_rejection"),
        ),
        RuleKind(
            "sample-and-compare",
            "Draw the target's own token; the draft's stands if it is the same (llama.cpp, prompt lookup).",
            lossless=True,
            build=deferred("spsbench.decode.rules:sample_and_compare"),
            trees=True,
        ),
        RuleKind(
            "block",
            "The longest prefix whose test passes stands: the most that a chain can give (Sun et al. 2024).",
            lossless=True,
            build=deferred("spsbench.decode.rules:block"),
        ),
        RuleKind(
            "traversal",
            "Block verification of a tree, from its leaves up (Weng et al. 2025).",
            lossless=True,
            build=deferred("spsbench.decode.rules:block"),
            trees=True,
        ),
        RuleKind(
            RECURSIVE,
            "Each sibling by what those before it left of the target's row (SpecInfer, Sequoia).",
            lossless=True,
            build=deferred("spsbench.decode.rules:recursive_rejection"),
            trees=True,
        ),
        RuleKind(
            "one-hot",
            "Accept a sibling with the target's probability of it, else take it off the row (EAGLE).",
            lossless=True,
            build=deferred("spsbench.decode.rules:one_hot"),
            trees=True,
        ),
        RuleKind(
            K_SEQ,
            "One test for all siblings of a place, drawn independently (SpecTr, Sun et al. 2023).",
            lossless=True,
            build=deferred("spsbench.decode.rules:k_seq"),
            trees=True,
        ),
        RuleKind(
            "lenience",
            "Accept with probability min(1, target/(l draft)): faster, not the target's law "
            "(Leviathan et al. 2022, A.5).",
            lossless=False,
            build=deferred("spsbench.decode.rules:lenience"),
            options={"l": 0.9},
            check=within("lenience", 0, 1, "l", above=True),
        ),
        RuleKind(
            "typical-acceptance",
            "Accept what the target finds likely enough for its entropy: not the target's law "
            "(Medusa, Cai et al. 2024).",
            lossless=False,
            build=deferred("spsbench.decode.rules:typical_acceptance"),
            options={"epsilon": 0.3, "delta": 0.09},
            check=within("typical-acceptance", 0, 1, "epsilon", "delta", above=True),
        ),
        RuleKind(
            "ensemble",
            "Verify against w target + (1 - w) draft: not the target's law "
            "(transformers' assistant_ensemble_weight).",
            lossless=False,
            build=deferred("spsbench.decode.rules:ensemble"),
            options={"w": 0.5},
            check=within("ensemble", 0, 1, "w", above=True),
        ),
        RuleKind(
            "regret",
            "Greedy, but a loop may fall b nats behind the best tokens: not the target's law.",
            lossless=False,
            build=deferred("spsbench.decode.rules:regret"),
            options={"b": 2.0},
            check=within("regret", 0, inf, "b"),
        ),
    ),
)
rule_kind = RULES.find


def is_derivable(rule: str) -> bool:
    """Whether the decisions of a rule are derived again after each sequence: those of our lossless ones."""
    kind = RULES.get(rule)
    return kind is not None and kind.lossless


def build_rule(spec: Spec) -> Rule:
    kind = rule_kind(spec.name)
    return kind.build(kind.settled(spec))


Margin = Callable[["Tensor", "Tensor"], "Tensor"]
"""From warped draft rows [n, V] and the tokens drawn from them [n], [n] numbers: below 0 the draft ends
after its token. A function of its arguments alone, row by row, so that the decision can be made again."""


class Policy(Protocol):
    """Decides how many tokens a loop drafts.

    It sees the rows and tokens drafted so far in this loop, and how many stood in past loops: never the
    target's rows, never a number that is yet to be drawn with. It ends a draft after a token, which
    stays: ``drafters.policy`` says why a withdrawn token would bias.
    """

    @property
    def margin(self) -> Margin | None:
        """Return how a token is compared with the policy's threshold.

        None where ``lookahead`` decides alone, so that the host never waits.
        """
        ...

    def begin(self) -> None:
        """Begin a new sequence: forget the verdicts on the last one."""
        ...

    def lookahead(self, k: int) -> int:
        """Return how many tokens the next loop drafts at most, 1 to k; called once a loop."""
        ...

    def observe(self, drafted: int, accepted: int) -> None:
        """End a loop that drafted; ``accepted`` of its tokens stood."""
        ...


@dataclass(frozen=True, slots=True)
class PolicyKind(OptionedKind):
    """A policy by name; each drafter has its own."""

    FLAG: ClassVar[str] = "--policy"

    build: Callable[[Options], Policy]
    options: Options = field(default_factory=dict)
    check: Check | None = None


POLICIES = Registry(
    PolicyKind,
    "spsbench.policies",
    PolicyKind.FLAG,
    (
        PolicyKind(
            "fixed",
            "K tokens in every loop (Chen et al. 2023).",
            deferred("spsbench.drafters.policy:Fixed", spread=True),
        ),
        PolicyKind(
            "stop-below",
            "Ends the draft after a token to which the draft gave a probability below tau.",
            deferred("spsbench.drafters.policy:StopBelow", spread=True),
            {"tau": 0.4},
            within("stop-below", 0, 1, "tau"),
        ),
        PolicyKind(
            "entropy",
            "Ends the draft after a token whose draft row had an entropy above h nats.",
            deferred("spsbench.drafters.policy:Entropy", spread=True),
            {"h": 2.0},
            within("entropy", 0, inf, "h"),
        ),
        PolicyKind(
            "momentum",
            "Two tokens more after a loop in which all were accepted, else one less "
            "(transformers' heuristic).",
            deferred("spsbench.drafters.policy:Momentum", spread=True),
        ),
    ),
)
policy_kind = POLICIES.find


def build_policy(spec: Spec) -> Policy:
    kind = policy_kind(spec.name)
    return kind.build(kind.settled(spec))


TREE = "tree"
"""The option of drafters whose drafts may be trees: see ``shape.shape_of``."""

SIBLINGS = ("without", "independent", "top")
"""How a tree's siblings come from a draft's row: see ``drafters.tree``."""

_COPIED: Options = {TREE: CHAIN}
_DRAWN: Options = {TREE: CHAIN, "siblings": SIBLINGS[0]}

PROCESSED = "processed"
"""Whether the draft model's rows have the penalties, bans and grammar of the target's."""


def siblings_of(spec: Spec) -> str:
    """Return how the siblings of a drafter's trees come about, one of ``SIBLINGS``."""
    kind = drafter_kind(spec.name)
    shape = shape_in(spec)
    settings = kind.settled(spec)
    certain = kind.point_mass or "siblings" not in settings or (shape is not None and shape.dynamic > 0)
    return SIBLINGS[-1] if certain else str(settings["siblings"])


def shape_in(spec: Spec) -> Shape | None:
    """Return the shape of a drafter's trees; None where it drafts chains."""
    return shape_of(str(dict(spec.options).get(TREE, CHAIN)), "--tree")


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
        k: lookahead, the most that stands of a draft; 0 where none is known.
        trees: how a model scores trees; None for how a loaded one does.
    """

    target: LanguageModel
    draft: LanguageModel | None
    sampling: SamplingParams
    device: torch.device
    vocab_size: int
    corpus: Callable[[], Sequence[Sequence[int]]] = field(default=tuple)
    policy: Policy | None = None
    hidden: HiddenStates | None = None
    k: int = 0
    trees: Callable[[LanguageModel], TreeModel] | None = None


@dataclass(frozen=True, slots=True)
class DrafterKind(OptionedKind):
    """A drafter by name.

    Attributes:
        build: makes one from all options and the context.
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
        rounds: whether, by its options, it rounds weights, which ONNX Runtime alone does and to float32 ones.
        again: [n, V] its logits over an output by an independent forward, from the options, the target, the
            ids of prompt and output, and per loop where in the ids it began and how many places of its
            drafted tokens are in the output. None where there is none: the rows that it showed must do.
        states: which of the target's hidden states it reads, by its options and the number of the target's
            layers; what the head multiplies, by default. Of one that needs none it is not asked.
        unsettled: by its options, those that are not given and not certain, with what they are taken to be;
            every name of the drafter then says them.
    """

    FLAG: ClassVar[str] = "--drafter"

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
    rounds: Callable[[Options], bool] = lambda options: False
    again: Callable[[Options, CausalLM, Tensor, Sequence[tuple[int, int]]], Tensor | None] | None = None
    states: Callable[[Options, int], States] | None = None
    unsettled: Callable[[Options], Options] | None = None

    def settled(self, spec: Spec, flag: str | None = None) -> dict[str, OptionValue]:
        """Return every option, as given or by default; see ``OptionedKind.settled`` and ``content``."""
        options = OptionedKind.settled(self, spec, flag)
        if TREE in options:
            shape_of(str(options[TREE]), flag or self.FLAG)
        one_of(self.name, "siblings", *SIBLINGS)({"siblings": SIBLINGS[0], **options}, flag or self.FLAG)
        if self.content is not None:
            self.content(options)
        return options

    def needs_of(self, spec: Spec) -> frozenset[str]:
        return self.needs if self.needs_by is None else self.needs_by(self._unchecked_options(spec))

    def content_of(self, spec: Spec) -> str | None:
        return None if self.content is None else self.content(self._unchecked_options(spec))

    def read_again(
        self, spec: Spec, target: CausalLM, ids: Tensor, loops: Sequence[tuple[int, int]]
    ) -> Tensor | None:
        """Return an independent forward's logits; see ``again``; None without one."""
        return None if self.again is None else self.again(self._unchecked_options(spec), target, ids, loops)

    def states_of(self, spec: Spec, layers: int) -> States:
        """Return which hidden states of a target it reads, none where it needs none; see ``states``."""
        from spsbench.models.causal_lm import LAST

        if HIDDEN not in self.needs_of(spec):
            return ()
        return LAST if self.states is None else self.states(self._unchecked_options(spec), layers)

    def spelled(self, spec: Spec) -> Spec:
        """Return a spec with the options that are not certain; see ``unsettled``."""
        taken = {} if self.unsettled is None else self.unsettled(self._unchecked_options(spec))
        return (
            replace(spec, options=tuple(sorted({**taken, **dict(spec.options)}.items()))) if taken else spec
        )

    def outlives(self, spec: Spec) -> bool:
        return self.remembers(self._unchecked_options(spec))

    def require_target(self, spec: Spec, target: ModelSource) -> None:
        """Refuse a target that the drafter does not suit (``suits``), before a weight is loaded.

        Raises:
            UsageError: it does not suit, or reads weights or states of a target that is an encoder-decoder.
        """
        if target.is_encoder_decoder and shape_in(spec) is not None:
            why = f"{target.name} is an encoder-decoder, which scores chains."
            raise UsageError(why, flag="--tree", remedy="Leave --tree out.")
        if target.is_encoder_decoder and self.needs_of(spec) & {WEIGHTS, HIDDEN}:
            why = f"{self.name} reads the layers of a decoder alone; {target.name} is an encoder-decoder."
            raise UsageError(why, flag=self.FLAG, remedy="Draft with a model, lookup, suffix or ngram.")
        if self.suits is not None:
            self.suits(self._unchecked_options(spec), target)

    def require_backend(self, spec: Spec, backend: str, dtype: str) -> None:
        """Refuse a target's backend or weights that the drafter cannot work with, before a weight is loaded.

        Raises:
            UsageError: it rounds weights, and they are torch's or rounded already.
        """
        from spsbench.config.models import ONNXRUNTIME, Precision

        if not self.rounds(self._unchecked_options(spec)):
            return
        if backend != ONNXRUNTIME:
            why = f"{spec} rounds weights over onnxruntime; the target runs over {backend} in {dtype}."
            whole = Spec(spec.name, tuple(option for option in spec.options if option[0] != "bits"))
            rounds_anyway = self.rounds(self._unchecked_options(whole))
            instead = "Choose another drafter" if rounds_anyway else f"Give --drafter {whole}"
            remedy = f"{instead}, or --dtype float32 on a CPU with a target that onnxruntime covers."
            raise UsageError(why, flag=self.FLAG, remedy=remedy)
        if self.name == "quantised" and Precision(dtype).quantise is not None:
            why = f"{spec} rounds weights, and the target's are {dtype} already."
            raise UsageError(why, flag=self.FLAG, remedy="Choose another drafter, or --dtype float32.")

    def _unchecked_options(self, spec: Spec) -> dict[str, OptionValue]:
        return settled(self.name, self.options, spec, self.FLAG)


UNION = "union"

SHIPPED = "embedded:smollm2/head"
"""The head that is used unless another is named: for the target of the pair smollm2."""


def _lengths(options: Options, flag: str) -> None:
    max_n, min_n = int(options["max_n"]), int(options["min_n"])
    if not 1 <= min_n <= max_n:
        remedy = "Give min_n of at least 1 and max_n of at least min_n, e.g. lookup:max_n=3:min_n=1."
        raise UsageError(f"lookup:max_n={max_n}:min_n={min_n} is not valid.", flag=flag, remedy=remedy)


def _ngram(order: int) -> Callable[[Options, Context], Drafter]:
    build = deferred("spsbench.drafters.ngram:build")
    return lambda options, context: build({"order": order, **options}, context)


def members(options: Options) -> list[tuple[Spec, DrafterKind]]:
    """Return the drafters of a union, each with its default options: their colons would be read as the
    union's.

    Raises:
        UsageError: one of them is unknown, or a union itself.
    """
    names = str(options["of"]).split("+")
    if UNION in names:
        remedy = "Name other drafters, e.g. lookup+model."
        raise UsageError("union:of=union is not valid.", flag="--drafter", remedy=remedy)
    return [(Spec(name), drafter_kind(name)) for name in names]


def parts_of(spec: Spec) -> list[Spec]:
    """Return the members of a union; for any other drafter itself."""
    return [own for own, _ in members(drafter_kind(UNION).settled(spec))] if spec.name == UNION else [spec]


def _content_of_members(options: Options) -> str | None:
    contents = [kind.content_of(spec) for spec, kind in members(options)]
    return "+".join(content for content in contents if content is not None) or None


def _suits_members(options: Options, target: ModelSource) -> None:
    for spec, kind in members(options):
        kind.require_target(spec, target)


def _states_of_members(options: Options, layers: int) -> States:
    return states_read([spec for spec, _ in members(options)], layers)


def states_read(drafters: Iterable[Spec], layers: int) -> States:
    """Return which hidden states of a target several drafters read together; none where none reads any."""
    read = (state for spec in drafters for state in drafter_kind(spec.name).states_of(spec, layers))
    return tuple(dict.fromkeys(read))


DRAFTERS = Registry(
    DrafterKind,
    "spsbench.drafters",
    DrafterKind.FLAG,
    (
        DrafterKind(
            "model",
            "The pair's draft model, sampled token by token (Chen et al. 2023).",
            deferred("spsbench.drafters.model:build"),
            {**_DRAWN, PROCESSED: True},
            needs=frozenset({DRAFT}),
            adaptive=True,
            forwards=lambda k: k,
        ),
        DrafterKind(
            "lookup",
            "Copies what followed the last n tokens earlier in the sequence (prompt lookup, Saxena 2023).",
            deferred("spsbench.drafters.lookup:build"),
            {"max_n": 3, "min_n": 1, **_COPIED},
            check=_lengths,
            point_mass=True,
        ),
        DrafterKind(
            "suffix",
            "Copies what followed the longest suffix of the sequence that occurred before.",
            deferred("spsbench.drafters.suffix:build"),
            {"min_length": 1, "across": False, **_COPIED},
            check=within("suffix", 1, inf, "min_length"),
            point_mass=True,
            remembers=lambda options: bool(options["across"]),
        ),
        DrafterKind(
            "ngram",
            "An n-gram model of the run's prompts and the sequence so far, sampled (Leviathan et al. 2022).",
            _ngram(3),
            {"order": 3, "adapt": True},
            check=within("ngram", 1, inf, "order"),
        ),
        DrafterKind(
            "unigram", "The n-gram drafter of order 1: token frequencies alone.", _ngram(1), {"adapt": True}
        ),
        DrafterKind(
            "bigram",
            "The n-gram drafter of order 2 (Leviathan et al. 2022, Table 3).",
            _ngram(2),
            {"adapt": True},
        ),
        # `forwards` of the next three is 0: they run none of the pair's draft model, but a model of their
        # own; see `forward_bytes` of the drafter.
        DrafterKind(
            "early-exit",
            "The target's first layers under its own norm and head; layers=0 is a quarter of them.",
            deferred("spsbench.drafters.own_target:build_early_exit"),
            {"layers": 0, **_DRAWN},
            check=within("early-exit", 0, inf, "layers"),
            again=deferred("spsbench.drafters.own_target:again"),
            needs=frozenset({WEIGHTS}),
        ),
        DrafterKind(
            "quantised",
            "The target with its weights rounded to bits=8 or bits=4, by blocks of 32.",
            deferred("spsbench.drafters.own_target:build_quantised"),
            {"bits": 8, **_DRAWN},
            check=one_of("quantised", "bits", 8, 4),
            rounds=lambda options: True,
            needs=frozenset({WEIGHTS}),
        ),
        DrafterKind(
            "heads",
            "Heads trained on the target's hidden states (EAGLE, EAGLE-3, P-EAGLE, Medusa), from=FOLDER.",
            deferred("spsbench.drafters.trained:build"),
            {"from": SHIPPED, "bits": 0, **dict.fromkeys(OF_HEADS, AS_WRITTEN), **_DRAWN},
            check=one_of("heads", "bits", 0, 8, 4),
            rounds=lambda options: bool(options["bits"]),
            needs=frozenset({WEIGHTS, HIDDEN}),
            content=deferred("spsbench.drafters.trained:content"),
            suits=deferred("spsbench.drafters.trained:suits"),
            again=deferred("spsbench.drafters.trained:again"),
            states=deferred("spsbench.drafters.trained:states"),
            unsettled=deferred("spsbench.drafters.trained:unsettled"),
        ),
        DrafterKind(
            "mtp",
            "The prediction modules in the target's own checkpoint (DeepSeek-V3, GLM-4.5, Qwen3-Next).",
            deferred("spsbench.drafters.mtp:build"),
            {"from": "", "recycle": AS_WRITTEN, **_DRAWN},
            check=one_of("mtp", "recycle", AS_WRITTEN, *CONVENTIONS["recycle"]),
            needs=frozenset({WEIGHTS, HIDDEN}),
            content=deferred("spsbench.drafters.mtp:content"),
            suits=deferred("spsbench.drafters.mtp:suits"),
            again=deferred("spsbench.drafters.mtp:again"),
        ),
        DrafterKind(
            "assistant",
            "A Gemma 4 assistant over the target's keys and values, from=FOLDER.",
            deferred("spsbench.drafters.mtp:build_assistant"),
            {"from": "", "position": BONUS},
            check=one_of("assistant", "position", *CONVENTIONS["position"]),
            needs=frozenset({WEIGHTS, HIDDEN}),
            content=deferred("spsbench.drafters.mtp:assistant_content"),
            suits=deferred("spsbench.drafters.mtp:assistant_suits"),
            again=deferred("spsbench.drafters.mtp:assistant_again"),
        ),
        DrafterKind(
            UNION,
            "The first of several drafters that has a proposal; the draft model runs only when it is asked.",
            deferred("spsbench.drafters.union:build"),
            {"of": "lookup+model", **_COPIED},
            needs=frozenset({DRAFT}),
            needs_by=lambda options: frozenset().union(*(kind.needs for _, kind in members(options))),
            content=_content_of_members,
            suits=_suits_members,
            states=_states_of_members,
            remembers=lambda options: any(kind.outlives(spec) for spec, kind in members(options)),
            rounds=lambda options: any(kind.rounds(kind.settled(spec)) for spec, kind in members(options)),
            # At most: a loop in which an earlier member proposed costs no forward.
            forwards=lambda k: k,
        ),
    ),
    room="spsbench.drafters",
)
drafter_kind = DRAFTERS.find


def is_ours(spec: Spec) -> bool:
    """Return whether a drafter, and every member of a union, comes with spsbench."""
    kind = drafter_kind(spec.name)
    if kind is not DRAFTERS.get(spec.name):
        return False
    return kind.name != UNION or all(is_ours(member) for member, _ in members(kind.settled(spec)))


def build_drafter(spec: Spec, context: Context) -> Drafter:
    """Build a drafter from its spec; what one that is not ours proposes is checked.

    Raises:
        UsageError: an option it does not have or a value it does not take.
        DrafterFault: one that is not ours raised something else while it was built.
    """
    return built(drafter_kind(spec.name), spec, context)


def built(kind: DrafterKind, spec: Spec, context: Context) -> Drafter:
    """``build_drafter`` where the kind is at hand; the spec's name is what faults are reported under."""
    from spsbench.drafters.checked import CheckedDrafter, raised_by

    options = kind.settled(spec)
    if DRAFTERS.get(kind.name) is kind:
        return kind.build(options, context)
    try:
        drafter = kind.build(options, context)
    except SpsbenchError:
        raise
    except Exception as error:
        raise raised_by(spec.name, error) from error
    return CheckedDrafter(drafter, spec.name, context.vocab_size)
