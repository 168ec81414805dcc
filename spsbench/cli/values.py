"""What several commands ask for in text: lookaheads without 0, drafters, numbers, a sampling."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.config.together import refuse_together

if TYPE_CHECKING:
    from spsbench.base.records import SamplingParams, Spec
    from spsbench.models.pair import Pair
    from spsbench.parts.whatif.replay.study import Sought
    from spsbench.parts.whatif.replay.texts import Written
    from spsbench.parts.whatif.replay.times import Calibration


def written_of(source: Path, params: Mapping[str, Any], drafters: Sequence[Spec]) -> Written:
    """The texts of a run, or of a file."""
    from spsbench.config import resolve
    from spsbench.models.pair import find_pair
    from spsbench.parts.whatif.replay.texts import texts_in, texts_of
    from spsbench.runner.foreign_texts import Reader

    if source.is_file():
        refuse_together("replay", {**params, "texts": source})
        names = ("pair", "target", "revision", "device", "dtype", "backend")
        flags = {name: params[name] for name in names}
        if params["draft"]:
            flags |= {"draft": params["draft"][0], "draft_revision": params["draft_revision"]}
        drawn, config = sampling(params), resolve(flags | {"drafter": ",".join(map(str, drafters))})
        found = find_pair(config.pair)
        reader = Reader(found.tokenizer, found.vocab_size, found.context_window, drawn)
        return texts_in(source, reader, config)
    refuse_together("replay", {**params, "recorded": source})
    return texts_of(source, params["sampling"])


def pairs_of(written: Written, params: Mapping[str, Any]) -> list[tuple[str, Pair]]:
    """The target with each draft that is named, or with the run's own; of one draft the name is empty."""
    from spsbench.config import ModelRef
    from spsbench.config.files import with_draft
    from spsbench.models.device import resolve_device
    from spsbench.models.pair import find_pair, load_pair, pair_backend
    from spsbench.models.placement import Placement

    config, named = written.config, params["draft"] or ()
    drafts = {id: ModelRef(id=id, revision=params["draft_revision"]) for id in named}
    wanted = {id: with_draft(config.pair, draft) for id, draft in drafts.items()} or {"": config.pair}
    sources = {name: find_pair(pair) for name, pair in wanted.items()}
    before = None if written.identity is None else written.identity["target"]
    for source in sources.values():
        if before is not None and before != (now := source.target.identity()):
            why = f"the target is now {now['fingerprint']}, and {before['fingerprint']} wrote these texts."
            raise UsageError(why, flag="RUN", remedy="Run it again with this target.")
    device = resolve_device(config.device)
    placement = None if config.device_map is None else Placement.read(config.device_map)
    dtypes = config.model_dtype, config.draft_model_dtype
    count = threads(params["threads"] or str(config.threads))
    pairs: list[tuple[str, Pair]] = []
    for name, source in sources.items():
        asked = config.backend if placement is None else placement.backend(config.backend)
        backend, _ = pair_backend(asked, source, dtypes, device)
        beside = pairs[0][1] if pairs else None
        loaded = load_pair(source, dtypes, device, backend, count, beside, placement)
        pairs.append((name if len(sources) > 1 else "", loaded))
    return pairs


def sought_of(drafters: Mapping[Spec, Sequence[str]], pairs: Sequence[tuple[str, Pair]]) -> list[Sought]:
    """Every drafter, with rules of its own if any, and each draft; once if that makes no difference to it."""
    from spsbench.parts.whatif.replay.study import Sought

    found = []
    for drafter, rules in drafters.items():
        every = [Sought(drafter, pair, name, tuple(rules)) for name, pair in pairs]
        found += every if every[0].needs_draft else [replace(every[0], draft="")]
    return found


def times_of(params: Mapping[str, Any], default_s: float, drafters: Sequence[Spec]) -> float | Calibration:
    """Seconds for timing loops here, or another machine's times."""
    if params["times"] is None:
        return seconds(params["budget"], default_s)
    from spsbench.parts.whatif.replay.times import read_times

    found = read_times(params["times"])
    for drafter in drafters:
        found.require_covered(drafter)
    return found


