"""Settings of earlier versions as they are written now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spsbench.base.axes import BEAM
from spsbench.base.errors import UsageError
from spsbench.base.records import Spec
from spsbench.config.processing import PROCESSING, parse_processing
from spsbench.config.together import is_given

BEAM_SETTINGS = {
    "beams": "width",
    "draft_beams": "draft_width",
    "length_penalty": "penalty",
    "early_stopping": "early_stopping",
}
"""What a setting is called as an option of the sampling ``beam``."""


WITHOUT_EFFECT = ("kernels", "allow_code_exec")


def as_now(settings: Mapping[str, Any], *, of_run: bool = False) -> dict[str, Any]:
    """Write settings of an earlier version as they are written now; what has no effect any more is dropped.

    Args:
        of_run: that has begun, whose settings are all there: each turn of ``messages`` was asked before there
            was a setting for it.

    Raises:
        UsageError: a dtype or a time is asked for in the old way beside the new one.
    """
    now = {name: value for name, value in settings.items() if name not in WITHOUT_EFFECT}
    if of_run:
        now.setdefault("turns", "all")
    old = {name: now.pop(name, None) for name in ("quantise", "draft_dtype", "draft_quantise")}
    if any(value is not None for value in old.values()):
        target, _, draft = str(now.get("dtype", "auto")).partition(":draft=")
        if draft and old["draft_dtype"] not in (None, "auto"):
            raise _given_twice("draft_dtype", old["draft_dtype"], f"dtype {now['dtype']}")
        target = _with_bits("quantise", old["quantise"], "dtype", target)
        draft = _with_bits(
            "draft_quantise", old["draft_quantise"], "draft_dtype", draft or old["draft_dtype"] or "auto"
        )
        now["dtype"] = f"{target}:draft={draft}"
    if (unsafe := now.pop("unsafe_exec", False)) and now.get("score", True) is True:
        now["score"] = "unsafe" if unsafe is True else unsafe
    for name in ("budget", "budget_s"):
        if (budget := now.pop(name, None)) is not None:
            now["until"] = _with_time(now.get("until"), name, budget)
    if (where := now.pop("draft_placement", "first")) != "first" and now.get("tensor_parallel", 1) != 1:
        now["tensor_parallel"] = f"{now['tensor_parallel']}:draft={where}"
    return now


def _with_bits(name: str, bits: str | None, beside: str, dtype: str) -> str:
    """Return a dtype with the quantised weights that a former setting named separately."""
    if bits is None:
        return dtype
    if dtype in ("int8", "int4") or "+" in dtype:
        raise _given_twice(name, bits, f"{beside} {dtype}")
    return f"{dtype}+{bits}"


def _with_time(until: object, name: str, budget: object) -> str:
    """Return where a run ends, with the time limit that a former setting named separately."""
    time = f"{budget}s" if isinstance(budget, (int, float)) else str(budget)
    if until is None:
        return time
    if not str(until).startswith("ci=") or "," in str(until):
        raise _given_twice(name, budget, f"until {until}")
    return f"{until},{time}"


def _given_twice(name: str, value: object, beside: str) -> UsageError:
    why = f"{value} is given together with {beside}, which says it already."
    return UsageError(why, flag=name, remedy="Leave one of the two out.")


def merged(sources: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Merge settings, the later over the earlier; tags one by one, those of processing too, into ``process``.

    The keys say where ``process`` is written, for errors.
    """
    settings: dict[str, Any] = {}
    process: dict[str, Any] = {}
    for flag, source in sources.items():
        process_settings = source.get("process")
        if isinstance(process_settings, (str, list, tuple)):
            texts = [process_settings] if isinstance(process_settings, str) else process_settings
            process_settings = parse_processing([str(text) for text in texts], flag)
        tags = settings.get("tags")
        settings |= {name: value for name, value in source.items() if name not in ("process", *PROCESSING)}
        if isinstance(tags, Mapping) and isinstance(source.get("tags"), Mapping):
            settings["tags"] = {**tags, **source["tags"]}
        if isinstance(process_settings, Mapping):
            process |= process_settings
        elif process_settings is not None:  # the check of the settings says what it must be
            settings["process"] = process_settings
        process |= {name: source[name] for name in PROCESSING if source.get(name) is not None}
    return {"process": process} | settings


def with_beam_options(
    settings: Mapping[str, Any], samplings: Sequence[Any], label: Callable[[str], str]
) -> dict[str, Any]:
    """Return settings whose sampling has the options of a beam search (``beam:width=4``), which win.

    Raises:
        UsageError: no sampling is a beam search.
    """
    others = {name: value for name, value in settings.items() if name not in BEAM_SETTINGS}
    beam = {name: settings[name] for name in BEAM_SETTINGS if is_given(settings.get(name))}
    if not beam:
        return others
    specs = [Spec.parse(str(name)) for name in samplings]
    if BEAM not in [spec.name for spec in specs]:
        name, value = next(iter(beam.items()))
        raise UsageError(
            f"{value} belongs to a beam search, and no sampling is {BEAM}.",
            flag=label(name),
            remedy=f"Give --sampling {BEAM}:{BEAM_SETTINGS[name]}={value}, or leave it out.",
        )
    options = {BEAM_SETTINGS[name]: value for name, value in beam.items()}
    whole = [
        Spec(BEAM, tuple(sorted((options | dict(spec.options)).items()))) if spec.name == BEAM else spec
        for spec in specs
    ]
    return others | {"samplings": [str(spec) for spec in whole]}
