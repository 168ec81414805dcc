"""Texts that a target wrote: the ArS sequences of a run, or a file of another engine's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base import EAGER, SamplingParams, UsageError, is_beam
from spsbench.config import MaterialSettings, resolve
from spsbench.engines import GRAPHED
from spsbench.store import RunStore, read_frames
from spsbench.tasks import read_lines

if TYPE_CHECKING:
    from spsbench.runner import Reader

FEWEST_TOKENS = 200
"""With fewer tokens nothing is said: an interval over them would be as wide as what it is about."""


@dataclass(frozen=True, slots=True)
class TargetText:
    """One of them."""

    name: str
    sample: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    category: str = ""

    @property
    def length(self) -> int:
        """Number of tokens of prompt and output."""
        return len(self.prompt) + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Ran:
    """What an arm of the run did."""

    tokens_per_loop: float
    drafted_per_loop: float


AsRun = tuple[str, int, str, str]
"""Drafter, K, policy and rule of an arm, as a run names them."""


@dataclass(frozen=True)
class Written:
    """The texts of one sampling."""

    source: Path
    settings: MaterialSettings
    label: str
    sampling_name: str
    sampling: SamplingParams
    texts: tuple[TargetText, ...]
    identity: Mapping[str, Any] | None
    ran: Mapping[AsRun, Ran]

    @property
    def tokens(self) -> int:
        """Number of tokens of all texts."""
        return sum(len(text.tokens) for text in self.texts)

    @property
    def longest(self) -> int:
        """Number of tokens of the longest prompt with its text."""
        return max(text.length for text in self.texts)


def texts_of(directory: Path, sampling: str | None = None, fewest: int = FEWEST_TOKENS) -> Written:
    """Return the ArS sequences of a run."""
    with RunStore.open(directory) as store:
        info = store.run_info()
        arm = _replayed_arm(directory, store.arms(), sampling)
        prompts = {prompt.example_id: (prompt.ids, prompt.category or "") for prompt in store.prompts()}
        texts = tuple(
            TargetText(
                s.example_id, s.sample_index, tuple(s.prompt_ids or ids), tuple(s.generation.tokens), category
            )
            for s in store.samples()
            for ids, category in (prompts[s.example_id],)
            if s.arm == arm["arm"] and s.error is None and s.generation.tokens
        )
    loops = read_frames(directory).loops
    ran: dict[AsRun, Ran] = {}
    for other in info["arms"]:
        plain = other["engine"] in (EAGER, GRAPHED) and other["sampling"] == arm["sampling"]
        arm_loops = loops[loops["arm"] == other["arm"]]
        if other["method"] == "sps" and plain and len(arm_loops):
            name = str(other["drafter"]), int(other["k"]), str(other["policy"]), str(other["rule"])
            ran[name] = Ran(float(arm_loops["emitted"].mean()), float(arm_loops["drafted"].mean()))
    if arm["params"].get("process") is not None:
        raise UsageError(
            f"{arm['sampling']} is processed, and a replay knows temperature, top-k and top-p.",
            flag="RUN",
            remedy="Replay a run without penalties, bans and min-p.",
        )
    written = Written(
        directory,
        MaterialSettings.of(resolve({}, directory / "config.yaml")),
        str(info["task_label"]),
        str(arm["sampling"]),
        SamplingParams(**arm["params"]),
        texts,
        info["identity"].get("pair"),
        ran,
    )
    _require_enough(directory, written.tokens, "RUN", "Continue it with a larger --limit.", fewest)
    return written


def require_texts(path: Path, usual: SamplingParams, flag: str) -> None:
    """Refuse a file whose lines no tokenizer has to read for that."""
    lines = list(read_lines(path, usual, flag))
    _require_one_sampling(path, [line.sampling for line in lines], flag)
    if all(isinstance(line.completion, list) for line in lines):
        _require_enough(path, sum(len(line.completion) for line in lines), flag, _MORE)


def _require_one_sampling(path: Path, samplings: Sequence[SamplingParams], flag: str) -> None:
    if len(several := list(dict.fromkeys(samplings))) > 1:
        raise UsageError(
            f"{path} has texts of several samplings: {', '.join(each.described for each in several)}.",
            flag=flag,
            remedy="Give a file of one.",
        )


def texts_in(path: Path, reader: Reader, settings: MaterialSettings) -> Written:
    """Return the texts of a file that another engine wrote, each by the number of its prompt, from 1."""
    readings = list(reader.read(path))
    _require_one_sampling(path, [text.sampling for text in readings], reader.flag)
    sampling = readings[0].sampling if readings else reader.sampling
    by_prompt: dict[tuple[int, ...], list[TargetText]] = {}
    texts = []
    for text in readings:
        same_prompt = by_prompt.setdefault(text.prompt, [])
        name = same_prompt[0].name if same_prompt else str(len(by_prompt))
        same_prompt.append(TargetText(name, len(same_prompt), text.prompt, text.completion, text.category))
        texts.append(same_prompt[-1])
    written = Written(path, settings, path.name, sampling.described, sampling, tuple(texts), None, {})
    _require_enough(path, written.tokens, reader.flag, _MORE)
    return written


_MORE = "Give more of them."


def _require_enough(source: Path, tokens: int, flag: str, remedy: str, fewest: int = FEWEST_TOKENS) -> None:
    if tokens < fewest:
        raise UsageError(
            f"{source} has {tokens} tokens of ArS; a prediction needs at least {fewest}.",
            flag=flag,
            remedy=remedy,
        )


def _replayed_arm(directory: Path, arms: Sequence[dict[str, Any]], sampling: str | None) -> dict[str, Any]:
    ars = [arm for arm in arms if arm["method"] == "ars" and not is_beam(arm)]
    if not ars:
        raise UsageError(
            f"{directory} has no ArS sequences, whose texts are what is replayed; a beam search's are not.",
            flag="RUN",
            remedy="Run it with --arms ars or ars,sps under another sampling than beam.",
        )
    if sampling is None:
        return ars[0]
    for arm in ars:
        if arm["sampling"] == sampling:
            return arm
    names = ", ".join(arm["sampling"] for arm in ars)
    raise UsageError(
        f"{directory} has no ArS sequences under {sampling!r}.", flag="--sampling", remedy=f"It has {names}."
    )
