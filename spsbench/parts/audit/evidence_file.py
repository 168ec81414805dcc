"""Evidence of an engine's audit in one file, which others check without the engine.

Its first line says what was asked, of which weights, and what came of it after every text; the other lines
are the texts with their seeds. Who has the weights scores the texts again and must come to the same e-values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import file_digest, sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NoReturn, TypeGuard

from pydantic import TypeAdapter, ValidationError

import spsbench
from spsbench.base import (
    FLOAT32,
    Answer,
    Ask,
    Described,
    Load,
    PeerGone,
    UsageError,
    describe_environment,
    request_seed,
    rows,
    write_rows,
)
from spsbench.decode import bound
from spsbench.models import CausalLM, ModelSource, files_of
from spsbench.parts.audit import EVIDENCE_KEY as KEY
from spsbench.parts.audit.engine_audit import Decision, Effort, Row, Setting, Subject, Watch, audit_engine
from spsbench.parts.audit.messages.texts import OtherDecision, OtherEValues
from spsbench.parts.external.registry import PeerKind
from spsbench.runner import derive_seed
from spsbench.store import Evidence
from spsbench.tasks import COLDEST

Texts = Sequence[dict[str, Any]]

VERSION = 1

_WEIGHTS = (".safetensors", ".bin", ".gguf", ".onnx")
_APART = 0.01
"""How far log10 e-values may differ between two machines, relative to their size where that is above 1."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A setting, and what was said of it; ``path`` is log10 of the e-value after each text, None where
    nothing could be said yet."""

    setting: Setting
    engine: Described
    decision: Decision
    path: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Header:
    """The first line.

    Attributes:
        asked: pair or models, by the names of their options.
        weights: SHA-256 of every file of weights, of target and draft.
        texts: SHA-256 of the lines of texts.
    """

    spsbench_evidence: Literal[1]
    spsbench: str
    asked: dict[str, str | int | bool | None]
    weights: Sequence[dict[str, str]]
    prompts: Sequence[tuple[int, ...]]
    stop_ids: Sequence[int]
    seed: int
    effort: Effort
    rows: Sequence[Judged]
    texts: str
    environment: dict[str, Any]


@dataclass(slots=True)
class Paths:
    """Collects e-values as an audit goes on: a ``Watch`` that hands on to another."""

    then: Watch = lambda *_: None
    log10_e: dict[str, list[float | None]] = field(default_factory=dict)

    def __call__(self, setting: Setting, count: int, evidence: Evidence | None, bound: float | None) -> None:
        self.log10_e.setdefault(setting.name, []).append(evidence and evidence["log10_e_value"])
        self.then(setting, count, evidence, bound)


def weights_of(source: ModelSource) -> dict[str, str]:
    """Return the SHA-256 of a model's files of weights, by name."""
    folder = files_of(source.location, source.revision)
    sha256_of = {}
    for path in sorted(folder.iterdir() if folder is not None else ()):
        if path.suffix in _WEIGHTS:
            with path.open("rb") as file:
                sha256_of[path.name] = file_digest(file, "sha256").hexdigest()
    return sha256_of


def write(
    path: Path,
    audited: Sequence[Row],
    *,
    subject: Subject,
    sources: Sequence[ModelSource],
    effort: Effort,
    request: Mapping[str, Any],
    seed: int,
    paths: Paths,
    folder: Path,
) -> None:
    """Write what an audit found and the texts in its folder."""
    texts = [
        {"setting": number, **row}
        for number, each in enumerate(audited)
        for name in each.setting.files
        if (folder / name).exists()
        for _, row in rows(folder / name, "--evidence")
    ]
    header: dict[str, Any] = {
        KEY: VERSION,
        "spsbench": spsbench.__version__,
        "asked": request,
        "weights": [weights_of(source) for source in sources],
        "prompts": subject.prompts,
        "stop_ids": sorted(subject.stop_ids),
        "seed": seed,
        "effort": asdict(effort),
        "rows": [
            {
                "setting": {**_how_run(each.setting), "sampling": each.setting.sampling.record()},
                "engine": asdict(each.described),
                "decision": each.decision,
                "path": paths.log10_e.get(each.setting.name, []),
            }
            for each in audited
        ],
        "texts": _digest(texts),
        "environment": describe_environment(),
    }
    write_rows(path, [header, *texts])


def _how_run(setting: Setting) -> dict[str, Any]:
    names = ("k", "in_flight", "prefix_cache", "weights")
    return {name: getattr(setting, name) for name in names}


