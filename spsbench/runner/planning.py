"""Everything that can be checked before a weight is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import torch

from spsbench.base.axes import EAGER, MODEL, MODIFIED_REJECTION, RECOMMENDED
from spsbench.base.environment import describe_environment
from spsbench.base.errors import UsageError
from spsbench.base.messages import Message
from spsbench.base.records import CUTS, VERIFICATION_RULE, Arm, Prompt, Sample, SamplingParams, Spec
from spsbench.config import MaterialSettings, RunConfig
from spsbench.config.models import AUTO, Precision
from spsbench.decode.processors import bound
from spsbench.drafters.registry import drafter_kind, rule_kind, shape_in
from spsbench.engines.arms import TaskAndArms, is_lossless, is_peer, task_and_arms
from spsbench.engines.hf import ASSISTED, LOOKUP, RULES
from spsbench.models.device import resolve_device
from spsbench.models.pair import PairSource, find_pair
from spsbench.models.recommended import recommended
from spsbench.models.recurrent import keeps_states
from spsbench.models.source import is_stateful
from spsbench.parts.external.registry import find_peer
from spsbench.parts.judge import sandbox_level
from spsbench.runner.claims import Claim, claims
from spsbench.runner.engines import (
    UsualEngine,
    require_own_weights,
    require_placeable,
    stock_models,
    usual_engine,
)
from spsbench.runner.later_turns import with_later_turns
from spsbench.runner.material import Material, read_prompts
from spsbench.runner.messages import BeamVerification, RecommendedSampling
from spsbench.runner.models import Models, models_to_compute
from spsbench.runner.ranks import backend_choice, require_split_arms
from spsbench.runner.room import Room, room_of
from spsbench.stats.certainty import OVER_TIME
from spsbench.tasks import answers
from spsbench.tasks.metrics.registry import records
from spsbench.tasks.task import Task


class Watcher(Protocol):
    """An observer of a run's progress."""

    def loading(self, what: str) -> None:
        """Something slow begins, e.g. loading a model."""

    def warned(self, message: Message | str) -> None:
        """Something is not as it was asked for."""

    def started(self, total: int, done: int, arms: Sequence[Arm]) -> None:
        """Measuring of all arms begins; ``done`` of ``total`` sequences are there from before."""

    def expecting(self, total: int | None, sentence: str) -> None:
        """A run that may end early will take ``total`` sequences (None: unknown); ``sentence`` may be ''."""

    def finished(self, sample: Sample) -> None:
        """A sequence is done and on the disk."""

    def remeasuring(self, rounds: int, *, short: bool) -> None:
        """So many prompts are timed again: others disturbed them, or the run is too short."""

    def remeasured(self) -> None:
        """A prompt was timed again."""

    def proving(self, total: int) -> None:
        """At most ``total`` sequences are drawn for the proof of losslessness alone."""

    def scoring(self, total: int) -> None:
        """Scoring of ``total`` sequences begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Material):
    """A run that is ready to be measured: its material, and the arms that are measured on it.

    Attributes:
        recommendation: of the target's own file, where it says one.
    """

    config: RunConfig
    arms: tuple[Arm, ...]
    everyone: tuple[str, ...]
    samples: int
    sandbox: str | None
    recommendation: Message | None = None
    claims: Mapping[str, Claim] = field(default_factory=dict)
    usual: UsualEngine | None = None
    room: Room | None = None
    most_later_tokens: int = 0

    @property
    def longest(self) -> int:
        """As ``Material.longest``, or what the prompt of a later turn may have, if that is more."""
        return max(self.most_later_tokens, *(len(prompt.ids) for prompt in self.prompts))

    @property
    def slots(self) -> int:
        """The longest sequence with the K tokens that its last loop may score beyond it."""
        return self.longest + self.max_new_tokens + max(arm.k for arm in self.arms)

    @property
    def total(self) -> int:
        return len(self.prompts) * self.samples * len(self.arms)

    def identity(self) -> dict[str, Any]:
        """What must agree for two measurements to belong to one run (not limit or samples)."""
        config, provenance = self.config, self.data.provenance
        files = {str(spec): drafter_kind(spec.name).content_of(spec) for spec in _drafters(self.arms)}
        read = {name: content for name, content in files.items() if content is not None}
        own_draft = config.draft_dtype != AUTO
        return {
            "task": self.task.name,
            "data": {key: provenance.get(key) for key in ("source", "revision", "split")},
            "prompt_sha256": provenance.get("prompt_sha256"),
            "chat_template": self.chat_template,
            **({"template_args": config.template_args} if config.template_args else {}),
            "pair": self.source.identity(),
            "arms": [arm.record() for arm in self.arms],
            **({"drafter_files": read} if read else {}),
            "max_new_tokens": self.max_new_tokens,
            "stop": list(self.stop),
            "fixed_length": config.fixed_length,
            **({"turns": "own"} if _has_later(self.prompts) else {}),
            "dtype": config.model_dtype,
            **({"draft_dtype": config.draft_model_dtype} if own_draft else {}),
            **({} if self.quantiser is None else {"quantiser": self.quantiser}),
            "device": self.device.type,
            **_split_over(config),
            "seed": config.seed,
            **answers.extraction_identity(self.extract, self.chat_template),
            **({} if config.shard is None else {"shard": config.shard}),
        }

    def label(self) -> str:
        """As ``Material.label``, and over how many processes the target is split."""
        count = self.config.ranks  # super() does not find the class that slots make anew
        split = [f"target split over {count} processes"] if count > 1 else []
        return ", ".join([Material.label(self), *split])

    def info(self) -> dict[str, Any]:
        """Return what run.json says of the run beside its identity, before anything is measured."""
        cuts = self.config.temperature, self.config.top_k, self.config.top_p
        changed = [name for name, value in zip(CUTS, cuts, strict=True) if value is not None]
        return {
            "task": self.task.name,
            "task_label": self.label(),
            "headline_metric": self.task.headline,
            "metrics": records(self.task.metrics),
            "synthetic": self.data.synthetic or self.config.pair.synthetic,
            "pair": self.config.pair.name,
            **({"tags": self.config.tags} if self.config.tags else {}),
            **({"changed_sampling": changed} if changed else {}),
            "model": self.source.target.title,
            **_split_over(self.config),
            "shard": self.config.shard,
            "data": self.data.provenance,
            "bos": self.source.tokenizer.bos,
            "arms": [_arm_record(arm, self.claims.get(arm.name)) for arm in self.arms],
            "expected_sequences": len(self.prompts) * self.samples,
            "truncated_prompts": sum(prompt.truncated_tokens > 0 for prompt in self.prompts),
            "verification_rule": {
                arm.name: _verification_rule(arm) for arm in self.arms if arm.method == "sps"
            },
            "sandbox": self.sandbox,
            "extract": self.extract,
            "environment": describe_environment(),
            "interval": OVER_TIME,
            **({} if self.usual is None else {"usual_engine": asdict(self.usual)}),
        }


def _split_over(config: RunConfig) -> dict[str, Any]:
    """What identifies a run of a split target; nothing for any other, so that those continue as before."""
    if config.ranks == 1:
        return {}
    return {"tensor_parallel": config.ranks, "draft_placement": config.draft_placement}


def _arm_record(arm: Arm, claim: Claim | None) -> dict[str, Any]:
    """An arm as run.json has it: its axes, its warping, and how many draft forwards a loop costs."""
    speculative = arm.method == "sps"
    return {
        "arm": arm.name,
        **arm.axes(),
        "params": arm.sampling.record(),
        "draft_forwards": drafter_kind(arm.drafter.name).forwards(arm.k) if speculative else 0,
        "lossless": not speculative or (is_lossless(arm) and not (claim and claim.refuted)),
        **({} if claim is None else {"enumerated": claim.refuted or claim.untested or "lossless"}),
    }


def _drafters(arms: Sequence[Arm]) -> list[Spec]:
    return list(dict.fromkeys(arm.drafter for arm in arms if arm.method == "sps"))


def _verification_rule(arm: Arm) -> str | None:
    """None for an external engine, which reports it when it is started."""
    if is_peer(arm):
        return None
    if arm.sampling.beam is not None:
        beam = arm.sampling.beam
        return str(BeamVerification(beam.width, beam.draft_width))
    if arm.engine in RULES:
        return RULES[arm.engine]
    if arm.rule.name == MODIFIED_REJECTION:
        return VERIFICATION_RULE
    return f"{arm.rule}: {rule_kind(arm.rule.name).summary}"


def plan(
    config: RunConfig,
    known: TaskAndArms | None = None,
    *,
    choose_engine: bool = False,
    loads: bool = True,
    scores: bool = True,
    later_turns: bool = False,
) -> Plan:
    """Load the task, find the pair, read the data, build every prompt; load no weight.

    Task and arms are not looked for again where they are ``known`` from refusing what is impossible.
    With ``choose_engine`` arms of a configuration that names no engine have the device's usual one. Where
    nothing ``loads`` the models here, they need no memory; where nothing ``scores`` the outputs, no sandbox.
    With ``later_turns`` those of conversations are asked as well, see ``runner.dialogue``, unless the
    configuration asks first turns alone.
    """
    task, arms = known or task_and_arms(config)
    sandbox = _scored_in(task, config) if config.score and scores else None
    device = _device_of(config, arms)
    source = find_pair(config.pair).with_template_args(config.template_args)
    needed, own = RECOMMENDED in {arm.sampling_name for arm in arms} - {*task.samplings}, None
    with nullcontext() if needed else suppress(UsageError):
        own = recommended(source.target)
    if needed:
        task, arms = task_and_arms(config, own)
    for drafter in _drafters(arms):
        drafter_kind(drafter.name).require_target(drafter, source.target)
    for arm in arms:
        bound(arm.sampling, source.tokenizer)  # a grammar that cannot be, or what a model does not know
    _require_fitting(config, source, arms)
    recommendation = _recommendation(task, arms, own)
    models = _models(config, arms, source, device, loads=loads)
    usual = None
    if choose_engine and "engines" not in config.model_fields_set:
        devices = config.ranks if models.placement is None else 2
        usual = usual_engine(arms, source, device, models.backend, devices)
    if usual is not None:
        config = config.model_copy(update={"engines": (usual.name,)})
        arms = tuple(replace(arm, engine=usual.name) for arm in arms)
    beyond = max(arm.k for arm in arms)  # the last loop may score so many tokens beyond the limit
    asked = read_prompts(MaterialSettings.of(config), task, source, beyond=beyond)
    max_new_tokens = asked.max_new_tokens
    found = with_later_turns(config, task, asked, source.tokenizer, asks=later_turns)
    prompts = found.prompts
    longest = max(found.most_tokens, *(len(prompt.ids) for prompt in prompts))
    index, count = config.shard_index
    kept = prompts[index::count]
    _require_possible(config, source, arms, longest + max_new_tokens, prompts, kept)
    room = None
    if loads and models.placement is None:
        room = room_of(models, arms, longest + max_new_tokens + beyond, max_new_tokens, config.ranks)
    return Plan(
        task=task,
        data=asked.data,
        prompts=kept,
        max_new_tokens=max_new_tokens,
        chat_template=asked.chat_template,
        seed=config.seed,
        config=config,
        arms=arms,
        everyone=tuple(prompt.example_id for prompt in prompts),
        samples=config.samples or 1,
        recommendation=recommendation,
        claims=claims(arms),
        sandbox=sandbox,
        usual=usual,
        room=room,
        most_later_tokens=found.most_tokens,
        **models.shared(),
    )


def _recommendation(task: Task, arms: Sequence[Arm], own: SamplingParams | None) -> Message | None:
    """What the target's own sampling is where an arm has it by that name, that it is another where none has;
    None where its file says nothing, and for searches."""
    samplings = {arm.sampling_name: arm.sampling for arm in arms}
    if RECOMMENDED in task.samplings or all(sampling.beam for sampling in samplings.values()):
        return None
    if RECOMMENDED in samplings:
        return RecommendedSampling(samplings[RECOMMENDED].described, is_used=True)
    if own is None or own in samplings.values():
        return None
    return RecommendedSampling(own.described, is_used=False)


def _models(
    config: RunConfig, arms: Sequence[Arm], source: PairSource, device: torch.device, *, loads: bool
) -> Models:
    """What computes a pair for arms, all of which it can serve; the weights fit where they are loaded."""
    choice = backend_choice(config)
    require_split_arms(config, source, arms)
    models = models_to_compute(MaterialSettings.of(config), source, device, choice, loads=loads)
    dtypes = models.dtypes
    for drafter in _drafters(arms):
        drafter_kind(drafter.name).require_backend(drafter, models.backend, dtypes[0])
    if models.placement is not None:
        models.placement.require(source.target, dtypes[0])
        require_placeable(arms)
    require_own_weights(arms, dtypes, models.backend)
    return models.fitting(stock_models(arms, source, dtypes), config.ranks) if loads else models


def _has_later(prompts: Sequence[Prompt]) -> bool:
    return any(prompt.conversation is not None for prompt in prompts)


def _scored_in(task: Task, config: RunConfig) -> str | None:
    """What stands between generated programs and this machine, None if none will run; what a metric lacks is
    refused."""
    for kind in task.metrics:
        if kind.require is not None:
            kind.require()
    return sandbox_level(config.unsafe_exec) if task.runs_code else None


def _device_of(config: RunConfig, arms: Sequence[Arm]) -> torch.device:
    """The run's device; an external engine that would take another is refused."""
    device = resolve_device(config.device)
    here = f"{device.type}:{device.index or 0}" if device.type == "cuda" else device.type
    for engine in dict.fromkeys(arm.engine for arm in arms if is_peer(arm)):
        own = find_peer(engine).device
        if own not in (None, here):
            remedy = f"Give --device {own}, or NAME:python=PATH of an environment for {here}."
            if dict(Spec.parse(engine).options).get("python"):
                remedy = f"Give --device {own}, or {engine.partition(':')[0]} with device={here}."
            why = f"{engine} runs on {own}, and the run on {here}: their times do not compare."
            raise UsageError(why, flag="--engine", remedy=remedy)
    return device


