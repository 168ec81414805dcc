"""Which architectures can be rolled back, judged by a configuration before a weight is loaded.

The one place that asks transformers' private names; where they are gone, the self-test at load
still catches what cannot be rolled back.
"""

from __future__ import annotations

from typing import Any

from spsbench.errors import UsageError

# What keeps a row for every token, at most hidden by a window: exact to forget. ``DummyLayer`` keeps nothing.
_FORGETFUL = frozenset({"DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer"})


def require_causal(config: Any, name: str, flag: str) -> None:
    """Refuse what is no causal language model, or keeps a state that cannot be rolled back.

    Args:
        config: the Hugging Face configuration.
        name: of the model, as the user wrote it.
        flag: the command-line flag that named it.

    Raises:
        UsageError: with the reason.
    """
    known, model_class = _causal_class(config)
    if config.is_encoder_decoder or not known:
        what = "an encoder-decoder" if config.is_encoder_decoder else "no causal language model"
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
            remedy="Choose a model of pure attention.",
        )


def _causal_class(config: Any) -> tuple[bool, Any]:
    """(whether AutoModelForCausalLM knows the configuration, its model class if that can be told)."""
    from transformers import AutoModelForCausalLM

    mapping = getattr(AutoModelForCausalLM, "_model_mapping", None)
    if mapping is None:
        return True, None
    if type(config) not in mapping:
        return False, None
    found = mapping[type(config)]
    return True, found[0] if isinstance(found, (list, tuple)) else found


def _state(config: Any, model_class: Any) -> str | None:
    """What the model remembers besides one row per token; None if nothing."""
    from transformers import DynamicCache

    if getattr(model_class, "_is_stateful", False):
        return "is recurrent or hybrid: it keeps a running state"
    try:
        kinds = {type(layer).__name__ for layer in DynamicCache(config=config).layers}
    except Exception:  # a configuration of an unusual form: the self-test will judge the model
        return None
    unknown = kinds - _FORGETFUL
    if any("Linear" in kind for kind in unknown):
        return "is a hybrid: some of its layers keep a running state"
    return f"keeps {', '.join(sorted(unknown))} in its cache" if unknown else None
