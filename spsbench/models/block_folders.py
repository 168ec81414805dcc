"""Folders of block drafters, and how they become drafters over a target.

DFlash and DFlash2 come from their authors (z-lab) and from ``speculators``; DSpark from DeepSpec, whose
DFlash is a DSpark without its bias, and from ``speculators``. The same tensors are read differently:
layers' ids are those of states or of layers, the pending token's place predicts or does not, sliding layers
see the places after them or do not, and windows are counted from the block or from each place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spsbench.base.errors import UnavailableError, UsageError, as_typed, first_line
from spsbench.models.blocks import MARKOV, BlockForm, BlockModel, BlockNet
from spsbench.models.body import head_of
from spsbench.models.causal_lm import CausalLM
from spsbench.models.checkpoint import EMBEDDING, HEAD
from spsbench.models.kinds import (
    AFTER,
    ANCHORED,
    AUTHORS,
    BLOCKS,
    BOTH,
    CONFIG,
    DFLASH,
    DFLASH2,
    DSPARK,
    EACH,
    EARLIER,
    NEXT,
    OUTPUT,
    OWN,
    SPECULATORS,
)
from spsbench.models.messages import (
    BLOCK_AUTHORS_IDS,
    OTHER_DRAFTER,
    SAVE_AGAIN,
    SPECULATORS_IDS,
    SPECULATORS_WINDOW,
    DefaultAnchor,
)
from spsbench.models.onednn import Product
from spsbench.models.onnx_lm import OnnxLM
from spsbench.models.packed import pack_called, stored_weight
from spsbench.models.published import D2T, T2D, Published, Shape
from spsbench.models.speculators import FC, LAYER, OWN_EMBEDDING, TYPE, layer_settings, verifier_of
from spsbench.models.torch_lm import TorchLM
from spsbench.models.trained import Convention, MadeFor, TrainedDraft, layer_config

_NESTED = "dflash_config"
READS, _OWN_READS = "aux_hidden_state_layer_ids", "target_layer_ids"
_SELECTOR, _BIAS = "candidate_selector.predecessor_codebook", "markov_head.markov_w1.weight"
_UNREAD = ("confidence_head.*", "verifier_norm.weight", "verifier_lm_head.weight", D2T, T2D)
_SLIDING = "sliding_attention"
_LONGEST_BLOCK = 1024
"""In tokens; every loop computes the whole block. Published ones have 8 to 16."""
_LAYER_FIELDS = frozenset(
    {
        "attention_bias",
        "attention_dropout",
        "head_dim",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "layer_types",
        "max_position_embeddings",
        "max_window_layers",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "sliding_window",
        "use_sliding_window",
        "vocab_size",
    }
)


def read_blocks(published: Published) -> TrainedDraft | None:
    """Read a folder of a block drafter; None of any other."""
    config = published.config
    if config.get(TYPE) in BLOCKS:
        return _of_speculators(published)
    if TYPE in config or "hidden_norm.weight" not in published.stored or FC not in published.stored:
        return None
    return _of_authors(published)


def _of_speculators(published: Published) -> TrainedDraft:
    config, layer = published.config, layer_settings(published)
    kind = str(config[TYPE])
    anchored = config.get("sample_from_anchor")
    both = config.get("sliding_window_non_causal")
    conventions = (
        Convention("ids", AFTER, SPECULATORS_IDS),
        Convention(
            "anchor",
            NEXT if (kind == DSPARK if anchored is None else anchored) else OWN,
            f"sample_from_anchor in {CONFIG}" if anchored is not None else str(DefaultAnchor(kind)),
            anchored is not None,
        ),
        *_of_sliding_layers(
            layer,
            Convention(
                "sliding",
                BOTH if (kind == DFLASH2 if both is None else both) else EARLIER,
                f"sliding_window_non_causal in {CONFIG}" if both is not None else f"the default for {kind}",
                both is not None,
            ),
            Convention("window", ANCHORED, SPECULATORS_WINDOW),
        ),
    )
    reads = published.numbers(READS)
    if reads is None:
        raise published.damage(f"has no {READS} in its {CONFIG}")
    hidden, vocab_size = published.number("hidden_size", layer), published.number("vocab_size", layer)
    wide = config.get("target_hidden_size")
    wide = hidden if wide is None else published.number("target_hidden_size")
    target = verifier_of(published, wide, vocab_size)
    return _draft_of(published, kind, SPECULATORS, target, layer, reads, conventions, config)


def _of_authors(published: Published) -> TrainedDraft:
    """Read z-lab's layout, whose settings are nested or not, or DeepSpec's."""
    config = published.config
    nested = config.get(_NESTED)
    settings = {**config, **(nested if isinstance(nested, Mapping) else {})}
    deepspec = "num_anchors" in config or _BIAS in published.stored
    kind = DSPARK if deepspec else DFLASH2 if _SELECTOR in published.stored else DFLASH
    reads = published.numbers(_OWN_READS, settings)
    if reads is None:
        reads = _default_ids(published, settings)
    causal = settings.get("is_causal")
    conventions = (
        Convention("ids", OUTPUT, BLOCK_AUTHORS_IDS),
        Convention("anchor", NEXT if deepspec else OWN, "DeepSpec's code" if deepspec else "z-lab's code"),
        *_of_sliding_layers(
            config,
            Convention(
                "sliding",
                EARLIER if causal is None or causal else BOTH,
                f"is_causal in {CONFIG}" if causal is not None else "z-lab's code",
                causal is not None,
            ),
            Convention("window", EACH, "z-lab's code"),
        ),
    )
    hidden, vocab_size = published.number("hidden_size"), published.number("vocab_size")
    shape = published.stored.shape(FC)
    wide = shape[1] // len(reads) if len(shape) == 2 and shape[1] % len(reads) == 0 else hidden
    name = str(config.get("base_model_name_or_path") or "another target")
    target = MadeFor(name, wide, vocab_size, "")
    return _draft_of(published, kind, AUTHORS, target, config, reads, conventions, settings)


def _of_sliding_layers(layer: Mapping[str, Any], *conventions: Convention) -> tuple[Convention, ...]:
    return conventions if _SLIDING in (layer.get("layer_types") or ()) else ()


def _default_ids(published: Published, settings: Mapping[str, Any]) -> tuple[int, ...]:
    """z-lab's: evenly from 1 to n - 3."""
    count = published.number("num_target_layers", settings)
    layers = published.number("num_hidden_layers", settings)
    if layers == 1:
        return (count // 2,)
    return tuple(round(1 + place * (count - 4) / (layers - 1)) for place in range(layers))


def _draft_of(
    published: Published,
    kind: str,
    writer: str,
    target: MadeFor,
    layer: Mapping[str, Any],
    reads: tuple[int, ...],
    conventions: tuple[Convention, ...],
    settings: Mapping[str, Any],
) -> TrainedDraft:
    """Its tensors are held against its configuration, shape by shape."""
    model_type = layer.get("model_type", "qwen3")
    if model_type not in ("qwen3", "llama"):
        raise published.refusal(
            f"has {LAYER if writer == SPECULATORS else 'the'} model_type {as_typed(model_type)}; what runs"
            " here are layers of qwen3 or llama",
            OTHER_DRAFTER,
        )
    own = {name: value for name, value in layer.items() if name in _LAYER_FIELDS} | {"model_type": model_type}
    for field in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "num_hidden_layers"):
        published.number(field, own)
    published.require_layers(own["num_hidden_layers"])
    if (published.folder / "mask_embedding.pt").is_file():
        raise published.refusal("has a mask_embedding.pt, which is not read here", OTHER_DRAFTER)
    extra = _settings_besides_layers(published, kind, target.vocab_size, settings)
    anchored = next(each.value for each in conventions if each.name == "anchor") == NEXT
    published.number("block_size", settings, least=1 if anchored else 2)
    rows = _draft_vocab_size(published, settings, target.vocab_size)
    vocabulary, way = published.vocabulary(rows, target.vocab_size)
    draft = TrainedDraft(
        folder=published.folder,
        kind=kind,
        target=target,
        config=own,
        stored=published.stored,
        vocabulary=vocabulary,
        writer=writer,
        reads=reads,
        conventions=conventions,
        extra=extra | ({"d2t": way} if way else {}),
    )
    with torch.device("meta"):
        net = _net(draft)
    wanted: dict[str, Shape] = {name: tuple(part.shape) for name, part in net.state_dict().items()}
    hidden = published.number("hidden_size", own)
    if HEAD in published.stored or rows != target.vocab_size:
        wanted[HEAD] = (rows, hidden)
    if OWN_EMBEDDING in published.stored:
        wanted[OWN_EMBEDDING] = (target.vocab_size, hidden)
    if hidden != target.hidden and not {HEAD, OWN_EMBEDDING} <= set(published.stored.tensors):
        raise published.damage(
            f"is {hidden} wide over a target of {target.hidden} and has not both {HEAD} and {OWN_EMBEDDING}"
        )
    published.require_tensors(wanted, (*_UNREAD, "*.rotary_emb.inv_freq"))
    return draft


