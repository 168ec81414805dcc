"""What may not be asked together: every pair of options in the table, and nothing else, is refused."""

from __future__ import annotations

import pytest

from spsbench.base.errors import UsageError
from spsbench.config.together import TABLE, Clash, refuse_together

PAIRS = [
    pytest.param(row, command, name, other, id=f"{command} {name} {other}")
    for row in TABLE
    for command in row.commands
    for name in row.names
    for other in row.beside
]


@pytest.mark.parametrize(("row", "command", "name", "other"), PAIRS)
def test_both_are_refused_and_each_alone_is_not(row: Clash, command: str, name: str, other: str) -> None:
    given = {name: "7", other: "int8"}
    with pytest.raises(UsageError) as refused:
        refuse_together(command, given)
    assert refused.value.exit_code == 2
    flag = name if name.startswith("-") else f"--{name.replace('_', '-')}"
    assert refused.value.flag == flag
    assert refused.value.remedy in {each.remedy for each in TABLE if name in each.names}
    assert "{" not in str(refused.value)
    for left_out in (None, False, [], ()):
        refuse_together(command, {name: "7", other: left_out})
        refuse_together(command, {name: left_out, other: "int8"})


NEEDED = [
    pytest.param(row, command, name, id=f"{command} {name}")
    for row in TABLE
    if row.without
    for command in row.commands
    for name in row.names
]


@pytest.mark.parametrize(("row", "command", "name"), NEEDED)
def test_without_what_it_needs_it_is_refused(row: Clash, command: str, name: str) -> None:
    with pytest.raises(UsageError) as refused:
        refuse_together(command, {name: "7"})
    assert refused.value.flag == (name if name.startswith("-") else f"--{name.replace('_', '-')}")
    assert refused.value.remedy == row.remedy
    for other in row.without:
        refuse_together(command, {name: "7", other: "8"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"on": "ray", "processes": "2"},
            "--on: ray is given together with --processes. Leave one of the two",
        ),
        (
            {"resume": "a", "out": "b"},
            "--out: b is given together with --resume. A continued run has its own",
        ),
        (
            {"k": "4", "concurrency": "1"},
            "--k: 4 has no effect on a server that is running already. Leave it",
        ),
        ({"until": "5min", "processes": "2"}, "--until: 5min is given together with --processes, which must"),
    ],
)
def test_the_error_names_flag_value_and_remedy(given: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        refuse_together("run", given)
    assert str(refused.value).startswith(message)
