"""Predictions for the published measurements of "Speculative Decoding: Performance or Illusion?", frozen.

The paper (arXiv 2601.11580) shares what EAGLE and n-grams accept at every place of its recorded requests and
a time model (SpecDecode-Bench/simulator). From these follow acceptance length and speedup at each K and
batch. ``predict`` writes them; they were committed before the published values were read. ``compare`` sets
both side by side. Nothing of the repository is kept here: it is read from a clone.

    python -m benchmarks.validation predict --repository CLONE
    python -m benchmarks.validation roofline --repository CLONE
    python -m benchmarks.validation compare --repository CLONE
    python -m benchmarks.validation figure
    python -m benchmarks.validation golden --repository CLONE --golden CLONE_OF_INFERENCEX
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spsbench.base.environment import describe_environment
from spsbench.base.records import Interval
from spsbench.law.text_loops import loops_over
from spsbench.parts.whatif.commands.explain import shape
from spsbench.stats.bootstrap import pooled_ratio, simultaneous_ratios
from spsbench.store import foreign

Floats = npt.NDArray[np.float64]
FOLDER = Path(__file__).parents[1] / "results/reference/validation"
DATASETS = ("gsm8k", "cnn", "sharegpt", "instructcoder")
DRAFTERS = ("eagle", "ngram")
KS = range(1, 9)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Times:
    """Seconds of one forward of a batch: a fixed part, and one for each token and each cached token.

    Attributes:
        step: of what is neither forward nor draft, for each step.
        draft: of all drafts of a step, whatever K.
        draft_token: for each token that one request verifies.
        copying: n-grams' drafts, as a share of the target's forward.
    """

    fixed: float
    token: float
    cached: float
    step: float
    draft: float
    draft_token: float
    draft_cached: float
    copying: float


PAPERS = Times(
    fixed=5.88590713e-3,
    token=2.10103129e-5,
    cached=3.92645679e-8,
    step=1.20683946e-3,
    draft=2.13526175e-3,
    draft_token=8.41429603e-7,
    draft_cached=2.37768493e-9,
    copying=0.005875,
)
"""H100, Llama-3.1-8B: predictor.py of SpecDecode-Bench/simulator, fitted there on instructcoder."""

MATCHED = {"sharegpt": 0.2, "cnn": 0.4, "gsm8k": 0.2, "instructcoder": 0.8}
"""The share of places where an n-gram drafts, of those where nothing is kept: simulator.py."""

RULES = [
    "Acceptance length: tokens after the prefill's over loops, pooled over requests, by a walk over the "
    "recorded places. Intervals over requests: 95%, for all K of a drafter and data set at once.",
    "Speedup: tokens per time with drafts over tokens per time without, all requests pooled, a batch that is "
    "always full, prompts read once (whole); decode leaves out the prompts. Whole is the prediction. "
    "Intervals over requests alone: 95%, each by itself; the times are taken as exact.",
    "Times: those of the paper's own simulator, as they are: a draft of EAGLE takes the same for every K.",
    "n-grams draft in all loops that keep something and in the share of the others that the simulator "
    "states; always: in all loops.",
    "The field acc_eagle is compared with what the paper calls EAGLE; its simulator's plots call it EAGLE3, "
    "so that EAGLE-3 is shown beside it where it is published for this model.",
    "The gates: acceptance within 1%, speedup within 10%, median 5%.",
]


ROOFLINE = [
    "Another prediction of the same cells, blind as well: times by the roofline of h100-sxm, which knows no "
    "measurement of the paper. Decoding alone; no host, no scheduling, no prompts.",
    "The context is the mean at the loops of each cell; EAGLE's K drafts are K forwards of its head.",
    "Bands: the ends of all figures of the accelerator; acceptance is taken as exact.",
]


class Request(NamedTuple):
    """A recorded request: ``ahead`` is what a loop would keep that begins before each token but the first."""

    prompt: int
    ahead: Mapping[str, npt.NDArray[np.int64]]


class Walk(NamedTuple):
    """One request at one K: loops, how many of them draft, and the context that they read, summed."""

    loops: float
    drafting: float
    context: float


def content(repository: Path, path: str) -> bytes:
    """A file of a clone's head; the clone needs no work tree."""
    command = ["git", "-C", str(repository), "show", f"HEAD:{path}"]
    return subprocess.run(command, check=True, capture_output=True).stdout


