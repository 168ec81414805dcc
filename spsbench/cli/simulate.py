"""``spsbench simulate``: no model at all, theory against simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spsbench.cli import formula as by_formula
from spsbench.cli import options, values
from spsbench.cli.console import out as console
from spsbench.cli.console import print_json, say
from spsbench.cli.options import _option
from spsbench.errors import UsageError
from spsbench.plugins import unknown

if TYPE_CHECKING:
    from spsbench.records import SamplingParams, Spec
    from spsbench.simulate.loops import Sampler
    from spsbench.simulate.sources import Source
    from spsbench.simulate.study import Question, World

FACTS_FILE = "simulation.json"
"""A folder that has it holds a simulation, and may be written again."""

CLOSENESS = "How close the draft is, in place of --alpha"
TARGET = "What the target is like"

ALPHA, COST, OPERATIONS = 0.8, 1.8 / 14.1, 4.0 / 70.0
"""c and c^ of Chen et al. 2023: 1.8 and 14.1 ms a token, 4 and 70 billion parameters. Alpha is round."""

FAULTS = (
    *("lecture-test", "inverted-ratio", "no-residual", "unscaled-residual", "bonus-from-draft"),
    *("row-off-by-one", "residual-row", "one-uniform", "constant-uniform", "lenience"),
)
"""Wrong samplers of ``verify --controls`` that are wrong on tables, too, which have no caches."""

Alpha = Annotated[
    str | None,
    _option("--alpha", "A", options.FIRST, "Solve for the closeness that gives this alpha. Default: 0.8."),
]
Cost = Annotated[
    str | None,
    _option(
        *("--cost", "C", options.FIRST),
        "c, time of one draft run over one target run. Default: 1.8/14.1, the paper's.",
    ),
]
Operations = Annotated[
    str | None,
    _option(
        *("--operations", "C", TARGET),
        "c^, operations of one draft run over one target run. Default: 4/70, the paper's parameters.",
    ),
]
Ks = Annotated[
    str | None,
    _option("--k", "LIST", options.FIRST, "Lookahead: 4, 2,4 or 1..8. Default: 1..8; with --formula 0..7."),
]
SourceOption = Annotated[
    str | None,
    _option("--source", "NAME", options.FIRST, "dirichlet, temperature or ngram. Default: dirichlet."),
]
Concentration = Annotated[
    str | None,
    _option("--concentration", "X", CLOSENESS, "dirichlet: larger draws draft rows closer to the target's."),
]
DraftTemperature = Annotated[
    str | None,
    _option("--draft-temperature", "T", CLOSENESS, "temperature: 1 is the target itself."),
]
Dependence = Annotated[
    str | None,
    _option(
        "--dependence", "X", CLOSENESS, "ngram: share of the target's row that depends on two tokens, 0 to 1."
    ),
]
Vocabulary = Annotated[str | None, _option("--vocabulary", "V", TARGET, "Tokens. Default: 32.")]
ContextsOption = Annotated[
    str | None,
    _option(
        *("--contexts", "LIST", TARGET),
        "Classes of tokens that a row depends on; 1 is the same row everywhere. Default: 1,32; ngram: 8.",
    ),
]
Sharpness = Annotated[
    str | None, _option("--sharpness", "X", TARGET, "Standard deviation of the logits. Default: 2.")
]
Variation = Annotated[
    str | None,
    _option("--variation", "X", TARGET, "How unequal easy and hard contexts are, 0 to 0.99. Default: 0.9."),
]
Stay = Annotated[
    str | None,
    _option("--stay", "X", TARGET, "Chance that easy stays easy and hard stays hard. Default: 0.95."),
]
Tokens = Annotated[
    str | None, _option("--tokens", "N", options.FIRST, "For each K, in sequences of 128. Default: 6400.")
]
RuleOption = Annotated[
    str | None,
    _option("--rule", "NAME", options.FIRST, "What decides which draft tokens stand. Lossy ones show."),
]
Fault = Annotated[
    str | None,
    _option("--fault", "NAME", options.FIRST, f"Plant a wrong sampler: {', '.join(FAULTS)}."),
]
Folder = Annotated[
    Path | None, _option("--out", "DIR", options.FIRST, "Write figures, page and JSON there. Default: none.")
]
Formula = Annotated[
    bool, _option("--formula", "", options.FIRST, "Only what the formula predicts; nothing is simulated.")
]


def simulate(
    context: typer.Context,
    alpha: Alpha = None,
    cost: Cost = None,
    k: Ks = None,
    source: SourceOption = None,
    rule: RuleOption = None,
    fault: Fault = None,
    tokens: Tokens = None,
    seed: options.Seed = None,
    formula: Formula = False,
    out: Folder = None,
    concentration: Concentration = None,
    draft_temperature: DraftTemperature = None,
    dependence: Dependence = None,
    vocabulary: Vocabulary = None,
    contexts: ContextsOption = None,
    sharpness: Sharpness = None,
    variation: Variation = None,
    stay: Stay = None,
    operations: Operations = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Theory against simulation, without any model: target and draft are random tables.

    Example: spsbench simulate --alpha 0.8 --cost 0.13 --k 1..8
    """
    if formula:
        _formula(context.params)
    else:
        simulate_loops(context.params)


_OF_FORMULA = ("alpha", "cost", "k", "formula", "json", "quiet", "debug")


