"""A run directory made of simulated sequences: nothing in it was measured.

The tests of a draft token are independent with a probability that each prompt has of its own, times
are those that Chen et al. 2023 imply (14.1 ms a target step, 1.8 ms a draft step) with noise.
"""

from __future__ import annotations

import math
import tempfile
from array import array
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from support.drawing import as_svg

from spsbench.base.records import (
    VERIFICATION_RULE,
    Arm,
    Generation,
    Loop,
    Prompt,
    Sample,
    SamplingParams,
    Spec,
    TokenEvidence,
    TracedToken,
)
from spsbench.report.figures import Gallery, draw
from spsbench.report.measured import Measured
from spsbench.stats.summary import summarise
from spsbench.store import RunStore

TARGET_S, DRAFT_S, OTHER_S = 14.1e-3, 1.8e-3, 0.2e-3
SAMPLINGS = {"nucleus": SamplingParams(top_p=0.8), "greedy": SamplingParams(greedy=True)}
WORDS = (
    *(
        " the",
        " council",
        " said",
        " on",
        " Monday",
        " that",
        " a",
        " new",
        " school",
        " will",
        " open",
        " in",
    ),
    *(
        " spring",
        ".",
        ",",
        "\n",
        "<script>alert(1)</script>",
        " \x1b[31mred",
        ' "quoted"',
        " naïve",
        " 東京",
        "",
    ),
)
DOCUMENT = "A harbour <script>alert('document')</script> was \x1b[2J opened & closed."


def arms_of(ks: Sequence[int], samplings: Sequence[str]) -> list[Arm]:
    """ArS at K = 0, else SpS."""
    return [
        Arm("sps" if k else "ars", k, "eager", name, SAMPLINGS[name])
        for name in samplings
        for k in sorted(ks)
    ]


