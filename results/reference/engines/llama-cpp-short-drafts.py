"""llama.cpp draws a draft, drops it because it stayed short, and no longer samples from the target.

    python llama-cpp-short-drafts.py SERVER TARGET.gguf DRAFT.gguf PROMPT_IDS FIRST LAW
        [--n-min 2] [--p-min 0.6] [--temperature 1.5] [--requests 1500]

SERVER is ``llama-server``. PROMPT_IDS are token ids, separated by commas, FIRST is the token that is
expected to follow them, and LAW is "TOKEN=PROBABILITY" of the target's law behind FIRST, at this temperature
and without cuts. Standard library alone; one request at a time, another seed for each.

Texts that begin with FIRST are counted by whether TOKEN follows: FIRST comes from the prefill, so that TOKEN
is the first one of the first draft. With ``--n-min 0`` (the control, and the default of llama-server) drafts
stand, however short, and the count is that of the target.
"""

from __future__ import annotations

import argparse
import json
import math
import socket
import subprocess
import time
import urllib.request
from typing import Any


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def started(given: argparse.Namespace) -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = [
        "-m",
        given.target,
        "-md",
        given.draft,
        "--port",
        str(port),
        "-c",
        "1024",
        "-np",
        "1",
        "-fa",
        "off",
    ]
    flags += ["-ctk", "f32", "-ctv", "f32", "-ctkd", "f32", "-ctvd", "f32", "-t", "1", "-tb", "1", "-td", "1"]
    flags += ["-tbd", "1", "--no-warmup", "--cache-ram", "0", "--spec-type", "draft-simple"]
    flags += ["--spec-draft-n-max", "4", "--spec-draft-n-min", str(given.n_min)]
    flags += ["--spec-draft-p-min", str(given.p_min), "--spec-draft-sampling", "probabilistic"]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([given.server, *flags], **quiet)  # type: ignore[call-overload]
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{url}/health"):
                return process, url
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server is not ready after a minute")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("server", "target", "draft", "prompt_ids"):
        parser.add_argument(name)
    parser.add_argument("first", type=int)
    parser.add_argument("law")
    parser.add_argument("--n-min", type=int, default=2)
    parser.add_argument("--p-min", type=float, default=0.6)
    parser.add_argument("--temperature", type=float, default=1.5)
    parser.add_argument("--requests", type=int, default=1500)
    given = parser.parse_args()
    token, _, probability = given.law.partition("=")
    process, url = started(given)
    begun = hits = 0
    try:
        for seed in range(1, given.requests + 1):
            body = {
                "prompt": [int(each) for each in given.prompt_ids.split(",")],
                "n_predict": 6,
                "seed": seed,
            }
            body |= {"samplers": ["temperature"], "temperature": given.temperature, "cache_prompt": False}
            tokens = post(f"{url}/completion", body | {"return_tokens": True})["tokens"]
            if len(tokens) > 1 and tokens[0] == given.first:
                begun, hits = begun + 1, hits + (tokens[1] == int(token))
    finally:
        process.terminate()
        process.wait()
    expected = float(probability)
    z = (hits / begun - expected) / math.sqrt(expected * (1 - expected) / begun)
    counted = f"token {token} in {hits} of {begun} texts, {hits / begun:.3f}"
    print(f"p_min {given.p_min:g}, n_min {given.n_min}: {counted}; the target has {expected:.3f}; z {z:+.1f}")


if __name__ == "__main__":
    main()
