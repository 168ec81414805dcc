"""Gemma 4's assistants: a few layers of queries over the keys and values that the target has cached.

An assistant keeps nothing of the text. It reads a token's embedding beside the target's last state, or
beside its own prediction for the token before, and attends to the target's last layer of each kind that
computes keys and values of its own. All tokens of a draft stand at one position. transformers has the
layers; what is passed to them is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.models.causal_lm import HiddenStates, OverTarget, text_config
from spsbench.models.checkpoint import HEAD, Checkpoint
from spsbench.models.hf_errors import typed_errors
from spsbench.models.kinds import ASSISTANT, AUTHORS, BONUS, WRITTEN
from spsbench.models.messages import ASSISTANT_POSITION, SAVE_AGAIN
from spsbench.models.plausible import require_bounded_config, require_ordinary_files
from spsbench.models.torch_lm import TorchLM
from spsbench.models.trained import Convention, MadeFor, TrainedDraft

ASSISTANTS = ("gemma4_assistant", "gemma4_unified_assistant")


def read_assistant(folder: Path, flag: str) -> Any:
    """Return an assistant's configuration, its tensors held against it.

    Raises:
        UnavailableError: the folder has none, or a tensor is missing or of another shape.
        UsageError: it is another model, or this transformers has no such class.
    """
    from transformers import AutoConfig, PretrainedConfig

    require_ordinary_files(folder, str(folder), flag)
    with typed_errors(str(folder), flag):
        told, _ = PretrainedConfig.get_config_dict(folder)
        require_bounded_config(told, str(folder), flag)
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if config.model_type not in ASSISTANTS:
        why = f"{folder} is a {config.model_type}, not a Gemma 4 assistant."
        remedy = "Give a head's folder as --drafter heads:from=FOLDER, a draft model as --draft."
        raise UsageError(why, flag=flag, remedy=remedy)
    with typed_errors(str(folder), flag):
        stored = Checkpoint(folder)
    with typed_errors(str(folder), flag), torch.device("meta"), sharing_all(config):
        wanted = _class(config)(config).state_dict()
    for name, part in wanted.items():
        if name == HEAD:  # tied
            continue
        if name not in stored:
            raise UnavailableError(f"{folder} has no {name}.", flag=flag, remedy=SAVE_AGAIN)
        if (shape := stored.shape(name)) != tuple(part.shape):
            why = f"{folder} has {name} of the shape {list(shape)}, not {list(part.shape)}."
            raise UnavailableError(why, flag=flag, remedy=SAVE_AGAIN)
    return config


def describe_assistant(folder: Path, flag: str) -> TrainedDraft:
    """Describe an assistant's folder; see ``read_assistant`` for errors.

    A folder does not name its target. ``extra`` has the kinds of attention whose keys and values it reads,
    and how many clusters it chooses tokens by; 0 where it scores all of them.
    """
    config = read_assistant(folder, flag)
    text = config.get_text_config()
    with typed_errors(str(folder), flag):
        stored = Checkpoint(folder)
    return TrainedDraft(
        folder,
        ASSISTANT,
        MadeFor("a Gemma 4", config.backbone_hidden_size, text.vocab_size, ""),
        text.to_dict(),
        stored,
        writer=AUTHORS,
        conventions=(Convention("position", BONUS, ASSISTANT_POSITION, certain=False),),
        extra={
            "attends": list(dict.fromkeys(text.layer_types)),
            "clusters": config.num_centroids if config.use_ordered_embeddings else 0,
        },
    )


@contextmanager
def sharing_all(config: Any) -> Iterator[None]:
    """Have transformers build layers none of which computes keys and values.

    5.23.0 looks for the layer of each kind that computes them, and raises ValueError where there is none, so
    that it builds no assistant; 5.19.0 does not ask.
    """
    kind = type(config.get_text_config())
    usual = kind.__dict__.get("kv_sharing_modes")
    if usual is None:
        yield
        return

    def modes(text: Any) -> list[str | None]:
        if text.num_kv_shared_layers == text.num_hidden_layers:
            return ["reuse"] * text.num_hidden_layers
        found: list[str | None] = usual.fget(text)
        return found

    kind.kv_sharing_modes = property(modes)
    try:
        yield
    finally:
        kind.kv_sharing_modes = usual


def _class(config: Any) -> Any:
    import transformers

    name = "Gemma4UnifiedAssistant" if "unified" in config.model_type else "Gemma4Assistant"
    return getattr(transformers, f"{name}ForCausalLM")


def require_target(folder: Path, config: Any, target: Any, flag: str) -> None:
    text, own = text_config(target), config.get_text_config()
    pairs = [
        ("backbone_hidden_size", config.backbone_hidden_size, text.hidden_size),
        ("vocab_size", own.vocab_size, text.vocab_size),
    ]
    if not str(text.model_type).startswith("gemma4"):
        pairs = [("model_type", "gemma4", text.model_type)]
    else:
        kinds = set(shared_layers(target))
        for place, kind in enumerate(own.layer_types):
            if kind not in kinds:
                pairs.append((f"layer_types[{place}]", kind, "none of that kind with keys of its own"))
                continue
            theirs = text.per_layer_config[shared_layers(target)[kind]]
            for field in ("head_dim", "num_key_value_heads"):
                pairs.append((field, getattr(own.per_layer_config[place], field), getattr(theirs, field)))
    for field, wanted, found in pairs:
        if wanted != found:
            why = f"{folder} has {field} {wanted}; the target has {found}."
            raise UsageError(why, flag=flag, remedy="Choose the target that it was made for.")


def shared_layers(config: Any) -> dict[str, int]:
    """Return, by kind of attention, the target's last layer that computes keys and values of its own."""
    text = text_config(config)
    own = text.num_hidden_layers - (getattr(text, "num_kv_shared_layers", 0) or 0)
    return {kind: number for number, kind in enumerate(text.layer_types[:own])}


