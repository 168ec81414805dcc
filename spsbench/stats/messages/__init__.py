"""What is said of a run's numbers, a file a subject: warnings, verdicts and causes."""

from __future__ import annotations

from spsbench.base.axes import Row, label
from spsbench.base.messages import Message

LEGEND = {
    "r_prime": "(accepted + 1) / (K + 1), mean over loops. Chen et al. 2023, Figure 1.",
    "mean_acceptance_length": "1 + accepted tokens per loop, before truncation. vLLM, llama.cpp.",
    "draft_acceptance_rate": "accepted / drafted tokens. vLLM, SGLang, llama.cpp.",
    "acceptance_per_position": "share of loops with j or more accepted, j = 1..K. vLLM; NVIDIA: joint.",
    "conditional_acceptance": "share accepted at position j of those tested there, j = 1..K. NVIDIA.",
    "alpha_tested": "accepted / tested tokens. Leviathan et al. 2022, by counting.",
    "alpha_beta": "mean of sum min(target, draft) over tested positions. Leviathan's alpha, less noisy; "
    "agrees with alpha_tested or there is a bug.",
    "alpha_leviathan": "the same mean over positions of ArS text, by teacher forcing: the only alpha that "
    "may feed a prediction.",
    "alpha_iid": "the alpha of independent tests that gives this mean_acceptance_length. Describes, never "
    "predicts.",
    "tokens_per_target_call": "emitted tokens per loop, after truncation: what explains wall time.",
}
"""What each name of acceptance is, with who prints it."""

MOST_NAMED = 3
"""Names that a sentence lists before it counts the others."""


class OfArm(Message):
    """What is said of one arm, which is called by ``full_name``."""

    arm: str
    said: Message | str
    sentence = "{arm}: {said}"


def full_name(row: Row) -> str:
    """An arm as sentences name it, with its sampling."""
    return f"{label(row)}, {row['sampling']}"


def significant(value: float, digits: int = 2) -> str:
    """A number with so many significant digits and without an exponent: 0.31, 5.2, 2600."""
    return f"{float(f'{value:.{digits}g}'):.12g}"


def percent(share: float) -> str:
    """A share with two digits: 0.31%, 5.2%, 30%."""
    return f"{significant(100 * share)}%"
