"""Files of other tools: recognised by their fields, read or refused with the field's name."""

from __future__ import annotations

import copy
import gzip
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.foreign_files import (
    BENCH,
    SGLANG_BENCH,
    SPEED_BENCH,
    aiperf,
    aiperf_summary,
    guidellm,
    guidellm_told,
    per_position,
    response,
    sglang,
    sglang_details,
    stats,
    written,
)

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.parts.whatif.commands.explain import Lengths, definitions, kept_shares, lengths_of, shape
from spsbench.parts.whatif.curve import by_category, of_counts, of_places
from spsbench.store.foreign import FileContent, read, recognised, samples

KEPT = [10, 5, 5, 20]


def found_in(path: Path) -> FileContent:
    form = recognised(path, "RUN")
    assert form is not None
    return read(path, form, "RUN")


def test_each_tool_is_recognised_and_its_numbers_are_its_own(tmp_path: Path) -> None:
    files = {
        "vllm bench serve": written(tmp_path / "a.json", BENCH),
        "vLLM responses": written(tmp_path / "b.jsonl", response(KEPT), response([1, 0, 0, 9])),
        "AIPerf": written(tmp_path / "c.jsonl", aiperf(KEPT), aiperf(KEPT, phase="warmup")),
        "GuideLLM": written(tmp_path / "d.json", guidellm({"prompt": "Once"}), indent=1),
        "llama.cpp speed-bench": written(tmp_path / "e.json", SPEED_BENCH, indent=2),
        "SpecDecode-Bench": written(tmp_path / "f.jsonl", per_position([2, 1, 0, 5])),
        "SGLang bench_serving": written(tmp_path / "g.jsonl", SGLANG_BENCH),
        "SGLang responses": written(tmp_path / "h.jsonl", sglang(sglang_details(KEPT), 116)),
        "AIPerf summary": written(tmp_path / "i.json", aiperf_summary({"0": 2}, 2.5), indent=1),
    }
    read_ = {name: found_in(path) for name, path in files.items()}
    assert {name: found.form.name for name, found in read_.items()} == {name: name for name in files}
    bench, responses, lines = (
        read_[name].counts for name in ("vllm bench serve", "vLLM responses", "AIPerf")
    )
    assert (bench[0].loops, bench[0].accepted, bench[0].rates) == (300, 540, (0.8, 0.6, 0.4))
    assert [each.kept for each in responses] == [(10, 5, 5, 20), (1, 0, 0, 9)]
    assert len(lines) == 1
    assert (lines[0].category, lines[0].kept) == ("coding", tuple(KEPT))
    assert read_["AIPerf"].skipped == {"of the warm-up": 1}
    assert read_["llama.cpp speed-bench"].skipped == {"that failed": 1}
    assert read_["SpecDecode-Bench"].places == [("eagle", (2, 1, 0, 5))]
    assert (
        recognised(written(tmp_path / "own.jsonl", {"prompt_ids": [1], "completion_ids": [2]}), "RUN") is None
    )


def test_a_compressed_file_is_read_and_a_line_is_all_that_is_held(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(response(KEPT)) + "\n" for _ in range(2_000))
    form = recognised(path, "RUN")
    assert form is not None
    assert len(read(path, form, "RUN").counts) == 2_000


