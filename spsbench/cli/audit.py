"""``spsbench audit``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.cli import options, values
from spsbench.cli.console import present, say
from spsbench.cli.options import takes
from spsbench.config.together import refuse_together
from spsbench.errors import GateFailed, UsageError

if TYPE_CHECKING:
    from spsbench.models.causal_lm import CausalLM
    from spsbench.models.source import ModelSource
    from spsbench.verify.audit import Audit


DRAWN = "With --engine"


OF_TEXTS = {
    "--temperature T": (
        "Of texts that do not say theirs: 1. With --engine a list: 0.7, 1, and 1 with top-p 0.9."
    ),
    "--top-p P": "The same. Default: 1.",
    "--top-k N": "The same. Default: all tokens.",
    "--greedy": "Texts are greedy: each token the most probable one.",
}
"""How the texts of a file were drawn."""


@takes(
    "samples engine pair target draft revision draft_revision temperature top_p top_k greedy "
    "samples_dtype k arms bound texts budget task limit max_new_tokens threads out repro seed device "
    "dtype",
    {
        options.FIRST: {
            "[SAMPLES]": "JSON lines with prompt_ids and completion_ids, or prompt and completion; .gz too.",
            "--engine NAME": (
                'Draw texts from an engine: a name of `spsbench list engines`, worker:"COMMAND" or '
                "openai:URL."
            ),
        },
        options.SAMPLING: {
            **OF_TEXTS,
            "--samples-dtype NAME": "Dtype of the engine that wrote SAMPLES. Default: the target's here.",
        },
        DRAWN: {
            "--k LIST": "Lookahead K: 4, 2,4 or 1..7. Default: 4.",
            "--arms LIST": "ars (without speculation), sps (with it). Default: ars,sps.",
            "--bound SHARE": "Draw until leakage above this is ruled out. Default: 2%, after all texts.",
            "--texts N": "Most texts per setting. Default: 320.",
            "--budget TIME": "Most time per setting. Default: 10min.",
            "--task TASK": "Task or prompts file. Default: xsum.",
            "--limit N": "Number of prompts. Default: 40.",
            "--max-new-tokens N": "Most new tokens of a text. Default: the task's.",
            "--threads N": "CPU threads of the engine. Default: 1.",
            "--out DIR": "Directory of texts and results. Default: a new one in results/.",
            "--repro": "After an alarm, write repro.py: one prompt that shows it, without spsbench.",
        },
        options.MACHINE: {"--dtype NAME": "auto, float32, bfloat16 or float16. Default: auto."},
    },
)
def audit(**params: Any) -> None:
    """Test whether an engine's text follows the target: a file of samples, or an engine to draw from.

    Example: spsbench audit --engine worker:"python my_engine.py" --temperature 0.8,1.5
    """
    from spsbench.cli.audit_engine import audit_named

    samples, engine = params["samples"], params["engine"]
    if (samples is None) == (engine is None):
        given = "neither is" if samples is None else "both are"
        raise UsageError(f"{given} given.", flag="SAMPLES, --engine", remedy="Give one of the two.")
    if samples is not None:
        audit_file(samples, params)
    else:
        audit_named(params)


DEFAULT_PAIR = "mini"


def audit_file(path: Path, params: Mapping[str, Any]) -> None:
    """Judge the texts of a file."""
    quiet: bool = params["quiet"]
    sampling, seed = values.sampling(params), values.seed(params["seed"])
    values.float_dtype(params["dtype"], "--dtype")
    samples_dtype = params["samples_dtype"]
    if samples_dtype is not None and samples_dtype not in values.FLOATS:
        raise UsageError(
            f"{samples_dtype} is unknown.",
            flag="--samples-dtype",
            remedy=f"Choose from {', '.join(values.FLOATS)}.",
        )
    values.require_machine({**params, "threads": None})
    values.readable(path, "SAMPLES", "Name a file of JSON lines.")
    say(f"Checking {path} and the models", quiet=quiet)
    sources, size, window = _sources(params)
    from spsbench.verify.audit import Reader

    reader = Reader(sources[0].tokenizer, size, window, sampling)
    total = sum(1 for _ in reader.read(path))
    if not total:
        raise UsageError(f"{path} is empty.", flag="SAMPLES", remedy="Name a file with completions.")
    models = _load(sources, size, params)
    from spsbench.models.memory import DTYPES
    from spsbench.verify.audit import Audit

    theirs = None if samples_dtype is None else DTYPES[samples_dtype]
    found = Audit(models[0], models[1] if len(models) > 1 else None, theirs, seed)
    say(f"Reading {total} texts", quiet=quiet)
    for number, text in enumerate(reader.read(path), start=1):
        found.read(text)
        if number * 10 // total > (number - 1) * 10 // total:
            say(f"{number}/{total}", quiet=quiet)
    _show(found, [source.name for source in sources], params)


def _show(found: Audit, names: list[str], params: Mapping[str, Any]) -> None:
    from spsbench.report.judgement import bound
    from spsbench.report.tables import Table, left
    from spsbench.stats.losslessness import ALARM, NO_EVIDENCE, leakage_bound

    facts = found.judged()
    named = {"target": names[0], "draft": names[1] if len(names) > 1 else None}
    present(
        lambda: named | facts,
        lambda: Table([left(whole=True), left()], _lines(facts)).as_rich(),
        json=params["json"],
        quiet=params["quiet"],
    )
    reasons = "; ".join(facts["reasons"])
    if facts["verdict"] == ALARM:
        raise GateFailed(f"not distributed as {names[0]} says: {reasons}.", flag="SAMPLES")
    if facts["verdict"] == NO_EVIDENCE:
        say(f"No evidence either way: {reasons}.", quiet=params["quiet"])
        return
    tail = f" ({reasons})" if reasons else ""
    limit = leakage_bound(facts)
    more = "" if limit is None else f": no sign of a leak above {bound(limit)}"
    if len(names) == 1 and not facts["greedy"]:
        more = "; no bound on a leak without --draft"
    say(f"Consistent with {names[0]}{more}{tail}.", quiet=params["quiet"])


def _lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was asked, and what it says."""
    from spsbench.report.judgement import worded
    from spsbench.stats.losslessness import leakage_bound

    kinds = ", ".join(f"{name} ({count})" for name, count in facts["samplings"].items())
    lines = [("texts", f"{facts['texts']} of {facts['prompts']} prompts, {facts['tokens']} tokens")]
    lines += [("drawn with", kinds)]
    if facts["retokenised"]:
        lines += [
            ("warning", f"{facts['retokenised']} texts came without ids: the engine's own tokens may differ")
        ]
    lines += [("informative", f"{facts['positions']} positions with more than one possible token")]
    lines += [("impossible", _impossible(facts))]
    leak, score, cells = facts["leakage"], facts["log_score"], facts["transform"]
    if leak is not None:
        interval = f"[{leak['low']:.2%}, {leak['high']:.2%}]"
        lines += [("leakage", f"{leak['estimate']:.2%} {interval}, at most {leak['bound']:.2%} (95%)")]
    if score is not None:
        lines += [
            ("log-score", f"z {score['z']:+.2f}, p {score['p_value']:.2g}; above 0: sharper than the target")
        ]
    if cells is not None:
        lines += [("transform", f"p {cells['p_value']:.2g}")]
    return [
        *lines,
        ("e-value", f"10^{facts['log10_e_value']:.1f}; alarm at 10^3"),
        ("verdict", worded(facts["verdict"], leakage_bound(facts))),
    ]


