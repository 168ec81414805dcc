"""Files of other tools: which one it is, what it holds of acceptance and of texts, and what follows from it.

Recognised by their fields and read as they are; a field that is missing is named. JSON lines are read one by
one, so that a file may be of any size. Where a tool's numbers contradict each other nothing is read.

The formats were read in their sources in November 2026: ``vllm bench serve`` and
``--per-request-spec-decode-metrics`` of vLLM, ``bench_serving`` and the answers of SGLang 0.5.6 and 0.5.23,
``profile_export.jsonl`` and ``profile_export_aiperf.json`` of AIPerf 0.13, ``benchmarks.json`` of GuideLLM
0.8, ``speed_bench.py`` of llama.cpp, ``golden_al_distribution`` of InferenceX, and the data of
SpecDecode-Bench/simulator. What a file does not say of its server is not said.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.base.errors import UnavailableError, as_typed
from spsbench.base.files import lines_of
from spsbench.store import messages

Row = Mapping[str, Any]
_LARGEST_DOCUMENT = 2**30
"""Bytes of one JSON document, which is read whole."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What is counted of one request, or of all where a tool only keeps sums.

    Attributes:
        loops: verifications of drafts; None where they are not counted.
        drafted, accepted: draft tokens; None where they are not counted.
        tokens: of the output; None where they are not known.
        kept: loops that kept 0, 1, ... drafts; empty where only sums are known.
        rates: where ``kept`` is not known, the share of loops that kept 1, 2, ... drafts or more.
        by_length: loops that had 0, 1, ... drafts, each as ``kept``; empty where lengths are not counted.
    """

    loops: int | None
    drafted: int | None
    accepted: int | None
    tokens: int | None = None
    kept: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    category: str = ""
    by_length: tuple[tuple[int, ...], ...] = ()


class Places(NamedTuple):
    """How many drafts a loop keeps that begins before each token but the first, which is the prefill's."""

    drafter: str
    ahead: tuple[int, ...]


class Stated(NamedTuple):
    """A figure that a tool worked out itself, and of which the file lacks the counts."""

    name: str
    formula: str
    by: str
    value: float


@dataclass(slots=True)
class FileContent:
    """A file's content.

    Attributes:
        k: the longest draft, where it is told.
        stated: figures without counts.
        skipped: requests that say nothing, by reason.
        published: tokens per loop by K, for each curve.
        odd: requests that the file describes oddly, by how.
        notes: sentences on the whole file.
        says, silent: what can be concluded from it, and what cannot.
    """

    form: Form
    models: dict[str, None] = field(default_factory=dict)
    k: int | None = None
    counts: list[Counts] = field(default_factory=list)
    places: list[Places] = field(default_factory=list)
    published: dict[str, dict[int, float]] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    odd: dict[str, int] = field(default_factory=dict)
    stated: list[Stated] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    says: str = ""
    silent: str = ""

    def __post_init__(self) -> None:
        self.says, self.silent = self.form.scope

    def note_odd(self, how: str) -> None:
        self.odd[how] = self.odd.get(how, 0) + 1

    def skip(self, why: str, count: int = 1) -> None:
        if count:
            self.skipped[why] = self.skipped.get(why, 0) + count

    def add(self, counts: Counts, longest: int | None = None) -> None:
        """Add what is counted of a request, or of all.

        A loop's drafts count as accepted before a stop or the limit cuts its tokens, so that fewer may be
        written than were accepted: at most the drafts of one loop, ``longest`` where it is known.

        Raises:
            _Missing: more is accepted than drafted, or fewer tokens are written than a cut explains.
        """
        accepted, tokens, loops = counts.accepted, counts.tokens, counts.loops
        if accepted is not None and counts.drafted is not None and accepted > counts.drafted:
            raise _Missing(f"{accepted} accepted of {counts.drafted} draft tokens")
        if tokens is not None and accepted is not None:
            whole = accepted + (1 + loops if loops is not None else 0)
            if longest is not None and tokens < whole - longest:
                raise _Missing(
                    f"{tokens} output tokens, of which {accepted} are counted as accepted"
                    f"{'' if loops is None else f' in {loops} loops'}: a cut takes at most {longest}"
                )
            if tokens < whole:
                self.note_odd(messages.CUT_WITHIN_A_LOOP)
        self.counts.append(counts)


