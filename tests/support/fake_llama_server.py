"""Answers as llama.cpp's server does, as far as its worker asks; counts upwards from the prompt's last token.

    python fake_llama_server.py --port PORT [whatever the real one takes]

It appends its arguments and the bodies of requests to the file that ``FAKE_LLAMA_LOG`` names.
"""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

STOP = 14
DRAFTED, ACCEPTED = 4, 3


def note(what: object) -> None:
    with Path(os.environ["FAKE_LLAMA_LOG"]).open("a") as log:
        log.write(json.dumps(what) + "\n")


class Handler(BaseHTTPRequestHandler):
    loops = 0

    def do_GET(self) -> None:
        pages = {
            "/health": json.dumps({"status": "ok"}),
            "/v1/models": json.dumps({"data": [{"meta": {"n_vocab": 50}}]}),
            "/metrics": f"# TYPE x counter\nllamacpp:spec_decode_num_drafts_total {Handler.loops}\n",
        }
        self._answer(pages[self.path])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        note(body)
        first = body["prompt"][-1] + 1
        ids = list(range(first, first + body["n_predict"]))
        ended = STOP in ids and bool(body["stop"])
        ids = ids[: ids.index(STOP) + 1] if ended else ids
        Handler.loops += 2
        timings: dict[str, Any] = {"prompt_ms": 1.0, "predicted_ms": 2.0, "predicted_n": len(ids)}
        if "-md" in sys.argv:
            timings |= {"draft_n": 2 * DRAFTED, "draft_n_accepted": 2 * ACCEPTED}
        kind = "word" if ended else "limit"
        self._answer(json.dumps({"tokens": ids, "stop_type": kind, "timings": timings}))

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody listens."""


if __name__ == "__main__":
    if "--version" in sys.argv:
        print("version: 0.6.0 (build 7, commit abc)", file=sys.stderr)
        sys.exit(0)
    note(sys.argv[1:])
    HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