def _settings_besides_layers(
    published: Published, kind: str, vocab_size: int, settings: Mapping[str, Any]
) -> dict[str, Any]:
    extra: dict[str, Any] = {
        "block_size": published.number("block_size", settings, most=_LONGEST_BLOCK),
        "mask_token_id": published.mask_token(settings, vocab_size),
        "input_embedding_scale": float(settings.get("input_embedding_scale") or 1.0),
        "output_multiplier": float(settings.get("output_multiplier") or 1.0),
        "final_logit_softcapping": float(settings.get("final_logit_softcapping") or 0.0),
    }
    if kind == DFLASH2:
        for field, least in (("conv_kernel_size", 1), ("conv_group_size", 1), ("selector_top_k", 1)):
            extra[field] = published.number(field, settings, least)
        width = published.number("hidden_size", settings.get(LAYER) or settings)
        if width % extra["conv_group_size"]:
            raise published.damage(
                f"has conv_group_size {extra['conv_group_size']}, which does not divide {width}"
            )
        if extra["selector_top_k"] > published.number("vocab_size", settings.get(LAYER) or settings):
            raise published.damage(f"has selector_top_k {extra['selector_top_k']}, above its vocabulary")
        if extra["conv_kernel_size"] > extra["block_size"]:
            raise published.damage(
                f"has conv_kernel_size {extra['conv_kernel_size']} above its block_size {extra['block_size']}"
            )
    if kind == DSPARK:
        rank = published.number("markov_rank", settings, least=0)
        markov = str(settings.get("markov_head_type") or "vanilla").lower() if rank else ""
        if rank and markov not in MARKOV:
            raise published.damage(f"has markov_head_type {as_typed(markov)}, none of {', '.join(MARKOV)}")
        extra |= {"markov_rank": rank, "markov_head_type": markov}
    return extra


