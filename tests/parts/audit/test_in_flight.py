"""Audits of engines with several requests in flight and a prefix cache: right ones quiet, faults found.

Models are tables (synthetic): a row follows from the last two tokens and the one ``BACK`` places before, so
that a wrong key of a shared prefix shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spsbench.base.messages import Message
from spsbench.base.protocol import Answer, Ask, Described, ProtocolError, Together, Wave, read
from spsbench.base.records import Processing, SamplingParams
from spsbench.parts.audit import engine_audit
from spsbench.parts.audit.engine_audit import (
    CANNOT,
    Effort,
    EngineAudit,
    Setting,
    SettingResult,
    cannot,
    row_of,
    shared_prompt,
)
from spsbench.parts.audit.messages.engines import CacheFixed, ProcessorsMissing, TooManyInFlight
from spsbench.parts.external.serving import until_stop
from spsbench.parts.external.waves import stepped, threaded
from spsbench.runner.foreign_texts import Foreign
from spsbench.tasks.spec import sampling_of

VOCABULARY, STOP, BACK, BLOCK = 32, 31, 20, 16
LEVELS = (1, 4, 8)
PROCESSED = SamplingParams(process=Processing(min_p=0.1, repetition_penalty=1.1))


class Table:
    """A target whose logits follow from three earlier tokens."""

    vocab_size, dtype, device = VOCABULARY, torch.float32, torch.device("cpu")

    def __init__(self) -> None:
        dice = torch.Generator().manual_seed(3)
        self._tables = [
            scale * torch.randn(VOCABULARY, VOCABULARY, generator=dice) for scale in (1.5, 1, 1.5)
        ]
        self._tables[0][:, STOP] -= 2

    def score_uncached(self, ids: torch.Tensor, last: int) -> torch.Tensor:
        found = torch.zeros(len(ids), VOCABULARY)
        for table, back in zip(self._tables, (0, 1, BACK), strict=True):
            found[back:] += table[ids[: max(0, len(ids) - back)]]
        return found[-last:]


TABLE: Any = Table()


@dataclass
class Running:
    ask: Ask
    seen: list[int]  # the tokens whose keys it attends to
    dice: torch.Generator
    ids: list[int] = field(default_factory=list)


class Engine:
    """Draws from the table for several requests at once, with a fault or none."""

    def __init__(self, fault: str | None = None, *, cache: bool = False, most: int | None = 64) -> None:
        self._fault, self._cache, self._most = fault, cache, most
        self._running: dict[int, Running] = {}
        self._known: set[tuple[int, ...]] = set()
        self.largest, self.aborted, self.hits = 0, 0, 0

    def describe(self) -> Described:
        return Described("fake", "1", settings={"prefix_cache": self._cache}, in_flight=self._most)

    def close(self) -> None:
        pass

    def generate(self, ask: Ask) -> Answer:
        (answer,) = self.together(Wave([ask], [0], [None], 1)).answers
        assert answer is not None
        return answer

    def together(self, wave: Wave) -> Together:
        self._running.clear()
        return stepped(wave, self)

    def add(self, number: int, ask: Ask) -> None:
        prompt = ask.prompt_ids
        seen = list(prompt)
        borders = range(BLOCK, len(prompt), BLOCK)
        hit = max((n for n in borders if tuple(prompt[:n]) in self._known), default=0) if self._cache else 0
        self.hits += hit > 0
        if hit and self._fault == "one block late":
            seen[:hit] = [*prompt[BLOCK : hit + BLOCK], *prompt[hit - BLOCK : hit]][:hit]
        self._known |= {tuple(prompt[:n]) for n in borders}
        dice = torch.Generator().manual_seed(ask.seed or 0)
        self._running[number] = Running(ask, seen, dice)

    def step(self) -> list[tuple[int, list[int], bool]]:
        numbers = list(self._running)
        self.largest = max(self.largest, len(numbers))
        rows = [TABLE.score_uncached(torch.tensor(self._running[n].seen), 1)[0] for n in numbers]
        if self._fault == "permuted" and len(rows) > 1:
            rows = rows[1:] + rows[:1]
        found = []
        for number, row in zip(numbers, rows, strict=True):
            one = self._running[number]
            p = (row / one.ask.sampling.temperature).softmax(-1)
            token = int(torch.multinomial(p, 1, generator=one.dice))
            one.ids.append(token)
            one.seen.append(token)
            ended = token in one.ask.stop_ids or len(one.ids) == one.ask.max_new_tokens
            found.append((number, list(one.ids), ended))
            if ended:
                del self._running[number]
        return found

    def abort(self, number: int) -> None:
        self.aborted += 1
        del self._running[number]


def prompts() -> list[tuple[int, ...]]:
    dice = torch.Generator().manual_seed(1)
    return [tuple(torch.randint(0, VOCABULARY - 1, (40,), generator=dice).tolist()) for _ in range(8)]


def audited(
    engine: Engine, level: int, texts: int, *, shared: bool = False, kept: tuple[Foreign, ...] = ()
) -> SettingResult:
    effort = Effort(None, texts, 600.0, 24, shared_prefixes=shared)
    models = TABLE, None
    audit = EngineAudit(engine, models, prompts(), SamplingParams(), [STOP], effort, 0, None, 0, None, level)
    return audit.run(lambda _: None, kept)


@pytest.mark.thorough_but("[True-4]")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("cache", [False, True])
def test_a_right_engine_is_quiet_in_flight_and_after_cache_hits(level: int, cache: bool) -> None:
    engine = Engine(cache=cache)
    found = audited(engine, level, 80, shared=cache)
    assert (found.decision, len(found.drawn), list(found.failures)) == ("quiet", 80, [])
    assert engine.largest == level
    assert (engine.aborted > 0) == (level > 1)
    assert engine.hits > 20 or not cache


@pytest.mark.thorough_but("permuted-4", "late")
@pytest.mark.parametrize(
    ("fault", "level", "cache"), [("permuted", 4, False), ("permuted", 8, False), ("one block late", 1, True)]
)
def test_faults_are_found_in_under_400_texts_and_only_where_they_show(
    fault: str, level: int, cache: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_audit, "TO_LOCATE", 1)
    found = audited(Engine(fault, cache=cache), level, 400, shared=cache)
    assert found.decision == "alarm"
    assert found.decided_after < 400
    control = audited(Engine(fault), 1, 80, shared=cache)
    assert control.decision == "quiet"


def test_an_audit_in_flight_is_the_same_twice_and_asks_nothing_again() -> None:
    first, again = (audited(Engine(), 4, 24).drawn for _ in range(2))
    assert first == again
    later = audited(Engine(), 4, 24, kept=tuple(first[:16]))
    assert list(later.drawn) == list(first)


def test_an_engine_that_fails_at_some_requests_says_which() -> None:
    class Failing(Engine):
        def add(self, number: int, ask: Ask) -> None:
            if number == 1:
                raise MemoryError("no room")
            super().add(number, ask)

    found = audited(Failing(), 4, 8)
    assert len(found.drawn) in (7, 8)  # the second to arrive may be one that is to be aborted
    assert all("MemoryError: no room" in why for why in found.failures)


def test_a_request_that_fails_while_it_runs_costs_itself_alone() -> None:
    class Failing(Engine):
        def step(self) -> Any:
            return [
                (number, ids, RuntimeError("no room") if number == 1 else ended)
                for number, ids, ended in super().step()
            ]

    found = stepped(Wave([Ask([1], 4)] * 5, [0] * 5, [None] * 5, 2), Failing())
    assert [answer and len(answer.output_ids) for answer in found.answers] == [4, None, 4, 4, 4]
    assert found.errors == {"1": "RuntimeError: no room"}


def test_what_runs_where_a_step_fails_is_aborted() -> None:
    gone: list[int] = []

    class Failing(Engine):
        def step(self) -> Any:
            raise MemoryError("no room")

        def abort(self, number: int) -> None:
            gone.append(number)

    with pytest.raises(MemoryError):
        stepped(Wave([Ask([1], 4)] * 3, [0] * 3, [None] * 3, 2), Failing())
    assert gone == [0, 1]


@pytest.mark.parametrize(
    ("setting", "engine", "why"),
    [
        (Setting(SamplingParams(), 0, 4), Engine(most=None), TooManyInFlight(1)),
        (Setting(SamplingParams(), 0, 4), Engine(most=2), TooManyInFlight(2)),
        (Setting(SamplingParams(), 0, 1, True), Engine(), CacheFixed(True)),
        (Setting(SamplingParams(), 0), Engine(cache=True), CacheFixed(False)),
        (Setting(SamplingParams(), 0, 1, True), Engine(cache=True), None),
        (Setting(PROCESSED, 0), Engine(), ProcessorsMissing(["min_p", "repetition_penalty"])),
    ],
)
def test_what_an_engine_cannot_do_is_said(setting: Setting, engine: Engine, why: Message | None) -> None:
    assert cannot(setting, engine.describe(), cached=True) == why
    assert CANNOT == "cannot"


@pytest.mark.parametrize(("levels", "seen"), [((4,), ["a law"]), ((1, 4), [None, None])])
def test_plain_texts_say_the_law_alone_or_where_nothing_runs_alone(
    levels: tuple[int, ...], seen: list[str | None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What only plain texts in flight follow is no law where the engine is right alone."""
    given: list[Any] = []

    def audited_(
        subject: Any, setting: Setting, effort: Any, seed: int, folder: Any, law: Any, *rest: Any
    ) -> Any:
        given.extend([] if setting.is_plain else [law])
        found = SimpleNamespace(cannot=None)
        return SimpleNamespace(setting=setting, result=found, described=Engine().describe(), forward=None)

    monkeypatch.setattr(engine_audit, "_audited", audited_)
    monkeypatch.setattr(
        engine_audit, "_explaining_law", lambda row, _: "a law" if row.setting.in_flight > 1 else None
    )
    settings = [Setting(SamplingParams(), k, level) for level in levels for k in (0, 4)]
    subject: Any = None
    effort = Effort(None, 1, 1.0, 1)
    list(engine_audit.audit_engine(subject, settings, effort, 0, tmp_path, lambda _: None))
    assert given == seen


