"""How many requests of an engine that goes wrong rarely an audit needs, and how often a right one is accused.

    python -m benchmarks.rare_power [--once] [--texts 320] [--target embedded] [--second-best]
        [--out FILE.json]
    python -m benchmarks.rare_power --draw FILE.json [--out FIGURE.svg]

Right texts are the target's own. Wrong requests are right up to a token, each token of all texts being as
likely, and then draw from the rows of the request before, from rows that lack the last token, or any possible
token; or they go on with another request's text, as if all of its state answered. Or single tokens are the
second most probable. Every text is read by an uncached forward, as an audit reads it. Audits are drawn from
these texts, again and again: 400 requests of at most 64 tokens, of which one in 100 is wrong, looked at after
every request, by the bets on rare faults alone, at their weight among all others. What other bets find comes
on top. Beside it stands what a test finds that knows share and law of the wrong requests (``rare_oracle``).
With --out every share of ``SHARES`` is taken, with an interval over the texts, and stored; --draw shows what
is stored.

Without --target it is one of random tables, whose texts cost nothing, so that every audit of a right engine
has texts of its own. The embedded pair and the tables are synthetic.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import rare_oracle
from benchmarks.audit_power import ALARM, PROMPTS, SETTINGS, STOP, VOCABULARY, Tables
from spsbench.base import FLOAT32
from spsbench.base.records import SamplingParams
from spsbench.config import TORCH, resolve
from spsbench.decode.sampling import warp
from spsbench.engines.rescore import teacher_force
from spsbench.models import load
from spsbench.models.torch_lm import TorchLM
from spsbench.parts.audit.bets import RARELY
from spsbench.parts.audit.rare import Neighbour, OtherRows, Rare, added_by
from spsbench.parts.external.engine import ids_that_end
from spsbench.report.figures import style
from spsbench.runner import plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[Any]
Ints = NDArray[np.int64]
Text = tuple[tuple[int, ...], list[int]]
"""Prompt and completion."""

NEEDED = ALARM + math.log(2 / RARELY)
"""Log of the e-value of the rare bets at which an audit speaks, as half of the evidence is another's."""

LAWS = {"T=0.7": SETTINGS[0], "T=1": SETTINGS[1], "T=1, top-p 0.9": SETTINGS[2]}
FIRST = {"stale_row": 1, "another_request": 0, "random_token": 0, "goes_on": 0}
"""The first token that may be wrong."""

KINDS = {
    "stale_row": "a stale row",
    "another_request": "the row of the request before",
    "random_token": "a random possible token",
    "goes_on": "another request's text",
}
HEAD = """| target | wrong | found | by the oracle | its log10 e | by any test | median | share named | held |
|---|---|--:|--:|--:|--:|--:|--:|--:|"""

TABLES, EMBEDDED = "tables", "embedded"
FIGURE = Path("docs/images/rare-power.svg")
Curve = Mapping[str, Any]
"""Of one target and kind of wrong request, as ``--out`` stores it."""

TOKENS, PROMPT = 64, 32
SHARE, REPLACED = 0.01, 0.003
SHARES = (0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03)
"""Of wrong requests."""

_AGAIN = 24
"""How often it is drawn which tokens of a text are the second best."""

_TIMES_MORE = 5
"""Audits drawn for what any test finds, times those of a bet."""

_SAMPLES, _OF_SAMPLE = 40, 250
"""Samples of the texts, for intervals, and audits of each."""


@dataclass(frozen=True)
class World:
    """A target.

    Attributes:
        begin: takes prompts [B, n] and returns what gives rows [B, V] behind them, and, called with the next
            tokens [B], behind those.
        rows: [n, V] of a text, by a forward of its own in float32.
        exact: whether texts are written in float32 too; else a token of probability 0 is no alarm by itself.
    """

    begin: Callable[[Ints], Callable[[Ints | None], Floats]]
    rows: Callable[[Text], Floats]
    prompts: Sequence[tuple[int, ...]]
    stop_ids: Sequence[int]
    exact: bool = True


