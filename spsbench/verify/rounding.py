"""Speculation held against the plain texts of the same engine, where its kernels round.

The law of quantised weights is that of their dequantised values but for the rounding of the engine's kernels.
How they round is not known, so no law is held to the letter. If speculation is lossless, texts with a draft
and without one follow the same law, whatever it is: of two texts of a prompt each is as likely to be the one
with a draft. The sign of any difference between them is then a fair coin, given its size, and bets on coins
are an e-process (Ville 1939). Greedy texts have no coins: where one with a draft first leaves the plain one,
how far its token is below the best logit is compared with how far plain texts stray.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from statistics import median

import torch

from spsbench.engines.external.protocol import Ask, Peer, PeerError
from spsbench.engines.rescore import Reading, own_entries
from spsbench.models.causal_lm import CausalLM
from spsbench.stats.losslessness import ALARM_LOG10_E
from spsbench.summary_types import Evidence, RoundingFacts
from spsbench.verify.audit import Drawn, reading_of

Models = tuple[CausalLM, CausalLM | None]

TOLERANCE = 0.01
"""Nats a token that plain texts may be away from the dequantised weights: more is not rounding."""

ALLOWED = 2.0
"""A first difference is rounding where its logits are apart by this many times what plain texts strayed."""

NEAR = 0.02
"""Logits that are this close may change places by rounding, also where no plain text strayed."""

_SHARE = 0.2  # of the draft in the mixture that texts are scored with
_FLOOR = 1e-6
_STAKES = (0.25, 1.0, 4.0)


@dataclass(frozen=True, slots=True)
class Scored:
    """Numbers of one text in which speculation may show."""

    leak: float  # nats by which a share of the draft explains it better
    sharpness: float  # nats above what the rows' own draws have
    outside: int  # tokens of probability 0
    length: int

    @property
    def numbers(self) -> tuple[float, ...]:
        return (self.leak, self.sharpness, float(self.outside), float(self.length))


def scored(reading: Reading) -> Scored:
    q = own_entries(reading.q, reading.tokens)
    rows = reading.q.clamp(min=1e-30)
    sharp = q.clamp(min=_FLOOR).log() - (reading.q * rows.log()).sum(-1)
    p = q if reading.p is None else own_entries(reading.p, reading.tokens)
    mixed = ((1 - _SHARE) * q + _SHARE * p).clamp(min=_FLOOR) / q.clamp(min=_FLOOR)
    return Scored(float(mixed.log().sum()), float(sharp.sum()), int((q <= 0).sum()), len(q))


def pairs(plain: Sequence[Drawn], drafted: Sequence[Drawn]) -> Iterator[tuple[int, int]]:
    """Texts of one prompt, each once; never two with the same seed, whose draws may be coupled."""
    places: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for place, each in enumerate(plain):
        places[each.text.prompt].append(place)
    for place, each in enumerate(drafted):
        free = places[each.text.prompt]
        other = next((one for one in free if plain[one].text.line != each.text.line), None)
        if other is not None:
            free.remove(other)
            yield other, place


def log10_e(differences: Sequence[Sequence[float]]) -> float:
    """Of bets on the signs of differences, pair by pair; a mixture over numbers, stakes and directions."""
    if not differences:
        return 0.0
    found = []
    for values, stake, way in product(zip(*differences, strict=True), _STAKES, (1, -1)):
        total, sizes = 0.0, list[float]()
        for value in values:
            scale = median(sizes) if sizes else 0.0
            if value and scale:
                total += math.log(2) - math.log1p(
                    math.exp(-max(-50.0, min(50.0, way * stake * value / scale)))
                )
            sizes += [abs(value)] if value else []
        found.append(total)
    return float(torch.tensor(found).logsumexp(0) - math.log(len(found))) / math.log(10)


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a greedy text with a draft first leaves the plain one."""

    request: int
    place: int
    tokens: tuple[int, int]  # of the plain text and of the other
    gap: float  # between the two largest logits there, re-scored
    apart: float  # of the further of the two tokens from the largest
    explained: bool


def strays(reading: Reading) -> torch.Tensor:
    """[n] how far below the largest logit each token is."""
    logits = reading.logits.float()
    return logits.max(-1).values - own_entries(logits, reading.tokens)


