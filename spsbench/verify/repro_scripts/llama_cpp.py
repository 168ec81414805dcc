"""llama.cpp: a llama-server on the loopback, started here, with everything in float32.

TARGET and DRAFT are GGUF files in float32, made of the Hugging Face folders that are named above.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any


def arguments(parser: argparse.ArgumentParser) -> None:
    """What has to be said."""
    parser.add_argument("--server", metavar="PATH", default="llama-server")
    parser.add_argument("--target", metavar="GGUF", required=True, help="file of the target")
    parser.add_argument("--draft", metavar="GGUF", required=True, help="file of the draft")


def outputs(case: dict[str, Any], options: argparse.Namespace, seeds: Sequence[int]) -> Iterator[list[int]]:
    """One output a seed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    server = subprocess.Popen([options.server, *flags(case, options), "--port", port], stdout=sys.stderr)
    try:
        wait(server, f"http://127.0.0.1:{port}/health")
        for seed in seeds:
            found = post(f"http://127.0.0.1:{port}/completion", body(case) | {"seed": seed})
            yield until_stop(found, case)
    finally:
        server.kill()


def flags(case: dict[str, Any], options: argparse.Namespace) -> list[str]:
    """Of the server: one slot, and nothing kept from one request to the next."""
    found = ["-m", options.target, "--host", "127.0.0.1", "-c", str(case["context"]), "-np", "1"]
    found += ["-ctk", "f32", "-ctv", "f32", "-fa", "off", "--no-warmup", "--offline"]
    found += ["--cache-ram", "0", "--threads-http", "1"]
    pools = ["-t", "-tb"]
    if case["k"]:
        k = str(case["k"])
        found += ["--spec-type", "draft-simple", "-md", options.draft, "--spec-draft-p-min", "0"]
        found += ["--spec-draft-n-max", k, "--spec-draft-n-min", k, "-ctkd", "f32", "-ctvd", "f32"]
        found += ["--spec-draft-sampling", case["options"]["draft_sampling"]]
        pools += ["-td", "-tbd"]
    threads = case["threads"]
    return found if threads is None else found + [part for flag in pools for part in (flag, str(threads))]


def body(case: dict[str, Any]) -> dict[str, Any]:
    """Of a request, but for the seed; the chain of samplers is given in full."""
    sampling = case["sampling"]
    drawn = {"samplers": ["temperature", "top_k", "top_p"], "min_p": 0.0, "min_keep": 0}
    drawn |= {name: sampling[name] for name in ("temperature", "top_k", "top_p")}
    if sampling["greedy"]:
        drawn = {"samplers": ["top_k"], "top_k": 1, "temperature": 0.0}
    drawn |= {"prompt": case["prompt_ids"], "n_predict": case["max_new_tokens"]}
    return drawn | {"return_tokens": True, "cache_prompt": False}


def until_stop(found: dict[str, Any], case: dict[str, Any]) -> list[int]:
    """The tokens up to the first that ends an output, which the server may keep back."""
    ids = [int(token) for token in found["tokens"]][: case["max_new_tokens"]]
    ends = [place for place, token in enumerate(ids) if token in case["stop_ids"]]
    if ends:
        return ids[: ends[0] + 1]
    return ids + (case["stop_ids"][:1] if found["stop_type"] == "eos" else [])


def wait(server: subprocess.Popen[bytes], url: str) -> None:
    """Until it is ready."""
    while server.poll() is None:
        try:
            with urllib.request.urlopen(url):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"the server ended with {server.returncode}")


def post(url: str, content: dict[str, Any]) -> dict[str, Any]:
    """A request and its answer."""
    asked = urllib.request.Request(url, json.dumps(content).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked) as answer:
        found: dict[str, Any] = json.load(answer)
    return found
