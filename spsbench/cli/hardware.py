"""``spsbench advise --hardware``: PREDICTED speedups on an accelerator that is not here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.cli import values
from spsbench.cli.console import out, present
from spsbench.config.together import refuse_together
from spsbench.errors import UnavailableError, UsageError
from spsbench.plugins import unknown
from spsbench.records import Interval

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spsbench.whatif.hardware.roofline import Accelerator, Models

_ACCEPTANCE = "Give --curve FILE, which `spsbench replay --curve --out DIR` writes, or --alpha A."


def show(params: Mapping[str, Any]) -> None:
    """Print the prediction; no model is loaded."""
    from spsbench.cli.bench import lengths, sizes
    from spsbench.whatif.hardware.decoder import Decoder, read_decoder
    from spsbench.whatif.hardware.roofline import accelerators

    refuse_together("advise", params)
    for name, other in (("times", "hardware"), ("alpha", "curve")):
        if params[name] is not None and params[other] is not None:
            why = f"{params[name]} is given together with --{other}."
            raise UsageError(why, flag=f"--{name}", remedy="Leave one of the two out.")
    if params["format"] not in (None, "vllm"):
        raise UsageError("only vllm takes K by batch size.", flag="--format", remedy="Give vllm.")
    if params["dtype"] not in (None, "auto", "bfloat16", "float16"):
        raise UsageError(f"{params['dtype']} is not modelled.", flag="--dtype", remedy="Give bfloat16.")
    asked, contexts = sizes(params["batch"]) or (1, 8, 64), lengths(params["context"], 1024)
    if params["hardware"] not in accelerators():
        raise unknown(params["hardware"], accelerators(), "--hardware")
    machine, models = accelerators()[params["hardware"]], list[Decoder]()
    for flag, name in (("--target-config", "target_config"), ("--draft-config", "draft_config")):
        if params[name] is None:
            raise UsageError("it is missing.", flag=flag, remedy="Give a config.json or its folder.")
        models.append(read_decoder(params[name], flag))
    tokens = _tokens(params)
    tables = [_table(machine, (models[0], models[1]), tokens, asked, context) for context in contexts]
    facts = {
        "predicted": True,
        "hardware": machine.model_dump(),
        "parameters": {"target": models[0].parameters, "draft": models[1].parameters},
        "tokens_per_loop": {str(k): asdict(each) for k, each in tokens.items()},
        "tables": tables,
    }
    if params["format"]:
        facts["vllm"] = _vllm(machine, tables[0], str(params["draft_config"]))
        if not params["json"]:
            out(quiet=params["quiet"]).print(facts["vllm"], soft_wrap=True, markup=False)
            return
    present(lambda: facts, lambda: _screen(machine, tables), json=params["json"], quiet=params["quiet"])


def _tokens(params: Mapping[str, Any]) -> dict[int, Interval]:
    """Tokens per loop by K, of a curve or of one alpha at every place."""
    ks = values.lookaheads(params["k"] or "1..8")
    if params["alpha"] is not None:
        alpha = values.between(params["alpha"], "--alpha", 0, 1, 0.8)
        return {k: Interval(sum(alpha**place for place in range(k + 1)), None, None) for k in ks}
    if params["curve"] is None:
        raise UsageError("no prompts are read, so acceptance is unknown.", flag="--curve", remedy=_ACCEPTANCE)
    own = _curve(params["curve"], params["drafter"])
    missing = [str(k) for k in ks if k not in own]
    if len(missing) == len(ks) or (missing and params["k"]):
        raise UsageError(f"{params['curve']} has no K = {', '.join(missing)}.", flag="--k")
    return {k: own[k] for k in ks if k in own}


def _curve(path: Path, drafter: str | None) -> dict[int, Interval]:
    """The drafter's curve over all texts: ``model``, or the only one, where none is named."""
    from spsbench.config.files import read_yaml
    from spsbench.store.foreign import documents

    values.readable(path, "--curve", _ACCEPTANCE)
    curves: dict[str, dict[int, Interval]] = {}
    try:
        if path.suffix == ".json":
            for one in next(row for _, row in documents(path, "--curve"))["curves"]:
                points = {int(point["k"]): Interval(**point["acceptance_length"]) for point in one["points"]}
                curves |= {} if one["category"] else {one["name"]: points}
        else:
            for name, means in read_yaml(path, "--curve")["acceptance_length"].items():
                curves[name] = {int(k): Interval(float(mean), None, None) for k, mean in means.items()}
        name = drafter or ("model" if "model" in curves else "".join(curves))
        if curves and name not in curves:
            raise unknown(drafter or "one of several", curves, "--drafter")
        if wrong := [k for k, each in curves[name].items() if not 1 <= each.estimate <= k + 1]:
            raise ValueError(f"K={wrong[0]} without 1 to K+1 tokens")
    except (StopIteration, KeyError, TypeError, ValueError, AttributeError) as problem:
        why = f"{path} is not a curve: {problem!r}."
        raise UnavailableError(why, flag="--curve", remedy=_ACCEPTANCE) from problem
    return curves[name]


