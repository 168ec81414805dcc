"""What a run on several workers says of them, refuses of them, and has them score."""

from __future__ import annotations

import pytest

from spsbench.environment import describe_environment
from spsbench.errors import UsageError
from spsbench.records import Generation, Prompt, Sample
from spsbench.runner.conditions import software_of, with_sharing
from spsbench.runner.distributed import require_same_software, scoring
from spsbench.runner.worker import Introduction
from spsbench.stats.workers import sentences, unlike
from spsbench.summary_types import Conditions

HERE = describe_environment()
SOFTWARE = software_of(HERE)


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
    assert said.startswith("Workers are unlike: cpu EPYC and Xeon. All arms of a prompt")


def test_the_summary_warns_of_shared_and_of_unlike_machines() -> None:
    alone: Conditions = {"cpu": "EPYC"}
    shared = with_sharing({"cpu": "Xeon"}, 3)
    info = {"conditions": [alone, shared], "workers": [{"condition": 0}, {"condition": 1}]}
    said = sentences(info)
    assert said[0].startswith("Up to 3 workers of this run measured on one machine at once")
    assert "cpu EPYC and Xeon" in said[1]
    assert sentences({"conditions": [alone]}) == []


def test_a_machine_of_its_own_is_no_condition() -> None:
    alone: Conditions = {"cpu": "EPYC"}
    assert with_sharing(with_sharing(alone, 2), 1) == alone


def test_outputs_of_an_example_are_scored_in_one_block() -> None:
    generation = Generation([1], "text", None, 0.0, 0.0, "stop")
    # In the order in which workers finished them, arm by arm.
    samples = [
        Sample(f"e{index}", 0, arm, 1, generation) for arm in ("ars", "sps", "draft") for index in range(25)
    ]
    prompts = {f"e{index}": Prompt(f"e{index}", "text", (1,), "") for index in range(25)}
    blocks = scoring(samples, prompts)
    assert sorted(item.key for block in blocks for item in block.items) == sorted(s.key for s in samples)
    held = [{item.key[0] for item in block.items} for block in blocks]
    assert len(blocks) > 1
    assert sum(map(len, held)) == 25, "no example is in two blocks"
    assert all(item.given == (prompts[item.key[0]], "text") for block in blocks for item in block.items)