@pytest.mark.parametrize(("most", "loaded"), [(None, [1, 1]), (1, [1, 4, 1, 4]), (64, [1, 4, 1, 4])])
def test_what_takes_one_after_the_other_is_not_loaded_to_say_so(
    most: int | None, loaded: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A number may be that of what was loaded alone, so only "one after the other" is believed."""
    levels: list[int] = []

    def audited_(subject: Any, setting: Setting, *rest: Any) -> Any:
        levels.append(setting.in_flight)
        described, found = Engine(most=most).describe(), SimpleNamespace(cannot=None)
        return SimpleNamespace(setting=setting, result=found, described=described, forward=None)

    monkeypatch.setattr(engine_audit, "_audited", audited_)
    monkeypatch.setattr(engine_audit, "_explaining_law", lambda *_: None)
    settings = [Setting(SamplingParams(), k, level) for level in (1, 4) for k in (0, 4)]
    subject: Any = None
    asked = (Effort(None, 1, 1.0, 1), 0, tmp_path, lambda _: None)
    rows = list(engine_audit.audit_engine(subject, settings, *asked))
    assert levels == loaded
    said = [row.result.cannot for row in rows if row.setting.in_flight == 4]
    assert said == ["it takes one request at a time" if most is None else None] * 2


def test_texts_of_processed_laws_are_refused_as_samples() -> None:
    """And not judged under the law without the steps."""
    text = Foreign(1, (1,), (2, 3), PROCESSED, False)
    assert sampling_of(row_of(replace(text, sampling=SamplingParams()))["sampling"])
    with pytest.raises(ValueError, match="process"):
        sampling_of(row_of(text)["sampling"])


def test_threads_wait_for_the_tokens_of_others_and_abort() -> None:
    """The third request arrives after the first has ended, and the second is aborted after four tokens."""
    order: list[int] = []

    def asked(ask: Ask, hear: Any) -> Answer | None:
        order.append(ask.prompt_ids[0])
        if hear is not None:
            assert [hear(n) for n in range(1, 5)] == [False, False, False, True]
            return None
        return Answer(*until_stop([1] * ask.max_new_tokens, ask))

    asks = [Ask([n], 6) for n in range(3)]
    found = threaded(Wave(asks, [0, 0, 10], [None, 4, None], 2), asked)
    assert [answer and len(answer.output_ids) for answer in found.answers] == [6, None, 6]
    assert order[-1] == 2
    assert not found.errors


def test_prompts_share_beginnings_at_the_borders_of_blocks() -> None:
    import random

    found = [shared_prompt(n, prompts(), [], 200, random.Random(n)) for n in range(400)]
    common = {
        max(
            next((at for at, (a, b) in enumerate(zip(prompt, own, strict=False)) if a != b), len(prompt))
            for own in prompts()
        )
        for prompt in found
    }
    assert {15, 16, 17, 31, 32, 33} <= common
    assert len(set(found)) < len(found)  # some are repeated
    text: Any = SimpleNamespace(prompt=(1, 2), completion=(3,))
    assert shared_prompt(3, prompts(), [text], 200, random.Random(0))[:3] == (1, 2, 3)
    assert len(shared_prompt(3, prompts(), [text], 42, random.Random(0))) == 40


def test_a_wave_is_read_back_and_a_broken_one_refused() -> None:
    from dataclasses import asdict

    wave = Wave([Ask([1], 2), Ask([3], 4)], [0, 5], [None, 1], 2)
    assert read(Wave, asdict(wave)) == wave
    found = Together([Answer([1], "length"), None], {"1": "no room"})
    assert read(Together, asdict(found)) == found
    for wrong in ({"after": [0]}, {"at_once": 0}, {"asks": 3}, {"abort": [None, "x"]}):
        with pytest.raises(ProtocolError):
            read(Wave, asdict(wave) | wrong)
