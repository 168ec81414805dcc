"""How often an audit raises a false alarm: texts of a right sampler, looked at after each one.

    python -m benchmarks.false_alarms [--runs 1000] [--texts 60] [--tokens 30]

An alarm is an e-value of 1,000. By Ville's inequality a right sampler ever gets there in at most one run of
1,000, however often one looks. The bets of audits of engines (a text repeated, a stop token left out) are
among the alternatives. Rows are random, so the figures are of synthetic data. As a control every run is done
again with a sampler that leaks a twentieth of the draft.
"""

from __future__ import annotations

import argparse

import pandas as pd
import torch

from spsbench.decode.evidence import Sums, added, evidence
from spsbench.decode.sampling import draw
from spsbench.stats.evidence_stats import e_values
from spsbench.stats.losslessness import ALARM_LOG10_E
from spsbench.verify.bets import Bets

_VOCABULARY, _STOP, _PROMPTS, _LEAK = 12, 11, 20, 0.05


def main() -> None:
    """Count the runs that ever alarm."""
    given = _arguments()
    for name, leak in (("right", 0.0), (f"{_LEAK:.0%} from the draft", _LEAK)):
        highest, after = [], []
        for seed in range(given.runs):
            path = list(_path(seed, leak, given.texts, given.tokens))
            highest.append(max(path))
            after += [next((n for n, e in enumerate(path, 1) if e >= ALARM_LOG10_E), None)]
        alarms = [n for n in after if n is not None]
        middle = f", in the median after {pd.Series(alarms).median():.0f} texts" if alarms else ""
        print(
            f"{name}: {len(alarms)} of {given.runs} runs of {given.texts} texts ever alarm{middle}; "
            f"the highest e-value is 10^{max(highest):.1f}"
        )


def _path(seed: int, leak: float, texts: int, tokens: int) -> list[float]:
    """log10 of the e-value behind each text of one run."""
    generator = torch.Generator().manual_seed(seed)
    bets, found = Bets([_STOP]), list[float]()
    sums: Sums = {}
    rows = [_rows(2 * tokens, generator) for _ in range(_PROMPTS)]
    for number in range(texts):
        prompt = number % _PROMPTS
        q, p = rows[prompt][:tokens], rows[prompt][tokens:]
        text = draw((1 - leak) * q + leak * p, torch.rand(tokens, generator=generator))
        own = evidence(text, q, p, torch.rand(tokens, generator=generator))
        sums = added(sums, own | bets.sums((prompt,), text.tolist(), q))
        found.append(_log10(sums))
    return found


def _log10(sums: Sums) -> float:
    return e_values(pd.DataFrame([sums]))["mean"]


def _rows(n: int, generator: torch.Generator) -> torch.Tensor:
    return torch.softmax(2 * torch.randn(n, _VOCABULARY, generator=generator), -1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--texts", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=30)
    return parser.parse_args()


if __name__ == "__main__":
    main()
