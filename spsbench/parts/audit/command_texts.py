"""``spsbench audit`` of texts that are there: a file, what others gave as evidence, a server's log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base import GateFailed, Spec, UsageError, as_typed, make_folder, require_makeable, rows, unknown
from spsbench.cli import Common, present, say, values
from spsbench.config import MaterialSettings, resolve_material
from spsbench.models import require_located
from spsbench.parts.audit import EVIDENCE_KEY
from spsbench.parts.audit.course import conclude, print_rows, watch
from spsbench.parts.audit.options import AuditOptions
from spsbench.tasks import read_lines

if TYPE_CHECKING:
    import torch

    from spsbench.models import CausalLM, ModelSource
    from spsbench.parts.audit.evidence_file import Header, Texts
    from spsbench.parts.audit.follow import State
    from spsbench.parts.audit.free_evidence import FreeEvidence
    from spsbench.runner import Audit, Reader


def _settings_of_file(path: Path, flag: str, wanted: AuditOptions) -> MaterialSettings:
    """The models' settings, once everything typed is known to be possible."""
    values.sampling(wanted)
    here, _ = _dtypes(wanted)
    settings = resolve_material(_models_typed(wanted) | {"device": wanted.device, "dtype": here})
    values.readable(path, flag, remedy="Name a file of JSON lines.")
    return settings


def _dtypes(wanted: AuditOptions) -> tuple[str, str | None]:
    """The dtype to compute in here, and that of the engine that wrote the texts, if it was typed."""
    named = Spec.parse(wanted.dtype or "auto")
    here = values.float_dtype(named.name, "--dtype")
    written = None
    for name, value in named.options:
        if name != "samples":
            raise unknown(name, ["samples"], f"--dtype {here}", sort="option")
        if value not in values.FLOATS:
            raise unknown(str(value), values.FLOATS, f"--dtype {here}:samples")
        written = str(value)
    return here, written


def _models_typed(wanted: AuditOptions) -> dict[str, str | None]:
    return {"pair": wanted.pair, "target": wanted.target, "draft": wanted.draft}


def _reader_of(
    path: Path, settings: MaterialSettings, wanted: AuditOptions
) -> tuple[list[ModelSource], Reader, torch.dtype | None]:
    """The models, not loaded yet, a reader of the file's lines and the writing engine's dtype."""
    say(f"Checking {path} and the models", quiet=wanted.quiet)
    alone = wanted.draft is None and wanted.target is not None
    sources, size, window = _sources(settings, alone=alone)
    from spsbench.models import DTYPES
    from spsbench.runner import Reader

    _, written = _dtypes(wanted)
    written_dtype = None if written is None else DTYPES[written]
    return sources, Reader(sources[0].tokenizer, size, window, values.sampling(wanted)), written_dtype


def audit_file(path: Path, wanted: AuditOptions) -> None:
    """Audit the texts of a file, and print the verdict."""
    quiet = wanted.quiet
    seed = values.seed(wanted.seed)
    settings = _settings_of_file(path, "SAMPLES", wanted)
    if not _is_evidence(path):
        require_located(settings.pair)
        if not any(True for _ in read_lines(path, values.sampling(wanted), "SAMPLES")):
            raise _empty(path)
    from spsbench.parts.audit import evidence_file

    if (evidence := evidence_file.read(path, "SAMPLES")) is not None:
        audit_evidence(path, *evidence, wanted)
        return
    sources, reader, written_dtype = _reader_of(path, settings, wanted)
    total = sum(1 for _ in reader.read(path))
    if not total:
        raise _empty(path)
    models = _load(sources, reader.vocab_size, settings)
    from spsbench.base import Ask
    from spsbench.cli import watching
    from spsbench.parts.audit.free_evidence import COARSE, FreeEvidence
    from spsbench.runner import Audit

    audit = Audit(*models, written_dtype, seed)
    coarse = written_dtype is not None and written_dtype.itemsize < 4
    free = FreeEvidence(None, slack=COARSE if coarse else None, drawn=False)
    with watching(quiet=quiet, moving=True) as watcher:
        watcher.stage(f"Reading {total} texts", total)
        for text in reader.read(path):
            reading = audit.read(text)
            if text.told is not None:
                free.add(Ask([*text.prompt], len(text.completion)), text.told, reading)
            watcher.step()
    _show(audit, free, [source.name for source in sources], wanted)


