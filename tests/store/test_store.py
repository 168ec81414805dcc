from __future__ import annotations

import ast
import errno
import json
import os
import signal
import subprocess
import sys
import zlib
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from spsbench.base import files
from spsbench.base.axes import AXES
from spsbench.base.errors import SpsbenchError, UsageError
from spsbench.base.records import (
    UNRANKED,
    Generation,
    Hypothesis,
    Loop,
    Prompt,
    Sample,
    TokenEvidence,
    TracedToken,
)
from spsbench.store import (
    Frames,
    RunStore,
    codec,
    fresh_directory,
    latest,
    read_frames,
    read_summary,
    schema,
    write_summary,
)
from spsbench.store.checks import check_sample
from spsbench.store.codec import pack_evidence, unpack_evidence
from spsbench.store.journal import Journal
from spsbench.store.schema import differences

IDENTITY = {"task": "xsum", "models": {"target": "abc", "draft": "def"}, "arms": ["ars", "sps-k4"], "seed": 0}
PROMPTS = [Prompt(f"e{i}", f"Article {i}", (1, 2, i), f"summary {i}") for i in range(3)]


def make_loop(i: int = 0, *, phases: bool = True) -> Loop:
    seconds = (0.001, 0.002, 0.0005, 0.0001) if phases else (None, None, None, None)
    return Loop(4, i % 5, i % 5 + 1, min(i % 5 + 1, 4), 0.123456789012345, 0, *seconds, 0.0036)


def make_sample(
    example_id: str = "e0",
    index: int = 0,
    arm: str = "sps-k4",
    *,
    loops: int | None = 3,
    error: str | None = None,
) -> Sample:
    generation = Generation(
        tokens=[] if error else [5, 6, 7],
        text="" if error else "a summary ½\u2028\n",
        loops=None if loops is None else [make_loop(i) for i in range(loops)],
        prefill_s=0.25,
        decode_s=0.5,
        finish_reason="error" if error else "stop",
        trace=[
            TracedToken(0, 0, 5, "accepted", 0.5, 0.25, 0.125),
            TracedToken(0, 1, 6, "bonus", 0.5, None, 0.5),
        ],
        losslessness={"score": 1.5},
    )
    return Sample(example_id, index, arm, 17, generation, conditions={"load_1m": 1.5}, error=error)


def begin(directory: Path, **changes: Any) -> RunStore:
    arguments: dict[str, Any] = {
        "identity": IDENTITY,
        "config": {"task": "xsum", "ks": (4,)},
        "info": {"environment": {"cpu": {"model": "x"}}},
        "prompts": PROMPTS,
    }
    return RunStore.create(directory, resume=True, **arguments | changes)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with begin(tmp_path / "run") as opened:
        yield opened


# --- what is written comes back


def test_a_sample_comes_back_as_it_was(store: RunStore) -> None:
    sample = make_sample()
    blind = make_sample("e1", loops=None)
    empty = make_sample("e2", loops=0, error="out of memory")
    for one in (sample, blind, empty):
        store.append(one)
    assert list(store.samples()) == [sample, blind, empty]
    assert list(RunStore.open(store.directory).samples()) == [sample, blind, empty]


def test_unseen_phases_stay_unseen(store: RunStore) -> None:
    sample = make_sample()
    sample.generation.loops = [make_loop(1, phases=False)]
    store.append(sample)
    assert list(store.samples()) == [sample]
    assert store.frames().loops["draft_s"].isna().all()


def test_run_file_configuration_and_prompts(store: RunStore) -> None:
    info = store.run_info()
    assert info["identity"] == IDENTITY
    assert info["environment"] == {"cpu": {"model": "x"}}
    assert info["schema_version"] == 1
    assert yaml.safe_load((store.directory / "config.yaml").read_text()) == {"task": "xsum", "ks": [4]}
    assert store.prompts() == PROMPTS
    line = json.loads((store.directory / "prompts.jsonl").read_text().splitlines()[0])
    assert set(line) == {"example_id", "prompt", "prompt_ids", "reference", "truncated_tokens"}


def test_the_last_line_of_a_key_wins_and_a_failure_is_not_done(store: RunStore) -> None:
    store.append(make_sample("e0", error="out of memory"))
    store.append(make_sample("e1"))
    assert store.done() == {("e1", 0, "sps-k4")}
    assert store.failed() == {("e0", 0, "sps-k4")}
    store.append(make_sample("e0"))
    assert store.done() == {("e0", 0, "sps-k4"), ("e1", 0, "sps-k4")}
    assert [sample.error for sample in store.samples()] == [None, None]
    assert list(store.frames().samples["example_id"]) == ["e1", "e0"]


