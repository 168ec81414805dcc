"""Text that another engine wrote, to be judged: token ids, or text that becomes token ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from spsbench.errors import UsageError
from spsbench.execution.samples import rows
from spsbench.models.tokenizer import Tokenizer
from spsbench.records import SamplingParams
from spsbench.tasks.spec import SamplingSpec

FLAG = "SAMPLES"
_FIELDS = (
    "Each line needs prompt_ids and completion_ids (or prompt and completion, as text), and may have "
    "sampling: {temperature, top_p, top_k} or {greedy: true}."
)


@dataclass(frozen=True, slots=True)
class Foreign:
    """One text with what is said of its making.

    Attributes:
        line: where it stands in its file, from 1.
        prompt, completion: token ids.
        sampling: how the completion is said to have been drawn.
        retokenised: its ids are ours, made from text: the engine's own may have been others.
    """

    line: int
    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    sampling: SamplingParams
    retokenised: bool


@dataclass(frozen=True, slots=True)
class Reader:
    """Turns rows into texts.

    Attributes:
        tokenizer: of the target.
        vocab_size: ids from here on are refused.
        context_window: longer texts are refused, in tokens.
        sampling: of rows that do not say theirs.
    """

    tokenizer: Tokenizer
    vocab_size: int
    context_window: int
    sampling: SamplingParams

    def read(self, path: Path) -> Iterator[Foreign]:
        """The texts of a file of JSON lines (``.gz`` too), one by one.

        Raises:
            UnavailableError: the file cannot be read.
            UsageError: a line is no such text; names the line and the value.
        """
        for line, row in rows(path, FLAG):
            try:
                text = self._text(line, row)
            except ValueError as problem:
                raise UsageError(f"line {line} of {path}: {problem}.", flag=FLAG, remedy=_FIELDS) from problem
            if text.completion:
                yield text

    def _text(self, line: int, row: Mapping[str, Any]) -> Foreign:
        prompt, _ = self._ids(row, "prompt", special=True)
        completion, ours = self._ids(row, "completion", special=False)
        if not prompt:
            raise ValueError("the prompt is empty, so that nothing precedes the first token")
        length = len(prompt) + len(completion)
        if length > self.context_window:
            raise ValueError(f"{length} tokens do not fit the target's window of {self.context_window}")
        return Foreign(line, prompt, completion, self._sampling(row), ours)

    def _ids(self, row: Mapping[str, Any], name: str, *, special: bool) -> tuple[tuple[int, ...], bool]:
        """Token ids of a field, and whether they were made here from text."""
        ids, text = row.get(f"{name}_ids"), row.get(name)
        if ids is None:
            if not isinstance(text, str):
                raise ValueError(f"it has neither {name}_ids nor {name}")
            return tuple(self.tokenizer.encode(text, special=special)), True
        if not isinstance(ids, list) or not all(type(token) is int for token in ids):
            raise ValueError(f"{name}_ids is no list of whole numbers")
        wrong = next((token for token in ids if not 0 <= token < self.vocab_size), None)
        if wrong is not None:
            raise ValueError(f"{name}_ids holds {wrong}, and the target has {self.vocab_size} tokens")
        return tuple(ids), False

    def _sampling(self, row: Mapping[str, Any]) -> SamplingParams:
        said = row.get("sampling")
        return self.sampling if said is None else sampling_of(said)


def sampling_of(said: object) -> SamplingParams:
    """Sampling parameters from ``{temperature, top_p, top_k, greedy}``; a temperature of 0 is greedy.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(said, Mapping):
        raise ValueError(f"sampling {said!r} is no object")
    fields = dict(said)
    if fields.get("temperature") == 0:
        fields |= {"temperature": 1.0, "greedy": True}
    try:
        return SamplingSpec.model_validate(fields).params()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "sampling"
        raise ValueError(f"{where} = {first.get('input')!r} ({first['msg']})") from error


def described(sampling: SamplingParams) -> str:
    """In a few words, e.g. ``temperature 0.8, top_p 0.95``."""
    if sampling.greedy:
        return "greedy"
    plain = asdict(SamplingParams())
    changed = [f"{name} {value:g}" for name, value in asdict(sampling).items() if value != plain[name]]
    return ", ".join(changed) or "temperature 1"
