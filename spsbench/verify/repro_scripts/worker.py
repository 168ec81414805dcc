"""A program that speaks JSON lines on standard input and output: one request a line, one answer a line."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any


def arguments(parser: argparse.ArgumentParser) -> None:
    """What has to be said."""
    parser.add_argument("--command", metavar="COMMAND", help="the engine; default: the one that was audited")
    parser.add_argument("--target", metavar="HF_DIR", required=True, help="Hugging Face folder")
    parser.add_argument("--draft", metavar="HF_DIR", required=True, help="Hugging Face folder")


def outputs(case: dict[str, Any], options: argparse.Namespace, seeds: Sequence[int]) -> Iterator[list[int]]:
    """One output a seed."""
    command = shlex.split(options.command or case["command"])
    engine = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    load = {"protocol": 1, "target": options.target, "draft": options.draft if case["k"] else None}
    load |= {"k": case["k"], "threads": case["threads"], "context": case["context"]}
    ask(engine, "describe", load | {"dtype": case["dtype"], "options": {}})
    request = {"prompt_ids": case["prompt_ids"], "max_new_tokens": case["max_new_tokens"]}
    request |= {"stop_ids": case["stop_ids"], "stop": [], "sampling": case["sampling"]}
    for seed in seeds:
        answer = ask(engine, "generate", request | {"seed": seed})
        hidden = case["stop_ids"][:1] if answer.get("hidden_stop") else []
        yield answer["output_ids"] + hidden
    engine.communicate(json.dumps({"id": 1, "method": "bye", "params": None}) + "\n")


def ask(engine: subprocess.Popen[str], method: str, params: dict[str, Any]) -> dict[str, Any]:
    """A request and its answer."""
    assert engine.stdin is not None
    assert engine.stdout is not None
    engine.stdin.write(json.dumps({"id": 1, "method": method, "params": params}) + "\n")
    engine.stdin.flush()
    answer: dict[str, Any] = json.loads(engine.stdout.readline() or '{"error": "the engine ended"}')
    if "error" in answer:
        raise SystemExit(f"{method}: {answer['error']}")
    result: dict[str, Any] = answer["result"]
    return result
