"""What the commands that predict ask for: texts, pairs of models, drafters with rules, times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spsbench.base import UsageError
from spsbench.cli import sampling, specs, threads
from spsbench.config import refuse_together

if TYPE_CHECKING:
    from spsbench.base import Spec
    from spsbench.models import Pair
    from spsbench.parts.whatif.commands.options import ReplayOptions
    from spsbench.parts.whatif.replay.cells import Sought
    from spsbench.parts.whatif.replay.texts import Written


def written_of(source: Path, wanted: ReplayOptions, drafters: Sequence[Spec]) -> Written:
    """Return the texts of a run or of a file."""
    from spsbench.config import MaterialSettings, resolve
    from spsbench.parts.whatif.replay.texts import require_texts, texts_in, texts_of

    if source.is_file():
        refuse_together("replay", {**vars(wanted), "texts": source})
        flags = {
            "pair": wanted.pair,
            "target": wanted.target,
            "device": wanted.device,
            "dtype": wanted.dtype,
            "backend": wanted.backend,
        }
        if wanted.draft:
            flags["draft"] = wanted.draft[0]
        from spsbench.models import require_located

        drawn = sampling(wanted)
        config = resolve(flags | {"drafter": ",".join(map(str, drafters))})
        require_located(config.pair)
        require_texts(source, drawn, "RUN")
        from spsbench.models import find_pair
        from spsbench.runner import Reader

        pair = find_pair(config.pair)
        reader = Reader(pair.tokenizer, pair.vocab_size, pair.context_window, drawn, "RUN")
        return texts_in(source, reader, MaterialSettings.of(config))
    refuse_together("replay", {**vars(wanted), "recorded": source})
    return texts_of(source, wanted.sampling)


def pairs_of(written: Written, named: Sequence[str], thread_count: str | None) -> list[tuple[str, Pair]]:
    """Load the target with each named draft, or with the run's own; a single draft has an empty name.

    ``thread_count`` is as it was typed, else the run's own.
    """
    from spsbench.runner import find_models

    of_run = written.settings
    settings = replace(of_run, threads=threads(thread_count or str(of_run.threads or "auto")))
    wanted = {name: settings.with_draft(name) for name in named} or {"": settings}
    several = {name: find_models(each) for name, each in wanted.items()}
    before = None if written.identity is None else written.identity["target"]
    for models in several.values():
        if before is not None and before != (now := models.source.target.identity()):
            why = f"the target is now {now['fingerprint']}, and {before['fingerprint']} wrote these texts."
            raise UsageError(why, flag="RUN", remedy="Run it again with this target.")
    pairs: list[tuple[str, Pair]] = []
    for name, models in several.items():
        loaded = models.load(beside=pairs[0][1] if pairs else None)
        pairs.append((name if len(several) > 1 else "", loaded))
    return pairs


def sought_of(drafters: Mapping[Spec, Sequence[str]], pairs: Sequence[tuple[str, Pair]]) -> list[Sought]:
    """Return every drafter, with its own rules if any, and each draft; once if the draft does not matter."""
    from spsbench.parts.whatif.replay.cells import Sought

    drafts = []
    for drafter, rules in drafters.items():
        every = [Sought(drafter, pair, name, tuple(rules)) for name, pair in pairs]
        drafts += every if every[0].needs_draft else [replace(every[0], draft="")]
    return drafts


def replayed_rules(text: str | None, *, under_policies: bool, trees: bool) -> tuple[list[str], list[str]]:
    """Return the rules of chains and trees, ``modified-rejection,block,one-hot``, each once.

    Only those whose law over a text is known; where none is named of one or the other, its usual rule.
    """
    from spsbench.base import BLOCK, MODIFIED_REJECTION, TREE_RULE
    from spsbench.drafters import rule_kind
    from spsbench.parts.whatif.replay.trees import TREE_RULES

    of_chains = MODIFIED_REJECTION, BLOCK
    known = (*of_chains, *(TREE_RULES if trees else ()))
    text = text or MODIFIED_REJECTION
    named = list(dict.fromkeys(spec.name for spec in specs(text, rule_kind)))
    for name in named:
        if name not in known:
            raise UsageError(
                f"{name} cannot be replayed: its loops over a given text are not known.",
                flag="--rule",
                remedy=f"Choose from {', '.join(known)}, or measure it with spsbench run.",
            )
    if under_policies and named != [MODIFIED_REJECTION]:
        raise UsageError(
            f"policies are replayed under {MODIFIED_REJECTION} alone.",
            flag="--policy",
            remedy="Leave --rule or --policy out, or measure both with spsbench run.",
        )
    of_trees = [name for name in named if name not in of_chains]
    return [name for name in named if name in of_chains] or [MODIFIED_REJECTION], of_trees or [TREE_RULE]
