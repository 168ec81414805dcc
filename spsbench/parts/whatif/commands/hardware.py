"""``spsbench advise --hardware``: PREDICTED speedups on an accelerator that is not here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base import Interval, UnavailableError, UsageError, unknown
from spsbench.cli import out, present, values
from spsbench.config import ModelRef, is_given
from spsbench.parts.whatif.messages import hardware as says
from spsbench.parts.whatif.replay.recipes import ranges_of, vllm_option

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spsbench.parts.whatif.commands.options import AdviseOptions
    from spsbench.parts.whatif.hardware.decoder import Decoder
    from spsbench.parts.whatif.hardware.roofline import Accelerator, Models

_TAKEN = "hardware target draft curve alpha batch context k drafter format dtype json quiet"
_ACCEPTANCE = "Give a file that `spsbench replay --curve --out DIR` writes, or a number, e.g. 0.8."


def show(hardware: str, wanted: AdviseOptions) -> None:
    """Print the prediction; no model is loaded."""
    from spsbench.parts.whatif.commands.bench import lengths, sizes
    from spsbench.parts.whatif.hardware.roofline import accelerators

    every = vars(wanted)
    if other := next(
        (name for name, value in every.items() if name not in _TAKEN.split() and is_given(value)), None
    ):
        why = f"{every[other]}: nothing is run or read for hardware that is not here."
        raise UsageError(why, flag=f"--{other.replace('_', '-')}", remedy="Leave it out.")
    if wanted.format not in (None, "vllm"):
        raise UsageError("only vllm takes K by batch size.", flag="--format", remedy="Give vllm.")
    if wanted.dtype not in (None, "auto", "bfloat16", "float16"):
        raise UsageError(f"{wanted.dtype} is not modelled.", flag="--dtype", remedy="Give bfloat16.")
    batches = sizes(wanted.batch) or (1, 8, 64)
    contexts = lengths(wanted.context, 1024)
    if hardware not in accelerators():
        raise unknown(hardware, accelerators(), "--hardware")
    machine = accelerators()[hardware]
    drafts = wanted.draft or []
    if len(drafts) > 1:
        why = f"{drafts[1]}: the prediction is for one draft."
        raise UsageError(why, flag="--draft", remedy="Give --draft once.")
    for model, flag in ((wanted.target, "--target"), (next(iter(drafts), None), "--draft")):
        if model is None:
            remedy = "Give a config.json, its folder or a hub id."
            raise UsageError("it is missing.", flag=flag, remedy=remedy)
    tokens = _tokens_per_loop_by_k(wanted)
    target = _decoder(str(wanted.target), "--target")
    draft = _decoder(drafts[0], "--draft")
    tables = [
        _predictions_by_k_and_batch(machine, (target, draft), tokens, batches, context)
        for context in contexts
    ]
    facts = {
        "predicted": True,
        "hardware": machine.model_dump(),
        "parameters": {"target": target.parameters, "draft": draft.parameters},
        "tokens_per_loop": {str(k): asdict(each) for k, each in tokens.items()},
        "tables": tables,
    }
    if wanted.format:
        facts["vllm"] = _vllm(machine, tables[0], drafts[0])
        if not wanted.json:
            out(quiet=wanted.quiet).print(facts["vllm"], soft_wrap=True, markup=False)
            return
    present(lambda: facts, lambda: _screen(machine, tables), json=wanted.json, quiet=wanted.quiet)


def _decoder(named: str, flag: str) -> Decoder:
    """A file's, its folder's or a hub model's."""
    from spsbench.models import configuration
    from spsbench.parts.whatif.hardware.decoder import read_decoder

    return read_decoder(configuration(named, flag), flag)


def _tokens_per_loop_by_k(wanted: AdviseOptions) -> dict[int, Interval]:
    """Of a curve, or of one alpha at every place."""
    from spsbench.stats import independent

    ks = values.lookaheads(wanted.k or "1..8")
    if wanted.alpha is None:
        raise UsageError("no prompts are read, so acceptance is unknown.", flag="--alpha", remedy=_ACCEPTANCE)
    if (path := values.path_in_place_of_number(wanted.alpha)) is None:
        alpha = values.between(wanted.alpha, "--alpha", 0, 1, 0.8)
        return {k: Interval(independent(alpha)(k), None, None) for k in ks}
    curve = _curve_of_drafter(path, wanted.drafter)
    missing = [str(k) for k in ks if k not in curve]
    if len(missing) == len(ks) or (missing and wanted.k):
        raise UsageError(f"{wanted.alpha} has no K = {', '.join(missing)}.", flag="--k")
    return {k: curve[k] for k in ks if k in curve}