def path_of(dataset: str) -> str:
    """Of a data set's file in the clone."""
    return f"data/llama3.1-8B/combined_{dataset}.jsonl"


def requests_in(lines: bytes) -> list[Request]:
    """Of a file of SpecDecode-Bench, those in which each drafter has a place."""
    found = []
    for row in map(json.loads, lines.splitlines()):
        lengths = {name: row[f"acc_{name}"]["acc_len"] for name in DRAFTERS}
        if all(len(own) > 1 for own in lengths.values()):
            ahead = {name: np.array(own[:-1], np.int64) - 1 for name, own in lengths.items()}
            found.append(Request(len(row["prompt_token_ids"]), ahead))
    return found


def walk(prompt: int, ahead: npt.NDArray[np.int64], k: int, unmatched: float) -> Walk:
    """The loops of one request; ``unmatched``: the chance that a loop drafts which keeps nothing."""
    starts = loops_over((np.arange(k) < ahead[:, None]).astype(np.float64)).starts[0]
    drafts = np.where(ahead > 0, 1.0, unmatched)
    context = prompt + 1 + np.arange(len(ahead))
    return Walk(float(starts.sum()), float(starts @ drafts), float(starts @ context))


def seconds(times: Times, walked: Walk, k: int, batch: int, *, copies: bool) -> float:
    """A request's share of the time of a full batch, without its prompt."""
    loops, drafting, context = walked
    forward = loops * times.fixed / batch + times.token * (loops + k * drafting) + times.cached * context
    if not k:
        draft = 0.0
    elif copies:
        draft = times.copying * forward * drafting / loops
    else:
        draft = loops * (times.draft + times.draft_token * (k + 1)) / batch + times.draft_cached * context
    return forward + draft + loops * times.step / batch


def spent(times: Times, walks: Sequence[Walk], k: int, batch: int, *, copies: bool) -> Floats:
    """[requests] of ``seconds``."""
    return np.array([seconds(times, each, k, batch, copies=copies) for each in walks])


def prompt_seconds(times: Times, prompts: Floats, batch: int) -> Floats:
    """[requests] shares of the time of a full batch that reads its prompts."""
    return np.asarray((times.fixed + times.step) / batch + times.token * prompts)


def plain_walk(prompt: int, tokens: int) -> Walk:
    """Of a request without drafts."""
    return Walk(tokens, tokens, tokens * (prompt + 1) + tokens * (tokens - 1) / 2)


def mended(
    requests: Sequence[Request], drafter: str, k: int, batches: Sequence[int], unmatched: float
) -> dict[str, float]:
    """Speedups by batch AFTER LOOKING: the requests' mean tokens per second over the same without drafts.

    So the paper's simulator takes it; pooled, as it was predicted, a long answer counts by its length.
    """
    copies, prompts = drafter == "ngram", np.array([request.prompt for request in requests], np.float64)
    ahead = [request.ahead[drafter] for request in requests]
    tokens = np.array([len(own) for own in ahead], np.float64) + 1
    pairs = list(zip(requests, ahead, strict=True))
    walks = [walk(request.prompt, own, k, unmatched) for request, own in pairs]
    alone, found = [plain_walk(request.prompt, len(own)) for request, own in pairs], {}
    for batch in batches:
        prefill = prompt_seconds(PAPERS, prompts, batch)
        slow = spent(PAPERS, alone, 0, batch, copies=copies) + prefill
        fast = spent(PAPERS, walks, k, batch, copies=copies) + prefill
        found[str(batch)] = round(float((tokens / fast).sum() / (tokens / slow).sum()), 4)
    return found


