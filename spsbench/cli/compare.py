"""``spsbench compare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base.errors import GateFailed, SpsbenchError, UsageError
from spsbench.cli.console import present, say
from spsbench.cli.messages import FOREIGN_IDS, SlowdownPossible
from spsbench.cli.options import Common, asks, option
from spsbench.cli.values import share

if TYPE_CHECKING:
    import pandas as pd

    from spsbench.models.causal_lm import CausalLM
    from spsbench.models.pair import Pair
    from spsbench.stats.comparison import RunComparison, Side
    from spsbench.store.summary_types import Divergence


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Common):
    """The options of ``compare``."""

    a: Path = option("A", "Run directory of the reference.", names="runs")
    b: Path = option("B", "Run directory that is compared with it.", names="runs")
    arm: list[str] | None = option(
        "--arm A=B...",
        "Compare this arm of A with that arm of B; may be repeated. Default: arms of one name, and "
        "where each run has one SpS arm these two.",
    )
    gate: str | None = option(
        "--gate SHARE",
        "Exit 4 if an arm of B is slower than in A by more than this, e.g. 2%, by the lower end of "
        "the 95% interval.",
    )
    force: bool = option("--force", "Compare even runs of different tasks or models.")


@asks(CompareOptions)
def compare(asked: CompareOptions) -> None:
    """Compare two runs, paired by prompt: times, tokens, metrics.

    Example: spsbench compare results/A results/B --gate 2%
    """
    from spsbench.report.messages.runs import PromptsUnfinished
    from spsbench.stats.comparison import compare as compare_sides
    from spsbench.stats.comparison import slower, undecided

    allowed = None if asked.gate is None else share(asked.gate, "--gate", zero=True)
    compared = compare_sides(_side(asked.a), _side(asked.b), _named_arm_pairs(asked.arm or ()))
    _require_comparable(compared, gated=allowed is not None, force=asked.force)
    ask_again(compared, asked.a, asked.b)
    from spsbench.report.results import compared_screen

    present(lambda: compared, lambda: compared_screen(compared), json=asked.json, quiet=asked.quiet)
    if allowed is None:
        return
    if lost := [str(PromptsUnfinished(arm)) for arm in compared["unfinished"]]:
        raise GateFailed(f"times of B do not stand for its prompts: {'; '.join(lost)}.", flag="--gate")
    if failed := slower(compared, allowed):
        raise GateFailed(
            f"B is slower than A by more than {asked.gate}: {'; '.join(map(str, failed))}.", flag="--gate"
        )
    if open_arms := undecided(compared, allowed):
        say(SlowdownPossible(str(asked.gate), tuple(open_arms)), quiet=asked.quiet)


def _named_arm_pairs(arms: Sequence[str]) -> dict[str, str]:
    arm_of = {}
    for text in arms:
        ours, equals, theirs = text.partition("=")
        if not (ours and equals and theirs):
            remedy = "Name an arm of each run, e.g. --arm sps-k2-nucleus=sps-k4-nucleus."
            raise UsageError(f"{text} is not valid.", flag="--arm", remedy=remedy)
        arm_of[ours] = theirs
    return arm_of


def ask_again(compared: RunComparison, a: Path, b: Path) -> None:
    """Add to each arm that parted what was written there and the ``gap`` of the two largest logits.

    The model is A's, in A's dtype, by one forward without a cache. Where it cannot be loaded, ``gap`` is
    null and ``gap_unknown`` says why: a comparison of records needs no model.
    """
    from spsbench.store import RunStore, read_frames

    parted = [
        (arm, place)
        for arm in compared["arms"]
        if arm["tokens"] is not None and (place := arm["tokens"]["first_divergence"]) is not None
    ]
    if not parted:
        return

    samples = [read_frames(directory).samples for directory in (a, b)]
    with RunStore.open(a) as store:
        prompts = {prompt.example_id: prompt.ids for prompt in store.prompts()}
    pair = _loaded(a)
    for arm, place in parted:
        a_tokens, b_tokens = (_tokens(side, arm["arm"], place) for side in samples)
        at = place["position"]
        # None where the output had ended
        place["a_token"], place["b_token"] = (
            each[at] if at < len(each) else None for each in (a_tokens, b_tokens)
        )
        if isinstance(pair, str):
            place["gap"], place["gap_unknown"] = None, pair
            continue
        model = pair.draft if arm["method"] == "draft" else pair.target
        before = [*_prompt_ids(samples[0], arm["arm"], place, prompts), *a_tokens[:at]]
        here = [token for token in (place["a_token"], place["b_token"]) if token is not None]
        if not all(0 <= token < model.vocab_size for token in (*before, *here)):
            place["gap"], place["gap_unknown"] = None, FOREIGN_IDS
            continue
        place["gap"] = _logit_gap(model, before)
        place["dtype"] = model.weights
        place["a_text"], place["b_text"] = _text(pair, place["a_token"]), _text(pair, place["b_token"])


def _loaded(directory: Path) -> Pair | str:
    """Load the run's pair on the CPU; or return why it cannot be loaded."""
    import torch

    from spsbench.config import resolve
    from spsbench.config.models import ONNXRUNTIME, TORCH, Precision
    from spsbench.models.pair import find_pair, load_pair, pair_backend
    from spsbench.store.schema import read_run

    try:
        config = resolve({}, directory / "config.yaml")
        dtypes = config.model_dtype, config.draft_model_dtype
        source = find_pair(config.pair)
        cpu = torch.device("cpu")
        floats = all(Precision(dtype).quantise is None for dtype in dtypes)
        # Quantised weights are those of the run's own backend, wherever that computed.
        by_torch = floats or (read_run(directory).get("identity") or {}).get("quantiser")
        pair_backend(backend := TORCH if by_torch else ONNXRUNTIME, source, dtypes, cpu)
        return load_pair(source, dtypes, cpu, backend)
    except SpsbenchError as problem:
        return problem.message.rstrip(".")


