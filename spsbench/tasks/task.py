"""A task: examples in, prompts out, outputs scored."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.base.paths import mini_dir, mini_dirs, way_to_install
from spsbench.base.records import Example, Prompt, SamplingParams
from spsbench.tasks.answers import ExtractionRule
from spsbench.tasks.conversation import Conversation
from spsbench.tasks.messages import SYNTHETIC_DATA
from spsbench.tasks.metrics.kind import MetricKind, corpus_figure, scores
from spsbench.tasks.sources import DataRow, bad_data, fetch, is_blank, read_rows, require_columns, sibling
from spsbench.tasks.spec import TaskSpec
from spsbench.tasks.text_tokenizer import TextTokenizer
from spsbench.tasks.thoughts import opens_thought, spoken


@dataclass(frozen=True, slots=True)
class TaskData:
    """Examples, the exemplar of a 1-shot prompt, and their provenance.

    Attributes:
        examples: in the order in which they are to run; see ``chosen``.
        provenance: source, revision, split, split_size, ids_sha256, content_sha256, prompt_preset,
            prompt_sha256 and, with an exemplar, exemplar_id; goes into ``run.json``.
        shots: the solved examples that stand before every question, as text.
    """

    examples: list[Example]
    exemplar: Example | None
    provenance: dict[str, Any]
    synthetic: bool
    label: str
    shots: str = ""


def task_data(
    examples: Sequence[Example],
    limit: int | None,
    seed: int,
    origin: Mapping[str, Any],
    described: tuple[str, bool],
    shared: str,
    preset: str | None = None,
    exemplar: Example | None = None,
) -> TaskData:
    """The chosen examples with their provenance; ``described`` is (label, synthetic), ``shared`` the hash of
    what their prompts share."""
    provenance = {**fingerprint(examples), **origin, "seed": seed}
    if exemplar is not None:
        provenance["exemplar_id"] = exemplar.example_id
    provenance |= {"prompt_preset": preset, "prompt_sha256": shared}
    label, synthetic = described
    return TaskData(chosen(examples, limit, seed), exemplar, provenance, synthetic, label)


def chosen(examples: Iterable[Example], limit: int | None, seed: int) -> list[Example]:
    """The first ``limit`` examples by a hash of seed and id, whatever their order in the file; None for all.

    So a small limit is a fair sample of the split, a larger one extends a smaller one (a run can
    be resumed with more), and a run that is cut short has still measured a fair sample.
    """
    return sorted(
        examples,
        key=lambda e: hashlib.sha256(f"{seed}\0{e.example_id}".encode(errors="surrogatepass")).digest(),
    )[:limit]


def fingerprint(examples: Sequence[Example]) -> dict[str, Any]:
    """Size of a split, hash of its sorted ids and hash of all it holds; blind to the rows' order."""
    ids = [example.example_id for example in examples]
    content = [json.dumps([e.example_id, e.fields], sort_keys=True) for e in examples]
    return {"split_size": len(examples), "ids_sha256": sha256_of(ids), "content_sha256": sha256_of(content)}


def sha256_of(texts: Iterable[str]) -> str:
    """Hash of texts in any order."""
    return hashlib.sha256("\n".join(sorted(texts)).encode(errors="surrogatepass")).hexdigest()