def _require_fitting(config: RunConfig, source: PairSource, arms: Sequence[Arm]) -> None:
    """Refuse what another engine cannot be given, and what encoder-decoders cannot do."""
    peers = [arm for arm in arms if is_peer(arm)]
    if peers:
        _require_plain_weights(config, source, peers)
    if (other := next((arm.engine for arm in arms if arm.engine != EAGER), None)) is not None:
        require_decoder(source, other)
    widest = max(arm.batch for arm in arms)
    if widest > 1 and source.target.is_encoder_decoder:
        name = source.target.name
        why = f"{name} is an encoder-decoder, and {widest} sequences at once are for decoders."
        raise UsageError(why, flag="--batch", remedy="Give --batch 1.")
    _require_stateless(source, arms)


def _require_plain_weights(config: RunConfig, source: PairSource, peers: Sequence[Arm]) -> None:
    """Refuse weights that external engines cannot read from a folder."""
    engine = peers[0].engine
    for dtype in (config.model_dtype, config.draft_model_dtype):
        if Precision(dtype).quantise is not None:
            raise UsageError(
                f"{dtype} weights are quantised by spsbench itself, and {engine} would run others.",
                flag="--dtype",
                remedy="Measure it with the checkpoint's own dtype, or without that engine.",
            )
    if config.draft_model_dtype != config.model_dtype:
        why = f"{config.draft_dtype} is for the draft alone, and {engine} is given one dtype."
        raise UsageError(why, flag="--dtype", remedy="Leave :draft= out, or leave that engine out.")
    if source.draft.sharing is not None and any(arm.method == "sps" for arm in peers):
        raise UsageError(
            f"{source.draft.name} is a trained draft that reads its target's embedding, and {engine} "
            "needs a model that stands alone.",
            flag="--draft",
            remedy="Give --arms ars, or a draft in a separate folder.",
        )