def tables(seed: int, sampling: SamplingParams) -> World:
    """Return a target of random tables, whose rows follow from the last two tokens."""
    made = Tables.made(seed)
    logits = made.target[0][None] + made.target[1][:, None]  # [before, last, V]
    laws = warp(logits.reshape(-1, VOCABULARY), sampling).double().numpy().reshape(logits.shape)
    dice = random.Random(seed)
    prompts = [tuple(dice.randrange(VOCABULARY - 1) for _ in range(6)) for _ in range(PROMPTS)]

    def begin(ids: Ints) -> Callable[[Ints | None], Floats]:
        last = [ids[:, -2], ids[:, -1]]

        def following(tokens: Ints | None) -> Floats:
            last[:] = last if tokens is None else [last[1], tokens]
            return np.asarray(laws[last[0], last[1]])

        return following

    def rows(text: Text) -> Floats:
        ids = np.array([*text[0], *text[1]])[-len(text[1]) - 2 : -1]
        return np.asarray(laws[ids[:-1], ids[1:]])

    return World(begin, rows, prompts, [STOP])


def pair(name: str, sampling: SamplingParams, dtype: str = FLOAT32) -> World:
    """Return the target of a pair, which writes in ``dtype``, with the ends of the task's prompts."""
    named = {} if name == EMBEDDED else {"pair": name}
    planned = plan(resolve({"limit": PROMPTS, "data": "mini", **named}))
    source = planned.source

    def loaded(dtype: str) -> TorchLM:
        model = load(source.target, dtype, torch.device("cpu"), source.vocab_size, "--target", TORCH)
        assert isinstance(model, TorchLM)
        return model

    reads = loaded(FLOAT32)
    writes = reads if dtype == FLOAT32 else loaded(dtype)

    def begin(ids: Ints) -> Callable[[Ints | None], Floats]:
        cache = None

        def following(tokens: Ints | None) -> Floats:
            nonlocal cache
            new = torch.tensor(ids if tokens is None else tokens[:, None])
            with torch.inference_mode():
                out = writes.model(input_ids=new, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            return np.asarray(warp(out.logits[:, -1].float(), sampling).double().numpy())

        return following

    @lru_cache(maxsize=12)
    def read(prompt: tuple[int, ...], text: tuple[int, ...]) -> Floats:
        return np.asarray(teacher_force(reads, None, prompt, text, sampling).q.double().numpy())

    def rows(text: Text) -> Floats:
        return read(tuple(text[0]), tuple(text[1]))

    ends = ids_that_end(planned.stop, source.tokenizer, source.vocab_size)
    prompts = [prompt.ids[-PROMPT:] for prompt in planned.prompts]
    return World(begin, rows, prompts, ends, exact=dtype == FLOAT32)


def written(world: World, count: int, rng: np.random.Generator, *, second: float = 0.0) -> list[Text]:
    """Return texts, in turns of all prompts; a share ``second`` of tokens is the second most probable."""
    prompts = [world.prompts[n % len(world.prompts)] for n in range(count)]
    following = world.begin(np.array(prompts))
    ids, drawn = [], None
    for _ in range(TOKENS):
        rows = following(drawn)
        drawn = _drawn(rows, rng)
        hit = np.flatnonzero(rng.random(count) < second)
        drawn[hit] = np.argsort(rows[hit], axis=-1)[:, -2]
        ids.append(drawn)
    texts = np.stack(ids, 1).tolist()
    return [(prompt, _ended(text, world.stop_ids)) for prompt, text in zip(prompts, texts, strict=True)]


def stale(world: World, begun: Sequence[tuple[Text, int]], rng: np.random.Generator) -> list[Text]:
    """Return texts that begin as others; from a token of each on rows lack the last token."""
    following = world.begin(np.array([prompt for (prompt, _), _ in begun]))
    starts = np.array([start for _, start in begun])
    theirs = np.array([[*text, *[0] * TOKENS][:TOKENS] for (_, text), _ in begun])
    rows = following(None)
    ids = [theirs[:, 0]]
    for place in range(1, TOKENS):
        before, rows = rows, following(ids[-1])
        drawn = _drawn(np.where((place >= starts)[:, None], before, rows), rng)
        ids.append(np.where(place < starts, theirs[:, place], drawn))
    texts = np.stack(ids, 1).tolist()
    return [
        (prompt, _ended(text, world.stop_ids)) for ((prompt, _), _), text in zip(begun, texts, strict=True)
    ]


def _drawn(rows: Floats, rng: np.random.Generator) -> Ints:
    """[B] tokens drawn from rows [B, V]."""
    sums = rows.cumsum(-1)
    return np.asarray((sums < rng.random((len(rows), 1)) * sums[:, -1:]).sum(-1).clip(max=rows.shape[1] - 1))


def _ended(text: list[int], stop_ids: Sequence[int]) -> list[int]:
    return text[: next((n for n, token in enumerate(text) if token in stop_ids), len(text)) + 1]


class Reader:
    """Reads texts, and gives what each adds to the bets on rare faults."""

    def __init__(self, world: World) -> None:
        self.rare = Rare()
        self._world, self._right = world, list[Text]()
        self._usual: Floats | None = None

    def learn(self, text: Text) -> Floats:
        """[stakes] logs that a right text adds."""
        q = self._world.rows(text)
        added = self.rare.add(OtherRows(q, self._usual, self.rare.neighbour), np.asarray(text[1]))
        self._usual = q.sum(0) + (0.0 if self._usual is None else self._usual)
        self._right.append(text)
        return added

    def of(self, text: Text, before: Text | None = None) -> Floats:
        """[stakes] logs that a text would add behind another; infinity if the target cannot write it."""
        q = self._world.rows(text)
        neighbour = None if before is None else self._neighbour(before)
        if self._world.exact and (q[np.arange(len(q)), text[1]] <= 0).any():
            return np.full(len(added_by(OtherRows(q, None), np.asarray(text[1]))), np.inf)
        return added_by(OtherRows(q, self._usual, neighbour), np.asarray(text[1]))

    def _neighbour(self, text: Text) -> Neighbour:
        return Neighbour(self._world.rows(text), np.asarray(text[1]))

    def replaced(self, text: Text, rng: np.random.Generator) -> Iterator[tuple[Floats, float, float]]:
        """What a text adds [stakes], the log of its likelihood ratio, and what that is expected to be.

        Some tokens are the second best. Which ones is drawn ``_AGAIN`` times behind each of the text's
        prefixes: few texts have few such tokens, and one where the target is sure decides an audit.
        """
        q = self._world.rows(text)
        others, second = OtherRows(q, self._usual), np.argpartition(q, -2, axis=-1)[:, -2]
        for _ in range(_AGAIN):
            ids = np.where(rng.random(len(q)) < REPLACED, second, _drawn(q, rng))
            added = added_by(others, ids)
            if self._world.exact and (others.next_to(ids) <= 0).any():
                added = np.full_like(added, np.inf)
            yield added, *rare_oracle.replaced(q, ids, REPLACED)

    def shares(self) -> dict[str, Any]:
        """What an audit of the right texts so far says that it would have found."""

        def read(number: int, tokens: Ints) -> OtherRows:
            before, (prompt, _) = self._right[number - 1 : number + 1]
            q = self._world.rows((prompt, tokens.tolist()))
            return OtherRows(q, self._usual, self._neighbour(before))

        return {**(self.rare.power(read, NEEDED, exact=self._world.exact) or {})}


Wrong = tuple[int, Text]
"""A wrong text, and the number of the right one that it begins as."""


def wrong_texts(
    world: World, right: Sequence[Text], count: int, rng: np.random.Generator
) -> dict[str, list[Wrong]]:
    """Return by kind texts that are wrong from a random token of the right ones on, up to an end."""
    size = world.rows(right[0]).shape[1]
    begun = _places(right, FIRST["stale_row"], count, rng)
    texts = stale(world, [(right[number], start) for number, start in begun], rng)
    found = {"stale_row": [(number, text) for (number, _), text in zip(begun, texts, strict=True)]}
    found |= {kind: [] for kind in KINDS if kind != "stale_row"}
    for number, start in _places(right, 0, count, rng):
        (prompt, text), other, ends = right[number], right[number - 1][1], world.stop_ids
        drawn = _drawn(rows_of_the_slot(world, right, number), rng).tolist()
        any_ids = rng.integers(0, size, TOKENS - start).tolist()
        found["another_request"].append((number, (prompt, _ended(text[:start] + drawn[start:], ends))))
        found["random_token"].append((number, (prompt, _ended(text[:start] + any_ids, ends))))
        found["goes_on"].append((number, (prompt, text[:start] + (other[start:] or other))))
    return found


def _places(right: Sequence[Text], first: int, count: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Return numbers of texts and tokens of them, in order; each of all texts' tokens is as likely."""
    every = [(number, n) for number, (_, text) in enumerate(right) for n in range(first, len(text))]
    return [every[n] for n in np.sort(rng.choice(len(every), count))]


def rows_of_the_slot(world: World, right: Sequence[Text], number: int) -> Floats:
    """[TOKENS, V] rows of the requests before, the last one first."""
    rows, back = [world.rows(right[number - 1])], 2
    while sum(map(len, rows)) < TOKENS:
        rows.append(world.rows(right[(number - back) % len(right)]))
        back += 1
    return np.concatenate(rows)[:TOKENS]


class Oracle:
    """Knows what is wrong with requests.

    Args:
        right: texts of the target, whose beginnings and neighbours wrong requests have.
    """

    def __init__(self, world: World, right: Sequence[Text]) -> None:
        self._world, self._right = world, right
        self._length = float(np.mean([len(text) for _, text in right]))

    def of(self, kind: str, number: int, text: Text) -> float:
        """Log of the likelihood ratio of a text to go wrong in this way, in the place of a right one."""
        q = self._world.rows(text)
        every, ids = np.arange(len(q)), np.asarray(text[1])
        own = q[every, ids]
        if (own <= 0).any():  # an alarm by itself, or rounding
            return math.inf if self._world.exact else 0.0
        if kind == "goes_on":
            other = self._right[number - 1][1]
            follows = np.array([text[1][n:] == (other[n:] or other) for n in every])
            rests = rare_oracle.from_each_token(np.ones(len(q)), own)
            rests = np.where(follows, rests, -np.inf)
        else:
            rests = rare_oracle.from_each_token(self._wrong(kind, number, q)[every, ids], own)
        return rare_oracle.parted(rests, FIRST[kind], self._length - FIRST[kind])

    def _wrong(self, kind: str, number: int, q: Floats) -> Floats:
        if kind == "stale_row":
            return np.vstack([q[:1], q[:-1]])
        if kind == "another_request":
            return rows_of_the_slot(self._world, self._right, number)
        return np.full_like(q, 1 / q.shape[1])


@dataclass(frozen=True)
class Most:
    """What is found where kind and share are known.

    Attributes:
        found: share of audits in which the oracle's bet speaks.
        any_test: share that the most powerful test finds.
        log10_e: of the bet after all requests, expected.
    """

    found: float
    any_test: float
    log10_e: float


def most_found(
    right: Floats, wrong: Floats, share: float, given: argparse.Namespace, rng: np.random.Generator
) -> Most:
    """Return what an oracle finds by what requests add to its logs, [m] right and [n] wrong ones."""
    columns = right[:, None], wrong[:, None]
    after = audits(*columns, share, given.requests, given.audits, rng, ALARM)
    totals = np.array(
        [drawn(*columns, share, given.requests, rng).sum() for _ in range(_TIMES_MORE * given.audits)]
    )
    any_test = rare_oracle.most_found(totals, math.exp(-ALARM))
    growth = (1 - share) * right.mean() + share * wrong.mean()
    return Most(float((after > 0).mean()), any_test, given.requests * growth / math.log(10))


def audits(
    right: Floats,
    wrong: Floats,
    share: float,
    requests: int,
    count: int,
    rng: np.random.Generator,
    needed: float = NEEDED,
) -> Ints:
    """[count] of each audit the requests until it speaks, 0 where it does not.

    Args:
        right, wrong: [m, stakes] logs that right and wrong requests add; of the latter some may be infinite.
        share: of wrong requests.
        needed: log of the e-value, the mean over the stakes.
    """
    after = np.zeros(count, np.int64)
    for number in range(count):
        sums = drawn(right, wrong, share, requests, rng).cumsum(0)
        with np.errstate(over="ignore"):  # beyond every threshold
            reached = np.exp(sums).mean(-1) >= math.exp(needed)
        after[number] = reached.argmax() + 1 if reached.any() else 0
    return after


def drawn(right: Floats, wrong: Floats, share: float, requests: int, rng: np.random.Generator) -> Floats:
    """[requests, stakes] what the requests of an audit add."""
    added = right[rng.integers(0, len(right), requests)]
    hit = np.flatnonzero(rng.random(requests) < share)
    added[hit] = wrong[rng.integers(0, len(wrong), len(hit))]
    return added


def measured(name: str, world: World, given: argparse.Namespace, count: int) -> tuple[list[str], list[Curve]]:
    """Return rows of the table for one target, and its curves; ``count`` texts have tokens replaced."""
    rng = np.random.default_rng(given.seed)
    reader = Reader(world)
    if given.second_best:
        return [_second_best(name, reader, written(world, count, rng, second=REPLACED), given, rng)], []
    texts = written(world, given.texts, rng)
    oracle = Oracle(world, texts)
    read = [
        (reader.learn(text), [oracle.of(kind, n, text) for kind in KINDS]) for n, text in enumerate(texts)
    ]
    right, of_right = (
        np.array(each)[len(texts) // 4 :] for each in zip(*read, strict=True)
    )  # with a usual row
    of_right = rare_oracle.some(of_right, SHARE)
    said = reader.shares()
    lines, curves = [], list[Curve]()
    wrong = wrong_texts(world, texts, given.wrong, rng)
    found: dict[str, list[tuple[Floats, float]]] = {kind: [] for kind in wrong}
    for number, kind, text in sorted((n, kind, text) for kind, those in wrong.items() for n, text in those):
        found[kind].append((reader.of(text, texts[number - 1]), oracle.of(kind, number, text)))
    for kind, those in found.items():
        added = np.stack([adds for adds, _ in those])
        of_wrong = rare_oracle.some(np.array([ratio for _, ratio in those]), SHARE)
        most = most_found(of_right[:, [*KINDS].index(kind)], of_wrong, SHARE, given, rng)
        after = audits(right, added, SHARE, given.requests, given.audits, rng)
        named = said.get(kind)
        held = "-"
        if named is not None:
            held = f"{(audits(right, added, named, given.texts, given.audits, rng) > 0).mean():.0%}"
        lines.append(_line(name, f"{KINDS[kind]}, 1 request in 100", after, most, named, held))
        if given.out is not None:
            its = {"oracle": most.found, "any_test": most.any_test}
            curves.append({"wrong": kind, **its, "points": points(right, added, given, rng)})
    lines.append(_second_best(name, reader, written(world, count, rng, second=REPLACED), given, rng))
    alarms = audits(right, right, 0.0, given.requests, given.audits, rng) > 0
    of_oracle = [
        (audits(of, of, 0.0, given.requests, given.audits, rng, ALARM) > 0).sum()
        for of in of_right.T[:, :, None]
    ]
    none = f"{alarms.sum()} of {given.audits} | {sum(of_oracle)} of {len(of_oracle) * given.audits}"
    lines.append(f"| {name} | none | {none} | - | - | - | - | - |")
    facts = {
        "target": name,
        "texts": len(texts),
        "wrong_texts": given.wrong,
        "requests": given.requests,
        "tokens_per_request": round(float(np.mean([len(text) for _, text in texts])), 1),
        "audits": given.audits,
        "alarms_of_right_ones": int(alarms.sum()),
    }
    return lines, [{**facts, **curve} for curve in curves]


def _second_best(
    name: str, reader: Reader, texts: Sequence[Text], given: argparse.Namespace, rng: np.random.Generator
) -> str:
    read = [each for text in texts for each in reader.replaced(text, rng)]
    added, ratios, expected = (np.array(each) for each in zip(*read, strict=True))
    after = audits(added, added, 1.0, given.requests, given.audits, rng)
    log10_e = given.requests * float(expected.mean()) / math.log(10)
    most = replace(most_found(np.zeros(1), ratios, 1.0, given, rng), log10_e=log10_e)
    return _line(name, f"second best, {REPLACED:.1%} of tokens", after, most, None, "-")


def points(
    right: Floats, wrong: Floats, given: argparse.Namespace, rng: np.random.Generator
) -> list[dict[str, float]]:
    """Return for each of ``SHARES`` how many audits find it, with a 95% interval over the texts."""

    def found(right: Floats, wrong: Floats, share: float, count: int) -> float:
        return float((audits(right, wrong, share, given.requests, count, rng) > 0).mean())

    def sampled(texts: Floats) -> Floats:
        return texts[rng.integers(0, len(texts), len(texts))]

    drawn = []
    for share in SHARES:
        again = [
            found(sampled(right), sampled(wrong), share, min(_OF_SAMPLE, given.audits))
            for _ in range(_SAMPLES)
        ]
        low, high = np.quantile(again, [0.025, 0.975]).tolist()
        most = found(right, wrong, share, given.audits)
        drawn.append({"share": share, "found": most, "low": low, "high": high})
    return drawn


def _line(name: str, what: str, after: Ints, most: Most, named: float | None, held: str) -> str:
    found = after[after > 0]
    median = f"{np.median(found):.0f}, 90%: {np.quantile(found, 0.9):.0f}" if len(found) else "-"
    said = "-" if named is None else f"{named:.2%}"
    known = f"{most.found:.1%} | {most.log10_e:.3g} | {most.any_test:.1%}"
    return f"| {name} | {what} | {(after > 0).mean():.1%} | {known} | {median} | {said} | {held} |"


def right_engines(given: argparse.Namespace) -> str:
    """Return how many audits of right engines on tables speak, each with texts of its own."""
    alarms, highest = 0, -math.inf
    for seed in range(given.audits):
        sampling = SETTINGS[seed % len(SETTINGS)]
        world = tables(seed // 10, sampling)
        reader, rng = Reader(world), np.random.default_rng(seed)
        most = -math.inf
        for text in written(world, given.of_own, rng):
            reader.learn(text)
            most = max(most, reader.rare.log_e)
        alarms, highest = alarms + (most >= NEEDED), max(highest, most)
    return (
        f"{alarms} of {given.audits} audits of right engines speak ({given.of_own} requests each, texts of "
        f"their own); the highest e-value is 10^{highest / math.log(10):.1f}, 10^{NEEDED / math.log(10):.1f} "
        "is needed."
    )


def worlds(given: argparse.Namespace) -> dict[str, World]:
    """Return the targets that are asked for, by name."""
    if given.target == TABLES:
        return {f"{TABLES}, {name}": tables(0, LAWS[name]) for name in given.law or LAWS}
    laws = given.law or (["T=1"] if given.once else ["T=0.7", "T=1"])
    in_bits = "" if given.dtype == FLOAT32 else f" in {given.dtype}"
    return {f"{given.target}{in_bits}, {name}": pair(given.target, LAWS[name], given.dtype) for name in laws}


def keep(path: Path, curves: Sequence[Curve]) -> None:
    """Store curves, in place of those of the same target and kind."""

    def key(curve: Curve) -> tuple[str, str]:
        return curve["target"], curve["wrong"]

    before = json.loads(path.read_text()) if path.exists() else []
    new = {key(curve) for curve in curves}
    merged = [*(curve for curve in before if key(curve) not in new), *curves]
    path.write_text(json.dumps(merged, indent=1) + "\n")


def figure(curves: Sequence[Curve], law: str) -> style.Plate:
    """Draw a panel for each target under a law, beside how many audits have a wrong request at all."""
    named: dict[str, list[Curve]] = {}
    for curve in curves:
        target, _, its = curve["target"].partition(", ")
        if its == law:
            named.setdefault(target, []).append(curve)
    requests = curves[0]["requests"]
    stamp = f"{law}; {requests} requests of at most {TOKENS} tokens, wrong from a random token on"
    with style.quiet():
        sheet, panels = style.stamped_sheet(stamp, False, [1.0] * len(named), 2.6, most_beside=_BESIDE)
        for number, (axes, (target, its)) in enumerate(zip(panels, named.items(), strict=True)):
            _panel(axes, its, requests)
            first = number % _BESIDE == 0
            title = target.replace(EMBEDDED, f"{EMBEDDED} pair (synthetic)").replace("smollm2", "SmolLM2")
            style.name_axes(axes, title, "found (% of audits)" if first else "", "wrong requests (%)")
            axes.tick_params(labelleft=first)
        keys = [style.key(words, **style.look(index)) for index, words in enumerate(KINDS.values())]
        style.legend(sheet, [*keys, style.key("has a wrong request at all", **_CEILING)])
        title = "Audits that find rare wrong requests, by their share"
        return style.printed(style.Drawing("rare", title, "", sheet))


_BESIDE = 2
_CEILING: Mapping[str, Any] = {"color": style.FAINT, "linestyle": ":"}


def _panel(axes: Axes, curves: Sequence[Curve], requests: int) -> None:
    fine = np.geomspace(SHARES[0], SHARES[-1], 100)
    axes.plot(100 * fine, 100 * (1 - (1 - fine) ** requests), **_CEILING)
    for curve in curves:
        look = style.look([*KINDS].index(curve["wrong"]))
        share, found, low, high = (
            [100 * point[name] for point in curve["points"]] for name in ("share", "found", "low", "high")
        )
        axes.plot(share, found, **look)
        axes.fill_between(share, low, high, color=look["color"], alpha=0.12, linewidth=0)
    axes.set_xscale("log")
    ticks = [0.1, 0.2, 0.5, 1, 2, 3]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_ylim(0, 102)


def main() -> None:
    """Measure and print, or draw what was stored."""
    given = _arguments()
    if given.draw is not None:
        plate = figure(json.loads(given.draw.read_text()), (given.law or ["T=1"])[0])
        (given.out or FIGURE).write_text(plate.svg)
        return
    torch.set_num_threads(1)
    began = time.process_time()
    print(HEAD)
    for name, world in worlds(given).items():
        count = given.texts * (5 if given.target == TABLES else 1)
        lines, curves = measured(name, world, given, count)
        print("\n".join(lines), flush=True)
        if given.out is not None:
            keep(given.out, curves)
    if given.target == TABLES and not given.second_best:
        print(f"\n{right_engines(given)}")
    print(f"\n{time.process_time() - began:.0f} CPU-seconds")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--once", action="store_true", help="small: shows that it runs")
    parser.add_argument("--target", default=TABLES, help=f"{TABLES}, {EMBEDDED} or the name of a pair")
    parser.add_argument("--law", action="append", choices=[*LAWS], help="sampling; several times for several")
    parser.add_argument("--dtype", default=FLOAT32, help="in which a pair's target writes")
    parser.add_argument(
        "--texts", type=int, default=320, help="right texts, and of an audit that says shares"
    )
    parser.add_argument("--wrong", type=int, default=80, help="wrong texts of each kind")
    parser.add_argument("--requests", type=int, default=400, help="of an audit")
    parser.add_argument("--audits", type=int, default=1000)
    parser.add_argument("--of-own", type=int, default=100, help="requests of a right engine on tables")
    parser.add_argument("--second-best", action="store_true", help="single tokens alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON that takes the curves, or the figure of --draw")
    parser.add_argument("--draw", type=Path, help="JSON of curves that are drawn")
    given = parser.parse_args()
    if given.once:
        given.texts, given.wrong, given.audits, given.of_own = 40, 10, 20, 10
    return given


if __name__ == "__main__":
    main()
