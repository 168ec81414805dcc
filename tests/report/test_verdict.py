"""The verdict in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spsbench.report import why

Make = Callable[..., dict[str, Any]]


def _other(k: int, slower: bool, **axes: Any) -> dict[str, Any]:
    place = {"arm": f"sps{k}", "method": "sps", "k": k, "engine": "eager", "sampling": "nucleus", "batch": 1}
    gain = {"ratio": 1.1, "low": 1.05 if slower else 0.95, "high": 1.2}
    return {**place, **axes, "gain": gain, "slower": slower}


def _answer(found: Any) -> str:
    ((text, _),) = why.verdicts({"verdict": [found], "rows": []})  # type: ignore[typeddict-item]
    return text


GAIN = "1.92x [1.85, 1.99] per token, 1.71x [1.65, 1.78] end to end"


def test_one_arm_pays_and_of_several_one_is_to_be_used(make_verdict: Make) -> None:
    assert _answer(make_verdict()) == f"SpS (K=4) pays: {GAIN}."
    sweep = make_verdict(candidates=2, others=[_other(2, True)])
    assert _answer(sweep) == f"Use K=4: {GAIN}."
    drafters = make_verdict(drafter="lookup", candidates=2, others=[_other(2, True, drafter="model")])
    assert _answer(drafters) == f"Use SpS (K=4, lookup): {GAIN}."


def test_where_it_does_not_pay_it_says_from_where_it_would(make_verdict: Make) -> None:
    slow = {"ratio": 0.9, "low": 0.85, "high": 0.95}
    found = make_verdict(outcome="does not pay", speedup=slow, end_to_end=None)
    assert _answer(found) == (
        "Does not pay here: SpS (K=4) ran 0.90x [0.85, 0.95] per token. It would pay with c below 0.50 "
        "(measured 0.12) or alpha above 0.40 (measured 0.80)."
    )
    lost = found["break_even"] | {"c": None, "alpha": None}
    assert _answer(found | {"break_even": lost}).endswith("Neither a better nor a cheaper draft is enough.")
    swept = found | {"candidates": 3, "others": [_other(2, False), _other(6, True)]}
    assert "K=4, the fastest of 3, ran" in _answer(swept)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"speedup": {"ratio": 1.2, "low": None, "high": None}}, "There is no interval over 50 prompts."),
        (
            {"others": [_other(2, False)], "candidates": 2, "prompts": 6},
            "Choosing among 2 arms takes 8 prompts; these are 6.",
        ),
        ({"speedup": {"ratio": 1.0, "low": 0.9, "high": 1.1}}, "Raise --limit for a narrower interval."),
    ],
)
def test_no_clear_gain_has_a_reason(changes: dict[str, Any], why: str, make_verdict: Make) -> None:
    text = _answer(make_verdict(outcome="unclear", **changes))
    assert text.startswith("No clear gain: ")
    assert why in text


def test_prompts_that_were_all_run_are_to_become_more(make_verdict: Make) -> None:
    """No limit brings more of a file than it holds."""
    found = make_verdict(outcome="unclear", others=[_other(2, False)], candidates=2, prompts=6)
    whole: Any = {"verdict": [found], "rows": [{"prompts": 6}], "data": {"split_size": 6}}
    ((text, _),) = why.verdicts(whole)
    assert text.endswith("Choosing among 2 arms takes 8 prompts; these are 6. Give more prompts.")
    assert "Raise --limit" not in "".join(map(str, why.which(whole, {})))


def test_enough_prompts_are_not_called_too_few(make_verdict: Make) -> None:
    """In waves, and where a run may stop early, nothing is chosen on one half, whatever their number."""
    wide = {"ratio": 1.1, "low": 0.9, "high": 1.4}
    found = make_verdict(outcome="unclear", others=[_other(2, False)], candidates=2, speedup=wide)
    assert _answer(found).endswith("Raise --limit for a narrower interval.")


@pytest.mark.parametrize(("low", "lost"), [(0.03, 0.97), (None, 1.0)])
def test_what_others_took_is_named_before_too_few_prompts(
    low: float | None, lost: float, make_verdict: Make
) -> None:
    """An interval that holds what they took says nothing of the prompts, nor do the losses of an arm."""
    speedup = {"ratio": 1.16, "low": low, "high": None if low is None else 135.33}
    found = make_verdict(outcome="unclear", speedup=speedup, lost_share=lost)
    said = f"No clear gain: {{}} ran about 1.16x per token; CPU contention took {lost:.0%} of the time."
    assert _answer(found) == said.format("SpS (K=4)")
    assert why.details(found) == ""  # type: ignore[arg-type]
    few = found | {"others": [_other(2, False)], "candidates": 2, "prompts": 6}
    fastest = said.format("K=4, the fastest of 2,")
    assert _answer(few) == f"{fastest} Choosing among 2 arms takes 8 prompts; these are 6. Raise --limit."


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ([_other(2, True), _other(6, True)], "Every other K is slower. Largest loss: "),
        (
            [_other(2, True), _other(3, True)],
            "Every other K is slower. K=4 is the largest that was measured;",
        ),
        ([_other(3, False), _other(5, False), _other(6, True)], "K=3 to 5 cannot be told apart."),
        ([_other(2, False), _other(3, True)], "K=2 and 4 cannot be told apart."),
        ([_other(2, False), _other(3, True), _other(6, False)], "K=2, 4 and 6 cannot be told apart."),
        ([_other(2, False, drafter="lookup")], "Cannot be told apart from it: SpS (K=2, lookup)."),
        (
            [_other(k, False, drafter="lookup") for k in range(5)],
            "5 of 5 other arms cannot be told apart from it.",
        ),
    ],
)
def test_arms_as_good_as_the_fastest(others: list[dict[str, Any]], text: str, make_verdict: Make) -> None:
    found = make_verdict(others=others, candidates=1 + len(others))
    assert why.details(found).startswith(text)  # type: ignore[arg-type]


def test_what_choosing_gave_and_what_the_slowest_gain(make_verdict: Make) -> None:
    elsewhere = {"ratio": 1.5, "low": 1.4, "high": 1.6, "prompts": 50}
    late = {"chosen": {"p90": 1, "p99": 3}, "ars": {"p90": 2, "p99": 3}}
    text = why.details(make_verdict(elsewhere=elsewhere, tail_s=late))  # type: ignore[arg-type]
    assert text == (
        "Chosen on one half of the prompts and measured on the other, both ways: 1.50x [1.40, 1.60]. Largest "
        "loss: drafting. The slowest sequences gain nothing."
    )
    by_ars = {"ratio": 1.0, "low": None, "high": None, "prompts": 50}
    assert "ArS was the fastest." in why.details(make_verdict(elsewhere=by_ars))  # type: ignore[arg-type]


def test_samplings_and_batch_sizes_are_named_where_there_are_several(make_verdict: Make) -> None:
    entries: Any = {"rows": [], "verdict": [make_verdict(), make_verdict(sampling="greedy", batch=4)]}
    assert [text.partition(":")[0] for text, _ in why.verdicts(entries)] == [
        "SpS (K=4), nucleus, B=1 pays",
        "SpS (K=4, B=4), greedy, B=4 pays",
    ]