def _impossible(facts: Mapping[str, Any]) -> str:
    text = f"{facts['impossible']} tokens of probability 0; {facts['edge']} only by rounding"
    first = facts["first_impossible"]
    if first is None:
        return text
    return (
        f"{text}; the first: line {first['line']}, token {first['index']} of the completion "
        f"(id {first['token_id']}), {first['gap']:.3g} below the best logit"
    )


def _sources(params: Mapping[str, Any]) -> tuple[list[ModelSource], int, int]:
    """Target and, if there is one, draft; the logits they share and the shorter window."""
    from spsbench.config import ModelRef, PairConfig, load_pair
    from spsbench.config.files import pair_name
    from spsbench.models.causal_lm import context_window, text_config
    from spsbench.models.hf_errors import quiet_libraries
    from spsbench.models.pair import find_pair
    from spsbench.models.source import find

    if params["target"] is None:
        if params["draft"] is not None:
            raise UsageError("the target is not named.", flag="--target", remedy="Give both models.")
        pair = load_pair(params["pair"] or DEFAULT_PAIR)
    else:
        refuse_together("audit", {**params, "pair_of_samples": params["pair"]})
        target = ModelRef(id=params["target"], revision=params["revision"])
        if params["draft"] is None:
            quiet_libraries()
            source = find(target.id, target.revision, "--target")
            return [source], text_config(source.config).vocab_size, context_window(source.config)
        draft = ModelRef(id=params["draft"], revision=params["draft_revision"])
        pair = PairConfig(name=pair_name(target, draft), target=target, draft=draft)
    both = find_pair(pair)
    return [both.target, both.draft], both.vocab_size, both.context_window


def _load(sources: list[ModelSource], size: int, params: Mapping[str, Any]) -> list[CausalLM]:
    from spsbench.config.models import TORCH
    from spsbench.models.loading import load
    from spsbench.models.memory import require_memory
    from spsbench.models.pair import resolve_device

    device, dtype = resolve_device(params["device"] or "auto"), params["dtype"] or _own_dtype(params)
    require_memory(sources[0], sources[1] if len(sources) > 1 else None, (dtype, dtype), device, TORCH)
    models: list[CausalLM] = []
    # The reference forward: an auditor that shares code with the engine would share its faults.
    for source, flag in zip(sources, ("--target", "--draft"), strict=False):
        under = models[0] if models else None
        models.append(load(source, dtype, device, size, flag, TORCH, target=under))
    return models


def _own_dtype(params: Mapping[str, Any]) -> str:
    """A named pair's own precision, or each checkpoint's."""
    from spsbench.config import load_pair

    return load_pair(params["pair"] or DEFAULT_PAIR).dtype if params["target"] is None else "auto"
