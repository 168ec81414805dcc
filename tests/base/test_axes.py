"""What arms are called, and which ArS is an arm's own."""

from __future__ import annotations

import pytest

from spsbench.base.axes import label, own_ars, shown_engine, unusual
from spsbench.base.records import Arm, SamplingParams

GREEDY = SamplingParams(greedy=True)


@pytest.mark.parametrize(
    ("engine", "shown"),
    [
        ("eager", "eager"),
        ("llama-cpp:rule=greedy", "llama-cpp:rule=greedy"),
        ("openai:http://127.0.0.1:8000/v1", "openai:http://127.0.0.1:8000/v1"),
        (
            "worker:/usr/bin/python /home/me/my_engine.py --data /tmp/",
            "worker:python my_engine.py --data tmp",
        ),
    ],
)
def test_a_command_is_shown_without_folders(engine: str, shown: str) -> None:
    assert shown_engine(engine) == shown
    arm = Arm("ars", 0, engine, "greedy", GREEDY)
    assert label({"arm": arm.name, **arm.axes()}) == ("ArS" if engine == "eager" else f"ArS @{shown}")


def test_an_arms_own_ars_is_that_of_its_engine_and_sampling() -> None:
    arms = [
        *(Arm("ars", 0, engine, "greedy", GREEDY) for engine in ("eager", "worker:x", "hf-generate")),
        *(Arm("sps", 4, engine, "greedy", GREEDY) for engine in ("eager", "worker:x", "hf-assisted")),
        Arm("sps", 4, "worker:x", "nucleus", SamplingParams()),
    ]
    rows = [{"arm": arm.name, **arm.axes()} for arm in arms]
    own = [None if (found := own_ars(row, rows)) is None else found["engine"] for row in rows]
    assert own == [None, None, None, "eager", "worker:x", "hf-generate", None]


@pytest.mark.parametrize(
    ("drafter", "shown"),
    [
        ("lookup:max_n=2", "lookup:max_n=2"),
        ("examples/echo_drafter.py:KIND", "echo_drafter"),
        ("/a/b.c/echo.py:KIND:most=2", "echo:most=2"),
        ("./echo.py:OTHER", "echo:OTHER"),
        ("union:of=lookup+model", "union:of=lookup+model"),
    ],
)
def test_a_drafter_from_a_file_is_called_by_the_file_in_runs_without_its_declared_name(
    drafter: str, shown: str
) -> None:
    row = {"method": "sps", "drafter": drafter, "rule": "modified-rejection", "policy": "fixed"}
    assert unusual(row) == [shown]
