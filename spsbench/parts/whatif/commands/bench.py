"""``spsbench bench``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from spsbench.base import SamplingParams, UsageError
from spsbench.cli import LOAD_IN_ROUNDS, Common, asks, option, options, present, say, say_if_busy, values

if TYPE_CHECKING:
    import torch

    from spsbench.config import PairConfig
    from spsbench.models import CausalLM
    from spsbench.parts.whatif.bench import BenchConfig
    from spsbench.parts.whatif.bench.forced import SyntheticAcceptance


ACCEPTANCE = "Synthetic acceptance"


@dataclass(frozen=True, kw_only=True)
class BenchOptions(Common):
    """The options of ``bench``."""

    pair: str | None
    target: str | None = option(
        "--target MODEL",
        "Target model; a config.json, also as ORG/NAME/config.json, for random weights of its shapes.",
    )
    draft: str | None
    k: str | None = option("--k LIST", "Lookaheads K, from 1: 4, 2,4 or 1..8. Default: 1..8.")
    context: str | None = option(
        "--context LIST", "Tokens in the cache: 4k, or 1k,4k,16k for a table by context. Default: 256."
    )
    batch: str | None
    alpha: str | None = option(
        "--alpha A|RUN",
        "Run loops in which each draft token is accepted with probability A, or as in a run, by position.",
        ACCEPTANCE,
        names="runs",
    )
    seconds: str | None = option("--seconds S", "How long to time forwards. Default: 20.")
    seed: str | None
    device: str | None
    dtype: str | None = option(
        "--dtype NAME", "auto, float32, bfloat16 or float16. Default: auto.", options.Panel.MACHINE
    )
    threads: str | None
    backend: str | None


@asks(BenchOptions, needed="batch device")
def bench(wanted: BenchOptions) -> None:
    """Time forwards on this machine and predict the speedup by alpha and K; no task is run.

    Example: spsbench bench --pair mini --k 1..8 --seconds 10
    """
    bench_pair(wanted)


_LENGTH = re.compile(r"(?P<number>\d+)(?P<k>[kK]?)", re.ASCII)


def lengths(text: str | None, default: int) -> tuple[int, ...]:
    """Read ``1k,4k,16384`` as numbers of tokens, ascending and each once; k stands for 1,024."""
    if text is None:
        return (default,)
    matches = [_LENGTH.fullmatch(part.strip()) for part in text.split(",")]
    counts = [int(match["number"]) * (1024 if match["k"] else 1) for match in matches if match is not None]
    if len(counts) < len(matches) or min(counts) < 1:
        remedy = "Give 256, 4k or 1k,4k,16k."
        raise UsageError(f"it must be numbers of tokens from 1, got {text}.", flag="--context", remedy=remedy)
    return tuple(sorted(set(counts)))


def sizes(text: str | None) -> tuple[int, ...]:
    """Read ``1,2,4,8``, ascending and each once; empty where nothing was typed."""
    from spsbench.config import MAX_BATCH

    if text is None:
        return ()
    return tuple(sorted(values.counts(text, "--batch", "Give one (8) or a list (1,2,4,8).", MAX_BATCH)))


def bench_pair(wanted: BenchOptions) -> None:
    """Measure a pair, real or of random weights, and print what it can gain."""
    random_weights = _are_weights_random(wanted)
    quiet = wanted.quiet
    config = _bench_config(wanted)
    configurations = _configurations(wanted)
    threads = values.threads(wanted.threads)
    from spsbench.base import describe_environment
    from spsbench.models import Gpu, resolve_device, suitable_threads
    from spsbench.parts.whatif.commands.screen import bench_screen

    config = replace(config, acceptance=_acceptance_of_alpha(wanted.alpha))
    device = resolve_device(wanted.device or "auto")
    say_if_busy(LOAD_IN_ROUNDS, quiet=quiet)
    say("Checking the models", quiet=quiet)
    if configurations is None:
        models = _named_pair(wanted, config, device)
    else:
        models = _random_models(configurations, wanted, config, device)
    _require_context_fits(models, config, device)
    if models.fallback is not None:
        say(f"The forwards run over torch: {models.fallback}", quiet=quiet)
    target = models.load("target", threads, None)
    threads = threads or suitable_threads(target.parameters)
    draft = models.load("draft", threads, target)
    if device.type == "cpu":
        import torch

        torch.set_num_threads(threads)
    say(f"Timing forwards after {', '.join(map(str, config.contexts))} tokens of context", quiet=quiet)
    if config.batches:
        from spsbench.parts.whatif.bench.batches import study_batches as study
    else:
        from spsbench.parts.whatif.bench.study import study
    facts = {
        role: {
            "name": models.names[role],
            "model_type": model.config.model_type,
            "parameters": model.parameters,
            "dtype": model.weights,
            "backend": model.backend,
            "random_weights": random_weights,
        }
        for role, model in (("target", target), ("draft", draft))
    } | {"device": str(device), **study(target, draft, config), "environment": describe_environment()}
    if (gpu := Gpu.of(device)) is not None:
        facts |= {"gpu": gpu.facts | {"now": gpu.state()}}
    present(lambda: facts, lambda: bench_screen(facts), json=wanted.json, quiet=quiet)


def _bench_config(wanted: BenchOptions) -> BenchConfig:
    """Without the acceptance: all that can be refused is refused before torch is imported."""
    from spsbench.parts.whatif.bench import BenchConfig
    from spsbench.store import read_run

    # Random weights give almost even rows, whose nucleus is most of the vocabulary: no model's work.
    sampling = SamplingParams(temperature=0.1 if _are_weights_random(wanted) else 1.0, top_p=0.95)
    ks = values.lookaheads(wanted.k or "1..8")
    budget_s = values.number(wanted.seconds, "--seconds", 0.01, 20.0)
    seed = values.seed(wanted.seed)
    values.float_dtype(wanted.dtype, "--dtype")
    contexts = lengths(wanted.context, 256)
    batches = sizes(wanted.batch)
    if batches and len(contexts) > 1:
        raise UsageError("batches are measured at one context.", flag="--context", remedy="Give one number.")
    if (alpha := wanted.alpha) is not None:
        if len(contexts) > 1:
            raise UsageError(
                "loops with synthetic acceptance run at one context.",
                flag="--context",
                remedy="Give one number, or leave --alpha out.",
            )
        if (run := values.path_in_place_of_number(alpha)) is None:
            values.between(alpha, "--alpha", 0, 1, 0.8)
        else:
            read_run(run, "--alpha")
    values.require_machine(wanted)
    settings = BenchConfig(ks, contexts, budget_s, sampling, None, seed, batches)
    _require_stated_window(wanted, settings)
    return settings


def _require_stated_window(wanted: BenchOptions, settings: BenchConfig) -> None:
    """Refuse models that are not there, and contexts beyond the windows that their config.json state."""
    import json

    from spsbench.models import configuration, stated_config, stated_window

    names = _configurations(wanted)
    if names is None:
        pair = _pair(wanted)
        stated = [stated_config(pair.target, "--target"), stated_config(pair.draft, "--draft")]
    else:
        flags = ("--target", "--draft")
        files = [configuration(name, flag) for name, flag in zip(names, flags, strict=True)]
        try:
            read = [json.loads(file.read_bytes()) for file in files]
        except (OSError, ValueError, RecursionError):
            return  # what reads it says how
        stated = [content for content in read if isinstance(content, dict)]
    windows = [window for content in stated if (window := stated_window(content)) is not None]
    if windows:
        apart = all(content.get("is_encoder_decoder") for content in stated)
        _require_window(min(windows), settings, apart=apart)


def _acceptance_of_alpha(alpha: str | None) -> SyntheticAcceptance | None:
    """A run's loops, or a number."""
    from spsbench.parts.whatif.bench.forced import SyntheticAcceptance, acceptance_of
    from spsbench.store import RunStore

    if alpha is None:
        return None
    if (run := values.path_in_place_of_number(alpha)) is None:
        return SyntheticAcceptance([float(alpha)])
    with RunStore.open(run) as store:
        frames = store.frames()
    acceptance = acceptance_of(frames.arms, frames.loops)
    if acceptance is None:
        raise UsageError(
            f"{run} has no SpS arm whose loops were seen.",
            flag="--alpha",
            remedy="Name a run with an sps arm of the engine eager or graphed.",
        )
    return acceptance


