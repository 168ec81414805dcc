"""What a person is told about a paper's runs, and beside its tables and figures."""

from __future__ import annotations

from collections.abc import Sequence

from spsbench.base import Message

CHECKING = "Checking tasks, data and models"


# --- the field ---

FIELD_LEGEND = (
    "mean_acceptance_length: 1 + accepted tokens a loop, which papers call acceptance length or tau; "
    "tokens_per_loop: of the outputs, after EOS and stop strings have cut them. The mean gives every "
    "measured task the same weight."
)


class TaskLeftOut(Message):
    """Of the field, where it cannot be measured or fails."""

    task: str
    why: str
    sentence = "{task} is left out: {why}"


class TasksUnscored(Message):
    """Of a gate of parity."""

    tasks: Sequence[str]

    def __str__(self) -> str:
        return f"No parity for {', '.join(self.tasks)}: no metric scores it"


class TasksUndecided(Message):
    """Whose times contention makes useless; ``?`` marks them in the row."""

    tasks: Sequence[str]

    def __str__(self) -> str:
        tasks = ", ".join(self.tasks)
        return f"?: CPU contention during the measurement, see the run: {tasks}."


# --- Chen et al. 2023 ---

FIGURE_1 = (
    "Time: mean ± standard deviation over sequences of equal length, in wall time and by the paper's clock "
    "(mean loop time times the sequence's loops). r': (accepted + 1) / (K + 1), 1 at K = 0."
)


class FastestK(Message):
    """Of a curve of Figure 1.

    Attributes:
        speedup: with its interval, as it is printed.
    """

    title: str
    k: int
    speedup: str
    sentence = "{title}: fastest at K={k}, {speedup}."


# --- Leviathan et al. 2022 ---

TABLE_1 = (
    "From the formulae alone, with c = c^ = 0: operations (1 - alpha)(K + 1) / (1 - alpha^(K+1)), speed "
    "(1 - alpha^(K+1)) / (1 - alpha). K is the paper's gamma."
)
TABLE_3 = (
    "alpha is the mean of sum min(target, draft) over all positions of text that the target wrote, by "
    "teacher forcing; at T = 0 the share of positions where the most probable tokens agree. Unigram and "
    "bigram are counted on the target's texts of other prompts (ten folds), smoothed after Witten and Bell."
    " 95% intervals over prompts."
)
FIGURE_2_TITLE = "Figure 2 of Leviathan et al., our measurements"
FIGURE_2 = (
    "Lines: (1 - alpha^(K+1)) / (1 - alpha) for several K, the paper's gamma, and its limit 1 / (1 - "
    "alpha). Points: accepted + 1 tokens per loop of the rows of Table 2 against alpha by teacher "
    "forcing, and a dash where the formula puts them at their K. Bars: 95% intervals over prompts."
)
FIGURE_3_TITLE = "Figure 3 of Leviathan et al., our measurements"
FIGURE_4_TITLE = "Figure 4 of Leviathan et al., our measurements"
FIGURE_4 = (
    "Lines: walltime and operations factors for several K with c = c^ = 0, as in the paper. Points: the"
    " rows of Table 2. Left: the measured speedup with its 95% interval, and a dash where the formula "
    "puts it with the row's own K and c. Right: operations by the formula, with c^ the ratio of the "
    "models' weights; computed, not counted."
)


class Table2(Message):
    most_k: int
    sentence = (
        "K (the paper's gamma) is chosen by the formula, up to {most_k}, from alpha and c of a "
        "rehearsal; alpha and the speedup are of the run itself, with 95% intervals over prompts. c, "
        "without an interval, is of the run's loops; where their phases are not timed, of the rehearsal. "
        "Predicted: (1 - alpha^(K+1)) / ((1 - alpha)(K c + 1)). Residual: measured - predicted. Cause: "
        "of the factors that the formula takes for 1, the one that does most for a residual of this "
        "sign; paper.json has all of them. It is not named where phases are not timed, nor under CPU "
        "contention. The paper's figures are of T5-XXL on a TPU-v4."
    )


class Figure3(Message):
    most_k: int
    sentence = (
        "Lines: the K of the largest walltime factor for several c, up to 16; 0 where no K gains. "
        "Points: the K of the rows of Table 2, chosen in the same way from a rehearsal's alpha and c, up "
        "to {most_k}. Bars: 95% intervals of alpha over prompts."
    )
