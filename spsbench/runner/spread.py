"""Work in blocks for several workers: a free worker gets the next one, and a lost worker's is repeated.

Nothing here knows what a worker is or how it is reached; that is a ``Pool``'s business.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, NamedTuple, Protocol

from spsbench.cluster import FLAG
from spsbench.errors import SpsbenchError
from spsbench.runner.schedule import Turn
from spsbench.store import Key

Work = Literal["measure", "score", "prove"]

MOST_LOST = 3
"""So many workers may be lost over one item: it is then the item that ends them."""


_KEPT = "What was finished is on the disk;"


class Item(NamedTuple):
    """A part of a block that is answered by itself."""

    key: Key
    given: Any = None


@dataclass(frozen=True, slots=True)
class Block:
    """What one worker does in one go, item by item."""

    work: Work
    items: tuple[Item, ...]


class Answer(NamedTuple):
    """A worker finished an item."""

    worker: int
    key: Key
    value: Any


class Free(NamedTuple):
    """A worker finished its block."""

    worker: int


class Lost(NamedTuple):
    """A worker is gone, with its machine or without it."""

    worker: int
    reason: str


class Pool(Protocol):
    """Workers that can be given blocks, by their numbers."""

    def give(self, worker: int, block: Block) -> None:
        """Have a free worker begin with a block; returns at once."""
        ...

    def wait(self) -> Answer | Free | Lost:
        """The next thing that happens; a worker begins its next item once it is asked for more."""
        ...


def measuring(turns: Iterable[Turn]) -> list[Block]:
    """A block for every prompt, or wave of them: all of its samples and arms, in the order of the turns.

    They are compared with each other, so one worker measures them. Larger blocks would gain nothing, since a
    block costs a message, and would leave workers idle at the end.
    """
    units = groupby(turns, key=lambda turn: turn.unit)
    return [Block("measure", tuple(Item(turn.key) for turn in unit)) for _, unit in units]


def hand_out(
    blocks: Iterable[Block], pool: Pool, workers: Sequence[int], lost: Callable[[int, str], None]
) -> Iterator[Answer]:
    """Have all blocks done, and yield each item's answer once, as they come.

    A lost worker's items that were not answered go to the next free worker, before all others. Answers that
    come twice, from a worker that was thought lost, count once.
    """
    hands = _Hands(blocks, pool, workers)
    while hands.busy():
        event = pool.wait()
        if isinstance(event, Answer):
            if hands.answered(event):
                yield event
        elif isinstance(event, Free):
            hands.freed(event.worker)
        else:
            lost(event.worker, event.reason)
            hands.lost(event)


class _Hands:
    """Which worker has which block."""

    def __init__(self, blocks: Iterable[Block], pool: Pool, workers: Sequence[int]) -> None:
        self._waiting, self._free, self._pool = deque(blocks), deque(workers), pool
        self._at_work: dict[int, Block] = {}
        self._done: set[Key] = set()
        self._losses: Counter[Key] = Counter()

    def busy(self) -> bool:
        """Give blocks to free workers; whether there is anything to wait for."""
        while self._waiting and self._free:
            if due := self._due(self._waiting.popleft()):
                worker = self._free.popleft()
                self._at_work[worker] = due
                self._pool.give(worker, due)
        if self._waiting and not self._at_work:
            raise SpsbenchError(
                "every worker was lost.", flag=FLAG, remedy=f"{_KEPT} continue it with --resume."
            )
        return bool(self._at_work)

    def answered(self, answer: Answer) -> bool:
        """Note an answer; whether it is the item's first."""
        new = answer.key not in self._done
        self._done.add(answer.key)
        return new

    def freed(self, worker: int) -> None:
        """A worker has done its block; what it left out, if anything, waits again."""
        self._put_back(self._at_work.pop(worker, None))
        self._free.append(worker)

    def lost(self, event: Lost) -> None:
        """A worker is gone, and somebody else finishes its block."""
        if event.worker in self._free:
            self._free.remove(event.worker)
        left = self._put_back(self._at_work.pop(event.worker, None))
        if left is None:
            return
        at = left.items[0].key
        self._losses[at] += 1
        if self._losses[at] >= MOST_LOST:
            raise SpsbenchError(
                f"{MOST_LOST} workers were lost over {' '.join(map(str, at))}. The last one: {event.reason}",
                flag=FLAG,
                remedy=f"Too little memory ends them like this. {_KEPT} continue it with --resume.",
            )

    def _put_back(self, block: Block | None) -> Block | None:
        """Have what was not answered of a block done next; it, or None if all of it was."""
        left = None if block is None else self._due(block)
        if left is not None:
            self._waiting.appendleft(left)
        return left

    def _due(self, block: Block) -> Block | None:
        left = tuple(item for item in block.items if item.key not in self._done)
        return Block(block.work, left) if left else None
