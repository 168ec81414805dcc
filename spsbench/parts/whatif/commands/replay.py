"""``spsbench replay``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spsbench.base import FIXED, UnavailableError, UsageError, make_folder
from spsbench.cli import asks, present, say, values
from spsbench.config import refuse_together
from spsbench.parts.whatif.commands.options import ReplayOptions
from spsbench.parts.whatif.commands.values import pairs_of, replayed_rules, sought_of, written_of
from spsbench.parts.whatif.replay.trees import shapes_of, trees_of

if TYPE_CHECKING:
    from spsbench.parts.whatif.replay.times import TimeSource


@asks(ReplayOptions, needed="policy device")
def replay(wanted: ReplayOptions) -> None:
    """Predict the speedup of any drafter and K from texts that the target has written.

    Example: spsbench replay results/RUN --drafter model,lookup --k 1..8
    """
    replay_texts(wanted)


def _typed_or_latest(typed: Path | None) -> Path:
    from spsbench.base import results_dir
    from spsbench.store import latest, read_run

    source = typed or latest(results_dir())
    if not source.is_file():
        read_run(source)
    return source


def _shown(path: Path, wanted: ReplayOptions, k: int) -> bool:
    """Show another tool's file without a model; return whether the file was one."""
    from spsbench.store import read, recognised

    form = recognised(path, "RUN")
    named = wanted.target is not None or wanted.pair is not None
    if form is None or (form.samples is not None and named and not wanted.explain):
        if wanted.explain:
            remedy = "See docs/whatif.md."
            raise UsageError(f"{path} is of no tool that is known.", flag="--explain", remedy=remedy)
        return False
    say(f"Reading {path}", quiet=wanted.quiet)
    content = read(path, form, "RUN")
    counted = bool(content.counts) and all(count.kept for count in content.counts)
    if not wanted.curve or wanted.explain or content.published:
        from spsbench.parts.whatif.commands.explain import explain

        explain(path, content, wanted)
        return True
    if not (counted or content.places):
        raise UnavailableError(f"{path}, {form.name}, cannot say: {content.silent}", flag="--curve")
    from spsbench.parts.whatif.commands.curve import show
    from spsbench.parts.whatif.curve import by_category, of_counts, of_places

    ks = values.lookaheads(wanted.k or f"1..{k}")
    curves = [
        each for name, own in of_places(content.places, k).items() for each in by_category(name, own, ks)
    ]
    if counted:
        from spsbench.parts.whatif.commands.explain import lengths_of

        longest = max(len(each.kept) for each in content.counts) - 1
        varies = lengths_of(content.counts, content.k) is not None
        name = f"K varies, to {content.k or longest}" if varies else f"K={longest}"
        curves.append(of_counts(name, content.counts, longest))
    show(f"{path.name}, {form.name}: acceptance length", curves, wanted.out, wanted)
    return True


def replay_texts(wanted: ReplayOptions) -> None:
    """Replay drafters over the ArS texts of a run or a file, or of the latest run."""
    from spsbench.parts.whatif.messages.replay import CurveOfTexts

    quiet = wanted.quiet
    ks = values.lookaheads(wanted.k or ("1..16" if wanted.curve else "1..8"))
    drafters = values.drafters(wanted.drafter or "model")
    named = values.policies(wanted.policy)
    shapes = shapes_of(wanted.tree)
    refuse_together("replay", {**vars(wanted), "tree": shapes})
    adapting = any(spec.name != FIXED for spec in named)
    rules, of_trees = replayed_rules(wanted.rule, under_policies=adapting, trees=bool(shapes))
    trees = trees_of(drafters, shapes, of_trees)
    budget_s = values.seconds(wanted.budget, 30.0)
    values.readable(wanted.times, "--times", "Give what `spsbench bench --json` printed.")
    values.require_machine(wanted)
    source = _typed_or_latest(wanted.run)
    if source.is_file() and _shown(source, wanted, max(ks)):
        return
    say(f"Reading {source}", quiet=quiet)
    written = written_of(source, wanted, drafters)  # a run's without torch
    from spsbench.parts.whatif.commands.screen import replay_facts, replay_screen
    from spsbench.parts.whatif.replay.elsewhere import read_times
    from spsbench.parts.whatif.replay.policies import curve, policies_of
    from spsbench.parts.whatif.replay.study import read_texts, study, time_loops

    times: TimeSource | None = None
    if wanted.times is not None:
        times = read_times(wanted.times, drafters)
    policies = policies_of(named, drafters)
    if policies is not None:
        ks = tuple(range(1, max(ks) + 1))
        if len(wanted.draft or ()) > 1:
            remedy = "Give --draft once."
            raise UsageError("policies are replayed with one draft.", flag="--policy", remedy=remedy)
    pairs = pairs_of(written, wanted.draft or (), wanted.threads)
    sought = sought_of({**dict.fromkeys(drafters, ()), **trees}, pairs)
    if wanted.curve and wanted.out:  # before minutes are spent
        make_folder(wanted.out, "--out")
    readers = {} if policies is None else policies.readers(written.settings.seed)
    replayed, read_by = read_texts(
        written, sought, max(ks), lambda text: say(text, quiet=quiet), {} if wanted.curve else readers
    )
    if wanted.curve:
        from spsbench.parts.whatif.commands.curve import curves_of, show

        title = str(CurveOfTexts(written.label, written.sampling_name, len(written.texts)))
        synthetic = written.settings.pair.synthetic
        show(title, list(curves_of(written, replayed, rules, ks)), wanted.out, wanted, synthetic=synthetic)
        return
    if times is None and budget_s > 0:
        say(f"Timing loops for {budget_s:g} s", quiet=quiet)
        under = () if policies is None else policies.timed
        times = time_loops(written, read_by, sought, ks, rules, budget_s, under)
    found = study(written, replayed, ks, rules, times)
    curves = [curve(found, drafter, reader, policies) for drafter, reader in readers.items() if policies]
    present(
        lambda: replay_facts(found, curves),
        lambda: replay_screen(found, curves, times),
        json=wanted.json,
        quiet=quiet,
    )
