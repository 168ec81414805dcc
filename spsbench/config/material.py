"""Which prompts and models are wanted, without a word of what a run does with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from spsbench.config.files import with_draft
from spsbench.config.models import ModelRef, PairConfig, RunConfig, Turns, prompt_span
from spsbench.config.resolution import resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterialSettings:
    """Describe prompts and the models that continue them, checked as far as that needs no model.

    Attributes:
        span: the first prompt, from 1, and the last one, which it includes; None for all.
    """

    task: str
    data: str
    pair: PairConfig
    span: tuple[int, int | None]
    ids: tuple[str, ...] | None
    seed: int
    turns: Turns
    chat_template: Literal["auto", "none"]
    template_args: Mapping[str, Any]
    max_new_tokens: int | None
    device: str
    dtypes: tuple[str, str]
    backend: str
    device_map: str | None
    threads: int | None

    @classmethod
    def of(cls, config: RunConfig) -> MaterialSettings:
        """Take the material's settings out of those of a run."""
        return cls(
            task=config.task,
            data=config.data,
            pair=config.pair,
            span=prompt_span(config.limit),
            ids=config.ids,
            seed=config.seed,
            turns=config.turns,
            chat_template=config.chat_template,
            template_args=config.template_args,
            max_new_tokens=config.max_new_tokens,
            device=config.device,
            dtypes=(config.model_dtype, config.draft_model_dtype),
            backend=config.backend,
            device_map=config.device_map,
            threads=config.cpu_threads,
        )

    def with_draft(self, name: str) -> MaterialSettings:
        """Describe the same with a draft of that name in place of the pair's own."""
        return replace(self, pair=with_draft(self.pair, ModelRef(id=name)))


def resolve_material(flags: Mapping[str, Any]) -> MaterialSettings:
    """Resolve flags that have the names and values of a run's; a target needs no draft beside it."""
    return MaterialSettings.of(resolve(flags, target_alone=True))