def differences(
    plain: Mapping[int, tuple[Drawn, Reading]], drafted: Mapping[int, tuple[Drawn, Reading]], rounding: float
) -> Iterator[Difference]:
    """First differences of texts with the same number, ``rounding`` the most that plain texts strayed."""
    for number in sorted(plain.keys() & drafted.keys()):
        (one, row), (other, its) = plain[number], drafted[number]
        both = zip(one.text.completion, other.text.completion, strict=False)
        place = next((at for at, (a, b) in enumerate(both) if a != b), None)
        if place is None:
            continue
        best, second = row.logits[place].float().topk(2).values.tolist()
        apart = max(float(strays(row)[place]), float(strays(its)[place]))
        tokens = one.text.completion[place], other.text.completion[place]
        yield Difference(number, place, tokens, best - second, apart, apart <= max(NEAR, ALLOWED * rounding))


@torch.inference_mode()
def variation(peer: Peer, asks: Sequence[Ask], models: Models) -> float | None:
    """Total variation a token between the engine's rows and the re-scored ones, of temperature 1.

    For tokens drawn from q', the mean of |1 - q / q'| / 2 is it. None where no log-probabilities come.
    """
    found: list[torch.Tensor] = []
    for ask in asks:
        try:
            told = peer.generate(ask)
        except PeerError:
            return None
        if told.logprobs is None or len(told.logprobs) != len(told.output_ids) or not told.output_ids:
            return None
        ids = torch.tensor([*ask.prompt_ids, *told.output_ids])
        rows = models[0].score_uncached(ids[:-1], last=len(told.output_ids)).float().log_softmax(-1)
        ours = own_entries(rows, ids[len(ask.prompt_ids) :])
        found.append((1 - (ours - torch.tensor(told.logprobs)).exp()).abs() / 2)
    return float(torch.cat(found).mean()) if found else None


def compared(
    plain: Sequence[Drawn], drafted: Sequence[Drawn], models: Models, *, greedy: bool
) -> RoundingFacts:
    """Speculation against the plain texts; ``drafted`` is empty for the plain texts themselves."""
    ones, others = ([(each, reading_of(each.text, models)) for each in texts] for texts in (plain, drafted))
    tokens = sum(len(each.text.completion) for each in plain)
    far = torch.cat([strays(reading) for _, reading in ones]) if ones else torch.zeros(1)
    facts: RoundingFacts = {
        "pairs": 0,
        "log10_e_value": 0.0,
        "stray_most": float(far.max()) if greedy else None,
        "stray_mean": float(far.mean()) if greedy else None,
        "outside_share": sum(scored(reading).outside for _, reading in ones) / max(1, tokens),
        "differences": [],
        "variation": None,
    }
    if greedy:
        numbered = [{each.text.line: (each, reading) for each, reading in both} for both in (ones, others)]
        found = differences(numbered[0], numbered[1], float(far.max()))
        facts["differences"] = [asdict(each) for each in found]
    else:
        first, second = ([scored(reading).numbers for _, reading in both] for both in (ones, others))
        values = [
            [b - a for a, b in zip(first[one], second[other], strict=True)]
            for one, other in pairs(plain, drafted)
        ]
        facts |= {"pairs": len(values), "log10_e_value": log10_e(values)}
    return facts


def alarms(facts: RoundingFacts, evidence: Evidence | None, tokens: int, *, is_plain: bool) -> list[str]:
    """What rounding does not explain."""
    found = []
    if is_plain:
        nats = 0.0 if evidence is None else evidence["log10_e_value"] * math.log(10) / max(1, tokens)
        away = max(nats, facts["stray_mean"] or 0.0, facts["outside_share"])
        if away > TOLERANCE:
            found.append(
                f"{away:.3f} nats a token from the dequantised weights, and rounding may take {TOLERANCE}"
            )
    elif facts["log10_e_value"] >= ALARM_LOG10_E:
        found.append(f"pairs of texts with and without a draft: e-value 10^{facts['log10_e_value']:.1f}")
    for each in facts["differences"]:
        if not each["explained"]:
            found.append(
                f"request {each['request']} leaves the plain text at token {each['place']}, "
                f"{each['apart']:.3g} below the best logit; plain texts stray by {facts['stray_most']:.3g}"
            )
    return found