@dataclass(frozen=True)
class _Loadable:
    """Two models that can be loaded; ``load`` takes a role, threads and, for the draft, the target."""

    names: Mapping[str, str]
    configs: Sequence[Any]
    weights_bytes: Sequence[int]
    dtype: str
    backend: str
    fallback: str | None
    load: Callable[[str, int | None, CausalLM | None], CausalLM]


def _named_pair(wanted: BenchOptions, settings: BenchConfig, device: torch.device) -> _Loadable:
    from spsbench.config import chosen_backend
    from spsbench.models import fetch_weights, find_pair, load, pair_backend, require_memory, weight_bytes

    config = _pair(wanted)
    source = find_pair(config)
    dtype = values.float_dtype(wanted.dtype, "--dtype")
    dtype = config.dtype if dtype == "auto" else dtype
    _require_window(source.context_window, settings, apart=source.target.is_encoder_decoder)
    backend, fallback = pair_backend(chosen_backend(wanted.backend), source, (dtype, dtype), device)
    require_memory(source.target, source.draft, (dtype, dtype), device, backend)
    fetch_weights({"--target": source.target, "--draft": source.draft})
    models = {"target": source.target, "draft": source.draft}
    sizes = [weight_bytes(model, dtype, f"--{role}") or 0 for role, model in models.items()]

    def loaded(role: str, threads: int | None, beside: CausalLM | None) -> CausalLM:
        return load(models[role], dtype, device, source.vocab_size, f"--{role}", backend, threads, beside)

    names = {role: model.name for role, model in models.items()}
    configs = [model.config for model in models.values()]
    return _Loadable(names, configs, sizes, dtype, backend, fallback, loaded)


