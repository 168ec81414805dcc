"""One short context where an engine's next token is not the target's, measured over many seeds.

Contexts are taken from the drawn texts, where draft and target, or the target and the law that explains the
texts best, are farthest apart. A few are tried with few outputs, short ones first. The clearest spot is
measured over new seeds; if it shows nothing, the next, up to three, and the p-value is that of all of them.
"""

from __future__ import annotations

import ast
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from pprint import pformat
from typing import Any

import torch
from torch import Tensor

import spsbench
from spsbench.base import (
    WORKER,
    Ask,
    Peer,
    PeerError,
    PeerGone,
    SamplingParams,
    Spec,
    checked,
    protocol,
    request_seed,
    write_text,
)
from spsbench.decode import warp
from spsbench.engines import Reading, own_entries, teacher_force
from spsbench.models import CausalLM
from spsbench.parts.audit import repro_parts
from spsbench.parts.audit.engine_audit import Row, Subject
from spsbench.parts.audit.localise import MOST_TEXTS, Law, read_under
from spsbench.parts.audit.messages.faults import LEAVES_OUT_STOPS
from spsbench.parts.audit.messages.scripts import ABOUT, ScriptHeader, ScriptTitle
from spsbench.parts.audit.repro_parts import LEAST, LEVEL, followers, p_value, seeds
from spsbench.parts.external import messages, serving, workers
from spsbench.parts.external.engine import sampling_of
from spsbench.parts.external.registry import NAMED, name_of
from spsbench.parts.verify.subject import steady
from spsbench.runner import derive_seed, reading_of
from spsbench.stats import ALARM
from spsbench.store import ReproFacts

_TRIED = 3
"""Contexts that are tried of each kind: the first token after them is wrong, or a later one."""

_MEASURED = 3
"""Contexts that are measured at most."""

_CLEAR = 1e-6
"""p-value of a try after which no longer context is tried."""

_RARE = 0.02
"""Probability from which a token is counted by itself."""

_KEPT = 0.9
"""Share of its score that a context keeps when it is shortened."""

_LENGTHS = (8, 16, 32, 64, 128)
_MOST_CELLS, _TOP = 200, 24

_GAP = 1e-3  # of logits: below it rounding decides


@dataclass(frozen=True, slots=True)
class Draws:
    """How many outputs are asked for."""

    tried: int = 40
    measured: int = 300
    budget_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Spot:
    """One token of an output: the one after ``prefix``, after ``context``; both are token ids."""

    context: tuple[int, ...]
    prefix: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """What a spot shows; ``expected`` is the target's row there, as in a script."""

    spot: Spot
    outputs: int
    counts: Counter[int]
    expected: repro_parts.Row
    p_value: float


def reproducible(rows: Iterable[Row]) -> Row | None:
    """Return the alarm with the most evidence, a sampled one first.

    None if no request that runs alone has one.
    """
    alarms = [row for row in rows if row.decision == ALARM and row.convention is None and row.setting.alone]

    def evidence(row: Row) -> tuple[bool, float]:
        proof = row.result.evidence
        return not row.setting.sampling.greedy, (proof and proof["log10_e_value"]) or 0.0

    return max(alarms, key=evidence, default=None)


