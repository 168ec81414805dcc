"""``spsbench audit --releases``: the first release of an engine whose law, acceptance or speed differs.

Every release is audited in an environment of its own, and asked for greedy texts in turns with the newest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spsbench.base import (
    GateFailed,
    IncompleteError,
    Interval,
    Message,
    Spec,
    UnavailableError,
    UsageError,
    make_folder,
    results_dir,
    write_json,
)
from spsbench.cli import out, print_json, say
from spsbench.parts.audit.messages.engines import (
    NoReleaseDiffers,
    ReleaseDiffers,
    ReleaseSkipped,
    ReleasesPlanned,
)
from spsbench.report import NOTHING, interval

if TYPE_CHECKING:
    from spsbench.base import Ask, Peer
    from spsbench.parts.audit.course import Course
    from spsbench.parts.audit.engine_audit import Subject
    from spsbench.parts.audit.options import AuditOptions
    from spsbench.parts.external.install import Entry
    from spsbench.parts.external.registry import PeerKind

_APART = 0.05
"""Ratios to the newest release whose whole interval is further from 1 differ."""

_FILE = "releases.json"


@dataclass(frozen=True, slots=True)
class Release:
    """An audited release. ``law`` is its worst verdict, ``code`` and ``why`` are how its audit would end
    alone; ``against`` is the release that the ratios are to, and ``wrong`` says that there are findings
    beside the law.
    """

    version: str
    law: str
    alarmed: bool
    texts: int
    code: int
    why: str
    tokens_per_loop: float | None = None
    loops: Interval | None = None
    speed: Interval | None = None
    against: str | None = None
    wrong: bool = False

    def state(self, quantity: str) -> int | None:
        """Return what is compared between releases; None where it is unknown. Of a ratio 1 or -1 where it
        is larger or smaller by more than ``_APART``, 0 where that is not shown.
        """
        if quantity in ("law", BESIDE):
            return int(self.alarmed if quantity == "law" else self.wrong)
        ratio = self.loops if quantity == "acceptance" else self.speed
        if ratio is None or ratio.low is None or ratio.high is None:
            return None
        return int(ratio.low > 1 + _APART) - int(ratio.high < 1 / (1 + _APART))

    def cell(self, quantity: str) -> str:
        if quantity in ("law", BESIDE):
            return self.law if quantity == "law" else "wrong" if self.wrong else "nothing wrong"
        ratio = self.loops if quantity == "acceptance" else self.speed
        return NOTHING if ratio is None else f"{interval(ratio)} of the newest"


BESIDE = "beside the law"
QUANTITIES = ("law", BESIDE, "acceptance", "speed")

Visit = Callable[[str], Release | None]
"""Audits a release; None where it does not install or does not load the models."""


def differ(quantity: str, one: Release, other: Release) -> bool:
    states = one.state(quantity), other.state(quantity)
    return None not in states and states[0] != states[1]


def search(versions: Sequence[str], visit: Visit, *, halving: bool) -> None:
    """Visit releases, given newest first: all in this order, or both ends, then halving where they differ."""
    ends = [
        next((r for r in map(visit, order) if r), None) for order in (versions, versions[::-1]) if halving
    ]
    new, old = ends if halving else (None, None)
    different = [q for q in QUANTITIES if new is not None and old is not None and differ(q, new, old)]
    if not different:
        for version in versions:
            visit(version)
        return
    assert new is not None
    assert old is not None
    for quantity in different:
        left = list(versions[versions.index(new.version) + 1 : versions.index(old.version)])
        while left:
            middle = len(left) // 2
            release = visit(left[middle])
            if release is None:
                del left[middle]
            elif differ(quantity, new, release):
                del left[middle:]
            else:
                del left[: middle + 1]


@dataclass(frozen=True, slots=True)
class Change:
    """A release that differs from the one before it. ``between`` are releases that were not audited."""

    release: Release
    before: Release
    quantity: str
    between: tuple[str, ...]

    def message(self, *, is_first: bool) -> ReleaseDiffers:
        release, before, what = self.release, self.before, self.quantity
        cells = release.cell(what), before.cell(what)
        return ReleaseDiffers(release.version, before.version, what, *cells, self.between, is_first)


def changes(versions: Sequence[str], results: Mapping[str, Release | None]) -> list[Change]:
    """Return where audited neighbours differ, oldest first; ``versions`` are newest first."""
    oldest_first = list(reversed(versions))
    audited = [
        (place, release) for place, v in enumerate(oldest_first) if (release := results.get(v)) is not None
    ]
    return [
        Change(release, before, quantity, tuple(oldest_first[first + 1 : place]))
        for (first, before), (place, release) in pairwise(audited)
        for quantity in QUANTITIES
        if differ(quantity, before, release)
    ]


def chosen(text: str, known: Sequence[str], what: str) -> tuple[list[str], bool]:
    """Return the releases that ``A..B`` or ``N`` stands for, newest first, and whether it was a range."""
    from packaging.version import Version

    low, dots, high = text.partition("..")
    try:
        first, last = sorted((Version(low), Version(high))) if dots else (None, None)
        count = len(known) if dots else int(text)
    except ValueError:
        count = 0
    if count < 2:
        remedy = "Give two releases, e.g. 4.44.2..4.45.0, or a number of at least 2."
        raise UsageError(f"{text} is not a range of releases.", flag="--releases", remedy=remedy)
    versions_in_range = [
        v for v in known[:count] if first is None or last is None or first <= Version(v) <= last
    ]
    if len(versions_in_range) < 2:
        remedy = f"It has {', '.join(known[:8])}{', ...' if len(known) > 8 else ''}."
        why = f"the index has {len(versions_in_range)} releases of {what} there."
        raise UsageError(why, flag="--releases", remedy=remedy)
    return versions_in_range, bool(dots)


def audit_releases(wanted: AuditOptions, engine: str, releases: str) -> None:
    """Audit releases of an engine, and report the first whose law, acceptance or speed differs."""
    from spsbench.base import unknown
    from spsbench.cli import continued_by, typed
    from spsbench.models import megabytes, require_disk
    from spsbench.parts.audit.options import settings_asked
    from spsbench.parts.external.install import Environment, load_entry
    from spsbench.parts.external.registry import NAMED, name_of, peer_in

    spec = Spec.parse(engine)
    if engine.partition(":")[0] in ("worker", "openai") or name_of(spec) != spec.name:
        why = f"{engine} is one engine, whose releases no index lists."
        raise UsageError(why, flag="--releases", remedy=f"Name one of {', '.join(NAMED)}.")
    if spec.name not in NAMED:
        raise unknown(spec.name, NAMED, "--engine")
    if dict(spec.options).get("python"):
        why = f"{engine} is an environment with one release."
        raise UsageError(why, flag="--releases", remedy="Leave python= out: each release is installed.")
    entry = load_entry(spec.name, "--engine")
    # What an audit refuses is refused before anything is fetched.
    settings = settings_asked(wanted, peer_in(Environment(Path()), spec))
    versions, halving = chosen(releases, _known_releases(entry), entry.title)
    for version in versions:
        NAMED[spec.name].settled(spec, "--engine", version)
    folder = wanted.out or results_dir() / f"releases-{spec.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    make_folder(folder, "--out")
    continued_by(lambda: typed(*(() if wanted.out else ("--out", str(folder)))))
    planned = ReleasesPlanned(
        title=entry.title,
        versions=versions,
        halving=halving,
        fetched=megabytes(entry.fetch_bytes),
        kept=megabytes(entry.kept_bytes),
        all_kept=wanted.keep,
        install=str(entry.duration),
        settings=settings.count,
        minutes=settings.budget_s / 60,
        folder=folder,
    )
    say(str(planned), quiet=wanted.quiet)
    at_once = len(versions) if wanted.keep else 2
    require_disk(at_once * entry.kept_bytes + entry.fetch_bytes + entry.spare_bytes, "The releases")
    audits = _ReleaseAudits(wanted, spec, entry, versions, folder)
    search(versions, audits.visit, halving=halving)
    audits.conclude()


def _known_releases(entry: Entry) -> list[str]:
    """Of the index for this Python, newest first."""
    from spsbench.models import Http, find_versions, pip_settings

    versions, problems = find_versions(entry.package, Http(pip_settings()), sources=entry.source is not None)
    if not versions:
        more = f" ({'; '.join(problems)})" if problems else ""
        why = f"no package index lists {entry.package} for this Python{more}."
        raise UnavailableError(why, flag="--releases")
    return versions


class _ReleaseAudits:
    """The releases that were audited, kept in the folder."""

    def __init__(
        self, wanted: AuditOptions, spec: Spec, entry: Entry, versions: Sequence[str], folder: Path
    ) -> None:
        self._wanted, self._spec, self._entry = wanted, spec, entry
        self._versions, self._folder = versions, folder
        self._newest: str | None = None
        self._done: dict[str, Release] = {}
        self._skipped: dict[str, str] = {}
        left = ("releases", "out", "keep", "json", "quiet", "evidence")
        self._typed = {k: str(v) for k, v in sorted(vars(wanted).items()) if v is not None and k not in left}
        self._read()

    def visit(self, version: str) -> Release | None:
        """Audit a release unless that was done.

        Later ones are compared with the first that could be audited.
        """
        if version in self._skipped:
            return None
        done = self._done.get(version)
        if done is not None and (self._newest in (None, version) or done.against == self._newest):
            self._newest = self._newest or version
            return done
        from spsbench.parts.external.install import discard

        say(f"{self._entry.title} {version}", quiet=self._wanted.quiet)
        release = None
        try:
            release = self._audited(version)
        except UnavailableError as error:
            if any(word in str(error) for word in _NOT_ITS_FAULT):
                raise
            self._skipped[version] = error.message
            say(f"Skipped: {error.message}", quiet=self._wanted.quiet)
        else:
            self._done[version] = release
            self._newest = self._newest or version
            self._write()
        # An interrupted one stays, so that the same command goes on with it.
        if version != self._newest and not self._wanted.keep:
            discard(self._entry.at(version))
        return release

    def _kind(self, version: str) -> PeerKind:
        from spsbench.parts.external.install import install
        from spsbench.parts.external.registry import find_peer

        entry = self._entry.at(version)
        install(entry, passing=not self._wanted.keep)
        return find_peer(str(replace(self._spec, name=entry.called)))

    def _audited(self, version: str) -> Release:
        """Audit an installed release, and compare its speed with the newest one's."""
        from spsbench.parts.audit.course import audited, conclude

        kind = self._kind(version)
        wanted = replace(self._wanted, engine=kind.name, out=self._folder / version)
        course, gone = audited(wanted, kind)
        code, why = 0, ""
        try:
            conclude(course.rows, course.effort.bound, gone)
        except (GateFailed, IncompleteError) as error:
            if gone is not None and isinstance(error, IncompleteError):
                raise UnavailableError(f"{kind.name} gave up: {gone}.") from error
            code, why = error.exit_code, error.message
        alarms = [row for row in course.rows if row.decision == "alarm" and row.convention is None]
        law = "quiet" if not code else "no alarm"
        if code == GateFailed.exit_code:
            law = "wrong beside its texts"
            if alarms:
                law = f"ALARM after {min(row.result.decided_after for row in alarms)} texts"
        texts = sum(len(row.result.drawn) for row in course.rows)
        wrong = any(not each.passed for row in course.rows for each in row.result.free)
        release = Release(version, law, bool(alarms), texts, code, why, wrong=wrong)
        if self._newest is None:
            return release
        return self._compared(release, course, kind, self._kind(self._newest))

    def _compared(self, release: Release, course: Course, kind: PeerKind, newest: PeerKind) -> Release:
        """Compare with greedy texts of the newest release, drawn in turns."""
        pairs = list(_texts_in_turns(course, (kind, newest)))
        speed = _ratio_of_sums(
            [(one.tokens, one.decode_ms, other.tokens, other.decode_ms) for one, other in pairs]
        )
        known = [
            (one.loop_tokens, one.loops, other.loop_tokens, other.loops)
            for one, other in pairs
            if one.loops and other.loops
        ]
        release = replace(release, loops=_ratio_of_sums(known), speed=speed, against=self._newest)
        if not known:
            return release
        sums = [sum(column) for column in zip(*known, strict=True)]
        old = self._done[newest_version := str(self._newest)]
        self._done[newest_version] = replace(old, tokens_per_loop=old.tokens_per_loop or sums[2] / sums[3])
        return replace(release, tokens_per_loop=sums[0] / sums[1])

    def _read(self) -> None:
        try:
            kept = json.loads((self._folder / _FILE).read_text())
        except (OSError, ValueError):
            return
        if kept.get("asked") != self._typed:
            why = f"{self._folder} holds the releases of another audit."
            raise UsageError(why, flag="--out", remedy="Name another directory.")
        for row in kept["releases"]:
            ratios = {name: row[name] and Interval(**row[name]) for name in ("loops", "speed")}
            self._done[row["version"]] = Release(**{**row, **ratios})

    def _write(self) -> None:
        rows = [asdict(each) for each in self._done.values()]
        write_json(self._folder / _FILE, {"asked": self._typed, "releases": rows, "skipped": self._skipped})

    def conclude(self) -> None:
        """Remove environments, print the findings, and end as the newest release's audit does."""
        from spsbench.parts.external.install import discard
        from spsbench.report import Table, left, right

        self._write()
        for version in self._versions if not self._wanted.keep else ():
            discard(self._entry.at(version))
        results = {v: self._done.get(v) for v in self._versions}
        if self._newest is None:
            why = "; ".join(f"{version}: {why}" for version, why in self._skipped.items())
            raise UnavailableError(f"no release could be audited: {why}", flag="--releases")
        differences = changes(self._versions, results)
        newest = self._done[self._newest]

        def cells(version: str, row: Release | None) -> list[str]:
            if row is None:
                return [version, "skipped" if version in self._skipped else "not needed", *3 * [NOTHING]]
            loops = NOTHING if row.tokens_per_loop is None else f"{row.tokens_per_loop:.2f}"
            speed = "1" if row is newest else NOTHING if row.speed is None else interval(row.speed)
            return [version, row.law, str(row.texts), loops, speed]

        speed = right(f"speed against {newest.version} [95%]")
        columns = [left("release", whole=True), left("law"), right("texts"), right("tokens/loop"), speed]
        table = Table(columns, [cells(*result) for result in results.items()])
        facts = {
            "engine": self._entry.name,
            "folder": str(self._folder),
            "releases": [asdict(row) for row in results.values() if row is not None],
            "skipped": self._skipped,
            "changes": [asdict(difference) for difference in differences],
        }
        if self._wanted.json:
            print_json(facts)
        else:
            screen = out(quiet=self._wanted.quiet)
            screen.print(table.as_rich())
            for sentence in _findings(differences, self._skipped):
                screen.print(f"\n{sentence}", markup=False, highlight=False)
        if newest.code:
            kind = GateFailed if newest.code == GateFailed.exit_code else IncompleteError
            raise kind(f"the audit of {newest.version} ends with: {newest.why}", flag="--releases")


