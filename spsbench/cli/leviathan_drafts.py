"""alpha, c and K of the drafts of ``spsbench paper --of leviathan``, kept in ``drafts-TASK.json``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.cli.console import say
from spsbench.cli.leviathan_setup import TEMPERATURES, Setup

if TYPE_CHECKING:
    from spsbench.models.pair import Pair
    from spsbench.records import SamplingParams
    from spsbench.replay.texts import Written
    from spsbench.runner import Plan


def measured_drafts(
    setup: Setup, task: str, plans: Mapping[tuple[str, str], Plan], directory: Path, *, quiet: bool
) -> dict[str, Any]:
    """What is known of every draft on a task; measured unless it is there, of these very texts."""
    from spsbench.files import read_json, write_json
    from spsbench.replay.texts import texts_of

    path = directory / f"drafts-{task}.json"
    before = read_json(path, "--out") if path.is_file() else {}
    names = setup.samplings(task)
    texts = [texts_of(directory / setup.texts(task).name, name, fewest=1) for name in names]
    digest = _digest(texts, setup)
    if before.get("texts") == digest:
        return before
    say(f"Measuring alpha and c of the drafts on {task}", quiet=quiet)
    pairs = _load({draft: plans[task, draft] for draft in setup.paper.drafts})
    chosen = before.get("temperatures", {})
    models = {name: model.model_dump(mode="json") for name, model in setup.paper.drafts.items()}
    known = before.get("models", models)  # papers begun by earlier versions do not say
    found: dict[str, Any] = {"texts": digest, "models": models, "temperatures": {}}
    for temperature, written in zip(map(str, TEMPERATURES), texts, strict=True):
        by_draft = chosen.get(temperature, {}).get("drafts", {})
        kept = {name: one for name, one in by_draft.items() if known.get(name) == models.get(name)}
        found["temperatures"][temperature] = _at(written, pairs, setup.paper.most_k, kept)
    write_json(path, found)
    return found


def _at(written: Written, pairs: Mapping[str, Pair], most_k: int, kept: Mapping[str, Any]) -> dict[str, Any]:
    """Alphas at one temperature, and the K that theory chooses; a K that was chosen before is kept."""
    from spsbench.replay.alphas import overlaps
    from spsbench.replay.draft_cost import draft_costs

    sampling: SamplingParams = written.sampling
    measured = overlaps(written.texts, pairs, sampling)
    alphas = {one.draft: one.alpha.estimate for one in measured}
    costs = draft_costs(written.texts, pairs, sampling, written.config.seed)
    drafts = {
        name: {"alpha": alphas[name], "c": c, "k": chosen_k(alphas[name], c, most_k)}
        for name, c in costs.items()
    }
    return {
        "alphas": {
            one.draft: {**asdict(one.alpha), "positions": int(one.positions.sum())} for one in measured
        },
        "drafts": drafts | {name: kept[name] for name in drafts if name in kept},
    }


def chosen_k(alpha: float, c: float, most_k: int) -> int:
    """The K of the largest walltime factor (Leviathan et al. 2022, 3.5); 1 where no K gains."""
    from spsbench.predict.whatif import leviathan

    return max(1, leviathan(min(alpha, 1.0), c).best_k(range(1, most_k + 1)))


def _digest(texts: Sequence[Written], setup: Setup) -> str:
    """Of the texts and of the drafts that read them."""
    drafts = sorted((name, model.id, model.revision) for name, model in setup.paper.drafts.items())
    own = [(text.name, text.sample, text.tokens) for written in texts for text in written.texts]
    return hashlib.sha256(repr((drafts, own)).encode()).hexdigest()[:16]


def _load(plans: Mapping[str, Plan]) -> dict[str, Pair]:
    """The target with each draft; the target is loaded once."""
    from spsbench.models.pair import load_pair

    pairs: dict[str, Pair] = {}
    for draft, ready in plans.items():
        asked = ready.config.threads
        threads = None if asked == "auto" else int(asked)
        beside = next(iter(pairs.values()), None)
        pairs[draft] = load_pair(ready.source, ready.dtypes, ready.device, ready.backend, threads, beside)
    return pairs