def _curve_of_drafter(path: Path, drafter: str | None) -> dict[int, Interval]:
    """Over all texts: of ``model``, or of the only one, where none is named."""
    from spsbench.config import read_yaml
    from spsbench.store import documents

    values.readable(path, "--alpha", _ACCEPTANCE)
    curves: dict[str, dict[int, Interval]] = {}
    try:
        if path.suffix == ".json":
            for one in next(row for _, row in documents(path, "--alpha"))["curves"]:
                points = {int(point["k"]): Interval(**point["acceptance_length"]) for point in one["points"]}
                curves |= {} if one["category"] else {one["name"]: points}
        else:
            for name, means in read_yaml(path, "--alpha")["acceptance_length"].items():
                curves[name] = {int(k): Interval(float(mean), None, None) for k, mean in means.items()}
        name = drafter or ("model" if "model" in curves else "".join(curves))
        if curves and name not in curves:
            raise unknown(drafter or "one of several", curves, "--drafter")
        if wrong := [k for k, each in curves[name].items() if not 1 <= each.estimate <= k + 1]:
            raise ValueError(f"K={wrong[0]} without 1 to K+1 tokens")
    except (StopIteration, KeyError, TypeError, ValueError, AttributeError) as problem:
        why = f"{path} is not a curve: {problem!r}."
        raise UnavailableError(why, flag="--alpha", remedy=_ACCEPTANCE) from problem
    return curves[name]


def _predictions_by_k_and_batch(
    machine: Accelerator, models: Models, tokens: Mapping[int, Interval], batches: Sequence[int], context: int
) -> dict[str, Any]:
    import numpy as np

    from spsbench.config import MAX_BATCH
    from spsbench.parts.whatif.hardware.roofline import Band, fitting, speedups

    most = min(fitting(machine, models, context), MAX_BATCH)
    if most < 1:
        why = f"{machine.title} does not hold both models and {context:,} tokens."
        raise UsageError(why, flag="--hardware", remedy="Choose one with more memory.")
    batch = np.arange(1.0, most + 1)
    bands = speedups(machine, models, tokens, batch, context)
    gains = [np.ones(most), *(band.estimate for band in bands.values())]
    chosen = [(0, *bands)[place] for place in np.argmax(gains, axis=0)]
    ends = (np.max(each, axis=0) for each in zip(*map(astuple, bands.values()), strict=True))
    every = {str(k): band for k, band in bands.items()} | {"best": Band(*ends)}
    shown = [size for size in batches if size <= most]
    return {
        "context": context,
        "sequences": most,
        "too_large": [size for size in batches if size > most],
        "predicted_speedup": {
            k: {size: [float(end[size - 1]) for end in astuple(band)] for size in shown}
            for k, band in every.items()
        },
        "slower_than_ars_from": {k: band.slower_from(batch) for k, band in every.items()},
        "k_by_batch": ranges_of(dict(enumerate(chosen, start=1))),
    }


def _vllm(machine: Accelerator, table: Mapping[str, Any], draft: str) -> str:
    by_batch, comments = table["k_by_batch"], []
    name = ModelRef(id=draft).id  # vLLM takes no @revision
    if name.endswith(".json"):  # of a model that is somewhere else
        name = "DRAFT_MODEL"
        comments = [str(says.ModelElsewhere(name, draft))]
    config = {"method": "draft_model", "model": name, "num_speculative_tokens": max(k for *_, k in by_batch)}
    if not config["num_speculative_tokens"]:
        return str(says.NothingFaster(machine.title))
    scope = says.KByBatchPredicted(machine.title, table["context"], table["sequences"])
    comments = [str(scope), *comments]
    return "\n".join([*comments, vllm_option(config, by_batch)])


def _screen(machine: Accelerator, tables: Sequence[Mapping[str, Any]]) -> RenderableType:
    from rich.console import Group

    from spsbench.report import Table, interval, left, right

    parts: list[RenderableType] = [str(says.PredictedFor(machine.title))]
    for table in tables:
        most = table["sequences"]
        slower = ""
        rows = []
        for k, by_batch in table["predicted_speedup"].items():  # the best K is the last row
            first, low, high = (each or f">{most}" for each in table["slower_than_ars_from"][k].values())
            slower = f"{first}" if first == low == high else f"{first} [{low}, {high}]"
            rows.append([k, *(interval(Interval(*each)) for each in by_batch.values()), slower])
        columns = [left("K"), *(right(f"batch {size}") for size in by_batch), right("ArS from")]
        parts += [
            "",
            str(says.SlowerFrom(table["context"], most, slower)),
            "",
            Table(columns, rows).as_rich(),
        ]
        if table["too_large"]:
            parts.append(str(says.BatchesNotShown(table["too_large"])))
    figures = ("bandwidth", machine.bandwidth), ("compute", machine.compute), ("floor", machine.floor)
    if lenders := {name: figure.borrowed for name, figure in figures if figure.borrowed}:
        parts += ["", str(says.FiguresBorrowed(lenders))]
    return Group(*parts, "", says.ALL_ENDS)
