"""The weights of a trained draft together with those that it takes from its target."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spsbench.models.checkpoint import EMBEDDING, Floats, StoredWeights
from spsbench.models.trained import VOCABULARY, TrainedDraft

_HEAD, _BIAS = "lm_head.weight", "lm_head.bias"


class SharedWeights:
    """A draft's own stored weights under its target's embedding table and some rows of its output head.

    Nothing is copied that is not asked for: the table is the target's, rows of the head are read as the
    target stores them.

    Args:
        ids: [m] which rows of the head, ascending.
    """

    def __init__(self, draft: TrainedDraft, target: StoredWeights, ids: npt.NDArray[np.int64]) -> None:
        self._own, self._target, self._ids = draft.stored, target, ids
        self._source = _HEAD if _HEAD in target else EMBEDDING
        _, width = target.shape(self._source)
        self._shapes: dict[str, tuple[int, ...]] = {_HEAD: (len(ids), width)}
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
        """See ``StoredWeights.shape``."""
        if name in self._shapes:
            return self._shapes[name]
        return self._target.shape(name) if name == EMBEDDING else self._own.shape(name)

    def read(self, name: str) -> Floats:
        """See ``StoredWeights.read``."""
        if name == _BIAS:
            return self._target.read(name)[self._ids]
        if name != _HEAD:
            return self._target.read(name) if name == EMBEDDING else self._own.read(name)
        if len(self._ids) == self._target.shape(self._source)[0]:
            return self._target.read(self._source)
        rows = np.zeros(self._shapes[name], np.float32)
        self._target.rows(self._source, self._ids, rows)
        return rows

    def rows(self, name: str, ids: npt.NDArray[np.int64], out: Floats) -> None:
        """See ``StoredWeights.rows``."""
        if name == EMBEDDING:
            self._target.rows(name, ids, out)
        else:
            out[:] = self.read(name)[ids]
