"""Which engine answers for an arm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from spsbench.base.axes import EAGER, FIXED, MODEL, MODIFIED_REJECTION
from spsbench.base.errors import UsageError, first_line
from spsbench.base.protocol import PeerError
from spsbench.base.records import Arm, Generation, Request, SamplingParams
from spsbench.config.models import ONNXRUNTIME, TORCH, Precision
from spsbench.decode.batch import (
    BatchArS,
    BatchDrafter,
    BatchModel,
    BatchSpS,
    DecodingBatch,
    ModelBatchDrafter,
    RowDrafters,
)
from spsbench.decode.clock import Clock, SystemClock
from spsbench.decode.protocols import Drafter
from spsbench.decode.rules import Rule
from spsbench.drafters.registry import Context, build_drafter, build_policy, build_rule, shape_in, states_read
from spsbench.engines.arms import GRAPHED, is_peer, without_graphs
from spsbench.engines.cuda_graph import Capture, CaptureFailed, GraphedEngine, Graphs, RowMemory, StagedBatch
from spsbench.engines.derivation import Derivation, derivation_of
from spsbench.engines.hf import ASSISTED, GENERATE, LOOKUP, HFGenerateEngine
from spsbench.engines.local import BatchedEngine, BeamEngine, EagerEngine, Engine, ThreadedEngine
from spsbench.models.batched import NotStatic, StaticLM, batch_model, require_same_answers
from spsbench.models.beam_lm import BeamLM, require_exact_tree, tree_of
from spsbench.models.causal_lm import CausalLM, States
from spsbench.models.faults import settle, shortage
from spsbench.models.messages import TAKES_LESS
from spsbench.models.pair import Pair, PairSource
from spsbench.models.placement import PlacedLM
from spsbench.models.source import ModelSource
from spsbench.models.torch_lm import TorchLM
from spsbench.runner.messages import (
    CUDA_GRAPHS_NEED_CUDA,
    ENCODER_DECODER,
    SEVERAL_DEVICES,
    LimitedAttention,
    OtherBackend,
)

FAILURES = (RuntimeError, ValueError, IndexError, ArithmeticError, MemoryError, PeerError)
"""What fails a sequence, and not the run."""

Attempt = Generation | Exception


def answers(engine: Engine, requests: Sequence[Request]) -> Iterator[tuple[int, Attempt]]:
    """Yield the answer to each request with its place, as they arrive; if a batch fails, its rest fails."""
    if isinstance(engine, BatchedEngine):
        waiting = dict.fromkeys(range(len(requests)))
        try:
            for place, generation in engine.generate_all(requests):
                del waiting[place]
                yield place, generation
        except FAILURES as error:
            settle(error)
            for place in waiting:
                yield place, error
        return
    for place, request in enumerate(requests):
        try:
            answer: Attempt = engine.generate(request)
        except FAILURES as error:
            settle(error)
            answer = error
        yield place, answer


def reason_of(error: Exception, remedy: str = TAKES_LESS) -> str:
    """Return an error as a sample records it, in one line; out of memory with the remedy."""
    short = shortage(error, remedy)
    return short or first_line(error, kind=True)


_HF = (GENERATE, ASSISTED, LOOKUP)


def stock_roles(arms: Sequence[Arm]) -> set[Literal["target", "draft"]]:
    """Return which models of a pair its arms run by transformers' own forward.

    See ``EngineFactory.build``.
    """
    roles: set[Literal["target", "draft"]] = set()
    for arm in arms:
        searches = arm.sampling.beam is not None
        if searches or arm.engine in _HF:
            roles.add("draft" if arm.method == "draft" else "target")
        if arm.engine == ASSISTED or (searches and arm.method == "sps"):
            roles.add("draft")
    return roles


def stock_models(arms: Sequence[Arm], source: PairSource, dtypes: tuple[str, str]) -> list[ModelSource]:
    """Return the models that some arm runs by transformers' own forward, each once."""
    roles = stock_roles(arms)
    is_one = source.is_one(dtypes)
    target = [source.target] if "target" in roles or (roles and is_one) else []
    return target + ([source.draft] if "draft" in roles and not is_one else [])


def require_own_weights(arms: Sequence[Arm], dtypes: tuple[str, str], backend: str) -> None:
    """Refuse arms over transformers' own forward where ONNX Runtime has rounded the weights of a model.

    Transformers would compute with the unrounded ones: another law than that of the run's target.
    """
    if backend != ONNXRUNTIME:
        return
    roles = stock_roles(arms)
    for role, dtype in zip(("target", "draft"), dtypes, strict=True):
        if role in roles and Precision(dtype).quantise is not None:
            one = next(arm for arm in arms if stock_roles([arm]))
            what = "a beam search" if one.sampling.beam is not None else one.engine
            raise UsageError(
                f"{what} runs over torch, and the {role}'s weights are rounded to {dtype} by onnxruntime.",
                flag="--backend",
                remedy="Use --backend torch, where torchao quantises them, or leave one of the two out.",
            )