class Form(NamedTuple):
    """A tool's format.

    Attributes:
        fits: whether a document is of it.
        take: adds what a document holds; ``_Missing`` names a field.
        samples: the document's texts as lines of ``audit``; None where it has none, for ``textless``.
    """

    name: str
    fits: Callable[[Row], bool]
    take: Callable[[Row, FileContent], None]
    samples: Callable[[Row], Iterator[dict[str, Any]]] | None
    scope: messages.Scope
    textless: str = ""


class _Missing(ValueError):
    """A field that is not there, or not what it should be; the message says which."""


MOST_K = 1_000
"""The largest lookahead that is read of other tools' files."""

_MOST = 10**15
"""What a count may be: exact in float64."""


def _number(row: Row, name: str) -> int:
    value = row.get(name)
    if type(value) is int and value > _MOST:
        raise _Missing(f"{name} has {len(str(value))} digits, at most {len(str(_MOST)) - 1} are read")
    if type(value) is not int or value < 0:
        raise _Missing(f"{name} {'is missing' if value is None else f'is {as_typed(value)}, not a count'}")
    return value


def _count_of(value: Any) -> int:
    """A tool may have written it as 3, 3.0 or "3"."""
    try:
        number = int(value)
    except (ValueError, OverflowError, TypeError) as problem:
        raise _Missing(f"{as_typed(value)} is not a count") from problem
    if not 0 <= number <= _MOST:
        raise _Missing(f"a count has {len(str(abs(number)))} digits, at most {len(str(_MOST)) - 1} are read")
    return number


def _shares(row: Row, name: str) -> tuple[float, ...]:
    """Of loops; none where the field is not there."""
    values = row.get(name) or ()
    if not isinstance(values, list) or len(values) > MOST_K:
        raise _Missing(f"{name} is not a list of at most {MOST_K:,}")
    for value in values:
        if type(value) not in (int, float) or not 0 <= value <= 1:
            raise _Missing(f"{name} holds {as_typed(value)}, not a share")
    return tuple(map(float, values))


def _inner_object(row: Row, *names: str) -> Row:
    """Empty where it is not there."""
    for name in names:
        inner = row.get(name)
        row = inner if isinstance(inner, Mapping) else {}
    return row


def _vllm_bench(row: Row, content: FileContent) -> None:
    if "spec_decode_num_drafts" not in row:
        raise _Missing("spec_decode_num_drafts is missing: no counters of speculation were kept")
    loops = _number(row, "spec_decode_num_drafts")
    accepted = _number(row, "spec_decode_accepted_tokens")
    rates = _shares(row, "spec_decode_per_position_acceptance_rates")
    tokens = _number(row, "total_output_tokens")
    # The counters are of the server, the tokens of the file's requests.
    fitting = tokens if tokens > accepted + loops else None
    if fitting is None:
        content.notes[messages.OTHERS_COUNTED] = None
    drafted = _number(row, "spec_decode_draft_tokens")
    _require_own_figures(row, {_LENGTH: (accepted, loops, 1.0), _RATE: (100 * accepted, drafted, 0.0)})
    content.add(Counts(loops, drafted, accepted, fitting, (), rates))
    content.k = max(content.k or 0, len(rates)) or None
    content.models[str(row.get("model_id") or "")] = None


_LENGTH, _RATE = "spec_decode_acceptance_length", "spec_decode_acceptance_rate"
"""What vLLM's benchmark works out of its counts: 1 + accepted/loops, and accepted/drafted in percent."""


def _require_own_figures(row: Row, by_counts: Mapping[str, tuple[int, int, float]]) -> None:
    """Refuse a file whose figures are not those of its counts: (dividend, divisor, what is added)."""
    for name, (part, whole, more) in by_counts.items():
        if row.get(name) is None or not whole:
            continue
        told, counted = _figure(row, name), more + part / whole
        if abs(told - counted) > _ROUNDED:
            raise _Missing(f"{name} is {told:g}, and its counts make {counted:.4g}")