def _logit_gap(model: CausalLM, before: list[int]) -> float:
    """Between the two largest after a text."""
    import torch

    with torch.inference_mode():
        logits = model.score_uncached(torch.tensor(before, device=model.device), last=1)[0].float()
    first, second = logits.topk(2).values.tolist()
    return float(first - second)


def _text(pair: Pair, token: int | None) -> str | None:
    return None if token is None else pair.tokenizer.decode([token])


def _tokens(samples: pd.DataFrame, arm: str, place: Divergence) -> list[int]:
    return [int(token) for token in _row(samples, arm, place)["token_ids"]]


def _prompt_ids(
    samples: pd.DataFrame, arm: str, place: Divergence, prompts: Mapping[str, Sequence[int]]
) -> Sequence[int]:
    """A later turn has its own prompt, which both runs share if compared."""
    turn_ids = _row(samples, arm, place).get("prompt_ids")
    return prompts[place["example_id"]] if turn_ids is None else [int(token) for token in turn_ids]


def _row(samples: pd.DataFrame, arm: str, place: Divergence) -> pd.Series[Any]:
    matching = samples[
        (samples["arm"] == arm)
        & (samples["example_id"] == place["example_id"])
        & (samples["sample_index"] == place["sample_index"])
    ]
    return matching.iloc[-1]


def _side(directory: Path) -> Side:
    from spsbench.stats.comparison import Side
    from spsbench.store import RunStore, read_frames

    with RunStore.open(directory) as store:
        prompts = {prompt.example_id: prompt.text for prompt in store.prompts()}
        frames = read_frames(directory)
        return Side(str(directory), store.run_info(), prompts, frames.samples, frames.loops)


def _require_comparable(compared: RunComparison, *, gated: bool, force: bool) -> None:
    if not compared["arms"] and not (gated and compared["unfinished"]):
        reasons = compared["refusals"] or ["no sequence was finished in both runs"]
        raise UsageError(f"these runs have nothing to compare: {'; '.join(reasons)}.", flag="B")
    if force:
        return
    if compared["refusals"]:
        why = f"these runs answer different questions: {'; '.join(compared['refusals'])}."
        raise UsageError(why, flag="B", remedy="Add --force to compare them anyway.")
    if gated and compared["machine"]:
        why = f"this gate would judge the machine: {'; '.join(compared['machine'])}."
        raise UsageError(why, flag="--gate", remedy="Run both on one quiet machine, or give --force.")
