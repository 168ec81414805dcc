"""The package's own models, loaded once for all commands that tests run in one process.

Every command gets a twin: a KV cache of its own over sessions, which nobody writes to, and the programs that
an earlier command made. Their tokenizers are read once, too: nothing changes one. Models of other folders are
loaded as ever.
"""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.base.paths import mini_dirs

if TYPE_CHECKING:
    from spsbench.models.onnx_lm import OnnxModel
    from spsbench.models.source import ModelSource
    from spsbench.models.tokenizer import Tokenizer


def share_models(loading: Any) -> None:
    """Give the module ``spsbench.models.loading`` a memory, once."""
    load = loading._load_onnx
    if hasattr(load, "__wrapped__"):
        return
    models: dict[tuple[object, ...], OnnxModel] = {}

    @wraps(load)
    def twin(source: ModelSource, dtype: str, vocab_size: int, flag: str, threads: int | None) -> OnnxModel:
        if Path(source.location).parent not in mini_dirs().values():
            found: OnnxModel = load(source, dtype, vocab_size, flag, threads)
            return found
        key = source.location, source.config.to_json_string(), dtype, vocab_size, threads
        if key not in models:
            models[key] = load(source, dtype, vocab_size, flag, threads)
        return models[key].twin()

    loading._load_onnx = twin


def share_tokenizers(source: Any) -> None:
    """Give the module ``spsbench.models.source`` a memory, once."""
    read = source._read_tokenizer
    if hasattr(read, "__wrapped__"):
        return
    tokenizers: dict[str, Tokenizer] = {}

    @wraps(read)
    def known(location: str, *given: Any) -> Tokenizer:
        if location not in tokenizers:
            tokenizer: Tokenizer = read(location, *given)
            if Path(location).parent not in mini_dirs().values():
                return tokenizer
            tokenizers[location] = tokenizer
        return tokenizers[location]

    source._read_tokenizer = known