def test_scores_are_merged(store: RunStore) -> None:
    sample = make_sample()
    sample.scores = {"rouge1": 0.5}
    store.append(sample)
    store.append_scores(sample.key, {"rouge2": 0.1})
    store.append_scores(sample.key, {"rouge2": 0.2})
    expected = {"rouge1": 0.5, "rouge2": 0.2}
    assert next(store.samples()).scores == expected
    with RunStore.open(store.directory) as again:
        assert next(again.samples()).scores == expected
        assert again.frames().samples["scores"].iloc[0] == expected


def test_the_summary_turns_what_json_lacks_into_null(store: RunStore) -> None:
    summary: Any = {"schema_version": 1, "rows": [{"ms_per_token": float("nan"), "k": 4}], "warnings": ("a",)}
    write_summary(store.directory, summary)
    rows = [{"ms_per_token": None, "k": 4}]
    assert read_summary(store.directory) == {"schema_version": 1, "rows": rows, "warnings": ["a"]}


def test_facts_learnt_later_go_into_the_run_file(store: RunStore) -> None:
    store.note(models={"target": {"name": Path("a/b")}})
    again = RunStore.open(store.directory).run_info()
    assert again == store.run_info()
    assert again["models"] == {"target": {"name": "a/b"}}
    assert again["identity"] == IDENTITY


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("headline_metric", True),
        ("models", {"target": {"parameters": "many"}}),
        ("arms", [{"arm": "ars", "method": "ars"}]),
        ("stolen_share", "much"),
        ("engine_fallbacks", [1]),
    ],
)
def test_a_run_file_that_means_nothing_is_damaged(store: RunStore, field: str, value: object) -> None:
    store.note(**{field: value})
    with pytest.raises(UsageError, match=rf"run\.json is damaged \({field}"):
        RunStore.open(store.directory)


def test_the_report_is_text_in_utf8(store: RunStore) -> None:
    store.write_report("1.92 × faster\n")
    assert (store.directory / "report.md").read_bytes().decode() == "1.92 × faster\n"


def test_no_summary_yet_is_a_usage_error(store: RunStore) -> None:
    with pytest.raises(UsageError, match=r"summary\.json"):
        read_summary(store.directory)


# --- frames


KEY = {"example_id", "sample_index", "arm"}
SAMPLE_COLUMNS = KEY | {"prompt_tokens", "new_tokens", "finish_reason"}
SAMPLE_COLUMNS |= {"order", "prefill_s", "decode_s", "token_ids", "text", "scores", "losslessness", "error"}
SAMPLE_COLUMNS |= {"condition", "conditions", "category", "hypotheses", "latency_s", "wave", "unread"}
SAMPLE_COLUMNS |= {"attempt", "timings"}
LOOP_COLUMNS = KEY | {
    "loop",
    "drafted",
    "accepted",
    "emitted",
    "tested",
    "beta_sum",
    "truncated",
    "rollback_s",
}
LOOP_COLUMNS |= {
    "draft_s",
    "verify_s",
    "sample_s",
    "comm_s",
    "other_s",
    "loop_s",
    "optimal_accepted",
    "nodes",
    "siblings",
    "host_s",
}
TOKEN_COLUMNS = KEY | {"loop", "position", "token_id", "fate", "target_prob", "draft_prob", "u"}


def assert_same(one: Frames, other: Frames) -> None:
    import pandas as pd

    pd.testing.assert_frame_equal(one.samples, other.samples)
    pd.testing.assert_frame_equal(one.loops, other.loops)
    pd.testing.assert_frame_equal(one.tokens, other.tokens)
    pd.testing.assert_frame_equal(one.evidence, other.evidence)


def test_frames_have_the_columns_of_the_contract_even_when_empty(store: RunStore) -> None:
    for frames in (store.frames(), fill(store).frames()):
        assert set(frames.samples.columns) == SAMPLE_COLUMNS
        assert set(frames.loops.columns) == LOOP_COLUMNS
        assert set(frames.tokens.columns) == TOKEN_COLUMNS
        assert frames.loops["accepted"].dtype == "int32"
        assert frames.loops["draft_s"].dtype == "float64"