def cells(
    dataset: str, requests: Sequence[Request], drafter: str, times: Times, ks: Sequence[int] = KS
) -> list[dict[str, Any]]:
    """Every K of a drafter on a data set."""
    copies = drafter == "ngram"
    unmatched = MATCHED[dataset] if copies else 1.0
    ahead = [request.ahead[drafter] for request in requests]
    prompts = np.array([request.prompt for request in requests], np.float64)
    tokens = np.array([len(own) for own in ahead], np.float64)
    alone = [plain_walk(request.prompt, len(own)) for request, own in zip(requests, ahead, strict=True)]
    walks = {
        k: [walk(request.prompt, own, k, unmatched) for request, own in zip(requests, ahead, strict=True)]
        for k in ks
    }
    loops = np.array([[each.loops for each in walks[k]] for k in ks]).T
    found = []
    for k, length in zip(ks, simultaneous_ratios(tokens, loops), strict=True):
        own = tokens / np.array([each.loops for each in walks[k]])
        cell: dict[str, Any] = {
            "dataset": dataset,
            "drafter": drafter,
            "k": k,
            "requests": len(requests),
            "tokens": int(tokens.sum()),
            "acceptance": rounded(length),
            "by_request": {
                "mean": round(float(own.mean()), 4),
                "quartiles": [round(float(each), 4) for each in np.quantile(own, (0.25, 0.5, 0.75))],
            },
            "whole": {},
            "decode": {},
        } | ({"always": {}} if copies else {})
        for batch in BATCHES:
            prefill = prompt_seconds(times, prompts, batch)
            plain = spent(times, alone, 0, batch, copies=copies)
            fast = spent(times, walks[k], k, batch, copies=copies)
            cell["whole"][str(batch)] = rounded(pooled_ratio(plain + prefill, fast + prefill))
            cell["decode"][str(batch)] = round(float(plain.sum() / fast.sum()), 4)
            if copies:
                always = [each._replace(drafting=each.loops) for each in walks[k]]
                fast = spent(times, always, k, batch, copies=True)
                cell["always"][str(batch)] = round(float((plain + prefill).sum() / (fast + prefill).sum()), 4)
        found.append(cell)
    return found


def rounded(value: Interval) -> list[float | None]:
    """[estimate, low, high]"""
    return [None if each is None else round(each, 4) for each in (value.estimate, value.low, value.high)]


def predict(repository: Path, out: Path) -> None:
    """Write the predictions."""
    paths = {name: path_of(name) for name in DATASETS}
    files = {name: content(repository, path) for name, path in paths.items()}
    head = subprocess.run(
        ["git", "-C", str(repository), "rev-parse", "HEAD"], check=True, capture_output=True
    )
    found = []
    for name, lines in files.items():
        requests = requests_in(lines)
        for drafter in DRAFTERS:
            found += cells(name, requests, drafter, PAPERS)
            print(name, drafter, len(requests), file=sys.stderr, flush=True)
    written = {
        "rules": RULES,
        "source": {
            "repository": "SpecDecode-Bench/simulator",
            "commit": head.stdout.decode().strip(),
            "sha256": {paths[name]: hashlib.sha256(lines).hexdigest() for name, lines in files.items()},
        },
        "times": asdict(PAPERS),
        "matched": MATCHED,
        "environment": describe_environment(["python", "-m", "benchmarks.validation", "predict"]),
    }
    save(out, written, found)


def save(out: Path, written: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> None:
    """Write a document whose cells stand in one line each."""
    lines = ",\n  ".join(json.dumps(each) for each in cells)
    body = json.dumps(written, indent=1)[:-2] + f',\n "cells": [\n  {lines}\n ]\n}}\n'
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(body)


LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
}
"""Llama-3.1-8B. EAGLE's head is one layer of it with the whole output vocabulary, without its input layer."""