def lookaheads(text: str) -> tuple[int, ...]:
    """``1..8`` as numbers from 1 on; a 0 beside others is dropped, for that is ArS."""
    from spsbench.config import parse_ks

    ks = tuple(k for k in parse_ks(text) if k)
    if not ks:
        remedy = "For example: --k 1..8."
        raise UsageError("it needs at least one value above 0, got 0.", flag="--k", remedy=remedy)
    return ks


def drafters(text: str) -> list[Spec]:
    """``model,lookup`` as drafters, each once."""
    from spsbench.drafters.registry import drafter_kind

    return list(dict.fromkeys(_specs(text, drafter_kind)))


def policies(text: str | None) -> list[Spec]:
    """``stop-below:tau=0.3,entropy`` as policies; none where none was typed."""
    from spsbench.drafters.registry import policy_kind

    return [] if text is None else _specs(text, policy_kind)


def replayed_rules(text: str | None, *, under_policies: bool, trees: bool) -> tuple[list[str], list[str]]:
    """``modified-rejection,block,one-hot``: the rules of chains and of trees, each once.

    Only those whose law over a text is known; where none is named of one or the other, its usual rule.
    """
    from spsbench.base.axes import BLOCK, MODIFIED_REJECTION, TREE_RULE
    from spsbench.drafters.registry import rule_kind
    from spsbench.parts.whatif.replay.trees import TREE_RULES

    of_chains = MODIFIED_REJECTION, BLOCK
    known = (*of_chains, *(TREE_RULES if trees else ()))
    text = text or MODIFIED_REJECTION
    named = list(dict.fromkeys(spec.name for spec in _specs(text, rule_kind)))
    for name in named:
        if name not in known:
            raise UsageError(
                f"{name} cannot be replayed: its loops over a given text are not known.",
                flag="--rule",
                remedy=f"Choose from {', '.join(known)}, or measure it with spsbench run.",
            )
    if under_policies and named != [MODIFIED_REJECTION]:
        raise UsageError(
            f"policies are replayed under {MODIFIED_REJECTION} alone.",
            flag="--policy",
            remedy="Leave --rule or --policy out, or measure both with spsbench run.",
        )
    own = [name for name in named if name not in of_chains]
    return [name for name in named if name in of_chains] or [MODIFIED_REJECTION], own or [TREE_RULE]


def _specs(text: str, kind_of: Callable[[str], Any]) -> list[Spec]:
    from spsbench.base.records import Spec

    specs = [Spec.parse(name) for name in text.split(",")]
    for spec in specs:
        kind_of(spec.name).settled(spec)
    return specs


