"""llama.cpp: a ``llama-server`` on the loopback, token ids in and out. Models are GGUF files.

Options: ``server`` is the binary; ``draft_sampling`` is ``greedy``, its default, or ``probabilistic``;
``speculation``: see ``protocol.LOOKUP``. ``draft_p_min`` ends a draft where the draft's best token is less
probable, and a draft of fewer than ``draft_n_min`` tokens is dropped: K without either, 0 beside
``draft_p_min``, as without the flag. ``synth_len`` is the mean length of loops whose acceptance is made up.
"""

from __future__ import annotations

import atexit
import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spsbench.base import (
    FLOAT32,
    IMPOSSIBLE,
    LENGTH,
    LONGEST_NGRAM,
    LOOKUP,
    LOOKUP_RULE,
    MOST_IN_FLIGHT,
    STOP,
    Answer,
    Ask,
    Described,
    Load,
    Together,
    Wave,
    seed_field,
)
from spsbench.parts.external.messages import LLAMA_CPP
from spsbench.parts.external.serving import (
    PENALTIES,
    float32_only,
    lacking,
    require_processors,
    serve,
    until_stop,
    usual_settings,
)
from spsbench.parts.external.waves import Hear, threaded

_PATIENCE_S = 300
_DRAFTS = "llamacpp:spec_decode_num_drafts_total"
_RULES = {"greedy": "sample-and-compare", "probabilistic": "modified rejection", LOOKUP: LOOKUP_RULE}

_ORDERED = ("min_p", "typical_p", *PENALTIES)
PROCESSORS = (*_ORDERED, "logit_bias", "grammar")