def roofline(repository: Path, out: Path) -> None:
    """Write what the roofline of an H100 predicts, from the same acceptance: decoding alone, no host."""
    from spsbench.parts.whatif.hardware.decoder import Decoder
    from spsbench.parts.whatif.hardware.roofline import accelerators

    machine = accelerators()["h100-sxm"]
    target, head = Decoder.model_validate(LLAMA), Decoder.model_validate(LLAMA | {"num_hidden_layers": 1})
    batch, found = np.array(BATCHES, np.float64), []
    for name in DATASETS:
        requests = requests_in(content(repository, path_of(name)))
        for drafter in DRAFTERS:
            ahead = [request.ahead[drafter] for request in requests]
            unmatched = MATCHED[name] if drafter == "ngram" else 1.0
            for k in KS:
                pairs = zip(requests, ahead, strict=True)
                every = np.array([walk(request.prompt, own, k, unmatched) for request, own in pairs])
                loops, drafting, context = every.sum(0).tolist()
                mean, length = round(context / loops), sum(map(len, ahead)) / loops
                tokens, drafts = 1 + k * drafting / loops, 0 if drafter == "ngram" else k
                gains = [
                    length
                    * corner.forward_s(target, batch, 1, mean)
                    / (
                        corner.forward_s(target, batch, tokens, mean)
                        + drafts * corner.forward_s(head, batch, 1, mean)
                    )
                    for corner in machine.corners()
                ]
                own = zip(BATCHES, gains[0], np.min(gains[1:], 0), np.max(gains[1:], 0), strict=True)
                speedup = {str(size): [round(float(each), 4) for each in three] for size, *three in own}
                cell = {"dataset": name, "drafter": drafter, "k": k, "context": mean, "decode": speedup}
                found.append(cell)
    written = {"rules": ROOFLINE, "hardware": machine.model_dump(), "target": LLAMA}
    written["environment"] = describe_environment(["python", "-m", "benchmarks.validation", "roofline"])
    save(out, written, found)


def smallest_step(curve: Mapping[int, float]) -> tuple[int, float]:
    """Where a curve of two decimals changes least from K - 1 to K, and by how much."""
    before = {1: 1.0} | {k + 1: length for k, length in curve.items()}
    steps = {k: abs(round(100 * (length - before[k]))) for k, length in curve.items() if k in before}
    at, least = min(((k, step) for k, step in steps.items() if step), key=lambda each: each[1])
    return at, least / 100


def step_spreads(
    tokens: Floats, loops: Floats, rng: np.random.Generator, prompts: int = 80, draws: int = 2_000
) -> tuple[Floats, Floats]:
    """[K-1] standard deviations of a step from K to K + 1, as a share of the length, over so many prompts.

    First with other prompts for each K, then with the same for all.

    Args:
        tokens: [prompts] of a population.
        loops: [prompts, K].
    """

    def logs() -> Floats:
        weights = rng.multinomial(prompts, np.full(len(tokens), 1 / len(tokens)), draws).astype(np.float64)
        return np.asarray(np.log((weights @ tokens)[:, None] / (weights @ loops)))

    same = logs()
    fresh = np.stack([logs()[:, column] for column in range(loops.shape[1])], 1)
    return np.diff(fresh).std(0), np.diff(same).std(0)


