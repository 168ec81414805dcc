"""What commands tell beside their results: what they do, what it costs, and how to go on."""

from __future__ import annotations

from pathlib import Path

from spsbench.base.messages import Message
from spsbench.report.wording import counted

EXIT_CODES = (
    "Exit codes: 0 success, 1 failure while running, 2 usage error, 3 data or model unavailable, "
    "4 a gate failed, 5 some sequences failed or are missing, 129, 130 or 143 interrupted."
)
"""The last lines of a command's help."""

OUT_OF_MEMORY = "out of memory. Choose a smaller pair, --dtype bfloat16 or another device."
OWN_FAULT = "This is a fault of spsbench; --debug shows where."

CHECKING = "Checking task, data and models"

LOAD_IN_RUNS = "Nothing is timed again: CPU contention widens the intervals of this run."
LOAD_IN_REMEASURED_RUNS = (
    "Disturbed prompts are timed again: the run takes longer, and the contention that remains widens its "
    "intervals."
)
LOAD_IN_ROUNDS = (
    "The least disturbed of several rounds are used: times are less precise than on an idle machine."
)
"""What other load does to forwards and loops that are timed in rounds."""


class SequencesToMeasure(Message):
    total: int
    done: int

    def __str__(self) -> str:
        there = f", {self.done} of them already measured" if self.done else ""
        return f"Measuring {self.total} sequences{there}"


class TimingAgain(Message):
    count: int
    is_short_run: bool

    def __str__(self) -> str:
        prompts = counted(self.count, "prompt")
        if self.is_short_run:
            return f"Timing {prompts} again: a run this short samples a single state of the machine"
        return f"Timing {prompts} again because of CPU contention"


class SequencesOfProof(Message):
    most: int

    def __str__(self) -> str:
        sequences = counted(self.most, "sequence")
        return f"Drawing up to {sequences} at temperature 1 for the losslessness test"


class OutputsToScore(Message):
    count: int
    sentence = "Scoring {count} outputs"


class Everything(Message):
    """Of a run, by the folder that has it."""

    folder: Path
    sentence = "Everything is in {folder}"


class ProcessesFinished(Message):
    finished: int
    count: int
    folder: Path
    sentence = "{finished} of {count} processes finished; everything is in {folder}"


class ProcessesLeftOut(Message):
    unfinished: int
    count: int
    sentence = "{unfinished} of {count} processes did not finish and are left out."


class WayToTimeAgain(Message):
    """Of times that do not decide, or that cannot be trusted."""

    purpose: str
    command: str
    sentence = "{purpose}, on an idle machine: {command}"


class WayToFigures(Message):
    command: str
    sentence = "Figures and a page with every token: {command}"


class RunIncomplete(Message):
    folder: Path
    command: str
    sentence = "{folder} is not complete. Continue it with:\n  {command}"


class WayToContinue(Message):
    command: str
    sentence = "Everything finished is kept. Continue with:\n  {command}"


class CommandInterrupted(Message):
    """By a signal, if any has a name; ``command`` continues what is kept, or starts again."""

    signal: str | None
    is_kept: bool
    command: str

    def __str__(self) -> str:
        by = "" if self.signal is None else f" by {self.signal}"
        advice = "; everything finished is kept. Continue with" if self.is_kept else ". Start it again with"
        return f"\nInterrupted{by}{advice}:\n  {self.command}"


class SlowdownPossible(Message):
    """Arms whose interval goes beyond a gate."""

    allowed: str
    arms: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"Not significantly slower by more than {self.allowed}, but too few prompts to exclude it: "
            f"{', '.join(self.arms)}."
        )


FOREIGN_IDS = "the runs have ids that are no tokens of the model"


class SamplesToRun(Message):
    samples: int
    problems: int
    sandbox: str
    sentence = "Running {samples} samples of {problems} problems in {sandbox}."


class WholePrograms(Message):
    """Samples with a solution; of them those that have a completion too."""

    count: int
    with_completion: int

    def __str__(self) -> str:
        both = self.with_completion
        beside = f"; completions beside them, not run: {both}" if both else ""
        return f"Whole programs (solution), each run alone: {self.count}{beside}."