def test_hypotheses_go_through_journal_and_tables(store: RunStore) -> None:
    found = [Hypothesis((4, 5), -1.5, -3.0, "eos"), Hypothesis((4, 6, 7), -2.0, -6.0, "length")]
    for name, hypotheses in (("e0", found), ("e1", None)):
        sample = make_sample(name)
        sample.generation.hypotheses = hypotheses
        store.append(sample)
    assert [sample.generation.hypotheses for sample in store.samples()] == [found, None]
    before = store.frames()
    store.write_parquet()
    for frames in (before, read_frames(store.directory)):
        text, nothing = frames.samples["hypotheses"]
        assert [tuple(row["tokens"]) for row in json.loads(text)] == [(4, 5), (4, 6, 7)]
        assert not isinstance(nothing, str)


def test_a_category_goes_through_journal_and_tables(store: RunStore) -> None:
    for name, category in (("e0", "code"), ("e1", None)):
        sample = make_sample(name)
        sample.category = category
        store.append(sample)
    assert [sample.category for sample in store.samples()] == ["code", None]
    from_journal = store.frames()
    store.write_parquet()
    assert_same(store.frames(), from_journal)
    assert from_journal.samples["category"].isna().tolist() == [False, True]
    rows = [json.loads(line) for line in (store.directory / "samples.jsonl").read_text().splitlines()]
    assert ["category" in row for row in rows] == [True, False]


def test_what_came_later_to_a_prompt_is_kept_where_it_is_there(tmp_path: Path) -> None:
    prompts = [
        Prompt("a", "A", (1,), "r", category="x", other_references=("s", "t")),
        Prompt("b", "B", (2,), ""),
    ]
    codec.write_prompts(tmp_path / "prompts.jsonl", prompts)
    assert codec.read_prompts(tmp_path / "prompts.jsonl") == prompts
    plain = json.loads((tmp_path / "prompts.jsonl").read_text().splitlines()[1])
    assert plain.keys() == {"example_id", "prompt", "prompt_ids", "reference", "truncated_tokens"}
    for key in plain:
        (tmp_path / "prompts.jsonl").write_text(json.dumps({k: v for k, v in plain.items() if k != key}))
        with pytest.raises(UsageError):
            codec.read_prompts(tmp_path / "prompts.jsonl")


def fill(store: RunStore) -> RunStore:
    for i in range(3):
        store.append(make_sample(f"e{i}", loops=i))
    store.append(make_sample("e0", arm="ars", loops=None))
    store.append(make_sample("e1", arm="ars", loops=0, error="NaN logits"))
    store.append_scores(("e0", 0, "sps-k4"), {"rouge2": 0.25})
    return store


def test_frames_hold_what_the_samples_say(store: RunStore) -> None:
    frames = fill(store).frames()
    assert list(frames.samples["new_tokens"]) == [3, 3, 3, 3, 0]
    assert frames.samples["token_ids"].iloc[0] == [5, 6, 7]
    assert frames.samples["losslessness"].iloc[0] == {"score": 1.5}
    assert list(frames.samples["error"].notna()) == [False, False, False, False, True]
    assert list(frames.loops["example_id"]) == ["e1", "e2", "e2"]
    assert list(frames.loops["loop"]) == [0, 0, 1]
    assert list(frames.loops["accepted"]) == [0, 0, 1]
    assert frames.loops["beta_sum"].iloc[0] == 0.123456789012345
    assert list(frames.tokens["fate"].iloc[:2]) == ["accepted", "bonus"]
    assert list(frames.tokens["draft_prob"].isna().iloc[:2]) == [False, True]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("samples", b"", "samples.parquet is damaged."),
        ("loops", b"PAR1", "loops.parquet is damaged."),
        ("tokens", None, "tokens.parquet is missing, as is samples.jsonl."),
    ],
)
def test_a_damaged_table_is_told_where_nothing_else_is_left(
    store: RunStore, name: str, content: bytes | None, why: str
) -> None:
    """It is no run without samples."""
    fill(store).write_parquet()
    path = store.directory / f"{name}.parquet"
    whole = path.read_bytes()
    path.unlink() if content is None else path.write_bytes(content or whole[:-40])
    assert len(store.frames().samples)  # from the journal
    (store.directory / "samples.jsonl").unlink()
    with pytest.raises(UsageError, match=why):
        store.frames()


def test_parquet_and_journal_agree_to_the_dtype(store: RunStore) -> None:
    fill(store).write_parquet()
    journal = store.frames()
    assert_same(read_frames(store.directory), journal)
    (store.directory / "samples.jsonl").rename(store.directory / "elsewhere")
    assert_same(read_frames(store.directory), journal)


