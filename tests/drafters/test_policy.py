"""What each policy says of a loop's length, what is asked of it, and when the host waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from spsbench.base.errors import UsageError
from spsbench.base.records import SamplingParams, Spec
from spsbench.drafters import registry
from spsbench.drafters.model import ModelDrafter
from spsbench.drafters.policy import lookahead_of, lookaheads
from spsbench.drafters.registry import POLICIES, Context, Policy, build_policy, policy_kind
from spsbench.law.enumeration import TableModel

CPU = torch.device("cpu")
PLAIN = SamplingParams()
ROWS = torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.4, 0.2]], dtype=torch.float64)


def policy(text: str) -> Policy:
    return build_policy(Spec.parse(text))


def drafter(text: str | None, rows: Sequence[float] = (0.7, 0.2, 0.1)) -> ModelDrafter:
    model = TableModel(lambda context: rows, len(rows))
    return ModelDrafter(model, PLAIN, CPU, None if text is None else policy(text))


def drafted(one: ModelDrafter, picks: Sequence[float]) -> list[int]:
    one.begin((0,))
    tokens: list[int] = one.draft((0,), len(picks), torch.tensor(picks, dtype=torch.float64)).tokens.tolist()
    return tokens


def test_momentum_by_hand() -> None:
    """K = 8: 5 stand, 7 stand, 8 do not, nor 7, then 6 stand."""
    verdicts = [(5, 5), (7, 7), (8, 3), (7, 0), (6, 6), (8, 8)]
    assert lookaheads(policy("momentum"), 8, [*verdicts, (8, 8)]) == [5, 7, 8, 7, 6, 8, 8]


@pytest.mark.parametrize(("k", "expected"), [(1, [1] * 9), (3, [3, 2, 1, 1, 1, 1, 1, 1, 1])])
def test_momentum_never_drafts_fewer_than_one_or_more_than_k(k: int, expected: list[int]) -> None:
    assert lookaheads(policy("momentum"), k, [(n, 0) for n in expected]) == expected


def test_momentum_saves_up_nothing_beyond_k() -> None:
    assert lookaheads(policy("momentum"), 5, [(5, 5)] * 4 + [(5, 0), (4, 0)]) == [5, 5, 5, 5, 5, 4]


def test_momentum_starts_anew_with_each_sequence() -> None:
    one = drafter("momentum")
    numbers = [0.0] * 8
    assert len(drafted(one, numbers)) == 5
    one.observe((0, 0), 0)
    assert len(one.draft((0, 0), 8, torch.tensor(numbers)).tokens) == 4
    assert len(drafted(one, numbers)) == 5


def test_a_rollback_without_a_draft_is_no_verdict() -> None:
    one = drafter("momentum")
    one.begin((0,))
    one.observe((0,), 0)
    assert len(one.draft((0,), 8, torch.zeros(8)).tokens) == 5


@pytest.mark.parametrize(
    ("text", "expected"), [("stop-below:tau=0.3", [0.4, -0.1]), ("entropy:h=1", [0.19818, -0.05492])]
)
def test_margins_by_hand(text: str, expected: list[float]) -> None:
    margin = policy(text).margin
    assert margin is not None
    assert margin(ROWS, torch.tensor([0, 2])).tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, [0, 0, 1, 0]),
        ("fixed", [0, 0, 1, 0]),
        ("stop-below", [0, 0, 1]),  # the token that ends the draft stays
        ("stop-below:tau=0.15", [0, 0, 1, 0]),
        ("stop-below:tau=0", [0, 0, 1, 0]),
        ("stop-below:tau=1", [0]),
        ("entropy:h=0.8", [0]),
        ("entropy:h=0.9", [0, 0, 1, 0]),
        ("entropy", [0, 0, 1, 0]),
        ("momentum", [0, 0, 1, 0]),
    ],
)
def test_where_a_draft_ends(text: str | None, expected: list[int]) -> None:
    assert drafted(drafter(text), [0.1, 0.5, 0.8, 0.2]) == expected


@pytest.mark.parametrize(
    ("text", "waits"), [("fixed", 0), ("momentum", 0), ("stop-below", 2), ("entropy", 3)]
)
def test_the_host_asks_for_rows_as_little_as_it_can(
    monkeypatch: pytest.MonkeyPatch, text: str, waits: int
) -> None:
    """Nothing is read behind the last token that there may be, and nothing if no row decides."""
    asked: list[torch.Tensor] = []
    read = torch.Tensor.__float__

    def counting(self: torch.Tensor) -> float:
        asked.append(self)
        return read(self)

    one = drafter(text)
    monkeypatch.setattr(torch.Tensor, "__float__", counting)
    drafted(one, [0.1, 0.8, 0.1, 0.1])
    assert len(asked) == waits


@pytest.mark.parametrize("answer", [-3, 0, 1, 4, 5, 100])
def test_a_policy_of_another_package_is_kept_within_1_and_k(answer: int) -> None:
    class Wild:
        margin = None

        def begin(self) -> None: ...
        def lookahead(self, k: int) -> int:
            return answer

        def observe(self, drafted: int, accepted: int) -> None: ...

    assert 1 <= lookahead_of(Wild(), 4) <= 4
    assert lookahead_of(None, 4) == 4


def test_names_defaults_and_what_is_refused() -> None:
    assert list(POLICIES) == ["fixed", "stop-below", "entropy", "momentum"]
    assert policy_kind("stop-below").settled(Spec("stop-below")) == {"tau": 0.4}
    assert policy_kind("entropy").settled(Spec.parse("entropy:h=1")) == {"h": 1}
    with pytest.raises(UsageError, match=r"--policy: stop-bellow is unknown\. Did you mean stop-below"):
        policy("stop-bellow")
    with pytest.raises(UsageError, match="momentum has no option tau"):
        policy("momentum:tau=0.1")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("stop-below:tau=1.5", "--policy: stop-below:tau must be between 0 and 1, got 1.5."),
        ("stop-below:tau=-0.1", "--policy: stop-below:tau must be between 0 and 1, got -0.1."),
        ("entropy:h=-1", "--policy: entropy:h must be at least 0, got -1."),
        ("entropy:h=nan", "--policy: entropy:h must be at least 0, got nan."),
    ],
)
def test_values_out_of_range_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as raised:
        policy(text)
    assert str(raised.value) == sentence


def test_the_registry_hands_the_policy_to_the_model() -> None:
    def built(**more: Any) -> Any:
        model = TableModel(lambda context: (0.7, 0.2, 0.1), 3)
        return registry.build_drafter(Spec("model"), Context(model, model, PLAIN, CPU, 3, **more))

    assert drafted(built(), [0.8, 0.8]) == [1, 1]
    assert drafted(built(policy=policy("stop-below")), [0.8, 0.8]) == [1]
