"""How close the decision was where two runs first wrote different tokens: the model is asked again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.errors import SpsbenchError

if TYPE_CHECKING:
    import pandas as pd

    from spsbench.models.causal_lm import CausalLM
    from spsbench.models.pair import Pair


def ask_again(compared: Mapping[str, Any], a: Path, b: Path) -> None:
    """Add to each arm that parted what was written there and the ``gap`` of the two largest logits.

    The model is A's, in A's dtype, by one forward without a cache. Where it cannot be loaded, ``gap`` is
    null and ``gap_unknown`` says why: a comparison of records needs no model.

    Args:
        compared: of ``analysis.comparison.compare``; its arms' ``tokens`` are completed in place.
        a, b: the directories of both runs.
    """
    parted = [arm for arm in compared["arms"] if (arm["tokens"] or {}).get("first_divergence")]
    if not parted:
        return
    from spsbench.store import RunStore, read_frames

    samples = [read_frames(directory).samples for directory in (a, b)]
    with RunStore.open(a) as store:
        prompts = {prompt.example_id: prompt.ids for prompt in store.prompts()}
    pair = _loaded(a)
    for arm in parted:
        place = arm["tokens"]["first_divergence"]
        ours, theirs = (_tokens(side, arm["arm"], place) for side in samples)
        before = [*prompts[place["example_id"]], *ours[: place["position"]]]
        place |= {"a_token": _at(ours, place["position"]), "b_token": _at(theirs, place["position"])}
        if isinstance(pair, str):
            place |= {"gap": None, "gap_unknown": pair}
        else:
            place |= _gap(pair, arm, before) | _texts(pair, place)


def _loaded(directory: Path) -> Pair | str:
    """The run's pair on the CPU, or why it cannot be loaded."""
    import torch

    from spsbench.config import resolve
    from spsbench.models.pair import find_pair, load_pair

    try:
        config = resolve({}, directory / "config.yaml")
        return load_pair(find_pair(config.pair), config.model_dtype, torch.device("cpu"))
    except SpsbenchError as problem:
        return problem.message.rstrip(".")


def _gap(pair: Pair, arm: Mapping[str, Any], before: list[int]) -> dict[str, Any]:
    import torch

    model: CausalLM = pair.draft if arm["method"] == "draft" else pair.target
    with torch.inference_mode():
        logits = model.score_uncached(torch.tensor(before, device=model.device))[-1].float()
    first, second = logits.topk(2).values.tolist()
    return {"gap": first - second, "dtype": str(model.model.dtype).removeprefix("torch.")}


def _texts(pair: Pair, place: Mapping[str, Any]) -> dict[str, str | None]:
    tokens = {side: place[f"{side}_token"] for side in ("a", "b")}
    return {
        f"{side}_text": None if token is None else pair.tokenizer.decode([token])
        for side, token in tokens.items()
    }


def _tokens(samples: pd.DataFrame, arm: str, place: Mapping[str, Any]) -> list[int]:
    own = samples[
        (samples["arm"] == arm)
        & (samples["example_id"] == place["example_id"])
        & (samples["sample_index"] == place["sample_index"])
    ]
    return [int(token) for token in own.iloc[-1]["token_ids"]]


def _at(tokens: list[int], position: int) -> int | None:
    """The token there; None where the output had ended."""
    return tokens[position] if position < len(tokens) else None
