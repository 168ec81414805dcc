"""Prompts and models without a run: the same that a plan of a run has."""

from __future__ import annotations

import importlib
from dataclasses import fields, replace

import pytest

from spsbench.base.errors import UsageError
from spsbench.cli.settings import read_material
from spsbench.config import resolve, resolve_material
from spsbench.runner.material import Material, find_material
from spsbench.runner.models import find_models
from spsbench.runner.planning import plan

FLAGS = {"task": "xsum", "limit": 3, "seed": 5, "max_new_tokens": 8, "device": "cpu"}


def test_it_is_what_a_plan_has() -> None:
    material, planned = find_material(resolve_material(FLAGS)), plan(resolve({**FLAGS, "arms": "ars"}))
    named = ("prompts", "data", "max_new_tokens", "chat_template", "seed", "pair", "dtypes", "backend")
    for name in (*named, "placement", "threads"):
        assert getattr(material, name) == getattr(planned, name), name
    assert (material.label(), material.stop, material.longest, material.source.identity()) == (
        planned.label(),
        planned.stop,
        planned.longest,
        planned.source.identity(),
    )
    assert {field.name for field in fields(Material)} <= {field.name for field in fields(planned)}


def test_models_are_found_without_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = resolve_material(FLAGS)
    material = find_material(settings)

    def asked(*_: object) -> None:
        raise UsageError("data were read.")

    monkeypatch.setattr(type(material.task), "load", asked)
    models = find_models(settings)
    assert models.source.identity() == material.source.identity()
    assert [getattr(models, field.name) == getattr(material, field.name) for field in fields(models)].count(
        False
    ) <= 1  # the source has an identity, no equality
    with pytest.raises(UsageError, match="data were read"):
        find_material(settings)


def test_models_are_loaded_as_the_settings_say() -> None:
    settings = resolve_material({**FLAGS, "threads": 1, "pair": "mini"})
    models = find_models(settings)
    pair = models.load()
    assert pair.info["threads"] == 1
    draft = settings.pair.target.id
    again = find_models(settings.with_draft(draft))
    assert (again.pair.target.id, again.pair.draft.id) == (draft, draft)
    beside = again.load(beside=pair)
    assert beside.target is pair.target
    assert beside.is_one
    assert not pair.is_one


def test_a_target_is_spread_as_the_settings_say() -> None:
    pytest.importorskip("accelerate")
    settings = resolve_material({**FLAGS, "device_map": "auto", "backend": "torch"})
    placement = find_models(settings).placement
    assert placement is not None
    assert placement.text == "auto"
    with pytest.raises(UsageError, match="onnxruntime computes on one CPU"):
        find_models(replace(settings, backend="onnxruntime"))


def test_options_are_read_as_a_run_reads_them() -> None:
    read = read_material(
        task="xsum", limit="3", seed="5", max_new_tokens="8", device="cpu", target=None, quiet=True
    )
    assert read == resolve_material(FLAGS)
    with pytest.raises(UsageError, match=r"--limit must be a whole number from 1 to .*, got 0"):
        read_material(limit="0", quiet=True)


def test_a_task_that_runs_programs_needs_no_sandbox_where_nothing_scores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked(unsafe: bool) -> str:
        raise UsageError("a sandbox was looked for.")

    # By its module: the room has a function of the same name.
    monkeypatch.setattr(importlib.import_module("spsbench.runner.planning"), "sandbox_level", asked)
    config = resolve({**FLAGS, "task": "humaneval", "data": "mini"})
    assert plan(config, scores=False).sandbox is None
    with pytest.raises(UsageError, match="looked for"):
        plan(config)
