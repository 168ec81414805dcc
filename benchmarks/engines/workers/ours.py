"""spsbench itself, loaded and built as ``spsbench run`` does."""

from __future__ import annotations

from benchmarks.engines.messages import Answer, Loaded, Request, Settings
from benchmarks.engines.serving import serve


class Ours:
    """An engine of ours.

    Args:
        settings: ``options["flags"]`` are what ``spsbench.config.resolve`` takes.
    """

    def __init__(self, settings: Settings) -> None:
        from spsbench.config import resolve
        from spsbench.runner import plan
        from spsbench.runner.backends import Backends
        from spsbench.runner.execute import load

        method = "sps" if settings.speculative else "ars"
        flags = settings.options["flags"] | {"arms": method, "threads": settings.threads}
        ready = plan(resolve(flags))
        (self._arm,) = ready.arms
        pair = load(ready)
        corpus = tuple(prompt.ids for prompt in ready.prompts)
        self._backend = pair.target.backend
        backends = Backends(pair, ready.slots, corpus=corpus)
        self._engine = backends.build(self._arm)
        if backends.fallbacks:
            raise RuntimeError(next(iter(backends.fallbacks.values())))

    def describe(self) -> Loaded:
        from importlib.metadata import version

        import spsbench

        return Loaded(f"{spsbench.__version__} ({self._backend} {version(self._backend)})")

    def generate(self, request: Request) -> Answer:
        """Every token is decoded: the prompt's last token is left pending by our prefill."""
        from spsbench.records import Request as Asked

        found = self._engine.generate(
            Asked(request.prompt_ids, request.max_new_tokens, request.stop, self._arm.sampling, seed=0)
        )
        loops = None if found.loops is None else len(found.loops)
        times = (1e3 * found.prefill_s, 1e3 * found.decode_s)
        return Answer(tuple(found.tokens), *times, len(found.tokens), loops)


if __name__ == "__main__":
    serve(Ours)
