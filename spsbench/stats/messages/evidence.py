"""Reasons of verdicts on losslessness and on parity, and of gates that fail."""

from __future__ import annotations

from spsbench.base.messages import Message, listed
from spsbench.stats.messages import MOST_NAMED
from spsbench.store.summary_types import BeamIdentity

GREEDY = "greedy: token identity is checked by `spsbench verify`"
NOTHING_RECORDED = "no evidence was recorded"
NOT_RESCORED = "no sequence was re-scored independently"
UNBOUNDED = "too few positions to bound a leak"
"""What a bound of everything says."""

NO_EXACT_SEARCH = "no exact beam search beside it: --arms ars,sps"
NOTHING_SAMPLED = "beam search samples nothing"


class SumsNotFinite(Message):
    """Sequences whose recorded sums are no numbers, and which sums."""

    count: int
    sequences: int
    names: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.count} of {self.sequences} sequences have sums that are no finite numbers "
            f"({listed(self.names, MOST_NAMED)})"
        )


class AlphasDiffer(Message):
    """By so many standard errors."""

    z: float

    def __str__(self) -> str:
        return f"alpha_tested and alpha_beta differ by {abs(self.z):.1f} standard errors"


class ImpossibleTokens(Message):
    count: int
    tokens: int
    sentence = "{count} of {tokens} tokens have probability 0 under the target"


class LargeEValue(Message):
    log10: float
    alarm_log10: float
    sentence = "e-value 10^{log10:.1f}, alarm at 10^{alarm_log10:.0f}"


class FewPositions(Message):
    """Positions with a choice between tokens."""

    count: int
    sentence = "only {count} positions had more than one possible token"


class AboveOptimum(Message):
    """Accepted tokens over those of the best lossless rule, and the lower end of the ratio's interval."""

    ratio: float
    low: float
    sentence = "accepts {ratio:.1%} of what the best lossless rule can, at least {low:.1%}"


class DecisionsContradicted(Message):
    contradicted: int
    decisions: int
    sentence = "{contradicted} of {decisions} decisions contradict the models' rows"


class DecisionsFollow(Message):
    """Every decision, from rows of a loop or of the target; ``kept``: the loop's rows were kept."""

    kept: bool

    def __str__(self) -> str:
        whose = "the rows as computed" if self.kept else "the target's own rows"
        return f"every decision follows from {whose}"


class RowsContradicted(Message):
    """Rows of a model that rounding cannot explain."""

    role: str
    beyond: int
    rows: int
    sentence = "{beyond} of {rows} rows of the {role} contradict an independent forward"


class RowsFarOff(Message):
    """Mean total variation of rows from an independent forward, and what rounding alone does."""

    role: str
    apart: float
    rounding: float
    sentence = (
        "the rows of the {role} lie {apart:.1%} from an independent forward, rounding alone {rounding:.1%}"
    )


class SearchesDiffer(Message):
    contradicted: int
    searches: int
    sentence = "{contradicted} of {searches} searches found other hypotheses or scores"


class LogProbabilitiesContradicted(Message):
    contradicted: int
    sequences: int
    sentence = "{contradicted} of {sequences} log-probabilities contradict the target"


class SearchesAgree(Message):
    """With exact beam search."""

    same: BeamIdentity

    def __str__(self) -> str:
        same = self.same
        text = f"hypotheses and scores of exact beam search in {same['identical']} of {same['sequences']}"
        text += f", {same['rounding']} more within rounding" if same["rounding"] else ""
        if same["precise"]:
            return text
        return f"{text}; weak evidence, {same['allowance']:.2g} nats count as rounding"


# --- parity ---

ONE_FIGURE = "the metric gives one figure for all outputs together, which has no interval"
METRIC_FILE_NOT_RUN = (
    "a verdict takes the metric's file, which a report does not run; `spsbench score RUN --missing` gives it"
)
DRAFT_SCORES_ZERO = "the draft alone scores 0"
TOO_LITTLE_VARIATION = (
    "too little variation between prompts for an interval, or the draft alone scores on one alone"
)
FIGURE_NOT_RECORDED = "no figure of these outputs is recorded; `spsbench score RUN --missing` computes it"
NO_COMMON_PROMPT = "no common prompt"
SAME_PROBLEMS_SOLVED = "the same problems are solved"


class NoVariance(Message):
    """Of so few prompts."""

    prompts: int

    def __str__(self) -> str:
        return f"{self.prompts} prompt{'' if self.prompts == 1 else 's'}: no variance to judge by"


class NoSpread(Message):
    """Scores, or differences of them, that are all the same; ``by_prompt``: not a corpus's figure."""

    is_zero: bool
    by_prompt: bool

    def __str__(self) -> str:
        same = "the same score" if self.is_zero else "the same difference"
        return f"{same} {'on every prompt' if self.by_prompt else 'whichever prompt is left out'}"


class MarginOfGap(Message):
    """A margin of parity that is a share of the gap between target and draft."""

    share: float
    sentence = "{share:.0%} of the target-draft gap"


class AbsoluteMargin(Message):
    """A margin of parity where the draft alone was not measured, or is as good as the target."""

    margin: float
    drafts_alone: bool

    def __str__(self) -> str:
        why = "the target is no better than the draft" if self.drafts_alone else "no draft-only arm"
        return f"{self.margin:g} absolute: {why}"


# --- gates ---

NOTHING_MEASURED = "nothing was measured, so there is no evidence of losslessness"
NOTHING_SCORED = "nothing was scored, so there is no parity to judge"
NOTHING_COMPARED = "no SpS arm is beside ArS, so there is no parity to judge"


class SequencesLacking(Message):
    failed: int
    missing: int
    sentence = "{failed} sequences failed and {missing} are missing"


class VerdictFails(Message):
    """A verdict that is not ok, with its reasons."""

    verdict: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.verdict} ({'; '.join(self.reasons)})"


class OutputsUnread(Message):
    count: int
    sentence = "outputs that could not be read again: {count}"


class MetricDiffers(Message):
    metric: str
    difference: float | None
    sentence = "{metric} differs by {difference:+.4f}"