def load_assistant(folder: Path, target: TorchLM, flag: str) -> Any:
    """Load an assistant in the target's type and onto its device; loaded once beside a target."""
    key = ("assistant", str(folder.resolve()))
    if key not in target.attached:
        config = read_assistant(folder, flag)
        require_target(folder, config, target.config, flag)
        with typed_errors(str(folder), flag), sharing_all(config):
            model = _class(config).from_pretrained(folder, dtype=target.dtype)
        target.attached[key] = model.to(target.device).eval()
    return target.attached[key]


class AssistantModel(OverTarget):
    """An assistant over its target, as a language model that drafts.

    Args:
        assistant: see ``load_assistant``.
        target: its cache is read, too.
        position: one of ``CONVENTIONS["position"]``.
    """

    def __init__(self, assistant: Any, target: TorchLM, hidden: HiddenStates, position: str) -> None:
        super().__init__(target, hidden)
        self._assistant, self._target = assistant, target
        self._behind = int(position == WRITTEN)
        self._layers = shared_layers(target.config)
        self._length = 0
        self._predicted: Tensor | None = None

    @property
    def length(self) -> int:
        return self._length

    def begin(self, prompt: Sequence[int]) -> Tensor:
        """Count the prompt as read: it is in the target's cache."""
        self.rollback(0)
        self._length = len(prompt) - 1
        return torch.tensor(prompt[-1:], device=self.device)

    def score(self, tokens: Tensor, last: int) -> Tensor:
        assert last == 1
        self._length += len(tokens)
        read = self._hidden.length
        state = self._predicted
        if state is None:
            state = self._hidden.features(read - 1, read)
        embedded = self._target.model.get_input_embeddings()(tokens[-1:])
        caches = self._target.cache.layers
        seen = {
            kind: (caches[number].keys[:, :, :read], caches[number].values[:, :, :read])
            for kind, number in self._layers.items()
        }
        position = torch.tensor([[read - self._behind]], device=self.device)
        out = self._assistant(
            inputs_embeds=torch.cat([embedded, state], -1).unsqueeze(0),
            position_ids=position,
            shared_kv_states=seen,
            use_cache=False,
        )
        self._predicted = out.last_hidden_state[0]
        logits: Tensor = out.logits[0, :, : self.vocab_size]
        return logits

    def rollback(self, length: int) -> None:
        """Keep at most the first ``length`` tokens, and nothing of what was predicted."""
        self._length = min(self._length, length)
        self._predicted = None

    def forward_bytes(self) -> int:
        return int(sum(part.nbytes for part in self._assistant.parameters()))