def _table(
    machine: Accelerator, models: Models, tokens: Mapping[int, Interval], asked: Sequence[int], context: int
) -> dict[str, Any]:
    """All that is predicted at one length of the context, by K and batch size."""
    import numpy as np

    from spsbench.config.models import MAX_BATCH
    from spsbench.whatif.hardware.roofline import Band, fitting, speedups

    most = min(fitting(machine, models, context), MAX_BATCH)
    if most < 1:
        why = f"{machine.title} does not hold both models and {context:,} tokens."
        raise UsageError(
            why, flag="--hardware", remedy="One device is modelled: choose one with more memory."
        )
    batch = np.arange(1.0, most + 1)
    bands = speedups(machine, models, tokens, batch, context)
    ends = ([getattr(band, end) for band in bands.values()] for end in ("estimate", "low", "high"))
    every: dict[int | str, Band] = {**bands, "best": Band(*(np.max(end, axis=0) for end in ends))}
    top = np.argmax([np.ones(most), *(band.estimate for band in bands.values())], axis=0)
    runs = [[*own] for _, own in groupby(range(most), lambda place: top[place])]
    return {
        "context": context,
        "sequences": most,
        "predicted_speedup": {
            str(k): {
                size: [float(each[size - 1]) for each in astuple(band)] for size in asked if size <= most
            }
            for k, band in every.items()
        },
        "slower_than_ars_from": {str(k): band.slower_from(batch) for k, band in every.items()},
        "k_by_batch": [[run[0] + 1, run[-1] + 1, (0, *bands)[top[run[0]]]] for run in runs],
    }


def _vllm(machine: Accelerator, table: Mapping[str, Any], draft: str) -> str:
    by_batch = table["k_by_batch"]
    config = {"method": "draft_model", "model": draft, "num_speculative_tokens": max(k for *_, k in by_batch)}
    if not config["num_speculative_tokens"]:
        return f"# vllm: no speculation; none is PREDICTED to be faster on {machine.title}."
    config["num_speculative_tokens_per_batch_size"] = by_batch
    told = f"# K by batch size PREDICTED for {machine.title}, context {table['context']:,}: not measured."
    return f"{told}\n--speculative-config '{json.dumps(config)}'"


def _screen(machine: Accelerator, tables: Sequence[Mapping[str, Any]]) -> RenderableType:
    from rich.console import Group

    from spsbench.report.tables import Table, left, right
    from spsbench.report.wording import interval

    parts: list[RenderableType] = [f"PREDICTED, not measured: {machine.title}, 16-bit weights."]
    for table in tables:
        most = table["sequences"]
        ends = {
            k: [each or f">{most}" for each in own.values()]
            for k, own in table["slower_than_ars_from"].items()
        }
        slower = {
            k: f"{own[0]} [{own[1]}, {own[2]}]" if len({*own}) > 1 else own[0] for k, own in ends.items()
        }
        sizes = table["predicted_speedup"]["best"]
        rows = [
            [k, *(interval(Interval(*each)) for each in own.values()), slower[k]]
            for k, own in table["predicted_speedup"].items()
        ]
        columns = [left("K"), *(right(f"batch {size}") for size in sizes), right("ArS from")]
        told = f"Context {table['context']:,}, up to {most:,} sequences: SpS is slower than ArS from batch"
        parts += ["", f"{told} {slower['best']} at the best K.", "", Table(columns, rows).as_rich()]
    lent = ", ".join(
        f"{name} of {figure.borrowed}" for name, figure in machine if getattr(figure, "borrowed", "")
    )
    if lent:
        parts += ["", f"Not measured on it, borrowed with a wider band: {lent}."]
    parts += ["", "[]: all ends of the published figures, not 95%; their sources are in --json."]
    return Group(*parts)
