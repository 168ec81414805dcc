"""A worker's side of the protocol: answer one request a line. Standard library only."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from spsbench.base import (
    BYE,
    DESCRIBE,
    FLOAT32,
    GENERATE,
    LENGTH,
    MTP,
    SAMPLER_ORDER,
    SMALLEST_SET,
    STOP,
    TOGETHER,
    VERSION,
    Answer,
    Ask,
    Described,
    Load,
    PeerError,
    Result,
    Sampling,
    Wave,
    failure,
    parsed,
    read,
    result,
)


class Served(Protocol):
    """An engine with its models loaded."""

    def describe(self) -> Described:
        """What was loaded, and the settings that it really runs with."""

    def generate(self, ask: Ask) -> Answer:
        """Write one sequence; it is timed here."""


def serve(load: Callable[[Load], Served]) -> None:
    """Answer requests on standard input until it ends or says ``bye``.

    What the engine prints goes to standard error: standard output is the protocol's alone.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    served: Served | None = None
    for line in sys.stdin:
        message = parsed(line)
        try:
            served, answer = _answered(message, served, load)
            answers.write(result(message["id"], answer))
        except Exception as error:
            traceback.print_exc()
            first = next(iter(str(error).strip().splitlines()), "")
            answers.write(failure(message["id"], f"{type(error).__name__}: {first}"))
        if message.get("method") == BYE:
            return


def _answered(
    message: dict[str, Any], served: Served | None, load: Callable[[Load], Served]
) -> tuple[Served | None, Result]:
    method = message.get("method")
    if method == BYE:
        return served, None
    if method == DESCRIBE:
        request = read(Load, message.get("params"))
        if request.protocol != VERSION:
            raise ValueError(f"protocol {request.protocol} is asked for, and this worker speaks {VERSION}")
        served = load(request)
        return served, served.describe()
    if method not in (GENERATE, TOGETHER):
        raise ValueError(f"{method!r} is not a method of the protocol")
    if served is None:
        raise ValueError("`describe` comes first")
    if method == TOGETHER:
        together = getattr(served, "together", None)
        if together is None:
            raise ValueError("it takes one request at a time")
        return served, together(read(Wave, message.get("params")))
    return served, served.generate(read(Ask, message.get("params")))


def float32_only(load: Load) -> None:
    if load.dtype != FLOAT32:
        raise ValueError(f"dtype {load.dtype} is not supported, only float32")


PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
PROCESSORS = ("min_p", "typical_p", *PENALTIES, "logit_bias", "min_new_tokens", "bad_words", "grammar")
"""The fields of ``Sampling`` that an engine may lack."""


def require_processors(sampling: Sampling, known: Sequence[str]) -> None:
    if missing := lacking(sampling, known):
        raise PeerError(f"cannot: it has no {', '.join(missing)}")


def lacking(sampling: Sampling, known: Sequence[str]) -> list[str]:
    plain = Sampling()
    steps = (name for name in PROCESSORS if getattr(sampling, name) != getattr(plain, name))
    return [name for name in steps if name not in known]


def rule_of(load: Load, rule: str) -> str:
    """A rule that says where drafts are not the draft model's, so that none is held against it."""
    by_head = load.speculation == MTP or bool(load.options.get("head"))
    return f"{rule}; drafts of a prediction head" if by_head else rule


def usual_settings(load: Load) -> dict[str, Any]:
    """``Described.settings`` of an engine without own settings, which warps in the usual order."""
    return {
        "dtype": load.dtype,
        "kv_dtype": load.dtype,
        "dynamic_quantisation": load.weights != FLOAT32,
        "prefix_cache": load.prefix_cache,
        "threads": load.threads,
        "top_p": SMALLEST_SET,
        "sampler_order": SAMPLER_ORDER,
        **{name: setting for name in ("device", "environment") if (setting := load.options.get(name))},
    }


def until_stop(ids: list[int], ask: Ask) -> tuple[list[int], str]:
    """Without what some engines hand out of the last loop beyond the end; and why it ended."""
    ids = ids[: ask.max_new_tokens]
    ends = [place for place, token in enumerate(ids) if token in ask.stop_ids]
    return (ids[: ends[0] + 1], STOP) if ends else (ids, LENGTH)