def _require_stateless(source: PairSource, arms: Sequence[Arm]) -> None:
    """Refuse what a running state, which follows one line of tokens, excludes."""
    for model in (source.target, source.draft):
        of_model = [arm for arm in arms if model is source.target or arm.drafter.name == MODEL]
        of_model = [arm for arm in of_model if arm.batch > 1 or not is_peer(arm)]
        if not of_model or not keeps_states(model.config):
            continue
        name = f"{model.name} ({model.config.model_type}) keeps a running state"
        if any(shape_in(arm.drafter) for arm in of_model):
            why = f"{name}, which cannot follow the branches of a tree."
            raise UsageError(why, flag="--tree", remedy="Leave --tree out: drafts are chains.")
        if any(arm.sampling.beam is not None for arm in of_model):
            why = f"{name}, which cannot follow several beams."
            raise UsageError(why, flag="--sampling", remedy="Choose another sampling than beam.")
        if any(arm.batch > 1 for arm in of_model):
            why = f"{name}, and sequences of a batch accept different numbers of tokens."
            raise UsageError(why, flag="--batch", remedy="Give --batch 1.")
    if any(arm.engine in (ASSISTED, LOOKUP) for arm in arms) and is_stateful(source.target.config):
        raise UsageError(
            f"{source.target.name} ({source.target.config.model_type}) keeps a running state, and "
            "transformers' assisted generation refuses such models.",
            flag="--engine",
            remedy=f"Use --engine {EAGER}.",
        )


