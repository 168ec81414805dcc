"""Heads as the authors of EAGLE-3 and Medusa publish them, and those who convert to their layouts."""

from __future__ import annotations

from typing import Any

from spsbench.models.checkpoint import HEAD
from spsbench.models.kinds import AFTER, AUTHORS, CONFIG, EAGLE3, MEDUSA, POST, PRE
from spsbench.models.messages import EAGLE3_IDS, IdsOfEngines
from spsbench.models.published import Published
from spsbench.models.speculators import FC, READS, WHOLE_NORM, eagle3_of, norm_of_state
from spsbench.models.trained import MOST_HEADS, Convention, MadeFor, TrainedDraft

_MIDLAYER = "midlayer."
_NESTED = "eagle_config"
_NAMES = {_MIDLAYER: "layers.0."}


def read_eagle(published: Published) -> TrainedDraft | None:
    """Refuse a head of the first EAGLE or EAGLE-2 in its authors' layout; None of any other folder."""
    held = published.stored.tensors
    product = held.get(FC)
    if product is None or "layers.0.self_attn.q_proj.weight" not in held:
        return None
    if len(product.shape) != 2 or product.shape[1] != 2 * product.shape[0]:
        return None
    if any(name.endswith("hidden_norm.weight") for name in held):
        return None
    raise published.refusal(
        "is a head of EAGLE's first layout (fc over an embedding and one state, a layer without its first"
        " norm), which is not read here",
        "Choose an EAGLE-3 head, or train one by spsbench distill --kind eagle.",
    )


def read_eagle3(published: Published) -> TrainedDraft | None:
    """Read an EAGLE-3 head in the authors' layout: ``config.json`` is the layer's own; None of any other.

    Its layer is ``midlayer``, or ``layers.0`` with a ``hidden_norm`` where others write it.
    """
    if not any(name.endswith(".hidden_norm.weight") for name in published.stored.tensors):
        return None
    if FC not in published.stored:
        return None
    config, published = published.config, published.renamed(_NAMES)
    layer = {**config, "num_hidden_layers": config.get("num_hidden_layers", 1)}
    hidden, vocab_size = published.number("hidden_size"), published.number("vocab_size")
    wide = published.number("target_hidden_size") if "target_hidden_size" in config else hidden
    nested = config.get(_NESTED)
    nested = nested if isinstance(nested, dict) else {}
    at_top = published.numbers(READS)
    reads = at_top or published.numbers(READS, nested) or published.numbers("layer_ids", nested)
    name = (
        config.get("base_model_name_or_path") or config.get("target_model_name_or_path") or "another target"
    )
    said = nested.get("norm_before_residual", config.get("norm_before_residual"))
    conventions = (
        _of_ids(reads, at_top is not None),
        Convention("recycle", PRE, "the authors' code"),
        Convention(
            "residual",
            POST if said else PRE,
            "the authors' code" if said is None else f"norm_before_residual in {CONFIG}",
        ),
    )
    count = 3 if reads is None else len(reads)
    norms = {each: (wide,) for each in map(norm_of_state, range(count)) if each in published.stored}
    if WHOLE_NORM in published.stored:
        norms[WHOLE_NORM] = (count * wide,)
    held = published.stored.tensors
    rows = published.number("draft_vocab_size") if "draft_vocab_size" in config else vocab_size
    if HEAD in held and "draft_vocab_size" not in config and len(held[HEAD].shape) == 2:
        rows = held[HEAD].shape[0]
    target = MadeFor(str(name), wide, vocab_size, "")
    return eagle3_of(
        published, EAGLE3, AUTHORS, target, _settings_of_layer(layer), reads, conventions, norms, rows, {}
    )


def _settings_of_layer(layer: dict[str, Any]) -> dict[str, Any]:
    spare = ("architectures", "auto_map", "torch_dtype", "dtype", "transformers_version", _NESTED, READS)
    own = {name: value for name, value in layer.items() if name not in spare}
    own.pop("quantization_config", None)
    return own


def _of_ids(reads: tuple[int, ...] | None, at_top: bool) -> Convention:
    if reads is None:
        return Convention("ids", AFTER, EAGLE3_IDS)
    because = IdsOfEngines("" if at_top else _NESTED)
    return Convention("ids", AFTER, str(because), certain=False)


def read_medusa(published: Published) -> TrainedDraft | None:
    """Read Medusa's heads as its authors write them, each with its own output head; None of any other.

    ``i.m.linear`` are the residual blocks of head i, and ``i.L.weight`` behind L blocks its output head.
    """
    held = published.stored.tensors
    if "medusa_num_heads" not in published.config and "0.0.linear.weight" not in held:
        return None
    heads = published.number("medusa_num_heads", most=MOST_HEADS)
    blocks = published.number("medusa_num_layers")
    last = held.get(f"0.{blocks}.weight")
    if last is None or len(last.shape) != 2:
        raise published.damage(f"has no 0.{blocks}.weight, which its {CONFIG} promises")
    vocab_size, hidden = last.shape
    wanted: dict[str, tuple[int, ...]] = {}
    for head in range(min(heads, len(held) + 1)):
        for block in range(min(blocks, len(held) + 1)):
            wanted[f"{head}.{block}.linear.weight"] = (hidden, hidden)
            wanted[f"{head}.{block}.linear.bias"] = (hidden,)
        wanted[f"{head}.{blocks}.weight"] = (vocab_size, hidden)
    published.require_tensors(wanted)
    name = str(published.config.get("base_model_name_or_path") or "another target")
    target = MadeFor(name, hidden, vocab_size, "")
    extra = {"blocks": blocks}
    return TrainedDraft(
        published.folder, MEDUSA, target, None, published.stored, heads=heads, writer=AUTHORS, extra=extra
    )
