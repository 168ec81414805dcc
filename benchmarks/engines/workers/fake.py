"""No engine: texts and times that follow from the prompt, for tests of the driver.

Options: ``skew`` is added to every token behind the first, ``fails`` says when to fail (``load``,
``generate``, or ``exit`` for a process that ends), ``hides`` keeps the last token back.
"""

from __future__ import annotations

import os

from spsbench.base.protocol import Answer, Ask, Described, Load
from spsbench.parts.external.serving import serve, until_stop


class Fake:
    """Counts upwards from the prompt's last token; the n-th request takes n ms a token, half with a draft."""

    def __init__(self, load: Load) -> None:
        self._options = load.options
        self._speculative = load.speculative
        self._asked = 0
        if self._options.get("fails") == "load":
            raise RuntimeError("no such model")

    def describe(self) -> Described:
        print("a library that prints must do no harm")
        return Described("fake", "1.0")

    def generate(self, ask: Ask) -> Answer:
        if self._options.get("fails") == "generate":
            raise RuntimeError("out of memory")
        if self._options.get("fails") == "exit":
            os._exit(3)
        self._asked += 1
        last, skew = ask.prompt_ids[-1], int(self._options.get("skew", 0))
        counted = [last + i + 1 + (skew if i else 0) for i in range(ask.max_new_tokens)]
        ids, finish = until_stop(counted, ask)
        hides = bool(self._options.get("hides"))
        ms = self._asked * len(ids) * (0.5 if self._speculative else 1.0)
        loops = (len(ids) + 1) // 2 if self._speculative else len(ids)
        shown = ids[:-1] if hides else ids
        return Answer(shown, finish, hides, prefill_ms=1.0, decode_ms=ms, decoded=len(ids), loops=loops)


if __name__ == "__main__":
    serve(Fake)
