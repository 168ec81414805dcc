"""What an audit is asked: its options, as typed and as they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from spsbench.base import UsageError, require_makeable, unknown
from spsbench.cli import (
    Common,
    data_by_task,
    option,
    option_of,
    options,
    read_material,
    task_named_by,
    values,
)
from spsbench.config import refuse_together

if TYPE_CHECKING:
    from spsbench.base import SamplingParams
    from spsbench.config import MaterialSettings
    from spsbench.parts.external.registry import PeerKind

_PROMPTS, _TEXTS, _BUDGET_S = 40, 320, 600.0

TOKENS, DRAWS = 6, 500
"""With --contexts: new tokens of a request, and requests for each context."""


PLAIN, SPECULATING = "ars", "sps"


DRAWN = "With --engine"


@dataclass(frozen=True, kw_only=True)
class AuditOptions(Common):
    samples: Path | None = option(
        "[SAMPLES]",
        "JSON lines with prompt_ids and completion_ids, or prompt and completion, or what --evidence "
        "wrote; .gz too.",
    )
    engine: str | None = option(
        "--engine NAME",
        'Draw texts from an engine: a name of `spsbench list engines`, worker:"COMMAND" or openai:URL.',
        names="external engines",
    )
    follow: Path | None = option(
        "--follow FILE", "Re-score requests of a server's log, as SAMPLES, while it grows; see --every."
    )
    pair: str | None
    target: str | None
    draft: str | None
    temperature: str | None = option(
        "--temperature T",
        f"{options.TEMPERATURE_OF_TEXTS} With --engine a list: 0.7, 1, and 1 with top-p 0.9.",
        options.Panel.SAMPLING,
    )
    top_p: str | None = option_of(options.DrawnOptions, "top_p")
    top_k: str | None = option_of(options.DrawnOptions, "top_k")
    process: list[str] | None
    every: str | None = option(
        "--every N", "Re-score one request in N, chosen by its id. Default: 1.", "With --follow"
    )
    webhook: str | None = option(
        "--webhook URL",
        "POST each alarm there as JSON and go on. Default: end with exit code 4.",
        "With --follow",
    )
    k: str | None = option("--k LIST", "Lookahead K: 4, 2,4 or 1..7. Default: 4.", DRAWN)
    arms: str | None = option(
        "--arms LIST", "ars (without speculation), sps (with it). Default: ars,sps.", DRAWN
    )
    weights: str | None = option(
        "--weights FORMAT", "q8_0, q4_k (llama.cpp); int8, int4 (ONNX Runtime). Default: float32.", DRAWN
    )
    in_flight: str | None = option(
        "--in-flight LIST", "Requests at once, e.g. 1,4,8; some are aborted. Default: 1.", DRAWN
    )
    prefix_cache: str | None = option(
        "--prefix-cache LIST", "on, off: prompts with common beginnings; off is always the control.", DRAWN
    )
    contexts: str | None = option(
        "--contexts N",
        f"Draw {DRAWS} short requests at each of N contexts where drafts that are withdrawn would show.",
        DRAWN,
    )
    bound: str | None = option(
        "--bound SHARE", "Draw until leakage above this is ruled out. Default: 2%, after all texts.", DRAWN
    )
    texts: str | None = option("--texts N", "Most texts per setting. Default: 320.", DRAWN)
    budget: str | None = option(
        "--budget TIME", "Most time per setting. Default: 10min; with --follow no end.", DRAWN
    )
    task: str | None = option("--task TASK", "Task or prompts file. Default: xsum.", DRAWN)
    limit: str | None = option("--limit N", "Number of prompts. Default: 40.", DRAWN)
    max_new_tokens: str | None = option(
        "--max-new-tokens N", "Most new tokens of a text. Default: the task's.", DRAWN
    )
    template_arg: list[str] | None
    threads: str | None = option("--threads N", "CPU threads of the engine. Default: 1.", DRAWN)
    out: Path | None = option(
        "--out DIR",
        "Directory of texts and results. Default: a new one in results/; with --follow that of FILE.",
        DRAWN,
    )
    evidence: Path | None = option(
        "--evidence FILE",
        "Also write what others check the verdict by: spsbench audit FILE --target T.",
        DRAWN,
    )
    repro: bool = option(
        "--repro", "After an alarm, write repro.py: one prompt that shows it, without spsbench.", DRAWN
    )
    releases: str | None = option(
        "--releases LIST",
        "A..B or the newest N: audit each; the first whose law, acceptance or speed differs.",
        DRAWN,
    )
    keep: bool = option("--keep", "Keep the environments of --releases.", DRAWN)
    seed: str | None
    device: str | None
    dtype: str | None = option(
        "--dtype NAME",
        "auto, float32, bfloat16 or float16. With SAMPLES or --follow; auto:samples=bfloat16 if the "
        "engine that wrote them computed in another one. Default: auto.",
        options.Panel.MACHINE,
    )


_DEFAULT: tuple[tuple[str | None, str | None, str | None], ...] = (
    ("0.7", None, None),
    ("1", None, None),
    ("1", "0.9", None),
)
"""Temperature, top-p and top-k where none is asked for: at temperature 1 a token that ignores it looks right,
and without a cut so does one that ignores the cut."""


@dataclass(frozen=True, slots=True)
class AuditChoices:
    """The options of an audit, read; ``kind`` is the engine with the weights that were asked for, ``bound``
    is of the leakage, ``settings`` are those of its prompts and models."""

    kind: PeerKind
    bound: float
    texts: int
    budget_s: float
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
    budget_s = values.seconds(wanted.budget, _BUDGET_S)
    weights = wanted.weights or FLOAT32
    kind, lookaheads = _engine_and_lookaheads(kind, wanted, weights)
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
    return AuditChoices(
        kind=kind,
        bound=bound,
        texts=texts,
        budget_s=budget_s,
        weights=weights,
        lookaheads=lookaheads,
        samplings=samplings,
        levels=levels,
        caches=caches,
        threads=threads,
        settings=_material_settings(wanted),
        contexts=contexts,
    )


def _engine_and_lookaheads(
    kind: PeerKind, wanted: AuditOptions, weights: str
) -> tuple[PeerKind, list[int | None]]:
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
    """0 (plain) and each K; for a server None alone, since it has its own K or none."""
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
    """Without a prefix cache (the control) and with it; empty if none was asked for."""
    if text is None:
        return ()
    states = {part.strip() for part in text.split(",")}
    if not states <= {"on", "off"}:
        raise UsageError(f"{text} is unknown.", flag="--prefix-cache", remedy="Choose from on, off.")
    return (False, True) if "on" in states else (False,)


def _samplings(wanted: AuditOptions) -> list[SamplingParams]:
    """The product of the lists that were given, each combination once; ``_DEFAULT`` without any."""
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
    """The task's samplings are not used."""
    with task_named_by("--task"), data_by_task():
        return read_material(wanted, limit=wanted.limit or str(_PROMPTS))