def golden(repository: Path, curves: Path) -> None:
    """Print the golden curves of InferenceX: their shape, and the prompts that their smallest step takes."""
    listed = ["git", "-C", str(curves), "ls-tree", "--name-only", "HEAD", "golden_al_distribution/"]
    names = subprocess.run(listed, check=True, capture_output=True).stdout.decode().split()
    rng = np.random.default_rng(0)
    spreads = {}
    for name in ("gsm8k", "instructcoder"):
        ahead = [each.ahead["eagle"] for each in requests_in(content(repository, path_of(name)))]
        loops = np.array([[walk(0, own, k, 1.0).loops for k in KS] for own in ahead])
        spreads[name] = step_spreads(np.array([len(own) for own in ahead], np.float64), loops, rng)
    print(
        "| file | curve | falls at K | step grows at K | smallest step | other texts for each K | one set |"
    )
    print("| :-- | :-- | :-- | :-- | --: | --: | --: |")
    with tempfile.TemporaryDirectory() as folder:
        for name in (each for each in names if each.endswith(".yaml")):
            path = Path(folder, Path(name).name)
            path.write_bytes(content(curves, name))
            for curve_name, curve in foreign.read(path, foreign.PUBLISHED, "--golden").published.items():
                odd, (k, step) = shape(curve), smallest_step(curve)
                needed = [
                    " to ".join(
                        f"{80 * (1.96 * own[way][k - 2] * curve[k] / step) ** 2:,.0f}"
                        for own in spreads.values()
                    )
                    for way in (0, 1)
                ]
                marks = [
                    ", ".join(str(k) for k, found in odd.items() if found == what)
                    for what in ("falls", "step grows")
                ]
                about = [path.stem, curve_name, *marks, f"{step:.2f} (K={k})", *needed]
                print(f"| {' | '.join(about)} |")


def errors(series: Sequence[Mapping[str, Any]], predicted: str) -> list[float]:
    """Of every batch that has been predicted so, as a share of the published speedup."""
    return [
        each[predicted][batch] / value - 1
        for each in series
        if predicted in each
        for batch, value in each["speedup"].items()
    ]


def beside(
    published: Sequence[Mapping[str, Any]],
    predictions: Sequence[Mapping[str, Any]],
    rooflines: Sequence[Mapping[str, Any]],
    recorded: Mapping[str, Sequence[Request]],
) -> list[dict[str, Any]]:
    """Each published series with what was predicted of it, and what comes out after looking."""
    own, other = (
        {(each["dataset"], each["drafter"], each["k"]): each for each in cells}
        for cells in (predictions, rooflines)
    )
    found = []
    for series in published:
        if "speedup" not in series:
            continue
        name = series["dataset"], series["drafter"], series["k"]
        row = dict(series) | {"band": own[name]["whole"]}
        row["predicted"] = {batch: own[name]["whole"][batch][0] for batch in series["speedup"]}
        if series["kind"] == "measured":
            row["roofline"] = {batch: other[name]["decode"][batch][0] for batch in series["speedup"]}
        # n-grams: measured ones draft where something is kept; the simulator's in the share that it states
        copied = 0.0 if series["kind"] == "measured" else MATCHED[series["dataset"]]
        unmatched = copied if series["drafter"] == "ngram" else 1.0
        batches = [int(batch) for batch in series["speedup"]]
        row["after"] = mended(recorded[series["dataset"]], series["drafter"], series["k"], batches, unmatched)
        found.append(row)
    return found


WAYS = {"predicted": "predicted, frozen", "roofline": "roofline, frozen", "after": "after looking"}


