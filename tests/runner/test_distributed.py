"""What a run on several workers says of them, refuses of them, and has them score."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from spsbench.base.environment import describe_environment
from spsbench.base.errors import UsageError
from spsbench.base.records import Generation, Prompt, Sample
from spsbench.config import resolve
from spsbench.models.memory import weight_bytes
from spsbench.report import facts
from spsbench.runner.conditions import software_of, with_sharing
from spsbench.runner.distributed import (
    WorkerSet,
    _Places,
    blocks_to_score,
    require_memory_of_machines,
    require_same_software,
    useful_workers,
)
from spsbench.runner.planning import Plan, plan
from spsbench.runner.turns import all_turns
from spsbench.runner.worker import Introduction
from spsbench.stats.conditions import unlike, unlike_workers
from spsbench.store import RunStore
from spsbench.store.summary_types import Conditions, Summary

HERE = describe_environment()
SOFTWARE = software_of(HERE, quantised=False)


def worker(**libraries: str) -> Introduction:
    return Introduction("node7", 42, HERE | {"libraries": HERE["libraries"] | libraries})


def test_the_same_versions_pass() -> None:
    require_same_software(SOFTWARE, [worker(), worker()])


@pytest.mark.parametrize("package", ["torch", "transformers", "tokenizers", "numpy", "onnxruntime"])
def test_another_version_is_refused_with_worker_package_and_both_versions(package: str) -> None:
    with pytest.raises(UsageError) as refused:
        require_same_software(SOFTWARE, [worker(), worker(**{package: "9.9"})])
    said = str(refused.value)
    assert said.startswith(f"--on: the worker node7:42 has {package} 9.9 where the run has ")
    assert str(HERE["libraries"][package]) in said


@pytest.mark.parametrize("name", ["python", "spsbench"])
def test_another_python_or_spsbench_is_refused(name: str) -> None:
    other = Introduction("node7", 42, HERE | {name: "0.0.1"})
    with pytest.raises(UsageError, match=f"{name} 0.0.1 where the run has {HERE[name]}"):  # type: ignore[literal-required]
        require_same_software(SOFTWARE, [other])


def test_unlike_hardware_is_said_and_like_hardware_is_not() -> None:
    one: Conditions = {"threads": 1, "cpu": "EPYC", "cores": 8}
    other: Conditions = {"threads": 1, "cpu": "Xeon", "cores": 8}
    assert unlike([one, one]) == []
    (said,) = unlike([one, other, one])
    assert str(said).startswith("Workers are unlike: cpu EPYC and Xeon. All arms of a prompt")


def test_the_summary_warns_of_shared_and_of_unlike_machines() -> None:
    alone: Conditions = {"cpu": "EPYC"}
    shared = with_sharing({"cpu": "Xeon"}, 3)
    info = {"conditions": [alone, shared], "workers": [{"condition": 0}, {"condition": 1}]}
    said = [*map(str, unlike_workers(info))]
    assert said[0].startswith("Up to 3 workers of this run measured on one machine at once")
    assert "cpu EPYC and Xeon" in said[1]
    assert unlike_workers({"conditions": [alone]}) == []


def test_a_machine_of_its_own_is_no_condition() -> None:
    alone: Conditions = {"cpu": "EPYC"}
    assert with_sharing(with_sharing(alone, 2), 1) == alone


def test_outputs_of_an_example_are_scored_in_one_block() -> None:
    generation = Generation([1], "text", None, 0.0, 1.0, "stop")
    # In the order in which workers finished them, arm by arm.
    samples = [
        Sample(f"e{index}", 0, arm, 1, generation) for arm in ("ars", "sps", "draft") for index in range(25)
    ]
    prompts = {f"e{index}": Prompt(f"e{index}", "text", (1,), "") for index in range(25)}
    blocks = blocks_to_score(samples, prompts)
    assert sorted(item.key for block in blocks for item in block.items) == sorted(s.key for s in samples)
    held = [{item.key[0] for item in block.items} for block in blocks]
    assert len(blocks) > 1
    assert sum(map(len, held)) == 25, "no example is in two blocks"
    assert all(item.content == (prompts[item.key[0]], "text") for block in blocks for item in block.items)


def test_torchao_counts_where_it_quantises() -> None:
    quantised = software_of(HERE, quantised=True)
    with pytest.raises(UsageError, match=r"torchao 0\.1 where the run has"):
        require_same_software(quantised, [worker(torchao="0.1")])
    require_same_software(SOFTWARE, [worker(torchao="0.1")])


@pytest.fixture(scope="module")
def planned() -> Plan:
    return plan(resolve({"task": "humaneval", "limit": 3, "device": "cpu", "max_new_tokens": 8}))


def kept(planned: Plan) -> dict[str, Any]:
    """What a run's directory is begun with."""
    return {"identity": planned.identity(), "config": {}, "info": planned.info(), "prompts": planned.prompts}