_UNIT_S = {"s": 1.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(r"(?P<number>[^a-z]+) ?(?P<unit>s|min|h)", re.ASCII)


def _float(text: str) -> float:
    """The number, NaN where there is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def seconds(text: str | None, default: float, flag: str = "--budget") -> float:
    """What a time is given as: ``300``, ``90s``, ``5min``, ``1.5h``; a number alone is in seconds."""
    if text is None:
        return default
    match = _TIME.fullmatch(text.strip())
    found = _float(match["number"]) * _UNIT_S[match["unit"]] if match else _float(text)
    if not 0 <= found < math.inf:
        remedy = "Give 300, 90s, 5min or 2h."
        raise UsageError(f"it must be a time, got {text}.", flag=flag, remedy=remedy)
    return found


def number(
    text: str | None, flag: str, least: float, default: float, most: float = math.inf, *, whole: bool = False
) -> float:
    """A number from ``least`` to ``most``, or the default where none was given."""
    if text is None:
        return default
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = math.nan
    if value == math.inf or not least <= value <= most:
        kind = "whole number" if whole else "number"
        to = "" if math.isinf(most) else f" to {most:.0f}"
        raise UsageError(f"it must be a {kind} from {least:g}{to}, got {text}.", flag=flag)
    return value


def between(text: str | None, flag: str, low: float, high: float, default: float) -> float:
    """A number from ``low`` to ``high``, or the default where none was given."""
    value = default if text is None else _float(text)
    if not low <= value <= high:
        remedy = f"Give a number, e.g. {default:g}."
        raise UsageError(f"it must be between {low:g} and {high:g}, got {text}.", flag=flag, remedy=remedy)
    return value


def share(text: str, flag: str, *, zero: bool = False) -> float:
    """``1%`` or ``0.01``: a share below 1 and above 0, which ``zero`` allows too."""
    number, percent, rest = text.strip().partition("%")
    value = _float(number) / (100 if percent else 1)
    if rest or not 0 <= value < 1 or (value == 0 and not zero):
        allowed = "from 0 to below 1" if zero else "between 0 and 1"
        raise UsageError(f"it must be a share {allowed}, got {text}.", flag=flag, remedy="Give 1% or 0.01.")
    return value


_UNITS = {"": 1.0, "MB": 1e6, "GB": 1e9, "MIB": 2.0**20, "GIB": 2.0**30}


def memory_bytes(text: str | None) -> float:
    """``4GB`` or ``900MiB`` as bytes; without a limit infinity."""
    if text is None:
        return math.inf
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if found is None or found[2].upper() not in _UNITS:
        raise UsageError(f"it must be a size, got {text}.", flag="--memory", remedy="Give 4GB or 900MB.")
    return float(found[1]) * _UNITS[found[2].upper()]


def threads(text: str | None) -> int | None:
    """How many threads; None for as many as suit."""
    if text in (None, "auto"):
        return None
    from spsbench.base.environment import require_cpus

    count = int(number(text, "--threads", 1, 1, whole=True))
    require_cpus(count)
    return count


def sampling(params: Mapping[str, Any]) -> SamplingParams:
    """How texts were drawn, of ``--temperature``, ``--top-p``, ``--top-k``, ``--greedy`` and processing."""
    from spsbench.base.records import SamplingParams
    from spsbench.config.processing import PROCESSING
    from spsbench.config.resolve import resolve, typed_settings

    temperature = number(params["temperature"], "--temperature", 0, 1.0)
    top_p = between(params["top_p"], "--top-p", 0, 1, 1.0)
    if top_p == 0:
        raise UsageError("it must be above 0 and at most 1, got 0.", flag="--top-p")
    top_k = int(number(params["top_k"], "--top-k", 0, 0, whole=True))
    greedy = bool(params["greedy"]) or temperature == 0
    asked = typed_settings({name: params.get(name) for name in PROCESSING})
    process = resolve(asked).processing if asked else None
    return SamplingParams(1.0 if temperature == 0 else temperature, top_k, top_p, greedy, process=process)


FLOATS = ("float32", "bfloat16", "float16")
"""Dtypes of models whose weights are not rounded."""


def require_machine(params: Mapping[str, Any]) -> None:
    """Refuse wrong values of ``--pair``, ``--device``, ``--dtype``, ``--backend`` and ``--threads``.

    They are those of a run, whose configuration knows what may be written.
    """
    from spsbench.config.resolve import resolve, typed_settings

    names = ("pair", "device", "dtype", "backend", "threads")
    resolve(typed_settings({name: params.get(name) for name in names}))


def float_dtype(name: str | None, flag: str) -> str:
    """The dtype of a model whose weights are not rounded; ``auto`` where none was typed."""
    if name not in (None, "auto", *FLOATS):
        raise UsageError(f"{name} is unknown.", flag=flag, remedy=f"Choose from auto, {', '.join(FLOATS)}.")
    return name or "auto"


def concurrencies(text: str, flag: str = "--concurrency", most: int = 1024) -> tuple[int, ...]:
    """How many requests at once, in rising order."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= most for part in parts):
        why = f"it must be whole numbers from 1 to {most}, got {text}."
        raise UsageError(why, flag=flag, remedy=f"For example: {flag} 1,2,4,8.")
    return tuple(sorted({int(part) for part in parts}))


def seed(text: str | None) -> int:
    """Of ``--seed``; 0 where none was typed."""
    return int(number(text, "--seed", 0, 0, whole=True))


def readable(path: Path | None, flag: str, remedy: str) -> None:
    if path is not None and not path.is_file():
        raise UnavailableError(f"{path} is not a file.", flag=flag, remedy=remedy)
