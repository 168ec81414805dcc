"""The proof of a run: read outputs again, and draw some at temperature 1.

Re-reading is an uncached forward of both models over prompt and output, between two sequences.

Under a narrow nucleus most positions leave no choice, and few sequences bound leakage badly. So after
the measured sequences each SpS arm writes some at temperature 1 without truncation. They are in no
table and no journal, and nobody times them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spsbench.axes import EAGER, MODEL
from spsbench.decode.processors import bound
from spsbench.drafters.registry import PROCESSED, drafter_kind, rule_kind
from spsbench.engines import rescore
from spsbench.engines.arms import GRAPHED
from spsbench.engines.rescore import Reading, token_evidence
from spsbench.law.evidence import DECIDED
from spsbench.models.causal_lm import CausalLM
from spsbench.models.pair import Pair
from spsbench.records import (
    RESCORED,
    RESCORED_BEAM_LOG_PROB,
    UNREAD,
    Arm,
    Generation,
    Prompt,
    Request,
    SamplingParams,
)
from spsbench.runner.engines import FAILURES, Answer, EngineFactory, answers, reason_of
from spsbench.runner.plan import Plan, Watcher
from spsbench.runner.stopping import derive_seed
from spsbench.stats.losslessness import decisions_of, evidence_of, is_precise
from spsbench.store import RunStore
from spsbench.summary_types import ArmProof, Proof

PROOF_SAMPLING = SamplingParams()
"""Temperature 1, every token possible: the most that a text can reveal of its distribution."""

# Enough to bound leakage at one or two per cent with the embedded pair; never more than half as many as
# there are prompts, so that a short run stays short. A number, not a time: no clock decides what is proved.
_SEQUENCES = 40
_PROMPT_SHARE = 0.5
_LEAST_AN_ARM = 4
_MOST_TOKENS = 128


def read_again(arm: Arm, prompt: Prompt, generation: Generation, seed: int, pair: Pair) -> None:
    """Add to an output what an independent forward says of it; draft-only has the draft as its target."""
    target = pair.draft if arm.method == "draft" else pair.target
    if arm.sampling.beam is not None:
        # Of the search's best hypothesis the log-probability; nothing was sampled.
        best = rescore.teacher_force(target, None, prompt.ids, generation.tokens, PROOF_SAMPLING)
        own = best.logits.float().log_softmax(-1).gather(-1, best.tokens.unsqueeze(-1))
        added = {RESCORED_BEAM_LOG_PROB: float(own.sum())}
        generation.losslessness = (generation.losslessness or {}) | added
        return
    # A target that is its own draft is read once, unless it drafts.
    drafts = arm.method == "sps" and arm.drafter.name == MODEL
    draft = None if pair.is_one and not drafts else pair.draft
    sampling = bound(arm.sampling, pair.tokenizer)
    knows = not drafts or drafter_kind(MODEL).settled(arm.drafter)[PROCESSED]
    told_sampling = sampling if knows else replace(sampling, process=None)
    reading = rescore.teacher_force(
        target, draft, prompt.ids, generation.tokens, sampling, draft_sampling=told_sampling
    )
    judged, again = (reading, None) if drafts else _with_own_draft(arm, prompt, generation, target, reading)
    sums = rescore.rescored(judged, seed)
    if kept := generation.kept_rows:
        about = (prompt.ids, arm.k, seed)
        sums |= rescore.rows_held_against(
            "target", target, kept.target, generation, reading.logits, sampling, *about
        )
        other = reading.draft_logits if drafts else again
        if other is not None:
            model, law = (pair.draft, told_sampling) if drafts else (target, sampling)
            sums |= rescore.rows_held_against("draft", model, kept.draft, generation, other, law, *about)
        elif any(rows is not None for rows in kept.draft):
            sums[f"{DECIDED}_recorded"] = (generation.losslessness or {}).get(DECIDED, 0.0)
    generation.kept_rows = None
    generation.losslessness = (generation.losslessness or {}) | sums
    generation.token_evidence = token_evidence(reading.tokens, reading.q, reading.p, reading.draft_logits)


def _with_own_draft(
    arm: Arm, prompt: Prompt, generation: Generation, target: CausalLM, reading: Reading
) -> tuple[Reading, Tensor | None]:
    """A reading with the rows of the drafter that an output had, and its logits by an independent forward.

    Where no rows were kept, the reading as it is.
    """
    shown = rescore.recorded_rows(generation, reading.logits)
    if shown is None or arm.method != "sps":
        return reading, None
    again = None
    if is_precise(str(target.dtype).removeprefix("torch.")):  # else a head's own forwards add up its rounding
        ids = torch.tensor([*prompt.ids, *generation.tokens], device=target.device)
        loops = [(len(prompt.ids) + start, count) for start, count in rescore.spans(generation)]
        with torch.inference_mode():
            again = drafter_kind(arm.drafter.name).read_again(arm.drafter, target, ids, loops)
    return rescore.with_draft(reading, generation, shown, again), again


def proof_arms(arms: Sequence[Arm]) -> list[Arm]:
    """The SpS arms of the built-in engines under ``PROOF_SAMPLING``, each engine and K once."""
    own = [
        arm
        for arm in arms
        if arm.method == "sps"
        and arm.engine in (EAGER, GRAPHED)
        and arm.sampling.beam is None
        and rule_kind(arm.rule.name).lossless
    ]
    return list(dict.fromkeys(replace(arm, sampling_name="proof", sampling=PROOF_SAMPLING) for arm in own))


def proof_prompts(plan: Plan) -> tuple[Prompt, ...]:
    """The prompts that every arm of the proof is asked; the first ones of the run."""
    arms = len(proof_arms(plan.arms))
    if not (plan.config.proof and arms):
        return ()
    in_all = min(_SEQUENCES, math.ceil(_PROMPT_SHARE * len(plan.prompts)))
    return plan.prompts[: max(math.ceil(in_all / arms), _LEAST_AN_ARM)]


def prove(plan: Plan, store: RunStore, pair: Pair, backends: EngineFactory, watcher: Watcher) -> None:
    """``draw_proof`` into run.json under ``proof``. Should it fail, the run is none the worse for it."""
    announce_proof(plan, watcher)
    note_proof(store, proven(plan, pair, backends), watcher)


def announce_proof(plan: Plan, watcher: Watcher) -> None:
    if due := len(proof_prompts(plan)) * len(proof_arms(plan.arms)):
        watcher.proving(due)


def proven(plan: Plan, pair: Pair, backends: EngineFactory) -> Proof:
    """``draw_proof``, or its failure under ``error``."""
    try:
        return draw_proof(plan, pair, backends)
    except FAILURES as error:
        return {"error": f"{type(error).__name__}: {error}"}


def note_proof(store: RunStore, found: Proof, watcher: Watcher) -> None:
    """Put a proof, or its failure, into run.json."""
    if "error" in found:
        reason = found["error"].partition(": ")[2]
        watcher.warned(f"No sequences were drawn for the proof of losslessness: {reason}")
    store.note(proof=found)


def draw_proof(plan: Plan, pair: Pair, backends: EngineFactory) -> Proof:
    """Write sequences at temperature 1 and judge them: ``sampling``, ``arms`` (see ``_judged``) and
    ``seconds``; nothing where there is nothing to prove."""
    prompts = proof_prompts(plan)
    if not prompts:
        return {}
    arms = proof_arms(plan.arms)
    engines = backends.all(arms)
    began_s = time.perf_counter()
    judged = []
    for arm in arms:
        rows = []
        requests = [_request(plan, prompt, arm) for prompt in prompts]
        for place, answer in answers(engines[arm], requests):
            made, *failed = checked(arm, prompts[place], requests[place].seed, answer, pair)
            error = next(filter(None, failed), None)
            row = (prompts[place].example_id, error, len(made.tokens), made.finish_reason)
            rows.append((*row, made.losslessness))
        judged.append(_judged(arm, rows, engines[arm].name, str(pair.target.dtype).removeprefix("torch.")))
    sampling = PROOF_SAMPLING.record() | {"beam": None}
    return {"sampling": sampling, "arms": judged, "seconds": time.perf_counter() - began_s}


def _request(plan: Plan, prompt: Prompt, arm: Arm) -> Request:
    seed = derive_seed(plan.config.seed, prompt.example_id, 0, f"proof {arm.name}")
    limits = (min(plan.max_new_tokens, _MOST_TOKENS), plan.stop, arm.sampling)
    return Request(prompt.ids, *limits, seed, plan.config.fixed_length)


class Checked(NamedTuple):
    """An engine's answer after ``read_again``.

    Attributes:
        generation: an empty one where none was made.
        error: why none was made.
        unread: why it could not be read again; what was generated and timed stays.
    """

    generation: Generation
    error: str | None = None
    unread: str | None = None


def checked(arm: Arm, prompt: Prompt, seed: int, answer: Answer, pair: Pair) -> Checked:
    """Read an engine's answer again."""
    if not isinstance(answer, Generation):
        return Checked(Generation([], "", None, 0.0, 0.0, "error"), error=reason_of(answer))
    try:
        read_again(arm, prompt, answer, seed, pair)
    except FAILURES as error:
        answer.kept_rows = None
        answer.losslessness = (answer.losslessness or {}) | {UNREAD: 1.0}
        return Checked(answer, unread=reason_of(error))
    return Checked(answer)


def _judged(arm: Arm, rows: Sequence[tuple[Any, ...]], engine: str, dtype: str) -> ArmProof:
    """An arm with its engine and K, ``sequences``, ``failed``, ``rescored`` and ``decisions``."""
    import pandas as pd

    columns = ["example_id", "error", "new_tokens", "finish_reason", "losslessness"]
    frame = pd.DataFrame(rows, columns=columns)
    failed = int(frame["error"].notna().sum())
    return {
        **arm.axes(),
        "engine": engine,
        "sequences": len(frame) - failed,
        "failed": failed,
        "rescored": evidence_of(frame, RESCORED, exact=is_precise(dtype)),
        "decisions": decisions_of(frame, dtype),
    }
