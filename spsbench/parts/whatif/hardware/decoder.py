"""What a forward of a Hugging Face configuration reads and computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError, model_validator

from spsbench.base import UnavailableError, UsageError
from spsbench.store import documents

_KNOWN = ("llama", "mistral", "phi3", "qwen2", "qwen3")
_BYTES = 2
"""Of a weight and of a cached value, in bfloat16 and float16."""


class Decoder(BaseModel):
    """A dense decoder with a gated MLP, by the fields of its config.json."""

    model_config = ConfigDict(frozen=True)

    model_type: str
    num_hidden_layers: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    vocab_size: PositiveInt
    draft_vocab_size: PositiveInt
    tie_word_embeddings: bool = False
    attention_bias: bool = False

    @model_validator(mode="before")
    @classmethod
    def _with_transformers_defaults(cls, content: dict[str, Any]) -> dict[str, Any]:
        fields = {name: value for name, value in content.items() if value is not None}
        heads, hidden = fields.get("num_attention_heads"), fields.get("hidden_size")
        fields.setdefault("num_key_value_heads", heads)
        if isinstance(heads, int) and isinstance(hidden, int) and heads:
            fields.setdefault("head_dim", hidden // heads)
        fields.setdefault("draft_vocab_size", fields.get("vocab_size"))
        return fields

    @property
    def products(self) -> int:
        """Number of weights in the products that every token goes through."""
        heads = self.num_attention_heads + self.num_key_value_heads
        layer = self.hidden_size * (2 * heads * self.head_dim + 3 * self.intermediate_size)
        return self.num_hidden_layers * layer + self.draft_vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        """Number of weights, each once: with norms, biases and a separate input embedding."""
        layer = 2 * self.hidden_size + self.attention_bias * self.hidden_size
        if self.attention_bias or self.model_type == "qwen2":
            layer += (self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim
        layer += 2 * self.head_dim * (self.model_type == "qwen3")
        embedding = 1 if self.tie_word_embeddings else 1 + self.vocab_size
        return self.products + self.num_hidden_layers * layer + embedding * self.hidden_size

    @property
    def weight_bytes(self) -> int:
        return _BYTES * self.parameters

    @property
    def read_bytes(self) -> int:
        """Bytes of the weights that a forward reads; of a separate input embedding only some rows."""
        return _BYTES * self.products

    @property
    def cache_bytes(self) -> int:
        """Bytes of a token's keys and values."""
        return 2 * _BYTES * self.num_hidden_layers * self.num_key_value_heads * self.head_dim

    def flops(self, context: int) -> int:
        """Return the operations of a token after so many."""
        attention = self.num_hidden_layers * self.num_attention_heads * self.head_dim
        return 2 * self.products + 4 * attention * context


def read_decoder(path: Path, flag: str) -> Decoder:
    """Read config.json, or that of a folder; a field that is missing or not modelled is named."""
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise UnavailableError(
            f"{path} is not a file.", flag=flag, remedy="Give a config.json, its folder or a hub id."
        )
    content = next((dict(row) for _, row in documents(path, flag)), {})
    for field, value in content.items():
        if (field == "model_type" and value not in _KNOWN) or (field == "quantization_config" and value):
            remedy = f"Give one of {', '.join(_KNOWN)} with 16-bit weights."
            raise UsageError(f"{field} {value} in {path} is not modelled.", flag=flag, remedy=remedy)
    try:
        return Decoder.model_validate(content)
    except ValidationError as problem:
        error = problem.errors(include_url=False)[0]
        why = f"{'.'.join(map(str, error['loc']))} in {path}: {error['msg'].lower()}."
        raise UsageError(why, flag=flag, remedy="Give the model's config.json.") from problem
