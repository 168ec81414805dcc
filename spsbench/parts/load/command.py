"""``spsbench run --engine openai:URL --concurrency LIST``: servers under load."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base import IncompleteError, UnavailableError, UsageError
from spsbench.cli import concurrencies, hint, present, say

if TYPE_CHECKING:
    from spsbench.base import Ask
    from spsbench.cli import RunOptions
    from spsbench.config import RunConfig
    from spsbench.runner import Plan


def measure_load(options: RunOptions) -> None:
    """Measure servers under load, and write ``load.json`` and ``load.md``."""
    from spsbench.parts.load.measure import server_names

    in_flight = concurrencies(options.concurrency or "")
    names = server_names(options.engine or "")
    config = _config_of_prompts(options)
    quiet = options.quiet
    from rich.console import Group

    from spsbench.base import describe_environment, write_json, write_text
    from spsbench.parts.load.measure import measure
    from spsbench.parts.load.summary import conclusions, page, summarised, table, waves_of
    from spsbench.runner import plan, require_decoder

    ready = plan(config, loads=False)
    hint(ready.recommendation, quiet=quiet)
    require_decoder(ready.source, "a server")
    asks, seed = _asks_of_prompts(ready), ready.config.seed
    with _empty_directory(options.out, ready) as directory:
        loaded = measure(
            names, asks, ready.samples, in_flight, seed, _RunTexts(ready), lambda text: say(text, quiet=quiet)
        )
    about = {
        "task": ready.label(),
        "prompts": len(ready.prompts),
        "max_new_tokens": ready.max_new_tokens,
        "sampling": asdict(asks[0].sampling),
        "seed": seed,
        "environment": describe_environment(),
    }
    summary = summarised(loaded, about)
    write_json(directory / "load.json", summary | {"waves": waves_of(loaded)})
    write_text(directory / "load.md", page(loaded, f"{ready.label()}: servers under load"))
    present(
        lambda: summary,
        lambda: Group(table(loaded).as_rich(), "", *map(str, conclusions(loaded))),
        json=options.json,
        quiet=quiet,
    )
    say(f"Everything is in {directory}", quiet=quiet)
    readings = [reading for wave in loaded.waves for reading in wave.readings]
    failed = [reading for reading in readings if reading.error is not None]
    if len(failed) == len(readings):
        raise UnavailableError(f"every request failed, the last: {failed[-1].error}.", flag="--engine")
    if loaded.ended is not None:
        raise UnavailableError(f"the measurement ended early: {loaded.ended}", flag="--engine")
    if failed:
        why = f"{len(failed)} of {len(readings)} requests failed, the last: {failed[-1].error}."
        raise IncompleteError(why, remedy="load.json has them all.")


@contextmanager
def _empty_directory(out: Path | None, ready: Plan) -> Iterator[Path]:
    """Made before anything is measured; removed if nothing was."""
    from spsbench.base import results_dir, unwritable
    from spsbench.store import fresh_directory

    try:
        directory = out or fresh_directory(results_dir(), "load", ready.config.pair.name)
        directory.mkdir(parents=True, exist_ok=True)
        holds = next(directory.iterdir(), None)
    except OSError as problem:
        raise unwritable(out or results_dir(), problem, "--out") from problem
    if holds is not None:
        raise UsageError(f"{directory} is not empty.", flag="--out", remedy="Name a new directory.")
    try:
        yield directory
    except BaseException:
        with suppress(OSError):
            directory.rmdir()
        raise


def _config_of_prompts(options: RunOptions) -> RunConfig:
    """As a run would have them; no model is loaded."""
    from spsbench.cli import read_settings, require_material, require_possible
    from spsbench.engines import refuse_beams

    draft = options.draft or options.target  # only the target's tokenizer is asked
    typed = replace(options, draft=draft, engine=None, arms="ars", no_score=True, no_proof=True)
    config = read_settings(typed)
    refuse_beams(config, "load on servers")
    task, _ = require_possible(config, typed=options)
    require_material(config, task)
    return config


def _asks_of_prompts(ready: Plan) -> list[Ask]:
    from spsbench.base import Ask
    from spsbench.parts.external.engine import ids_that_end, sampling_of, stop_characters

    samplings = {arm.sampling for arm in ready.arms}
    if len(samplings) > 1:
        remedy = "Name one of them."
        raise UsageError("servers are measured under one sampling.", flag="--sampling", remedy=remedy)
    sampling = sampling_of(samplings.pop())
    tokenizer = ready.source.tokenizer
    stop = () if ready.config.fixed_length else ready.stop
    ends = [] if ready.config.fixed_length else ids_that_end(stop, tokenizer, tokenizer.size)
    characters = list(stop_characters(stop))
    return [
        Ask(list(prompt.ids), ready.max_new_tokens, ends, characters, sampling) for prompt in ready.prompts
    ]


class _RunTexts:
    """The target's tokenizer for servers of text alone, and the prompts for those that have chat alone."""

    def __init__(self, ready: Plan) -> None:
        from spsbench.tasks import MESSAGES, TOOLS

        self._tokenizer = ready.source.tokenizer
        fields = {example.example_id: example.fields for example in ready.data.examples}
        variables = dict(self._tokenizer.template_args)
        self._asked: dict[tuple[int, ...], dict[str, Any]] = {}
        for prompt in ready.prompts:
            own = fields.get(prompt.example_id, {})
            messages = own.get(MESSAGES) or [{"role": "user", "content": prompt.text}]
            self._asked[prompt.ids] = {
                "messages": [_message_as_sent(message) for message in messages],
                **({TOOLS: own[TOOLS]} if own.get(TOOLS) else {}),
                **({"chat_template_kwargs": variables} if variables else {}),
            }

    def asked(self, ids: list[int]) -> dict[str, Any]:
        return self._asked[tuple(ids)]

    def text(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids)

    def ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, special=False)


def _message_as_sent(message: dict[str, Any]) -> dict[str, Any]:
    """As OpenAI's API takes it: the arguments of calls are text there."""
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": _text_of(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _text_of(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