def make_run(
    directory: Path,
    *,
    ks: Sequence[int] = (0, 1, 2, 4),
    samplings: Sequence[str] = ("nucleus", "greedy"),
    prompts: int = 12,
    tokens: int = 24,
    fixed_length: bool = True,
    traced: int = 2,
    seed: int = 7,
    label: str = "xsum-fixture",
    arms: Sequence[Arm] = (),
) -> Path:
    """Write a whole run and answer its directory; ``arms`` in place of those of ``ks`` and ``samplings``."""
    arms = arms or arms_of(ks, samplings)
    rng = np.random.default_rng(seed)
    asked = [Prompt(f"doc-{i}", DOCUMENT, (1, 2, 3), "A reference.") for i in range(prompts)]
    with RunStore.create(
        directory,
        identity={"task": "xsum", "fixed_length": fixed_length, "max_new_tokens": tokens, "seed": seed},
        config={"task": "xsum", "limit": prompts},
        info={
            "task": "xsum",
            "task_label": label,
            "headline_metric": "rouge2",
            "synthetic": True,
            "pair": "simulated",
            "arms": [{"arm": arm.name, **arm.axes(), "params": asdict(arm.sampling)} for arm in arms],
            "expected_sequences": prompts,
            "verification_rule": VERIFICATION_RULE,
            "command": "spsbench sweep-k xsum",
        },
        prompts=asked,
    ) as store:
        for number, prompt in enumerate(asked):
            greedy = rng.integers(len(WORDS), size=tokens)
            ease = {name: rng.beta(*{"nucleus": (12, 5), "greedy": (16, 4)}[name]) for name in samplings}
            for arm in arms:
                length = tokens if fixed_length else int(rng.integers(tokens // 2, tokens + 1))
                text = greedy if arm.sampling.greedy else rng.integers(len(WORDS), size=tokens)
                made = _generation(arm, ease[arm.sampling_name], text[:length].tolist(), rng, number < traced)
                store.append(_sample(arm, prompt, made, float(rng.beta(2, 12))))
        store.note(token_texts={str(i): text for i, text in enumerate(WORDS)})
    return directory


def _sample(arm: Arm, prompt: Prompt, generation: Generation, score: float) -> Sample:
    return Sample(
        example_id=prompt.example_id,
        sample_index=0,
        arm=arm.name,
        prompt_tokens=len(prompt.ids),
        generation=generation,
        scores={"rouge2": score},
    )


def _generation(arm: Arm, ease: float, ids: list[int], rng: np.random.Generator, trace: bool) -> Generation:
    """The output ``ids``, cut into loops whose tests pass with probability ``ease``."""
    done = 0
    loops: list[Loop] = []
    traced: list[TracedToken] = []
    while done < len(ids):
        fates = _loop(arm, ease, rng)
        kept = min(sum(fate != "rejected" for fate in fates), len(ids) - done)
        loops.append(_record(arm, fates, kept, ease, rng))
        for fate in fates:
            if done == len(ids):
                break
            token = (ids[done] + 1) % len(WORDS) if fate == "rejected" else ids[done]
            u, target = (float(x) for x in rng.random(2).round(4))
            draft = float(rng.random()) if fate in ("accepted", "rejected", "correction") else None
            traced.append(TracedToken(len(loops) - 1, done, token, fate, target, draft, u))
            done += fate != "rejected"
    return Generation(
        tokens=ids,
        text="".join(WORDS[i] for i in ids),
        loops=loops,
        prefill_s=0.03,
        decode_s=sum(loop.loop_s for loop in loops) + 1e-4,
        finish_reason="length",
        trace=traced if trace else None,
        token_evidence=_read_again(ease, len(ids)) if arm.method == "ars" else None,
    )


def _read_again(ease: float, tokens: int) -> TokenEvidence:
    """As if every token had the probability one half, and a draft of it passed with probability ``ease``."""
    half = array("f", [math.log(0.5)]) * tokens
    draft = array("f", [math.log(0.5 * ease)]) * tokens
    most = array("f", [0.5]) * tokens
    return TokenEvidence(half, draft, array("i", [0]) * tokens, most, most[:])


def _loop(arm: Arm, ease: float, rng: np.random.Generator) -> list[str]:
    if arm.method != "sps":
        return ["ars"]
    accepted = int(np.argmin([*(rng.random(arm.k) < ease), False]))
    return ["accepted"] * accepted + (["bonus"] if accepted == arm.k else ["rejected", "correction"])


def _record(arm: Arm, fates: list[str], kept: int, ease: float, rng: np.random.Generator) -> Loop:
    accepted = fates.count("accepted")
    tested = accepted + fates.count("rejected")
    noise = float(rng.lognormal(0.0, 0.05))
    draft, verify = arm.k * DRAFT_S * noise, (TARGET_S + 0.1e-3 * arm.k) * noise
    sample, other = 0.1e-3 * (arm.k + 1), OTHER_S
    return Loop(
        drafted=arm.k,
        accepted=accepted,
        emitted=kept,
        tested=tested,
        beta_sum=ease * tested,
        truncated=len(fates) - fates.count("rejected") - kept,
        draft_s=draft,
        verify_s=verify,
        sample_s=sample,
        other_s=other,
        loop_s=draft + verify + sample + other,
    )


def read_run(directory: Path) -> Measured:
    """A run as the reports see it."""
    with RunStore.open(directory) as store:
        frames, info = store.frames(), store.run_info()
    summary = summarise(frames.samples, frames.loops, info, frames.evidence)
    return Measured(directory.name, summary, info, frames.samples, frames.loops, frames.tokens)


@cache
def measured(**changes: Any) -> Measured:
    """The run that ``make_run`` makes, in memory; not to be changed."""
    with tempfile.TemporaryDirectory() as folder:
        return read_run(make_run(Path(folder) / "fixture", **changes))


@cache
def gallery() -> Gallery:
    """The figures of ``measured()`` for a page."""
    with as_svg():
        return draw(measured(), narrow=True)


@cache
def of_many_kinds() -> Measured:
    """Two drafters in two engines at several lookaheads, beside the ArS of each; not to be changed."""
    nucleus = SAMPLINGS["nucleus"]
    arms = [
        arm
        for engine in ("eager", "hf-generate")
        for arm in (
            Arm("ars", 0, engine, "nucleus", nucleus),
            *(
                Arm("sps", k, engine, "nucleus", nucleus, drafter=Spec(drafter))
                for drafter in ("model", "lookup")
                for k in (1, 2, 4, 8)
            ),
        )
    ]
    with tempfile.TemporaryDirectory() as folder:
        return read_run(make_run(Path(folder) / "kinds", arms=arms, samplings=("nucleus",), prompts=8))
