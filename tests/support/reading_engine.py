"""An engine of others that can be told how to behave: it reads out texts that a run of ours has written.

    python reading_engine.py RUN [WAY=VALUE ...]

RUN is a run directory with ArS arms; a prompt that it does not know is answered with the token 5. Its times
are made up: ten microseconds a token, half as many where it has a draft.

Ways: ``version-of=FILE``: its version as text; ``settings=FILE``: as JSON; ``pids=FILE`` takes a line for
each process, its pid and K; ``no-draft=1``, ``no-load=1``: it refuses to load; ``dies=N``, ``hangs=N``,
``raves=N``, ``interrupts=N``: from its Nth request on it ends, says nothing, writes no JSON or sends Ctrl-C,
where there is a draft; ``watches=FILE``: it replaces the pid in FILE by the state of that process;
``untimed=1``: it tells no times; ``sums=1``: no single loops; ``free=1``: its prefill gives the first token.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from spsbench.base.protocol import Answer, Ask, Described, Load
from spsbench.parts.external.serving import serve, until_stop

_TOKEN_MS = 0.01


class Reader:
    """See the module."""

    def __init__(self, load: Load, texts: dict[tuple[int, ...], list[int]], ways: dict[str, str]) -> None:
        self._load, self._texts, self._ways, self._asked = load, texts, ways, 0

    def describe(self) -> Described:
        """See ``Served``."""
        known = self._ways.get("settings")
        settings: dict[str, Any] = {} if known is None else json.loads(Path(known).read_text())
        return Described(
            engine="reader",
            version=Path(self._ways["version-of"]).read_text() if "version-of" in self._ways else "1",
            rule="reads out what was written" if self._load.speculative else None,
            settings={"dtype": "float32", "threads": self._load.threads, **settings},
            limits=["It reads out texts."],
        )

    def generate(self, ask: Ask) -> Answer:
        """See ``Served``."""
        self._asked += 1
        if "watches" in self._ways:
            self._watch()
        if self._load.speculative:
            self._misbehave()
        known = self._texts.get(tuple(ask.prompt_ids), [5] * ask.max_new_tokens)
        ids, finish = until_stop(known, ask)
        if finish == "length" and len(ids) < ask.max_new_tokens:
            ids = [*ids, *[5] * (ask.max_new_tokens - len(ids))]
        free = int("free" in self._ways)
        return Answer(output_ids=ids, finish=finish, **self._told(len(ids) - free, free))

    def _told(self, decoded: int, free: int) -> dict[str, Any]:
        k = self._load.k if self._load.speculative else 0
        loops = -(-decoded // (k + 1))
        told: dict[str, Any] = {"decoded": decoded, "loops": loops, "drafted": k * loops}
        if "untimed" not in self._ways:
            told |= {"prefill_ms": 0.5, "decode_ms": _TOKEN_MS * decoded / (2 if k else 1)}
        if k and "sums" not in self._ways:
            last = decoded - (loops - 1) * (k + 1) - 1
            told["accepted_per_loop"] = [*[k] * (loops - 1), last]
        return told

    def _watch(self) -> None:
        file = Path(self._ways["watches"])
        file.write_text(Path(f"/proc/{file.read_text()}/stat").read_text().rpartition(")")[2].split()[0])

    def _misbehave(self) -> None:
        if self._asked >= int(self._ways.get("dies", 1 << 30)):
            os._exit(3)
        if self._asked >= int(self._ways.get("interrupts", 1 << 30)):
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(600)
        if self._asked >= int(self._ways.get("hangs", 1 << 30)):
            time.sleep(600)
        if self._asked >= int(self._ways.get("raves", 1 << 30)):
            os.write(_PROTOCOL, b"loading shard 1 of 2\n")


def main() -> None:
    """Answer what standard input asks."""
    run, ways = Path(sys.argv[1]), dict(way.split("=", 1) for way in sys.argv[2:])

    def load(asked: Load) -> Reader:
        if "pids" in ways:
            with Path(ways["pids"]).open("a") as file:
                file.write(f"{os.getpid()} {asked.k if asked.speculative else 0}\n")
        if "no-load" in ways or ("no-draft" in ways and asked.speculative):
            raise ValueError("its memory is full")
        return Reader(asked, _texts(run), ways)

    serve(load)


def _texts(run: Path) -> dict[tuple[int, ...], list[int]]:
    """Texts of the run's ArS arms by the prompt's ids."""
    if not (run / "prompts.jsonl").is_file():
        return {}
    prompts, samples = (_lines(run / name) for name in ("prompts.jsonl", "samples.jsonl"))
    ids = {prompt["example_id"]: tuple(prompt["prompt_ids"]) for prompt in prompts}
    ars = (sample for sample in samples if sample["arm"].startswith("ars-"))
    return {
        tuple(sample.get("prompt_ids") or ids[sample["example_id"]]): sample["token_ids"] for sample in ars
    }


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


_PROTOCOL = os.dup(1)  # serve() turns standard output to standard error

if __name__ == "__main__":
    main()
