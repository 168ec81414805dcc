"""Advice as other engines take it: arguments, JSON or YAML to paste.

Options as vLLM (``SpeculativeConfig``), SGLang, llama.cpp (``--spec-type``) and TensorRT-LLM
(``speculative_config``) had them in November 2026.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base import BLOCK, MODIFIED_REJECTION, SamplingParams, UnavailableError
from spsbench.drafters import drafter_kind
from spsbench.store import documents

if TYPE_CHECKING:
    from spsbench.parts.whatif.replay.prediction import DrafterForecast

Schedule = Sequence[tuple[int, int, int]]
"""(first batch size, last, K); K is 0 where speculation does not pay."""


def _vllm(forecast: DrafterForecast, draft: str, sampling: SamplingParams, by_batch: Schedule) -> str:
    config: dict[str, Any] = {"num_speculative_tokens": max([forecast.k, *(k for *_, k in by_batch)])}
    options = _options(forecast)
    match forecast.drafter.name:
        case "model":
            config |= {"method": "draft_model", "model": draft}
            if not sampling.greedy:  # its default takes the draft's most probable token
                config["draft_sample_method"] = "probabilistic"
        case "lookup":
            config |= {"method": "ngram", "prompt_lookup_max": int(options["max_n"])}
            config["prompt_lookup_min"] = int(options["min_n"])
        case _:
            config["method"] = "suffix"
    if forecast.rule == BLOCK:
        config["rejection_sample_method"] = "block"
    return vllm_option(config, by_batch)


def vllm_option(config: Mapping[str, Any], by_batch: Schedule) -> str:
    """Return vLLM's option for a configuration, with K by batch size where that is known."""
    schedule = {"num_speculative_tokens_per_batch_size": by_batch} if by_batch else {}
    return f"--speculative-config '{json.dumps({**config, **schedule})}'"


def _sglang(forecast: DrafterForecast, draft: str, sampling: SamplingParams, by_batch: Schedule) -> str:
    k = forecast.k
    if forecast.drafter.name == "lookup":
        return f"--speculative-algorithm NGRAM --speculative-num-draft-tokens {k + 1}"
    return (
        f"--speculative-algorithm STANDALONE --speculative-draft-model-path {draft} "
        f"--speculative-num-steps {k} --speculative-eagle-topk 1 --speculative-num-draft-tokens {k + 1}"
    )


def _llama_cpp(forecast: DrafterForecast, draft: str, sampling: SamplingParams, by_batch: Schedule) -> str:
    k = forecast.k
    if forecast.drafter.name == "lookup":
        size = _options(forecast)["max_n"]
        return f"--spec-type ngram-simple --spec-ngram-simple-size-n {size} --spec-ngram-simple-size-m {k}"
    # Its default takes the draft's most probable token, and accepts by another rule than was predicted.
    drawn = "" if sampling.greedy else " --spec-draft-sampling probabilistic"
    return f"--spec-type draft-simple -md {draft} --spec-draft-n-max {k} --spec-draft-p-min 0{drawn}"


def _tensorrt_llm(forecast: DrafterForecast, draft: str, sampling: SamplingParams, by_batch: Schedule) -> str:
    fields = {"decoding_type": "DraftTarget", "max_draft_len": forecast.k, "speculative_model": draft}
    if forecast.drafter.name == "lookup":
        fields = {"decoding_type": "NGram", "max_draft_len": forecast.k}
        fields["max_matching_ngram_size"] = int(_options(forecast)["max_n"])
    return "\n".join(["speculative_config:", *(f"  {name}: {value}" for name, value in fields.items())])


_Writer = Callable[["DrafterForecast", str, SamplingParams, Schedule], str]
_RULES = {"vllm": (BLOCK,)}
FORMATS: Mapping[str, tuple[_Writer, tuple[str, ...]]] = {
    "vllm": (_vllm, ("model", "lookup", "suffix")),
    "sglang": (_sglang, ("model", "lookup")),
    "llama-cpp": (_llama_cpp, ("model", "lookup")),
    "tensorrt-llm": (_tensorrt_llm, ("model", "lookup")),
}
"""By engine what writes its options, and the drafters that it has."""


def _options(forecast: DrafterForecast) -> Mapping[str, Any]:
    spec = forecast.drafter
    return drafter_kind(spec.name).settled(spec)


def can_run(engine: str, forecast: DrafterForecast) -> bool:
    """Return whether the engine has such a drafter and rule."""
    _, drafters = FORMATS[engine]
    rules = (MODIFIED_REJECTION, *_RULES.get(engine, ()))
    return forecast.tree is None and forecast.drafter.name in drafters and forecast.rule in rules


def recipe(
    engine: str, forecast: DrafterForecast, draft: str, sampling: SamplingParams, by_batch: Schedule = ()
) -> str:
    """Return the engine's options for a cell that it can run."""
    writer, _ = FORMATS[engine]
    return writer(forecast, draft, sampling, by_batch)


def schedule(path: Path, tokens: Mapping[int, float], *, drafts: bool) -> Schedule:
    """Return the fastest K of each batch size whose forwards ``spsbench bench --batch --json`` timed.

    Args:
        tokens: replayed tokens per loop by K.
        drafts: whether a draft model drafts; a copy takes no forward.

    Raises:
        UnavailableError: it is not such a file, or has none of these K.
    """
    best: dict[int, tuple[float, int]] = {}
    for _, content in documents(path, "--times"):
        try:
            steps = {int(size): float(step) for size, step in content["step_ms"].items()}
            for cell in content["cells"]:
                size, k = int(cell["batch"]), int(cell["k"])
                loop_ms = float(cell["verify_ms"]) + (float(cell["draft_ms"]) if drafts else 0.0)
                if k in tokens:
                    best[size] = max(best.get(size, (1.0, 0)), (tokens[k] * steps[size] / loop_ms, k))
        except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as problem:
            why = f"{path} lacks {problem}: it is not what `spsbench bench --batch LIST --json` printed."
            raise UnavailableError(why, flag="--times") from problem
    if not best:
        ks = ", ".join(map(str, tokens))
        raise UnavailableError(
            f"{path} has no forwards for K = {ks}.", flag="--times", remedy="Give bench --k."
        )
    return ranges_of({size: k for size, (_, k) in best.items()})


def ranges_of(k_by_size: Mapping[int, int]) -> Schedule:
    """Return the batch sizes that have one K as ranges; between sizes the next smaller one's holds."""
    sizes = sorted(k_by_size)
    ranges: list[tuple[int, int, int]] = []
    for size, end in zip(sizes, [*(after - 1 for after in sizes[1:]), sizes[-1]], strict=True):
        k = k_by_size[size]
        if ranges and ranges[-1][2] == k:
            ranges[-1] = ranges[-1][0], end, k
        else:
            ranges.append((size if ranges else 1, end, k))
    return ranges
