"""What files of other tools let one conclude, and what is odd about them."""

from __future__ import annotations

from typing import NamedTuple

from spsbench.base.messages import Message

CUT_WITHIN_A_LOOP = "ended within a loop, whose drafts count as accepted and were not all written"
"""Of requests, as every reason below is."""

NO_COUNT = "without a count of speculation"
NO_LOOP = "without a loop"
NO_OUTPUT = "without output"
NO_GUIDELLM_COUNT = "without response_metrics.speculative_decoding"
NO_AIPERF_COUNT = "without spec_decode_acceptance"
FAILED = "that failed"
UNENDED = "that did not end"
WARM_UP = "of the warm-up"

OTHERS_COUNTED = (
    "The server counted more accepted drafts and loops than these requests have tokens: it answered other "
    "requests meanwhile, or a stop cut accepted tokens."
)

PROMPTS_NOT_BESIDE_TEXTS = "generated_texts has no prompts beside it"
NO_TEXTS = "it keeps no texts"
NO_TEXTS_OF_AIPERF = "profile_export.jsonl keeps no texts"
NO_TEXTS_OF_SPEED_BENCH = "results keeps no texts"
NO_TEXTS_OF_CURVE = "a curve has no texts"


class LengthsUnlike(Message):
    """Of a drafter's counts, beside the text that they are of."""

    drafter: str
    sentence = "of {drafter} have another length than generated_token_ids"


class Scope(NamedTuple):
    """What can be concluded from a file, and what cannot."""

    says: str
    silent: str


VLLM_RESPONSES = Scope(
    "Tokens per loop at one K with an interval, how many drafts a loop keeps, the tail.",
    "Other K. The law only with return_token_ids.",
)
SGLANG_RESPONSES = Scope(
    "Output tokens per loop, and where drafts are counted the acceptance, with an interval.",
    "Other K, the law: prompts are not kept.",
)
LLAMA_CPP_RESPONSES = Scope(
    "The share of accepted draft tokens, with an interval.",
    "Tokens per loop (loops are not counted), other K, the law.",
)
OTHER_RESPONSES = Scope(
    "What the servers among them counted.", "Other K. The law only with ids (vLLM's return_token_ids)."
)
SGLANG_BENCH = Scope(
    "Tokens per loop at one K, over all that the server wrote since its start or its last reset.",
    "An interval, drafted and accepted tokens, other K, the law: prompts are not kept.",
)
VLLM_BENCH = Scope(
    "Tokens per loop and acceptance by position at one K, over all requests of the server meanwhile.",
    "An interval (the counters are of the whole server), other K, the law: prompts are not kept.",
)
AIPERF_SUMMARY = Scope(
    "Tokens per loop over all loops, and the mean of requests, at one K.",
    "An interval (profile_export.jsonl has the requests), other K, the law.",
)
AIPERF = Scope(
    "Tokens per loop at one K with an interval and by category, how many drafts a loop keeps, the tail.",
    "Other K; the law, since texts are not kept.",
)
GUIDELLM = Scope(
    "The law: prompts and texts are there. With the models, any drafter and K.",
    "The server's own acceptance: no request has response_metrics.speculative_decoding.",
)
GUIDELLM_COUNTED = Scope(
    f"Tokens per loop at one K, how many drafts a loop keeps, the tail. {GUIDELLM.says}",
    "Other K without the models.",
)
SPEED_BENCH = Scope(
    "The share of accepted draft tokens, by category, with an interval.",
    "Tokens per loop (loops are not counted), other K, the law.",
)
SPEC_DECODE_BENCH = Scope(
    "Every K from one reading, with intervals and the tail (--curve). Greedy ids: the law.",
    "Times. It is assumed that where loops begin does not change what is accepted.",
)
CURVE = Scope(
    "Whether the curve has a shape that one set of texts can give.",
    "An interval, the distribution, the tail, the law: only means are kept.",
)