def _sglang_bench(row: Row, content: FileContent) -> None:
    """Take ``accept_length``, which is the server's own average when the benchmark ended.

    It divides what verifications gave, their own token included, by their number; the answers'
    ``spec_accept_length`` divides all output tokens.
    """
    value = row.get("accept_length")
    if value is None or value == 0:
        raise _Missing("accept_length is missing: the server told none")
    length = _figure(row, "accept_length")
    if length < 1:
        raise _Missing(f"accept_length is {length:g}, and each verification gives a token of its own")
    load = ", ".join(
        f"{name} {row[key]}"
        for name, key in (("at most", "max_concurrency"), ("rate", "request_rate"))
        if row.get(key) is not None
    )
    name = f"tokens per loop ({load})" if load else "tokens per loop"
    content.stated.append(Stated(name, "1 + accepted/loops", "SGLang's bench", length))
    server = _inner_object(row, "server_info")
    pools = server.get("decode")
    server = pools[0] if isinstance(pools, list) and pools and isinstance(pools[0], Mapping) else server
    content.models[str(server.get("model_path") or "")] = None
    drafted = server.get("speculative_num_draft_tokens")  # the pending token is counted among them
    if server.get("speculative_eagle_topk") == 1 and type(drafted) is int and 1 < drafted <= MOST_K:
        content.k = max(content.k or 0, drafted - 1)


def _figure(row: Row, name: str) -> float:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MOST:
        raise _Missing(f"{name} {'is missing' if value is None else f'is {as_typed(value)}, not a number'}")
    return float(value)


def _add_vllm_record(stats: Row, tokens: int | None, category: str, content: FileContent) -> None:
    """Add the record of a request that vLLM writes and aiperf passes on."""
    histogram = _histogram(stats.get("acceptance_histogram"), "acceptance_histogram")
    names = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    loops, drafted, accepted = (_number(stats, name) for name in names)
    if sum(histogram) != loops or sum(kept * count for kept, count in enumerate(histogram)) != accepted:
        raise _Missing("acceptance_histogram contradicts num_spec_steps or num_accepted_draft_tokens")
    if type(stats.get("num_spec_tokens")) is int:
        content.k = max(content.k or 0, stats["num_spec_tokens"])
    if not loops:
        content.skip(messages.NO_LOOP)
        return
    lengths = _by_length(stats.get(_BY_LENGTH), histogram, drafted)
    content.k = max(content.k or 0, len(lengths) - 1) or None
    own = Counts(loops, drafted, accepted, tokens, tuple(histogram), (), category, lengths)
    content.add(own, max(content.k or 0, len(histogram) - 1))


_BY_LENGTH = "acceptance_histogram_by_draft_length"


def _histogram(counts: Any, name: str) -> list[int]:
    """Counts by the number of drafts kept, from a list or the mapping of aiperf and older vLLM."""
    if isinstance(counts, Mapping):
        by_kept = {_count_of(kept): _count_of(count) for kept, count in counts.items()}
        if max(by_kept, default=0) > MOST_K:
            raise _Missing(f"{name} counts up to {max(by_kept)} kept, at most {MOST_K:,} are read")
        counts = [by_kept.get(kept, 0) for kept in range(max(by_kept, default=0) + 1)]
    if not isinstance(counts, list) or not all(type(each) is int and each >= 0 for each in counts):
        raise _Missing(f"{name} is {'missing' if counts is None else 'no list of counts'}")
    return counts


def _by_length(histograms: Any, histogram: Sequence[int], drafted: int) -> tuple[tuple[int, ...], ...]:
    """The histogram of each length of a draft; none where the field is not there."""
    if not histograms:
        return ()
    if not isinstance(histograms, Mapping):
        raise _Missing(f"{_BY_LENGTH} is {as_typed(histograms)}, not an object")
    by_length = {
        _count_of(length): _histogram(kept, f"{_BY_LENGTH}.{length}") for length, kept in histograms.items()
    }
    longest = max(by_length)
    if longest > MOST_K:
        raise _Missing(f"{_BY_LENGTH} counts drafts of {longest}, at most {MOST_K:,} are read")
    for length, kept in by_length.items():
        if any(kept[length + 1 :]):
            raise _Missing(f"{_BY_LENGTH}.{length} counts more kept than were drafted")
    widest = max(map(len, (histogram, *by_length.values())))
    left = [*histogram, *[0] * (widest - len(histogram))]
    for kept in by_length.values():
        for place, count in enumerate(kept):
            left[place] -= count
    if left[0] > 0 and 0 not in by_length:  # loops without a draft, which it need not list
        by_length[0], left[0] = [left[0]], 0
    if any(left) or sum(length * sum(kept) for length, kept in by_length.items()) != drafted:
        raise _Missing(f"{_BY_LENGTH} contradicts acceptance_histogram or num_draft_tokens")
    return tuple(tuple(by_length.get(length, ())) for length in range(longest + 1))