_MARK = 16
"""Tokens that the mark of a thought's beginning has at most, spelled by letters."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What a prompt has to fit into, in tokens, and whether it goes through the chat template.

    ``max_new_tokens`` includes the draft of the last loop, which the target scores beyond the output's end.
    """

    tokenizer: TextTokenizer
    context_window: int
    max_new_tokens: int
    chat: bool

    def whole(self, example: Example, text: str) -> Prompt:
        """A prompt that is never truncated."""
        ids = self._ids(text)
        return self.fitting(Prompt(example.example_id, text, ids, example.reference, chat=self.chat))

    def fitting(self, prompt: Prompt) -> Prompt:
        """The prompt, if it fits."""
        room = self.context_window - self.max_new_tokens
        if len(prompt.ids) >= self.context_window:
            raise UsageError(
                f"the prompt of {prompt.example_id} has {len(prompt.ids)} tokens and the context window "
                f"{self.context_window}.",
                flag="TASK",
                remedy="Shorten it, or choose models with a larger window.",
            )
        if len(prompt.ids) > room:
            raise UsageError(
                f"the prompt of {prompt.example_id} has {len(prompt.ids)} tokens; an output of up to "
                f"{self.max_new_tokens}, its last draft included, leaves room for {max(room, 0)}.",
                flag="--max-new-tokens",
                remedy="Shorten it, choose models with a larger window or, with decoders, fewer new tokens.",
            )
        return self.marked(prompt)

    def marked(self, prompt: Prompt) -> Prompt:
        """The prompt, with whether its template opened a thought."""
        return replace(prompt, thinks=self.chat and _opens(self.tokenizer, prompt.ids))

    def cut(
        self, example: Example, document: str, text_with: Callable[[str], str], around: str, what: str
    ) -> Prompt:
        """Return the prompt with as much of the document's beginning as fits, and count the tokens left out.

        Args:
            text_with: makes the prompt's text with a document.
            around: subject and verb of what surrounds the document, e.g. ``exemplar and instruction take``.
            what: the document's kind, e.g. ``article``.
        """
        room = self.context_window - self.max_new_tokens
        text, cut = text_with(document), 0
        ids = self._ids(text)
        if len(ids) > room:
            tokens = self.tokenizer.encode(document, special=False)
            while len(ids) > room:  # cut tokens may join differently with what follows: look again
                cut += len(ids) - room
                if cut >= len(tokens):
                    raise UsageError(
                        f"a context window of {self.context_window} tokens is too small: {around} "
                        f"{len(self._ids(text_with('')))} and the output, its last draft included, up to "
                        f"{self.max_new_tokens}, which leaves nothing for the {what}.",
                        flag="--max-new-tokens",
                        remedy="Choose fewer new tokens or models with a larger window.",
                    )
                # A cut within a character leaves U+FFFD at the end.
                text = text_with(self.tokenizer.decode(tokens[: len(tokens) - cut]).rstrip("\ufffd"))
                ids = self._ids(text)
        return self.marked(Prompt(example.example_id, text, ids, example.reference, cut, self.chat))

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.chat(text) if self.chat else self.tokenizer.encode(text, special=True))


def _opens(tokenizer: TextTokenizer, ids: Sequence[int]) -> bool:
    return opens_thought(tokenizer.decode(ids[-_MARK:]))


def thought_switch(tokenizer: TextTokenizer) -> str | None:
    """Return the variable of a chat template that leaves out the thought with which answers begin."""
    for name in sorted(filter(_THINKS.search, tokenizer.template_variables())):
        try:
            ids = tokenizer.with_template_args({name: False}).chat("a")
        except Exception:  # a template may raise an exception of any type
            continue
        if not _opens(tokenizer, ids):
            return name
    return None


_THINKS = re.compile("think|reason")


def answers(prompts: Sequence[Prompt], texts: Sequence[str]) -> list[str]:
    """What each output says behind its thought, if it has one."""
    return [spoken(text, opened=prompt.thinks).answer for prompt, text in zip(prompts, texts, strict=True)]