class TimesDoNotCount(Message):
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"The times are not trusted: {'; '.join(self.reasons)}."


class TracedSpeedup(Message):
    """Of one text; times in ms a token, as they are shown."""

    tokens: int
    loops: int
    k: int
    sps_ms: str
    ars_ms: str
    speedup: float
    sentence = (
        "{tokens} tokens in {loops} loops: SpS (K={k}) {sps_ms} ms/token, ArS {ars_ms}: {speedup:.2f}x here."
    )


# doctor

NO_OTHER_LOAD = "none: times can be trusted now"
NOT_IN_HUB_CACHE = "not in the hub's cache; needs the hub, or --data PATH"

# doctor FOLDER

HOW_ENGINES_READ = "how it reads the folder"
LAST_STATE = "the target's last state, after its final norm"
NO_LAYERS_NAMED = "the states after 2, n//2 and n-3 of the target's n layers, which are no ids in the folder"


class TextsToRead(Message):
    count: int
    tokens: int
    readings: int
    sentence = "Reading {count} texts of {tokens} tokens under {readings} readings"


class PredictionModules(Message):
    count: int
    own_heads: int

    def __str__(self) -> str:
        heads = (
            f"{self.own_heads} with an output head in the files"
            if self.own_heads
            else "with the target's head"
        )
        return f"{self.count}, {heads}"


class KeysAndValuesRead(Message):
    """By an assistant, of layers of these kinds."""

    kinds: tuple[str, ...]

    def __str__(self) -> str:
        kinds = " and ".join(name.replace("_", " ") for name in self.kinds)
        seen = f"the keys and values of its last layers of {kinds} that compute some"
        return f"the target's last state, and {seen}"


class LayersRead(Message):
    ids: tuple[int, ...]

    def __str__(self) -> str:
        return f"ids {', '.join(map(str, self.ids))} of the target's layers"


class ClustersProposed(Message):
    count: int
    sentence = "tokens of the best of {count:,} clusters"


class BestReading(Message):
    """Under which most is accepted; whether it is better than each other one beyond what texts leave open,
    None where there is no other."""

    reading: str
    is_certain: bool | None

    def __str__(self) -> str:
        if self.is_certain is None:
            known = ", the only possible reading."
        elif self.is_certain:
            known = ", by more than the uncertainty over texts: it was most likely trained so."
        else:
            known = "; on these texts another reading may be as good."
        return f"Acceptance is highest when read {self.reading}{known}"


class TokensLost(Message):
    """Per loop under a reading, against the best one: mean and 95% interval; and who reads so."""

    reading: str
    engines: tuple[str, ...]
    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        by = f" (as {', '.join(self.engines)} reads it)" if self.engines else ""
        interval = f"[{self.low:.2f}, {self.high:.2f}]"
        return f"Read {self.reading}{by}, it loses {self.mean:.2f} tokens per loop {interval}."


# list

PASS_AT_K = "Share of problems solved by at least one of k programs, by their tests."
NEEDS_OF_PASS_AT_K = "a task of code, a sandbox"
EVALUATE_METRIC = "A metric of the evaluate library, or a script for it, evaluate:path/metric.py."
NEEDS_OF_EVALUATE_METRIC = "its script, from the hub or a file"
BETTER_UNLESS_ERROR_RATE = "higher, of error rates lower"
NEEDS_OF_WORKER = "a program that speaks the engine protocol"
NEEDS_OF_FIELD = "mini: nothing\nofficial: what each needs"
NEEDS_OF_GRAPHED = "CUDA, else it is eager"


class FieldOfTasks(Message):
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"Each of {', '.join(self.names)}, and the row of acceptance lengths that papers report."


class WayToEngines(Message):
    """``elsewhere`` is how one is named that is installed elsewhere."""

    elsewhere: str
    sentence = "Install one by `spsbench get NAME`. Where one is installed elsewhere: {elsewhere}.\n"