def _is_evidence(path: Path) -> bool:
    _, first = next(rows(path, "SAMPLES"), (0, {}))
    return EVIDENCE_KEY in first


def _empty(path: Path) -> UsageError:
    return UsageError(f"{path} is empty.", flag="SAMPLES", remedy="Name a file with completions.")


def audit_evidence(path: Path, header: Header, texts: Texts, wanted: AuditOptions) -> None:
    """Score the texts of evidence again, with weights chosen here and not by the auditor."""
    quiet, models = wanted.quiet, _models_typed(wanted)
    how = ("temperature", "top_p", "top_k", "process")
    if any(getattr(wanted, name) is not None for name in how):
        raise UsageError(f"{path} says how its texts were drawn.", flag="SAMPLES", remedy="Leave it out.")
    if not any(models.values()):
        theirs = {name: header.asked.get(name) for name in models}
        shown = theirs["target"] if theirs["target"] is not None else theirs["pair"]
        raise UsageError(
            f"which models to score by is not taken from {path}, which says {as_typed(shown)}.",
            flag="--target" if theirs["target"] is not None else "--pair",
            remedy="Type it, and --draft where there is one; the weights have to be those of the file.",
        )
    settings = resolve_material(models | {"dtype": "float32", "device": wanted.device})
    say(f"Checking {path} and the weights", quiet=quiet)
    from spsbench.parts.audit import evidence_file
    from spsbench.parts.audit.messages.texts import ScoredAgain

    sources, size, _ = _sources(settings, alone=False)
    for source, hashes, flag in zip(sources, header.weights, ("--target", "--draft"), strict=True):
        if evidence_file.weights_of(source) != hashes:
            why = f"{source.name} has other weights than {path} was written with."
            raise UsageError(why, flag=flag, remedy=f"Name the same: {', '.join(hashes) or 'none known'}.")
    target, draft = _load(sources, size, settings)
    assert draft is not None
    bound = header.effort.bound
    paths = evidence_file.Paths(watch(header.effort, quiet=quiet))
    rows = list(evidence_file.scored_again(header, texts, sources, (target, draft), paths))
    wrong, most = evidence_file.differences(header, rows, paths)
    if wrong:
        why = "; ".join(map(str, wrong))
        raise GateFailed(f"scored again, {path} says otherwise: {why}.", flag="SAMPLES")
    gone = evidence_file.missing(texts)
    facts = {"rows": [row.facts() for row in rows], "log10_e_apart": most, "missing": gone}
    again = str(ScoredAgain(most, gone))
    print_rows(rows, f"{sources[0].name}, {path.name}", bound, facts, wanted, [again])
    conclude(rows, bound, None)


