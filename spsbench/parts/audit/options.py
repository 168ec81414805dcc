"""What an audit is asked: its options, as typed and as they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from spsbench.base import UsageError, require_makeable, unknown
from spsbench.cli import Common, read_material, task_named_by, values
from spsbench.config import refuse_together

if TYPE_CHECKING:
    from spsbench.base import SamplingParams
    from spsbench.config import MaterialSettings
    from spsbench.parts.external.registry import PeerKind

_PROMPTS, _TEXTS, _BUDGET_S = 40, 320, 600.0

TOKENS, DRAWS = 6, 500
"""With --contexts: new tokens of a request, and requests for each context."""


PLAIN, SPECULATING = "ars", "sps"


@dataclass(frozen=True, kw_only=True)
class AuditOptions(Common):
    samples: Path | None
    engine: str | None
    follow: Path | None
    pair: str | None
    target: str | None
    draft: str | None
    temperature: str | None
    top_p: str | None
    top_k: str | None
    process: list[str] | None
    every: str | None
    webhook: str | None
    k: str | None
    arms: str | None
    weights: str | None
    in_flight: str | None
    prefix_cache: str | None
    contexts: str | None
    bound: str | None
    texts: str | None
    budget: str | None
    task: str | None
    limit: str | None
    max_new_tokens: str | None
    template_arg: list[str] | None
    threads: str | None
    out: Path | None
    evidence: Path | None
    repro: bool
    releases: str | None
    keep: bool
    seed: str | None
    device: str | None
    dtype: str | None


_DEFAULT: tuple[tuple[str | None, str | None, str | None], ...] = (
    ("0.7", None, None),
    ("1", None, None),
    ("1", "0.9", None),
)
"""Temperature, top-p and top-k where none is asked for: at temperature 1 a token that ignores it looks right,
and without a cut so does one that ignores the cut."""


@dataclass(frozen=True, slots=True)
class AuditChoices:
    """The options of an audit, read; ``kind`` is the engine with the weights that were asked for, ``limits``
    are leakage, texts and seconds, ``settings`` are those of its prompts and models."""

    kind: PeerKind
    limits: tuple[float, int, float]
    weights: str
    lookaheads: Sequence[int | None]
    samplings: Sequence[SamplingParams]
    levels: Sequence[int]
    caches: tuple[bool, ...]
    threads: int | None
    settings: MaterialSettings
    contexts: int = 0

    @property
    def count(self) -> int:
        return len(self.lookaheads) * len(self.samplings) * len(self.levels) * len(self.caches or (False,))


def settings_asked(wanted: AuditOptions, kind: PeerKind) -> AuditChoices:
    """Return the planned settings; refuse what is impossible before torch is imported."""
    from spsbench.base import FLOAT32, MOST_IN_FLIGHT

    bound = 0.02 if wanted.bound is None else values.share(wanted.bound, "--bound")
    contexts = int(values.number(wanted.contexts, "--contexts", 1, 0, whole=True))
    texts = int(values.number(wanted.texts, "--texts", 1, DRAWS * contexts or _TEXTS, whole=True))
    limits = bound, texts, values.seconds(wanted.budget, _BUDGET_S)
    weights = wanted.weights or FLOAT32
    kind, lookaheads = _prepared(kind, wanted, weights)
    samplings = _samplings(wanted)
    levels = values.concurrencies(wanted.in_flight or "1", "--in-flight", MOST_IN_FLIGHT)
    caches = _caches(wanted.prefix_cache)
    threads = values.threads(wanted.threads)
    if contexts:
        if any(sampling.greedy for sampling in samplings):
            why = "greedily no token is drawn, and contexts are chosen by what is."
            raise UsageError(why, flag="--contexts", remedy="Leave temperature 0 out.")
        wanted = replace(wanted, max_new_tokens=wanted.max_new_tokens or str(TOKENS))
    for folder, flag in ((wanted.out, "--out"), (wanted.evidence and wanted.evidence.parent, "--evidence")):
        if folder is not None:
            require_makeable(folder, flag)
    settings = _material_settings(wanted)
    return AuditChoices(
        kind, limits, weights, lookaheads, samplings, levels, caches, threads, settings, contexts
    )


def _prepared(kind: PeerKind, wanted: AuditOptions, weights: str) -> tuple[PeerKind, list[int | None]]:
    """Return the engine with these weights, and the K with which it is run."""
    from spsbench.base import FLOAT32

    kind = kind.with_weights(weights, "--weights")
    if wanted.repro and kind.served:
        why = "no script is written for servers."
        remedy = "Name the engine itself, or a worker."
        raise UsageError(why, flag="--repro", remedy=remedy)
    lookaheads = _lookaheads(wanted, served=kind.served)
    if weights != FLOAT32 and 0 not in lookaheads:
        why = "the plain texts measure the rounding of the engine's kernels."
        raise UsageError(why, flag="--weights", remedy=f"Leave {PLAIN} among the --arms.")
    return kind, lookaheads


def _lookaheads(wanted: AuditOptions, *, served: bool) -> list[int | None]:
    """Return 0 (plain) and each K; for a server None alone, since it has its own K or none."""
    if served:
        refuse_together("audit", {**vars(wanted), "server": True})
        return [None]
    arms = [name.strip() for name in (wanted.arms or f"{PLAIN},{SPECULATING}").split(",")]
    wrong = next((name for name in arms if name not in (PLAIN, SPECULATING)), None)
    if wrong is not None:
        raise unknown(wrong, (PLAIN, SPECULATING), "--arms")
    ks = values.lookaheads(wanted.k or "4") if SPECULATING in arms else ()
    return [*([0] if PLAIN in arms else []), *ks]


def _caches(text: str | None) -> tuple[bool, ...]:
    """Return whether to run without a prefix cache (the control, first) and with it.

    It is empty if that is not asked for.
    """
    if text is None:
        return ()
    states = {part.strip() for part in text.split(",")}
    if not states <= {"on", "off"}:
        raise UsageError(f"{text} is unknown.", flag="--prefix-cache", remedy="Choose from on, off.")
    return (False, True) if "on" in states else (False,)


def _samplings(wanted: AuditOptions) -> list[SamplingParams]:
    """Return the product of the lists that were given, each combination once; ``_DEFAULT`` without any."""
    typed = (wanted.temperature, wanted.top_p, wanted.top_k)
    if any(text is not None for text in typed):
        combined = list(product(*([None] if text is None else text.split(",") for text in typed)))
    else:
        combined = list(_DEFAULT)
    samplings = [
        values.sampling(replace(wanted, temperature=temperature, top_p=top_p, top_k=top_k))
        for temperature, top_p, top_k in combined
    ]
    return list(dict.fromkeys(samplings))


def _material_settings(wanted: AuditOptions) -> MaterialSettings:
    """Return the settings of prompts and models; the task's samplings are not used."""
    with task_named_by("--task"):
        return read_material(
            task=wanted.task,
            pair=wanted.pair,
            target=wanted.target,
            draft=wanted.draft,
            limit=wanted.limit or str(_PROMPTS),
            max_new_tokens=wanted.max_new_tokens,
            seed=wanted.seed,
            device=wanted.device,
            template_arg=wanted.template_arg,
            quiet=wanted.quiet,
        )
