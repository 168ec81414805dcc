"""The proof of a run: read outputs again, and draw some at temperature 1.

Re-reading is an uncached forward of both models over prompt and output, between two sequences.

Under a narrow nucleus most positions leave no choice, and few sequences bound leakage badly. So after
the measured sequences each SpS arm writes some at temperature 1 without truncation. They are in no
table and no journal, and nobody times them.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spsbench.base.axes import EAGER, MODEL
from spsbench.base.records import (
    RESCORED,
    RESCORED_BEAM_LOG_PROB,
    UNREAD,
    Arm,
    Generation,
    Prompt,
    Request,
    SamplingParams,
    TokenEvidence,
)
from spsbench.decode.processors import bound
from spsbench.drafters.registry import PROCESSED, drafter_kind, rule_kind
from spsbench.engines import rescore
from spsbench.engines.arms import GRAPHED
from spsbench.engines.rescore import Reading, token_evidence
from spsbench.engines.rows_held import RowsHeld, draft_blocks, target_blocks, with_explained
from spsbench.law.evidence import DECIDED, Sums, added
from spsbench.models.causal_lm import CausalLM
from spsbench.models.faults import settle, shortage
from spsbench.models.pair import Pair
from spsbench.runner.engines import FAILURES, Attempt, EngineFactory, answers, reason_of
from spsbench.runner.messages import NO_PROOF, READ_LESS, ProofFailed
from spsbench.runner.planning import Plan, Watcher
from spsbench.runner.turns import Turn, derive_seed, request_of
from spsbench.stats.losslessness import decisions_of, evidence_of, is_precise
from spsbench.store import RunStore
from spsbench.store.summary_types import ArmProof, Proof

PROOF_SAMPLING = SamplingParams()
"""Temperature 1, every token possible: the most that a text can reveal of its distribution."""

# Enough to bound leakage at one or two per cent with the embedded pair; never more than half as many as
# there are prompts, so that a short run stays short. A number, not a time: no clock decides what is proved.
_SEQUENCES = 40
_PROMPT_SHARE = 0.5
_LEAST_AN_ARM = 4
_MOST_TOKENS = 128


@torch.inference_mode()
def read_again(arm: Arm, prompt: Prompt, generation: Generation, seed: int, pair: Pair) -> None:
    """Add to an output an independent forward's evidence; draft-only has the draft as its target."""
    target = pair.draft if arm.method == "draft" else pair.target
    tokens = generation.tokens
    if arm.sampling.beam is not None:
        # Of the search's best hypothesis the log-probability; nothing was sampled.
        log_prob = 0.0
        for _, best in rescore.readings(target, None, prompt.ids, tokens, PROOF_SAMPLING):
            log_probs = best.logits.float().log_softmax(-1).gather(-1, best.tokens.unsqueeze(-1))
            log_prob += float(log_probs.sum())
        generation.losslessness = (generation.losslessness or {}) | {RESCORED_BEAM_LOG_PROB: log_prob}
        return
    # A target that is its own draft is read once, unless it drafts.
    drafts = arm.method == "sps" and arm.drafter.name == MODEL
    draft = None if pair.is_one and not drafts else pair.draft
    sampling = bound(arm.sampling, pair.tokenizer)
    knows = not drafts or drafter_kind(MODEL).settled(arm.drafter)[PROCESSED]
    draft_sampling = sampling if knows else replace(sampling, process=None)
    again = None if drafts else _own_draft_again(arm, prompt, generation, target)
    kept, comparisons = generation.kept_rows, []
    if kept is not None:
        whole = (prompt.ids, arm.k, seed)
        comparisons.append(
            RowsHeld("target", target, kept.target, generation, sampling, *whole, target_blocks(generation))
        )
        if drafts or again is not None:
            model, law = (pair.draft, draft_sampling) if drafts else (target, sampling)
            blocks = draft_blocks(generation) if drafts else None
            comparisons.append(RowsHeld("draft", model, kept.draft, generation, law, *whole, blocks))
    scores = rescore.Scores(seed, len(generation.tokens))
    sums = Sums()
    evidence = TokenEvidence(array("f"), array("f"), array("i"), array("f"), array("f"))
    parts = rescore.readings(target, draft, prompt.ids, tokens, sampling, draft_sampling)
    for first, reading in parts:
        drawn = None if again is None else again[first : first + len(reading.tokens)]
        logits = (reading.logits, reading.draft_logits if drafts else drawn)
        _compare_kept_rows(comparisons, first, logits, reading.impossible)
        # Without a name, under which its rows would be held beside those of the next part.
        sums = added(sums, scores.of(_judged_with_own_draft(arm, generation, first, reading, drawn)))
        read = token_evidence(reading.tokens, reading.q, reading.p, reading.draft_logits)
        evidence = evidence.followed_by(read)
        del reading, drawn, logits  # the next part takes their place
    sums = rescore.rescored(sums)
    for rows in comparisons:
        sums |= rows.sums()
    sums = with_explained(sums, sums, RESCORED)
    if kept is not None and len(comparisons) == 1 and any(rows is not None for rows in kept.draft):
        sums[f"{DECIDED}_recorded"] = (generation.losslessness or {}).get(DECIDED, 0.0)
    generation.kept_rows = None
    generation.losslessness = (generation.losslessness or {}) | sums
    generation.token_evidence = evidence


def _compare_kept_rows(
    held: Sequence[RowsHeld], first: int, logits: Sequence[Tensor | None], impossible: Tensor
) -> None:
    for rows, model_logits, tokens in zip(held, logits, (impossible, None), strict=False):
        assert model_logits is not None
        rows.add(first, model_logits, tokens)


