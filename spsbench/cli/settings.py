"""From what was typed to a validated configuration and a directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spsbench.analysis.gate import GATES
from spsbench.config import RunConfig, resolve
from spsbench.errors import UsageError
from spsbench.records import number

_ABOUT_THE_COMMAND = {
    *("pair", "protocol", "config", "set"),  # sources of settings, not settings
    *("out", "resume", "fail_on", "json", "quiet", "debug", "no_score", "no_proof", "expect", "allow_mixed"),
}
_NUMBERS = (
    *("limit", "samples", "max_new_tokens", "seed", "trace", "threads"),
    *("temperature", "top_p", "top_k"),
)


def read_settings(params: Mapping[str, Any]) -> RunConfig:
    """The configuration that the options of ``run`` or ``sweep-k`` ask for.

    Args:
        params: every option by its name in Python, as typed.

    Raises:
        UsageError: options that contradict each other, or a bad value.
    """
    _check_directories(params)
    gates_of(params["fail_on"])
    # False is the absence of a switch: it must not overrule what a file says.
    flags = {
        name: value
        for name, value in params.items()
        if name not in _ABOUT_THE_COMMAND and value is not None and value is not False
    }
    if params["no_score"]:
        flags["score"] = False
    if params.get("no_proof"):
        flags["proof"] = False
    # What is no number stays a text, for the configuration to refuse.
    flags |= {name: number(flags[name]) for name in _NUMBERS if name in flags}
    source = params["config"] if params["resume"] is None else params["resume"] / "config.yaml"
    return resolve(flags, source, params["set"] or (), params["protocol"], params["pair"])


def _check_directories(params: Mapping[str, Any]) -> None:
    resume: Path | None = params["resume"]
    if resume is None:
        return
    for other in ("out", "config"):
        if params[other] is not None:
            raise UsageError(
                f"{params[other]} is given together with --resume.",
                flag=f"--{other}",
                remedy="A continued run has its own directory and settings: leave one of the two out.",
            )
    if not (resume / "run.json").is_file():
        raise UsageError(
            f"{resume} holds no run.",
            flag="--resume",
            remedy="Name the directory of a run, or begin a new one there with --out.",
        )


def gates_of(text: str | None) -> list[str]:
    """The gates that ``--fail-on`` names.

    Raises:
        UsageError: one of them is unknown.
    """
    named = [part.strip() for part in (text or "incomplete").split(",")]
    for gate in named:
        if gate not in GATES:
            raise UsageError(
                f"there is no gate {gate!r}.", flag="--fail-on", remedy=f"Choose from {', '.join(GATES)}."
            )
    return named