def _pair(wanted: BenchOptions) -> PairConfig:
    from spsbench.config import ModelRef, PairConfig, load_pair, pair_name

    names = _both_or_neither(wanted)
    if names[0] is None or names[1] is None:
        return load_pair(wanted.pair or "mini")
    target, draft = ModelRef(id=names[0]), ModelRef(id=names[1])
    return PairConfig(name=pair_name(target, draft), target=target, draft=draft)


def _both_or_neither(wanted: BenchOptions) -> tuple[str | None, str | None]:
    names = wanted.target, wanted.draft
    if any(names) and None in names:
        missing = "--draft" if wanted.draft is None else "--target"
        raise UsageError("it is missing.", flag=missing, remedy="Give --target and --draft, or --pair.")
    if any(names) and wanted.pair is not None:
        remedy = "Leave --pair out, or the two."
        raise UsageError("--target and --draft are given too.", flag="--pair", remedy=remedy)
    return names


def _are_weights_random(wanted: BenchOptions) -> bool:
    return any(model is not None and model.endswith(".json") for model in (wanted.target, wanted.draft))


def _configurations(wanted: BenchOptions) -> tuple[str, str] | None:
    """In place of target and draft; None where models are measured."""
    target, draft = _both_or_neither(wanted)
    if target is None or draft is None or not _are_weights_random(wanted):
        return None
    for model, flag in ((target, "--target"), (draft, "--draft")):
        if not model.endswith(".json"):
            why = f"{model} is a model, and the other one a configuration."
            raise UsageError(why, flag=flag, remedy="Give two config.json, or two models.")
    return target, draft


def _random_models(
    names: tuple[str, str], wanted: BenchOptions, settings: BenchConfig, device: torch.device
) -> _Loadable:
    from spsbench.config import chosen_backend
    from spsbench.models import (
        choose_backend,
        config_not_covered,
        context_window,
        random_model,
        read_config,
        require_weights_fit,
        text_config,
        weights_bytes,
    )

    dtype = values.float_dtype(wanted.dtype, "--dtype")
    flags = ("--target", "--draft")
    configs = [read_config(name, flag) for name, flag in zip(names, flags, strict=True)]
    two_sided = {bool(config.is_encoder_decoder) for config in configs}
    if len(two_sided) > 1:
        why = "one is an encoder-decoder and the other a decoder alone."
        raise UsageError(why, flag=flags[1], remedy="Give two configurations of one kind.")
    _require_window(min(context_window(config) for config in configs), settings, apart=two_sided == {True})
    require_weights_fit(dict(zip(flags, configs, strict=True)), dtype, device)
    shared = min(text_config(config).vocab_size for config in configs)
    reasons = [(name, config_not_covered(c, dtype, device)) for name, c in zip(names, configs, strict=True)]
    backend, fallback = choose_backend(chosen_backend(wanted.backend), reasons, device)
    roles = ("target", "draft")

    def loaded(role: str, threads: int | None, beside: CausalLM | None) -> CausalLM:
        configuration = configs[roles.index(role)]
        return random_model(configuration, dtype, device, shared, backend, threads, settings.seed)

    sizes = [weights_bytes(config, dtype) for config in configs]
    return _Loadable(dict(zip(roles, names, strict=True)), configs, sizes, dtype, backend, fallback, loaded)


def _require_window(window: int, settings: BenchConfig, *, apart: bool) -> None:
    """Refuse contexts beyond the window; ``apart``: the context is a source, which does not share it."""
    if apart and len(settings.contexts) > 1:
        why = "an encoder-decoder reads its source as a whole, so that its cache does not grow by steps."
        raise UsageError(why, flag="--context", remedy="Give one number.")
    written = settings.tokens - settings.context
    most = window if apart else window - written
    if settings.context > most:
        raise UsageError(
            f"{settings.context} tokens and {written} after them are needed, and the models take {window}"
            f"{' of each' if apart else ''}.",
            flag="--context",
            remedy=f"Give at most {max(most, 1)}.",
        )


def _require_context_fits(models: _Loadable, settings: BenchConfig, device: torch.device) -> None:
    import torch

    from spsbench.config import ONNXRUNTIME
    from spsbench.models import DTYPES
    from spsbench.parts.whatif.bench.study import Held, require_context_room

    reserved = []
    for config, size in zip(models.configs, models.weights_bytes, strict=True):
        width = DTYPES.get(models.dtype) or getattr(config, "dtype", None) or torch.float32
        reserved.append(Held(config, size, 4 if models.backend == ONNXRUNTIME else int(width.itemsize)))
    whole = settings.acceptance is not None
    require_context_room(reserved, settings.context, settings.tokens, device, whole=whole)