class Task(ABC):
    """A kind of question with its data, prompt and score.

    Attributes:
        samplings: the ways to sample, by name.
        stop: strings that end an output.
        max_new_tokens: the length limit of an output, in tokens.
        metrics: how outputs are scored, beside what the task itself finds by running programs.
        headline: the metric of the result table, e.g. ``rouge2`` or ``pass@1``; None without any.
        runs_code: whether scoring executes generated programs.
        has_turns: whether its examples are conversations, of which some turns may be asked.
    """

    name: str
    samplings: dict[str, SamplingParams]
    default_sampling: str
    stop: tuple[str, ...]
    max_new_tokens: int
    metrics: tuple[MetricKind, ...]
    headline: str | None
    runs_code = False
    has_turns = False

    def uses_template(self, tokenizer: TextTokenizer) -> bool:
        """Whether prompts go through the chat template, unless ``--chat-template none`` is given."""
        return tokenizer.is_instruct

    def stop_for(self, prompt: Prompt) -> tuple[str, ...]:
        """Strings that end an output to a prompt, or to any other that is put in the same way."""
        return self.stop

    @property
    def reading(self) -> dict[str, Any]:
        """What of a file is left out or not used, for the provenance."""
        return {}

    def read_by(self, tokenizer: TextTokenizer) -> dict[str, Any]:
        """Return what of the data the tokenizer decides, for the provenance."""
        return {}

    def extraction(self, prompt: Prompt) -> ExtractionRule | None:
        """How code is taken from answers to such a prompt; None where no code is asked for."""
        return None

    def load(self, data: str, limit: int | None, seed: int) -> TaskData:
        """Load examples."""
        if limit is not None and limit < 1:
            remedy = "Give at least 1, or leave it out."
            raise UsageError(f"{limit} leaves no example.", flag="--limit", remedy=remedy)
        loaded = self._load(data, limit, seed)
        if any(kind.reads for kind in self.metrics):
            texts = [texts for example in loaded.examples if (texts := self.references(example))]
            unread = sum(not any(map(self._reads, text)) for text in texts)
            loaded.provenance.update({"unread_by_rouge": unread, "references": len(texts)} if unread else {})
        return loaded

    def references(self, example: Example) -> Sequence[str]:
        """The references of an example, of which the best counts."""
        return [example.reference] if example.reference else []

    def _reads(self, reference: str) -> bool:
        return all(kind.reads is None or kind.reads(reference) for kind in self.metrics)

    @abstractmethod
    def _load(self, data: str, limit: int | None, seed: int) -> TaskData: ...

    def prompt(
        self,
        example: Example,
        data: TaskData,
        tokenizer: TextTokenizer,
        context_window: int,
        max_new_tokens: int,
        chat_template: bool = False,
    ) -> Prompt:
        """Build the prompt of an example so that prompt and output fit the window."""
        return self._prompt(example, data, Frame(tokenizer, context_window, max_new_tokens, chat_template))

    @abstractmethod
    def _prompt(self, example: Example, data: TaskData, frame: Frame) -> Prompt: ...

    def conversation(self, example: Example, first: Prompt) -> Conversation | None:
        """What is said after the model's own answer to an example's prompt; None where nothing is."""
        return None

    def is_scored(self, prompt: Prompt) -> bool:
        """Whether outputs to this prompt get a score: not where no metric can read its reference."""
        readers = [kind.reads for kind in self.metrics]
        return (
            self.runs_code
            or not readers
            or any(reads is None or reads(prompt.reference) for reads in readers)
        )

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[dict[str, float]]:
        """Scores of each output, by metric name; ``texts[i]`` answers ``prompts[i]``.

        A thought before an answer is not graded, and one without an end has no answer behind it.
        """
        return self._score(prompts, answers(prompts, texts))

    def _score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[dict[str, float]]:
        """As ``score``, of the answers alone."""
        asked = [prompt.text for prompt in prompts]
        references = [prompt.reference for prompt in prompts]
        return scores(self.metrics, asked, texts, references)

    def corpus_figure(self, kind: MetricKind, prompts: Sequence[Prompt], texts: Sequence[str]) -> float:
        """Score all outputs by a metric with ``corpus``; arguments as for ``score``."""
        return self._corpus_figure(kind, prompts, answers(prompts, texts))

    def _corpus_figure(self, kind: MetricKind, prompts: Sequence[Prompt], texts: Sequence[str]) -> float:
        asked = [prompt.text for prompt in prompts]
        references = [prompt.reference for prompt in prompts]
        return corpus_figure(kind, asked, texts, references)