_NOT_ITS_FAULT = ("no package index can be reached", "No space left", " free.")
"""Of errors that every release would end with."""


def _findings(changes: Sequence[Change], skipped: Mapping[str, str]) -> Iterator[Message]:
    yield from (ReleaseSkipped(*each) for each in skipped.items())
    if not changes:
        yield NoReleaseDiffers(_APART)
    for number, change in enumerate(changes):
        yield change.message(is_first=not number)


class _TimedText(NamedTuple):
    """A greedy text: its tokens, or those that were decoded, and the loops that gave them."""

    tokens: float
    decode_ms: float
    loop_tokens: int
    loops: int | None


def _texts_in_turns(course: Course, kinds: Sequence[PeerKind]) -> Iterator[tuple[_TimedText, _TimedText]]:
    """Draw greedy texts of both engines in turns, prompt by prompt, up to the first request that fails.

    One engine is stopped while the other works.
    """
    from spsbench.base import Ask, PeerError, SamplingParams
    from spsbench.parts.external.engine import sampling_of

    subject, effort = course.subject, course.effort
    k = next((row.setting.k for row in course.rows if row.setting.k), 0)
    most = effort.max_new_tokens
    stop = [*subject.stop_ids]
    greedy = sampling_of(SamplingParams(greedy=True))
    asks = [Ask([*prompt], most, stop, sampling=greedy) for prompt in subject.prompts]
    ends = time.monotonic() + effort.budget_s
    with ExitStack() as opened, suppress(PeerError):
        peers = []
        for kind in kinds:
            load = replace(subject, kind=kind).load(k, most)
            peers.append(kind.open(load, course.folder / "engine.log", True))
            opened.callback(peers[-1].close)
            _timed_text(peers[-1], asks[0], subject)  # the first request is slower
        for number, ask in enumerate(asks):
            if time.monotonic() > ends:
                return
            first = number % 2
            drawn = [_timed_text(peers[place], ask, subject) for place in (first, 1 - first)]
            yield drawn[first], drawn[1 - first]


def _timed_text(peer: Peer, ask: Ask, subject: Subject) -> _TimedText:
    from spsbench.base import checked

    began = time.perf_counter()
    answer = checked(peer.generate(ask), ask, subject.models[0].vocab_size)
    took = 1e3 * (time.perf_counter() - began) if answer.wall_ms is None else answer.wall_ms
    count = len(answer.output_ids)
    decoding = (answer.decoded, answer.decode_ms) if answer.decoded and answer.decode_ms else (count, took)
    return _TimedText(*decoding, answer.decoded or count, answer.loops)


def _ratio_of_sums(rows: Sequence[tuple[float | None, ...]]) -> Interval | None:
    """(first / second) / (third / fourth) over prompts."""
    if len(rows) < 2:
        return None
    import numpy as np

    from spsbench.stats import pooled_interval

    columns = list(np.array(rows, dtype=np.float64).T)

    def statistic(sums: Any) -> Any:
        return sums[0] / sums[1] / (sums[2] / sums[3])

    estimate = float(statistic([column.sum() for column in columns]))
    low, high = pooled_interval(columns, statistic, log=True)
    return Interval(estimate, estimate if low is None else low, estimate if high is None else high)
