"""What ``spsbench simulate`` is asked: options as typed, checked before anything is simulated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spsbench.axes import MODIFIED_REJECTION
from spsbench.cli import values
from spsbench.errors import UsageError
from spsbench.plugins import unknown

if TYPE_CHECKING:
    from spsbench.records import SamplingParams, Spec
    from spsbench.simulate.sources import Source
    from spsbench.simulate.study import Question

ALPHA, COST, OPERATIONS = 0.8, 1.8 / 14.1, 4.0 / 70.0
"""c and c^ of Chen et al. 2023: 1.8 and 14.1 ms a token, 4 and 70 billion parameters. Alpha is round."""

FAULTS = (
    *("lecture-test", "inverted-ratio", "no-residual", "unscaled-residual", "bonus-from-draft"),
    *("row-off-by-one", "residual-row", "one-uniform", "constant-uniform", "lenience"),
)
"""Wrong samplers of ``verify --controls`` that are wrong on tables, too, which have no caches."""


def question_of(params: Mapping[str, Any]) -> Question:
    """What was typed, checked."""
    from spsbench.simulate.sources import Language

    source = _source(params["source"])
    alpha, distance = _closeness(params, source)
    language = Language(
        vocabulary=int(values.number(params["vocabulary"], "--vocabulary", 2, 32, whole=True)),
        sharpness=values.between(params["sharpness"], "--sharpness", 0, 50, 2.0),
        variation=values.between(params["variation"], "--variation", 0, 0.99, 0.9),
        stay=values.between(params["stay"], "--stay", 0, 1, 0.95),
        seed=int(values.number(params["seed"], "--seed", 0, 0, whole=True)),
    )
    classes, ks = _classes(params["contexts"], source, language.vocabulary), _ks(params["k"])
    operations = values.number(params["operations"], "--operations", 0, OPERATIONS)
    tokens = int(values.number(params["tokens"], "--tokens", 1, 6400, whole=True))
    cost, sampling = cost_of(params), _sampling(params)
    rule, fault = _rule_and_fault(params)
    # torch comes with these: all that was typed has been checked by now.
    from spsbench.simulate.loops import Sampler
    from spsbench.simulate.study import Question

    sampler = Sampler(sampling, rule, fault, language.seed)
    return Question(source, language, classes, alpha, distance, ks, cost, operations, tokens, sampler)


def cost_of(params: Mapping[str, Any]) -> float:
    """c as typed, or the paper's."""
    return values.number(params["cost"], "--cost", 0, COST)


def _ks(text: str | None) -> tuple[int, ...]:
    from spsbench.config import parse_ks

    ks = parse_ks(text or "1..8")
    if 0 in ks:
        raise UsageError(
            "a simulated loop drafts at least one token, got 0.",
            flag="--k",
            remedy="Give a K from 1 on, e.g. 1..8; 0 is ArS, one token a loop.",
        )
    return tuple(sorted(ks))


def _source(name: str | None) -> Source:
    from spsbench.simulate.sources import SOURCES

    found = SOURCES.get(name or "dirichlet")
    if found is None:
        raise unknown(str(name), SOURCES, "--source")
    return found


def _closeness(params: Mapping[str, Any], source: Source) -> tuple[float | None, float | None]:
    """(alpha, None) or (None, distance), whichever was asked for."""
    from spsbench.simulate.sources import SOURCES

    names = {each.option: each.option.removeprefix("--").replace("-", "_") for each in SOURCES.values()}
    given = {flag: params[name] for flag, name in names.items() if params[name] is not None}
    for flag in given:
        if flag != source.option:
            raise UsageError(
                f"--source {source.name} has no such closeness.", flag=flag, remedy=f"Give {source.option}."
            )
    if not given:
        return _alpha(params["alpha"]), None
    if params["alpha"] is not None:
        raise UsageError(
            "both say how close the draft is.", flag="--alpha", remedy=f"Leave it or {source.option} out."
        )
    return None, source.distance(_chosen(given[source.option], source))


def _alpha(text: str | None) -> float:
    alpha = values.between(text, "--alpha", 0, 1, ALPHA)
    if alpha in (0.0, 1.0):
        raise UsageError(
            f"no draft is solved for at {text}, where {'everything' if alpha else 'nothing'} is accepted.",
            flag="--alpha",
            remedy="Give a number above 0 and below 1, or --formula.",
        )
    return alpha


_LIMITS = {
    "--concentration": (1e-6, 1e7, 20.0),
    "--draft-temperature": (1e-3, 1e3, 0.5),
    "--dependence": (0.0, 1.0, 0.3),
}
"""The least, the most, and an example."""


def _chosen(text: str, source: Source) -> float:
    return values.between(text, source.option, *_LIMITS[source.option])


def _classes(text: str | None, source: Source, vocabulary: int) -> tuple[int, ...]:
    if text is None:
        return (min(8, vocabulary),) if source.order == 2 else tuple(dict.fromkeys((1, min(32, vocabulary))))
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise UsageError(
            f"it must be whole numbers from 1, got {text}.",
            flag="--contexts",
            remedy="Give one or several: 1,32.",
        )
    return tuple(dict.fromkeys(map(int, parts)))


def _rule_and_fault(params: Mapping[str, Any]) -> tuple[Spec, str | None]:
    rule, fault = _rule(params["rule"]), params["fault"]
    if fault is not None:
        if fault not in FAULTS:
            raise unknown(fault, FAULTS, "--fault")
        if rule.name != MODIFIED_REJECTION:
            raise UsageError(
                f"{fault} is a fault of {MODIFIED_REJECTION}, and the rule is {rule}.",
                flag="--fault",
                remedy="Leave --rule out.",
            )
    return rule, fault


def _rule(text: str | None) -> Spec:
    from spsbench.decode.rule_kinds import rule_kind
    from spsbench.records import Spec

    if text in FAULTS and text != "lenience":
        raise UsageError(
            f"{text} is a planted fault, not a rule.", flag="--rule", remedy=f"Give --fault {text}."
        )
    rule = Spec(MODIFIED_REJECTION) if text is None else Spec.parse(text)
    rule_kind(rule.name).settled(rule)
    return rule


def _sampling(params: Mapping[str, Any]) -> SamplingParams:
    sampling = values.sampling({**params, "greedy": False})
    if sampling.greedy:
        raise UsageError(
            "a greedy target leaves nothing to chance, got 0.",
            flag="--temperature",
            remedy="Give a temperature above 0.",
        )
    return sampling
