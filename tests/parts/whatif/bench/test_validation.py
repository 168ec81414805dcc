"""The script of predictions for published measurements, on requests that are made up here (synthetic)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks import validation
from benchmarks.validation import (
    MATCHED,
    PAPERS,
    Request,
    Walk,
    beside,
    cells,
    comparison,
    errors,
    mended,
    requests_in,
    seconds,
    smallest_step,
    step_spreads,
    walk,
)
from spsbench.parts.whatif.commands.explain import shape


def recorded(seed: int = 0, requests: int = 12) -> list[dict[str, object]]:
    """Lines as the paper's simulator has them."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, 30, requests)
    return [
        {"prompt_token_ids": [1] * int(rng.integers(5, 50)), "generated_token_ids": [1] * int(n)}
        | {f"acc_{name}": {"acc_len": rng.integers(1, 9, n).tolist()} for name in validation.DRAFTERS}
        for n in lengths
    ]


def read(rows: list[dict[str, object]]) -> list[Request]:
    return requests_in("\n".join(map(json.dumps, rows)).encode())


def stepped(request: Request, k: int, batch: int) -> tuple[float, float]:
    """Seconds without and with drafts of one request's share, step by step."""
    times, ahead = PAPERS, request.ahead["eagle"]
    prompt = (times.fixed + times.step) / batch + request.prompt * times.token

    def step(context: int, tokens: int) -> float:
        return (times.fixed + times.step) / batch + tokens * times.token + context * times.cached

    plain = prompt + sum(step(request.prompt + 1 + place, 1) for place in range(len(ahead)))
    fast, place = prompt, 0
    while place < len(ahead):
        context = request.prompt + 1 + place
        draft = (times.draft + times.draft_token * (k + 1)) / batch + times.draft_cached * context
        fast += step(context, k + 1) + draft
        place += min(int(ahead[place]), k) + 1
    return plain, fast


def test_a_speedup_is_that_of_a_walk_step_by_step() -> None:
    requests = read(recorded())
    for cell in cells("gsm8k", requests, "eagle", PAPERS, ks=(1, 3, 5)):
        for batch in (1, 16, 128):
            plain, fast = np.array([stepped(each, cell["k"], batch) for each in requests]).sum(0)
            estimate, low, high = cell["whole"][str(batch)]
            assert estimate == pytest.approx(plain / fast, abs=1e-4)
            assert low < estimate < high


def loops(accepted: list[int], k: int) -> int:
    """Loops over a text of which each place says how many drafts would be accepted there."""
    place = found = 0
    while place < len(accepted):
        place += min(accepted[place], k) + 1
        found += 1
    return found


def test_acceptance_is_tokens_over_the_loops_of_a_walk() -> None:
    requests = read(recorded())
    (cell,) = cells("cnn", requests, "ngram", PAPERS, ks=(4,))
    ahead = [each.ahead["ngram"].tolist() for each in requests]
    counted = [loops(each, 4) for each in ahead]
    assert cell["acceptance"][0] == pytest.approx(sum(map(len, ahead)) / sum(counted), abs=1e-4)
    assert cell["acceptance"][0] != pytest.approx(
        np.mean([min(a, 4) + 1 for own in ahead for a in own]), abs=1e-2
    ), "a mean over all places, where loops begin or not, is another number"


def test_drafts_that_are_never_kept_cost_what_they_cost() -> None:
    ahead = np.zeros(10, np.int64)
    matched = walk(20, ahead, 3, MATCHED["cnn"])
    assert matched == Walk(10, pytest.approx(4.0), sum(range(21, 31)))
    plain = seconds(PAPERS, Walk(10, 10, matched.context), 0, 8, copies=True)
    assert seconds(PAPERS, matched, 3, 8, copies=True) > plain
    free = dataclasses.replace(PAPERS, token=0.0, copying=0.0)
    plain = seconds(free, Walk(10, 10, matched.context), 0, 8, copies=True)
    assert seconds(free, matched, 3, 8, copies=True) == pytest.approx(plain)


def test_predictions_are_written_from_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "clone" / "data/llama3.1-8B"
    folder.mkdir(parents=True)
    for number, name in enumerate(validation.DATASETS):
        lines = "\n".join(map(json.dumps, recorded(number)))
        (folder / f"combined_{name}.jsonl").write_text(lines)
    git = ["git", "-C", str(tmp_path / "clone"), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "data"]):
        subprocess.run([*git, *command], check=True)
    out = tmp_path / "predictions.json"
    assert validation.main(["predict", "--repository", str(tmp_path / "clone"), "--out", str(out)]) == 0
    written = json.loads(out.read_text())
    assert len(written["source"]["commit"]) == 40
    assert len(written["cells"]) == 4 * 2 * len(validation.KS)
    assert str(tmp_path) not in out.read_text()