WRONG: dict[str, tuple[list[Any], str]] = {
    "another version": ([guidellm({"prompt": "x"}) | {"metadata": {"version": 7}}], "metadata.version is 7"),
    "no speculation": ([{k: v for k, v in BENCH.items() if "spec" not in k}], "spec_decode_num_drafts"),
    "a field is missing": (
        [{**BENCH, "spec_decode_draft_tokens": None}],
        "spec_decode_draft_tokens is missing",
    ),
    "more accepted than drafted": ([{**BENCH, "spec_decode_draft_tokens": 500}], "540 accepted of 500"),
    "fewer tokens than counted": ([response(KEPT, usage={"completion_tokens": 60})], "60 output tokens"),
    "a histogram that contradicts": (
        [response(KEPT, metrics={"speculative_decoding": stats(KEPT) | {"num_spec_steps": 41}})],
        "contradicts num_spec_steps",
    ),
    "several models": ([response(KEPT), response(KEPT, model="other")], "several models: big, other"),
    "no record at all": ([response(KEPT, metrics=None)] * 2, "2 requests without a count of speculation"),
    "a length that is none": ([SGLANG_BENCH | {"accept_length": None}], "the server told none"),
    "a length that is text": ([SGLANG_BENCH | {"accept_length": "2.9"}], "accept_length is 2.9, not"),
    "a length below a token": ([SGLANG_BENCH | {"accept_length": 0.4}], "accept_length is 0.4, and each"),
    "vLLM's length against its counts": (
        [{**BENCH, "spec_decode_acceptance_length": 9.5}],
        "spec_decode_acceptance_length is 9.5, and its counts make ",
    ),
    "vLLM's rate against its counts": (
        [{**BENCH, "spec_decode_acceptance_rate": 0.5}],
        "spec_decode_acceptance_rate is 0.5, and its counts make ",
    ),
    "vLLM's length is no number": (
        [{**BENCH, "spec_decode_acceptance_length": float("nan")}],
        "spec_decode_acceptance_length is nan, not a number",
    ),
    "SGLang's length against its counts": (
        [sglang(sglang_details(KEPT, spec_accept_length=5.0), 116)],
        "spec_accept_length is 5.0, and 116 tokens in 40 verifications are 2.900",
    ),
    "SGLang's histogram against its counts": (
        [sglang(sglang_details(KEPT, spec_correct_drafts_histogram=[40]), 116)],
        "spec_correct_drafts_histogram contradicts",
    ),
    "SGLang's verifications are missing": (
        [sglang({"spec_accept_length": 2.0}, 4)],
        "spec_verify_ct is missing",
    ),
    "AIPerf's pool against its total": (
        [aiperf_summary({"0": 2}, 2.5, total_spec_decode_steps={"avg": 3})],
        "contradicts total_spec_decode_steps",
    ),
    "AIPerf without speculation": ([aiperf_summary(None, None)], "no request told any"),
    "GuideLLM's tokens against its record": ([guidellm_told(KEPT, tokens=90)], "90 output tokens"),
    "two formats": ([response(KEPT), aiperf(KEPT)], "line 2"),
    "places below 1": ([per_position([2, -3])], "acc_eagle.acc_len"),
}


@pytest.mark.parametrize("what", sorted(WRONG))
def test_what_is_missing_is_named(what: str, tmp_path: Path) -> None:
    rows, why = WRONG[what]
    path = written(tmp_path / "file.jsonl", *rows)
    form = recognised(path, "RUN")
    assert form is not None
    with pytest.raises(UnavailableError, match=why) as refused:
        read(path, form, "RUN")
    assert refused.value.exit_code == 3


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    lines = tmp_path / "cut.jsonl"
    whole = json.dumps(response(KEPT))
    lines.write_text(f"{whole}\n{whole[:-20]}")
    with pytest.raises(UnavailableError, match=r"line 2 .* not whole JSON"):
        found_in(lines)
    document = tmp_path / "cut.json"
    document.write_text(json.dumps(SPEED_BENCH, indent=2)[:-30])
    assert recognised(document, "RUN") is None
    with pytest.raises(UnavailableError, match="cut off"):
        list(samples(document, "RUN"))


def texts(path: Path) -> Iterator[dict[str, Any]]:
    return (dict(row) for _, row in samples(path, "SAMPLES"))


def test_texts_become_lines_of_an_audit(tmp_path: Path) -> None:
    greedy, hot = {"prompt": "Once", "temperature": 0}, {"prompt": [4, 5], "temperature": 0.7, "top_k": -1}
    assert list(texts(written(tmp_path / "g.json", guidellm(greedy, hot)))) == [
        {"prompt": "Once", "completion": " and so on", "sampling": {"greedy": True}},
        {"prompt_ids": [4, 5], "completion": " and so on", "sampling": {"temperature": 0.7, "top_k": 0}},
    ]
    answer = response(KEPT, choices=[{"prompt_token_ids": [1, 2], "token_ids": [3]}])
    assert list(texts(written(tmp_path / "v.jsonl", answer))) == [
        {"prompt_ids": [1, 2], "completion_ids": [3]}
    ]
    (own,) = texts(written(tmp_path / "s.jsonl", per_position([1, 0])))
    assert own == {"prompt_ids": [1, 2], "completion_ids": [3, 3, 3]}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (BENCH, "generated_texts has no prompts"),
        (aiperf(KEPT), "keeps no texts"),
        (SPEED_BENCH, "keeps no texts"),
        (response(KEPT), "return_token_ids"),
        (guidellm({"messages": [{"role": "user", "content": "x"}]}), "request_args.body.prompt is missing"),
    ],
)
def test_without_texts_an_audit_says_what_is_missing(row: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=why):
        list(texts(written(tmp_path / "file.json", row)))