def reproduce(
    row: Row,
    subject: Subject,
    folder: Path,
    *,
    names: tuple[str, str],
    max_new_tokens: int,
    seed: int,
    draws: Draws | None = None,
) -> ReproFacts:
    """Find a context, measure it, and write ``repro.py``."""
    setting = row.setting
    draws = draws or Draws()
    if setting.sampling.greedy:
        draws = replace(draws, tried=LEAST, measured=2 * LEAST)  # another seed is the same text
    load = subject.load(setting.lookahead, max_new_tokens)
    peer = subject.kind.open(load, folder / "engine.log", False)
    try:
        search = _Search(row, subject, peer, draws, seed)
        shown, first = search.clearest()
    finally:
        peer.close()
    spot, (likely, rest) = shown.spot, shown.expected
    case: dict[str, Any] = {
        "prompt_ids": list(spot.context),
        "prefix_ids": list(spot.prefix),
        "max_new_tokens": setting.lookahead + 2,
        "stop_ids": list(subject.stop_ids),
        "sampling": setting.sampling.record(),
        "k": setting.lookahead,
        "threads": subject.threads,
        "dtype": subject.dtype,
        "vocab_size": subject.models[0].vocab_size,
        **options_of(subject.kind.name, subject.threads),
        "held_against": None if row.against is None else row.against.name,
        "context": load.context,
        "prefix_probability": search.reached(spot),
        "draws": draws.measured,
        "first_seed": first,
        "expected": dict(likely),
        "rest": rest,
    }
    write_text(folder / "repro.py", script(subject.kind.name, str(_title(row, shown, names)), case))
    return {
        "setting": setting.name,
        "script": "repro.py",
        "context": list(spot.context),
        "prefix": list(spot.prefix),
        "outputs": shown.outputs,
        "observed": {str(token): count for token, count in shown.counts.most_common()},
        "expected": {str(token): value for token, value in likely.items()},
        "rest": rest,
        "p_value": shown.p_value,
        "clear": shown.p_value < LEVEL,
    }


def _title(row: Row, shown: Shown, names: tuple[str, str]) -> ScriptTitle:
    target, draft = names
    return ScriptTitle(
        engine=f"{row.described.engine} {row.described.version}",
        setting=row.setting.name,
        context=len(shown.spot.context),
        prefix=shown.spot.prefix,
        tokens=sum(shown.counts.values()),
        outputs=shown.outputs,
        p_value=repro_parts.shown(shown.p_value),
        is_clear=shown.p_value < LEVEL,
        law=None if row.against is None else row.against.name,
        target=target,
        draft=draft if row.setting.lookahead else None,
    )


class _Search:
    """Looks for the spot that shows an alarm most clearly."""

    def __init__(self, row: Row, subject: Subject, peer: Peer, draws: Draws, seed: int) -> None:
        self._row = row
        self._subject = subject
        self._peer = peer
        self._draws = draws
        self._seed, self._end = seed, time.monotonic() + draws.budget_s

    def clearest(self) -> tuple[Shown, int]:
        """Return the clearest spot measured over new seeds, and the context and outputs behind it."""
        tried: list[Shown] = []
        places = contexts(self._row, self._subject.models, self._subject.stop_ids)
        for number, context in enumerate(sorted(places, key=len)):
            if any(each.p_value < _CLEAR for each in tried):
                break  # the next ones are longer
            outputs = self._valid_outputs(context, self._first("try", number), self._draws.tried)
            tried += [self._measured_spot(spot, outputs) for spot in self._spots(context, outputs)]
        if not tried:
            raise PeerGone("no context had enough outputs that begin alike")
        best: dict[tuple[int, ...], Shown] = {}  # of each context, the clearest first
        for each in sorted(tried, key=lambda each: each.p_value):
            best.setdefault(each.spot.context, each)
        measured = []
        for number, each in enumerate(list(best.values())[:_MEASURED]):
            first = self._first("measured", number)
            outputs = self._valid_outputs(each.spot.context, first, self._draws.measured)
            measured.append((self._measured_spot(each.spot, outputs), first))
            if measured[-1][0].p_value < LEVEL / _MEASURED:
                break
        shown, first = min(measured, key=lambda each: each[0].p_value)
        return replace(shown, p_value=min(1.0, len(measured) * shown.p_value)), first

    def reached(self, spot: Spot) -> float:
        """The probability that an output begins with the prefix."""
        probability = 1.0
        for place, token in enumerate(spot.prefix):
            logits = self._logits(Spot(spot.context, spot.prefix[:place]))
            row, _ = expected(logits, self._row.setting.sampling, self._row.against, [token])
            probability *= row.get(token, 0.0)
        return probability

    def _spots(self, context: tuple[int, ...], outputs: Sequence[Sequence[int]]) -> Iterator[Spot]:
        """One for each place: after the most frequent prefix, while enough outputs have it."""
        for place in range(self._row.setting.lookahead + 1):
            prefixes = Counter(tuple(ids[:place]) for ids in outputs if len(ids) > place)
            prefix, count = max(prefixes.items(), key=lambda item: item[1], default=((), 0))
            if count < LEAST:
                return
            spot = Spot(context, prefix)
            if _is_firm(self._logits(spot), self._row.setting.sampling):
                yield spot

    def _measured_spot(self, spot: Spot, outputs: Sequence[Sequence[int]]) -> Shown:
        counts = followers(outputs, spot.prefix)
        row = expected(self._logits(spot), self._row.setting.sampling, self._row.against, counts)
        return Shown(spot, len(outputs), counts, row, p_value(counts, row))

    @torch.inference_mode()
    def _logits(self, spot: Spot) -> Tensor:
        """[1, V] the target's."""
        target = self._subject.models[0]
        ids = torch.tensor([*spot.context, *spot.prefix], device=target.device)
        return target.score_uncached(ids, last=1).float()

    def _valid_outputs(self, context: tuple[int, ...], first: int, count: int) -> list[list[int]]:
        """Up to the budget."""
        sampling = sampling_of(self._row.setting.sampling)
        outputs = []
        for seed in seeds(first, count):
            if time.monotonic() > self._end:
                break
            length = self._row.setting.lookahead + 2  # one loop, and a token of the next
            ask = Ask(list(context), length, list(self._subject.stop_ids), [], sampling, seed)
            try:
                answer = checked(self._peer.generate(ask), ask, self._subject.models[0].vocab_size)
            except PeerGone:
                raise
            except PeerError:
                continue
            outputs.append(answer.output_ids)
        return outputs

    def _first(self, what: str, number: int) -> int:
        return request_seed(derive_seed(self._seed, "repro", number, what))


