"""What a person is told about an engine: its limits and what it does not report. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spsbench.base import Message

# --- limits of several engines ---

RULE_UNREPORTED = "It does not report by which rule it verifies draft tokens."
RULE_AND_PRECISION_UNREPORTED = (
    "It does not report by which rule it verifies draft tokens, nor in what precision it runs."
)
LAST_LOOP_COUNTED_WHOLE = "Drafted and accepted tokens count the whole last loop, also after the stop token."

# --- of servers ---

LLAMA_CPP_SERVER = (
    "It does not report by which rule it verifies draft tokens, nor the precision of its keys and values.",
    "Its own EOS always ends an output, unless there are no stop tokens at all: then EOS is made "
    "impossible, which is another distribution.",
    "With a draft its log-probabilities are left out: it reports 0 for draft tokens.",
)
CHAT_ALONE = "It serves chat alone: its own template makes the prompt, so its texts are no evidence."
TEXT_RETOKENISED = "It answers with text, which is tokenized again: its ids may differ from those drawn."
PROMPT_AS_TEXT = "It takes text, and reads a prompt with its own tokenizer."
OPENAI = (
    "Its own EOS always ends an output; top-k, min-p and repetition penalties are its defaults.",
    RULE_AND_PRECISION_UNREPORTED,
)
SGLANG = (
    RULE_UNREPORTED,
    "It uses a request's seed only if it was started with --enable-deterministic-inference.",
    "Its repetition penalty sees the output, not the prompt (repetition_penalty.py); releases "
    "without that file ignore it (sglang 28181).",
)
SGLANG_PREFIX_CACHE = "A prompt in its prefix cache is not prefilled again."

# --- of engines with a worker ---

LLAMA_CPP = (
    "With penalties, min-p or typical-p its own order: penalties, top-k, typical-p, top-p, "
    "min-p, temperature.",
    "Near the length limit it drafts less than K or nothing; loops are not reported there.",
    LAST_LOOP_COUNTED_WHOLE,
)
NGRAMS_OUTLIVE_REQUESTS = "N-grams outlive their request, so acceptance depends on what was asked before."
MLX_LM = ("It cuts by top-p at temperature 1, before the temperature.",)
ONNXRUNTIME_GENAI_RULE = "greedy: sample-and-compare; sampled: not documented"
ONNXRUNTIME_GENAI = (
    "With top_k 0 it ignores top_p, so it is asked for a top-k of the whole vocabulary.",
    "Its order of temperature, top-k and top-p is not documented, and not reported here.",
    "Drafted and accepted tokens count the whole last round, also after the stop token.",
)
ONNXRUNTIME_GENAI_MODULE = (
    "At a top_k of 1 its MtpGenerator draws from the whole vocabulary.",
    "The target's logits are rounded to float16, without a draft too.",
)
OPENVINO_RULE = "greedy: sample-and-compare; sampled: its own, not lossless"
OPENVINO_TOP_P = "smallest set of more than that mass"
OPENVINO = (
    "Sampled with a draft, its output does not follow the target (openvino.genai issue 4190).",
    "Accepted tokens are not reported: its count leaves out the last target call.",
    "How it cuts by top-k and top-p is from its source (main branch of 2026), not documented.",
    "Its presence and frequency penalties are added to negative logits, not taken off them "
    "(logit_transformers.hpp).",
    "No log-probabilities: asking for them replaces the probabilities that its sampled "
    "verification compares.",
)
TRANSFORMERS = ("It reports no accepted tokens, nor when decoding began; calls of the target are counted.",)
VLLM = (LAST_LOOP_COUNTED_WHOLE, "Top-k without top-p is refused with a draft: release 0.32.0 fails on it.")
VLLM_GREEDY_DRAFTS_RULE = "rejection of the most probable token"
VLLM_ON_CPU = "Up to 0.32.0 drafts are verified with uninitialised temperature, top-k and top-p (vllm 55005)."


# --- what an engine's times are of ---

PREFILL_NOT_SEPARATED = "it does not separate prefill from decoding: the whole request counts as decoding"
DECODED_UNREPORTED = "it does not report the tokens of its decoding time: taken as one fewer than emitted"


# --- did engines run with the same settings? ---


class SettingDiffers(Message):
    """``arms``: by the setting's value, who ran with it."""

    name: str
    meaning: str
    arms: Mapping[str, str]

    def __str__(self) -> str:
        parts = "; ".join(f"{value} with {arms}" for value, arms in self.arms.items())
        return f"{self.name} ({self.meaning}) differs: {parts}."


class SettingsUnreported(Message):
    arms: str
    names: Sequence[str]

    def __str__(self) -> str:
        return f"Not reported by {self.arms}: {', '.join(self.names)}."
