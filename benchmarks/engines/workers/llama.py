"""llama.cpp: a ``llama-server`` on the loopback, token ids in and out. Models are GGUF files."""

from __future__ import annotations

import atexit
import json
import socket
import subprocess
import sys
import time
import urllib.request
from typing import Any

from benchmarks.engines.messages import Answer, Loaded, Request, Settings
from benchmarks.engines.serving import serve

_PATIENCE_S = 120


class Llama:
    """One server with one slot; its times and counts are per request.

    Args:
        settings: ``options["server"]`` is the binary.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._server = settings.options["server"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        command = [self._server, *_flags(settings), "--port", str(port)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        atexit.register(self._process.kill)
        self._wait()

    def describe(self) -> Loaded:
        asked = subprocess.run([self._server, "--version"], capture_output=True, text=True, check=True)
        line = next(x for x in (asked.stdout + asked.stderr).splitlines() if x.startswith("version"))
        return Loaded(line.split(":", 1)[1].partition(", commit")[0].replace(" (", ", ").strip())

    def generate(self, request: Request) -> Answer:
        """EOS and the stop string cost no id in ``tokens``, but they were decoded and timed."""
        found = self._post(
            "/completion",
            {
                "prompt": list(request.prompt_ids),
                "n_predict": request.max_new_tokens,
                "stop": list(request.stop),
                "samplers": ["top_k"],
                "top_k": 1,
                "temperature": 0.0,
                "return_tokens": True,
                "cache_prompt": False,
            },
        )
        timings = found["timings"]
        ids = tuple(found["tokens"])
        decoded = int(timings["predicted_n"]) - 1  # the prefill gives the first
        loops = decoded
        if self._settings.speculative:
            # Both are too few at most: loops near the length limit draft less than K, and what was
            # accepted behind the end is counted too.
            drafted, accepted = (int(timings.get(name, 0)) for name in ("draft_n", "draft_n_accepted"))
            loops = max(-(-drafted // self._settings.k), decoded - accepted)
        hidden = found["stop_type"] in ("word", "eos") and (not ids or ids[-1] not in request.stop_ids)
        return Answer(ids, timings["prompt_ms"], timings["predicted_ms"], decoded, loops, hidden)

    def _wait(self) -> None:
        for _ in range(10 * _PATIENCE_S):
            if self._process.poll() is not None:
                raise RuntimeError(f"{self._server} ended with {self._process.returncode}")
            try:
                with urllib.request.urlopen(f"{self._url}/health") as answer:
                    if json.load(answer)["status"] == "ok":
                        return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"{self._server} is not ready after {_PATIENCE_S} s")

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(self._url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(asked) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


def _flags(settings: Settings) -> list[str]:
    """Keys and values in float32, as everywhere here; nothing is kept from one request to the next."""
    threads = str(settings.threads)
    flags = ["-m", settings.target, "--host", "127.0.0.1", "-c", str(settings.context), "-np", "1"]
    flags += ["-t", threads, "-tb", threads, "-ctk", "f32", "-ctv", "f32", "-fa", "off"]
    flags += ["--no-warmup", "--offline", "--cache-ram", "0", "--threads-http", "1"]
    if settings.draft is not None:
        k = str(settings.k)
        flags += ["--spec-type", "draft-simple", "-md", settings.draft, "--spec-draft-p-min", "0"]
        flags += ["--spec-draft-n-max", k, "--spec-draft-n-min", k]
        flags += ["-ctkd", "f32", "-ctvd", "f32", "-td", threads, "-tbd", threads]
    return flags


if __name__ == "__main__":
    serve(Llama)