def comparison(rows: Sequence[Mapping[str, Any]]) -> str:
    """The errors as Markdown: in short, then cell by cell."""
    lines = ["| published as | kind | by | cells | within 10% | median | largest |"]
    lines.append("| :-- | :-- | :-- | --: | --: | --: | --: |")
    for kind, shown in dict.fromkeys((row["kind"], row["shown"]) for row in rows):
        own = [row for row in rows if (row["kind"], row["shown"]) == (kind, shown)]
        for way, title in WAYS.items():
            if len(found := np.abs(errors(own, way))):
                within = int((found <= 0.1).sum())
                ends = f"{np.median(found):.1%} | {found.max():.1%}"
                lines.append(f"| {shown} | {kind} | {title} | {len(found)} | {within} | {ends} |")
    lines += ["", "| source | data | published as | K | batch | published | predicted [95%] | off by |"]
    lines[-1] += " roofline | off by | after looking | off by |"
    lines.append("| :-- | :-- | :-- | --: | --: | --: | --: | --: | --: | --: | --: | --: |")
    for row in rows:
        for batch, value in row["speedup"].items():
            estimate, low, high = row["band"][batch]
            parts = [row["source"], row["dataset"], row["shown"], str(row["k"]), batch, f"{value:.2f}"]
            parts += [f"{estimate:.2f} [{low:.2f}, {high:.2f}]", f"{estimate / value - 1:+.1%}"]
            for way in ("roofline", "after"):
                own = row.get(way, {}).get(batch)
                parts += ["", ""] if own is None else [f"{own:.2f}", f"{own / value - 1:+.1%}"]
            lines.append(f"| {' | '.join(parts)} |")
    return "\n".join(lines) + "\n"


def compare(repository: Path, out: Path) -> None:
    """Write the comparison."""
    predictions, rooflines, published = (
        json.loads((FOLDER / f"{name}.json").read_text()) for name in ("predictions", "roofline", "published")
    )
    recorded = {name: requests_in(content(repository, path_of(name))) for name in DATASETS}
    rows = beside(published["series"], predictions["cells"], rooflines["cells"], recorded)
    out.write_text(comparison(rows))


def implied(cell: Mapping[str, Any], speedup: float) -> float:
    """Tokens per loop that a speedup at batch 1 means by the paper's times: nearly in proportion to it."""
    return float(cell["acceptance"][0] * speedup / cell["whole"]["1"][0])


NAMES = {"eagle": "EAGLE-3", "ngram": "n-gram"}
"""By what Figure 7 of the paper shows of each."""


def draw(out: Path, dataset: str) -> None:
    """Draw the replayed curves of a data set, and the lengths that published speedups at batch 1 mean."""
    from spsbench.report.figures.curve import acceptance

    predictions, published = (
        json.loads((FOLDER / f"{name}.json").read_text()) for name in ("predictions", "published")
    )
    cells = {
        (each["drafter"], each["k"]): each for each in predictions["cells"] if each["dataset"] == dataset
    }
    curves: dict[str, dict[int, Interval]] = {}
    for (drafter, k), cell in cells.items():
        curves.setdefault(f"{NAMES[drafter]}, replayed", {})[k] = Interval(*cell["acceptance"])
    for each in published["series"]:
        if each["dataset"] != dataset or "speedup" not in each:
            continue
        if (each["kind"], each["shown"]) != ("measured", "EAGLE"):  # what is recorded is EAGLE-3's
            name = f"{NAMES[each['drafter']]}, {each['kind']} ({each['source'].partition(' (')[0]})"
            length = implied(cells[each["drafter"], each["k"]], each["speedup"]["1"])
            curves.setdefault(name, {})[each["k"]] = Interval(length, None, None)
    stamp = f"Llama-3.1-8B, {dataset}: arXiv 2601.11580 and its recorded requests"
    out.write_text(acceptance(curves, stamp, synthetic=False, caption="").svg)


def main(arguments: list[str]) -> int:
    """Carry out one part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", choices=["predict", "roofline", "compare", "figure", "golden"])
    parser.add_argument("--repository", type=Path)
    parser.add_argument("--golden", type=Path, help="a clone of InferenceX")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if options.part == "predict":
        predict(options.repository, options.out or FOLDER / "predictions.json")
    elif options.part == "roofline":
        roofline(options.repository, options.out or FOLDER / "roofline.json")
    elif options.part == "compare":
        compare(options.repository, options.out or FOLDER / "comparison.md")
    elif options.part == "figure":
        draw(options.out or FOLDER.parents[2] / "docs/images/validation-gsm8k.svg", "gsm8k")
    else:
        golden(options.repository, options.golden)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
