"""spsbench itself, loaded and built as ``spsbench run`` does."""

from __future__ import annotations

from spsbench.base.protocol import LENGTH, STOP, Answer, Ask, Described, Load
from spsbench.parts.external.serving import serve


class Ours:
    """An engine of ours.

    Args:
        load: ``options["flags"]`` are what ``spsbench.config.resolution`` takes.
    """

    def __init__(self, load: Load) -> None:
        from spsbench.config import resolve
        from spsbench.runner import plan
        from spsbench.runner.engines import EngineFactory
        from spsbench.runner.execution import load as load_pair

        method = "sps" if load.speculative else "ars"
        flags = load.options["flags"] | {"arms": method, "threads": load.threads}
        ready = plan(resolve(flags))
        (self._arm,) = ready.arms
        pair = load_pair(ready)
        corpus = tuple(prompt.ids for prompt in ready.prompts)
        self._backend = pair.target.backend
        backends = EngineFactory(pair, ready.slots, corpus=corpus)
        self._engine = backends.build(self._arm)
        if backends.fallbacks:
            raise RuntimeError(next(iter(backends.fallbacks.values())))

    def describe(self) -> Described:
        from importlib.metadata import version

        import spsbench

        return Described("spsbench", f"{spsbench.__version__} ({self._backend} {version(self._backend)})")

    def generate(self, ask: Ask) -> Answer:
        """Every token is decoded: the prompt's last token is left pending by our prefill."""
        from spsbench.base.records import Request

        request = Request(
            tuple(ask.prompt_ids), ask.max_new_tokens, tuple(ask.stop), self._arm.sampling, seed=0
        )
        found = self._engine.generate(request)
        ids = list(found.tokens)
        return Answer(
            ids,
            STOP if ids and ids[-1] in ask.stop_ids else LENGTH,
            prefill_ms=1e3 * found.prefill_s,
            decode_ms=1e3 * found.decode_s,
            decoded=len(ids),
            loops=None if found.loops is None else len(found.loops),
        )


if __name__ == "__main__":
    serve(Ours)