def test_stale_or_damaged_parquet_is_not_believed(store: RunStore) -> None:
    fill(store).write_parquet()
    store.append(make_sample("e2", 1))
    assert len(read_frames(store.directory).samples) == 6
    store.write_parquet()
    store.append_scores(("e2", 1, "sps-k4"), {"rouge2": 0.5})
    assert read_frames(store.directory).samples["scores"].iloc[-1] == {"rouge2": 0.5}
    store.write_parquet()
    (store.directory / "loops.parquet").write_bytes(b"PAR1")
    assert len(read_frames(store.directory).loops) == 6
    store.write_parquet()
    whole = read_frames(store.directory).samples
    content = (store.directory / "samples.parquet").read_bytes()
    for place in range(4, len(content) // 2, 97):  # pages come first; each carries its checksum
        changed = bytes([content[place] ^ 0xFF])
        (store.directory / "samples.parquet").write_bytes(content[:place] + changed + content[place + 1 :])
        assert read_frames(store.directory).samples.equals(whole)


@pytest.mark.parametrize(("name", "column"), [("loops", b"beta_sum"), ("tokens", b"target_prob")])
def test_a_table_without_a_column_of_its_own_is_not_believed(
    store: RunStore, name: str, column: bytes
) -> None:
    """A flipped byte in the footer, which has no checksum, is enough to rename a column."""
    fill(store).write_parquet()
    whole = read_frames(store.directory)
    path = store.directory / f"{name}.parquet"
    path.write_bytes(path.read_bytes().replace(column, column.swapcase()))
    assert column.decode() not in pq.read_table(path).column_names
    assert_same(read_frames(store.directory), whole)


def test_evidence_is_made_of_numbers(store: RunStore) -> None:
    store.append(make_sample("e1", 0))
    journal = store.directory / "samples.jsonl"
    row = json.loads(journal.read_text().splitlines()[0])
    for told, right in (({"score": 2.0}, True), ({"score": "two"}, False), ([2.0], False)):
        with nullcontext() if right else pytest.raises(ValueError, match="losslessness"):
            check_sample(row | {"losslessness": told})


# --- which directory


def test_a_foreign_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("mine")
    with pytest.raises(UsageError, match=r"config\.yaml") as caught:
        begin(tmp_path)
    assert caught.value.flag == "--out"
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    assert (tmp_path / "config.yaml").read_text() == "mine"


def test_an_unwritable_directory_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written to"):
        begin(tmp_path / "file" / "run")
    with pytest.raises(UsageError, match="cannot be written to"):
        fresh_directory(tmp_path / "file", "xsum", "mini")


def test_create_does_not_continue(store: RunStore) -> None:
    store.close()
    with pytest.raises(UsageError, match="already holds a run"):
        RunStore.create(store.directory, identity=IDENTITY, config={}, info={}, prompts=[])


def test_a_second_writer_is_refused_and_a_reader_is_not(store: RunStore) -> None:
    store.append(make_sample())
    with pytest.raises(UsageError, match="another process"):
        begin(store.directory)
    with RunStore.open(store.directory) as reader:
        assert len(list(reader.samples())) == 1
        with pytest.raises(SpsbenchError, match="reading only"):
            reader.append(make_sample("e1"))
    store.close()
    begin(store.directory).close()


def test_a_directory_is_locked_once(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two locks another process could take it."""
    store.close()
    locked, lock = list[Path](), files.acquire_lock
    monkeypatch.setattr(files, "acquire_lock", lambda path, flag: (locked.append(path), lock(path, flag))[1])
    begin(store.directory).close()
    assert locked == [store.directory]


def test_the_same_identity_continues_with_more_prompts(store: RunStore) -> None:
    store.append(make_sample())
    store.close()
    more = [*PROMPTS[1:], Prompt("e9", "Article 9", (9,), "summary 9")]
    with begin(store.directory, prompts=more, config={"limit": 9}, info={"command": "again"}) as again:
        assert again.done() == {("e0", 0, "sps-k4")}
        assert [prompt.example_id for prompt in again.prompts()] == ["e0", "e1", "e2", "e9"]
        assert again.run_info()["environment"] == {"cpu": {"model": "x"}}
        assert again.run_info()["resumed"][0]["command"] == "again"
        assert yaml.safe_load((again.directory / "config.yaml").read_text()) == {"limit": 9}


def test_how_much_is_asked_for_is_brought_up_to_date(store: RunStore) -> None:
    """Else an extended run that is interrupted would count as complete."""
    for asked in (3, 4):
        with begin(store.directory.with_name("again"), info={"expected_sequences": asked}) as run:
            assert run.run_info()["expected_sequences"] == asked


def test_another_identity_is_refused_with_the_difference(store: RunStore) -> None:
    store.close()
    other = IDENTITY | {"seed": 1, "models": {"target": "abc", "draft": "xyz"}, "dtype": "float32"}
    with pytest.raises(UsageError) as caught:
        begin(store.directory, identity=other)
    assert caught.value.exit_code == 2
    assert caught.value.message.splitlines()[1:] == [
        "  models.draft: def -> xyz",
        "  seed: 0 -> 1",
        "  dtype: (absent) -> float32",
    ]
    begin(store.directory).close()


def test_a_changed_prompt_is_refused(store: RunStore) -> None:
    store.close()
    with pytest.raises(UsageError, match="'e1' has another prompt"):
        begin(store.directory, prompts=[Prompt("e1", "other", (1,), "summary 1")])


def test_another_schema_is_refused(store: RunStore) -> None:
    store.close()
    path = store.directory / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 99}))
    for attempt in (RunStore.open, read_frames, begin):
        with pytest.raises(UsageError, match="99"):
            attempt(store.directory)


@pytest.mark.parametrize("name", ["run.json", "prompts.jsonl"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"a": 1}\n'])
def test_a_damaged_file_is_a_usage_error(store: RunStore, name: str, content: bytes) -> None:
    store.close()
    (store.directory / name).write_bytes(content)
    if (name, content) == ("prompts.jsonl", b""):
        assert RunStore.open(store.directory).prompts() == []
        return
    with pytest.raises(UsageError):
        RunStore.open(store.directory).prompts()


@pytest.mark.parametrize(
    "damage",
    [{"device_peak_bytes": "much"}, {"gpu": {"device": "cuda:0", "name": "L4", "memory_bytes": "much"}}],
)
def test_a_gpus_memory_is_a_number_of_bytes(store: RunStore, damage: dict[str, Any]) -> None:
    store.close()
    path = store.directory / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    with pytest.raises(UsageError, match="bytes"):
        RunStore.open(store.directory)


def test_a_run_killed_before_it_began_can_begin(store: RunStore) -> None:
    store.close()
    (store.directory / "run.json").unlink()
    (store.directory / "samples.jsonl").unlink()
    (store.directory / "scores.jsonl").unlink()
    (store.directory / ".prompts.jsonl.tmp").write_text("{")
    with begin(store.directory) as again:
        assert again.prompts() == PROMPTS


def test_no_run_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run directory"):
        RunStore.open(tmp_path)
    with pytest.raises(UsageError, match="no run"):
        latest(tmp_path)
    with pytest.raises(UsageError, match="no run"):
        latest(tmp_path / "missing")


def test_latest_is_the_run_begun_last(tmp_path: Path) -> None:
    first, second = (fresh_directory(tmp_path, "tasks/xsum.yaml", "mini") for _ in range(2))
    assert first != second
    begin(second).close()
    begin(first).close()
    begin(second).close()  # continued, not begun
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    assert first.name.endswith("-xsum-mini")
    assert latest(tmp_path) == first


# --- nothing is lost


JOURNAL_LINES = 4


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole") / "run"
    with begin(directory) as store:
        for i in range(JOURNAL_LINES):
            store.append(make_sample("e0", i, loops=2))
    return directory


@settings(max_examples=60)
@given(position=st.integers(0, 10**6), tail=st.sampled_from([b"", b"\0\0\0", b'{"a', b"\xff\xfe", b"{}\n"]))
def test_a_journal_cut_at_any_byte_keeps_every_whole_line_and_goes_on(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, position: int, tail: bytes
) -> None:
    journal = (whole / "samples.jsonl").read_bytes()
    cut = journal[: position % (len(journal) + 1)]
    if cut and not cut.endswith(b"\n"):
        tail = b""  # a tail behind a half line is part of that line
    directory = tmp_path_factory.mktemp("cut") / "run"
    directory.mkdir()
    (directory / "run.json").write_bytes((whole / "run.json").read_bytes())
    (directory / "samples.jsonl").write_bytes(cut + tail)
    complete = sum(cut.startswith(journal[:end]) for end in line_ends(journal))
    with begin(directory) as store:
        assert store.done() == {("e0", i, "sps-k4") for i in range(complete)}
        store.append(make_sample("e1"))
        assert len(list(store.samples())) == complete + 1
    with RunStore.open(directory) as reader:
        assert len(list(reader.samples())) == complete + 1
    torn = directory / "samples.jsonl.torn"
    lost = (cut + tail)[max([end for end in (0, *line_ends(journal)) if end <= len(cut)]) :]
    assert lost.strip(b"\n") == (torn.read_bytes().strip(b"\n") if torn.exists() else b"")


def test_a_short_journal_survives_a_cut_at_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    writer = Journal(path, digest=lambda row: row["n"], writable=True)
    rows = [{"n": n, "text": "½}{"} for n in range(3)]
    for row in rows:
        writer.append(row)
    writer.close()
    journal = path.read_bytes()
    for position in range(len(journal) + 1):
        path.write_bytes(journal[:position])
        complete = sum(position >= end for end in line_ends(journal))
        writer = Journal(path, digest=lambda row: row["n"], writable=True)
        writer.append({"n": 9})
        writer.close()
        reader = Journal(path, digest=lambda row: row["n"], writable=False)
        assert list(reader.read(reader.digests)) == [*rows[:complete], {"n": 9}]


def line_ends(journal: bytes) -> list[int]:
    """Where each line's object is whole, newline or not."""
    return [position for position, byte in enumerate(journal) if byte == ord("\n")]


def test_damage_in_the_middle_stops_a_reader_and_is_set_aside_by_a_writer(store: RunStore) -> None:
    for i in range(3):
        store.append(make_sample("e0", i))
    store.close()
    path = store.directory / "samples.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = b'{"broken": 1}\n'
    path.write_bytes(b"".join(lines))
    with (
        RunStore.open(store.directory) as reader,
        pytest.raises(SpsbenchError, match=r"damaged in line 2 \(example_id is missing\)"),
    ):
        reader.frames()
    with begin(store.directory) as again:
        assert again.done() == {("e0", 0, "sps-k4"), ("e0", 2, "sps-k4")}
    assert (store.directory / "samples.jsonl.torn").read_bytes() == b'{"broken": 1}\n'


def test_a_reader_overlooks_the_line_being_written(store: RunStore) -> None:
    store.append(make_sample())
    with (store.directory / "samples.jsonl").open("ab") as file:
        file.write(b'{"example_id": "e1"')
    assert len(list(RunStore.open(store.directory).samples())) == 1
    assert not (store.directory / "samples.jsonl.torn").exists()


@pytest.mark.parametrize("accepted_bytes", [0, 1, 100])
def test_a_full_disk_loses_nothing_that_was_written(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, accepted_bytes: int
) -> None:
    store.append(make_sample())
    real_write = os.write
    room = [accepted_bytes]

    def full(descriptor: int, data: memoryview) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real_write(descriptor, data[: room[0]])
        room[0] = 0
        return written

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(SpsbenchError, match="No space left on device") as caught:
            store.append(make_sample("e1"))
    assert "--resume" in str(caught.value.remedy)
    assert store.done() == {("e0", 0, "sps-k4")}
    store.append(make_sample("e2"))
    assert [sample.example_id for sample in RunStore.open(store.directory).samples()] == ["e0", "e2"]


def test_a_failed_replacement_leaves_the_old_file(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    first: Any = {"schema_version": 1, "rows": [{"k": 1}]}
    write_summary(store.directory, first)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(SpsbenchError, match="No space left"):
            write_summary(store.directory, first | {"rows": [{"k": 2}]})
    assert read_summary(store.directory)["rows"] == [{"k": 1}]
    assert not list(store.directory.glob(".*.tmp"))


def test_one_module_alone_names_the_summary_file() -> None:
    package = Path(schema.__file__).parents[1]
    naming = [
        path
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value == schema.SUMMARY_FILE
    ]
    assert naming == [Path(schema.__file__)]


WRITER = """
import sys
from pathlib import Path
from spsbench.base.records import Generation, Hypothesis, Sample
from spsbench.store import RunStore

with RunStore.open(Path(sys.argv[1]), writable=True) as store:
    for i in range(10**6):
        generation = Generation([1, 2, 3], "text " * 50, None, 0.1, 0.2, "length")
        store.append(Sample("e0", i, "ars", 3, generation))
        print(i, flush=True)
"""


def test_what_append_has_returned_for_survives_a_kill(store: RunStore) -> None:
    store.close()
    command = [sys.executable, "-c", WRITER, str(store.directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(20):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        printed = 20 + len(process.stdout.read().split())
    with begin(store.directory) as again:
        assert again.done() >= {("e0", i, "ars") for i in range(printed)}


# --- the evidence of each token


NAN, INFINITY = float("nan"), float("inf")
EVIDENCE_COLUMNS = KEY | {"position", "token_id", "log_target", "log_draft", "draft_rank"}
EVIDENCE_COLUMNS |= {"draft_max", "draft_entropy"}


def evident(sample: Sample, ranks: tuple[int, ...] = (0, 31999, UNRANKED)) -> Sample:
    """A sample of three tokens with evidence: certain, outside of the draft's nucleus, not known."""
    sample.generation.token_evidence = TokenEvidence(
        log_target=array("f", [0.0, -0.1, -INFINITY]),
        log_draft=array("f", [-1e-7, -INFINITY, NAN]),
        draft_rank=array("i", ranks),
        draft_max=array("f", [1.0, 0.123456789, NAN]),
        draft_entropy=array("f", [0.0, 2.5, NAN]),
    )
    return sample


def bits(evidence: TokenEvidence | None) -> list[bytes]:
    """Every value to the bit: NaN is not equal to itself."""
    assert evidence is not None
    return [getattr(evidence, name).tobytes() for name in TokenEvidence.__slots__]


def test_the_evidence_of_each_token_comes_back_to_the_bit(store: RunStore) -> None:
    kept = evident(make_sample())
    store.append(kept)
    store.append(make_sample("e1"))
    found = [sample.generation.token_evidence for sample in RunStore.open(store.directory).samples()]
    assert bits(found[0]) == bits(kept.generation.token_evidence)
    assert found[1] is None
    again = make_sample("e2")
    again.generation.token_evidence = found[0]
    store.append(again)
    assert bits(list(store.samples())[-1].generation.token_evidence) == bits(found[0])


def test_the_table_of_evidence_has_a_row_a_token(store: RunStore) -> None:
    store.append(make_sample("e0", error="out of memory"))
    store.append(make_sample("e1"))
    store.append(evident(make_sample("e2")))
    found = store.frames().evidence
    assert set(found.columns) == EVIDENCE_COLUMNS
    assert list(found["example_id"]) == ["e2"] * 3
    assert [list(found[name]) for name in ("position", "token_id")] == [[0, 1, 2], [5, 6, 7]]
    assert list(found["log_target"]) == pytest.approx([0.0, -0.1, -INFINITY])
    assert list(found["log_draft"][:2]) == pytest.approx([-1e-7, -INFINITY])
    assert list(found["draft_rank"][:2]) == [0, 31999]
    unknown = ["log_draft", "draft_rank", "draft_max", "draft_entropy"]
    assert found[unknown].isna().to_numpy().tolist() == [[False] * 4, [False] * 4, [True] * 4]


@pytest.mark.parametrize("ranks", [(0, 1, 2), (0, 1, UNRANKED), (UNRANKED,) * 3])
def test_evidence_is_alike_from_journal_and_parquet(store: RunStore, ranks: tuple[int, ...]) -> None:
    assert set(store.frames().evidence.columns) == EVIDENCE_COLUMNS
    store.append(evident(make_sample(), ranks))
    journal = store.frames()
    store.write_parquet()
    types = {field.name: str(field.type) for field in pq.read_schema(store.directory / "evidence.parquet")}
    assert (types["draft_rank"], types["log_target"]) == ("int32", "float")
    assert_same(read_frames(store.directory), journal)
    (store.directory / "samples.jsonl").rename(store.directory / "elsewhere")
    assert_same(read_frames(store.directory), journal)


def test_lost_or_damaged_evidence_is_made_anew_from_the_journal(store: RunStore) -> None:
    store.append(evident(make_sample()))
    store.write_parquet()
    whole, path = read_frames(store.directory), store.directory / "evidence.parquet"
    content = path.read_bytes()
    renamed = content.replace(b"log_draft", b"LOG_DRAFT")
    for damaged in (None, b"PAR1", renamed, content[:40] + bytes([content[40] ^ 0xFF]) + content[41:]):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        assert_same(read_frames(store.directory), whole)
    path.write_bytes(content)
    store.append(evident(make_sample("e1")))
    assert len(read_frames(store.directory).evidence) == 6


def test_a_run_of_before_the_evidence_reads_as_ever(store: RunStore) -> None:
    fill(store).write_parquet()
    whole = read_frames(store.directory)
    journal = store.directory / "samples.jsonl"
    old = [json.loads(line) for line in journal.read_text().splitlines()]
    assert all(row.pop("token_evidence") is None for row in old)
    store.close()
    journal.write_text("".join(json.dumps(row) + "\n" for row in old))
    (store.directory / "evidence.parquet").unlink()
    assert_same(read_frames(store.directory), whole)
    assert {sample.generation.token_evidence for sample in RunStore.open(store.directory).samples()} == {None}
    journal.unlink()
    assert_same(read_frames(store.directory), whole)
    (store.directory / "evidence.parquet").write_bytes(b"PAR1")
    with pytest.raises(UsageError, match=r"evidence\.parquet is damaged"):
        read_frames(store.directory)


def _longer(packed: str) -> str:
    return b64encode(zlib.compress(zlib.decompress(b64decode(packed)) + b"\0" * 20)).decode()


@pytest.mark.parametrize(
    "damaged",
    [
        *(lambda packed: packed[:-4], lambda packed: packed[4:], lambda packed: "½" + packed),
        *(lambda packed: "", lambda packed: 7, lambda packed: [packed], _longer),
        lambda packed: packed[:20] + ("A" if packed[20] != "A" else "B") + packed[21:],
    ],
)
def test_a_line_whose_evidence_is_damaged_is_made_again(store: RunStore, damaged: Any) -> None:
    store.append(evident(make_sample("e0")))
    store.append(evident(make_sample("e1")))
    store.close()
    journal = store.directory / "samples.jsonl"
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    rows[0]["token_evidence"] = damaged(rows[0]["token_evidence"])
    journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(SpsbenchError, match=r"samples.jsonl is damaged in line 1 \(token_evidence"):
        RunStore.open(store.directory).done()
    with begin(store.directory) as again:
        assert again.done() == {("e1", 0, "sps-k4")}
        assert len((again.directory / "samples.jsonl.torn").read_text().splitlines()) == 1
        assert len(again.frames().evidence) == 3


def test_evidence_of_another_number_of_tokens_is_damage(store: RunStore) -> None:
    row = codec.encode_sample(evident(make_sample()))
    check_sample(row)
    with pytest.raises(ValueError, match="not of 4 tokens"):
        check_sample(row | {"token_ids": [5, 6, 7, 8]})


@settings(max_examples=50, deadline=None)
@given(
    values=st.lists(
        st.tuples(*[st.floats(width=32)] * 2, st.integers(UNRANKED, 2**31 - 1), *[st.floats(width=32)] * 2)
    )
)
def test_any_evidence_survives_packing(values: list[tuple[Any, ...]]) -> None:
    columns = list(zip(*values, strict=True)) or [()] * 5
    kinds = ("f", "f", "i", "f", "f")
    evidence = TokenEvidence(*(array(kind, column) for kind, column in zip(kinds, columns, strict=True)))
    packed = pack_evidence(evidence)
    assert packed is not None
    json.dumps(packed, allow_nan=False)
    assert bits(unpack_evidence(packed, len(values))) == bits(evidence)


# --- runs of the first schema, whose samples said themselves what their arms are

ARMS = [
    {"arm": "ars", "method": "ars", "sampling": "nucleus", "engine": "eager", "k": 0},
    {"arm": "sps-k4", "method": "sps", "sampling": "nucleus", "engine": "eager", "k": 4},
]


def test_a_table_says_what_each_arm_is(store: RunStore) -> None:
    store.close()
    with begin(store.directory.with_name("new"), info={"arms": ARMS}) as made:
        arms = fill(made).frames().arms
        made.write_parquet()
    assert list(arms.columns) == ["arm", *AXES]
    assert arms.to_dict("records")[1] == {
        **ARMS[1],
        "drafter": "model",
        "rule": "modified-rejection",
        "policy": "fixed",
        "batch": 1,
    }
    assert pq.read_table(made.directory / "arms.parquet").to_pandas().equals(arms)


@pytest.mark.parametrize("version", [2, 99])
def test_another_schema_is_refused_and_left_as_it_was(store: RunStore, version: int) -> None:
    path = store.directory / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": version}))
    store.close()
    before = {file: file.read_bytes() for file in store.directory.iterdir() if file.is_file()}
    refused = (
        f"written by an unreleased version of spsbench or by a later one: it has schema version {version}"
    )
    with pytest.raises(UsageError, match=refused):
        RunStore.open(store.directory, writable=True)
    assert {file: file.read_bytes() for file in store.directory.iterdir() if file.is_file()} == before


def test_another_run_is_told_by_what_differs_within_its_arms() -> None:
    theirs = {"arms": [{"k": 0, "law": {"top_p": 0.8}}, {"k": 4}], "stop": ["\n"]}
    ours = {"arms": [{"k": 0, "law": {"top_p": 0.9}}], "stop": ["\n"]}
    assert differences(theirs, ours) == ["  arms[0].law.top_p: 0.8 -> 0.9", "  arms[1]: {'k': 4} -> (absent)"]