def require_decoder(source: PairSource, engine: str) -> None:
    """Refuse an encoder-decoder for an engine that would read its prompt as one text."""
    if source.target.is_encoder_decoder:
        why = f"{engine} runs decoders alone; {source.target.name} is an encoder-decoder."
        raise UsageError(why, flag="--engine", remedy=f"Use --engine {EAGER}.")


def _require_possible(
    config: RunConfig,
    source: PairSource,
    arms: Sequence[Arm],
    longest: int,
    prompts: Sequence[Prompt],
    kept: Sequence[Prompt],
) -> None:
    """Refuse searches that models cannot make, empty shards and unfilled batches.

    The rows of a batch that is never full would be charged as if it were.
    """
    searched = [params for arm in arms if (params := arm.sampling.beam) is not None]
    for params in searched:
        for beams in (params.width, params.draft_width):
            if beams > source.vocab_size:
                why = f"{beams} beams are more than the vocabulary's {source.vocab_size} tokens."
                raise UsageError(why, flag="--sampling", remedy="Give fewer.")
    shapes = filter(None, (shape_in(arm.drafter) for arm in arms))
    siblings = max((width for shape in shapes for width in shape.branching), default=1)
    if siblings > source.vocab_size:
        why = f"{siblings} siblings are more than the vocabulary's {source.vocab_size} tokens."
        raise UsageError(why, flag="--tree", remedy="Give fewer.")
    narrowest = min((size for size in source.attention_windows if size is not None), default=longest)
    if searched and narrowest < longest:
        raise UsageError(
            f"attention over a window of {narrowest} tokens does not fit a tree of beams, and prompts with "
            f"outputs have up to {longest}.",
            flag="--sampling",
            remedy="Choose another sampling, shorter outputs, or models with full attention.",
        )
    if not kept:
        why = f"shard {config.shard} of {len(prompts)} prompts is empty."
        raise UsageError(why, flag="--shard", remedy="Use fewer shards.")
    widest = max(arm.batch for arm in arms)
    sequences = len(kept) * (config.samples or 1)
    if widest > 1 and sequences < widest:
        why = f"batches of {widest} are never full with {sequences} sequences an arm."
        raise UsageError(why, flag="--batch", remedy="Raise --limit or --samples, or give a smaller batch.")