def audit_log(path: Path, wanted: AuditOptions) -> None:
    """Follow a server's log, see ``spsbench.parts.audit.follow``."""
    import math
    import time

    quiet = wanted.quiet
    url = wanted.webhook
    budget_s = values.seconds(wanted.budget, math.inf)
    every = int(values.number(wanted.every, "--every", 1, 1, whole=True))
    if url is not None and not url.startswith(("http://", "https://")):
        raise UsageError(f"it must be a URL, got {url}.", flag="--webhook", remedy="Give http://HOST/PATH.")
    settings = _settings_of_file(path, "--follow", wanted)
    require_makeable(wanted.out or path.parent, "--out")
    require_located(settings.pair)
    sources, reader, written_dtype = _reader_of(path, settings, wanted)
    from spsbench.cli import continued_by, typed
    from spsbench.parts.audit.follow import Follower, State
    from spsbench.parts.audit.messages.texts import AlarmRaised, Following, WebhookFailed
    from spsbench.report import Table, left

    kept = (wanted.out or path.parent) / f"{path.name}.audit.json"
    make_folder(kept.parent, "--out")
    subject = {
        "file": path.name,
        "every": every,
        "sampling": reader.sampling.described,
        "dtype": str(written_dtype),
    }
    subject["models"] = [source.identity()["fingerprint"] for source in sources]
    state = State.read(kept, subject)
    alarms = list[str]()
    continued_by(typed)
    models = _load(sources, reader.vocab_size, settings)
    say(str(Following(path, every, kept)), quiet=quiet)

    def tell(finding: dict[str, Any]) -> bool:
        alarms[:] = [finding["why"]]  # the last: there may be many
        say(str(AlarmRaised(finding["line"], finding["why"])), quiet=quiet)
        if url is not None:
            why = _delivery_failure(url, finding, min(_WEBHOOK_S, until_s - time.monotonic()))
            if why is not None:
                say(str(WebhookFailed(why)), quiet=quiet)
        return url is not None

    until_s = time.monotonic() + budget_s
    try:
        Follower(path, kept, state, reader, models, every, written_dtype).run(until_s, tell)
    finally:  # an interruption, too, says what is known
        table = Table([left(whole=True), left()], _log_lines(state))
        present(lambda: asdict(state) | {"kept": str(kept)}, table.as_rich, json=wanted.json, quiet=quiet)
    if alarms:
        raise GateFailed(f"not distributed as {sources[0].name} says: {'; '.join(alarms)}.", flag="--follow")


_WEBHOOK_S = 10.0


def _delivery_failure(url: str, finding: Mapping[str, Any], limit_s: float) -> str | None:
    """Why a finding was not delivered; takes no longer than ``limit_s``."""
    import threading

    import requests

    failed: list[str | None] = [f"no answer in {limit_s:.0f} s"]

    def post() -> None:
        try:
            with requests.post(
                url, json=finding, timeout=_WEBHOOK_S, allow_redirects=False, stream=True
            ) as answer:
                failed[0] = None if 200 <= answer.status_code < 300 else f"it answered {answer.status_code}"
        except requests.RequestException as error:
            failed[0] = type(error).__name__

    # A limit of requests holds for each part of an answer, and one that drips has many.
    thread = threading.Thread(target=post, daemon=True)
    thread.start()
    thread.join(max(limit_s, 0.0))
    return failed[0]


def _log_lines(state: State) -> list[tuple[str, str]]:
    from spsbench.parts.audit.messages.texts import LinesRead, RateUnknown

    rate = state.texts_a_day
    lead = state.detector.leading
    unread = state.garbage
    lines = {
        "lines": LinesRead(state.lines, state.files, state.skipped),
        "not judged": f"{unread}, the last: {state.last_garbage}" if unread else None,
        "re-scored": f"{state.texts} texts, {state.tokens} tokens" + (f", {rate:.0f} a day" if rate else ""),
        "warning": RateUnknown(state.retokenised) if state.retokenised else None,
        "impossible": f"{state.impossible} tokens of probability 0",
        "evidence": f"{state.detector.years:.2g}; alarm at 1",
        "most of it": f"{lead['why']}: 10^{lead['log10_e']:z.1f} since text {lead['since_text']}"
        if lead
        else None,
        "alarms": state.alarms,
    }
    return [(name, str(text)) for name, text in lines.items() if text is not None]