def test_every_definition_follows_from_the_same_counts(tmp_path: Path) -> None:
    found = found_in(written(tmp_path / "b.jsonl", *[response(KEPT)] * 4, *[response([1, 0, 0, 9])] * 5))
    told = {each.name: each.value for each in definitions(found.counts, found.k)}
    loops, accepted = 4 * 40 + 5 * 10, 4 * 75 + 5 * 27
    by_hand = {
        "tokens per loop": 1 + accepted / loops,
        "accepted drafts/loop": accepted / loops,
        "share of drafts": accepted / (3 * loops),
        "mean of requests": (4 * (1 + 75 / 40) + 5 * 3.7) / 9,
        "first draft kept": (4 * 30 + 5 * 9) / loops,
        "output tokens/loop": (loops + accepted + 9) / loops,
        "r'": (1 + accepted / loops) / 4,
    }
    for name, value in by_hand.items():
        assert (own := told[name]) is not None
        assert own.estimate == pytest.approx(value), name
    assert told["tokens per loop"] != told["mean of requests"]  # the control: pooled is not the mean
    assert sum(kept_shares(found.counts)) == pytest.approx(accepted / loops)
    (alone,) = found_in(written(tmp_path / "a.json", BENCH)).counts
    names = [each.name for each in definitions([alone], 3)]
    assert "mean of requests" not in names
    without = found_in(written(tmp_path / "e.json", SPEED_BENCH)).counts
    assert [each.name for each in definitions(without, None)] == ["share of drafts"]


