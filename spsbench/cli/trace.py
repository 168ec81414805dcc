"""``spsbench trace``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from spsbench.base.errors import UsageError
from spsbench.base.records import Arm, Loop, Request, TracedToken
from spsbench.cli.console import out, print_json, say
from spsbench.cli.messages import TimesDoNotCount, TracedSpeedup
from spsbench.cli.options import Common, RunOptions, among, asks, option

if TYPE_CHECKING:
    from spsbench.config import MaterialSettings, RunConfig
    from spsbench.models.pair import Pair, PairSource
    from spsbench.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class TraceOptions(Common):
    """The options of ``trace``."""

    prompt: str = option("PROMPT", "The text to continue; - reads it from stdin.")
    pair: str | None
    target: str | None
    draft: str | None
    k: str | None = option("--k K", "Lookahead K, from 1. Default: 4.")
    sampling: str | None = option(
        "--sampling NAME", "nucleus (top-p 0.8), greedy or model, its own. Default: nucleus."
    )
    temperature: str | None
    top_p: str | None
    top_k: str | None
    max_new_tokens: str | None
    process: list[str] | None
    chat_template: str | None
    template_arg: list[str] | None
    seed: str | None
    device: str | None
    dtype: str | None
    threads: str | None
    backend: str | None


@asks(TraceOptions, needed="temperature max_new_tokens device")
def trace(options: TraceOptions) -> None:
    """Show which model proposed each token of an output, as it is generated.

    Example: spsbench trace "The capital of France" --k 4
    """
    config, task, arm = _config_task_and_arm(options)
    text = _prompt_text(options.prompt)
    import torch

    from spsbench.base.axes import RECOMMENDED
    from spsbench.base.environment import taken, taken_since
    from spsbench.config import MaterialSettings
    from spsbench.decode.clock import SystemClock
    from spsbench.engines.arms import task_and_arms
    from spsbench.engines.local import EagerEngine
    from spsbench.models.recommended import recommended
    from spsbench.report.trace import Token, TraceWriter, shown_text
    from spsbench.runner.finishing import token_texts
    from spsbench.runner.models import find_models
    from spsbench.runner.room import room_of
    from spsbench.stats.conditions import taken_too_much

    say(f"Loading {config.pair.name}", quiet=options.quiet)
    settings = MaterialSettings.of(config)
    models = find_models(settings)
    if arm.sampling_name == RECOMMENDED:
        _, (arm,) = task_and_arms(config, recommended(models.source.target))
    request = _traced_request(settings, models.source, task, arm, text)
    slots = len(request.prompt_ids) + request.max_new_tokens + arm.k
    room_of(models, [arm], slots, request.max_new_tokens)
    pair = models.load()
    short = replace(request, max_new_tokens=_WARM_UP_TOKENS)
    for draft in (None, pair.draft):  # the first forward is slow
        EagerEngine(pair.target, draft, arm.k, pair.tokenizer, pair.device, SystemClock()).generate(short)
    console = out(quiet=options.quiet or options.json)
    writer = TraceWriter(console)
    writer.legend()
    loops: list[Loop] = []
    tokens: list[Token] = []
    before, started_s = taken(), perf_counter()
    for record, traced in torch.inference_mode()(_loops_as_they_arrive)(pair, arm, request):
        written = [
            Token(
                shown_text(each.token_id, token_texts([each.token_id], pair.tokenizer)),
                each.fate,
                each.target_prob,
                each.draft_prob,
                each.u,
            )
            for each in traced
        ]
        writer.write(written)
        tokens += written
        loops.append(record)
    writer.end()
    baseline = EagerEngine(pair.target, None, 0, pair.tokenizer, pair.device, SystemClock()).generate(request)
    elapsed_s = perf_counter() - started_s
    shares = {name: lost_s / elapsed_s for name, lost_s in taken_since(before).items()}
    facts = _acceptance_and_times(arm, loops, 1e3 * baseline.decode_s / len(baseline.tokens)) | {
        "untrusted": [*map(str, taken_too_much(shares))]
    }
    if options.json:
        print_json(facts | {"prompt": text, "tokens": [asdict(token) for token in tokens]})
    for line in _closing_lines(facts):
        console.print(line, markup=False, soft_wrap=True)


_WARM_UP_TOKENS = 8


def _config_task_and_arm(options: TraceOptions) -> tuple[RunConfig, Task, Arm]:
    """``--sampling`` names samplings of that task."""
    from spsbench.cli.settings import read_settings, require_possible
    from spsbench.engines.arms import refuse_beams

    config = read_settings(among(RunOptions, options, task="xsum", arms="sps"))
    refuse_beams(config, "trace")
    if len(config.ks) != 1 or config.ks[0] < 1:
        remedy = "For example: --k 4."
        raise UsageError(f"it must be one number from 1, got {options.k}.", flag="--k", remedy=remedy)
    if config.samplings is not None and len(config.samplings) != 1:
        why = f"one sampling can be shown, got {options.sampling}."
        raise UsageError(why, flag="--sampling", remedy="Choose nucleus, greedy or model.")
    task, (arm,) = require_possible(config)
    _require_window(config, task, arm)
    return config, task, arm


def _require_window(config: RunConfig, task: Task, arm: Arm) -> None:
    """Refuse models that are not there, and an output that leaves no room for a prompt in their windows."""
    from spsbench.models.location import stated_config, stated_window

    behind = (config.max_new_tokens or task.max_new_tokens) + arm.k
    for model, flag in ((config.pair.target, "--target"), (config.pair.draft, "--draft")):
        window = stated_window(stated_config(model, flag))
        if window is not None and behind >= window:
            why = f"an output with its last draft has up to {behind} tokens, and the window {window}."
            raise UsageError(why, flag="--max-new-tokens", remedy="Give fewer.")


def _prompt_text(typed: str) -> str:
    """Read from stdin for ``-``."""
    text = sys.stdin.read() if typed == "-" else typed
    if not text.strip():
        raise UsageError("there is nothing to continue.", flag="PROMPT", remedy="Give some text.")
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes that are not UTF-8 arrive as half surrogate pairs
        raise UsageError("the text is not UTF-8.", flag="PROMPT", remedy="Convert it first.") from None
    return text


def _traced_request(
    settings: MaterialSettings, source: PairSource, task: Task, arm: Arm, text: str
) -> Request:
    from spsbench.decode.processors import bound

    tokenizer = source.tokenizer
    max_new_tokens = settings.max_new_tokens or task.max_new_tokens
    in_chat = settings.chat_template == "auto" and task.uses_template(tokenizer)
    ids = tokenizer.chat(text) if in_chat else tokenizer.encode(text, special=True)
    behind = max_new_tokens + arm.k
    window = source.window_for(behind)
    room = window - behind
    if not 0 < len(ids) <= room:
        raise UsageError(
            f"a prompt of {len(ids)} tokens and {max_new_tokens} new ones do not fit into the window "
            f"of {window}.",
            flag="PROMPT",
            remedy="Shorten it, or give a smaller --max-new-tokens.",
        )
    return Request(tuple(ids), max_new_tokens, (), bound(arm.sampling, tokenizer), settings.seed)


def _loops_as_they_arrive(pair: Pair, arm: Arm, request: Request) -> Iterator[tuple[Loop, list[TracedToken]]]:
    """With their tokens; the clock stands still while they are shown."""
    from spsbench.decode.algorithms import start
    from spsbench.decode.clock import Stopwatch, SystemClock
    from spsbench.decode.sampling import UniformStream
    from spsbench.decode.stopping import StopRule
    from spsbench.drafters.model import ModelDrafter
    from spsbench.engines.buffer import TruncatedLoop, loop_records, proposed_tokens, traced_tokens

    drafter = ModelDrafter(pair.draft, request.sampling, pair.device)
    stop = StopRule.of(request, pair.tokenizer)
    uniforms = UniformStream(request.seed, pair.device)
    loops = start(pair.target, drafter, request.prompt_ids, arm.k, request.sampling, uniforms)
    watch = Stopwatch(SystemClock())
    tokens = list[int]()
    for count, decoded in enumerate(loops(watch)):
        kept, reason = stop.cut(tokens, decoded.tokens)
        watch.lap("other")
        finished = [TruncatedLoop(decoded, kept, reason, watch.take()).along_its_path()]
        (record,) = loop_records(finished, proposed_tokens(finished), phases=False)
        yield record, traced_tokens(finished, count, len(tokens))
        tokens += decoded.tokens[:kept]
        if reason is not None:
            return
        watch.skip()


def _acceptance_and_times(arm: Arm, loops: list[Loop], ars_ms: float) -> dict[str, Any]:
    """Times in ms per token of this text."""
    accepted, drafted, tested = (
        sum(getattr(loop, name) for loop in loops) for name in ("accepted", "drafted", "tested")
    )
    emitted = sum(loop.emitted for loop in loops)
    sps_ms = 1e3 * sum(loop.loop_s for loop in loops) / emitted
    return {
        "k": arm.k,
        "emitted": emitted,
        "loops": len(loops),
        "mean_acceptance_length": 1 + accepted / len(loops),
        "alpha_beta": sum(loop.beta_sum for loop in loops) / tested if tested else None,
        "draft_acceptance_rate": accepted / drafted if drafted else None,
        "sps_ms_per_token": sps_ms,
        "ars_ms_per_token": ars_ms,
        "speedup": ars_ms / sps_ms,
    }


def _closing_lines(facts: Mapping[str, Any]) -> list[str]:
    from spsbench.report.wording import milliseconds, number

    names = ("mean_acceptance_length", "alpha_beta", "draft_acceptance_rate")
    sps, ars = (milliseconds(facts[f"{method}_ms_per_token"]) for method in ("sps", "ars"))
    return [
        "",
        "  ".join(f"{name} {number(facts[name], 3)}" for name in names),
        *([str(TimesDoNotCount(tuple(facts["untrusted"])))] if facts["untrusted"] else []),
        str(TracedSpeedup(facts["emitted"], facts["loops"], facts["k"], sps, ars, facts["speedup"])),
    ]
