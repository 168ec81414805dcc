"""The shipped tasks are those of the paper, and unknown ones are refused."""

from __future__ import annotations

import pytest

from spsbench.base.errors import UsageError
from spsbench.base.records import SamplingParams
from spsbench.tasks.catalogue import list_tasks, load_task
from spsbench.tasks.humaneval import Code
from spsbench.tasks.xsum import Summarization


def test_names() -> None:
    assert [spec.name for spec in list_tasks()] == [
        "alpaca",
        "cnndm",
        "cnndm-mini",
        "docsum",
        "gsm8k",
        "humaneval",
        "math500",
        "mbpp",
        "mt-bench",
        "wmt-mini",
        "wmt14-ende",
        "xsum",
    ]


def test_xsum_is_the_papers() -> None:
    task = load_task("xsum")
    assert isinstance(task, Summarization)
    assert task.samplings == {"nucleus": SamplingParams(top_p=0.8), "greedy": SamplingParams(greedy=True)}
    assert (task.stop, task.max_new_tokens, task.headline) == (("\n",), 128, "rouge2")
    assert task.spec.data.split == "validation"
    assert [(s.repository, s.revision) for s in task.spec.data.hub][:2] == [
        ("EdinburghNLP/xsum", "refs/convert/parquet"),
        ("EdinburghNLP/xsum", "main"),
    ]


def test_humaneval_is_the_papers() -> None:
    task = load_task("humaneval")
    assert isinstance(task, Code)
    assert task.samplings["nucleus"] == SamplingParams(temperature=0.8, top_p=0.95)
    assert (task.max_new_tokens, task.headline, task.runs_code) == (512, "pass@1", True)
    assert task.stop == ("\nclass", "\ndef", "\n#", "\nif", "\nprint")


def test_unknown_name() -> None:
    with pytest.raises(UsageError) as caught:
        load_task("x-sum")
    assert str(caught.value) == (
        "TASK: x-sum is unknown. Did you mean xsum? "
        "Choose from alpaca, cnndm, cnndm-mini, docsum, gsm8k, humaneval, math500, mbpp, mt-bench, wmt-mini, "
        "wmt14-ende, xsum, or name one as file.py:attribute."
    )


def test_missing_file() -> None:
    with pytest.raises(UsageError, match=r"nowhere\.yaml cannot be read"):
        load_task("nowhere.yaml")