def _is_firm(logits: Tensor, sampling: SamplingParams) -> bool:
    """Rounding cannot change which tokens are possible; logits: [1, V]."""
    if sampling.greedy:
        best = logits.topk(2).values[0]
        return float(best[0] - best[1]) > _GAP
    return bool(steady(logits, sampling, slack=1e-4))


def expected(
    logits: Tensor, sampling: SamplingParams, law: Law | None, observed: Iterable[int] = ()
) -> repro_parts.Row:
    """Return the target's row from logits [1, V], as probabilities by token."""
    row = (warp(logits, sampling) if law is None or law.share else law.warped(logits))[0].double()
    possible = int((row > 0).sum())
    few = possible <= _MOST_CELLS
    top = row.topk(possible if few else _TOP).indices.tolist()
    every = {*top, *(token for token in observed if row[token] > 0)}
    known = {
        token: float(f"{float(row[token]):.7g}") for token in sorted(every, key=lambda t: -float(row[t]))
    }
    return known, 0.0 if few else max(0.0, 1.0 - sum(known.values()))


# --- contexts -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Start:
    """A context of a text."""

    score: float
    later: bool
    ids: tuple[int, ...]
    onwards: tuple[int, ...]


def contexts(row: Row, models: tuple[CausalLM, CausalLM], stop_ids: Sequence[int]) -> list[tuple[int, ...]]:
    """Return contexts to try, shortened; the best ones whole too."""
    starts: list[_Start] = []
    for each in row.result.drawn[:MOST_TEXTS]:
        starts += _best_starts(reading_of(each, models), row, each.prompt, stop_ids)
    starts.sort(key=lambda start: -start.score)
    best: list[_Start] = []
    for later in (False, True):
        best += [start for start in starts if start.later == later][:_TRIED]
    short = [_shortest_end(start, row, models, stop_ids) for start in best]
    whole = [start.ids for start in best[:1] + best[_TRIED : _TRIED + 1]]
    return list(dict.fromkeys([*short, *whole]))


