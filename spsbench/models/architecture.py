"""Which architectures support rollback of their cache, decided from the configuration alone.

The only module that uses private names of transformers. If a release drops them, the self-test at load
still catches a model that cannot be rolled back.
"""

from __future__ import annotations

from typing import Any

from spsbench.errors import UsageError

# One row per token, at most hidden by a window, so that truncating is exact; ``DummyLayer`` keeps no rows.
_ROLLBACK_SAFE = frozenset({"DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer"})


def require_causal(config: Any, name: str, flag: str) -> None:
    """Refuse a model that is not a causal language model, or whose state cannot be rolled back.

    Args:
        config: the Hugging Face configuration.
        name: of the model, as the user wrote it.
        flag: the command-line flag that named it.

    Raises:
        UsageError: with the reason.
    """
    known, model_class = _causal_class(config)
    if config.is_encoder_decoder or not known:
        what = "an encoder-decoder" if config.is_encoder_decoder else "not a causal language model"
        raise UsageError(
            f"{name} ({config.model_type}) is {what}.",
            flag=flag,
            remedy="Choose a decoder-only language model.",
        )
    reason = _state(config, model_class)
    if reason is not None:
        raise UsageError(
            f"{name} ({config.model_type}) {reason}, which cannot be rolled back after a rejected draft "
            "token: speculative sampling with it would be silently wrong.",
            flag=flag,
            remedy="Choose a model with attention layers only.",
        )


def _causal_class(config: Any) -> tuple[bool, Any]:
    """(whether AutoModelForCausalLM supports the configuration, its model class or None if unknown)."""
    from transformers import AutoModelForCausalLM

    mapping = getattr(AutoModelForCausalLM, "_model_mapping", None)
    if mapping is None:
        return True, None
    if type(config) not in mapping:
        return False, None
    found = mapping[type(config)]
    return True, found[0] if isinstance(found, (list, tuple)) else found


def _state(config: Any, model_class: Any) -> str | None:
    """What state the model keeps besides one row per token; None if there is none."""
    from transformers import DynamicCache

    if getattr(model_class, "_is_stateful", False):
        return "is recurrent or hybrid: it keeps a running state"
    try:
        kinds = {type(layer).__name__ for layer in DynamicCache(config=config).layers}
    except Exception:  # an unusual configuration: the self-test will decide
        return None
    unknown = kinds - _ROLLBACK_SAFE
    if any("Linear" in kind for kind in unknown):
        return "is a hybrid: some of its layers keep a running state"
    return f"keeps {', '.join(sorted(unknown))} in its cache" if unknown else None