@dataclass(frozen=True, slots=True)
class UsualEngine:
    """What runs the loops of a run that names no engine, and why these are not graphs."""

    name: str
    reason: str | None = None


def usual_engine(
    arms: Sequence[Arm], source: PairSource, device: torch.device, backend: str, devices: int
) -> UsualEngine | None:
    """Return graphs on a CUDA device where they can be captured; None elsewhere, where ``EAGER`` is usual.

    One engine for all arms, which are compared with each other. What only a capture can show is found where
    the engines are built, see ``EngineFactory``.

    Args:
        devices: on how many the target lies.
    """
    if device.type != "cuda":
        return None
    roles = ("target", "draft") if any(arm.method != "ars" for arm in arms) else ("target",)
    windowed = [role for role, size in zip(roles, source.attention_windows, strict=False) if size is not None]
    reasons = [
        OtherBackend(backend) if backend != TORCH else None,
        SEVERAL_DEVICES if devices > 1 else None,
        ENCODER_DECODER if source.target.is_encoder_decoder else None,
        *map(LimitedAttention, windowed),
        *map(without_graphs, arms),
    ]
    reason = next(filter(None, reasons), None)
    return UsualEngine(GRAPHED) if reason is None else UsualEngine(EAGER, str(reason))


def require_placeable(arms: Sequence[Arm]) -> None:
    """Refuse arms whose engine cannot use a target on several devices."""
    for arm in arms:
        if arm.batch > 1:
            why = f"a batch of {arm.batch} is decoded on one device."
            raise UsageError(why, flag="--device-map", remedy="Leave it out, or give --batch 1.")
        if shape_in(arm.drafter) is not None:
            why = f"{arm.drafter} is a tree, which a target on one device scores."
            raise UsageError(why, flag="--device-map", remedy="Leave it out, or leave --tree out.")
        if arm.engine not in (EAGER, GRAPHED, GENERATE):  # a graphed arm falls back to the engine eager
            remedy = f"Leave it out, or use the engines {EAGER} and {GENERATE}."
            raise UsageError(f"{arm.engine} runs on one device.", flag="--device-map", remedy=remedy)