class LlamaCpp:
    """One server with a slot for each request in flight; its times and counts are per request."""

    name = "llama.cpp"

    def __init__(self, load: Load) -> None:
        float32_only(load)
        self._load, self._server = load, load.options["server"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        command = [self._server, *flags(load), "--port", str(port)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        atexit.register(self._process.kill)
        self._wait()

    def describe(self) -> Described:
        (model,) = json.loads(self._request("/v1/models"))["data"]
        settings = usual_settings(self._load)
        if self._load.weights != FLOAT32:
            # Not at the top: it takes packages that an engine's environment may lack.
            from spsbench.parts.external.quantised import kinds_of

            settings["weights"] = kinds_of(Path(self._load.target))  # what its tensors really are
        return Described(
            engine=self.name,
            version=self._release(),
            vocab_size=model["meta"]["n_vocab"],
            rule=_RULES[drafts_by(self._load)] if self._load.speculative else None,
            settings=settings,
            in_flight=MOST_IN_FLIGHT,
            limits=list(LLAMA_CPP),
            processors=list(PROCESSORS),
        )

    def generate(self, ask: Ask) -> Answer:
        """The prefill gives the first token; the token that ends a text is among ``tokens``."""
        before = self._loops_with_draft()
        started = time.perf_counter()
        response = self._completed(self._body(ask))
        wall_ms = 1e3 * (time.perf_counter() - started)
        timings = response["timings"]
        ids, finish, hidden = output(response, ask)
        decoded = int(timings["predicted_n"]) - 1
        counts: dict[str, Any] = {"loops": decoded}
        if self._load.speculative:
            # Its counter leaves loops without a draft out, which there are where less than K tokens are left.
            # So there are where drafts end early.
            adapts = self._load.options.get("draft_p_min", 0) or drafts_by(self._load) == LOOKUP
            whole = not adapts and decoded + self._load.k < ask.max_new_tokens
            counts["loops"] = self._loops_with_draft() - before if whole else None
            counts["drafted"] = int(timings.get("draft_n", 0))
            counts["accepted"] = int(timings.get("draft_n_accepted", 0))
        return Answer(
            ids,
            finish,
            hidden,
            prefill_ms=timings["prompt_ms"],
            decode_ms=timings["predicted_ms"],
            wall_ms=wall_ms,
            decoded=decoded,
            logprobs=logprobs(response, ids, ask),
            **counts,
        )

    def together(self, wave: Wave) -> Together:
        """Give each request a thread and a slot; closing its stream aborts a request."""
        return threaded(wave, self._alongside)

    def _alongside(self, ask: Ask, hear: Hear | None) -> Answer | None:
        if hear is None:
            return Answer(*output(self._completed(self._body(ask)), ask))
        tokens = 0
        with self._opened("/completion", self._body(ask) | {"stream": True}) as lines:
            for line in lines:
                if line.startswith(b"data:"):
                    tokens += len(json.loads(line[5:]).get("tokens", ()))
                    if hear(tokens):
                        break
        return None

    def _body(self, ask: Ask) -> dict[str, Any]:
        return body(ask) | {"cache_prompt": self._load.prefix_cache}

    def _completed(self, content: dict[str, Any]) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = json.loads(self._request("/completion", content))
        return answer

    def _metrics(self) -> str:
        return self._request("/metrics")

    def _release(self) -> str:
        process = subprocess.run([self._server, "--version"], capture_output=True, text=True, check=True)
        line = next(x for x in (process.stdout + process.stderr).splitlines() if x.startswith("version"))
        return line.split(":", 1)[1].partition(", commit")[0].replace(" (", ", ").strip()

    def _loops_with_draft(self) -> int:
        """So far; the server has no other request."""
        match = re.search(rf"^{_DRAFTS} (\S+)", self._metrics(), re.MULTILINE)
        return int(float(match.group(1))) if match else 0

    def _wait(self) -> None:
        for _ in range(10 * _PATIENCE_S):
            if self._process.poll() is not None:
                raise RuntimeError(f"{self._server} ended with {self._process.returncode}")
            try:
                if json.loads(self._request("/health"))["status"] == "ok":
                    return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"{self._server} is not ready after {_PATIENCE_S} s")

    def _request(self, path: str, content: dict[str, Any] | None = None) -> str:
        with self._opened(path, content) as answer:
            return str(answer.read().decode())

    def _opened(self, path: str, content: dict[str, Any] | None = None) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"})
        return urllib.request.urlopen(request)


def output(response: Mapping[str, Any], ask: Ask) -> tuple[list[int], str, bool]:
    """The ids, why they end, and whether the token that ended them is left out."""
    ids, finish = until_stop(list(response["tokens"]), ask)
    hidden = finish == LENGTH and response.get("stop_type") in ("word", "eos")
    return ids, STOP if hidden else finish, hidden


def body(ask: Ask) -> dict[str, Any]:
    """With all samplers: else the chain's defaults (top-k 40, min-p .05) would join in."""
    sampling = ask.sampling
    require_processors(sampling, PROCESSORS)
    processed = not {*lacking(sampling, ())}.isdisjoint(_ORDERED)
    drawn: dict[str, Any] = {"samplers": ["top_k"], "top_k": 1, "temperature": 0.0}
    if not sampling.greedy:
        drawn = {"samplers": ["temperature", "top_k", "top_p"], "temperature": sampling.temperature}
        drawn |= {"top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": sampling.min_p, "min_keep": 0}
        if processed:
            drawn["samplers"] = ["penalties", "top_k", "typ_p", "top_p", "min_p", "temperature"]
    elif processed:
        drawn["samplers"] = ["penalties", "top_k"]
    if processed:
        drawn |= {"repeat_penalty": sampling.repetition_penalty, "typical_p": sampling.typical_p}
        drawn |= {name: getattr(sampling, name) for name in PENALTIES[1:]}
        drawn["repeat_last_n"] = 64  # its default, which a server may have been started without
    if sampling.logit_bias:
        drawn["logit_bias"] = [[int(token), bias] for token, bias in sampling.logit_bias.items()]
    if sampling.grammar is not None:
        drawn["json_schema"] = json.loads(sampling.grammar)
    if ask.logprobs:
        drawn |= {"n_probs": 1, "post_sampling_probs": False}
    if not sampling.greedy:
        drawn |= seed_field("seed", ask.seed, 2**32)
    return drawn | {
        "prompt": ask.prompt_ids,
        "n_predict": ask.max_new_tokens,
        "stop": ask.stop,
        "return_tokens": True,
    }


def logprobs(response: Mapping[str, Any], ids: list[int], ask: Ask) -> list[float] | None:
    """Log-probabilities of the target's logits before all samplers.

    None where tokens were drafted, to which it gives probability 1 (``TODO: set result.probs`` in
    ``server-context.cpp``), and where a token that ends within a character has no entry.
    """
    rows, timings = response.get("completion_probabilities"), response.get("timings")
    if not ask.logprobs or not isinstance(rows, list) or not isinstance(timings, Mapping):
        return None
    pairs = [(row.get("id"), row.get("logprob")) for row in rows[: len(ids)] if isinstance(row, Mapping)]
    left = ids[len(pairs) :]  # a stop token may have been kept back
    if [token for token, _ in pairs] != ids[: len(pairs)] or left[1:] or not {*left} <= {*ask.stop_ids}:
        return None
    values = [float(value) for _, value in pairs if isinstance(value, (int, float))]
    if timings.get("draft_n") or len(values) < len(pairs):
        return None
    return [max(value, IMPOSSIBLE) for value in values]


def flags(load: Load) -> list[str]:
    """Keys and values are in float32 as the weights; there is no prefix cache unless asked for."""
    slots = load.in_flight
    arguments = ["-m", load.target, "--host", "127.0.0.1", "-c", str(load.context * slots), "-np", str(slots)]
    arguments += ["-ctk", "f32", "-ctv", "f32", "-fa", "off"]
    arguments += [
        "--no-warmup",
        "--offline",
        "--metrics",
        "--cache-ram",
        "0",
        "--threads-http",
        str(slots + 1),
    ]
    pools = ["-t", "-tb"]
    if load.draft is not None and drafts_by(load) == LOOKUP:
        arguments += ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", str(LONGEST_NGRAM)]
        arguments += ["--spec-ngram-simple-size-m", str(load.k)]
    elif load.draft is not None:
        arguments += ["--spec-type", "draft-simple", "-md", load.draft]
        arguments += ["--spec-draft-p-min", str(load.options.get("draft_p_min", 0))]
        arguments += ["--spec-draft-n-max", str(load.k), "--spec-draft-n-min", str(fewest(load))]
        arguments += ["-ctkd", "f32", "-ctvd", "f32"]
        if drafts_by(load) != "greedy":  # the only rule of older builds, which do not know the option
            arguments += ["--spec-draft-sampling", drafts_by(load)]
        if "synth_len" in load.options:
            arguments += ["--spec-synth-len", str(load.options["synth_len"])]
        pools += ["-td", "-tbd"]
    if load.threads is not None:
        arguments += [part for flag in pools for part in (flag, str(load.threads))]
    return arguments


def fewest(load: Load) -> int:
    """The fewest tokens of a draft that is not dropped."""
    return int(load.options.get("draft_n_min", 0 if "draft_p_min" in load.options else load.k))


def drafts_by(load: Load) -> str:
    """How it drafts, as ``_RULES`` names it."""
    return LOOKUP if load.speculation == LOOKUP else str(load.options.get("draft_sampling", "greedy"))


if __name__ == "__main__":
    serve(LlamaCpp)
