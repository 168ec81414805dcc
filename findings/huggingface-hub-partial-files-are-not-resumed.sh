#!/usr/bin/env bash
# huggingface_hub 2.4.0: hf_hub_download begins a file again, though a part of it lies in the cache.
#
# A process that is killed in the middle of a file leaves what came in blobs/*.incomplete. The next process, with the same
# cache and a server that offers ranges, asks for the whole file without a Range header, under another name, and leaves
# the first part where it is. 40 MB, ended with more than 10 MB on disk, are asked for twice from the first byte.
# Within one process it is otherwise: after a connection that ended early the rest is asked for, by a range.
# A hub on 127.0.0.1 without Xet, one file, nothing downloaded from elsewhere.
# Seen 2026-11-30 on Linux. Exits 0 while that is so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet huggingface_hub==2.4.0
WORK=$work "$work/venv/bin/python" - <<'PYTHON'
import hashlib
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

SIZE, PART, FIRST = 40_000_000, 1_000_000, 10_000_000
CONTENT = bytes(range(250)) * (SIZE // 250)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
GET = "from huggingface_hub import hf_hub_download as get; print(get('a/b', 'model.safetensors'))"
asked: list[str] = []
behaviour = {"pause": 0.0, "ends_at": SIZE}


class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def told(self):
        """Answer with the headers; return the byte at which the answer begins."""
        wanted = self.headers.get("Range")
        begin = int(wanted.removeprefix("bytes=").split("-")[0]) if wanted else 0
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {begin}-{SIZE - 1}/{SIZE}")
        for name, value in {"ETag": f'"{DIGEST}"', "X-Repo-Commit": "0" * 40, "Accept-Ranges": "bytes"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(SIZE - begin))
        self.end_headers()
        return begin

    def do_HEAD(self):
        self.told()

    def do_GET(self):
        if not self.path.endswith("/model.safetensors"):
            self.send_error(404)
            return
        asked.append(self.headers.get("Range") or "all")
        ends_at, behaviour["ends_at"] = behaviour["ends_at"], SIZE
        self.close_connection = True
        try:
            for at in range(self.told(), ends_at, PART):
                self.wfile.write(CONTENT[at : min(at + PART, ends_at)])
                time.sleep(behaviour["pause"])
        except OSError:  # the client is gone
            pass


def kept(cache):
    return sorted(path.stat().st_size for path in cache.rglob("*.incomplete"))


server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
threading.Thread(target=server.serve_forever, daemon=True).start()
known = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}


def begun(cache):
    given = os.environ | known | {"HF_HOME": str(cache), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    return subprocess.Popen([sys.executable, "-c", GET], env=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def finished(process):
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and Path(said.strip()).read_bytes() == CONTENT, "no whole file"


print("huggingface_hub", version("huggingface_hub"))
again, within = Path(os.environ["WORK"]) / "again", Path(os.environ["WORK"]) / "within"
behaviour["pause"] = 0.2
process = begun(again)
until = time.monotonic() + 120
while sum(kept(again)) < FIRST:
    assert process.poll() is None and time.monotonic() < until, "nothing came"
    time.sleep(0.05)
process.kill()
process.wait()
behaviour["pause"] = 0.0
part, asked_first = kept(again), asked.copy()
finished(begun(again))
asked_again = asked[len(asked_first):]
print(f"ended with {part} bytes in .incomplete files, asked for: {asked_first}")
print(f"a new process asked for: {asked_again}, and left {kept(again)} bytes in .incomplete files")
asked.clear()
behaviour["ends_at"] = SIZE // 2
finished(begun(within))
print(f"one process, whose first answer ended at {SIZE // 2}, asked for: {asked}")
assert asked_first == ["all"] and len(part) == 1 and FIRST <= part[0] < SIZE
assert asked_again == ["all"] and kept(again) == part, "what came is used now"
assert len(asked) == 2 and FIRST <= int(asked[1].removeprefix("bytes=").rstrip("-")) <= SIZE // 2, "no range after an early end"
PYTHON