class EngineFactory:
    """Builds engines over one pair; models and caches are shared between arms, which take turns. A fixed
    shape holds ``slots`` tokens: prompt, output and K more."""

    def __init__(
        self,
        pair: Pair,
        slots: int,
        clock: Clock | None = None,
        capture: Capture | None = None,
        corpus: Sequence[Sequence[int]] = (),
        peer: Callable[[Arm], Engine] | None = None,
    ) -> None:
        self._corpus, self._peer = corpus, peer
        self._pair, self._slots = pair, slots
        self._clock = clock or SystemClock()
        self._capture = capture
        self._references: dict[int, TorchLM] = {}
        self._trees: dict[int, BeamLM] = {}
        self._several: dict[tuple[int, int], BatchModel] = {}
        self._open_rows = RowMemory()
        self._blocks = True
        self._keeping: dict[States, CausalLM] = {}
        self.fallbacks: dict[str, str] = {}

    def build(self, arm: Arm) -> Engine:
        """Return the engine of an arm; an eager one, noted in ``fallbacks``, where a graph is unavailable."""
        if self._peer is not None and is_peer(arm):
            return self._peer(arm)
        target = self._target_for(arm)
        draft = self._pair.draft if arm.method == "sps" else None
        if arm.sampling.beam is not None:
            searching = self._tree_model(target)
            assisting = None if draft is None else self._tree_model(draft)
            tokenizer, device = self._pair.tokenizer, self._pair.device
            return self._threaded(BeamEngine(searching, assisting, arm.k, tokenizer, device, self._clock))
        if arm.engine in _HF:
            assistant = self._pair.draft if arm.engine == ASSISTED else None
            stock = None if assistant is None else self._reference(assistant)
            return self._threaded(
                HFGenerateEngine(arm.engine, self._reference(target), stock, arm.k, self._pair.tokenizer)
            )
        derivation: Derivation | None = Derivation()
        if arm.method == "sps":
            derivation = derivation_of(arm.k, arm.drafter, arm.rule, arm.policy)
        if arm.engine == GRAPHED:
            try:
                return self._graphed(arm, target, draft, derivation)
            except (NotStatic, CaptureFailed) as error:
                self.fallbacks[arm.name] = str(error)
        make = partial(self._drafter, arm) if arm.method == "sps" else None
        rule = None if arm.rule.name == MODIFIED_REJECTION else build_rule(arm.rule)
        tokenizer, device = self._pair.tokenizer, self._pair.device
        if arm.batch > 1:
            batch = self._decoding_batch(arm, target, draft, rule)
            return BatchedEngine(batch, tokenizer, device, self._clock, rule, derivation=derivation)
        shape = shape_in(arm.drafter) if arm.method == "sps" else None
        return EagerEngine(
            target,
            draft,
            arm.k,
            tokenizer,
            device,
            self._clock,
            rule=rule,
            make_drafter=make,
            derivation=derivation,
            tree=None if shape is None else tree_of(target),
            nodes=0 if shape is None else shape.nodes,
        )

    def _decoding_batch(
        self, arm: Arm, target: CausalLM, draft: CausalLM | None, rule: Rule | None
    ) -> DecodingBatch:
        """Arms of one batch size share models."""
        several = self._batch_model(target, arm.batch)
        own_model = self._batch_model(draft, arm.batch) if draft and arm.drafter.name == MODEL else None
        if draft is None:
            return BatchArS(several, arm.sampling)
        drafter: BatchDrafter
        if own_model is not None:
            drafter = ModelBatchDrafter(own_model, arm.sampling)
        else:
            drafter = RowDrafters(partial(self._drafter, arm, arm.sampling))
        return BatchSpS(several, arm.sampling, drafter, arm.k, None if rule is None else rule.accept)

    def _batch_model(self, model: CausalLM, batch: int) -> BatchModel:
        """With blocks of tokens where any arm speculates."""
        key = (id(model), batch)
        if key not in self._several:
            self._several[key] = batch_model(model, batch, self._slots, blocks=self._blocks)
        return self._several[key]

    def _threaded(self, engine: Engine) -> ThreadedEngine:
        """On the run's threads for torch: fewer would make our own arms look better."""
        return ThreadedEngine(engine, self._pair.info["threads"])

    def _tree_model(self, model: CausalLM) -> BeamLM:
        """Over transformers' own forward, which alone takes a tree; each is tested once."""
        if id(model) not in self._trees:
            reference = self._reference(model)
            tree = self._trees[id(model)] = BeamLM(reference)
            require_exact_tree(tree)
        return self._trees[id(model)]

    def _target_for(self, arm: Arm) -> CausalLM:
        """The model whose law an arm follows.

        A target keeps hidden states where the drafter reads them.
        """
        if arm.method == "draft":
            return self._pair.draft
        states = () if arm.method == "ars" else states_read([arm.drafter], self._pair.target.layers)
        if not states:
            return self._pair.target
        if states not in self._keeping:
            self._keeping[states] = self._pair.target.with_features("--drafter", states)
        return self._keeping[states]

    def _drafter(self, arm: Arm, sampling: SamplingParams) -> Drafter:
        target = self._target_for(arm)
        context = Context(
            target=target,
            draft=self._pair.draft,
            sampling=sampling,
            device=self._pair.device,
            vocab_size=self._pair.target.vocab_size,
            corpus=lambda: self._corpus,
            policy=None if arm.policy.name == FIXED else build_policy(arm.policy),
            hidden=target if target.keeps_features else None,
            k=arm.k,
        )
        return build_drafter(arm.drafter, context)

    def all(self, arms: Sequence[Arm]) -> dict[Arm, Engine]:
        self._blocks = any(arm.method == "sps" for arm in arms)
        # Graphs with the largest rows first: the others have theirs in the same memory.
        order = sorted(arms, key=lambda arm: -arm.batch * (2 * arm.k + 1) if arm.engine == GRAPHED else 0)
        built = {arm: self.build(arm) for arm in order}
        return {arm: built[arm] for arm in arms}

    def _graphed(
        self, arm: Arm, target: CausalLM, draft: CausalLM | None, derivation: Derivation | None
    ) -> Engine:
        capture = self._capture or self._graphs()
        drafting = None if draft is None else self._static_model(draft, arm.batch)
        static = self._static_model(target, arm.batch)
        memory = self._open_rows
        batch = StagedBatch(static, drafting, arm.k, arm.sampling, capture, memory=memory)
        tokenizer, clock = self._pair.tokenizer, self._clock
        if arm.batch == 1:
            return GraphedEngine(batch, tokenizer, clock, derivation=derivation)
        device = self._pair.device
        return BatchedEngine(batch, tokenizer, device, clock, name=GRAPHED, derivation=derivation)

    def _static_model(self, model: CausalLM, batch: int) -> StaticLM:
        if isinstance(model, PlacedLM):
            raise NotStatic("its modules lie on several devices")
        if batch == 1 and isinstance(model, TorchLM) and (id(model), 1) not in self._several:
            static = StaticLM(model, self._slots)
            require_same_answers(model, static, self._slots, blocks=self._blocks)
            self._several[id(model), 1] = static
        model_of_batch = self._batch_model(model, batch) if batch > 1 else self._several.get((id(model), 1))
        if not isinstance(model_of_batch, StaticLM):
            raise NotStatic(f"its forward is {model.backend}'s")
        return model_of_batch

    def _graphs(self) -> Graphs:
        if self._pair.device.type != "cuda" or not torch.cuda.is_available():
            raise CaptureFailed(CUDA_GRAPHS_NEED_CUDA)
        return Graphs(self._pair.device)

    def _reference(self, model: CausalLM) -> TorchLM:
        """Over transformers' own forward, loaded once for all arms that ask for it."""
        if id(model) not in self._references:
            self._references[id(model)] = model.reference()
        return self._references[id(model)]
