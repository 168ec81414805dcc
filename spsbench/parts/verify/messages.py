"""What tests of a sampler say: what each of them found, and what its pass excludes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from spsbench.base import Message
from spsbench.stats import UNBOUNDED

Numbers = dict[str, float | int | str | None]

NO_DIFFERENCE = "No test found a difference from the target's distribution."

_NOTHING_DRAWN = "no token was sampled"


class Measurement(Message):
    """What a test measured. Its fields are its numbers in JSON."""

    @property
    @abstractmethod
    def excludes(self) -> str:
        """What a pass excludes."""

    @property
    def numbers(self) -> Numbers:
        return asdict(self)


def _false_alarms() -> str:
    from spsbench.stats import FALSE_ALARM

    return f"false alarm once in {1 / FALSE_ALARM:,.0f}"


def at_most(bound: float) -> str:
    """An upper bound of a leakage in words."""
    from spsbench.stats import bounds

    return f"at most {bound:.2%} (95%)" if bounds(bound) else UNBOUNDED


def _lengths(shortest: int, longest: int) -> str:
    return f"{shortest} to {longest}" if shortest < longest else f"{shortest}"


class LossyLeakage(Message):
    """What a sampler leaks that is lossy by design."""

    sampler: str
    sampling: str
    design: str
    numbers: Mapping[str, float | int | str | None]

    def __str__(self) -> str:
        leakage = f"but {_NOTHING_DRAWN}"
        if "leakage" in self.numbers:
            bound = at_most(float(self.numbers["leakage_bound"] or 0))
            leakage = f"leakage {self.numbers['leakage']:.1%}, {bound}"
        return f"{self.sampler}, {self.sampling}: {self.design}, {leakage}."


class ControlMatrix(Message):
    sampling: str
    sentence = "Controls ({sampling}): x where a test caught what was planted"


# --- why a test does not apply ---


class NotOnTables(Message):
    error: Exception
    sentence = "it cannot be built on a table of probabilities: {error}"


class NoThresholds(Message):
    rule: object
    sentence = "it probes the thresholds of modified rejection, which {rule} does not have"


class RowsNotShown(Message):
    drafter: object
    sentence = "{drafter} does not show which rows its tokens were drawn from"


class AllAtAnEdge(Message):
    positions: int
    sentence = "rounding decides which tokens are possible at all {positions} positions visited"


class DecisionsNotDerived(Message):
    rule: object
    sentence = "those of the rule {rule} are not derived"


# --- parts of the sampler ---


class LogitDifference(Measurement):
    difference: float
    largest_logit: float
    limit: float
    rows: int

    def __str__(self) -> str:
        worst = f"{self.difference:.1e} between 1 and {self.rows} rows"
        return f"logits differ by at most {worst} (largest {self.largest_logit:.3g})"

    @property
    def excludes(self) -> str:
        return f"a difference above {self.limit:g} of the largest logit"


class WarpDistance(Measurement):
    compared: int
    skipped_at_an_edge: int
    worst: float
    worst_sampling: str
    limit: float

    def __str__(self) -> str:
        worst = f"{self.worst:.1e} ({self.worst_sampling})"
        return f"total variation at most {worst} over {self.compared} rows"

    @property
    def excludes(self) -> str:
        warper = "a brute-force warper, in any row whose edge is clear"
        return f"a total variation above {self.limit:g} from {warper}"


class DraftsRepeated(Measurement):
    drafts: int
    shortest: int
    longest: int

    def __str__(self) -> str:
        lengths = _lengths(self.shortest, self.longest)
        return f"{self.drafts} drafts of {lengths} tokens, the same in both passes"

    @property
    def excludes(self) -> str:
        return "in those loops, anything but a draft of up to K tokens, and the drafter's own random numbers"


class LoopLaws(Measurement):
    situations: int
    worst: float
    limit: float
    exact: int
    vocab_size: int
    k: int
    shortest: int
    longest: int

    def __str__(self) -> str:
        shown = f"probabilities off by at most {self.worst:.0e} in {self.situations} situations"
        return f"{shown}, drafts of {_lengths(self.shortest, self.longest)} tokens"

    @property
    def excludes(self) -> str:
        sizes = f"V to {self.vocab_size}, K to {self.k}; on tables"
        return f"a difference of {self.limit:g} in any probability of K+1 tokens, {sizes}"


class LawDistance(Measurement):
    positions: int
    skipped_at_an_edge: int
    mean: float
    worst: float
    limit: float

    def __str__(self) -> str:
        variation = f"mean total variation {self.mean:.1e}, worst {self.worst:.1e}"
        return f"{variation}, over {self.positions} positions"

    @property
    def excludes(self) -> str:
        return f"a mean total variation above {self.limit:g} at the positions visited"


class UniformNumbers(Measurement):
    length: int
    streams: int
    shared_seeds: int
    repeated: int
    p_values: Mapping[str, float]

    def __str__(self) -> str:
        repetition = f"{self.repeated} repeated stretches, {self.shared_seeds} of {self.streams} seeds shared"
        test, least = min(self.p_values.items(), key=lambda item: item[1])
        return f"{repetition}, least p {least:.2g} ({test})"

    @property
    def excludes(self) -> str:
        where = f"{self.length:,} numbers of a sequence or between sequences"
        return f"any repetition in {where}; {_false_alarms()}"

    @property
    def numbers(self) -> Numbers:
        counts = {"numbers": self.length, "streams": self.streams, "shared_seeds": self.shared_seeds}
        p_values = {f"p_{test}": value for test, value in self.p_values.items()}
        return {**counts, "repeated": self.repeated, **p_values}


class BookedTime(Measurement):
    loops: int
    differences: int
    sentence = "every second of {loops} loops is accounted for, each in its phase"

    @property
    def excludes(self) -> str:
        wrong = "a lap, a forward or a draft left out of an arm's time, counted twice or in another phase"
        return f"{wrong}; on tables"


class TimeDifference(Message):
    what: str
    booked_s: float
    passed_s: float
    sentence = "{what} {booked_s:g} where {passed_s:g} passed"


# --- what the sampler writes ---


class NextTokens(Measurement):
    draws: int
    contexts: int
    g: float
    degrees_of_freedom: int
    prefixes: int
    p_value: float
    impossible: int

    def __str__(self) -> str:
        statistic = f"G = {self.g:.0f} on {self.degrees_of_freedom} degrees of freedom"
        return f"{statistic}, p = {self.p_value:.2g}, {self.impossible} impossible tokens"

    @property
    def excludes(self) -> str:
        return f"{_false_alarms()}; {self.draws:,} draws in each of {self.contexts} contexts"


class GreedyOutputs(Measurement):
    outputs: int
    tokens: int
    identical: int
    numeric_ties: int
    bugs: int
    first_parting: int | None
    widest_gap: float
    tie_limit: float

    def __str__(self) -> str:
        same = f"{self.identical} of {self.outputs} outputs identical"
        counts = f"{same}, {self.numeric_ties} numeric ties, {self.bugs} bugs"
        if self.first_parting is None:
            return counts
        return f"{counts}; first parting at token {self.first_parting}, widest gap {self.widest_gap:.2g}"

    @property
    def excludes(self) -> str:
        where = f"{self.outputs} outputs of {self.tokens} tokens"
        return f"any greedy difference in {where} that rounding does not explain"


class DerivedDecisions(Message):
    decided: int
    contradicted: int
    wrong_rows: Sequence[object]

    def __str__(self) -> str:
        contradictions = f"{self.contradicted} of {self.decided} decisions contradict the rows"
        reasons = [*([contradictions] if self.contradicted else []), *map(str, self.wrong_rows)]
        right = f"all {self.decided} follow from the rows as computed, and these are the target's"
        return "; ".join(reasons) or right


class DecisionsExcluded(Message):
    """``factor``: by how much more than rounding a row in 16 bits may differ."""

    factor: float

    def __str__(self) -> str:
        coarse = f"in 16 bits rows {self.factor:g} times farther off than rounding"
        return f"any decision that rounding in float32 does not explain, any wrong row in float32, {coarse}"


class OutputLeakage(Message):
    """``leakage`` is None where nothing was drawn; ``bound`` is its upper one."""

    leakage: float | None
    bound: float
    e_value: float
    impossible: float
    passed: bool

    def __str__(self) -> str:
        from spsbench.stats import bounds

        leak = _NOTHING_DRAWN
        if self.leakage is not None and self.passed:
            # An estimate beside an "ok" reads as a leak that was found; there its noise alone is known.
            seen = f"one above {self.bound:.1%} would have been seen (95%)"
            leak = f"no sign of a leak; {seen if bounds(self.bound) else UNBOUNDED}"
        elif self.leakage is not None:
            leak = f"leakage {self.leakage:.2%}, {at_most(self.bound)}"
        return f"{leak}, e-value {self.e_value:.2g}, {self.impossible:.0f} impossible tokens"


class FalseAlarms(Message):
    e_value: float

    def __str__(self) -> str:
        level = f"{self.e_value:.0f}"
        return f"alarm at an e-value of {level}: at most one false alarm in {level}, whenever evaluated"