def _show(audit: Audit, free: FreeEvidence, names: list[str], wanted: Common) -> None:
    """Print the verdict on a file's texts, or all facts as JSON."""
    from spsbench.parts.audit.messages.texts import Consistent, NoEvidence
    from spsbench.report import Table, left
    from spsbench.stats import ALARM, NO_EVIDENCE, leakage_bound

    facts = audit.judged()
    beside = [finding for finding in free.findings() if not finding.unjudged]
    named = {"target": names[0], "draft": names[1] if len(names) > 1 else None}
    present(
        lambda: named | facts | {"free": [each.record() for each in beside]},
        lambda: Table(
            [left(whole=True), left()], [*_file_lines(facts), *((each.test, each.found) for each in beside)]
        ).as_rich(),
        json=wanted.json,
        quiet=wanted.quiet,
    )
    reasons = facts["reasons"]
    if facts["verdict"] == ALARM:
        raise GateFailed(f"not distributed as {names[0]} says: {'; '.join(reasons)}.", flag="SAMPLES")
    wrong = [each.found for each in beside if not each.passed]
    if wrong:
        raise GateFailed(f"wrong beside the law of the texts: {' '.join(wrong)}", flag="SAMPLES")
    if facts["verdict"] == NO_EVIDENCE:
        say(str(NoEvidence(reasons)), quiet=wanted.quiet)
        return
    unbounded = len(names) == 1 and not facts["greedy"]
    say(str(Consistent(names[0], leakage_bound(facts), unbounded, reasons)), quiet=wanted.quiet)


def _file_lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    from spsbench.parts.audit.messages.texts import (
        Informative,
        OtherTokens,
        Sharpness,
        TokensImpossibleBeyondRounding,
    )
    from spsbench.parts.verify.messages import at_most
    from spsbench.report import worded
    from spsbench.stats import leakage_bound

    kinds = ", ".join(f"{name} ({count})" for name, count in facts["samplings"].items())
    leak, score, cells, unsure = (
        facts[name] for name in ("leakage", "log_score", "transform", "retokenised")
    )
    interval = leak and f"[{leak['low']:.2%}, {leak['high']:.2%}]"
    lines = {
        "texts": f"{facts['texts']} of {facts['prompts']} prompts, {facts['tokens']} tokens",
        "drawn with": kinds,
        "warning": OtherTokens(unsure) if unsure else None,
        "informative": Informative(facts["positions"]),
        "impossible": TokensImpossibleBeyondRounding(
            facts["impossible"], facts["edge"], facts["first_impossible"]
        ),
        "leakage": leak and f"{leak['estimate']:.2%} {interval}, {at_most(leak['bound'])}",
        "log-score": score and Sharpness(score["z"], score["p_value"]),
        "transform": cells and f"p {cells['p_value']:.2g}",
        "e-value": f"10^{facts['log10_e_value']:z.1f}; alarm at 10^3",
        "verdict": worded(facts["verdict"], leakage_bound(facts)),
    }
    return [(name, str(text)) for name, text in lines.items() if text is not None]


def _sources(settings: MaterialSettings, *, alone: bool) -> tuple[list[ModelSource], int, int]:
    """Target and, unless it is alone, draft; the logits they share and the shorter window."""
    from spsbench.models import context_window, find, find_pair, text_config

    if alone:
        source = find(settings.pair.target.id, settings.pair.target.revision, "--target")
        return [source], text_config(source.config).vocab_size, context_window(source.config)
    both = find_pair(settings.pair, rolls_back=False)
    return [both.target, both.draft], both.vocab_size, both.context_window


def _load(
    sources: list[ModelSource], size: int, settings: MaterialSettings
) -> tuple[CausalLM, CausalLM | None]:
    from spsbench.config import TORCH
    from spsbench.models import load, require_memory, resolve_device

    device = resolve_device(settings.device)
    dtype = settings.dtypes[0]
    target, draft = sources[0], sources[1] if len(sources) > 1 else None
    require_memory(target, draft, (dtype, dtype), device, TORCH)
    # The reference forward: an auditor that shares code with the engine would share its faults.
    model = load(target, dtype, device, size, "--target", TORCH)
    if draft is None:
        return model, None
    return model, load(draft, dtype, device, size, "--draft", TORCH, target=model)
