"""What reports of drafts say of an engine that withdraws those which stayed short, in nats a loop.

    python -m benchmarks.reported_drafts [--temperature 1] [--p-min 0.6] [--n-min 2] [--prompts 12]

Loops are those of the right engine on the embedded pair (synthetic), K = 4, 40 tokens a text. At each the
laws of both engines follow from the models' rows, and nothing more is drawn. Of the engine that withdraws:

    text    the next token's law against the target's
    number  the same given that a draft stands, if it does
    tokens  the draft's first token given that, against the draft's row

The inverse is how many loops are needed for a factor of e.
"""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt
import torch

from spsbench.base.paths import mini_dir
from spsbench.base.protocol import Ask, Drafting, Load, Sampling
from spsbench.base.records import SamplingParams
from spsbench.config.models import TORCH, ModelRef, PairConfig
from spsbench.models.loading import load
from spsbench.models.pair import find_pair
from spsbench.parts.audit.contexts import Forks, divergence, withdrawn
from spsbench.parts.verify.served import Served

Floats = npt.NDArray[np.float64]
K, TOKENS, LENGTH = 4, 40, 60


def of_a_loop(forks: Forks, ids: list[int]) -> tuple[float, float, float, float, float]:
    """How often a draft stands behind ``ids``, nats by text, number and tokens, and the total variation."""
    (q,), (p,) = forks.rows(ids)
    standing = forks.standing(ids, p)
    mass = float(standing.mass[0])
    if mass <= 0:
        return 0.0, 0.0, 0.0, 0.0, 0.0
    stays = np.ones(len(p))
    stays[list(standing.columns)] = standing.stays[0]
    law = withdrawn(q, p, stays)
    # Tested with the row that it was drawn from, not with the one of drafts that stand.
    accepted = np.minimum(p, q) * stays / mass
    rest = np.maximum(q - p, 0.0)
    given = accepted + (1 - accepted.sum()) * (rest / rest.sum() if rest.sum() > 0 else q)
    distance = 0.5 * float(np.abs(law - q).sum())
    return mass, divergence(law, q), mass * divergence(given, q), -mass * float(np.log(mass)), distance


def main() -> None:
    """Print one row: means over loops."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--p-min", type=float, default=0.6)
    parser.add_argument("--n-min", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=12)
    given = parser.parse_args()
    target, draft = (str(mini_dir() / name) for name in ("target", "draft"))
    pair = find_pair(PairConfig(name="mini", target=ModelRef(id=target), draft=ModelRef(id=draft)))
    cpu, size = torch.device("cpu"), pair.vocab_size
    models = (
        load(pair.target, "float32", cpu, size, "--target", TORCH),
        load(pair.draft, "float32", cpu, size, "--draft", TORCH),
    )
    forks = Forks(models, SamplingParams(given.temperature), Drafting(given.p_min, given.n_min, 0))
    engine, dice = Served(Load(target, draft, K, 1), None), np.random.default_rng(0)
    rows = []
    for seed in range(given.prompts):
        prompt = [*map(int, dice.integers(0, size, 4))]
        sampling = Sampling(temperature=given.temperature)
        # The target's own text is the context: of drawn ids alone rows are flat.
        prompt += engine.generate(Ask(prompt, LENGTH, [], [], sampling, seed)).output_ids
        told = engine.generate(Ask(prompt, TOKENS, [], [], sampling, seed + given.prompts))
        place = 0
        for count in told.accepted_per_loop or ():
            rows.append(of_a_loop(forks, [*prompt, *told.output_ids[:place]]))
            place += count + 1
    means = np.mean(rows, axis=0)
    print(f"{len(rows)} loops: text {means[1]:.5f}, number {means[2]:.5f}, tokens {means[3]:.5f} nats a loop")
    print(f"a draft stands in {means[0]:.1%}; total variation of the next token {means[4]:.2%}")


if __name__ == "__main__":
    main()
