"""Options that were folded into what they qualify: each old spelling is refused with the one to type."""

from __future__ import annotations

import pytest
from support.commandline import Cli

FOLDED = {
    "run --revision v1": "--target MODEL@v1",
    "distill --revision v1": "--target MODEL@v1",
    "replay --draft-revision v1": "--draft MODEL@v1",
    "advise --quantise int8": "--dtype auto+int8",
    "verify --draft-quantise none": "--dtype auto:draft=auto+none",
    "run --draft-dtype int8": "--dtype auto:draft=int8",
    "sweep-k --draft-placement replicated": "--tensor-parallel N:draft=replicated",
    "verify --prompts p.jsonl": "p.jsonl as TASK",
    "bench --target-config big.json": "--target big.json",
    "advise --hardware l4 --draft-config small.json": "--draft small.json",
    "audit t.jsonl --samples-dtype bfloat16": "--dtype auto:samples=bfloat16",
    "advise --objective p99": "--choose p99",
    "advise --memory 4GB": "--choose mean:memory=4GB",
    "simulate --concentration 20": "--source dirichlet:concentration=20",
    "simulate --draft-temperature .5": "--source temperature:draft_temperature=.5",
    "simulate --dependence .3": "--source ngram:dependence=.3",
    "simulate --table rows.json": "--source rows.json",
    "simulate --vocabulary 8": "--source NAME:vocabulary=8",
    "simulate --sharpness 1": "--source NAME:sharpness=1",
    "simulate --variation .5": "--source NAME:variation=.5",
    "simulate --stay .5": "--source NAME:stay=.5",
    "simulate --tree 2 --siblings top": "--tree SHAPE:siblings=top",
    "distill --layers 1": "--kind model:layers=1",
    "distill --heads 3": "--kind medusa:heads=3",
    "distill --vocabulary 0": "--kind KIND:vocabulary=0",
    "run --budget 5min": "--until 5min",
    "run --trace 0": "--set trace=0",
    "verify --controls": "--control all",
    "bench --acceptance-from results/run": "--alpha results/run",
    "advise --hardware l4 --curve curve.json": "--alpha curve.json",
    "audit t.jsonl --greedy": "--temperature 0",
    "replay t.jsonl --greedy --k 2": "--temperature 0",
}


@pytest.mark.parametrize("typed", FOLDED)
def test_an_old_spelling_is_refused_with_the_new_one(cli: Cli, typed: str) -> None:
    result = cli(*typed.split())
    assert (result.code, result.out) == (2, "")
    assert f"is written otherwise now. Give {FOLDED[typed]}." in " ".join(result.err.split())
