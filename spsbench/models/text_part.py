"""Which class of transformers computes text for a configuration, and that class without its other towers.

A checkpoint of images and text is a language model with towers beside it. Text never enters them, so that the
language model is built and loaded alone: by transformers' own class of the whole, whose forward of text is
then the published one to the bit, with M-RoPE, scales and caps where they belong. The towers are cut off
before a weight is allocated; a forward that needs one after all says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from torch import nn

from spsbench.base.errors import UsageError, first_line
from spsbench.models.messages import OTHER_MODEL


class NeedsTower(UsageError):
    """A forward of text entered a part that was left out."""


class LeftOut(nn.Module):
    """Stands where a tower of images or sounds was; it has no weights."""

    def __init__(self, name: str, config: Any = None) -> None:
        super().__init__()
        self._called, self.config = name, config

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NeedsTower(
            f"its forward of text enters {self._called}, which is no part of a language model.",
            remedy="Choose a model whose text is computed without images.",
        )


def class_of(config: Any) -> Any | None:
    """Return the class that computes a configuration's text; None if transformers has none.

    Of a configuration with towers the class without them.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForSeq2SeqLM

    kind = type(config)
    if config.is_encoder_decoder:
        return _class_in(AutoModelForSeq2SeqLM, kind)
    causal, whole = _class_in(AutoModelForCausalLM, kind), _class_in(AutoModelForImageTextToText, kind)
    if causal is not None and not (whole is not None and _names_otherwise(causal, config)):
        return (
            without_towers(causal) if has_towers(config) and _takes_whole_config(causal, config) else causal
        )
    return None if whole is None else without_towers(whole)


_OTHER_KINDS = (
    ("AutoModelForTextToWaveform", "writes sound, not text"),
    ("AutoModelForSpeechSeq2Seq", "reads sound, not text"),
    ("AutoModelForImageTextToText", "is an encoder-decoder whose encoder reads images"),
    ("AutoModelForMaskedLM", "fills masks: it has no causal language model"),
)


def what_else(config: Any) -> str:
    """Return what a configuration without a language model is, as transformers files it."""
    import transformers

    for name, is_that in _OTHER_KINDS:
        auto = getattr(transformers, name, None)
        if auto is not None and type(config) in auto._model_mapping:
            return is_that
    return "is no language model that transformers knows"


def reads_both_ways(config: Any) -> bool:
    """Return whether a model of BERT's kind sees the tokens after each one, as without ``is_decoder``."""
    from transformers import AutoModelForMaskedLM

    has_both = any("is_decoder" in inspect.get_annotations(base) for base in type(config).__mro__[:-1])
    is_encoder = has_both and not config.is_encoder_decoder and not getattr(config, "is_decoder", True)
    return is_encoder and (type(config) in AutoModelForMaskedLM._model_mapping)


def _class_in(auto: Any, kind: type) -> Any | None:
    mapping = getattr(auto, "_model_mapping", None)
    if mapping is None:  # a release without this private name: the class chooses by itself
        return auto
    if kind not in mapping:
        return None
    classes = mapping[kind]
    return classes[0] if isinstance(classes, (list, tuple)) else classes


def _takes_whole_config(model_class: Any, config: Any) -> bool:
    return isinstance(config, model_class.config_class)


def _names_otherwise(causal: Any, config: Any) -> bool:
    """Whether a checkpoint of the whole names tensors as the class of text alone does not read them.

    Such a class is read where transformers declares how names are converted (Qwen3.5).
    """
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping as conversions

    if _takes_whole_config(causal, config) or not has_towers(config):
        return False
    names = (causal.__name__, config.get_text_config().model_type)
    return not any(conversions(name) for name in names)


def has_towers(config: Any) -> bool:
    return not config.is_encoder_decoder and config.get_text_config() is not config


def text_class(config: Any) -> Any | None:
    """Return the class that loads the text of a configuration with towers; None where ``AutoModel`` does."""
    found = class_of(config)
    return found if isinstance(found, type) and issubclass(found, WithoutTowers) else None


