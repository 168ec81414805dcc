"""Which engine a run has that names none: graphs on CUDA where all of its arms can be captured."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from support.commandline import BRIEF
from support.device import emulated

from spsbench.base.other_layers import REFERENCE
from spsbench.config import RunConfig, resolve
from spsbench.models import pair
from spsbench.runner import plan
from spsbench.runner.planning import Plan
from spsbench.stats.summary import _of_the_run, engine_of

CUDA = {"task": "xsum", "data": str(BRIEF[1]), "limit": 1, "max_new_tokens": 8, "device": "cuda"}


def planned(*, choose: bool = True, **settings: Any) -> Plan:
    with emulated():
        return plan(resolve(CUDA | settings), choose_engine=choose)


def names(ready: Plan) -> set[str]:
    return {arm.engine for arm in ready.arms}


def test_graphs_where_every_arm_can_be_captured() -> None:
    ready = planned(k="0,2,4", batch="1,2", samples=4, arms="ars,sps,draft", sampling="nucleus,greedy")
    assert names(ready) == {"graphed"}
    assert ready.config.engines == ("graphed",)
    assert {arm["engine"] for arm in ready.identity()["arms"]} == {"graphed"}
    assert (
        ready.arms
        == planned(
            k="0,2,4",
            batch="1,2",
            samples=4,
            arms="ars,sps,draft",
            sampling="nucleus,greedy",
            engine="graphed",
        ).arms
    )
    assert engine_of(ready.info()) == "graphed (CUDA graphs)"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"drafter": "model,lookup"}, "the drafter lookup has no graphs"),
        ({"rule": "block"}, "the rule block has no graphs"),
        ({"k": "adaptive"}, "the policy stop-below has no graphs"),
        ({"tree": "2,1", "drafter": "model"}, "the drafter model:tree=2-1 has no graphs"),
        ({"sampling": "beam"}, "a search with beams has no graphs"),
        ({"process": ["min_p=0.1"]}, "min-p 0.1 (transformers) has no graphs"),
        ({"pair": "mini-t5", "task": "wmt-mini", "data": "mini"}, "the target is an encoder-decoder"),
    ],
)
def test_the_eager_engine_where_one_cannot_and_why(settings: dict[str, Any], reason: str) -> None:
    ready = planned(**settings)
    assert names(ready) == {"eager"}
    assert engine_of(ready.info()) == f"eager: {reason}"


def test_a_window_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "attention_window", lambda config: 32)
    assert engine_of(planned().info()) == "eager: the target has sliding or chunked attention"


def test_what_is_named_is_run_and_a_run_that_is_continued_keeps_what_it_has() -> None:
    for named in ("eager", "graphed", "eager,graphed"):
        ready = planned(engine=named)
        assert names(ready) == set(named.split(","))
        assert "usual_engine" not in ready.info()
    begun = planned(rule="block").config.model_dump(mode="json") | {"rules": ["modified-rejection"]}
    with emulated():
        again = plan(RunConfig.model_validate(begun), choose_engine=True)
    assert names(again) == {"eager"}
    assert names(planned(choose=False)) == {"eager"}
    on_cpu = plan(resolve(CUDA | {"device": "cpu"}), choose_engine=True)
    assert names(on_cpu) == {"eager"}
    assert "usual_engine" not in on_cpu.info()


def test_settings_for_other_processes_leave_the_choice_to_them() -> None:
    assert "engines" not in yaml.safe_load(resolve(CUDA).to_yaml())
    assert yaml.safe_load(resolve(CUDA | {"engine": "eager"}).to_yaml())["engines"] == ["eager"]


def test_a_capture_that_fails_is_the_reason() -> None:
    info = planned(k="2").info()
    arms = [arm["arm"] for arm in info["arms"]]
    every = dict.fromkeys(arms, "its attention is eager, not sdpa")
    assert engine_of({**info, "engine_fallbacks": every}) == "eager: its attention is eager, not sdpa"
    one = {arms[0]: "its attention is eager, not sdpa"}
    assert engine_of({**info, "engine_fallbacks": one}) == "graphed (CUDA graphs)"
    assert engine_of({"arms": info["arms"], "engine_fallbacks": every}) is None  # graphs were asked for


def test_what_computed_layers_other_than_attention_is_said() -> None:
    kernels = {"mamba-ssm": REFERENCE, "causal-conv1d": "causal-conv1d 1.5"}
    info = {"arms": [], "models": {"target": {"kernels": kernels, "planes_left_out": "no room"}, "draft": {}}}
    first, second = _of_the_run(info)
    assert first.endswith("pip install mamba-ssm.")
    assert second == "The target reads accepted tokens again after a rejection (replay): no room."
