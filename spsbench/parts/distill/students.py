"""What is trained, and what it shares with its target: embedding, head, layers.

A student's ``predict`` gives, depth by depth, the states at all positions of a batch of whole sequences and
how far ahead each depth looks; its ``weights`` are what is saved, by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spsbench.models import WideLayer, text_config

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "max_position_embeddings",
    "rope_parameters",
)


@dataclass(frozen=True)
class Teacher:
    """A target, as torch computes it.

    Attributes:
        model: a ``PreTrainedModel`` with a head.
        vocabulary: [m] ids of the tokens that the student proposes, ascending.
    """

    model: Any
    vocabulary: Tensor

    @property
    def config(self) -> Any:
        return text_config(self.model.config)

    @property
    def hidden(self) -> int:
        return int(self.config.hidden_size)

    @property
    def embedding(self) -> nn.Module:
        """The target's embedding, with any factor that it applies."""
        module: nn.Module = self.model.get_input_embeddings()
        return module

    def head_rows(self, dtype: torch.dtype) -> Tensor:
        """[m, hidden] the rows of the target's head for the vocabulary."""
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight.detach()[self.vocabulary].to(dtype)

    def layers_of(self, count: int) -> tuple[list[int], nn.Module]:
        """Return (which of the target's layers a shorter model begins with, a decoder of those in float32).

        The first and the last are always among them: they read embeddings and write what the head reads.
        """
        from transformers import AutoModelForCausalLM

        total = self.config.num_hidden_layers
        numbers = spread(count, total)
        config = type(self.config)(**shortened(self.config.to_dict(), numbers))
        shorter = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
        decoder: Any = shorter.get_decoder()
        teacher = self.model.get_decoder()
        for number, layer in zip(numbers, decoder.layers, strict=True):
            layer.load_state_dict(teacher.layers[number].state_dict())
        decoder.norm.load_state_dict(teacher.norm.state_dict())
        decoder.set_input_embeddings(nn.Identity())
        return numbers, decoder


def spread(count: int, total: int) -> list[int]:
    """Return ``count`` of ``total`` layers, evenly spread from the first to the last; for one, the last."""
    if count == 1:
        return [total - 1]
    return [round(i * (total - 1) / (count - 1)) for i in range(count)]


def shortened(config: dict[str, Any], numbers: list[int]) -> dict[str, Any]:
    """Return a configuration with some of the layers."""
    shorter = dict(config, num_hidden_layers=len(numbers), use_cache=False)
    for name in ("layer_types", "no_rope_layers"):
        if shorter.get(name):
            shorter[name] = [shorter[name][number] for number in numbers]
    return shorter


def log_probs(states: Tensor, head: Tensor, temperature: float) -> Tensor:
    """[n, m] log-probabilities of the student's tokens."""
    return (F.linear(states, head).float() / temperature).log_softmax(-1)


@dataclass(frozen=True, slots=True)
class Depth:
    """One prediction at every position.

    Attributes:
        states: [b, n, hidden] predicted features; position t stands for the token t + ahead.
    """

    states: Tensor
    ahead: int


class SmallModel(nn.Module):
    """A few of the target's layers under its own embedding and head: reads tokens alone."""

    def __init__(self, teacher: Teacher, layers: int) -> None:
        super().__init__()
        self._embedding = [teacher.embedding]  # in a list: shared with the target, and not trained
        self.numbers, self.model = teacher.layers_of(layers)

    def predict(self, tokens: Tensor, features: Tensor) -> Iterator[Depth]:
        embedded = self._embedding[0](tokens[:, :-1]).to(features.dtype)
        yield Depth(self.model(inputs_embeds=embedded, use_cache=False).last_hidden_state, 1)

    def weights(self) -> dict[str, Tensor]:
        return {f"model.{name}": value for name, value in self.model.state_dict().items()}


