"""MLX LM on MLX's CPU wheels. Models are Hugging Face folders, their weights cast to float32."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from spsbench.base import Answer, Ask, Described, Load
from spsbench.parts.external.messages import MLX_LM
from spsbench.parts.external.serving import (
    float32_only,
    require_processors,
    serve,
    until_stop,
    usual_settings,
)


class MlxLm:
    """The generators of ``mlx_lm.generate`` without its tokenizer: ids in, ids out."""

    def __init__(self, load: Load) -> None:
        float32_only(load)
        self._load = load
        self._mx: Any = importlib.import_module("mlx.core")
        self._mx.set_default_device(self._mx.cpu)
        self._generate: Any = importlib.import_module("mlx_lm.generate")
        self._sampling: Any = importlib.import_module("mlx_lm.sample_utils")
        self._target, self._vocab_size = self._model(load.target)
        self._draft = None if load.draft is None else self._model(load.draft)[0]

    def describe(self) -> Described:
        return Described(
            engine="MLX LM",
            version=f"{version('mlx-lm')}, mlx {version('mlx')}",
            vocab_size=self._vocab_size,
            rule="sample-and-compare" if self._load.speculative else None,
            settings=usual_settings(self._load) | {"sampler_order": "top_p, top_k, temperature"},
            limits=list(MLX_LM),
        )

    def generate(self, ask: Ask) -> Answer:
        """With a draft the prefill gives no token, and a loop ends with a token of the target's."""
        require_processors(ask.sampling, ())
        if ask.seed is not None:  # without one its stream goes on
            self._mx.random.seed(ask.seed)
        started = time.perf_counter()
        ids: list[int] = []
        accepted, first_ms, loop = [0], 0.0, 0
        for token, drafted in self._tokens(ask):
            first_ms = first_ms or 1e3 * (time.perf_counter() - started)
            if loop == len(accepted):
                accepted.append(0)
            ids.append(token)
            accepted[loop] += drafted
            loop += not drafted
            if token in ask.stop_ids:
                break
        wall_ms = 1e3 * (time.perf_counter() - started)
        counts: dict[str, Any] = {"decoded": len(ids) - 1, "loops": len(ids) - 1}
        if self._draft is not None:
            counts = {"decoded": len(ids), "loops": len(accepted), "accepted_per_loop": accepted}
            counts["accepted"] = sum(accepted)
        prefill_ms = first_ms if self._draft is None else None
        decode_ms = None if prefill_ms is None else wall_ms - prefill_ms
        output = until_stop(ids, ask)
        return Answer(*output, prefill_ms=prefill_ms, decode_ms=decode_ms, wall_ms=wall_ms, **counts)

    def _tokens(self, ask: Ask) -> Iterator[tuple[int, bool]]:
        """Each, and whether the draft proposed it."""
        sampling = ask.sampling
        warp = {"temp": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
        sampler = self._sampling.make_sampler(**({"temp": 0.0} if sampling.greedy else warp))
        prompt, most = self._mx.array(ask.prompt_ids), {"max_tokens": ask.max_new_tokens, "sampler": sampler}
        if self._draft is None:
            for token, _ in self._generate.generate_step(prompt, self._target, **most):
                yield int(token), False
            return
        steps = self._generate.speculative_generate_step
        for token, _, drafted in steps(
            prompt, self._target, self._draft, num_draft_tokens=self._load.k, **most
        ):
            yield int(token), bool(drafted)

    def _model(self, folder: str) -> tuple[Any, int]:
        """Load a model in float32, and return it with the size of its vocabulary.

        The base of rotary positions is told apart: MLX LM does not look for it in ``rope_parameters``, where
        transformers 5 writes it, and would take its own.
        """
        stored = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        load_model = importlib.import_module("mlx_lm.utils").load_model
        model, config = load_model(Path(folder), model_config=_rope_settings(stored))
        model.set_dtype(self._mx.float32)
        return model, int(config["vocab_size"])


def _rope_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    inner = config.get("rope_parameters")
    if isinstance(inner, Mapping) and (
        kinds := [each for each in inner.values() if isinstance(each, Mapping)]
    ):
        inner = kinds[0] if all(each == kinds[0] for each in kinds) else None
    if not isinstance(inner, Mapping) or not isinstance(inner.get("rope_theta"), int | float):
        return {}  # none, or several that differ by the kind of layer
    settings = {} if "rope_theta" in config else {"rope_theta": inner["rope_theta"]}
    if inner.get("rope_type", "default") != "default" and not config.get("rope_scaling"):
        settings["rope_scaling"] = {name: value for name, value in inner.items() if name != "rope_theta"}
    return settings


if __name__ == "__main__":
    serve(MlxLm)