def _formula(params: Mapping[str, Any]) -> None:
    for name, value in params.items():
        if name not in _OF_FORMULA and value is not None:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{value} is for a simulation.", flag=flag, remedy="Leave it or --formula out.")
    alpha = values.between(params["alpha"], "--alpha", 0, 1, ALPHA)
    by_formula.show(alpha, _cost(params), params["k"], json=params["json"])


def simulate_loops(params: Mapping[str, Any]) -> None:
    """Simulate what was asked for, print it and write it.

    Raises:
        UsageError: before anything is simulated.
    """
    from spsbench.simulate.study import prepare, study, total_loops

    quiet: bool = params["quiet"]
    question = question_of(params)
    pairs = prepare(question)
    folder = _folder(params["out"])
    worlds = study(question, pairs, lambda text: say(text, quiet=quiet))
    say(f"{total_loops(worlds):,} loops simulated", quiet=quiet)
    if folder is not None:
        _write(question, worlds, folder)
        say(f"Figures, page and JSON are in {folder}", quiet=quiet)
    _show(question, worlds, as_json=params["json"])


def question_of(params: Mapping[str, Any]) -> Question:
    """What was typed, checked.

    Raises:
        UsageError: it is no question.
    """
    from spsbench.simulate.sources import Language
    from spsbench.simulate.study import Question

    source = _source(params["source"])
    alpha, distance = _closeness(params, source)
    language = Language(
        vocabulary=int(values.number(params["vocabulary"], "--vocabulary", 2, 32, whole=True)),
        sharpness=values.between(params["sharpness"], "--sharpness", 0, 50, 2.0),
        variation=values.between(params["variation"], "--variation", 0, 0.99, 0.9),
        stay=values.between(params["stay"], "--stay", 0, 1, 0.95),
        seed=int(values.number(params["seed"], "--seed", 0, 0, whole=True)),
    )
    return Question(
        source=source,
        language=language,
        classes=_classes(params["contexts"], source, language.vocabulary),
        alpha=alpha,
        distance=distance,
        ks=_ks(params["k"]),
        cost=_cost(params),
        operations=values.number(params["operations"], "--operations", 0, OPERATIONS),
        tokens=int(values.number(params["tokens"], "--tokens", 1, 6400, whole=True)),
        sampler=_sampler(params, language.seed),
    )


def _cost(params: Mapping[str, Any]) -> float:
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
    """(alpha, None) or (None, distance), whichever was asked for.

    Raises:
        UsageError: both, or what belongs to another source, or no such value.
    """
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


def _sampler(params: Mapping[str, Any], seed: int) -> Sampler:
    from spsbench.simulate.loops import PAPERS_RULE, Sampler

    rule, fault = _rule(params["rule"]), params["fault"]
    if fault is not None:
        if fault not in FAULTS:
            raise unknown(fault, FAULTS, "--fault")
        if rule != PAPERS_RULE:
            raise UsageError(
                f"{fault} is planted in {PAPERS_RULE}, and the rule is {rule}.",
                flag="--fault",
                remedy="Leave --rule out.",
            )
    return Sampler(_sampling(params), rule, fault, seed)


def _rule(text: str | None) -> Spec:
    from spsbench.decode.rules import build_rule, rule_kind
    from spsbench.records import Spec
    from spsbench.simulate.loops import PAPERS_RULE

    if text in FAULTS and text != "lenience":
        raise UsageError(
            f"{text} is a planted fault, not a rule.", flag="--rule", remedy=f"Give --fault {text}."
        )
    rule = PAPERS_RULE if text is None else Spec.parse(text)
    rule_kind(rule.name)
    build_rule(rule)
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


def _folder(out: Path | None) -> Path | None:
    """The folder, made before anything is simulated.

    Raises:
        UsageError: it cannot be made, or holds something else than a simulation.
    """
    from spsbench.store.files import unwritable

    if out is None:
        return None
    try:
        out.mkdir(parents=True, exist_ok=True)
        strangers = any(out.iterdir()) and not (out / FACTS_FILE).is_file()
    except OSError as problem:
        raise unwritable(out, problem, "--out") from problem
    if strangers:
        raise UsageError(
            f"{out} is not empty and holds no simulation.",
            flag="--out",
            remedy="Name a directory that is empty or does not exist.",
        )
    return out


def _write(question: Question, worlds: Sequence[World], folder: Path) -> None:
    from spsbench.report.figures.style import save
    from spsbench.simulate.figures import plates
    from spsbench.simulate.summary import facts, page
    from spsbench.store.files import write_json, write_text

    drawn = plates(question, worlds)
    for plate in drawn:
        save(plate, folder)
    write_json(folder / FACTS_FILE, facts(question, worlds))
    write_text(folder / "simulation.md", page(question, worlds, drawn))


def _show(question: Question, worlds: Sequence[World], *, as_json: bool) -> None:
    from rich.console import Group, RenderableType
    from rich.text import Text

    from spsbench.simulate.summary import NOTE, factors, facts, heading, lengths, sentences, title

    if as_json:
        print_json(facts(question, worlds))
        return
    parts: list[RenderableType] = [Text(title(question), style="bold")]
    for world in worlds:
        parts += ["", Text(heading(question, world), style="bold"), ""]
        parts += [lengths(world).as_rich(), "", factors(world).as_rich(), ""]
        parts += [Text(sentence) for sentence in sentences(question, world)]
    console().print(Group(*parts, "", NOTE))