def require_text_alone(config: Any, kind: str, flag: str) -> None:
    """Refuse a model with towers that computes no text alone; what only its weights can tell passes.

    It is built without memory, and reads three tokens.
    """
    import torch

    found = text_class(config)
    if found is None:
        return
    needed = [
        name
        for name, given in inspect.signature(found.forward).parameters.items()
        if given.default is given.empty and given.kind is given.POSITIONAL_OR_KEYWORD
    ]
    beside = [name for name in needed if name not in ("self", "input_ids", "attention_mask")]
    if config.model_type.endswith("_assistant"):
        why = "it proposes tokens from the states of the target that it was trained for"
    elif beside:
        why = f"its forward takes no text without {' and '.join(beside)}"
    else:
        model = None
        try:
            with torch.device("meta"):
                model = found._from_config(config, dtype=torch.float32).eval()
            with torch.device("meta"), torch.inference_mode():
                model(input_ids=torch.zeros(1, 3, dtype=torch.int64), use_cache=False)
            return
        except Exception as error:
            if model is None:
                why = f"transformers cannot build it ({first_line(error, kind=True).rstrip('.')})"
            elif isinstance(error, NeedsTower):
                why = error.message.rstrip(".")
            elif isinstance(error, (ValueError, TypeError, AttributeError, ImportError)):
                why = f"a forward of text alone fails: {first_line(error).rstrip('.')}"
            else:  # what a tensor without memory cannot do
                return
    raise UsageError(f"{kind} writes no text alone: {why}.", flag=flag, remedy=OTHER_MODEL)


class WithoutTowers:
    """Marks a class of ``without_towers``."""

    left_out: tuple[str, ...] = ()


@cache
def without_towers(whole: Any) -> Any:
    """Return transformers' class of images and text, which builds its language model alone."""

    class TextAlone(WithoutTowers, whole):  # type: ignore[misc]
        def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
            try:
                super().__init__(config, *args, **kwargs)
            except ImportError:  # a tower's own package, such as timm
                with _no_towers_built(config):
                    super().__init__(config, *args, **kwargs)

        def post_init(self) -> None:
            self.left_out = cut_towers(self)
            super().post_init()

    # Its weights are converted, and it is spoken of, by the name of the whole.
    TextAlone.__name__, TextAlone.__qualname__, TextAlone.__module__ = (
        whole.__name__,
        whole.__qualname__,
        whole.__module__,
    )
    return TextAlone


@contextmanager
def _no_towers_built(config: Any) -> Iterator[None]:
    """Have ``AutoModel.from_config`` build no tower of a configuration."""
    from transformers import AutoModel

    usual = AutoModel.__dict__["from_config"]
    text = config.get_text_config()

    def from_config(part: Any, *args: Any, **kwargs: Any) -> Any:
        if part is text or type(part) is type(text):
            return usual.__get__(None, AutoModel)(part, *args, **kwargs)
        return LeftOut(part.model_type, part)

    AutoModel.from_config = staticmethod(from_config)
    try:
        yield
    finally:
        AutoModel.from_config = usual


_MET_BY_TEXT = ("Gemma3nMultimodalEmbedder",)
"""Parts outside of the decoder that a forward of text enters, too."""


def cut_towers(model: Any) -> tuple[str, ...]:
    """Replace every part with weights that is neither the decoder, nor on the way to it, nor an embedding.

    Returns:
        The names of what was cut.
    """
    kept = [
        part
        for part in (_decoder_of(model), _embeddings(model, "output"), _embeddings(model, "input"))
        if part
    ]
    decoder = kept[0] if kept else None
    if decoder is None or decoder is model:
        return ()
    kept += [part for part in model.modules() if type(part).__name__ in _MET_BY_TEXT]
    names = {id(part): name for name, part in model.named_modules()}
    paths = [names[id(part)] for part in kept if id(part) in names]
    cut: list[str] = []
    for name, part in list(model.named_modules()):
        inside = any(name == path or name.startswith(f"{path}.") for path in paths)
        leads = any(path.startswith(f"{name}.") or not name for path in paths)
        if inside or leads or any(name.startswith(f"{done}.") for done in cut):
            continue
        if isinstance(part, LeftOut) or next(part.parameters(), None) is not None:
            above, _, own = name.rpartition(".")
            if not isinstance(part, LeftOut):
                setattr(model.get_submodule(above), own, LeftOut(name, getattr(part, "config", None)))
            cut.append(name)
    return tuple(cut)


def _decoder_of(model: Any) -> Any:
    """The language model within a model of images and text."""
    decoder = model.get_decoder()
    return None if decoder is model or decoder is _embeddings(model, "output") else decoder


def _embeddings(model: Any, which: str) -> Any:
    try:
        return getattr(model, f"get_{which}_embeddings")()
    except (NotImplementedError, AttributeError):
        return None


def is_of_tower(name: str, left_out: Sequence[str]) -> bool:
    return any(f".{part.rpartition('.')[2]}." in f".{name}" for part in left_out)
