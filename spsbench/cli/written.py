"""The texts that ``replay`` and ``advise`` read, and the models that read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spsbench.cli import values
from spsbench.errors import UsageError

if TYPE_CHECKING:
    from spsbench.config import RunConfig
    from spsbench.models.pair import Pair, PairSource
    from spsbench.records import Spec
    from spsbench.replay.calibration import Calibration
    from spsbench.replay.study import Sought
    from spsbench.replay.texts import Written

_OF_SAMPLES = (
    *("pair", "target", "revision", "device", "dtype", "backend"),
    *("temperature", "top_p", "top_k", "greedy"),
)
"""Options that a run has answered already."""


def written_of(source: Path, params: Mapping[str, Any], drafters: Sequence[Spec]) -> Written:
    """The texts of a run, or of a file."""
    from spsbench.models.pair import find_pair
    from spsbench.replay.texts import texts_in, texts_of
    from spsbench.verify.audit import Reader

    if source.is_file():
        if params["sampling"] is not None:
            raise UsageError(
                f"{source} is a file of texts, whose sampling has no name.",
                flag="--sampling",
                remedy="Give --temperature, --top-p.",
            )
        drawn, config = values.sampling(params), _config(params, drafters)
        found = find_pair(config.pair)
        reader = Reader(found.tokenizer, found.vocab_size, found.context_window, drawn)
        return texts_in(source, reader, config)
    for name in _OF_SAMPLES:
        if params[name] not in (None, False):
            raise UsageError(
                f"{source} records it already.",
                flag=f"--{name.replace('_', '-')}",
                remedy="Leave it out: it is for a file of texts.",
            )
    return texts_of(source, params["sampling"])


def _config(params: Mapping[str, Any], drafters: Sequence[Spec]) -> RunConfig:
    from spsbench.config import resolve

    names = ("target", "revision", "device", "dtype", "backend")
    flags = {name: params[name] for name in names if params[name] is not None}
    if params["draft"]:
        flags |= {"draft": params["draft"][0], "draft_revision": params["draft_revision"]}
    flags["drafter"] = ",".join(map(str, drafters))
    return resolve(flags, pair=params["pair"])


def pairs_of(written: Written, params: Mapping[str, Any]) -> list[tuple[str, Pair]]:
    """The target with each draft that is named, or with the run's own; of one draft the name is empty."""
    from spsbench.config import ModelRef
    from spsbench.config.names import with_draft
    from spsbench.models.pair import find_pair, load_pair, pair_backend, resolve_device
    from spsbench.models.placement import Placement

    config, named = written.config, params["draft"] or ()
    drafts = {id: ModelRef(id=id, revision=params["draft_revision"]) for id in named}
    wanted = {id: with_draft(config.pair, draft) for id, draft in drafts.items()} or {"": config.pair}
    sources = {name: find_pair(pair) for name, pair in wanted.items()}
    for source in sources.values():
        _require_writer(written, source)
    device = resolve_device(config.device)
    placement = None if config.device_map is None else Placement.read(config.device_map)
    dtypes = config.model_dtype, config.draft_model_dtype
    threads = values.threads(params["threads"] or str(config.threads))
    pairs: list[tuple[str, Pair]] = []
    for name, source in sources.items():
        asked = config.backend if placement is None else placement.backend(config.backend)
        backend, _ = pair_backend(asked, source, dtypes, device)
        beside = pairs[0][1] if pairs else None
        loaded = load_pair(source, dtypes, device, backend, threads, beside, placement)
        pairs.append((name if len(sources) > 1 else "", loaded))
    return pairs


def _require_writer(written: Written, source: PairSource) -> None:
    if written.identity is None:
        return
    before, now = written.identity["target"], source.target.identity()
    if before != now:
        raise UsageError(
            f"the target is now {now['fingerprint']}, and {before['fingerprint']} wrote these texts.",
            flag="RUN",
            remedy="Run it again with this target.",
        )


def sought_of(drafters: Sequence[Spec], pairs: Sequence[tuple[str, Pair]]) -> list[Sought]:
    """Every drafter with every draft; once if it has nothing to do with the draft."""
    from spsbench.replay.study import Sought

    found = []
    for drafter in drafters:
        first = Sought(drafter, pairs[0][1])
        found += [Sought(drafter, pair, name) for name, pair in pairs] if first.needs_draft else [first]
    return found


def times_of(params: Mapping[str, Any], default_s: float, drafters: Sequence[Spec]) -> float | Calibration:
    """Seconds for timing loops here, or another machine's times."""
    if params["times"] is None:
        return values.seconds(params["budget"], default_s)
    from spsbench.replay.calibration import read_times

    if params["budget"] is not None:
        raise UsageError(
            "with --times nothing is timed here.", flag="--budget", remedy="Leave one of the two out."
        )
    found = read_times(params["times"])
    for drafter in drafters:
        found.require_covered(drafter)
    return found