def _draft_vocab_size(published: Published, settings: Mapping[str, Any], vocab_size: int) -> int:
    if settings.get("draft_vocab_size") is not None:
        return published.number("draft_vocab_size", settings)
    return published.stored.shape(HEAD)[0] if HEAD in published.stored else vocab_size


def form_of(draft: TrainedDraft) -> BlockForm:
    """Return how a drafter's block is laid out and read, under the conventions that it is read by."""
    told, extra = draft.config or {}, draft.extra
    known = {each.name: each.value for each in draft.conventions}
    types = told.get("layer_types") or ["full_attention"] * int(told["num_hidden_layers"])
    slides = [kind == _SLIDING for kind in types]
    window = told.get("sliding_window")
    return BlockForm(
        size=extra["block_size"],
        mask_token=extra["mask_token_id"],
        anchor_predicts=known["anchor"] == NEXT,
        causal=tuple(each and known["sliding"] == EARLIER for each in slides),
        windows=tuple(int(window) if each and window else None for each in slides),
        window_from_anchor=known.get("window") == ANCHORED,
        embedding_scale=extra["input_embedding_scale"],
        logit_scale=extra["output_multiplier"],
        softcap=extra["final_logit_softcapping"],
        markov=extra.get("markov_head_type", ""),
        candidates=extra.get("selector_top_k", 0),
        convolution=(extra["conv_kernel_size"], extra["conv_group_size"]) if draft.kind == DFLASH2 else None,
    )


