"""How far planted faults move the law of a tested token on the embedded pair (synthetic), in total variation.

    python -m benchmarks.fault_distance TEXTS.jsonl [--temperature 1] [--places 100]

TEXTS are what an audit writes: four places of each text are looked at. The laws follow from both
models' rows there, and nothing is drawn: of shared noise by the inverse of the cumulative distribution, as
our sampler draws, without draft tokens below 1e-7.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.shared_noise import SHARED, by_inverse
from spsbench.base.protocol import Drafting
from spsbench.base.records import SamplingParams
from spsbench.config import resolve
from spsbench.config.models import TORCH
from spsbench.models.loading import load
from spsbench.models.pair import find_pair
from spsbench.parts.audit.contexts import Forks, withdrawn

Floats = npt.NDArray[np.float64]
A_TEXT = 4
DROPPED, READS = 0.6, 0.4  # thresholds of dropped-short and of drawn-token-stop


def overwritten(q: Floats, p: Floats) -> Floats:
    """[V] the law where an odd token is written as the even one below it, and its mass alone is reported."""
    odd = p[1::2]
    both, told = np.zeros_like(p), np.zeros_like(p)
    both[::2] = told[::2] = p[::2]
    both[: 2 * len(odd) : 2] += odd
    told[: 2 * len(odd) : 2] = odd
    ratio = np.divide(q, told, out=np.full_like(q, np.inf), where=told > 0)
    kept = both * np.minimum(1.0, ratio)
    rest = np.maximum(q - told, 0.0)
    return np.asarray(kept + (both.sum() - kept.sum()) * rest / rest.sum())


def laws(forks: Forks, ids: list[int]) -> dict[str, Floats]:
    """[V] each: of the token behind these, the target's and that of each fault."""
    (q,), (p,) = forks.rows(ids)
    likely = np.where(p > 1e-7, p, 0.0)
    likely /= likely.sum()
    found = {"target": q} | {name: by_inverse(q, likely, shared) for name, shared in SHARED.items()}
    found["stop reads the drawn token"] = withdrawn(q, p, p >= READS)
    found["mass overwritten"] = overwritten(q, p)
    own = forks.of(ids).withdrawn
    found["dropped short"] = next(law for (_, at), law in own.items() if at == DROPPED)
    return found


def main() -> None:
    """Print of each fault the mean and the largest distance over places."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("texts", type=Path)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--places", type=int, default=100)
    given = parser.parse_args()
    settings = resolve({"task": "xsum", "pair": "mini", "data": "mini", "arms": ["ars"], "score": False})
    source = find_pair(settings.pair)
    device, size = torch.device("cpu"), source.vocab_size
    target, draft = (
        load(each, "float32", device, size, "--target", TORCH) for each in (source.target, source.draft)
    )
    forks = Forks((target, draft), SamplingParams(given.temperature), Drafting(DROPPED))
    dice, apart = np.random.default_rng(0), dict[str, list[float]]()
    texts = [json.loads(line) for line in given.texts.read_text().splitlines()]
    for text in texts[: given.places // A_TEXT]:
        prompt, tokens = text["prompt_ids"], text["completion_ids"]
        for place in dice.choice(len(tokens), min(A_TEXT, len(tokens)), replace=False):
            found = laws(forks, [*prompt, *tokens[:place]])
            for name, law in found.items():
                apart.setdefault(name, []).append(0.5 * float(np.abs(law - found["target"]).sum()))
    for name, each in apart.items():
        print(f"{name:28} mean {np.mean(each):.4f}, most {max(each):.4f}, {len(each)} places")


if __name__ == "__main__":
    main()
