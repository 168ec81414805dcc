"""Speculation held against the plain texts of the same engine, where its kernels round.

The law of quantised weights is that of their dequantised values but for the rounding of the engine's kernels.
How they round is not known, so no law is held to the letter. If speculation is lossless, texts with a draft
and without one follow the same law, whatever it is: of two texts of a prompt each is as likely to be the one
with a draft. The sign of any difference between them is then a fair coin, given its size, and bets on coins
are an e-process (Ville 1939). Greedy texts have no coins: where one with a draft first leaves the plain one,
how far its token is below the best logit is compared with how far plain texts stray, and with what
activations in 8 bits alone do to the same texts: few plain texts may not meet a close decision.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import product
from statistics import median

import torch
from torch import nn

from spsbench.base import Ask, Message, Peer, PeerError
from spsbench.engines import Reading, own_entries
from spsbench.models import CausalLM, TorchLM
from spsbench.parts.audit.messages.evidence import FarFromWeights, GreedyDifference, PairsDiffer
from spsbench.runner import Foreign, reading_of
from spsbench.stats import ALARM_LOG10_E
from spsbench.store import Evidence, RoundingFacts

Models = tuple[CausalLM, CausalLM | None]

TOLERANCE = 0.01
"""Nats a token that plain texts may be away from the dequantised weights beside what activations explain."""

ALLOWED = 2.0
"""What is that many times as large as what was measured is still rounding."""

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
    strays: Sequence[float]  # how far below the largest logit each token is
    gaps: Sequence[float]  # between the two largest logits

    @property
    def numbers(self) -> tuple[float, ...]:
        return (self.leak, self.sharpness, float(self.outside), float(self.length))


def scored(reading: Reading) -> Scored:
    """Sum what rounding is judged by over a text."""
    q = own_entries(reading.q, reading.tokens)
    rows = reading.q.clamp(min=1e-30)
    sharp = q.clamp(min=_FLOOR).log() - (reading.q * rows.log()).sum(-1)
    p = q if reading.p is None else own_entries(reading.p, reading.tokens)
    mixed = ((1 - _SHARE) * q + _SHARE * p).clamp(min=_FLOOR) / q.clamp(min=_FLOOR)
    best, second = reading.logits.float().topk(2).values.T
    strays = best - own_entries(reading.logits.float(), reading.tokens)
    return Scored(
        float(mixed.log().sum()),
        float(sharp.sum()),
        int((q <= 0).sum()),
        len(q),
        strays.tolist(),
        (best - second).tolist(),
    )


def pairs(plain: Sequence[Foreign], drafted: Sequence[Foreign]) -> Iterator[tuple[int, int]]:
    """Pair texts of one prompt, each once; never two with the same seed, whose draws may be coupled."""
    places: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for place, each in enumerate(plain):
        places[each.prompt].append(place)
    for place, each in enumerate(drafted):
        free = places[each.prompt]
        other = next((one for one in free if plain[one].line != each.line), None)
        if other is not None:
            free.remove(other)
            yield other, place


def log10_e(differences: Sequence[Sequence[float]]) -> float:
    """Return the log10 e-value of bets on signs of differences, mixed over numbers, stakes and directions."""
    if not differences:
        return 0.0
    logs = []
    for values, stake, way in product(zip(*differences, strict=True), _STAKES, (1, -1)):
        total, sizes = 0.0, list[float]()
        for value in values:
            scale = median(sizes) if sizes else 0.0
            if value and scale:
                total += math.log(2) - math.log1p(
                    math.exp(-max(-50.0, min(50.0, way * stake * value / scale)))
                )
            if value:
                sizes.append(abs(value))
        logs.append(total)
    return float(torch.tensor(logs).logsumexp(0) - math.log(len(logs))) / math.log(10)


@dataclass(frozen=True, slots=True)
class Expected:
    """What activations in 8 bits take alone, on texts and with the reference forward: ``nats`` a token, of
    the measure that ``alarms`` compares; the best token is at most ``stray_most`` below the largest logit of
    the exact row."""

    nats: float = 0.0
    stray_most: float = 0.0


_MEASURED = 8  # texts on which it is measured
_BLOCK = 32


def _in_8_bits(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Round a matrix's inputs in blocks with one scale, as both engines do beside weights of 4 or 8 bits."""
    *rest, width = inputs[0].shape
    blocks = inputs[0].reshape(*rest, -1, _BLOCK if width % _BLOCK == 0 else width)
    step = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return ((blocks / step).round() * step).flatten(-2), *inputs[1:]


