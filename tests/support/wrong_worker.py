"""A worker that keeps to the engine protocol but for one thing; the standard library alone.

    python wrong_worker.py KIND

It counts upwards from the prompt's last token. Kinds: right, rubbish, dies, hangs, other-request,
outside-the-vocabulary, behind-the-stop, too-long, ends-early, counts, fails, fails-each and fails-one (of a
wave), no-object, chatty, changes, deaf, loud, never-starts and those of LINES.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

kind = sys.argv[1]
marker = Path(sys.argv[2]) if len(sys.argv) > 2 else None


_ANSWER = b'{"id": %d, "result": {"output_ids": [8, 9, 10, 11], "finish": "length"%b}}\n'
LINES = {
    "floods": b"[" * (9 << 20),
    "half-a-line": b'{"id": 2, "res',
    "deep": b'{"id": 2, "result": ' + b"[" * 200_000 + b"]" * 200_000 + b"}\n",
    "nan": _ANSWER % (2, b', "decode_ms": NaN'),
    "huge": _ANSWER % (2, b', "decode_ms": 1' + b"0" * 400),
    "ahead": _ANSWER % (2, b"") + _ANSWER % (3, b""),
}


def first_time() -> bool:
    """Whether this is the first process that asks; the marker outlives it."""
    if marker is None or marker.exists():
        return False
    marker.touch()
    return True


def generated(ask: dict[str, object]) -> dict[str, object]:
    prompt, most, stops = ask["prompt_ids"], ask["max_new_tokens"], ask["stop_ids"]
    ids: list[int] = []
    while len(ids) < most:
        ids.append((prompt[-1] + len(ids) + 1) % 100)
        if ids[-1] in stops:
            return {"output_ids": ids, "finish": "stop"}
    return {"output_ids": ids, "finish": "length"}


def spoilt(answer: dict[str, object], ask: dict[str, object]) -> dict[str, object]:
    ids = answer["output_ids"]
    if kind == "outside-the-vocabulary":
        ids[-1] = 100_000
    elif kind == "behind-the-stop":
        ids[:0] = ask["stop_ids"][:1]
        ids.pop()
    elif kind == "too-long":
        ids.append(1)
    elif kind == "counts":
        answer["loops"] = answer["decoded"] = 10**12
    elif kind == "ends-early":
        return {"output_ids": ids[:1], "finish": "stop"}
    return answer


if kind == "never-starts":
    sys.exit(3)
for line in sys.stdin:
    message = json.loads(line)
    method, answer = message["method"], {"id": message["id"]}
    if method == "describe":
        version = "2" if kind == "changes" and not first_time() else "1"
        answer["result"] = {"engine": "counting", "version": version}
    elif method == "bye":
        answer["result"] = None
    else:
        if kind == "loud" and first_time():
            while True:
                sys.stderr.write("x" * (1 << 20))
        if kind in LINES and first_time():
            sys.stdout.buffer.write(LINES[kind])
            sys.stdout.buffer.flush()
            time.sleep(0 if kind == "half-a-line" else 600)
            os._exit(9)
        if kind in ("rubbish", "dies", "hangs", "other-request") and first_time():
            if kind == "rubbish":
                print("loading the model...", flush=True)
            elif kind == "hangs":
                time.sleep(600)
            elif kind == "other-request":
                answer["id"] += 7
            else:
                os._exit(9)
        if kind == "changes":
            os._exit(9)
        if method == "together":
            asks = message["params"]["asks"]
            failed = range(len(asks) if kind == "fails-each" else 1 if kind == "fails-one" else 0)
            answers = [None if n in failed else generated(ask) for n, ask in enumerate(asks)]
            errors = {str(n): "RuntimeError: out of memory" for n in failed}
            answer["result"] = {"answers": answers, "errors": errors}
        else:
            answer["result"] = spoilt(generated(message["params"]), message["params"])
        if kind == "fails":
            del answer["result"]
            answer["error"] = "RuntimeError: out of memory"
        elif kind == "no-object":
            answer["result"] = {"output_ids": "1 2 3", "finish": "length"}
        elif kind == "chatty":
            print("done", file=sys.stderr)
    print(json.dumps(answer), flush=True)
    if kind == "deaf" and method == "describe" and first_time():
        time.sleep(8)
    if method == "bye":
        break
