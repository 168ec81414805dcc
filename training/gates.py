"""The gates that the mini pair has to pass, measured from what ``training.answers`` wrote.

Intervals are 95% BCa bootstraps over documents or problems, paired (target and draft on the same one).
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

K = 4
ALPHA = 0.86
RUNNER = """
import json, signal, sys
def expire(*_): raise TimeoutError
signal.signal(signal.SIGALRM, expire)
passed = []
for program in json.load(sys.stdin):
    signal.setitimer(signal.ITIMER_REAL, 2)
    try:
        exec(program, {}); passed.append(1.0)
    except BaseException:
        passed.append(0.0)
    signal.setitimer(signal.ITIMER_REAL, 0)
sys.__stdout__.write(json.dumps(passed))
"""


@dataclass(frozen=True)
class Gate:
    """One line of the table: what was asked, what was measured, whether it passes.

    ``passed`` is None for a figure that is reported without a gate.
    """

    name: str
    asked: str
    measured: str
    passed: bool | None


def rows_of(path: Path) -> list[dict[str, str]]:
    """The lines of a task file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def rouge2(summaries: list[str], references: list[str]) -> NDArray[np.float64]:
    """ROUGE-2 F1 of each summary, with stemming as in the XSum literature."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rouge2"], use_stemmer=True)
    pairs = zip(references, summaries, strict=True)
    return np.array([scorer.score(reference, summary)["rouge2"].fmeasure for reference, summary in pairs])


def passes(bodies: list[str], problems: list[dict[str, str]]) -> NDArray[np.float64]:
    """Whether each body passes its problem's test, tried in one process apart from this one."""
    programs = [
        f"{problem['prompt']}{body}\n{problem['test']}\ncheck({problem['entry_point']})\n"
        for body, problem in zip(bodies, problems, strict=True)
    ]
    done = subprocess.run(
        [sys.executable, "-I", "-c", RUNNER],
        input=json.dumps(programs),
        capture_output=True,
        text=True,
        check=True,
    )
    return np.array(json.loads(done.stdout))


def ratio_interval(target: NDArray[np.float64], draft: NDArray[np.float64]) -> tuple[float, float, float]:
    """mean(target) / mean(draft) with its interval."""
    return _interval(target, draft, lambda t, d, axis=-1: t.mean(axis) / d.mean(axis))


def difference_interval(
    target: NDArray[np.float64], draft: NDArray[np.float64]
) -> tuple[float, float, float]:
    """mean(target) - mean(draft) with its interval."""
    return _interval(target, draft, lambda t, d, axis=-1: t.mean(axis) - d.mean(axis))


def _interval(
    target: NDArray[np.float64], draft: NDArray[np.float64], statistic: Any
) -> tuple[float, float, float]:
    from scipy.stats import bootstrap

    found = bootstrap(
        (target, draft), statistic, paired=True, n_resamples=2000, batch=200, rng=np.random.default_rng(0)
    ).confidence_interval
    return float(statistic(target, draft)), float(found.low), float(found.high)


def shipped_bytes(pair: Path) -> int:
    """All bytes below the pair's folder."""
    return sum(path.stat().st_size for path in pair.rglob("*") if path.is_file())


def news_gates(answer: dict[str, Any], references: list[str], *, gated: bool) -> list[Gate]:
    """The lines of one set of summaries under one sampling."""
    where = f"{answer['job']}, {'greedy' if answer['greedy'] else 'nucleus'}"
    target = rouge2(answer["texts"]["target"], references[: len(answer["lengths"])])
    draft = rouge2(answer["texts"]["draft"], references[: len(answer["lengths"])])
    ratio, low, high = ratio_interval(target, draft)
    lines = [
        Gate(f"ROUGE-2 target ({where})", ">= .25", f"{target.mean():.3f}", bool(target.mean() >= 0.25)),
        Gate(f"ROUGE-2 draft alone ({where})", "", f"{draft.mean():.3f}", None),
        Gate(
            f"ROUGE-2 ratio ({where})",
            "lower bound >= 1.15",
            f"{ratio:.2f} [{low:.2f}, {high:.2f}]",
            low >= 1.15,
        ),
        *_acceptance_gates(where, answer),
        Gate(
            f"median tokens ({where})",
            ">= 25",
            f"{np.median(answer['lengths']):.0f}",
            bool(np.median(answer["lengths"]) >= 25),
        ),
    ]
    return lines if gated else [Gate(line.name, "", line.measured, None) for line in lines]


def code_gates(answer: dict[str, Any], problems: list[dict[str, str]]) -> list[Gate]:
    """The lines of the programs under one sampling."""
    where = f"{answer['job']}, {'greedy' if answer['greedy'] else 'nucleus'}"
    problems = problems[: len(answer["lengths"])]
    target, draft = (passes(answer["texts"][name], problems) for name in ("target", "draft"))
    gap, low, high = (100 * value for value in difference_interval(target, draft))
    level = bool(0.25 <= target.mean() <= 0.8) if not answer["greedy"] else None
    return [
        Gate(
            f"pass@1 target ({where})", ".25-.80" if level is not None else "", f"{target.mean():.3f}", level
        ),
        Gate(f"pass@1 draft alone ({where})", "", f"{draft.mean():.3f}", None),
        Gate(
            f"pass@1 gap, points ({where})",
            "lower bound >= 15",
            f"{gap:.0f} [{low:.0f}, {high:.0f}]",
            low >= 15,
        ),
        *_acceptance_gates(where, answer),
        Gate(
            f"median tokens ({where})",
            ">= 40",
            f"{np.median(answer['lengths']):.0f}",
            bool(np.median(answer["lengths"]) >= 40),
        ),
    ]


def _acceptance_gates(where: str, answer: dict[str, Any]) -> list[Gate]:
    if answer["greedy"]:
        return []
    alpha, share = answer["alpha"]["draft"], answer["r_prime"]["draft"][str(K)]
    return [
        Gate(f"acceptance alpha ({where})", ">= .86", f"{alpha:.3f}", alpha >= ALPHA),
        Gate(f"r' at K = {K} ({where})", ".55-.85", f"{share:.3f}", 0.55 <= share <= 0.85),
    ]


def all_gates(answers: list[dict[str, Any]], pair: Path) -> list[Gate]:
    """Every line of the table, from the answers and the pair's own files."""
    lines: list[Gate] = []
    for answer in answers:
        rows = rows_of(pair / "data" / f"{answer['job']}.jsonl")
        if "summary" in rows[0]:
            references = [row["summary"] for row in rows]
            lines += news_gates(answer, references, gated=answer["job"] == "xsum")
        else:
            lines += code_gates(answer, rows)
    size = shipped_bytes(pair) / 1e6
    return [*lines, Gate("size, MB", "<= 25", f"{size:.1f}", size <= 25)]


def table(gates: list[Gate]) -> str:
    """The gates as a Markdown table."""
    verdict = {True: "pass", False: "FAIL", None: ""}
    head = ["| gate | asked | measured | |", "|---|---|---|---|"]
    return "\n".join(
        [*head, *(f"| {g.name} | {g.asked} | {g.measured} | {verdict[g.passed]} |" for g in gates)]
    )