class YamlTask(Task):
    """A task defined by a YAML file: what its kinds have in common."""

    def __init__(self, spec: TaskSpec, metrics: tuple[MetricKind, ...] = ()) -> None:
        self.spec, self.metrics = spec, metrics
        self.name = spec.name
        self.headline = spec.headline
        self.max_new_tokens = spec.max_new_tokens
        self.samplings = {name: sampling.params() for name, sampling in spec.samplings.items()}
        self.default_sampling, self.stop = spec.default_sampling, tuple(spec.stop)

    def _local(self, data: str) -> tuple[list[DataRow], dict[str, Any]]:
        """(rows, provenance) of data that came from a path or, as ``mini``, with the package."""
        split = self.spec.data.split
        if data == "mini":
            origin = {"source": SYNTHETIC_DATA, "revision": None, "split": None}
            return read_rows(mini_path(self.spec), split), origin
        return read_rows(Path(data), split), {"source": data, "revision": None, "split": split}

    def _published(
        self, columns: Iterable[Sequence[str]], *, exemplars: str | None = None
    ) -> tuple[list[DataRow], list[DataRow], dict[str, Any]]:
        """(rows, rows of the split ``exemplars``, provenance) from the hub.

        A published split may hold rows without text in one of the ``columns``, which nobody can repair; one
        that has not a column at all was changed by its owners.
        """
        hub = fetch(self.spec.data.hub, self.spec.data.split, exemplars=exemplars)
        names = list(columns)
        require_columns(hub, names)
        rows, train = (
            [row for row in part if not any(is_blank(row, *name) for name in names)]
            for part in (hub.rows, hub.train)
        )
        origin = {"source": f"hub: {hub.repository}", "revision": hub.revision, "split": self.spec.data.split}
        return rows, train, {**origin, "skipped_empty": len(hub.rows) - len(rows)}

    def _rows_and_solved(
        self, data: str, columns: Iterable[Sequence[str]]
    ) -> tuple[list[DataRow], list[DataRow] | None, dict[str, Any]]:
        """(rows, rows for solved examples or None where the rows are all there is, provenance)."""
        shots = self.spec.shots
        if data == "official":
            return self._published(columns, exemplars=None if shots is None else shots.split)
        rows, origin = self._local(data)
        if shots is None:
            return rows, None, origin
        if data == "mini":
            return rows, read_rows(mini_path(self.spec, "exemplars"), shots.split), origin
        return rows, sibling(Path(data), self.spec.data.split, shots.split), origin

    def _solved(
        self, data: str, rows: Sequence[DataRow], solved: Sequence[DataRow] | None
    ) -> Sequence[DataRow]:
        """The rows that solved examples are made of; of the split itself where no other is there."""
        shots = self.spec.shots
        if shots is None:
            return []
        taken = (rows if solved is None else solved)[shots.skip : shots.skip + shots.count]
        if len(taken) < shots.count:
            why = f"{data} has {len(taken)} rows for the {shots.count} solved examples of the prompt."
            raise bad_data(why, f"Add rows, or a file of the split {shots.split} beside it.")
        return taken


def mini_path(spec: TaskSpec, part: str = "examples") -> Path:
    """The file of a task's synthetic examples, or of its exemplars."""
    mini = spec.data.mini
    if mini is None:
        remedy = "Give official or a path."
        raise UsageError(f"the task {spec.name} has no synthetic data.", flag="--data mini", remedy=remedy)
    path = mini_dir(mini.folder) / "data" / str(getattr(mini, part))
    if not path.is_file():
        way = way_to_install(mini.folder)
        install = f"Install them with {way}" if way else "Install the package again"
        raise UnavailableError(
            f"the synthetic data of {spec.name} are missing ({path}).",
            flag="--data mini",
            remedy=f"{install}, or give --data official or a path.",
        )
    return path


def describe(spec: TaskSpec, data: str) -> tuple[str, bool]:
    """(label, synthetic) of a task with data from ``official``, ``mini`` or a path."""
    if data == "mini" or (data != "official" and is_mini(Path(data))):
        return f"{spec.name.removesuffix('-mini')}-mini (synthetic)", True
    if data == "official":
        return spec.name, False
    return f"{spec.name} ({', '.join(Path(part).name for part in paths_in(data))})", False


def is_mini(path: Path) -> bool:
    """Whether a path lies in the package's synthetic data."""
    place = path.resolve()
    return any(place.is_relative_to(folder.resolve()) for folder in mini_dirs().values())


def paths_in(data: str) -> list[Path]:
    """The files that a local ``--data`` names: one, or several with commas between them."""
    return [Path(data)] if Path(data).exists() else [Path(part) for part in data.split(",")]
