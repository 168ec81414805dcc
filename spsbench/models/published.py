"""A folder with a drafter that others publish: its configuration and its tensors, read without code.

Readers take a ``Published`` and decide by content: by ``config.json`` and by the names and shapes of tensors.
What a configuration promises and the file lacks is refused by its name, as is what nobody reads.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from spsbench.base.arrays import Ints, Singles
from spsbench.base.errors import UnavailableError, UsageError, as_typed
from spsbench.base.files import parse_json, read_file
from spsbench.base.messages import listed
from spsbench.models.checkpoint import Checkpoint, StoredWeights
from spsbench.models.hf_errors import quiet_libraries, typed_errors
from spsbench.models.kinds import CONFIG
from spsbench.models.messages import SAVE_AGAIN
from spsbench.models.pickled import PICKLED_INDEX, PICKLES, PickledWeights
from spsbench.models.plausible import WIDEST, require_bounded_config, require_ordinary_files

INDEX = "model.safetensors.index.json"
D2T, T2D = "d2t", "t2d"

_MOST_CONFIG_BYTES = 4 << 20

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Published:
    """A folder that was opened.

    Attributes:
        folder: where it lies.
        config: what its configuration says.
        stored: its tensors; none where it has no weights, or those of a whole model.
        flag: of the command line, for errors.
    """

    folder: Path
    config: Mapping[str, Any]
    stored: StoredWeights
    flag: str

    def refusal(self, why: str, remedy: str) -> UsageError:
        return UsageError(f"{self.folder} {why}.", flag=self.flag, remedy=remedy)

    def damage(self, why: str) -> UnavailableError:
        return UnavailableError(f"{self.folder} {why}.", flag=self.flag, remedy=SAVE_AGAIN)

    def number(
        self, field: str, within: Mapping[str, Any] | None = None, least: int = 1, most: int = WIDEST
    ) -> int:
        """Return a whole number of the configuration.

        Raises:
            UnavailableError: it is missing, or no whole number from ``least`` to ``most``.
        """
        value = (self.config if within is None else within).get(field)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            if value is None:
                raise self.damage(f"has no {field} in its {CONFIG}")
            raise self.damage(
                f"has the {field} {as_typed(value)} and not a whole number for {field} in its {CONFIG}"
            )
        if value > most:
            raise self.damage(f"has {value:,} for {field} in its {CONFIG}, and at most {most:,} is read")
        return value

    def numbers(self, field: str, within: Mapping[str, Any] | None = None) -> tuple[int, ...] | None:
        """Return different whole numbers from 0 on of the configuration; None where there are none."""
        value = (self.config if within is None else within).get(field)
        if value is None:
            return None
        whole = isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)
        if not whole or not value or len(set(value)) != len(value):
            raise self.damage(
                f"has {field} {as_typed(value)} in its {CONFIG}, which are not distinct layer ids"
            )
        return tuple(value)

    def mask_token(self, within: Mapping[str, Any], vocab_size: int) -> int:
        token = self.number("mask_token_id", within, least=0)
        if token >= vocab_size:
            raise self.damage(f"has the mask_token_id {token} of {vocab_size} tokens")
        return token

    def renamed(self, names: Mapping[str, str]) -> Published:
        """Return the folder with other names of tensors: by prefix, from those in it to those of here."""
        return replace(self, stored=RenamedWeights(self.stored, names))

    def require_tensors(self, wanted: Mapping[str, Shape], optional: Iterable[str] = ()) -> None:
        """Refuse tensors that are missing, of another shape, or none of those that are read.

        Args:
            wanted: every tensor that is read, with its shape.
            optional: patterns of names that may be there besides, unread.
        """
        held = self.stored.tensors
        missing = [name for name in wanted if name not in held]
        spare = [n for n in held if n not in wanted and not any(fnmatch.fnmatch(n, one) for one in optional)]
        if missing:
            raise self.damage(f"has no {listed(missing)}, which its {CONFIG} promises")
        if spare:
            why = f"has {listed(spare)}, which no {CONFIG} of this kind explains"
            raise self.refusal(why, remedy="Choose a drafter whose tensors are all read.")
        for name, shape in wanted.items():
            if held[name].shape != shape:
                raise self.damage(f"has {name} of the shape {list(held[name].shape)}, not {list(shape)}")
        unread = [name for name in wanted if not self.stored.reads(name)]
        if unread:
            raise self.damage(f"has {listed(unread)} in a type other than float32, bfloat16 and float16")

    def require_layers(self, layers: int, prefix: str = "layers.") -> None:
        """Refuse another number of decoder layers than there are tensors of, before any is built."""
        places = {
            name.removeprefix(prefix).partition(".")[0] for name in self.stored.tensors if prefix in name
        }
        held = len({int(place) for place in places if place.isdecimal()})
        if held != layers:
            raise self.damage(
                f"has {held} layers of the {layers} that num_hidden_layers in its {CONFIG} promises"
            )

    def vocabulary(self, rows: int, vocab_size: int) -> tuple[Ints | None, str]:
        """Return ([rows] the token of each row of the output head, how ``d2t`` was read).

        None where row i is token i. ``d2t`` has offsets from a row to its token; where ``t2d`` says that they
        are tokens, they are read so.

        Raises:
            SpsbenchError: the map is not one to one, leaves the vocabulary, or contradicts ``t2d``.
        """
        if D2T not in self.stored:
            if rows != vocab_size:
                raise self.damage(f"drafts {rows} of {vocab_size} tokens and has no {D2T}, which maps them")
            return None, ""
        if (shape := self.stored.shape(D2T)) != (rows,):
            raise self.damage(f"has {D2T} of the shape {list(shape)}, not {[rows]}")
        stored = self.stored.integers(D2T)
        readings = {"offsets": stored + np.arange(rows), "token ids": stored}
        faults = {way: _fault_of_vocabulary(ids, vocab_size) for way, ids in readings.items()}
        if T2D in self.stored:
            size = math.prod(self.stored.shape(T2D))
            if size != vocab_size:
                raise self.damage(f"has {T2D} of {size} tokens, not {vocab_size}")
            proposed = np.flatnonzero(self.stored.integers(T2D))
            for way, ids in readings.items():
                if not faults[way] and np.array_equal(np.sort(ids), proposed):
                    return ids, way
            raise self.damage(
                f"has a {D2T} that contradicts its {T2D}, read as offsets and as token ids alike"
            )
        if faults["offsets"]:
            hint = (
                ""
                if faults["token ids"]
                else "; its numbers look like token ids, and it has no t2d to say so"
            )
            raise self.damage(f"has a {D2T} that {faults['offsets']}, read as offsets{hint}")
        return readings["offsets"], "offsets"


def _fault_of_vocabulary(ids: Ints, vocab_size: int) -> str:
    """Why rows of an output head cannot stand for these tokens; empty where they can."""
    if not len(ids):
        return "is empty"
    if not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        return f"leaves the vocabulary of {vocab_size} tokens"
    return "is not one to one" if len(np.unique(ids)) < len(ids) else ""


class RenamedWeights(StoredWeights):
    def __init__(self, stored: StoredWeights, names: Mapping[str, str]) -> None:
        self._stored = stored
        self._name_in_file: dict[str, str] = {}
        for name in stored.tensors:
            prefix = next((prefix for prefix in names if name.startswith(prefix)), "")
            self._name_in_file[names.get(prefix, "") + name.removeprefix(prefix)] = name
        self.tensors = {name: stored.tensors[held] for name, held in self._name_in_file.items()}

    def read(self, name: str) -> Singles:
        return self._stored.read(self._name_in_file[name])

    def rows(self, name: str, ids: Ints, out: Singles) -> None:
        self._stored.rows(self._name_in_file[name], ids, out)

    def reads(self, name: str) -> bool:
        return name in self.tensors and self._stored.reads(self._name_in_file[name])

    def integers(self, name: str) -> Ints:
        return self._stored.integers(self._name_in_file[name])


def open_published(folder: Path, flag: str) -> Published | None:
    """Open a folder that others publish; None where it has no ``config.json``.

    Raises:
        SpsbenchError: what is there cannot be read, is too large, or needs code to be read.
    """
    require_ordinary_files(folder, str(folder), flag)
    config = read_config_file(folder / CONFIG, flag)
    if config is None:
        return None
    require_bounded_config(config, str(folder), flag)
    quiet_libraries()  # a folder may be read before any model is
    with typed_errors(str(folder), flag):
        return Published(folder, config, _weights_of(folder, flag), flag)


def read_config_file(file: Path, flag: str) -> dict[str, Any] | None:
    """Return the object in a configuration; None where there is no such file."""
    try:
        content = parse_json(read_file(file, _MOST_CONFIG_BYTES).decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as problem:
        why = f"{file} cannot be read ({problem.strerror})."
        raise UnavailableError(why, flag=flag, remedy=SAVE_AGAIN) from problem
    except ValueError as problem:
        why = f"{file} is damaged ({problem})."
        raise UnavailableError(why, flag=flag, remedy=SAVE_AGAIN) from problem
    if not isinstance(content, dict):
        why = f"{file} is damaged (no object)."
        raise UnavailableError(why, flag=flag, remedy=SAVE_AGAIN)
    return content


def _weights_of(folder: Path, flag: str) -> StoredWeights:
    """Of safetensors where a folder has both."""
    index = folder / INDEX
    if index.is_file():
        entries = (read_config_file(index, flag) or {}).get("weight_map")
        names = sorted({str(name) for name in entries.values()}) if isinstance(entries, dict) else []
        missing = [name for name in names if not (folder / name).is_file()]
        if missing or not names:
            why = (
                f"{folder} has no {listed(missing)}, which its {INDEX} names."
                if missing
                else f"{index} is damaged."
            )
            raise UnavailableError(why, flag=flag, remedy=SAVE_AGAIN)
        if any(Path(name).name != name for name in names):
            why = f"{index} names files outside of its folder."
            raise UsageError(why, flag=flag, remedy=SAVE_AGAIN)
    stored: StoredWeights = Checkpoint(folder)
    if not stored.tensors and (folder / PICKLED_INDEX).is_file():
        why = f"{folder} has its tensors in several pickles ({PICKLED_INDEX}), of which one alone is read."
        raise UsageError(why, flag=flag, remedy="Save its tensors as model.safetensors.")
    if not stored.tensors:
        pickle = next((folder / name for name in PICKLES if (folder / name).is_file()), None)
        stored = stored if pickle is None else PickledWeights(pickle, flag)
    return stored
