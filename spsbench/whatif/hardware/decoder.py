"""What a forward of a Hugging Face configuration reads and computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from spsbench.errors import UnavailableError, UsageError
from spsbench.store.foreign import documents

_KNOWN = ("granite", "llama", "mistral", "phi3", "qwen2", "qwen3", "smollm3")
_BYTES = 2
"""Of a weight and of a cached value, in bfloat16 and float16."""


class Decoder(BaseModel):
    """A dense decoder with a gated MLP, read by the names of its config.json."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    model_type: str
    layers: PositiveInt = Field(alias="num_hidden_layers")
    hidden: PositiveInt = Field(alias="hidden_size")
    intermediate: PositiveInt = Field(alias="intermediate_size")
    heads: PositiveInt = Field(alias="num_attention_heads")
    kv_heads: PositiveInt = Field(alias="num_key_value_heads")
    head_dim: PositiveInt
    vocab: PositiveInt = Field(alias="vocab_size")
    head_rows: PositiveInt = Field(alias="draft_vocab_size")
    tied: bool = Field(alias="tie_word_embeddings")
    biased: bool = Field(False, alias="attention_bias")

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, content: dict[str, Any]) -> dict[str, Any]:
        """What transformers takes for an absent field."""
        found = {name: value for name, value in content.items() if value is not None}
        found.setdefault("num_key_value_heads", found.get("num_attention_heads"))
        if "head_dim" not in found and isinstance(found.get("num_attention_heads"), int):
            found["head_dim"] = int(found.get("hidden_size", 0)) // (found["num_attention_heads"] or 1)
        found.setdefault("draft_vocab_size", found.get("vocab_size"))
        found.setdefault("tie_word_embeddings", found.get("model_type") in ("granite", "smollm3"))
        return found

    @property
    def _products(self) -> int:
        """Weights of the products that every token goes through."""
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim
        return self.layers * (attention + 3 * self.hidden * self.intermediate) + self.head_rows * self.hidden

    @property
    def parameters(self) -> int:
        """All weights, each once."""
        small = 2 * self.hidden  # norms
        if self.biased or self.model_type == "qwen2":
            small += (self.heads + 2 * self.kv_heads) * self.head_dim
        if self.biased:
            small += self.hidden
        if self.model_type == "qwen3":
            small += 2 * self.head_dim
        embedding = 0 if self.tied else self.vocab * self.hidden
        return self._products + embedding + self.layers * small + self.hidden

    @property
    def weight_bytes(self) -> int:
        return _BYTES * self.parameters

    @property
    def read_bytes(self) -> int:
        """Of the weights, in a forward: an input embedding of its own is looked up, and not read."""
        return _BYTES * self._products

    @property
    def cache_bytes(self) -> int:
        """Keys and values of a token."""
        return 2 * _BYTES * self.layers * self.kv_heads * self.head_dim

    def flops(self, context: int) -> int:
        """Of a token after so many."""
        return 2 * self._products + 4 * self.layers * self.heads * self.head_dim * context


def read_decoder(path: Path, flag: str) -> Decoder:
    """Read config.json, or that of a folder.

    Raises:
        UnavailableError: it cannot be read, or is cut off.
        UsageError: a field is missing, or says something that is not modelled.
    """
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise UnavailableError(
            f"{path} is not a file.", flag=flag, remedy="Give a config.json or its folder."
        )
    content = next((dict(row) for _, row in documents(path, flag)), {})
    kind = content.get("model_type")
    if kind not in _KNOWN:
        known = f"Dense decoders are modelled: {', '.join(_KNOWN)}."
        raise UsageError(f"model_type {kind} in {path} is not modelled.", flag=flag, remedy=known)
    if content.get("quantization_config"):
        why = f"quantization_config in {path} is not modelled."
        raise UsageError(why, flag=flag, remedy="Give the configuration of the 16-bit weights.")
    try:
        return Decoder.model_validate(content)
    except ValidationError as problem:
        error = problem.errors(include_url=False)[0]
        name = ".".join(map(str, error["loc"])) or "a field"
        raise UsageError(f"{name} in {path}: {error['msg'].lower()}.", flag=flag) from problem