@torch.inference_mode()
def expected(texts: Sequence[Foreign], target: TorchLM) -> Expected:
    """Score texts twice, once with activations in 8 bits."""
    nats, strays = list[float](), [0.0]
    matrices = [part for part in target.model.modules() if isinstance(part, nn.Linear)]
    for text in texts[:_MEASURED]:
        exact = reading_of(text, (target, None))
        with ExitStack() as hooks:
            for part in matrices:
                hooks.enter_context(part.register_forward_pre_hook(_in_8_bits))
            rounded = reading_of(text, (target, None))
        logits = exact.logits.float()
        strays += (logits.max(-1).values - own_entries(logits, rounded.logits.argmax(-1))).tolist()
        if not text.sampling.greedy:
            q = exact.q.clamp(min=_FLOOR).double()
            other = rounded.q.double()
            apart = (other * (other.clamp(min=_FLOOR) / q).log()).sum(-1)
            outside = torch.where(exact.q <= 0, rounded.q, 0.0).sum(-1)
            nats += torch.maximum(apart, outside).tolist()
    distances = nats or strays
    return Expected(sum(distances) / len(distances), max(strays))


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a greedy text with a draft first leaves the plain one."""

    request: int
    place: int
    tokens: tuple[int, int]  # of the plain text and of the other
    gap: float  # between the two largest logits there, re-scored
    apart: float  # of the further of the two tokens from the largest
    explained: bool


Texts = Sequence[tuple[Foreign, Scored]]


def differences(plain: Texts, drafted: Texts, rounding: float) -> Iterator[Difference]:
    """First differences of texts with the same number, ``rounding`` the most that it was seen to take."""
    others = {text.line: (text, its) for text, its in drafted}
    for one, row in plain:
        if one.line not in others:
            continue
        other, its = others[one.line]
        both = zip(one.completion, other.completion, strict=False)
        place = next((at for at, (a, b) in enumerate(both) if a != b), None)
        if place is None:
            continue
        apart = max(row.strays[place], its.strays[place])
        tokens = (one.completion[place], other.completion[place])
        near = max(NEAR, ALLOWED * rounding)
        yield Difference(one.line, place, tokens, row.gaps[place], apart, apart <= near)


@torch.inference_mode()
def variation(peer: Peer, asks: Sequence[Ask], models: Models) -> float | None:
    """Return the total variation a token between the engine's rows and the re-scored ones, at temperature 1.

    For tokens drawn from q', the mean of |1 - q / q'| / 2 is it. None where no log-probabilities come.
    """
    distances: list[torch.Tensor] = []
    for ask in asks:
        try:
            answer = peer.generate(ask)
        except PeerError:
            return None
        if answer.logprobs is None or len(answer.logprobs) != len(answer.output_ids) or not answer.output_ids:
            return None
        ids = torch.tensor([*ask.prompt_ids, *answer.output_ids])
        rows = models[0].score_uncached(ids[:-1], last=len(answer.output_ids)).float().log_softmax(-1)
        log_probs = own_entries(rows, ids[len(ask.prompt_ids) :])
        distances.append((1 - (log_probs - torch.tensor(answer.logprobs)).exp()).abs() / 2)
    return float(torch.cat(distances).mean()) if distances else None


def compared(
    plain: Texts, drafted: Texts, *, greedy: bool, by_activations: Expected | None = None
) -> RoundingFacts:
    """Compare speculation with the plain texts; ``drafted`` is empty for the plain texts themselves."""
    by_activations = by_activations or Expected()
    far = [stray for _, each in plain for stray in each.strays] or [0.0]
    facts: RoundingFacts = {
        "pairs": 0,
        "log10_e_value": 0.0,
        "stray_most": max(far) if greedy else None,
        "stray_mean": sum(far) / len(far) if greedy else None,
        "outside_share": sum(each.outside for _, each in plain) / len(far),
        "expected": by_activations.nats,
        "differences": [],
        "variation": None,
    }
    if greedy:
        most = max(*far, by_activations.stray_most)
        facts["differences"] = [asdict(difference) for difference in differences(plain, drafted, most)]
    else:
        values = [
            [b - a for a, b in zip(plain[one][1].numbers, drafted[other][1].numbers, strict=True)]
            for one, other in pairs([text for text, _ in plain], [text for text, _ in drafted])
        ]
        facts |= {"pairs": len(values), "log10_e_value": log10_e(values)}
    return facts


def alarms(facts: RoundingFacts, evidence: Evidence | None, tokens: int, *, is_plain: bool) -> list[Message]:
    """What rounding does not explain."""
    reasons = list[Message]()
    if is_plain:
        nats = 0.0 if evidence is None else evidence["log10_e_value"] * math.log(10) / max(1, tokens)
        # A greedy token that is not the best one has probability 0, however near it is.
        away = max(nats, facts["outside_share"]) if facts["stray_mean"] is None else facts["stray_mean"]
        most = TOLERANCE + ALLOWED * facts["expected"]
        if away > most:
            reasons.append(FarFromWeights(away, most))
    elif facts["log10_e_value"] >= ALARM_LOG10_E:
        reasons.append(PairsDiffer(facts["log10_e_value"]))
    for parting in facts["differences"]:
        if not parting["explained"]:
            where = parting["request"], parting["place"], parting["apart"]
            reasons.append(GreedyDifference(*where, facts["stray_most"]))
    return reasons
