"""A folder with a draft that was trained for one target: heads on its hidden states, or a small model.

``draft.json`` says what it is and which target it was made for; ``model.safetensors`` has its weights, and
``vocabulary`` where it proposes some tokens only. Embedding table and output head are the target's own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from spsbench.base.arrays import Ints, Singles
from spsbench.base.errors import UnavailableError, UsageError, as_typed
from spsbench.base.files import parse_json, read_file
from spsbench.models.causal_lm import LAST, States
from spsbench.models.checkpoint import EMBEDDING, HEAD, Checkpoint, StoredWeights
from spsbench.models.hf_errors import typed_errors
from spsbench.models.kinds import (
    CONVENTIONS,
    DESCRIPTION,
    KINDS,
    MEDUSA,
    OUTPUT,
    READ_LAYERS,
    SPSBENCH,
    is_trained,
)
from spsbench.models.plausible import WIDEST, require_bounded_config, require_ordinary_files

FORMAT = 1
WEIGHTS = "model.safetensors"
VOCABULARY = "vocabulary"

_ROWS = 64

MOST_HEADS = 64
"""Of one draft: each proposes one token, and no lookahead is longer (``MAX_K`` of the settings)."""
_SETTINGS_BYTES = 1 << 20
"""Of a draft's description, which is a configuration and some numbers."""


@dataclass(frozen=True, slots=True)
class MadeFor:
    name: str
    hidden: int
    vocab_size: int
    embedding: str  # ``embedding_fingerprint`` of that table; empty if it was not kept


@dataclass(frozen=True, slots=True)
class Convention:
    """How something is read that engines read differently: a wrong one loses acceptance, and nothing else.

    Attributes:
        name: as an option of the drafter, e.g. ``ids``.
        value: one of ``CONVENTIONS[name]``.
        because: who or what says so, e.g. ``norm_output in config.json``.
        certain: whether that settles it; where it does not, another reading may be the trained one.
    """

    name: str
    value: str
    because: str
    certain: bool = True