def _judged_with_own_draft(
    arm: Arm, generation: Generation, first: int, reading: Reading, again: Tensor | None
) -> Reading:
    """A reading of the positions from ``first`` on with the rows of the drafter that the output
    had; unchanged where none were kept.
    """
    shown = rescore.recorded_rows(generation, first, reading.logits) if _shows_rows(arm) else None
    return reading if shown is None else rescore.with_draft(reading, generation, first, shown, again)


def _shows_rows(arm: Arm) -> bool:
    """Of a drafter other than the draft model, with which an output is judged."""
    return arm.method == "sps" and arm.drafter.name != MODEL


def _own_draft_again(arm: Arm, prompt: Prompt, generation: Generation, target: CausalLM) -> Tensor | None:
    """[n, V] logits of the drafter that an output had, by an independent forward; None where there is none.

    None in 16 bits as well: a head's own forwards add up its rounding.
    """
    kept = generation.kept_rows
    if kept is None or kept.every > 1 or not _shows_rows(arm):
        return None
    if not is_precise(str(target.dtype).removeprefix("torch.")):
        return None
    ids = torch.tensor([*prompt.ids, *generation.tokens], device=target.device)
    loops = [(len(prompt.ids) + start, count) for start, count in rescore.spans(generation)]
    return drafter_kind(arm.drafter.name).read_again(arm.drafter, target, ids, loops)


def proof_arms(arms: Sequence[Arm]) -> list[Arm]:
    """Return the SpS arms of the built-in engines under ``PROOF_SAMPLING``, each engine and K once."""
    built_in = [
        arm
        for arm in arms
        if arm.method == "sps"
        and arm.engine in (EAGER, GRAPHED)
        and arm.sampling.beam is None
        and rule_kind(arm.rule.name).lossless
    ]
    return list(
        dict.fromkeys(replace(arm, sampling_name="proof", sampling=PROOF_SAMPLING) for arm in built_in)
    )


def proof_prompts(plan: Plan) -> tuple[Prompt, ...]:
    """Return the prompts that every arm of the proof is asked: the run's first ones, first turns only."""
    arms = len(proof_arms(plan.arms))
    if not (plan.config.proof and arms):
        return ()
    prompts = tuple(prompt for prompt in plan.prompts if prompt.conversation is None)
    in_all = min(_SEQUENCES, math.ceil(_PROMPT_SHARE * len(prompts)))
    return prompts[: max(math.ceil(in_all / arms), _LEAST_AN_ARM)]


def prove(plan: Plan, store: RunStore, pair: Pair, backends: EngineFactory, watcher: Watcher) -> None:
    """Put ``draw_proof`` into run.json under ``proof``. If it fails, the run is still valid."""
    announce_proof(plan, watcher)
    note_proof(store, proven(plan, pair, backends), watcher)


def announce_proof(plan: Plan, watcher: Watcher) -> None:
    if due := len(proof_prompts(plan)) * len(proof_arms(plan.arms)):
        watcher.proving(due)


def proven(plan: Plan, pair: Pair, backends: EngineFactory) -> Proof:
    """Return ``draw_proof``, or its failure under ``error``."""
    try:
        return draw_proof(plan, pair, backends)
    except FAILURES as error:
        settle(error)
        reason = shortage(error, NO_PROOF) or error
        return {"error": f"{type(error).__name__}: {reason}"}


def note_proof(store: RunStore, proof: Proof, watcher: Watcher) -> None:
    if "error" in proof:
        reason = proof["error"].partition(": ")[2]
        watcher.warned(ProofFailed(reason))
    store.note(proof=proof)


def draw_proof(plan: Plan, pair: Pair, backends: EngineFactory) -> Proof:
    """Write sequences at temperature 1 and judge them: ``sampling``, ``arms`` (see ``_arm_proof``) and
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
            made, *failed = answer_read_again(arm, prompts[place], requests[place].seed, answer, pair)
            error = next(filter(None, failed), None)
            row = (prompts[place].example_id, error, len(made.tokens), made.finish_reason)
            rows.append((*row, made.losslessness))
        judged.append(_arm_proof(arm, rows, engines[arm].name, str(pair.target.dtype).removeprefix("torch.")))
    sampling = PROOF_SAMPLING.record() | {"beam": None}
    return {"sampling": sampling, "arms": judged, "seconds": time.perf_counter() - began_s}


def _request(plan: Plan, prompt: Prompt, arm: Arm) -> Request:
    seed = derive_seed(plan.config.seed, prompt.example_id, 0, f"proof {arm.name}")
    request = request_of(plan, Turn(prompt, 0, arm, 0, seed))
    return replace(request, max_new_tokens=min(request.max_new_tokens, _MOST_TOKENS))


class AnswerReadAgain(NamedTuple):
    """An engine's answer after ``read_again``.

    Attributes:
        generation: an empty one where none was made.
        error: why none was made.
        unread: why it could not be read again; what was generated and timed stays.
    """

    generation: Generation
    error: str | None = None
    unread: str | None = None


def answer_read_again(arm: Arm, prompt: Prompt, seed: int, answer: Attempt, pair: Pair) -> AnswerReadAgain:
    if not isinstance(answer, Generation):
        return AnswerReadAgain(Generation([], "", None, 0.0, 0.0, "error"), error=reason_of(answer))
    try:
        read_again(arm, prompt, answer, seed, pair)
    except FAILURES as error:
        settle(error)
        answer.kept_rows = None
        answer.losslessness = (answer.losslessness or {}) | {UNREAD: 1.0}
        return AnswerReadAgain(answer, unread=reason_of(error, READ_LESS))
    return AnswerReadAgain(answer)


def _arm_proof(arm: Arm, rows: Sequence[tuple[Any, ...]], engine: str, dtype: str) -> ArmProof:
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
