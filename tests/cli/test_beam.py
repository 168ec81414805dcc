"""``spsbench run --sampling beam`` as it is typed: arms, records, verdicts and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.commandline import BRIEF, SMALL, Cli, Result, call, journal
from support.tiny_models import save_seq2seq

from spsbench.store import read_frames


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A run of exact beam search, its speculation and the draft's search, and greedy beside them."""
    directory = tmp_path_factory.mktemp("beam") / "run"
    asked = ("--sampling", "beam:width=3:draft_width=5,greedy", "--k", "3")
    more = ("--arms", "ars,sps,draft", "--fail-on", "lossless", "--no-proof", "--no-score")
    return directory, call("run", "xsum", *BRIEF, *SMALL, "--limit", "2", *asked, *more, "--out", directory)


def of(directory: Path, name: str) -> Any:
    return json.loads((directory / name).read_text())


BEAMS = {"ars-beam(3)", "sps-k3-beam(3)", "draft-beam(3)"}


@pytest.mark.thorough
def test_its_arms_stand_beside_those_that_sample(searched: tuple[Path, Result]) -> None:
    directory, result = searched
    assert result.code == 0, result.err
    rows = of(directory, "summary.json")["rows"]
    assert {row["arm"] for row in rows if row["sampling"] == "beam(3)"} == BEAMS
    assert {row["baseline"] for row in rows if row["method"] == "sps"} == {"ars-beam(3)", "ars-greedy"}
    for row in rows:
        if row["arm"].endswith("beam(3)") and row["method"] == "sps":
            assert (row["drafter"], row["rule"], row["policy"]) == ("model", None, "fixed")
            assert row["verification_rule"] == "all 3 beams of the target among the draft's 5"
    params = {arm["arm"]: arm["params"] for arm in of(directory, "run.json")["arms"]}
    assert params["ars-beam(3)"]["beam"] == {
        "width": 3,
        "draft_width": 5,
        "length_penalty": 1.0,
        "early_stopping": False,
    }
    assert "beam" not in params["ars-greedy"]


def test_speculation_found_the_same_hypotheses(searched: tuple[Path, Result]) -> None:
    directory, result = searched
    lines = journal(directory)
    by_prompt: dict[str, list[list[list[int]]]] = {}
    for line in lines:
        if line["arm"] in BEAMS - {"draft-beam(3)"}:
            found = [one["tokens"] for one in line["hypotheses"]]
            assert line["token_ids"] == found[0]
            assert len(found) == 3
            by_prompt.setdefault(line["example_id"], []).append(found)
    assert len(by_prompt) == 2
    assert all(found == [found[0]] * 2 for found in by_prompt.values())
    assert all("hypotheses" not in line for line in lines if line["arm"] not in BEAMS)
    assert "identical on all 2 prompts (hypotheses and scores)" in " ".join(result.out.split())


def test_what_is_about_samples_is_absent(searched: tuple[Path, Result]) -> None:
    directory, _ = searched
    summary = of(directory, "summary.json")
    for row in summary["rows"]:
        if row["arm"] in BEAMS and row["method"] == "sps":
            accepted = row["acceptance"]
            names = ("alpha_beta", "alpha_tested", "alpha_iid", "alpha_leviathan")
            assert [accepted[name] for name in names] == [None] * 4
            assert 1 <= accepted["mean_acceptance_length"] <= row["k"] + 1
            assert row["acceptance_z"] is None
    for arm in summary["losslessness"]["arms"]:
        if arm["arm"] in BEAMS:
            assert arm["verdict"] == "ok"
            assert arm["rescored"] is arm["self_consistency"] is arm["decisions"] is arm["proof"] is None
            assert arm["beams"]["scores"]["largest_difference"] < 1e-3
        else:
            assert arm["beams"] is None
    explained = [*(summary["why"] or []), *summary["ceiling"]["arms"], *summary["prediction"]["arms"]]
    assert "sps-k3-greedy" in {entry["arm"] for entry in explained}
    assert not {entry["arm"] for entry in explained} & BEAMS


def test_tables_have_the_hypotheses_too(searched: tuple[Path, Result]) -> None:
    samples = read_frames(searched[0]).samples
    for row in samples.itertuples():
        if row.arm in BEAMS:
            assert json.loads(row.hypotheses)[0]["tokens"] == row.token_ids
        else:
            assert not isinstance(row.hypotheses, str)


def test_a_run_is_continued(searched: tuple[Path, Result]) -> None:
    directory, _ = searched
    before = journal(directory)
    again = call("run", "--resume", directory, "--quiet")
    assert again.code == 0, again.err
    assert journal(directory) == before
    assert "hypotheses and scores of exact beam search in 2 of 2" in (directory / "report.md").read_text()


def test_a_replay_uses_the_texts_that_were_sampled(searched: tuple[Path, Result]) -> None:
    refused = call("replay", searched[0], "--sampling", "beam(3)")
    assert refused.code == 2
    assert "--sampling" in refused.err


def test_a_run_of_beams_alone_is_not_replayed(cli: Cli) -> None:
    done = cli("run", "xsum", *BRIEF, *SMALL, "--sampling", "beam:width=1", "--arms", "ars", "--out", "run")
    assert done.code == 0, done.err
    refused = cli("replay", "run")
    assert refused.code == 2
    assert "under another sampling than beam" in " ".join(refused.err.split())


@pytest.mark.parametrize("architecture", ["t5", "bart"])
def test_an_encoder_decoder_searches_too(cli: Cli, architecture: str) -> None:
    target, draft = (save_seq2seq(architecture, Path(f"m{seed}"), seed) for seed in range(2))
    Path("prompts.txt").write_text("The house is small.\nA green tree.\n")
    pair = ("--target", target, "--draft", draft, "--device", "cpu")
    asked = ("--sampling", "beam:width=2", "--k", "3", "--fail-on", "lossless")
    done = cli("run", "prompts.txt", *SMALL, "--limit", "2", *pair, *asked, "--out", "run")
    assert done.code == 0, done.err
    assert "identical on all 2 prompts" in " ".join(done.out.split())


def test_a_window_of_attention_is_refused(cli: Cli) -> None:
    from support.tiny_models import config_of, make, save

    model = save(make(config_of("mistral")), Path("windowed"))
    Path("prompts.txt").write_text("A prompt that is longer than the window.\n")
    pair = ("--target", model, "--draft", model, "--device", "cpu")
    refused = cli("run", "prompts.txt", *SMALL, *pair, "--sampling", "beam")
    assert refused.code == 2
    assert "attention over a window of 16 tokens" in " ".join(refused.err.split())