def test_workers_that_do_not_fit_on_their_machine_are_refused(planned: Plan) -> None:
    source, dtypes = planned.source, planned.dtypes
    packed_on = None if planned.backend == "onnxruntime" else planned.device
    models = zip((source.target, source.draft), dtypes, strict=True)
    pair_bytes = sum(weight_bytes(model, dtype, "", packed_on) or 0 for model, dtype in models)

    def on(machine: str, process: int, free: int) -> Introduction:
        return Introduction(machine, process, HERE | {"memory_available_bytes": free})

    require_memory_of_machines(planned, [on("a", 1, 2 * pair_bytes), on("a", 2, 2 * pair_bytes)])
    require_memory_of_machines(planned, [on("a", 1, pair_bytes), on("b", 2, pair_bytes)])
    with pytest.raises(UsageError, match=r"2 workers need .* on a, which has") as refused:
        require_memory_of_machines(planned, [on("a", 1, 2 * pair_bytes), on("a", 2, 2 * pair_bytes - 1)])
    assert refused.value.flag == "--threads"


def test_a_run_is_looked_at_before_a_cluster_is(planned: Plan, tmp_path: Path) -> None:
    """How many workers are of use, and directories that are of none."""
    assert useful_workers(planned, tmp_path / "new", resume=True) == 3
    assert not (tmp_path / "new").exists()
    directory = tmp_path / "run"
    with RunStore.create(directory, **kept(planned)) as store:
        generation = Generation([1], "text", None, 0.0, 1.0, "stop")
        for turn in [*all_turns(planned)][:-1]:
            where = turn.prompt.example_id, turn.sample_index, turn.arm.name
            store.append(Sample(*where, 1, generation, scores={"pass": 1.0}))
        store.note(proof=None)
    assert useful_workers(planned, directory, resume=True) == 1
    with RunStore.open(directory, writable=True) as store:
        last = [*all_turns(planned)][-1]
        where = last.prompt.example_id, last.sample_index, last.arm.name
        store.append(Sample(*where, 1, generation, scores={"pass": 1.0}))
    assert useful_workers(planned, directory, resume=True) == 1, "the proof"
    with RunStore.open(directory, writable=True) as store:
        store.note(proof={"arms": []})
    assert useful_workers(planned, directory, resume=True) == 0
    other = replace(planned, max_new_tokens=9)
    with pytest.raises(UsageError, match="holds another run"):
        useful_workers(other, directory, resume=True)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").touch()
    with pytest.raises(UsageError, match="holds no run"):
        useful_workers(planned, tmp_path / "foreign", resume=True)


def test_a_worker_is_noted_with_its_first_sample(planned: Plan, tmp_path: Path) -> None:
    workers = WorkerSet(None, {0: worker(), 1: worker(), 2: worker()}, {})  # type: ignore[arg-type]
    with RunStore.create(tmp_path / "run", **kept(planned)) as store:
        first = _Places(store, workers, {0: 0, 1: 0, 2: 0})
        assert [first.of(number) for number in (2, 0, 2)] == [0, 1, 0]
        assert _Places(store, workers, {0: 0, 1: 0, 2: 0}).of(1) == 2
        told = store.run_info()
        assert [entry["session"] for entry in told["workers"]] == [1, 1, 2]
        assert facts.workers(cast(Summary, {}), told)[-1].endswith("| 2 |"), "the most at once, not all"
