"""External engines as arms: each started once, kept stopped between its requests, ended with the run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Container, Mapping, Set
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spsbench import __version__
from spsbench.base import files
from spsbench.base.axes import shown_engine
from spsbench.base.environment import library_versions
from spsbench.base.errors import UnavailableError
from spsbench.base.protocol import SAMPLER_ORDER, SMALLEST_SET, Described, Load, PeerGone, shortened
from spsbench.base.records import Arm
from spsbench.engines.arms import is_peer
from spsbench.models.pair import Pair
from spsbench.models.source import ModelSource, files_of
from spsbench.parts.external.engine import PeerEngine
from spsbench.parts.external.registry import find_peer
from spsbench.runner.messages import RULE_NOT_REPORTED
from spsbench.runner.planning import Plan


def model_folder(source: ModelSource) -> Path:
    """Find the whole Hugging Face folder of a loaded model: configuration, tokenizer and weights.

    Raises:
        UnavailableError: its files lie in no folder.
    """
    folder = files_of(source.location, source.commit)
    if folder is None:
        raise UnavailableError(
            f"the files of {source.name} are in no folder that an engine could read.",
            remedy="Download the model into one, and give that in its place.",
        )
    return folder.resolve()


LOGS = "engines"
"""Folder of the run directory that takes what external engines print."""

_Setting = tuple[str, bool, int]
"""Engine, whether it drafts, and K: what one process is started with; it serves every sampling."""


class PeerArms(ExitStack):
    """The processes behind a run's arms of other engines; they end with the block."""

    def __init__(self, plan: Plan, pair: Pair, logs: Path) -> None:
        super().__init__()
        self._plan, self._pair, self._logs = plan, pair, logs
        self._engines: dict[_Setting, PeerEngine] = {}
        self._described: dict[_Setting, Described | str] = {}
        self.left_out: dict[Arm, str] = {}

    def start(self, due: Container[Arm], starting: Callable[[str], None]) -> None:
        """Start engines and let them load their models; what cannot be is noted in ``left_out``."""
        for arm in (arm for arm in self._plan.arms if is_peer(arm) and arm in due):
            setting = _setting(arm)
            if setting not in self._described:
                with_draft = "with a draft" if arm.method == "sps" else "without a draft"
                try:
                    about = find_peer(arm.engine).about
                    starting(f"{arm.engine} ({f'{with_draft}; {about}' if about else with_draft})")
                    self._described[setting] = self.engine(arm).describe()
                except (PeerGone, UnavailableError) as error:
                    last = _last_line(self._logs / _log_name(arm))
                    self._described[setting] = f"{error} (its log ends: {last})" if last else str(error)
            described = self._described[setting]
            if isinstance(described, str):
                self.left_out[arm] = described

    def engine(self, arm: Arm) -> PeerEngine:
        """The engine of an arm; one process serves arms that differ in sampling alone."""
        setting = _setting(arm)
        if setting not in self._engines:
            kind = find_peer(arm.engine)
            source = self._plan.source
            info = self._pair.info
            load = Load(
                target=kind.converted(model_folder(source.target)),
                draft=kind.converted(model_folder(source.draft)) if arm.method == "sps" else None,
                k=arm.k,
                threads=info["threads"],
                context=self._plan.slots,
                dtype=info["target"]["dtype"],
            )
            log = self._logs / _log_name(arm)
            with files.folder_of(log, self._logs.parent):  # made here; a link in its place is refused
                peer = kind.open(load, log, True)
            self.callback(peer.close)
            vocab_size = self._pair.target.vocab_size
            self._engines[setting] = PeerEngine(arm.engine, peer, self._pair.tokenizer, vocab_size, arm.k)
        return self._engines[setting]

    def versions(self) -> dict[str, str]:
        """Return name, version and environment of each engine that was started, by how it was asked for."""
        by_engine = {
            engine: described
            for (engine, *_), described in self._described.items()
            if isinstance(described, Described)
        }
        where = {engine: described.settings.get("environment") for engine, described in by_engine.items()}
        return {
            engine: f"{described.engine} {described.version}"
            + (f" ({where[engine]})" if where[engine] else "")
            for engine, described in by_engine.items()
        }

    def rules(self) -> dict[str, str]:
        """Return the acceptance rule of each speculative arm of an external engine, as it reports."""
        return {
            arm.name: described.rule or RULE_NOT_REPORTED
            for arm in self._plan.arms
            if arm.method == "sps" and (described := self._description_of(arm)) is not None
        }

    def record(self) -> dict[str, Any]:
        """Return what run.json keeps of every arm under ``engines``; nothing without an external engine.

        See ``Described``; ``unseen`` is that of ``PeerEngine``, and ``separate`` says whether it answered in
        its own process.
        """
        record: dict[str, Any] = {}
        for arm in self._plan.arms if self._described else ():
            if not is_peer(arm):
                ours = _own_record(arm, self._pair)
                record[arm.name] = {**ours, "limits": [], "unseen": [], "separate": False}
            elif (described := self._description_of(arm)) is not None:
                description = {name: value for name, value in asdict(described).items() if name != "protocol"}
                unseen = list(self._engines[_setting(arm)].unseen)
                record[arm.name] = {**description, "unseen": unseen, "separate": True}
        return record

    def _description_of(self, arm: Arm) -> Described | None:
        described = self._described.get(_setting(arm)) if is_peer(arm) else None
        return described if isinstance(described, Described) else None


def require_any(arms: Set[Arm], left_out: Mapping[Arm, str]) -> None:
    """Refuse to go on where no arm is left."""
    if arms - left_out.keys():
        return
    reasons = {arm.engine: reason for arm, reason in reversed(list(left_out.items()))}
    raise UnavailableError(
        "; ".join(f"{engine}: {reason}" for engine, reason in reasons.items()) + ".",
        flag="--engine",
        remedy="Try the command by itself: docs/engine-protocol.md says what it reads and writes.",
    )


def _own_record(arm: Arm, pair: Pair) -> dict[str, Any]:
    """As ``Described``, of an engine of spsbench; transformers warps and multiplies as we do."""
    stock = arm.engine.startswith("hf-")
    dtype = pair.info["draft" if arm.method == "draft" else "target"]["dtype"]
    return {
        "engine": "transformers" if stock else "spsbench",
        "version": library_versions().get("transformers") if stock else __version__,
        "vocab_size": pair.target.vocab_size,
        "rule": None,
        "settings": {
            "dtype": dtype,
            "kv_dtype": dtype,
            "dynamic_quantisation": False,
            "prefix_cache": False,
            "threads": pair.info["threads"],
            "top_p": SMALLEST_SET,
            "sampler_order": SAMPLER_ORDER,
        },
    }


def _setting(arm: Arm) -> _Setting:
    return arm.engine, arm.method == "sps", arm.k


def _log_name(arm: Arm) -> str:
    """The engine as shown, with a hash of all of it: commands may differ only in their folders."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", shown_engine(arm.engine))[:40].strip("-.")
    digest = hashlib.sha256(arm.engine.encode()).hexdigest()[:6]
    return f"{name}-{digest}-{arm.method}" + (f"-k{arm.k}" if arm.k else "") + ".log"


def _last_line(log: Path) -> str:
    """Shortened, of those with text; the log's folder is removed if nothing else is measured."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    lines = [line for line in text.splitlines() if line.strip()]
    return shortened(lines[-1]) if lines else ""