class EagleHead(nn.Module):
    """One layer over the next token's embedding and the feature after the token before (Li et al. 2024).

    The first depth reads the target's features. The next ones read the head's own, each after what was
    true before: as it drafts, so it is trained (Li et al. 2025, EAGLE-3).
    """

    def __init__(self, teacher: Teacher, depths: int) -> None:
        super().__init__()
        self._embedding = [teacher.embedding]
        self.depths = depths
        self.model: Any
        self.numbers, self.model = teacher.layers_of(1)
        width = teacher.hidden
        self.fc = nn.Linear(2 * width, width, bias=False)
        with torch.no_grad():
            self.fc.weight.copy_(torch.cat([torch.eye(width), torch.eye(width)], 1))
        self.norm: nn.Module = nn.Identity()

    def combined(self, features: Tensor) -> Tensor:
        """Return what the first depth reads of the target's features."""
        return features

    def inputs(self, embedded: Tensor, read: Tensor) -> Tensor:
        return F.linear(torch.cat([embedded, read], -1), self.fc.weight)

    def predict(self, tokens: Tensor, features: Tensor) -> Iterator[Depth]:
        from transformers import DynamicCache

        embedded = self._embedding[0](tokens[:, 1:]).to(features.dtype)
        first = read = self.combined(features)
        cache = DynamicCache()
        count = tokens.shape[1] - 1
        positions = torch.arange(count, device=tokens.device)
        for depth in range(self.depths):
            states = self.model(
                inputs_embeds=self.inputs(embedded, read),
                position_ids=positions.unsqueeze(0),
                past_key_values=cache,
                attention_mask=_mask(count, depth, embedded),
                use_cache=True,
            ).last_hidden_state
            yield Depth(self.norm(states), 2)
            read = torch.cat([first[:, :1], states[:, :-1]], 1)

    def weights(self) -> dict[str, Tensor]:
        layer = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        return {"fc.weight": self.fc.weight} | layer


class Eagle3Head(EagleHead):
    """EAGLE-3's layer (Li et al. 2025) over the last feature alone, as ``speculators`` has it."""

    def __init__(self, teacher: Teacher, depths: int) -> None:
        from transformers import AutoModel, LlamaConfig

        super().__init__(teacher, depths)
        sizes = {name: getattr(teacher.config, name, None) for name in _SIZES}
        config = LlamaConfig(**{name: size for name, size in sizes.items() if size}, num_hidden_layers=1)
        config.vocab_size = 1
        last = self.model.layers[0]
        norm = self.model.norm
        self.model = AutoModel.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
        self.model.layers[0].load_state_dict(last.state_dict(), strict=False)
        self.model.layers[0] = WideLayer(self.model.layers[0], before_residual=False)
        self.model.set_input_embeddings(nn.Identity())
        self.norm, self.model.norm = norm, nn.Identity()
        self.fc = nn.Linear(teacher.hidden, teacher.hidden, bias=False)
        nn.init.eye_(self.fc.weight)

    def combined(self, features: Tensor) -> Tensor:
        return F.linear(features, self.fc.weight)

    def inputs(self, embedded: Tensor, read: Tensor) -> Tensor:
        return torch.cat([embedded, read], -1)

    def weights(self) -> dict[str, Tensor]:
        return {name.removeprefix("model."): value for name, value in self.state_dict().items()}


def _mask(count: int, depth: int, like: Tensor) -> Tensor:
    """[1, 1, count, (depth + 1) count] what each entry of a depth may see.

    Entry t of depth d drafts after d own tokens: it sees what was true up to t - d, and of each depth
    between the one entry that led to it.
    """
    rows, columns = torch.arange(count).unsqueeze(1), torch.arange(count).unsqueeze(0)
    blocks = [columns <= rows - depth] + [columns == rows - depth + i for i in range(1, depth + 1)]
    seen = torch.cat(blocks, 1)
    # The first entries of a depth have no such past; they see themselves alone, and are not learnt from.
    return torch.where(seen, 0.0, torch.finfo(like.dtype).min).to(like)[None, None]


class MedusaHeads(nn.Module):
    """One residual block a token ahead, all over the same feature (Stern et al. 2018, Cai et al. 2024)."""

    def __init__(self, teacher: Teacher, heads: int) -> None:
        super().__init__()
        blank = [nn.Linear(teacher.hidden, teacher.hidden) for _ in range(heads)]
        for head in blank:  # the next token's feature is a better guess than noise
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
        self.heads = nn.ModuleList(blank)

    def predict(self, tokens: Tensor, features: Tensor) -> Iterator[Depth]:
        for number, head in enumerate(self.heads):
            yield Depth(features + F.silu(head(features)), 2 + number)

    def weights(self) -> dict[str, Tensor]:
        return {f"heads.{name}": value for name, value in self.heads.state_dict().items()}
