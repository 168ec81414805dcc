"""What is trained, and what it shares with its target: embedding, head, layers.

A student's ``predict`` gives, depth by depth, the states at positions of a batch of whole sequences and how
far ahead each depth looks; its ``weights`` are what is saved, by name. What a student reads between the
target's layers is computed again for every batch: text on disk holds the last states alone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spsbench.models import BlockForm, BlockNet, WideLayer, text_config

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

    @torch.no_grad()
    def states(self, tokens: Tensor, after: tuple[int, ...]) -> Tensor:
        """[b, n, k hidden] of tokens [b, n], the states after these numbers of layers beside each other."""
        assert max(after) < self.config.num_hidden_layers, "the last one is normed"
        outputs = self.model.get_decoder()(input_ids=tokens, use_cache=False, output_hidden_states=True)
        return torch.cat([outputs.hidden_states[number] for number in after], -1).float()

    def layers_of(self, count: int) -> tuple[list[int], nn.Module]:
        """(which of the target's layers a shorter model begins with, a decoder of those in float32).

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
    """``count`` of ``total`` layers, evenly spread from the first to the last; for one, the last."""
    if count == 1:
        return [total - 1]
    return [round(i * (total - 1) / (count - 1)) for i in range(count)]


def states_between(total: int) -> tuple[int, ...]:
    """After how many of ``total`` layers a head reads its target: as EAGLE-3's authors do.

    They take 2, n//2 and n - 3; where these are no three, the states after the first layer, half of them and
    all but the last.
    """
    usual = (2, total // 2, total - 3)
    return usual if usual == tuple(sorted(set(usual))) else tuple(sorted({1, max(1, total // 2), total - 1}))


def shortened(config: dict[str, Any], numbers: list[int]) -> dict[str, Any]:
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
        at: [n] the positions of these states; the first n where it is None.
        weight: of its loss among those of all depths.
    """

    states: Tensor
    ahead: int
    at: Tensor | None = None
    weight: float = 1.0


class SmallModel(nn.Module):
    """A few of the target's layers under its own embedding and head: reads tokens alone."""

    def __init__(self, teacher: Teacher, layers: int) -> None:
        super().__init__()
        self._embedding = [teacher.embedding]  # in a list: shared with the target, and not trained
        self.numbers, self.model = teacher.layers_of(layers)

    def predict(self, tokens: Tensor, features: Tensor, learnt: Tensor | None = None) -> Iterator[Depth]:
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

    def combined(self, tokens: Tensor, features: Tensor) -> Tensor:
        """[b, n, hidden] what the first depth reads of the target."""
        return features

    def recycled(self, states: Tensor) -> Tensor:
        """What the next depth reads of this one's states."""
        return states

    def inputs(self, embedded: Tensor, read: Tensor) -> Tensor:
        return F.linear(torch.cat([embedded, read], -1), self.fc.weight)

    def predict(self, tokens: Tensor, features: Tensor, learnt: Tensor | None = None) -> Iterator[Depth]:
        from transformers import DynamicCache

        embedded = self._embedding[0](tokens[:, 1:]).to(features.dtype)
        first = read = self.combined(tokens, features)
        cache = DynamicCache()
        count = tokens.shape[1] - 1
        positions = torch.arange(count, device=tokens.device)
        for depth in range(self.depths):
            states = self.model(
                inputs_embeds=self.inputs(embedded, read),
                position_ids=positions.unsqueeze(0),
                past_key_values=cache,
                attention_mask=_depth_mask(count, depth, embedded),
                use_cache=True,
            ).last_hidden_state
            yield Depth(self.norm(states), 2)
            read = torch.cat([first[:, :1], self.recycled(states)[:, :-1]], 1)

    def weights(self) -> dict[str, Tensor]:
        layer = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        return {"fc.weight": self.fc.weight} | layer


class ModuleHead(EagleHead):
    """A multi-token prediction module as DeepSeek-V3 has it (section 2.2), over a target that has none.

    Two norms and a product stand before one layer of the target's own kind. The module reads its own state
    after the final norm, as it does in training here: one module that drafts several tokens.
    """

    def __init__(self, teacher: Teacher, depths: int) -> None:
        super().__init__(teacher, depths)
        table = teacher.model.get_input_embeddings().weight
        self.embedding_norm = _even_norm(self.model.norm, table.float().square().mean().sqrt())
        self.hidden_norm = _even_norm(self.model.norm, self.model.norm.weight.square().mean().sqrt())

    def inputs(self, embedded: Tensor, read: Tensor) -> Tensor:
        return super().inputs(self.embedding_norm(embedded), self.hidden_norm(read))

    def weights(self) -> dict[str, Tensor]:
        """By the names that ``speculators`` gives them."""
        named = {f"mtp_layers.0.{name}": value for name, value in self.model.layers[0].state_dict().items()}
        own = {
            "token_layernorm": self.embedding_norm,
            "hidden_layernorm": self.hidden_norm,
            "input_proj": self.fc,
            "final_layernorm": self.model.norm,
        }
        return named | {f"mtp_layers.0.{name}.weight": part.weight for name, part in own.items()}


def _even_norm(norm: Any, gain: Tensor) -> Any:
    other = copy.deepcopy(norm)
    with torch.no_grad():
        other.weight.fill_(float(gain))
    return other


def layer_sizes(teacher: Teacher, kind: Any, layers: int) -> Any:
    """The target's sizes as a configuration of another kind's layers."""
    sizes = {name: getattr(teacher.config, name, None) for name in _SIZES}
    return kind(**{name: size for name, size in sizes.items() if size}, num_hidden_layers=layers)


class Eagle3Head(EagleHead):
    """EAGLE-3's layer (Li et al. 2025), as ``speculators`` has it.

    Args:
        reads: after how many of the target's layers it reads a state; none for the last state alone.
    """

    def __init__(self, teacher: Teacher, depths: int, reads: tuple[int, ...] = ()) -> None:
        from transformers import AutoModel, LlamaConfig

        super().__init__(teacher, depths)
        self.reads, self._teacher = reads, teacher
        config = layer_sizes(teacher, LlamaConfig, 1)
        config.vocab_size = 1
        last = self.model.layers[0]
        norm = self.model.norm
        self.model = AutoModel.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
        self.model.layers[0].load_state_dict(last.state_dict(), strict=False)
        self.model.layers[0] = WideLayer(self.model.layers[0], before_residual=False)
        self.model.set_input_embeddings(nn.Identity())
        self.norm, self.model.norm = norm, nn.Identity()
        self.fc = through_last(teacher.hidden, max(1, len(reads)))

    def combined(self, tokens: Tensor, features: Tensor) -> Tensor:
        read = self._teacher.states(tokens[:, :-1], self.reads) if self.reads else features
        return F.linear(read, self.fc.weight)

    def inputs(self, embedded: Tensor, read: Tensor) -> Tensor:
        return torch.cat([embedded, read], -1)

    def weights(self) -> dict[str, Tensor]:
        return {name.removeprefix("model."): value for name, value in self.state_dict().items()}


def through_last(hidden: int, states: int) -> nn.Linear:
    """A product that passes the last of several states through, to begin with."""
    product = nn.Linear(states * hidden, hidden, bias=False)
    with torch.no_grad():
        product.weight.zero_()
        product.weight[:, -hidden:] = torch.eye(hidden)
    return product


class BlockHead(nn.Module):
    """DFlash (Chen et al. 2026): a block of masks behind a token, over the target's states before it.

    Blocks begin at every ``block // 2``-th position that is learnt from, so that each drawn token is
    predicted twice. Losses fall with the place, as its authors weigh them.

    Args:
        block: places, the pending token's among them.
        mask_token: whose embedding stands at all other places.
        anchor_predicts: whether each place predicts the next token, the pending token's place too.
    """

    def __init__(
        self,
        teacher: Teacher,
        layers: int,
        block: int,
        mask_token: int,
        reads: tuple[int, ...],
        *,
        anchor_predicts: bool = False,
    ) -> None:
        from transformers import Qwen3Config
        from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

        super().__init__()
        self._teacher, self.reads = teacher, reads
        vocab_size = teacher.model.get_input_embeddings().weight.shape[0]
        self.form = BlockForm(block, mask_token, anchor_predicts, (False,) * layers, (None,) * layers)
        self.config = layer_sizes(teacher, Qwen3Config, layers)
        self.config.vocab_size = vocab_size
        self.net = BlockNet(
            self.config,
            self.form,
            len(reads) * teacher.hidden,
            lambda name: (1,) if name.endswith("q_norm.weight") else None,
            vocab_size,
            len(teacher.vocabulary),
        )
        self._rotary = [Qwen3RotaryEmbedding(self.config)]
        decoder = teacher.model.get_decoder()
        numbers = spread(layers, teacher.config.num_hidden_layers)
        for number, layer in zip(numbers, self.net.layers, strict=True):
            layer.load_state_dict(decoder.layers[number].state_dict(), strict=False)
        self.net.norm.load_state_dict(decoder.norm.state_dict())
        self.net.fc = through_last(teacher.hidden, len(reads))

    def predict(self, tokens: Tensor, features: Tensor, learnt: Tensor | None = None) -> Iterator[Depth]:
        rows, count = tokens.shape[0], tokens.shape[1] - 1
        size, hidden = self.form.size, features.shape[-1]
        at = self._anchors(tokens, learnt)
        places = (at.unsqueeze(1) + torch.arange(size, device=at.device)).flatten()
        fused = self.net.hidden_norm(self.net.fc(self._teacher.states(tokens[:, :-1], self.reads)))
        context = self._rope(fused, torch.arange(count, device=at.device))
        own = self._rope(fused, places)
        block = torch.arange(len(places), device=at.device) // size
        before = torch.arange(count, device=at.device) < at[block].unsqueeze(1)
        mask = torch.cat([before, block.unsqueeze(1) == block], 1)
        masks = torch.full((rows, len(at), size), self.form.mask_token, device=at.device)
        masks[..., 0] = tokens[:, at]
        states = self._teacher.embedding(masks).to(features.dtype).view(-1, hidden)
        for layer in self.net.layers:

            def attend(normed: Tensor, attention: Any = layer.self_attn) -> Tensor:
                parts = []
                for read, queried in zip(fused, normed.view(rows, -1, hidden), strict=True):
                    pairs = zip(attention.keys(read, context), attention.keys(queried, own), strict=True)
                    keys, values = (torch.cat(pair, 2) for pair in pairs)
                    parts.append(attention(queried, own, (keys, values), mask))
                return torch.cat(parts)

            states = layer(states, attend)
        states = self.net.norm(states).view(rows, len(at), size, hidden)
        for ahead in range(1, self.form.drafts + 1):
            place = size - self.form.drafts + ahead - 1
            yield Depth(states[:, :, place], ahead, at, math.exp(-2 * (ahead - 1) / size))

    def _anchors(self, tokens: Tensor, learnt: Tensor | None) -> Tensor:
        """[a] positions of the pending tokens, other ones in other batches."""
        last = tokens.shape[1] - 1
        here = torch.arange(1, last, device=tokens.device)
        if learnt is not None:
            here = here[learnt[:, 2:].any(0)]
        stride = max(1, self.form.size // 2)
        return here[int(tokens.sum()) % min(stride, len(here)) :: stride]

    def _rope(self, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self._rotary[0].to(states.device)(states, positions.unsqueeze(0))
        return cos.unsqueeze(1), sin.unsqueeze(1)

    def weights(self) -> dict[str, Tensor]:
        return dict(self.net.state_dict())


def _depth_mask(count: int, depth: int, like: Tensor) -> Tensor:
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

    def predict(self, tokens: Tensor, features: Tensor, learnt: Tensor | None = None) -> Iterator[Depth]:
        for number, head in enumerate(self.heads):
            yield Depth(features + F.silu(head(features)), 2 + number)

    def weights(self) -> dict[str, Tensor]:
        return {f"heads.{name}": value for name, value in self.heads.state_dict().items()}