def _digest(texts: Iterable[Mapping[str, Any]]) -> str:
    digest = sha256()
    for row in texts:
        digest.update(json.dumps(row, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def read(path: Path, flag: str) -> tuple[Header, Texts] | None:
    """Return header and texts of evidence; None where a file is something else."""
    lines = rows(path, flag)
    _, first = next(lines, (0, {}))
    if KEY not in first:
        return None
    if type(first[KEY]) is not int or first[KEY] != VERSION:
        _refuse(path, flag, why=f"is evidence of version {first[KEY]}, and {VERSION} is known")
    try:
        header = TypeAdapter(Header).validate_python(first)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        _refuse(path, flag, f"is not whole: {where}: {error.errors()[0]['msg']}")
    try:
        _require_plausible(first)
        texts = [row for _, row in lines]
        for row in texts:
            _require_plausible(row)
        _require_header(header)
        _require_texts(header, texts)
    except ValueError as error:
        _refuse(path, flag, f"is not whole: {error}")
    if _digest(texts) != header.texts:
        _refuse(path, flag, why="was changed: its texts are not those that it was written with")
    try:
        _require_asked(header, texts)
    except ValueError as error:
        _refuse(path, flag, f"was changed: {error}")
    return header, texts


_LONGEST_NAME, _LARGEST = 4_096, 1 << 63


def _require_plausible(value: Any, where: str = "") -> None:
    """Refuse what no audit writes into a line of JSON, in the order of the file.

    Numbers that are none (JSON itself knows no NaN) or that no machine counts to, and endless names.
    """
    if isinstance(value, Mapping):
        for name, each in value.items():
            _require_plausible(name[: _LONGEST_NAME + 1], where)
            _require_plausible(each, f"{where}.{name}".lstrip("."))
    elif isinstance(value, list):
        for place, each in enumerate(value):
            _require_plausible(each, f"{where}.{place}".lstrip("."))
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is not a finite number")
    elif isinstance(value, int) and abs(value) >= _LARGEST:
        raise ValueError(f"{where} is a number beyond 2^63")
    elif isinstance(value, str) and len(value) > _LONGEST_NAME:
        name = where[:_LONGEST_NAME] or "a name"
        raise ValueError(f"{name} has more than {_LONGEST_NAME:,} characters")


_MOST_IDS = 1 << 24
_MOST_TEXTS = 1_000_000
_MOST_K = 1_000
_HOTTEST = 100
_FORMAT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")


def _are_token_ids(value: Any) -> bool:
    """As far as that shows without the tokenizer."""
    whole = isinstance(value, (list, tuple)) and len(value) <= _MOST_IDS
    return whole and all(type(each) is int and 0 <= each < 1 << 31 for each in value)


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _require_header(header: Header) -> None:
    if not header.rows:
        raise ValueError("rows is empty")
    if not header.prompts or not all(prompt and _are_token_ids(prompt) for prompt in header.prompts):
        raise ValueError("prompts has to hold prompts of at least one token id")
    if not _are_token_ids(header.stop_ids):
        raise ValueError("stop_ids has to hold token ids")
    if len(header.weights) != 2:
        raise ValueError("weights has to hold the hashes of target and draft")
    if not (0 < header.effort.texts <= _MOST_TEXTS and 0 < header.effort.max_new_tokens <= _MOST_IDS):
        raise ValueError("effort: texts and max_new_tokens have to be counts above 0")
    for number, each in enumerate(header.rows):
        sampling = each.setting.sampling
        how = f"rows.{number}.setting"
        if not (0 <= (each.setting.k or 0) <= _MOST_K and 1 <= each.setting.in_flight <= _MOST_TEXTS):
            raise ValueError(f"{how}: k lies from 0 to {_MOST_K:,}, in_flight from 1 on")
        heat = COLDEST <= sampling.temperature <= _HOTTEST
        lawful = heat and 0 < sampling.top_p <= 1 and 0 <= sampling.top_k < 1 << 31
        if not (sampling.greedy or lawful):
            law = f"a temperature from {COLDEST} to {_HOTTEST}, top_p above 0 and at most 1, top_k from 0 on"
            raise ValueError(f"{how}.sampling: {law}")
        if each.setting.weights != FLOAT32 and not _FORMAT.fullmatch(each.setting.weights):
            raise ValueError(f"{how}.weights is the name of a format")


def _require_texts(header: Header, texts: Texts) -> None:
    seen = set[tuple[int, int]]()
    for number, row in enumerate(texts, start=2):
        setting, request = row.get("setting"), row.get("request")
        if type(setting) is not int or not 0 <= setting < len(header.rows):
            raise ValueError(f"line {number}: setting is the number of a row")
        if not _is_count(request):
            raise ValueError(f"line {number}: request is a count")
        if not all(_are_token_ids(row.get(name)) and row[name] for name in ("prompt_ids", "completion_ids")):
            raise ValueError(f"line {number}: prompt_ids and completion_ids have to be token ids")
        if not all(_is_count(row.get(name, 0)) for name in ("free", "max_new_tokens")):
            raise ValueError(f"line {number}: free and max_new_tokens are counts")
        if type(row.get("retokenised")) is not bool:
            raise ValueError(f"line {number}: retokenised is true or false")
        if request and (setting, request) in seen:
            raise ValueError(f"line {number}: request {request} stands twice")
        seen.add((setting, request))


def require_fits(header: Header, texts: Texts, target: CausalLM, flag: str) -> None:
    """Refuse token ids that the local weights lack, and texts beyond their window.

    Raises:
        UsageError: the evidence is of another model, or was changed.
    """
    every = [*header.prompts, *(row["prompt_ids"] + row["completion_ids"] for row in texts)]
    longest = max(map(len, every))
    largest = max(max(ids, default=0) for ids in [*every, header.stop_ids])
    if largest >= target.vocab_size:
        why = f"it holds token id {largest}, and the model has {target.vocab_size}"
    elif longest > target.context_window:
        why = f"it holds a text of {longest} tokens, and the model's window has {target.context_window}"
    else:
        return
    raise UsageError(f"{why}.", flag=flag, remedy="Name the model that was audited.")


def _refuse(path: Path, flag: str, why: str) -> NoReturn:
    raise UsageError(f"{path} {why}.", flag=flag, remedy="Ask for the file that the audit wrote.")


def _require_asked(header: Header, texts: Texts) -> None:
    """Refuse what an audit would not have asked for.

    Its seeds, and prompts of whole texts, follow from its own seed.
    """
    for row in texts:
        number = row["request"]
        if number == 0:
            continue
        if row.get("seed") != request_seed(derive_seed(header.seed, "audit", number - 1, "text")):
            raise ValueError(f"request {number} has another seed than the audit's")
        prompt = header.prompts[(number - 1) % len(header.prompts)]
        if not header.effort.shared_prefixes and tuple(row.get("prompt_ids", ())) != prompt:
            raise ValueError(f"request {number} has another prompt than the audit's")


class _Recorded:
    """A peer that answers nothing more."""

    def __init__(self, described: Described) -> None:
        self._described = described

    def describe(self) -> Described:
        return self._described

    def generate(self, ask: Ask) -> Answer:
        raise PeerGone("the evidence holds no more texts")

    def close(self) -> None:
        pass


def scored_again(
    header: Header,
    texts: Texts,
    sources: Sequence[ModelSource],
    models: tuple[CausalLM, CausalLM],
    watch: Paths,
) -> Iterator[Row]:
    """Audit the texts alone, setting by setting."""
    require_fits(header, texts, models[0], "FILE")
    stops = frozenset(header.stop_ids)
    tokenizer = sources[0].tokenizer
    settings = [
        Setting(bound(each.setting.sampling, tokenizer, stops), **_how_run(each.setting))
        for each in header.rows
    ]
    engines = {_peer_of(each.setting): each.engine for each in header.rows}

    def opened(load: Load, log: Path, paused: bool) -> _Recorded:
        return _Recorded(engines[load.k, load.in_flight, load.prefix_cache])

    folders = Path(sources[0].location), Path(sources[1].location)
    kind = PeerKind("evidence", opened)
    subject = Subject(kind, models, folders, header.prompts, header.stop_ids, None)
    effort = replace(header.effort, budget_s=-1.0, probes=0)
    with TemporaryDirectory() as place:
        for number, setting in enumerate(settings):
            for name, probes in zip(setting.files, (False, True), strict=True):
                matching = [
                    row for row in texts if row["setting"] == number and (row["request"] == 0) is probes
                ]
                write_rows(Path(place) / name, matching)
        yield from audit_engine(subject, settings, effort, header.seed, Path(place), lambda _: None, watch)


def _peer_of(setting: Setting) -> tuple[int, int, bool]:
    return setting.lookahead, setting.in_flight, setting.prefix_cache


def differences(
    header: Header, audited: Sequence[Row], paths: Paths
) -> tuple[list[OtherDecision | OtherEValues], float]:
    """What re-scoring contradicts, and the largest difference of log10 e-values."""
    wrong = list[OtherDecision | OtherEValues]()
    most = 0.0
    again = {row.setting.name: row for row in audited}
    for each in header.rows:
        row = again[each.setting.name]
        if row.decision != each.decision:
            wrong.append(OtherDecision(each.setting.name, row.decision, each.decision))
            continue
        one = each.path
        other = paths.log10_e.get(each.setting.name, [])
        pairs = [(a or 0.0, b or 0.0) for a, b in zip(one, other, strict=False)]
        apart = max((abs(a - b) / max(1.0, abs(a)) for a, b in pairs), default=0.0)
        most = max(most, apart)
        if len(one) != len(other) or apart > _APART:
            wrong.append(OtherEValues(each.setting.name))
    return wrong, most


def missing(texts: Texts) -> int:
    """Return how many requests have no text: failed ones, and texts that were removed."""
    last: dict[int, int] = {}
    for row in texts:
        last[row["setting"]] = max(last.get(row["setting"], 0), row["request"])
    whole = {(row["setting"], row["request"]) for row in texts if row["request"] > 0}
    return sum(last.values()) - len(whole)