def _answer_in(row: Row) -> Row:
    """A response by itself, beside its request, or in a line of the Batch API's output."""
    return _inner_object(row, "response", "body") or _inner_object(row, "response") or row


def _add_answer(row: Row, content: FileContent) -> None:
    """Add what a server's answer says: vLLM's, SGLang's or llama.cpp's own fields."""
    answer = _answer_in(row)
    meta = _inner_object(answer, "meta_info")
    content.models[str(answer.get("model") or "")] = None
    choices = [each for each in answer.get("choices") or () if isinstance(each, Mapping)]
    old = _inner_object(choices[0] if choices else {}, "speculative_decoding_stats")
    tokens = _inner_object(answer, "usage").get("completion_tokens", meta.get("completion_tokens"))
    tokens = tokens if type(tokens) is int else None
    category = str(answer.get("category") or "")
    if stats := _inner_object(answer, "metrics", "speculative_decoding") or old:
        _add_vllm_record(stats, tokens, category, content)
    elif details := _sglang_details(answer, meta, choices):
        for each in details:
            _add_sglang_record(each, tokens if len(details) == 1 else None, category, content)
    elif "draft_n" in (timings := _inner_object(answer, "timings")):
        drafted, accepted = _number(timings, "draft_n"), _number(timings, "draft_n_accepted")
        predicted = timings.get("predicted_n", tokens)
        content.add(
            Counts(
                None, drafted, accepted, predicted if type(predicted) is int else tokens, category=category
            )
        )
    else:
        content.skip(messages.NO_COUNT)


def _sglang_details(answer: Row, meta: Row, choices: Sequence[Row]) -> list[Row]:
    """SGLang's record of each choice: beside an OpenAI answer, in its choices, or in a native one."""
    told = _inner_object(answer, "sglext").get("spec_tokens_details")
    beside = told if isinstance(told, list) else [told]
    found = [each for each in beside if isinstance(each, Mapping)]
    found = found or [_inner_object(choice, "meta_info") for choice in choices] or [meta]
    return [each for each in found if any(name.startswith("spec_") for name in each)]


_CORRECT = ("spec_num_correct_drafts", "spec_accept_token_num")
_PROPOSED = ("spec_num_proposed_drafts", "spec_draft_token_num")
"""The same counts by the name of 0.5.23 and of 0.5.6."""


