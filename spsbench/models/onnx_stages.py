"""The stages of a loop over ONNX Runtime: programs that warp, draw and judge, see ``decode.stages``.

A row is cut to the tokens that it can hold: one where decoding is greedy, the nucleus or the top k among the
``_MOST`` most probable ones, or all of a small vocabulary. What the definition (``decode.sampling.warp``,
``draw``) says of ties and sums holds to the bit, given the probabilities:

* the nucleus ends where falling probabilities, added up one by one in float64, reach top-p; all that tie with
  the last one are in it, and its mass is theirs too;
* top-k is a comparison of logits, ties included;
* a token is drawn where weights, added up one by one in float64 by rising ids, exceed u times their sum;
* a drafted token stands where u is below q/p, divided in float32, and (q - p)+ is a difference in float32.

The softmax is the runtime's, whose last bits are not torch's: a number u within some 1e-7 of an edge may fall
on its other side, as it may on a processor with other vectors. A row that the program cannot hold (a wide
nucleus, a tie at its border, a NaN) is marked, and the host warps its logits.
"""

from __future__ import annotations

import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper
from torch import Tensor

from spsbench.base.records import PARTLY, SamplingParams
from spsbench.decode import rows
from spsbench.decode.rejection import Decision, Draft
from spsbench.decode.rows import Floats, StagedRows
from spsbench.decode.stages import Proposed, Unstaged, Verified
from spsbench.models.blueprint import Blueprint
from spsbench.models.checkpoint import EMBEDDING, StoredWeights
from spsbench.models.onnx_graph import IR, OPSETS, Graph, build_graph, external

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from spsbench.models.onnx_lm import OnnxForward, OnnxLM

Whole = TypeVar("Whole", bound=np.integer[Any])

_MOST = 64
"""Tokens of a row that are looked at; top-k may ask for more."""
_MOST_K = 256
_WIDEST = 1 << 14
"""The largest vocabulary of a program: in a larger one the host finds a nucleus as fast as the runtime."""
_ALL = 2048
"""The largest of which all tokens are added up one by one, as the host does it."""

_END = np.iinfo(np.int64).max
_FLOAT = TensorProto.FLOAT
_DOUBLE = TensorProto.DOUBLE
_LONG = TensorProto.INT64
_BOOL = TensorProto.BOOL