@dataclass(frozen=True, slots=True)
class TrainedDraft:
    """A drafter that was trained for one target, as its folder's configuration and tensors describe it.

    Attributes:
        folder: where it lies.
        kind: one of ``kinds.ALL_KINDS``.
        writer: whose layout the folder has: ``spsbench``, ``speculators``, or its ``authors``'.
        target: what it was made for.
        config: of its decoder layers, as Hugging Face writes it; None where it has none.
        stored: its tensors, named as here: ``layers.{i}.*`` where another layout says otherwise.
        vocabulary: [m] the token of each row of its output head, no two alike; None where row i is token i.
        reads: the ids of the target's layers as written; None for what its kind reads of any target.
        conventions: how the folder is read where engines differ.
        heads: of ``medusa``, how many.
        extra: what a kind has besides, by the names of its configuration.
        refused: why it is described here and cannot run; empty where it can.
    """

    folder: Path
    kind: str
    target: MadeFor
    config: dict[str, Any] | None
    stored: StoredWeights
    vocabulary: Ints | None = None
    heads: int = 0
    writer: str = SPSBENCH
    reads: tuple[int, ...] | None = None
    conventions: tuple[Convention, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""

    def convention(self, name: str) -> str:
        """Return how something is read, one of ``CONVENTIONS[name]``."""
        return next(each.value for each in self.conventions if each.name == name)

    def read_as(self, flag: str, **values: str) -> TrainedDraft:
        """Return the same draft read by other conventions.

        Raises:
            UsageError: it has no such convention, or there is no such reading.
        """
        known = {each.name: each for each in self.conventions}
        for name, value in values.items():
            if name not in known:
                why = f"{self.folder} is of the kind {self.kind}, which has no choice of {name}."
                raise UsageError(why, flag=flag, remedy=f"Leave {name}={value} out.")
            if value not in CONVENTIONS[name]:
                choices = " or ".join(f"{name}={choice}" for choice in CONVENTIONS[name])
                raise UsageError(f"{name}={value} is not valid.", flag=flag, remedy=f"Give {choices}.")
            known[name] = Convention(name, value, "asked for")
        return replace(self, conventions=tuple(known.values()))

    def states_of(self, layers: int) -> States:
        """Return which states of a target of so many layers it reads, low to high as they are joined."""
        if self.kind not in READ_LAYERS:
            return LAST
        if self.reads is None:  # the authors' default, which counts states
            return (2, layers // 2, layers - 3)
        shift = int(self.convention("ids") == OUTPUT)
        return tuple(each + shift for each in self.reads)

    def require_layers(self, layers: int, flag: str) -> None:
        """Refuse a target of so few layers that a state is read of it which it does not have.

        Raises:
            UsageError: so, or its default states of such a target are no different ones.
        """
        if self.kind not in READ_LAYERS:
            return
        states = self.states_of(layers)
        beyond = [state for state in states if not 0 <= state <= layers]
        if not beyond and len(set(states)) == len(states):
            return
        which = f"the states {', '.join(map(str, states))}"
        said = "of any target by default" if self.reads is None else f"by its ids {list(self.reads)}"
        why = f"{self.folder} reads {which} {said}; this target has {layers} layers."
        raise UsageError(why, flag=flag, remedy="Choose the target that it was made for, or ids=after.")

    def ids_below(self, vocab_size: int) -> Ints:
        """[m] the token ids below a vocabulary's size that the draft can propose, ascending."""
        if self.vocabulary is None:
            return np.arange(vocab_size)
        return np.sort(self.vocabulary[self.vocabulary < vocab_size])

    def require_target(self, hidden: int, vocab_size: int, embedding: str, flag: str) -> None:
        made = self.target
        pairs = (
            ("hidden states of width", made.hidden, hidden),
            ("a vocabulary of", made.vocab_size, vocab_size),
            ("the embedding", made.embedding, embedding),
        )
        for what, wanted, theirs in pairs:
            if wanted and wanted != theirs:
                raise UsageError(
                    f"{self.folder} was made for {made.name}, with {what} {wanted}; "
                    f"this target has {theirs}.",
                    flag=flag,
                    remedy="Choose that target, or train a draft for this one.",
                )


def embedding_fingerprint(stored: StoredWeights) -> str:
    """Return a short name for a model's embedding table, from its first and last 64 rows in float32.

    Cheap, and enough to see that hidden states come from another model; of a model in a coarser dtype it is
    its checkpoint's.
    """
    count, width = stored.shape(EMBEDDING)
    ids = np.concatenate([np.arange(count)[:_ROWS], np.arange(count)[-_ROWS:]])
    rows = np.zeros((len(ids), width), np.float32)
    stored.rows(EMBEDDING, ids, rows)
    return _fingerprint(rows)


def table_fingerprint(table: Tensor) -> str:
    """Return ``embedding_fingerprint`` of a table [V, hidden] that torch holds, on any device."""
    ends = [part.detach().float().cpu().numpy() for part in (table[:_ROWS], table[-_ROWS:])]
    return _fingerprint(np.concatenate(ends))


def _fingerprint(rows: Singles) -> str:
    return f"sha256:{hashlib.sha256(rows.astype('<f4', copy=False).tobytes()).hexdigest()[:16]}"


def read_trained(folder: Path, flag: str) -> TrainedDraft:
    require_ordinary_files(folder, str(folder), flag)
    description = _described(folder, flag)
    config, heads = None, 0
    try:
        made = _field(description, "target", dict)
        target = MadeFor(
            _field(made, "name", str),
            _count(made, "hidden", WIDEST),
            _count(made, "vocab_size", WIDEST),
            _field(made, "embedding", str),
        )
        if description["kind"] == MEDUSA:
            heads = _count(description, "heads", MOST_HEADS)
        else:
            config = dict(_field(description, "config", dict))
    except ValueError as fault:
        raise _refusal(folder, f"its {DESCRIPTION} is incomplete: {fault}", flag) from fault
    with typed_errors(str(folder), flag):
        stored = Checkpoint(folder)
        vocabulary = read_vocabulary(stored, target.vocab_size)
    if not stored.tensors:
        raise _refusal(folder, f"it has no {WEIGHTS}", flag)
    if not all(stored.reads(name) for name in stored.tensors if name != VOCABULARY):
        raise _refusal(folder, f"its {WEIGHTS} has tensors that are not floats of 16 or 32 bits", flag)
    if vocabulary is not None:
        require_vocabulary(folder, vocabulary, target.vocab_size, flag)
    draft = TrainedDraft(folder, description["kind"], target, config, stored, vocabulary, heads)
    require_consistent(draft, flag)
    return draft


def _field(told: Mapping[str, Any], name: str, kind: type) -> Any:
    """ValueError if it is not there or of another type."""
    value = told.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{name} is {as_typed(value)}")
    return value


def _count(told: Mapping[str, Any], name: str, most: int) -> int:
    value: int = _field(told, name, int)
    if not 1 <= value <= most:
        raise ValueError(f"{name} is {value:,}, and a whole number from 1 to {most:,} is read")
    return value


def read_vocabulary(stored: Checkpoint, vocab_size: int) -> Ints | None:
    """Return its whole numbers, at most one for each token; None without that tensor."""
    if VOCABULARY not in stored:
        return None
    tensor = stored.tensors[VOCABULARY]
    if tensor.size > vocab_size or not tensor.kind.startswith(("I", "U")):
        raise ValueError(
            f"{VOCABULARY} has {tensor.size:,} values of {tensor.kind}, for {vocab_size:,} tokens"
        )
    return stored.integers(VOCABULARY)


_LAYER = re.compile(r"(?:model\.)?layers\.(\d+)\.")
_MEDUSA_HEAD = re.compile(r"heads\.(\d+)\.weight")


def require_consistent(draft: TrainedDraft, flag: str) -> None:
    """Refuse a description that its own weights contradict: it counts what is built, before a weight is read.

    Raises:
        UnavailableError: it says another number of heads or layers than are stored, or sizes beyond any.
    """
    name = str(draft.folder)
    pattern, what, said = _MEDUSA_HEAD, "heads", draft.heads
    if draft.kind != MEDUSA:
        require_bounded_config(draft.config, name, flag)
        with typed_errors(name, flag):
            config = layer_config(draft)
        pattern, what, said = _LAYER, "layers", config.num_hidden_layers
    there = {int(match[1]) for tensor in draft.stored.tensors if (match := pattern.match(tensor))}
    if there != set(range(said)):
        why = f"of {said:,} {what} that it describes {len(there & set(range(said))):,} are stored"
        if len(there) > said:
            why = f"it stores {len(there):,} {what} and describes {said:,}"
        raise _refusal(draft.folder, why, flag)


def layer_config(draft: TrainedDraft) -> Any:
    return config_of_layers(draft.config or {})


def config_of_layers(settings: Mapping[str, Any]) -> Any:
    """Return settings of decoder layers, ``model_type`` among them, as Hugging Face's configuration."""
    from transformers import AutoConfig

    own = dict(settings)
    kind = own.pop("model_type", "llama")
    return AutoConfig.for_model(kind, **own)


def _described(folder: Path, flag: str) -> Mapping[str, Any]:
    if not is_trained(folder):
        raise _refusal(folder, f"it has no {DESCRIPTION}", flag)
    description = read_settings(folder / DESCRIPTION, flag)
    if type(description.get("format")) is not int or description["format"] != FORMAT:
        told = as_typed(description.get("format"))
        why = f"{folder} is of format {told}; this version reads format {FORMAT}."
        raise UsageError(why, flag=flag, remedy="Train it again with this version.")
    if description.get("kind") not in KINDS:
        remedy = f"Known kinds are {', '.join(KINDS)}."
        raise UsageError(
            f"{folder} is of the kind {as_typed(description.get('kind'))}.", flag=flag, remedy=remedy
        )
    return description


def read_settings(file: Path, flag: str) -> dict[str, Any]:
    try:
        content = parse_json(read_file(file, _SETTINGS_BYTES).decode("utf-8"))
        fault = None if isinstance(content, dict) else "it is not a JSON object"
    except (ValueError, OSError) as problem:
        fault = getattr(problem, "strerror", None) or str(problem)
    if fault is not None:
        raise _refusal(file.parent, f"its {file.name} cannot be read ({fault})", flag)
    return dict(content)


def require_vocabulary(folder: Path, ids: Ints, vocab_size: int, flag: str) -> None:
    """Refuse ids that are not an ascending list of the target's tokens."""
    if ids.ndim != 1 or not len(ids):
        why = "is not a list of token ids"
    elif not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        why = f"has ids outside of 0 to {vocab_size - 1}"
    elif (np.diff(ids) <= 0).any():
        why = "is not ascending"
    else:
        return
    remedy = "Train it again, or choose another."
    raise UsageError(f"the vocabulary of {folder} {why}.", flag=flag, remedy=remedy)


def _refusal(folder: Path, reason: str, flag: str) -> UnavailableError:
    remedy = f"Name a folder with {DESCRIPTION} and {WEIGHTS}."
    return UnavailableError(f"{folder} is not a trained draft: {reason}.", flag=flag, remedy=remedy)


_BIAS = "lm_head.bias"


class SharedWeights(StoredWeights):
    """A draft's own stored weights under its target's embedding table and some rows of its output head.

    Nothing is copied that is not asked for: the table is the target's, rows of the head are read as the
    target stores them.

    Args:
        ids: [m] which rows of the head, ascending.
    """

    def __init__(self, draft: TrainedDraft, target: StoredWeights, ids: Ints) -> None:
        self._own, self._target, self._ids = draft.stored, target, ids
        self._source = HEAD if HEAD in target else EMBEDDING
        _, width = target.shape(self._source)
        self._shapes: dict[str, tuple[int, ...]] = {HEAD: (len(ids), width)}
        if _BIAS in target:
            self._shapes[_BIAS] = (len(ids),)

    @property
    def parameters(self) -> int:
        """Number of the draft's weights and of those in its rows of the head."""
        ids = self._own.tensors.get(VOCABULARY)
        head = sum(int(np.prod(shape)) for shape in self._shapes.values())
        return self._own.parameters - (ids.size if ids else 0) + head

    def __contains__(self, name: object) -> bool:
        return name in self._shapes or name == EMBEDDING or name in self._own

    def shape(self, name: str) -> tuple[int, ...]:
        if name in self._shapes:
            return self._shapes[name]
        return self._target.shape(name) if name == EMBEDDING else self._own.shape(name)

    def read(self, name: str) -> Singles:
        if name == _BIAS:
            return self._target.read(name)[self._ids]
        if name != HEAD:
            return self._target.read(name) if name == EMBEDDING else self._own.read(name)
        if len(self._ids) == self._target.shape(self._source)[0]:
            return self._target.read(self._source)
        rows = np.zeros(self._shapes[name], np.float32)
        self._target.rows(self._source, self._ids, rows)
        return rows

    def rows(self, name: str, ids: Ints, out: Singles) -> None:
        if name == EMBEDDING:
            self._target.rows(name, ids, out)
        else:
            out[:] = self.read(name)[ids]