def _add_sglang_record(details: Row, tokens: int | None, category: str, content: FileContent) -> None:
    """What a tool leaves out may stand there as 0."""
    loops = _number(details, "spec_verify_ct")
    if not loops:
        content.skip(messages.NO_LOOP)
        return
    length = _figure(details, "spec_accept_length")
    own = details.get("completion_tokens")
    written = own if type(own) is int else tokens
    if written is None:
        written = round(length * loops)
    if abs(length - written / loops) > _ROUNDED:
        raise _Missing(
            f"spec_accept_length is {length}, and {written} tokens in {loops} verifications are "
            f"{written / loops:.3f}"
        )
    proposed = next((_number(details, name) for name in _PROPOSED if details.get(name)), None)
    histogram = _histogram(
        details.get("spec_correct_drafts_histogram") or [], "spec_correct_drafts_histogram"
    )
    correct = next((_number(details, name) for name in _CORRECT if details.get(name) is not None), None)
    if proposed is None and not correct:  # filled in by its type
        correct = None
    if histogram:
        in_all = sum(kept * count for kept, count in enumerate(histogram))
        if sum(histogram) != loops or (correct is not None and in_all != correct):
            raise _Missing(
                "spec_correct_drafts_histogram contradicts spec_verify_ct or spec_num_correct_drafts"
            )
        correct = in_all
    own_counts = Counts(loops, proposed, correct, written, tuple(histogram), category=category)
    content.add(own_counts, None if proposed is None else proposed // loops)


_ROUNDED = 0.01
"""How far a figure with two decimals may lie from its counts."""


def _response_texts(row: Row) -> Iterator[dict[str, Any]]:
    """The ids that vLLM returns with ``return_token_ids``."""
    request = _inner_object(row, "request")
    row = _answer_in(row)
    choices: Iterable[Any] = row.get("choices") or ({},)
    for choice in choices:
        prompt = choice.get("prompt_token_ids") or row.get("prompt_token_ids")
        if prompt is None or choice.get("token_ids") is None:
            raise _Missing(
                "prompt_token_ids or choices[].token_ids is missing: vLLM writes them with return_token_ids"
            )
        yield {"prompt_ids": prompt, "completion_ids": choice["token_ids"], **_named_sampling(request)}


def _named_sampling(body: Row) -> dict[str, Any]:
    """Nothing where a request names no temperature."""
    temperature = body.get("temperature")
    if temperature is None:
        return {}
    if temperature == 0:
        return {"sampling": {"greedy": True}}
    named = {name: body[name] for name in ("temperature", "top_p", "top_k") if body.get(name) is not None}
    return {"sampling": named | ({"top_k": 0} if named.get("top_k") == -1 else {})}


def _aiperf(row: Row, content: FileContent) -> None:
    metadata = _inner_object(row, "metadata")
    if metadata.get("benchmark_phase", "profiling") != "profiling":
        content.skip(messages.WARM_UP)
    elif row.get("error") is not None:
        content.skip(messages.FAILED)
    elif not (stats := _inner_object(row, "spec_decode_acceptance")):
        content.skip(messages.NO_AIPERF_COUNT)
    else:
        # Not output_sequence_length: AIPerf's own tokenizer counts it.
        tokens = stats.get("completion_tokens")
        category = str(metadata.get("source_kind") or "")
        _add_vllm_record(stats, None if tokens is None else _count_of(tokens), category, content)


_POOLED = "pooled_spec_decode_acceptance_histogram"


def _aiperf_summary(row: Row, content: FileContent) -> None:
    """Add both of its acceptance lengths: of all loops alike, and of all requests alike."""

    def average_of(metric: str) -> Any:
        return _inner_object(row, metric).get("avg")

    if average_of("spec_decode_acceptance_length") is None and _POOLED not in row:
        raise _Missing(f"spec_decode_acceptance_length and {_POOLED} are missing: no request told any")
    if _POOLED in row:
        histogram = _histogram(row[_POOLED], _POOLED)
        loops, accepted = sum(histogram), sum(kept * count for kept, count in enumerate(histogram))
        for metric, value in (("total_spec_decode_steps", loops), ("total_accepted_draft_tokens", accepted)):
            if average_of(metric) is not None and _count_of(average_of(metric)) != value:
                raise _Missing(f"{_POOLED} contradicts {metric}")
        drafted = average_of("total_draft_tokens")
        if loops:
            content.add(
                Counts(
                    loops, None if drafted is None else _count_of(drafted), accepted, None, tuple(histogram)
                )
            )
    for metric, stated in _OF_AIPERF.items():
        if average_of(metric) is not None and (
            _POOLED not in row or metric == "spec_decode_acceptance_length"
        ):
            content.stated.append(Stated(*stated, _figure(_inner_object(row, metric), "avg")))


_OF_AIPERF = {
    "spec_decode_token_weighted_acceptance_length": (
        "tokens per loop",
        "1 + accepted/loops",
        "AIPerf token-weighted",
    ),
    "spec_decode_acceptance_length": ("mean of requests", "mean of tokens/loop", "AIPerf acceptance length"),
}


def _guidellm(row: Row, content: FileContent) -> None:
    version = _inner_object(row, "metadata").get("version")
    if version not in (1, 2):
        raise _Missing(f"metadata.version is {as_typed(version)}, not 1 or 2")
    several = len(row["benchmarks"]) > 1
    untold = 0
    for number, benchmark in enumerate(row["benchmarks"], start=1):
        requests = _inner_object(benchmark, "requests")
        for name, why in (("errored", messages.FAILED), ("incomplete", messages.UNENDED)):
            content.skip(why, len(requests.get(name) or ()))
        for request, body in _of_benchmark(benchmark):
            content.models[str(body.get("model") or "")] = None
            if request.get("output") is None:
                content.skip(messages.NO_OUTPUT)
            stats = _inner_object(request, "response_metrics", "speculative_decoding")
            if not stats:
                untold += 1
                continue
            tokens = _inner_object(request, "output_metrics").get("text_tokens")
            _add_vllm_record(
                stats,
                (tokens or None) if type(tokens) is int else None,  # 0 where no usage came
                f"benchmark {number}" if several else "",
                content,
            )
    if content.counts:
        content.skip(messages.NO_GUIDELLM_COUNT, untold)
        content.says, content.silent = messages.GUIDELLM_COUNTED


def _guidellm_requests(row: Row) -> Iterator[tuple[Row, Row]]:
    """(successful request, the body that was sent)."""
    for benchmark in row["benchmarks"]:
        yield from _of_benchmark(benchmark)


def _of_benchmark(benchmark: Row) -> Iterator[tuple[Row, Row]]:
    successful = _inner_object(benchmark, "requests").get("successful")
    if not isinstance(successful, list):
        raise _Missing("benchmarks[].requests.successful is missing")
    for request in successful:
        try:
            args = {"args": json.loads(request.get("request_args") or "{}")}
        except ValueError as problem:
            raise _Missing("request_args is not whole JSON") from problem
        yield request, _inner_object(args, "args", "body")


def _guidellm_texts(row: Row) -> Iterator[dict[str, Any]]:
    for request, body in _guidellm_requests(row):
        if not request.get("output"):
            continue
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
            prompt = prompt[0]
        if prompt is None:
            why = "none is there"
            if body.get("messages"):
                why = "messages are there, and their template is not"
            raise _Missing(f"request_args.body.prompt is missing ({why}): run it against /v1/completions")
        name = "prompt" if isinstance(prompt, str) else "prompt_ids"
        yield {name: prompt, "completion": request["output"], **_named_sampling(body)}


def _speed_bench(row: Row, content: FileContent) -> None:
    content.models[str(_inner_object(row, "config").get("model") or "")] = None
    for each in row["results"]:
        if not each.get("ok", True):
            content.skip(messages.FAILED)
            continue
        drafted, accepted = _number(each, "draft_n"), _number(each, "draft_n_accepted")
        tokens = _number(each, "completion_tokens")
        category = str(each.get("category") or "")
        content.add(Counts(None, drafted, accepted, tokens, category=category))


def _spec_decode_bench(row: Row, content: FileContent) -> None:
    for name, drafter in (("acc_eagle", "eagle"), ("acc_ngram", "ngram"), ("acc_eagle_three", "eagle3")):
        stored = row.get(name)
        lengths = stored.get("acc_len") if isinstance(stored, Mapping) else stored
        if lengths is None:
            continue
        if not isinstance(lengths, list) or not all(type(each) is int and each >= 1 for each in lengths):
            raise _Missing(f"{name}.acc_len is not a list of counts from 1 on")
        if len(lengths) != len(row["generated_token_ids"]):
            content.note_odd(str(messages.LengthsUnlike(drafter)))
        if len(lengths) > 1:
            content.places.append(Places(drafter, tuple(length - 1 for length in lengths[:-1])))


def _spec_decode_texts(row: Row) -> Iterator[dict[str, Any]]:
    yield {"prompt_ids": row["prompt_token_ids"], "completion_ids": row["generated_token_ids"]}


def _add_curves(content: Mapping[Any, Any], into: FileContent, above: str = "") -> None:
    """Add every mapping of K to a number, under the names that lead to it."""
    if content and all(type(k) is int for k in content):
        if all(isinstance(length, int | float) for length in content.values()):
            for k, length in content.items():
                if not (0 <= k <= MOST_K and math.isfinite(length)):
                    raise _Missing(
                        f"{above or 'the curve'} has {length} at K = {k}: a number at a K to {MOST_K:,}"
                    )
            into.published[above] = {k: float(length) for k, length in sorted(content.items())}
        return
    for name, inner in content.items():
        if isinstance(inner, Mapping):
            _add_curves(inner, into, f"{above} {name}".strip())


def _has(*names: str) -> Callable[[Row], bool]:
    return lambda row: all(name in row for name in names)


GUIDELLM = Form(
    "GuideLLM",
    lambda row: isinstance(row.get("benchmarks"), list),
    _guidellm,
    _guidellm_texts,
    messages.GUIDELLM,
)


def _is_vllm(row: Row) -> bool:
    answer = _answer_in(row)
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else {}
    return bool(_inner_object(answer, "metrics", "speculative_decoding")) or (
        isinstance(first, Mapping) and "speculative_decoding_stats" in first
    )


def _is_sglang(row: Row) -> bool:
    answer = _answer_in(row)
    meta = _inner_object(answer, "meta_info")
    choices = [each for each in answer.get("choices") or () if isinstance(each, Mapping)]
    return "sglext" in answer or bool(_sglang_details(answer, meta, choices))


# Any of these answers may stand beside one without a count.
RESPONSES = (
    Form("vLLM responses", _is_vllm, _add_answer, _response_texts, messages.VLLM_RESPONSES),
    Form("SGLang responses", _is_sglang, _add_answer, _response_texts, messages.SGLANG_RESPONSES),
    Form(
        "llama.cpp responses",
        lambda row: "draft_n" in _inner_object(_answer_in(row), "timings"),
        _add_answer,
        _response_texts,
        messages.LLAMA_CPP_RESPONSES,
    ),
    Form(
        "responses of an OpenAI-compatible server",
        lambda row: "choices" in _answer_in(row),
        _add_answer,
        _response_texts,
        messages.OTHER_RESPONSES,
    ),
)
FORMS = (
    Form(
        "SGLang bench_serving",
        _has("total_output_tokens_retokenized", "request_throughput"),
        _sglang_bench,
        None,
        messages.SGLANG_BENCH,
        messages.PROMPTS_NOT_BESIDE_TEXTS,
    ),
    Form(
        "vllm bench serve",
        _has("total_output_tokens", "request_throughput"),
        _vllm_bench,
        None,
        messages.VLLM_BENCH,
        messages.PROMPTS_NOT_BESIDE_TEXTS,
    ),
    *RESPONSES,
    Form(
        "AIPerf summary",
        lambda row: "aiperf_version" in row and ("input_config" in row or _POOLED in row),
        _aiperf_summary,
        None,
        messages.AIPERF_SUMMARY,
        messages.NO_TEXTS,
    ),
    Form(
        "AIPerf",
        lambda row: isinstance(row.get("metadata"), Mapping) and isinstance(row.get("metrics"), Mapping),
        _aiperf,
        None,
        messages.AIPERF,
        messages.NO_TEXTS_OF_AIPERF,
    ),
    GUIDELLM,
    Form(
        "llama.cpp speed-bench",
        lambda row: isinstance(row.get("results"), list) and "summary" in row,
        _speed_bench,
        None,
        messages.SPEED_BENCH,
        messages.NO_TEXTS_OF_SPEED_BENCH,
    ),
    Form(
        "SpecDecode-Bench",
        lambda row: "generated_token_ids" in row and any(name.startswith("acc") for name in row),
        _spec_decode_bench,
        _spec_decode_texts,
        messages.SPEC_DECODE_BENCH,
    ),
)
PUBLISHED = Form(
    "published curve",
    lambda row: False,
    lambda row, content: _add_curves(row, content),
    None,
    messages.CURVE,
    messages.NO_TEXTS_OF_CURVE,
)


def documents(path: Path, flag: str) -> Iterator[tuple[int, Row]]:
    """Yield (line number, object) of JSON lines, or of one document over several lines."""
    with lines_of(path, flag) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as problem:
                if number > 1:
                    why = f"line {number} of {path} is not whole JSON: it is cut off, or damaged."
                    raise UnavailableError(why, flag=flag) from problem
                row = _whole_document(path, line, lines, flag)
            if not isinstance(row, Mapping):
                raise UnavailableError(f"line {number} of {path} is not a JSON object.", flag=flag)
            yield number, row


def _whole_document(path: Path, begun: str, lines: io.TextIOWrapper, flag: str) -> Any:
    rest = lines.read(_LARGEST_DOCUMENT)
    if len(rest) == _LARGEST_DOCUMENT:
        why = f"{path} is one JSON document of more than {_LARGEST_DOCUMENT >> 30} GiB."
        raise UnavailableError(why, flag=flag, remedy="Write it as JSON lines.")
    try:
        return json.loads(begun + rest)
    except ValueError as problem:
        why = f"{path} is not whole JSON ({problem}): it is cut off, or of another kind."
        raise UnavailableError(why, flag=flag) from problem


def form_of(row: Row) -> Form | None:
    if any(f"{name}{ids}" in row for name in ("completion", "prompt") for ids in ("", "_ids")):
        return None  # a line of ``audit``
    return next((form for form in FORMS if form.fits(row)), None)


def recognised(path: Path, flag: str) -> Form | None:
    """Recognise a file's format by its first document; None where it is none of these, or not JSON."""
    if path.suffix in (".yaml", ".yml"):
        return PUBLISHED
    try:
        return next((form_of(row) for _, row in documents(path, flag)), None)
    except UnavailableError:
        return None  # whose reader says what is wrong with it


def read(path: Path, form: Form, flag: str) -> FileContent:
    """Read all that a file holds but its texts.

    Raises:
        UnavailableError: a field is missing, numbers contradict each other, or several models are in it.
    """
    content = FileContent(form)
    if form is PUBLISHED:
        from spsbench.config.files import read_yaml

        try:
            _add_curves(read_yaml(path, flag), content)
        except _Missing as problem:
            raise UnavailableError(f"{path}: {problem}.", flag=flag) from problem
        if not content.published:
            raise UnavailableError(f"{path} has no mapping of K to tokens per loop.", flag=flag)
        return content
    for number, row in documents(path, flag):
        found = form_of(row)
        if found is not form and not (form in RESPONSES and found in RESPONSES):
            why = f"line {number} of {path} is not of {form.name}, as its first is."
            raise UnavailableError(why, flag=flag)
        try:
            form.take(row, content)
        except (_Missing, AttributeError, TypeError, ValueError) as problem:
            raise _unreadable(path, number, form, problem, flag) from problem
        if len(models := [name for name in content.models if name]) > 1:
            why = f"{path} is of several models: {', '.join(models)}."
            raise UnavailableError(why, flag=flag, remedy="Split it by model.")
    if not (content.counts or content.places or content.stated or form is GUIDELLM):
        why = "; ".join(
            f"{count} request{'s' * (count > 1)} {what}" for what, count in content.skipped.items()
        )
        why = f"{path}, {form.name}, says nothing about acceptance: {why or 'nothing is in it'}."
        raise UnavailableError(why, flag=flag)
    return content


def _unreadable(path: Path, number: int, form: Form, problem: Exception, flag: str) -> UnavailableError:
    reason = problem if isinstance(problem, _Missing) else f"{type(problem).__name__}: {problem}"
    return UnavailableError(f"line {number} of {path}, {form.name}: {reason}.", flag=flag)


def samples_in(row: Row) -> Sequence[Row]:
    """Return a line as lines of ``audit``: itself, unless another tool wrote it with texts."""
    form = form_of(row)
    return [row] if form is None or form.samples is None else list(form.samples(row))


def samples(path: Path, flag: str) -> Iterator[tuple[int, Row]]:
    """Yield (line number, line of ``audit``) of every text of another tool's file.

    Raises:
        UnavailableError: it has no texts, or lacks a field.
    """
    for number, row in documents(path, flag):
        form = form_of(row)
        if form is None or form.samples is None:
            what = "of no known format" if form is None else f"{form.name}: {form.textless}"
            remedy = "A text needs its prompt and its completion."
            raise UnavailableError(f"line {number} of {path} is {what}.", flag=flag, remedy=remedy)
        try:
            yield from ((number, sample) for sample in form.samples(row))
        except (_Missing, AttributeError, KeyError, TypeError) as problem:
            raise _unreadable(path, number, form, problem, flag) from problem
