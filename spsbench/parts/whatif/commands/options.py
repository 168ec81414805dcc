"""The options of ``advise`` and ``replay``, as typed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spsbench.cli import Common


@dataclass(frozen=True, kw_only=True)
class AdviseOptions(Common):
    """The options of ``advise``; those from ``hardware`` on are of hardware that is not here."""

    task: str | None
    pair: str | None
    target: str | None
    draft: list[str] | None
    data: str | None
    limit: str | None
    k: str | None
    drafter: str | None
    tree: str | None
    sampling: str | None
    budget: str | None
    choose: str | None
    format: str | None
    times: Path | None
    out: Path | None
    no_check: bool
    turns: str | None
    temperature: str | None
    top_p: str | None
    top_k: str | None
    max_new_tokens: str | None
    seed: str | None
    device: str | None
    dtype: str | None
    threads: str | None
    backend: str | None
    hardware: str | None
    alpha: str | None
    batch: str | None
    context: str | None


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(Common):
    """The options of ``replay``."""

    run: Path | None
    drafter: str | None
    draft: list[str] | None
    k: str | None
    curve: bool
    explain: bool
    tree: str | None
    rule: str | None
    policy: str | None
    sampling: str | None
    budget: str | None
    times: Path | None
    out: Path | None
    pair: str | None
    target: str | None
    temperature: str | None
    top_p: str | None
    top_k: str | None
    device: str | None
    dtype: str | None
    backend: str | None
    threads: str | None
