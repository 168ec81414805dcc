"""``generate()`` of transformers with an assistant, since release 4.44, in the release's own environment.

Option ``head``: the folder of a DFlash head, which drafts in place of the draft model; since release 5.15.
``speculation=mtp``: the target's own prediction modules draft, one token each; since release 5.14.
``num_assistant_tokens_schedule``, ``assistant_confidence_threshold`` and ``assistant_ensemble_weight`` are
those of a generation config; with the last the law is a mixture of both models'.
"""

from __future__ import annotations

import copy
import importlib
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from spsbench.base import MTP, Answer, Ask, Described, Load
from spsbench.parts.external.messages import TRANSFORMERS
from spsbench.parts.external.serving import require_processors, rule_of, serve, until_stop, usual_settings


class Transformers:
    """One sequence at a time, no cache between requests."""

    def __init__(self, load: Load) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._dtype = getattr(self._torch, load.dtype)
        self._device = load.options.get("device") or "cpu"
        self._library: Any = importlib.import_module("transformers")
        if load.threads is not None:
            self._torch.set_num_threads(load.threads)
        self._load, self._head_folder = load, load.options.get("head") or None
        self._target, self._calls = self._loaded(load.target), 0
        self._target.register_forward_pre_hook(self._count)
        self._draft: Any = None
        self._drafting: Any = None
        if self._drafts_itself:
            self._require_modules()
        elif load.draft is not None:
            self._draft = self._assistant(load.draft) if self._head_folder is None else self._head()
            self._drafting = copy.deepcopy(getattr(self._draft, "generation_config", None))

    def describe(self) -> Described:
        return Described(
            engine="transformers",
            version=self._library.__version__,
            vocab_size=self._target.config.vocab_size,
            rule=rule_of(self._load, "modified rejection") if self._load.speculative else None,
            settings=usual_settings(self._load)
            | {"threads": self._torch.get_num_threads()}
            | self._threshold_settings(),
            limits=list(TRANSFORMERS),
        )

    def generate(self, ask: Ask) -> Answer:
        """Answer a request; the time is that of the whole request."""
        require_processors(ask.sampling, ())
        prompt = self._torch.tensor([ask.prompt_ids], device=self._device)
        self._torch.seed() if ask.seed is None else self._torch.manual_seed(ask.seed)
        if self._drafting is not None:  # a schedule leaves its last K for the next request
            self._draft.generation_config = copy.deepcopy(self._drafting)
        self._calls, started = 0, time.perf_counter()
        with self._torch.inference_mode():
            sequences = self._target.generate(
                prompt,
                attention_mask=self._torch.ones_like(prompt),
                generation_config=self._generation_config(ask),
                **self._who_drafts(),
            )
        wall_ms = 1e3 * (time.perf_counter() - started)
        ids, finish = until_stop(sequences[0, prompt.shape[1] :].tolist(), ask)
        if not self._load.speculative:
            return Answer(ids, finish, wall_ms=wall_ms)
        return Answer(ids, finish, wall_ms=wall_ms, decoded=len(ids), loops=self._calls)

    def _who_drafts(self) -> dict[str, Any]:
        return {} if self._draft is None else {"assistant_model": self._draft}

    @property
    def _drafts_itself(self) -> bool:
        return self._load.speculative and self._load.speculation == MTP

    def _require_modules(self) -> None:
        config = self._target.config
        count = getattr(config.get_text_config(), "num_mtp_layers", None) or 0
        if count != self._load.k:
            has = f"{count} prediction modules" if count != 1 else "one prediction module"
            raise ValueError(
                f"transformers finds {has} in {config.model_type}, which draft as many tokens, and K is "
                f"{self._load.k}"
            )

    def _threshold_settings(self) -> dict[str, Any]:
        """What decides about a threshold: scikit-learn, where it is there, fits it between rounds."""
        if not self._load.options.get("assistant_confidence_threshold"):
            return {}
        try:
            return {"threshold": f"fitted between rounds by scikit-learn {version('scikit-learn')}"}
        except PackageNotFoundError:
            return {"threshold": "as given, without scikit-learn"}

    def _count(self, *_: Any) -> None:
        self._calls += 1

    def _loaded(self, folder: str) -> Any:
        """Load a model without the checkpoint's own sampling settings."""
        config = self._library.AutoConfig.from_pretrained(folder)
        is_old = int(self._library.__version__.split(".")[0]) < 5
        if is_old and (rope := getattr(config, "rope_parameters", None)):  # which it does not know
            config.rope_theta = rope["rope_theta"]
            config.rope_scaling = None if rope.get("rope_type", "default") == "default" else rope
        settings = {"config": config, "torch_dtype" if is_old else "dtype": self._dtype}
        model = self._library.AutoModelForCausalLM.from_pretrained(folder, **settings)
        model.generation_config = self._library.GenerationConfig()
        return model.eval().to(self._device)

    def _assistant(self, folder: str) -> Any:
        """Load the draft model: K tokens in every loop unless the options say otherwise."""
        draft = self._loaded(folder)
        draft.generation_config.num_assistant_tokens = self._load.k
        settings = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}
        for name, value in settings.items():
            setattr(draft.generation_config, name, self._load.options.get(name, value))
        return draft

    def _head(self) -> Any:
        """Load a DFlash head; ValueError if it was made for another K."""
        module = importlib.import_module("transformers.models.muse_glimmer_assistant")
        head = module.MuseGlimmerAssistantModel.from_pretrained(self._head_folder, dtype=self._dtype)
        if head.config.block_size != self._load.k + 1:
            raise ValueError(f"the head drafts {head.config.block_size - 1} tokens, and K is {self._load.k}")
        return head.eval().to(self._device)

    def _generation_config(self, ask: Ask) -> Any:
        """Without defaults: the default top-k would be 50."""
        settings: dict[str, Any] = {"do_sample": not ask.sampling.greedy}
        if not ask.sampling.greedy:
            drawn = ask.sampling
            settings |= {"temperature": drawn.temperature, "top_k": drawn.top_k, "top_p": drawn.top_p}
        if self._head_folder is not None and self._draft is not None:
            settings["speculation_type"] = "dflash"
        if self._drafts_itself:
            settings["use_mtp"] = True
        if self._draft is not None and (weight := self._load.options.get("assistant_ensemble_weight")):
            settings["assistant_ensemble_weight"] = weight
        return self._library.GenerationConfig(
            max_new_tokens=ask.max_new_tokens,
            eos_token_id=ask.stop_ids or None,
            pad_token_id=min(ask.stop_ids, default=0),
            **settings,
        )


if __name__ == "__main__":
    serve(Transformers)