def _best_starts(
    reading: Reading, row: Row, prompt: tuple[int, ...], stop_ids: Sequence[int]
) -> list[_Start]:
    """One for the first token of a text, one for a later one."""
    apart = _row_distances(reading, row, stop_ids)
    law = read_under(reading, row.against)
    probability = own_entries(law.q, reading.tokens).double()
    tokens = reading.tokens.tolist()
    reach = row.setting.lookahead + 1
    at_first, later = list[_Start](), list[_Start]()
    for start in range(len(tokens)):
        scores = _scores(probability[start : start + reach], apart[start : start + reach])
        ids = (*prompt, *tokens[:start])
        onwards = tuple(tokens[start : start + reach])
        at_first.append(_Start(float(scores[0]), False, ids, onwards))
        if len(scores) > 1:
            later.append(_Start(float(scores[1:].max()), True, ids, onwards))
    return [max(starts, key=lambda start: start.score) for starts in (at_first, later) if starts]


def _scores(own: Tensor, apart: Tensor) -> Tensor:
    """[n] the distance at each place times the probability of reaching it."""
    reached = torch.cat([own.new_ones(1), own.cumprod(0)[:-1]])
    return reached * apart


def _row_distances(reading: Reading, row: Row, stop_ids: Sequence[int]) -> Tensor:
    """[n] how far the engine's rows may be from the target's, in total variation."""
    kept_rows = read_under(reading, row.against)
    distances = torch.zeros(len(reading.tokens), dtype=torch.float64)
    if row.setting.lookahead and kept_rows.p is not None:
        distances = _distance(kept_rows.q, kept_rows.p)
    if row.located is not None:
        best = row.located.fits[0].law.rows(reading)
        distances = torch.maximum(distances, _distance(kept_rows.q, best))
    if stop_ids and row.result.leading is not None and row.result.leading[1] == LEAVES_OUT_STOPS:
        stops = kept_rows.q[:, list(stop_ids)].sum(-1).double()
        distances = torch.maximum(distances, stops.where(stops < 1, 0.0))
    return distances + 0.5 * reading.impossible


def _distance(q: Tensor, other: Tensor) -> Tensor:
    """[n] total variation of rows; tokens too rare to be counted are taken together."""
    counted = q >= _RARE
    apart = ((q - other) * counted).double()
    return (apart.abs().sum(-1) + apart.sum(-1).abs()) / 2


def _shortest_end(
    start: _Start, row: Row, models: tuple[CausalLM, CausalLM], stop_ids: Sequence[int]
) -> tuple[int, ...]:
    """Of a context, that promises about as much."""
    for length in _LENGTHS:
        ids = start.ids[-length:]
        if len(ids) == len(start.ids):
            break
        reading = teacher_force(*models, ids, start.onwards, row.setting.sampling)
        probability = own_entries(read_under(reading, row.against).q, reading.tokens).double()
        scores = _scores(probability, _row_distances(reading, row, stop_ids))
        reached = float(scores[1:].max()) if start.later else float(scores[0])
        if reached >= _KEPT * start.score:
            return ids
    return start.ids


# --- the script, for the tracker of an engine ---


@dataclass(frozen=True, slots=True)
class _Driver:
    """What the models of an engine's module are, and options that only a user knows."""

    models: str
    options: Mapping[str, str] = field(default_factory=dict)


_DRIVERS = {
    "llama_cpp": _Driver("GGUF", {"server": "llama-server"}),
    "onnxruntime_genai": _Driver("ONNX_DIR"),
    "openvino": _Driver("OPENVINO_DIR"),
    "transformers": _Driver("HF_DIR"),
    "xllamacpp": _Driver("GGUF"),
    "mlx_lm": _Driver("HF_DIR"),
    "vllm": _Driver("HF_DIR"),
}


def options_of(engine: str, threads: int | None = None) -> dict[str, Any]:
    """Return what the script needs to know of an engine beside its setting."""
    if engine.startswith(WORKER):
        command = {"command": shlex.join(shlex.split(engine.removeprefix(WORKER)))}
        return {"models": "HF_DIR", "options": command, "flags": ["command"], "environment": {}}
    spec = Spec.parse(engine)
    named = NAMED[name_of(spec)]
    driver = _DRIVERS[named.module]
    options: dict[str, Any] = {**named.handed(spec, "--engine"), **driver.options}
    environment = {**named.environment}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    flags = list(driver.options)
    return {"models": driver.models, "options": options, "flags": flags, "environment": environment}