def test_the_shape_of_a_published_curve_is_read_by_hundredths() -> None:
    still = {1: 1.8, 2: 2.55, 3: 2.54, 4: 2.54}
    assert (shape(still), smallest_step(still)) == ({3: "falls"}, (3, 0.01))
    assert shape(still | {4: 2.56}) == {3: "falls", 4: "step grows"}
    even = {1: 1.8, 2: 2.5, 3: 3.0, 4: 3.4}
    assert (shape(even), smallest_step(even)) == ({}, (4, 0.4))


def test_one_set_of_texts_shows_a_step_that_other_texts_for_each_k_do_not() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(50, 200, 300).astype(np.float64)
    own = tokens / rng.uniform(2, 4, 300)  # loops at the smallest K: prompts differ
    loops = own[:, None] / np.array([1.0, 1.2, 1.3])  # and gain alike
    fresh, same = step_spreads(tokens, loops, rng, draws=500)
    assert (same < 1e-9).all()
    assert (fresh > 0.01).all()


def published(speedups: dict[str, float], **other: object) -> dict[str, object]:
    own = {"source": "Figure 0", "kind": "measured", "dataset": "gsm8k", "drafter": "eagle", "shown": "EAGLE"}
    return own | {"k": 3, "speedup": speedups} | other


def test_a_comparison_shows_an_error_that_is_there_and_none_that_is_not() -> None:
    requests = read(recorded())
    (cell,) = cells("gsm8k", requests, "eagle", PAPERS, ks=(3,))
    (other,) = cells("gsm8k", requests, "ngram", PAPERS, ks=(3,))
    right = {batch: cell["whole"][batch][0] for batch in ("1", "64")}
    wrong = {batch: value / 1.2 for batch, value in right.items()}
    roofs = [
        {"dataset": "gsm8k", "drafter": each, "k": 3, "decode": cell["whole"]} for each in ("eagle", "ngram")
    ]
    series = [
        published(right),
        published(wrong, shown="EAGLE-3"),
        published(right, drafter="ngram", kind="simulated"),
    ]
    rows = beside([*series, {"quartiles": [1, 2, 3]}], [cell, other], roofs, {"gsm8k": requests})
    assert errors(rows[:1], "predicted") == [0.0, 0.0]
    assert errors(rows[1:2], "predicted") == pytest.approx([0.2, 0.2])
    assert errors(rows[2:], "roofline") == []
    text = comparison(rows)
    assert "| EAGLE | measured | predicted, frozen | 2 | 2 | 0.0% | 0.0% |" in text
    assert "| EAGLE-3 | measured | predicted, frozen | 2 | 0 | 20.0% | 20.0% |" in text
    assert len(text.splitlines()) == 2 + 8 + 1 + 2 + 6


def test_a_mean_over_requests_is_not_the_pooled_speedup() -> None:
    slow, fast = np.zeros(400, np.int64), np.full(10, 8)
    requests = [Request(10, {"eagle": slow}), Request(10, {"eagle": fast})]
    (cell,) = cells("gsm8k", requests, "eagle", PAPERS, ks=(3,))
    after = mended(requests, "eagle", 3, [1], 1.0)
    assert after["1"] > 1.3 > cell["whole"]["1"][0]
    alike = mended([requests[0], requests[0]], "eagle", 3, [1], 1.0)
    (cell,) = cells("gsm8k", [requests[0], requests[0]], "eagle", PAPERS, ks=(3,))
    assert alike["1"] == pytest.approx(cell["whole"]["1"][0], abs=1e-4)


def test_the_frozen_predictions_are_those_that_were_committed_before_looking() -> None:
    frozen = {
        "predictions.json": "b19fac6231e672f0959766f051c32a2d8c8d45c1ac3e8a8bb6d28b81a0205e68",
        "roofline.json": "34a2c7a0fb31722934916aa477707bf7442e0a7ad0517de8528db4afcd1a0751",
    }
    for name, digest in frozen.items():
        assert hashlib.sha256((validation.FOLDER / name).read_bytes()).hexdigest() == digest, name


@pytest.mark.thorough
def test_the_figure_shows_every_published_point(tmp_path: Path) -> None:
    out = tmp_path / "figure.svg"
    assert validation.main(["figure", "--out", str(out)]) == 0
    text = out.read_text()
    for name in ("EAGLE-3, replayed", "n-gram, measured (Figure 1)", "EAGLE-3, simulated (Figure 10)"):
        assert name in text
