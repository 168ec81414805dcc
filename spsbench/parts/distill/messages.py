"""What a person is told about a trained draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from spsbench.base import Message
from spsbench.models import DFLASH, EAGLE, EAGLE3, MEDUSA, MODEL, MTP

if TYPE_CHECKING:
    from spsbench.parts.distill.evaluation import Forecast
    from spsbench.parts.distill.making import Made

FORECAST = (
    "Forecast: from held-out acceptance and the target's forwards, timed here; a draft token costs its share "
    "of the target's weights."
)

_KINDS = {
    MODEL: "A draft model: {layers} of the target's layers, trained further.",
    EAGLE: "An EAGLE-style head: one layer over the target's last hidden states (Li et al. 2024).",
    EAGLE3: "An EAGLE-3 layer over {states} of the target's hidden states, in the format of `speculators`.",
    MTP: "A multi-token prediction module (DeepSeek-V3, section 2.2), in the format of `speculators`.",
    DFLASH: "DFlash, {layers} layers over blocks of {block} places, in the format of `speculators`.",
    MEDUSA: "Medusa-style heads: {heads} tokens from the target's last hidden state (Cai et al. 2024).",
}


class DraftCard(Message):
    """The draft's card, as Markdown.

    Attributes:
        measured_by: the command line that measures the draft.
    """

    made: Made
    forecasts: Sequence[Forecast]
    measured_by: str

    def __str__(self) -> str:
        made = self.made
        record, recipe = made.record, made.recipe
        description = _KINDS[recipe.kind].format_map(asdict(recipe))
        words = f"{recipe.vocabulary:,} tokens" if recipe.vocabulary else "all tokens"
        sources = ", ".join(recipe.data)
        kinds = ", ".join(f"{count:,} of {kind}" for kind, count in sorted(record["tokens_by_kind"].items()))
        rows = "\n".join(
            f"| {text.kind} | {' / '.join(f'{alpha:.3f}' for alpha in text.alphas)} | {text.tokens:,} |"
            for text in made.held_out
        )
        gains = "\n".join(
            f"| {f.kind} | {f.k or '-'} | {f.tokens_per_loop:.2f} | {f.speedup:.2f}x |"
            for f in self.forecasts
        )
        text_tokens = sum(record["tokens_by_kind"].values())
        minutes = record["training_s"] / 60
        return f"""# Draft for {made.target.name}

{description} It proposes {words}; {made.parameters:,} trained weights, in bfloat16.
Embedding and output head are the target's, which is recognised by its embedding
({made.target.embedding}).

    {self.measured_by}

## Text
{text_tokens:,} tokens ({kinds}), from: {sources}.
`own` is text that the target wrote itself, `python` the standard library's functions as they were
written, with the target's distributions over them. {record["sequences_contaminated"]} sequences were left out
because they share 13 words in a row with an evaluated problem or document.

## Training
{record["updates"]:,} updates on {record["tokens_learnt"]:,} tokens in {minutes:.0f} minutes of
{record["device"]} (torch {record["torch"]}), without sampling. Cross-entropy with the target's
distribution, then the chance of rejection while the rate falls. `training.json` has the settings and
the curve.

## Acceptance on held-out text
Mean of sum min(p, q) at the text's own sampling; held-out text answers other requests than those of the
training. The numbers after the first are of the following draft tokens, each behind accepted ones.

| text | alpha | positions |
|---|---|---|
{rows}

## Forecast
From these and the target's forwards, timed on the machine of the training; a draft token costs its share
of the target's weights. The overhead of Python is not in it: measure with `spsbench run`.

| text | best K | tokens/loop | speedup |
|---|---|---|---|
{gains}
"""
