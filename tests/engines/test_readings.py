"""A text that is read again a few positions at a time says what it says read at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.commandline import ALONE, BRIEF, call, journal
from support.rederived import tiny

from spsbench.base.records import SamplingParams
from spsbench.engines import rescore
from spsbench.engines.rescore import Scores, readings, score_stats, teacher_force
from spsbench.law.evidence import Sums, added

PROMPT, TEXT = [7, 8, 9], [11, 12, 13, 200, 14, 15, 16, 17, 18, 19, 20]
NUCLEUS = SamplingParams(temperature=0.7, top_p=0.6)


@pytest.mark.parametrize("alone", [True, False])
def test_parts_are_the_whole(alone: bool) -> None:
    target, draft = tiny()
    models = (target, None if alone else draft)
    whole = teacher_force(*models, PROMPT, TEXT, NUCLEUS)
    parts = list(readings(*models, PROMPT, TEXT, NUCLEUS, rows=4))
    assert [first for first, _ in parts] == [0, 4, 8]
    for name in ("tokens", "logits", "q", "impossible", "edge", *(() if alone else ("p", "draft_logits"))):
        joined = torch.cat([getattr(part, name) for _, part in parts])
        assert torch.allclose(joined.double(), getattr(whole, name).double(), atol=1e-5), name
    scores, sums = Scores(3, len(TEXT)), Sums()
    for _, part in parts:
        sums = added(sums, scores.of(part))
    assert sums == pytest.approx(score_stats(whole, 3), rel=1e-4, abs=1e-4)
    assert sum(bool(part.impossible.any()) for _, part in parts) > 1, "tokens that are left out are seen"


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_says_the_same_by_parts(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafters = "model,lookup,early-exit,suffix" if dtype == "float32" else "model,lookup"
    given = ("run", *BRIEF, *ALONE, "--limit", 1, "--max-new-tokens", 19, "--k", "2", "--drafter", drafters)
    found = []
    for rows in (1000, 5):
        monkeypatch.setattr(rescore, "rows_at_a_time", lambda size, rows=rows: rows)
        folder = tmp_path / str(rows)
        result = call(*given, "--dtype", dtype, "--backend", "torch", "--out", folder)
        assert result.code == 0, result.err
        found.append({line["arm"]: line for line in journal(folder)})
    for arm, line in found[0].items():
        again = found[1][arm]
        assert again["token_ids"] == line["token_ids"]
        assert again["losslessness"] == pytest.approx(line["losslessness"], rel=1e-3, abs=1e-3)
        assert again["losslessness"].keys() >= {"rescored_positions", "decisions_rows_target_apart"}
        assert len(again["token_evidence"]) == len(line["token_evidence"])