def varying(by_length: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A response whose drafts have these lengths, each with its loops by drafts kept."""
    widest = max(map(len, by_length.values()))
    kept = [sum(own[m] for own in by_length.values() if m < len(own)) for m in range(widest)]
    drafted = sum(int(length) * sum(own) for length, own in by_length.items())
    row = response(kept)
    own = {"acceptance_histogram_by_draft_length": by_length, "num_draft_tokens": drafted}
    row["metrics"]["speculative_decoding"] |= own | changes
    return row


def test_of_drafts_of_several_lengths_those_count_that_were_drafted(tmp_path: Path) -> None:
    rows = [varying({"1": [0, 1], "2": [1, 1, 0], "3": [0, 0, 1, 0]})] * 2
    found = found_in(written(tmp_path / "a.jsonl", *rows))
    assert lengths_of(found.counts, found.k) == Lengths(2.0, 1, 3, (8, 4, 2), (6, 2, 0))
    assert kept_shares(found.counts) == pytest.approx([0.75, 0.25, 0.0])
    names = {each.name for each in definitions(found.counts, found.k)}
    assert not names & {"r'", "alpha"}
    other = found_in(written(tmp_path / "b.jsonl", varying({"3": [1, 0, 0, 1]})))  # the control
    assert lengths_of(other.counts, other.k) is None
    assert {each.name for each in definitions(other.counts, other.k)} >= {"r'", "alpha"}


def test_loops_without_a_draft_need_not_be_listed(tmp_path: Path) -> None:
    """Nor need lengths be counted: then only that they differ is said."""
    rows = [varying({"0": [2], "2": [1, 1, 0]})]
    listed = found_in(written(tmp_path / "a.jsonl", *rows))
    del rows[0]["metrics"]["speculative_decoding"]["acceptance_histogram_by_draft_length"]["0"]
    unlisted = found_in(written(tmp_path / "b.jsonl", *rows))
    assert listed.counts == unlisted.counts
    assert lengths_of(listed.counts, listed.k) == Lengths(1.0, 0, 2, (2, 1), (1, 0))
    del rows[0]["metrics"]["speculative_decoding"]["acceptance_histogram_by_draft_length"]
    uncounted = found_in(written(tmp_path / "c.jsonl", *rows))
    assert lengths_of(uncounted.counts, uncounted.k) == Lengths(1.0, None, 3)


def test_lengths_as_an_object_and_in_the_output_of_a_batch(tmp_path: Path) -> None:
    plain = varying({"1": [0, 1], "3": [1, 0, 0, 0]})
    objects = varying({"1": [0, 1], "3": [1, 0, 0, 0]})
    speculative = objects["metrics"]["speculative_decoding"]
    speculative["acceptance_histogram_by_draft_length"] = {"1": {"1": 1}, "3": {"0": 1}}
    batch = {"id": "b", "custom_id": "r1", "response": {"status_code": 200, "body": plain}}
    first, *others = (
        found_in(written(tmp_path / f"{n}.jsonl", row)) for n, row in enumerate((plain, objects, batch))
    )
    lengths = lengths_of(first.counts, first.k)
    assert lengths is not None
    assert [lengths_of(each.counts, each.k) for each in others] == [lengths, lengths]
    assert [list(map(len, each.models)) for each in others] == [[3], [3]]


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ([1], "is 1, not an object"),
        ({"x": [1]}, "is not a count"),
        ({"1": [1, "a"]}, "by_draft_length.1 is no list of counts"),
        ({"1": [0, 0, 1]}, "by_draft_length.1 counts more kept than were drafted"),
        ({"1": [0, 1]}, "contradicts acceptance_histogram or num_draft_tokens"),
        ({"1": [0, 1], "3": [2, 0, 0, 0]}, "contradicts acceptance_histogram or num_draft_tokens"),
        ({"5000": [1]}, "counts drafts of 5000"),
    ],
)
def test_lengths_that_contradict_are_refused_by_field(own: Any, why: str, tmp_path: Path) -> None:
    row = varying({"1": [0, 1], "3": [1, 0, 0, 0]}, acceptance_histogram_by_draft_length=own)
    with pytest.raises(UnavailableError, match=f"line 1 of .*: .*{why}"):
        found_in(written(tmp_path / "a.jsonl", row))


def test_a_mark_of_byte_order_is_no_part_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(response(KEPT)) + "\n", encoding="utf-8-sig")
    assert len(found_in(path).counts) == 1


def test_requests_give_one_point_of_a_curve(tmp_path: Path) -> None:
    found = found_in(written(tmp_path / "c.jsonl", *[aiperf(KEPT)] * 5, *[aiperf([1, 0, 0, 9])] * 5))
    shown = of_counts("K=3", found.counts, 3)
    (point,) = shown.points
    assert point.length.estimate == pytest.approx((5 * 115 + 5 * 37) / 250)
    assert 1 + sum(point.rates) == pytest.approx(point.length.estimate)
    assert point.tail.true[-1] == pytest.approx(100 * 40 / 115)


def test_places_are_walked_as_the_tool_walks_them(tmp_path: Path) -> None:
    ahead = [3, 2, 0, 1, 0, 4, 0, 2, 2, 0]
    found = found_in(written(tmp_path / "f.jsonl", per_position(ahead)))
    assert not found.odd
    for shown in by_category("eagle", of_places(found.places, 4)["eagle"], [1, 2, 4]):
        for point in shown.points:
            place = loops = 0
            while place < len(ahead):
                place, loops = place + min(ahead[place], point.k) + 1, loops + 1
            assert point.length.estimate == pytest.approx(len(ahead) / loops)
    assert found_in(written(tmp_path / "odd.jsonl", per_position(ahead, tokens=5))).odd


def test_a_published_curve_is_looked_at_for_its_shape(tmp_path: Path) -> None:
    path = tmp_path / "golden.yaml"
    path.write_text("model:\n  thinking_on:\n    1: 1.8\n    2: 2.4\n    3: 3.1\n    4: 3.05\n    5: 3.06\n")
    (curve,) = found_in(path).published.values()
    assert shape(curve) == {3: "step grows", 4: "falls", 5: "step grows"}
    assert shape({1: 1.8, 2: 2.4, 3: 2.9, 4: 3.41}) == {}  # within rounding
    falling = [shape({1: high, 2: low}) for high, low in ((3.52, 3.51), (2.55, 2.54), (1.81, 1.8))]
    assert falling == [{2: "falls"}] * 3  # hundredths: as floats the first differ by more than 0.01
    path.write_text("model:\n  thinking_on: fast\n")
    with pytest.raises(UnavailableError, match="no mapping of K"):
        found_in(path)


ODD: list[Any] = [None, math.nan, math.inf, -1, 0, 1.5, 10**9, 10**400, -1e308, "x", "9" * 400, "x" * 10_000]
ODD += [[], {}, [[]], [10**9], [1] * 10_000, {"a": 1}, True]
WHOLE: dict[str, Any] = {
    "vllm bench": BENCH,
    "response": response(KEPT),
    "aiperf": aiperf(KEPT),
    "guidellm": guidellm({"prompt": "Once", "temperature": 0}),
    "SPEED-Bench": SPEED_BENCH,
    "SpecDecode-Bench": per_position([2, 1]),
}


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value in JSON, of a list to the first."""
    if at:
        yield at
    inner = (
        value.items() if isinstance(value, dict) else enumerate(value[:1] if isinstance(value, list) else ())
    )
    for name, each in inner:
        yield from places(each, (*at, name))


@pytest.mark.parametrize("name", WHOLE)
def test_whatever_stands_in_a_field_is_read_or_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    for at in places(WHOLE[name]):
        for odd in ODD:
            row = copy.deepcopy(WHOLE[name])
            inner = row
            for part in at[:-1]:
                inner = inner[part]
            inner[at[-1]] = odd
            written(path, row)
            if (form := recognised(path, "RUN")) is not None:
                assert len(refusal(read, path, form, "RUN")) < 500
                assert len(refusal(lambda: list(texts(path)))) < 500


def refusal(use: Callable[..., Any], *given: Any) -> str:
    """The sentence by which a file is refused; none where it is read."""
    try:
        use(*given)
    except (UnavailableError, UsageError) as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize("share", [math.nan, -0.1, 1.5, "x", 10**400])
def test_a_share_of_loops_is_one(share: Any, tmp_path: Path) -> None:
    row = BENCH | {"spec_decode_per_position_acceptance_rates": [0.8, share, 0.4]}
    path = written(tmp_path / "file.jsonl", row)
    with pytest.raises(UnavailableError, match="not a share"):
        found_in(path)


def named(path: Path) -> dict[str, float]:
    found = found_in(path)
    rows = definitions(found.counts, found.k)
    return {each.name: each.value.estimate for each in rows if each.value} | {
        f"stated {each.name}": each.value for each in found.stated
    }


def test_a_reply_that_a_stop_cut_is_read_and_counted_apart(tmp_path: Path) -> None:
    """One loop kept three drafts, of which the stop left one token; a second token less cannot be a cut."""
    cut = response([0, 0, 0, 1], usage={"completion_tokens": 2})
    found = found_in(written(tmp_path / "a.jsonl", response(KEPT), cut))
    assert len(found.counts) == 2
    assert list(found.odd.values()) == [1]
    assert not found_in(written(tmp_path / "b.jsonl", response(KEPT))).odd
    wrong = response([0, 0, 0, 1], usage={"completion_tokens": 1})
    with pytest.raises(UnavailableError, match="a cut takes at most 3"):
        found_in(written(tmp_path / "c.jsonl", wrong))
    totals = found_in(written(tmp_path / "d.json", BENCH | {"total_output_tokens": 600}))
    assert totals.counts[0].tokens is None
    assert ["answered other requests" in note for note in totals.notes] == [True]


def test_guidellm_tells_acceptance_where_its_requests_have_it(tmp_path: Path) -> None:
    found = found_in(written(tmp_path / "a.json", guidellm_told(KEPT, [1, 0, 0, 9]), indent=1))
    assert [each.kept for each in found.counts] == [(10, 5, 5, 20), (1, 0, 0, 9)]
    assert found.says.startswith("Tokens per loop")
    without = found_in(written(tmp_path / "b.json", guidellm({"prompt": "Once"}), indent=1))
    assert without.silent == "The server's own acceptance: no request has " + (
        "response_metrics.speculative_decoding."
    )
    both = guidellm_told(KEPT)
    both["benchmarks"] = [*both["benchmarks"], *guidellm_told(KEPT)["benchmarks"]]
    both["benchmarks"][0]["requests"]["errored"] = [{}]
    several = found_in(written(tmp_path / "c.json", both, indent=1))
    assert [each.category for each in several.counts] == ["benchmark 1", "benchmark 2"]
    assert several.skipped == {"that failed": 1}


def test_sglang_tells_what_it_counts_in_each_of_its_shapes(tmp_path: Path) -> None:
    """Beside an answer, for each choice, in a native answer, by the names of 0.5.6, or hardly at all."""
    details = sglang_details(KEPT)
    old = {"spec_accept_length": 2.9, "spec_verify_ct": 40, "completion_tokens": 116}
    old |= {"spec_accept_token_num": 75, "spec_draft_token_num": 120}
    few = {"spec_accept_length": 2.9, "spec_verify_ct": 40, "spec_num_correct_drafts": 0}
    shapes = {
        "beside": sglang(details, 116),
        "choices": sglang([details, details]),
        "native": {"text": "x", "meta_info": details | {"completion_tokens": 116}},
        "old": {"text": "x", "output_ids": [1], "meta_info": old},
    }
    for name, row in shapes.items():
        told = named(written(tmp_path / f"{name}.jsonl", row))
        assert told["output tokens/loop"] == pytest.approx(2.9), name
        assert told["tokens per loop"] == pytest.approx(1 + 75 / 40), name
        assert told["share of drafts"] == pytest.approx(75 / 120), name
    assert list(named(written(tmp_path / "few.jsonl", sglang(few, 116)))) == ["output tokens/loop"]
    unasked = sglang({}, 4) | {"sglext": {"cached_tokens_details": {}}}
    with pytest.raises(UnavailableError, match="SGLang responses, says nothing about acceptance: 1 request "):
        found_in(written(tmp_path / "none.jsonl", unasked))


def test_llama_cpps_answers_have_a_share_and_no_loops(tmp_path: Path) -> None:
    row = {"choices": [{"index": 0}], "timings": {"predicted_n": 9, "draft_n": 8, "draft_n_accepted": 6}}
    assert named(written(tmp_path / "a.jsonl", row)) == {"share of drafts": 0.75}


def test_three_acceptance_lengths_of_the_same_requests_are_told_apart(tmp_path: Path) -> None:
    """Model cards print one of them without its name: of all loops, of requests, of all output tokens."""
    rows = [response([0, 0, 1, 0]), response([9, 0, 0, 0])]
    told = named(written(tmp_path / "a.jsonl", *rows))
    assert told["tokens per loop"] == pytest.approx(1.2)
    assert told["mean of requests"] == pytest.approx(2.0)
    assert told["output tokens/loop"] == pytest.approx(1.4)
    summary = aiperf_summary({"0": 9, "2": 1}, 2.0, total_draft_tokens={"avg": 30})
    of_aiperf = named(written(tmp_path / "b.json", summary, indent=1))
    assert of_aiperf["tokens per loop"] == pytest.approx(1.2)
    assert of_aiperf["stated mean of requests"] == pytest.approx(2.0)
    by_sum = {"spec_decode_token_weighted_acceptance_length": {"avg": 1.2}}
    unpooled = named(written(tmp_path / "c.json", aiperf_summary(None, 2.0, **by_sum), indent=1))
    assert unpooled == {"stated tokens per loop": 1.2, "stated mean of requests": 2.0}


def test_of_evaluated_drafts_those_behind_a_rejection_do_not_count(tmp_path: Path) -> None:
    """Two loops of three drafts keep 1 and 3: 4 of 5 looked at, 4 of 6 drafted."""
    told = named(written(tmp_path / "a.jsonl", response([0, 1, 0, 1])))
    assert told["share of evaluated"] == pytest.approx(4 / 5)
    assert told["share of drafts"] == pytest.approx(4 / 6)
    assert told["accepted per verified"] == pytest.approx(6 / 8)
    lengths = named(written(tmp_path / "b.jsonl", varying({"1": [0, 1], "3": [0, 1, 0, 1]})))
    assert lengths["share of evaluated"] == pytest.approx(5 / 6)