def script(engine: str, title: str, case: Mapping[str, Any]) -> str:
    """Return the whole script: the engine's driver, the part of the protocol that it uses, the statistics."""
    files = [Path(protocol.__file__)]
    driver = "JsonLines"
    about = str(repro_parts.JsonLines.__doc__)
    if not engine.startswith(WORKER):
        module = NAMED[name_of(Spec.parse(engine))].module
        own = Path(workers.__file__).with_name(f"{module}.py")
        tree = ast.parse(own.read_text())
        files += [Path(messages.__file__), Path(serving.__file__), *_other_workers(tree), own]
        driver = next(node.name for node in tree.body if isinstance(node, ast.ClassDef))
        about = ABOUT[module]
    imports, body = _bundled([*files, Path(repro_parts.__file__)], {"main", driver})
    facts = pformat(dict(case), width=100, compact=True, sort_dicts=False)
    docstring = ScriptHeader(title, about, spsbench.__version__)
    return (
        f'"""{docstring}\n"""\n\nfrom __future__ import annotations\n\n{imports}\n\n'
        f"CASE: dict[str, Any] = {facts}\n\n{body}\n\n\n"
        f'if __name__ == "__main__":\n    main({driver})\n'
    )


def _other_workers(tree: ast.Module) -> list[Path]:
    """Files of workers whose parts a worker takes."""
    modules = (str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom))
    names = [name.rpartition(".")[2] for name in modules if name.startswith(f"{workers.__name__}.")]
    return [Path(workers.__file__).with_name(f"{name}.py") for name in names]


def _bundled(files: Iterable[Path], wanted: set[str]) -> tuple[str, str]:
    """Imports and definitions of some files that the wanted names need."""
    parts: list[tuple[ast.stmt, str, set[str]]] = []
    imported: dict[str, tuple[str, str]] = {}
    for text in (file.read_text(encoding="utf-8") for file in files):
        for node in ast.parse(text).body:
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0]: ("", alias.name) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported |= {alias.name: (str(node.module), alias.name) for alias in node.names}
            elif not isinstance(node, ast.Expr | ast.If):
                parts.append((node, _source_text(node, text.splitlines()), _defined(node)))
    needed = {"CASE"}
    while more := wanted - needed:
        needed |= more
        reached = [node for node, _, names in parts if names & more]
        wanted = {each.id for node in reached for each in ast.walk(node) if isinstance(each, ast.Name)}
    kept = [part for part in parts if part[2] & (needed - {"CASE"})]
    outside = needed.difference(*(names for _, _, names in parts)) & imported.keys()
    modules: dict[str, list[str]] = {}
    for module, name in sorted(imported[name] for name in outside | {"Any"}):
        modules.setdefault(module, []).append(name)
    lines = [f"import {name}" for name in modules.pop("", [])]
    lines += [f"from {module} import {', '.join(names)}" for module, names in modules.items()]
    body = "\n".join(text for _, text, _ in kept)
    return "\n".join(lines), body.replace("\n" * 4, "\n" * 3)


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    names = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


_NOT_ASKED = ("describe", "together", "add", "step", "abort", "_alongside", "_release")
"""Methods of a worker; a script asks for one request at a time."""


def _source_text(node: ast.stmt, lines: Sequence[str]) -> str:
    """A class loses what a script does not ask for."""
    numbers = list(range(node.lineno, (node.end_lineno or 0) + 1))
    if not isinstance(node, ast.ClassDef | ast.FunctionDef):
        return "\n".join(lines[number - 1] for number in numbers)
    numbers = [*(each.lineno for each in node.decorator_list), *numbers]
    for each in [each for each in node.body if getattr(each, "name", "") in _NOT_ASKED]:
        node.body.remove(each)
        numbers = [number for number in numbers if not each.lineno - 1 <= number <= (each.end_lineno or 0)]
    return "\n\n" + "\n".join(lines[number - 1] for number in numbers) + "\n"
