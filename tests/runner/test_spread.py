"""Blocks for workers: handed out as they get free, what a lost worker had is done once and elsewhere."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field, replace

import pytest

from spsbench.base.errors import SpsbenchError
from spsbench.base.records import Arm, Prompt, SamplingParams
from spsbench.runner.turns import derive_seed, interleaved
from spsbench.runner.worker import MOST_LOST, Block, Completed, Free, Item, Lost, blocks_to_measure, hand_out
from spsbench.store import Key

SAMPLING = SamplingParams()
ARMS = (Arm("ars", 0, "eager", "nucleus", SAMPLING), Arm("sps", 4, "eager", "nucleus", SAMPLING))


def blocks(prompts: int, samples: int = 2) -> list[Block]:
    asked = [Prompt(f"p{index}", "text", (1, 2), "reference") for index in range(prompts)]
    return blocks_to_measure(interleaved(asked, samples, ARMS, 0))


@dataclass
class FakePool:
    """Workers in no process: each takes ``slowness`` ticks for an item, and dies behind so many of them.

    Attributes:
        slowness: by worker.
        dies_after: how many items a worker answers in all before it is lost, by worker.
        repeats: workers whose answers come twice.
        made: (worker, key) of everything that was computed, in order.
        begun: (worker, block) as given.
    """

    slowness: dict[int, int]
    dies_after: dict[int, int] = field(default_factory=dict)
    repeats: frozenset[int] = frozenset()
    made: list[tuple[int, Key]] = field(default_factory=list)
    begun: list[tuple[int, Block]] = field(default_factory=list)
    _left: dict[int, deque[Item]] = field(default_factory=dict)
    _at: dict[int, int] = field(default_factory=dict)
    _again: deque[Completed] = field(default_factory=deque)

    def give(self, worker: int, block: Block) -> None:
        assert worker not in self._left, "it is at work"
        self.begun.append((worker, block))
        self._left[worker] = deque(block.items)
        self._at[worker] = max(self._at.values(), default=0) if worker not in self._at else self._at[worker]
        self._at[worker] += self.slowness[worker]

    def wait(self) -> Completed | Free | Lost:
        if self._again:
            return self._again.popleft()
        assert self._left, "nobody is at work, and this would wait for ever"
        worker = min(self._left, key=lambda one: (self._at[one], one))
        if self.dies_after.get(worker) == sum(1 for by, _ in self.made if by == worker):
            del self._left[worker]
            return Lost(worker, "killed.")
        if not self._left[worker]:
            del self._left[worker]
            return Free(worker)
        item = self._left[worker].popleft()
        self._at[worker] += self.slowness[worker]
        self.made.append((worker, item.key))
        answer = Completed(worker, item.key, (worker, item.key))
        if worker in self.repeats:
            self._again.append(answer)
        return answer


def done(pool: FakePool, due: list[Block]) -> list[Completed]:
    return list(hand_out(due, pool, list(pool.slowness), lambda worker, reason: None))


def keys(due: list[Block]) -> list[Key]:
    return [item.key for block in due for item in block.items]


def test_a_block_is_a_prompt_with_all_its_samples_and_arms() -> None:
    found = blocks(3)
    assert [{item.key[0] for item in block.items} for block in found] == [{"p0"}, {"p1"}, {"p2"}]
    assert [len(block.items) for block in found] == [4, 4, 4]


def test_a_prompt_stays_with_one_worker_and_the_fast_one_does_more() -> None:
    due, pool = blocks(20), FakePool({0: 1, 1: 5})
    answers = done(pool, due)
    assert Counter(answer.key for answer in answers) == Counter(keys(due))
    by_prompt: dict[str, set[int]] = {}
    for worker, key in pool.made:
        by_prompt.setdefault(key[0], set()).add(worker)
    assert all(len(workers) == 1 for workers in by_prompt.values())
    share = Counter(worker for worker, _ in pool.made)
    assert share[0] > 3 * share[1] > 0


def test_what_a_lost_worker_had_is_done_by_another_and_no_more_than_that() -> None:
    due, told = blocks(5), list[int]()
    pool = FakePool({0: 1, 1: 1}, dies_after={1: 6})
    answers = list(hand_out(due, pool, [0, 1], lambda worker, reason: told.append(worker)))
    assert told == [1]
    assert Counter(answer.key for answer in answers) == Counter(keys(due))
    # Nothing that had been answered was computed again.
    assert max(Counter(key for _, key in pool.made).values()) == 1
    again = [block for worker, block in pool.begun if worker == 0 and len(block.items) == 2]
    assert len(again) == 1, "the rest of the block that was cut, as one block"


def test_the_rest_of_a_lost_block_comes_before_all_others() -> None:
    due = blocks(6)
    pool = FakePool({0: 3, 1: 1}, dies_after={1: 1})
    done(pool, due)
    third = [block.items[0].key[0] for worker, block in pool.begun][2]
    assert third == "p1"


def test_answers_that_come_twice_count_once() -> None:
    due, pool = blocks(4), FakePool({0: 1, 1: 2}, repeats=frozenset({0, 1}))
    answers = done(pool, due)
    assert [count for _, count in Counter(answer.key for answer in answers).items()] == [1] * 16


def test_without_any_worker_left_it_says_how_to_go_on() -> None:
    pool = FakePool({0: 1, 1: 1}, dies_after={0: 1, 1: 2})
    with pytest.raises(SpsbenchError, match=r"every worker was lost\..*--resume"):
        done(pool, blocks(3))


def test_an_item_that_ends_workers_does_not_end_all_of_them() -> None:
    pool = FakePool(dict.fromkeys(range(6), 1), dies_after=dict.fromkeys(range(6), 0))
    with pytest.raises(SpsbenchError, match=f"{MOST_LOST} workers were lost over p0 0"):
        done(pool, blocks(1))
    assert len(pool.begun) == MOST_LOST


def test_nothing_to_do_asks_nobody() -> None:
    pool = FakePool({0: 1})
    assert done(pool, []) == []
    assert not pool.begun


@pytest.mark.parametrize("seed", range(20))
def test_however_workers_die_everything_is_done_once(seed: int) -> None:
    rng = random.Random(seed)
    slow = {worker: rng.randint(1, 5) for worker in range(4)}
    mortal = {worker: rng.randint(0, 12) for worker in range(MOST_LOST - 1)}
    pool = FakePool(slow, mortal, frozenset(rng.sample(range(4), 2)))
    due = blocks(rng.randint(1, 9), samples=rng.randint(1, 3))
    answers = done(pool, due)
    assert Counter(answer.key for answer in answers) == Counter(keys(due))
    assert max(Counter(key for _, key in pool.made).values()) == 1


def test_with_batches_a_block_is_a_wave_of_whole_prompts() -> None:
    asked = [Prompt(f"p{index}", "text", (1, 2), "reference") for index in range(6)]
    arms = (*ARMS, replace(ARMS[1], batch=2))
    found = blocks_to_measure(interleaved(asked, 1, arms, 0))
    assert [{item.key[0] for item in block.items} for block in found] == [
        {"p0", "p1", "p2", "p3"},
        {"p4", "p5"},
    ]
    assert [len(block.items) for block in found] == [12, 6]


def test_seeds_are_of_63_bits() -> None:
    """Of 3,000 none meets another, and they reach the whole range."""
    seeds = {derive_seed(0, f"e{number}", index, "sps") for number in range(300) for index in range(10)}
    assert len(seeds) == 3_000
    assert 2**62.9 < max(seeds) < 2**63