def _net(draft: TrainedDraft) -> BlockNet:
    held = draft.stored.tensors
    rows = draft.target.vocab_size if draft.vocabulary is None else len(draft.vocabulary)
    return BlockNet(
        layer_config(draft),
        form_of(draft),
        len(draft.reads or ()) * draft.target.hidden,
        lambda name: held[name].shape if name in held else None,
        draft.target.vocab_size,
        rows,
    )


def load_block(draft: TrainedDraft, target: CausalLM, flag: str) -> BlockModel:
    """Load a block drafter beside its target; drafters of one target share their weights in memory.

    Raises:
        UsageError: the target is another one, or its embedding and head are not accessible.
    """
    count, hidden = target.embedding_shape
    draft.require_target(hidden, count, target.embedding_fingerprint(), flag)
    if form_of(draft).drafts < 1:
        why = f"{draft.folder} has blocks of 1 token, which drafts none with anchor=own."
        raise UsageError(why, flag=flag, remedy="Leave anchor out.")
    read_by = tuple(each.value for each in draft.conventions)
    key = ("block", str(draft.folder.resolve()), read_by)
    if key not in target.attached:
        with torch.inference_mode():
            target.attached[key] = _loaded(draft, target, flag)
    loaded: BlockModel = target.attached[key]
    return loaded.fresh()


def _loaded(draft: TrainedDraft, target: CausalLM, flag: str) -> BlockModel:
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    if not isinstance(target, (TorchLM, OnnxLM)):
        why = f"{draft.folder} reads embedding and head of a target that is loaded whole."
        raise UsageError(why, flag=flag, remedy=OTHER_DRAFTER)
    try:
        with torch.device("meta"):
            net = _net(draft)
        state = {name: _tensor(draft, name, target) for name in net.state_dict()}
        net.load_state_dict(state, assign=True)
        rotary = Qwen3RotaryEmbedding(layer_config(draft)).to(target.device)
    except (KeyError, ValueError, RuntimeError, TypeError, AttributeError, ArithmeticError) as fault:
        reason = first_line(fault)
        why = f"{draft.folder} does not hold the drafter that it describes: {reason}."
        raise UnavailableError(why, flag=flag, remedy=SAVE_AGAIN) from fault
    pack_called(net.eval().requires_grad_(False))
    ids = (
        torch.arange(draft.target.vocab_size)
        if draft.vocabulary is None
        else torch.from_numpy(draft.vocabulary)
    )
    inside = ids < target.vocab_size
    head = Product(_head(draft, target)[inside.to(target.device)])
    return BlockModel(
        net,
        form_of(draft),
        rotary,
        _embedding(draft, target),
        head,
        ids[inside].to(target.device),
        target.vocab_size,
    )


def _tensor(draft: TrainedDraft, name: str, target: CausalLM) -> Tensor:
    return torch.from_numpy(draft.stored.read(name).copy()).to(target.device, target.dtype)


def _head(draft: TrainedDraft, target: TorchLM | OnnxLM) -> Tensor:
    """[m, hidden] the output head: the drafter's own where it has one, else the target's."""
    if HEAD in draft.stored:
        return _tensor(draft, HEAD, target)
    if isinstance(target, OnnxLM):
        own = HEAD if HEAD in target.stored else EMBEDDING
        return torch.from_numpy(target.stored.read(own))
    return stored_weight(head_of(target.model))


def _embedding(draft: TrainedDraft, target: TorchLM | OnnxLM) -> Any:
    """What looks tokens up: in the drafter's own table, or in the target's without its scale."""
    if OWN_EMBEDDING in draft.stored:
        table = _tensor(draft, OWN_EMBEDDING, target)
    elif isinstance(target, OnnxLM):
        stored = target.stored

        def looked_up(tokens: Tensor) -> Tensor:
            rows = np.zeros((len(tokens), target.embedding_shape[1]), np.float32)
            stored.rows(EMBEDDING, tokens.numpy(), rows)
            return torch.from_numpy(rows)

        return looked_up
    else:
        table = target.model.get_input_embeddings().weight.detach()
    return lambda tokens: table[tokens]