@dataclass(frozen=True, slots=True)
class Cut:
    """What a program does with a row of logits [V].

    Attributes:
        width: V.
        most: M tokens that it holds; 1 is greedy, V means all.
        top_k: 0 for none.
        nucleus: whether it ends where a mass is reached.
    """

    width: int
    most: int
    top_k: int
    nucleus: bool

    @classmethod
    def of(cls, width: int, sampling: SamplingParams) -> Cut | Unstaged:
        """Return how a row is cut; None where the host does it, for its law or its vocabulary."""
        if width > _WIDEST:
            return Unstaged(f"a vocabulary of {width:,}")
        if sampling.process is not None:
            return Unstaged("the law is processed")
        if sampling.greedy:
            return cls(width, 1, 0, False)
        top_k = sampling.top_k if 0 < sampling.top_k < width else 0
        nucleus = sampling.top_p < 1.0
        if not top_k and not nucleus:
            return cls(width, width, 0, False) if width <= _ALL else Unstaged(f"all of {width:,} tokens")
        # More than k, for tokens that tie with the last.
        most = max(_MOST, top_k + _MOST // 4)
        if top_k > _MOST_K:
            return Unstaged(f"top-k {top_k:,}")
        if 2 * most >= width:
            return Unstaged(f"a vocabulary of {width}, too small to cut")
        return cls(width, most, top_k, nucleus)

    @property
    def holds_all(self) -> bool:
        return self.most == self.width


class Operators:
    """Nodes and constants of a program, written one by one."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, TensorProto] = {}

    def __call__(
        self, kind: str, *inputs: str, out: str = "", outs: Sequence[str] = (), **attributes: Any
    ) -> str:
        outputs = list(outs) or [out or f"{kind}.{len(self.nodes)}"]
        self.nodes.append(helper.make_node(kind, list(inputs), outputs, **attributes))
        return outputs[0]

    def constant(self, value: Any, kind: int = _LONG) -> str:
        array = np.array(value)
        name = f"constant.{kind}.{array.ndim}.{array.tolist()}"
        self.constants[name] = helper.make_tensor(name, kind, array.shape, array.flatten().tolist())
        return name

    def cut(self, cut: Cut, logits: str) -> None:
        """Write [n, M] ``ids`` and ``weights`` and [n, 1] ``wide``, of logits [n, V]."""
        if cut.most == 1:
            self._largest(logits)
            return
        scores = self("Div", logits, "temperature")
        if cut.top_k:
            largest = self(
                "TopK", scores, self.constant([cut.top_k]), outs=["largest", "largest_ids"], axis=-1
            )
            least = self("ReduceMin", largest, self.constant([1]), keepdims=1)
            scores = self("Where", self("Less", scores, least), self.constant([-np.inf], _FLOAT), scores)
        probs = self("Softmax", scores, axis=-1, out="weights" if cut.holds_all else "")
        if cut.holds_all:
            total = self("ReduceSum", probs, self.constant([1]), keepdims=1)
            self("IsNaN", total, out="wide")
            return
        most, axis = self.constant([cut.most]), self.constant([1])
        falling = self("TopK", probs, most, outs=["falling", "by_weight"], axis=-1)
        self("TopK", "by_weight", most, outs=["ids", "order"], axis=-1, largest=0)
        last = self("Slice", falling, self.constant([-1]), self.constant([_END]), axis)
        if cut.nucleus:
            weights, edge = self._nucleus(falling)
            reached = self("Less", last, edge)
        else:
            weights = falling
            reached = self("LessOrEqual", last, self.constant([0.0], _FLOAT))
        self("Not", reached, out="wide")  # true for NaN too, for which no comparison holds
        self("GatherElements", weights, "order", axis=1, out="weights")

    def _largest(self, logits: str) -> None:
        best = self("ArgMax", logits, axis=-1, keepdims=1, out="ids")
        value = self("GatherElements", logits, best, axis=1)
        # The largest less itself is 0, or NaN where it is infinite or NaN.
        nothing = self("Sub", value, value)
        total = self("ReduceSum", logits, self.constant([1]), keepdims=1)
        self("Or", self("IsNaN", nothing), self("IsNaN", total), out="wide")
        self("Add", nothing, self.constant([1.0], _FLOAT), out="weights")

    def _nucleus(self, falling: str) -> tuple[str, str]:
        """[n, M] the nucleus's probabilities over their mass, 0 elsewhere, and [n, 1] the least of them."""
        wide = self("Cast", falling, to=_DOUBLE)
        axis = self.constant(1)
        before, reached = self("CumSum", wide, axis, exclusive=1), self("CumSum", wide, axis)
        crossing = self("Less", before, "top_p")
        # Probabilities end at 1: what is not below top-p does not lower the minimum.
        inside = self("Where", crossing, falling, self.constant([2.0], _FLOAT))
        edge = self("ReduceMin", inside, self.constant([1]), keepdims=1)
        kept = self("GreaterOrEqual", falling, edge)
        masses = self("Where", kept, reached, self.constant([0.0], _DOUBLE))
        mass = self("Cast", self("ReduceMax", masses, self.constant([1]), keepdims=1), to=_FLOAT)
        return self("Where", kept, self("Div", falling, mass), self.constant([0.0], _FLOAT)), edge

    def draw(self, cut: Cut, u: str, weights: str = "weights", ids: str = "ids") -> str:
        """[n, 1] a token of each cut row by numbers u [n, 1] in float64."""
        if cut.most == 1:
            return ids
        rising = self("CumSum", self("Cast", weights, to=_DOUBLE), self.constant(1))
        total = self("ReduceMax", rising, self.constant([1]), keepdims=1)
        below = self("Cast", self("LessOrEqual", rising, self("Mul", total, u)), to=_LONG)
        place = self("ReduceSum", below, self.constant([1]), keepdims=1)
        place = self("Min", place, self.constant([cut.most - 1]))
        return place if cut.holds_all else self("GatherElements", ids, place, axis=1)

    def accept(self, cut: Cut) -> None:
        """Write ``accepted`` [1] and ``token`` [1, 1]: modified rejection of K tokens by the cut rows.

        See ``rejection.accept_draft``; ``drafted`` [K, 1], ``u`` [K+1, 1], and ``draft_ids`` and
        ``draft_weights`` [K+1, M], with a row of zeros behind the draft's. With K = 0 that is a step of ArS.
        """
        axis, nothing = self.constant([1]), self.constant([0.0], _FLOAT)

        def before(name: str) -> str:
            return self("Slice", name, self.constant([0]), self.constant([-1]), self.constant([0]))

        def of_drafted(weights: str, ids: str) -> str:
            if cut.holds_all:
                return self("GatherElements", before(weights), "drafted", axis=1)
            best = self("Where", self("Equal", before(ids), "drafted"), before(weights), nothing)
            return self("ReduceMax", best, axis, keepdims=1)

        if cut.most == 1:
            stands = self("Equal", before("ids"), "drafted")
        else:
            chance = self("Div", of_drafted("weights", "ids"), of_drafted("draft_weights", "draft_ids"))
            stands = self("Less", before("u"), self("Cast", chance, to=_DOUBLE))
        flags = self("Concat", self("Cast", stands, to=_FLOAT), self.constant([[0.0]], _FLOAT), axis=0)
        self("ArgMin", flags, axis=0, keepdims=0, out="accepted")  # the first that does not stand
        if cut.most == 1:
            self("Gather", "ids", "accepted", axis=0, out="token")
            return
        row, draft_row = (self("Gather", name, "accepted", axis=0) for name in ("weights", "draft_weights"))
        ids = ""
        if not cut.holds_all:
            ids = self("Gather", "ids", "accepted", axis=0)
            upright = self("Reshape", ids, self.constant([cut.most, 1]))
            same = self("Equal", upright, self("Gather", "draft_ids", "accepted", axis=0))
            along = self("ReduceMax", self("Where", same, draft_row, nothing), axis, keepdims=1)
            draft_row = self("Reshape", along, self.constant([1, cut.most]))
        left = self("Relu", self("Sub", row, draft_row))
        some = self("Greater", self("ReduceSum", left, axis, keepdims=1), nothing)
        left = self("Where", some, left, row)
        last = self("Slice", "u", self.constant([-1]), self.constant([_END]), self.constant([0]))
        self("Identity", self.draw(cut, last, left, ids), out="token")

    def model(
        self, inputs: Sequence[Any], outputs: Sequence[Any], weights: Sequence[TensorProto] = ()
    ) -> Any:
        constants = [*weights, *self.constants.values()]
        graph = helper.make_graph(self.nodes, "stage", list(inputs), list(outputs), constants)
        return helper.make_model(graph, opset_imports=OPSETS, ir_version=IR)


def law_inputs(cut: Cut) -> list[Any]:
    value = helper.make_tensor_value_info
    inputs = [] if cut.most == 1 else [value("temperature", _FLOAT, [1])]
    return inputs + ([value("top_p", _DOUBLE, [1])] if cut.nucleus else [])


def law_values(cut: Cut, sampling: SamplingParams) -> dict[str, Any]:
    values = {} if cut.most == 1 else {"temperature": np.array([sampling.temperature], np.float32)}
    return values | ({"top_p": np.array([sampling.top_p])} if cut.nucleus else {})


def row_outputs(cut: Cut, n: str | int) -> list[Any]:
    value = helper.make_tensor_value_info
    outputs = [value("weights", _FLOAT, [n, cut.most]), value("wide", _BOOL, [n, 1])]
    return outputs if cut.holds_all else [*outputs, value("ids", _LONG, [n, cut.most])]


class _Written:
    """Whole numbers that the host writes or reads at once, where a program has them.

    Behind a forward an array's assignment takes several times as long: its code is in no cache.
    """

    def __init__(self, layout: str) -> None:
        packed = struct.Struct(f"={layout}")
        self._bytes = bytearray(packed.size)
        self.write = partial(packed.pack_into, self._bytes, 0)
        self.read: Callable[[], tuple[int, ...]] = partial(packed.unpack_from, self._bytes)

    def array(self, kind: type[Whole]) -> NDArray[Whole]:
        """Allocate [n] of them in the same memory."""
        return np.frombuffer(self._bytes, kind)


class _Memory:
    """Where a program writes n cut rows and the tokens drawn from them, see ``Operators.cut``."""

    def __init__(self, cut: Cut, sampling: SamplingParams, n: int, width: int) -> None:
        self._cut, self._sampling = cut, sampling
        self.weights = np.zeros((n, cut.most), np.float32)
        self.ids = None if cut.holds_all else np.zeros((n, cut.most), np.int64)
        self._certain = np.ones((n, 1), np.float32)
        self.picks, self.u = np.zeros((n, 1), np.int64), np.zeros((n, 1))
        self.logits = np.zeros((n, width), np.float32)
        # As bytes they are searched without library code, which is not in the caches after a forward.
        self.marks = bytearray(n)
        self._wide = np.frombuffer(self.marks, np.bool_).reshape(n, 1)

    def part(self, first: int, end: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return inputs and outputs, by name, of a call that fills rows ``first`` to ``end``."""
        arrays = {"weights": self.weights, "wide": self._wide, "pick": self.picks}
        arrays |= {} if self.ids is None else {"ids": self.ids}
        outputs = {name: array[first:end] for name, array in arrays.items()}
        return {"u": self.u[first:end]}, outputs | {"logits": self.logits[None, first:end]}

    def rows(self, count: int) -> StagedRows:
        """Return the first rows, copied since the next call overwrites them; the host cuts marked rows."""
        others = None
        if 1 in self.marks[:count]:
            held = rows.on_host(rows.warped(self.of(0, count), self._sampling))
            others = {number: held[number] for number in range(count) if self.marks[number]}
        ids = None if self.ids is None else self.ids[:count].copy()
        # Greedy rows that hold a token hold it alone.
        weights = self._certain[:count] if self._cut.most == 1 else self.weights[:count].copy()
        return StagedRows(ids, weights, self._cut.width, others)

    def of(self, first: int, end: int) -> Tensor:
        """[end - first, V] logits; the next call overwrites them."""
        return torch.from_numpy(self.logits[first:end, : self._cut.width])


def program_graph(
    plan: Blueprint, stored: StoredWeights, bits: int | None, cut: Cut, *, accepts: bool
) -> Graph:
    """Build a forward from tokens to cut rows, and to a token drawn from each or the verdict on the draft.

    Inputs: ``tokens`` [1, n] and those of ``Graph`` but ``hidden``; ``u`` [m, 1] in float64 for the m wanted
    rows, and the law; what ``Operators.accept`` reads. Outputs: those of ``Graph``, the cut rows, and the
    ``pick`` [m, 1] or the verdict.
    """
    forward = build_graph(plan, stored, bits)
    graph = forward.model.graph
    write = Operators()
    value = helper.make_tensor_value_info
    table = np.ascontiguousarray(stored.read(EMBEDDING))
    if plan.embedding_scale == 1.0:
        write("Gather", _TABLE, "tokens", out="hidden")
    else:
        scale = write.constant(plan.embedding_scale, _FLOAT)
        write("Mul", write("Gather", _TABLE, "tokens"), scale, out="hidden")
    write.nodes += graph.node
    logits = write("Reshape", "logits", write.constant([-1, plan.vocab_size]))
    if cut.width < plan.vocab_size:
        first, end, axis = (write.constant([number]) for number in (0, cut.width, 1))
        logits = write("Slice", logits, first, end, axis)
    write.cut(cut, logits)
    inputs = [value("tokens", _LONG, [1, "n"]), value("u", _DOUBLE, ["wanted", 1]), *law_inputs(cut)]
    inputs += [each for each in graph.input if each.name != "hidden"]
    outputs = [*graph.output, *row_outputs(cut, "wanted")]
    if accepts:
        write.accept(cut)
        inputs += [value("drafted", _LONG, ["k", 1]), value("draft_weights", _FLOAT, ["wanted", cut.most])]
        inputs += [value("draft_ids", _LONG, ["wanted", cut.most])]
        outputs += [value("accepted", _LONG, [1]), value("token", _LONG, [1, 1])]
    else:
        write("Identity", write.draw(cut, "u"), out="pick")
        outputs += [value("pick", _LONG, ["wanted", 1])]
    model = write.model(inputs, outputs, [*graph.initializer, external(_TABLE, table)])
    return Graph(model, forward.weights | {_TABLE: table})


_TABLE = "embedding"
MOST_BYTES = 64 << 20
"""Of weights that a program holds once more: to a forward that reads more, the host's part is nothing."""


def runtime_errors() -> tuple[type[Exception], ...]:
    """Return what the runtime raises: its own errors have no base, and its bindings raise Python's."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    raised = [kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    return (RuntimeError, *raised)


def run_bound(session: InferenceSession, binding: Any) -> None:
    """Run a forward that is bound.

    Raises:
        RuntimeError: as torch's forward would; an error of the runtime's own would pass every handler of it.
    """
    try:
        session.run_with_iobinding(binding)
    except runtime_errors() as error:
        raise as_python(error) from error


def as_python(error: Exception) -> RuntimeError:
    """Return an error of the runtime as Python's own, with its whole message."""
    return RuntimeError(_RUNTIME + (_CODE.sub("", str(error)) or type(error).__name__))


def refusal(error: Exception) -> str:
    """Return what the runtime says of a program, in one short clause."""
    text = next(iter(str(error).splitlines()), "").removeprefix(_RUNTIME)
    message = _CODE.sub("", text) or type(error).__name__
    return f"{_RUNTIME}{message[:_MOST_SAID].rstrip()}{'...' if len(message) > _MOST_SAID else ''}"


_RUNTIME = "ONNX Runtime: "
_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_MOST_SAID = 80


class Program(ABC):
    """A model's forward with what comes behind it, over the model's own cache.

    Attributes:
        failure: why it ran in no loop, or in no further one, since the runtime failed; empty while it can.
        accepts: whether it judges a draft, see ``program_graph``.
    """

    accepts: ClassVar[bool]

    def __init__(
        self,
        model: OnnxLM,
        forward: OnnxForward,
        session: InferenceSession,
        cut: Cut,
        sampling: SamplingParams,
        k: int,
    ) -> None:
        self.failure, self._has_run = "", False
        self._model, self._forward, self._session = model, forward, session
        self._run = session.run_with_iobinding
        self._k, self._law = k, law_values(cut, sampling)
        # One more place, after the K judged tokens.
        self._own = _Memory(cut, sampling, k + self.accepts, model.plan.vocab_size)
        self._cache: Mapping[str, Any] = {}
        self._bound: dict[int, tuple[Any, ...]] = {}
        self._prepare(cut)

    @abstractmethod
    def _prepare(self, cut: Cut) -> None:
        """Allocate what the program reads and writes beside its rows."""

    def _binding(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], last: int) -> Any:
        """Bind a call that reads ``tokens`` [1, n] after the cached ones and returns the last rows."""
        from spsbench.models.onnx_lm import bind

        n = inputs["tokens"].size
        names = {each.name for each in self._session.get_inputs()}
        arrays = {**inputs, **self._law, "rows": np.arange(n - last, n)}
        arrays = {name: array for name, array in arrays.items() if name in names}
        wanted = {output.name for output in self._session.get_outputs()}
        written = {name: array for name, array in outputs.items() if name in wanted}
        return bind(self._session, arrays, self._forward.memory, written)

    def _fail(self, error: Exception) -> None:
        self.failure = (PARTLY if self._has_run else "") + refusal(error)

    def _make_room(self, end: int) -> None:
        """Make room in the cache for so many tokens; bindings to a smaller cache are dropped."""
        self._forward.make_room(self._model.length, end)
        if self._cache is not self._forward.memory:
            self._cache, self._bound = self._forward.memory, {}


class ProposeProgram(Program):
    """Draws K tokens after one or two pending ones, a call of the runtime each with nothing in between.

    A call reads its token where the one before has written it. See ``decode.stages.Propose``.
    """

    accepts = False

    def _prepare(self, cut: Cut) -> None:
        self._places = _Written(f"{2 * self._k}i")

    def __call__(self, pending: Sequence[int], u: Floats) -> Proposed:
        n = len(pending)
        start = self._model.length
        k = self._k
        arrays = self._own
        end = start + n
        self._make_room(end + k - 1)
        arrays.u[:, 0] = u
        self._places.write(*range(end - 1, end - 1 + k), *range(end, end + k))
        try:
            tokens, *calls = self._bound.get(n) or self._bind(n)
            tokens.write(*pending)
            for call in calls:
                self._run(call)
        except runtime_errors() as error:  # what it wrote lies after the cached tokens
            self._fail(error)
            return Proposed(arrays.picks[:0, 0], arrays.rows(0), None)
        self._has_run = True
        marked = arrays.marks.find(1)
        sure = k if marked < 0 else marked
        # The last token that was drawn is pending; at a row that is not decided all before it are read.
        self._model.restore(end + min(sure, k - 1))
        return Proposed(
            arrays.picks[:sure, 0].copy(), arrays.rows(sure), None if sure == k else arrays.of(sure, sure + 1)
        )

    def _bind(self, n: int) -> tuple[Any, ...]:
        first = _Written(f"{n}q")
        arrays = self._own
        k = self._k
        seen, total = np.split(self._places.array(np.int32), 2)
        calls = []
        for i in range(k):
            tokens = arrays.picks[i - 1 : i] if i else first.array(np.int64)[None]
            inputs, outputs = arrays.part(i, i + 1)
            inputs |= {"tokens": tokens, "seen": seen[i : i + 1], "total": total[i : i + 1].reshape(())}
            calls.append(self._binding(inputs, outputs, 1))
        self._bound[n] = bound = first, *calls
        return bound


class VerifyProgram(Program):
    """Reads the pending token and K drafted ones, and judges these; see ``decode.stages.Verify``."""

    accepts = True

    def _prepare(self, cut: Cut) -> None:
        k = self._k
        self._tokens, self._places, self._answer = _Written(f"{k + 1}q"), _Written("2i"), _Written("2q")
        # After full acceptance nothing was drafted: a row without weight.
        self._draft_ids = np.full((k + 1, cut.most), -1)
        self._draft_weights = np.zeros((k + 1, cut.most), np.float32)

    def __call__(self, pending: int, draft: Draft, u: Floats) -> Verified | None:
        k = self._k
        arrays = self._own
        drawn_from = draft.drawn_from
        start = self._model.length
        if draft.count != k or self.failure:
            return None
        if (
            isinstance(drawn_from, StagedRows)
            and not drawn_from.others
            and drawn_from.weights.shape == self._draft_weights[:k].shape
            and (drawn_from.ids is None) == (arrays.ids is None)
        ):
            if drawn_from.ids is not None:
                self._draft_ids[:k] = drawn_from.ids
            self._draft_weights[:k] = drawn_from.weights
        elif k:
            return None
        end = start + k + 1
        self._make_room(end)
        drafted = draft.on_host()
        self._tokens.write(pending, *drafted)
        arrays.u[:, 0] = u
        self._places.write(end - 1, end)
        try:
            (call,) = self._bound.get(k) or self._bind()
            self._run(call)
        except runtime_errors() as error:
            self._fail(error)
            return None
        self._has_run = True
        self._model.restore(end)
        accepted, token = self._answer.read()
        decision = None if 1 in arrays.marks else Decision(drafted, accepted, token, None)
        return Verified(arrays.rows(k + 1), decision)

    def _bind(self) -> tuple[Any, ...]:
        inputs, outputs = self._own.part(0, self._k + 1)
        tokens = self._tokens.array(np.int64)
        places = self._places.array(np.int32)
        inputs |= {"tokens": tokens[None], "seen": places[:1], "total": places[1:].reshape(())}
        inputs |= {"drafted": tokens[1:, None]}
        inputs |= {"draft_ids": self._draft_ids, "draft_weights": self._draft_weights}
        answer = self._answer.array(np.int64)
        outputs |= {"accepted": answer[:1], "token": answer[1:].reshape(1, 1)}
        self._bound[self._k] = bound = (self._binding(inputs, outputs, self._k + 1),)
        return bound
