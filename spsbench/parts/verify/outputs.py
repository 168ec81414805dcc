"""Tests of what the sampler writes: many loops, greedy outputs, whole ones by an uncached forward."""

from __future__ import annotations

import copy
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile

import torch
from torch import Tensor

from spsbench.base import Request, SamplingParams, Spec
from spsbench.decode import (
    Drafter,
    FakeClock,
    LanguageModel,
    Stopwatch,
    SystemClock,
    TextDecoder,
    UniformStream,
    read_prompt,
    start,
)
from spsbench.engines import (
    EagerEngine,
    derivation_of,
    rows_held_against,
    score_stats,
    teacher_force,
    with_explained,
)
from spsbench.law import DECIDED, MIXTURES, POWERS, TOO_FAR, Sums, added
from spsbench.models import LAST, CausalLM, States, TorchLM, columns_of, tree_of
from spsbench.parts.verify.controls import planted
from spsbench.parts.verify.effort import Finding, measured, skipped
from spsbench.parts.verify.messages import (
    DecisionsExcluded,
    DecisionsNotDerived,
    DerivedDecisions,
    FalseAlarms,
    GreedyOutputs,
    NextTokens,
    Numbers,
    OutputLeakage,
)
from spsbench.parts.verify.subject import SamplerUnderTest
from spsbench.stats import FALSE_ALARM, g_statistic, rows_apart, survival, wrong_rows

Path = tuple[int, ...]


@dataclass(eq=False, slots=True)
class _Node:
    """A context: a node in the trie of all contexts scored so far, by the tokens that extend it."""

    children: defaultdict[int, _Node] = field(default_factory=lambda: defaultdict(_Node))
    row: Tensor | None = None
    state: Tensor | None = None


class MemoizedModel:
    """Memoizes logits by context, so that many draws over few contexts are cheap.

    A context keeps its first row, whatever block it was scored in: samples from memoized rows follow
    exactly the distribution of these rows. Of a model that keeps its hidden states these are remembered, too.
    """

    def __init__(self, model: LanguageModel, device: torch.device) -> None:
        self.vocab_size = model.vocab_size
        # Bound now: a fault injected into the model later must not change the reference.
        self._score = model.score
        self._rollback = model.rollback
        self._begin = model.begin
        self.room_behind = model.room_behind
        self._border = model.border if isinstance(model, CausalLM) else None
        self._kept: States = model.kept_states if isinstance(model, CausalLM) else ()
        self._features = model.features if isinstance(model, CausalLM) else None
        self._device = device
        self._prompt: list[int] = []
        self._fed: list[int] = []
        self._path = [_Node()]
        self._read: list[int] = []

    @property
    def length(self) -> int:
        return len(self._fed)

    def begin(self, prompt: Sequence[int]) -> Tensor:
        """See ``LanguageModel.begin``; an encoder-decoder reads it once a row is missing."""
        if self._border is None:
            return read_prompt(self, prompt, self._device)
        self.rollback(0)
        self._prompt = list(prompt)
        self._feed(self._prompt[:-1])
        return torch.tensor(self._prompt[-1:], device=self._device)

    def _feed(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._fed.append(token)
            self._path.append(self._path[-1].children[token])

    def score(self, tokens: Tensor, last: int) -> Tensor:
        self._feed(tokens.tolist())
        nodes = self._path[-last:]
        missing = next((i for i, node in enumerate(nodes) if node.row is None), last)
        if missing < last:
            self._compute(nodes, missing)
        rows = [node.row for node in nodes if node.row is not None]
        return rows[0] if last == 1 else torch.cat(rows)

    def rollback(self, length: int) -> None:
        del self._fed[length:]
        del self._path[length + 1 :]

    def features(self, start: int, end: int, states: States = LAST) -> Tensor:
        kept = [node.state for node in self._path[start + 1 : end + 1]]
        return columns_of(self._kept, states, torch.cat([state for state in kept if state is not None]))

    def row(self, context: Sequence[int]) -> Tensor:
        """Return logits [1, V] after a context, which becomes the current one."""
        return self.score(self.begin(context), last=1)

    def _compute(self, nodes: list[_Node], missing: int) -> None:
        """Compute the rows from the first missing one on, in one forward of the wrapped model."""
        wanted = len(nodes) - missing
        known = len(self._fed) - wanted
        same = (ours == theirs for ours, theirs in zip(self._read, self._fed[:known], strict=False))
        shared = sum(takewhile(bool, same))
        if shared < len(self._prompt) - 1:
            self._begin(self._prompt)
            shared = len(self._prompt) - 1
        else:
            self._rollback(shared)
        self._read = list(self._fed)
        rows = self._score(torch.tensor(self._fed[shared:], device=self._device), last=wanted)
        for node, row in zip(nodes[missing:], torch.split(rows.clone(), 1), strict=True):
            if node.row is None:
                node.row = row
        if self._features is not None and self._kept:
            states = self._features(shared, len(self._fed), self._kept).clone()
            for node, state in zip(self._path[shared + 1 :], torch.split(states, 1), strict=True):
                node.state = node.state if node.state is not None else state


# The context is read again after so many draws: a cache that does not forget would grow without end.
_ANEW = 100


@torch.inference_mode()
def remembered_draws(subject: SamplerUnderTest, contexts: Sequence[Sequence[int]], draws: int) -> Finding:
    """Draw many loops over few contexts, on rows that are computed once and remembered."""
    target = MemoizedModel(subject.target, subject.device)
    draft = MemoizedModel(subject.draft, subject.device)
    drafter = subject.build_drafter(subject.sampling, draft, hidden=target)
    return _judged_next_tokens("sampling", subject, contexts, draws, target, drafter, target)


@torch.inference_mode()
def end_to_end_draws(subject: SamplerUnderTest, contexts: Sequence[Sequence[int]], draws: int) -> Finding:
    """Draw fewer loops, with every forward computed again through the models and their caches."""
    witness = MemoizedModel(subject.target, subject.device)
    drafter = subject.build_drafter(subject.sampling)
    return _judged_next_tokens("end to end", subject, contexts, draws, subject.target, drafter, witness)


def _judged_next_tokens(
    name: str,
    subject: SamplerUnderTest,
    contexts: Sequence[Sequence[int]],
    draws: int,
    target: LanguageModel,
    drafter: Drafter,
    witness: MemoizedModel,
) -> Finding:
    """Count the next tokens by the tokens before them in the loop, and hold them against the target's rows.

    A loop that goes on after a prefix has accepted it, and whether it did so does not depend on
    what comes next: after each prefix the next token follows the target's row there.
    """
    g, freedom, cells, impossible = 0.0, 0, 0, 0
    for index, context in enumerate(contexts):
        seen: dict[Path, Counter[int]] = {}
        for path in _loops_after(subject, target, drafter, context, draws, index):
            for i, token in enumerate(path):
                seen.setdefault(path[:i], Counter())[token] += 1
        for prefix, counts in seen.items():
            row = subject.law(witness.row([*context, *prefix]), [*context, *prefix], len(context))[0].tolist()
            statistic, df, outside = g_statistic(counts, row)
            g, freedom = g + statistic, freedom + df
            cells, impossible = cells + (df > 0), impossible + outside
    p_value = survival(g, freedom)
    # A token that the law rules out needs no statistics, but rounding may put one at a nucleus' edge.
    passed = p_value >= FALSE_ALARM and impossible <= draws * len(contexts) // 1000
    counted = NextTokens(
        draws=draws,
        contexts=len(contexts),
        g=g,
        degrees_of_freedom=freedom,
        prefixes=cells,
        p_value=p_value,
        impossible=impossible,
    )
    return measured(name, passed, counted)


def _loops_after(
    subject: SamplerUnderTest,
    target: LanguageModel,
    drafter: Drafter,
    context: Sequence[int],
    draws: int,
    index: int,
) -> Iterator[Path]:
    """The tokens of one loop, repeatedly."""
    for first in range(0, draws, _ANEW):
        seed = (subject.seed * 1_000_003 + index) * 10_000_019 + first
        with subject.loops(target, drafter, context, seed) as begin:
            for _ in range(min(_ANEW, draws - first)):
                yield tuple(next(begin()).tokens)


# --- whole outputs ---


_GREEDY_TOKENS, TOKENS = 48, 64
_GREEDY = SamplingParams(greedy=True)
_COPY_LIMIT_PARAMETERS = 2_000_000_000
ALARM = 1000.0
_ONE_SIDED_95 = 1.645


@torch.inference_mode()
def greedy_identity(
    subject: SamplerUnderTest, prompts: Sequence[Sequence[int]], row_difference: float
) -> Finding:
    """Compare the greedy outputs token by token and judge where they first part.

    At a difference the two best logits are compared again in float32, without a cache. A gap of at
    most twice what the row count changes is a numeric tie; a larger one is a bug.

    Args:
        row_difference: largest difference of logits between one and K+1 rows.
    """
    greedy = replace(subject, sampling=_GREEDY)
    witness: CausalLM | None = None
    partings: list[int] = []
    gaps: list[float] = []
    for prompt in prompts:
        plain, speculative = _greedy_outputs(greedy, prompt)
        parting = next((i for i, (a, b) in enumerate(zip(plain, speculative, strict=False)) if a != b), None)
        if parting is not None:
            witness = witness or _in_float32(subject.target)
            context = torch.tensor([*prompt, *plain[:parting]], device=witness.device)
            row = witness.score_uncached(context, last=1)[0].float()
            partings.append(parting)
            gaps.append(abs(float(row[plain[parting]] - row[speculative[parting]])))
    bugs = sum(not gap <= 2 * row_difference for gap in gaps)
    outputs = GreedyOutputs(
        outputs=len(prompts),
        tokens=_GREEDY_TOKENS,
        identical=len(prompts) - len(gaps),
        numeric_ties=len(gaps) - bugs,
        bugs=bugs,
        first_parting=min(partings, default=None),
        widest_gap=max(gaps, default=0.0),
        tie_limit=2 * row_difference,
    )
    return measured("greedy", bugs == 0, outputs)


def _greedy_outputs(subject: SamplerUnderTest, prompt: Sequence[int]) -> tuple[list[int], list[int]]:
    """Of ArS, without any control, and of SpS with the subject's control."""
    loops = start(subject.target, None, prompt, 0, _GREEDY, UniformStream(0, subject.device))
    plain = [loop.tokens[0] for loop in islice(loops(Stopwatch(FakeClock())), _GREEDY_TOKENS)]
    return plain, _speculative_tokens(subject, prompt, 0)[:_GREEDY_TOKENS]


@torch.inference_mode()
def _speculative_tokens(subject: SamplerUnderTest, prompt: Sequence[int], seed: int) -> list[int]:
    drafter = subject.build_drafter(subject.sampling)
    tokens = list[int]()
    with subject.loops(subject.target, drafter, prompt, seed) as begin:
        speculative = begin()
        while len(tokens) < TOKENS:
            tokens += next(speculative).tokens
    return tokens[:TOKENS]


def _in_float32(model: CausalLM) -> CausalLM:
    """A copy of a model of lower precision, if it is small enough to copy."""
    exact = model.dtype in (torch.float32, torch.float64)
    if exact or model.parameters > _COPY_LIMIT_PARAMETERS:
        return model
    return TorchLM(copy.deepcopy(model.reference().model).float(), model.vocab_size)


def output_sums(
    subject: SamplerUnderTest, prompts: Sequence[Sequence[int]], decoder: TextDecoder
) -> tuple[Sums, Sums]:
    """Return, of whole outputs of the engine, the sums of their re-score and those of their decisions and
    rows.

    Each is read once, and its rows are let go before the next one. Decisions are none under a rule for which
    they are not derived.
    """
    shape = subject.shape
    engine = EagerEngine(
        subject.target,
        subject.draft,
        subject.k,
        decoder,
        subject.device,
        SystemClock(),
        subject.build_rule(),
        subject.build_drafter,
        derivation=derivation_of(subject.k, subject.drafter, subject.rule, subject.policy),
        tree=None if shape is None else tree_of(subject.target),
        nodes=0 if shape is None else shape.nodes,
    )
    evidence, decisions = Sums(), Sums()
    for seed, prompt in enumerate(prompts, start=subject.seed):
        request = Request(tuple(prompt), TOKENS, (), subject.sampling, seed=seed, fixed_length=True)
        with planted(subject.control, subject.target):
            generation = engine.generate(request)
        reading = teacher_force(subject.target, subject.draft, prompt, generation.tokens, subject.sampling)
        scores = score_stats(reading, seed)
        if (kept := generation.kept_rows) is None:
            evidence = added(evidence, scores)
            continue
        derived = {n: value for n, value in (generation.losslessness or {}).items() if n.startswith(DECIDED)}
        apart = rows_held_against(
            "target", subject.target, kept.target, generation, reading, prompt, subject.k, seed
        )
        evidence = added(evidence, with_explained(scores, apart))
        decisions = added(decisions, derived | apart)
    return evidence, decisions


def decided_outputs(decisions: Sums, outputs: int, rule: Spec) -> Finding:
    """Derive every decision of the outputs again, and hold the rows that they had against the target's."""
    rows = rows_apart(decisions, "target")
    if rows is None:
        return skipped("decisions", DecisionsNotDerived(rule))
    decided, contradicted = (int(decisions[name]) for name in (DECIDED, f"{DECIDED}_contradicted"))
    wrong = wrong_rows("target", rows)
    return Finding(
        "decisions",
        not contradicted and not wrong,
        DerivedDecisions(decided, contradicted, wrong),
        DecisionsExcluded(TOO_FAR),
        {
            "outputs": outputs,
            "decisions": decided,
            "contradicted": contradicted,
            "rows": rows["rows"],
            "apart": rows["apart"],
            "beyond": rows["beyond"],
            "rounding_apart": rows["rounding"],
        },
    )


def rescored_outputs(total: Sums, outputs: int) -> Finding:
    """Measure leakage of the draft into outputs of the engine, and e-values against other distributions."""
    names = [f"log_e_mixture_{x}" for x in MIXTURES] + [f"log_e_power_{x}" for x in POWERS]
    e_value = sum(math.exp(min(total.get(name, 0.0), 700.0)) for name in names) / len(names)
    information = total.get("leak_information", 0.0)
    impossible = total["impossible"]
    numbers: Numbers = {"outputs": outputs, "e_value": e_value, **total}
    passed = e_value < ALARM and impossible == 0
    leakage, bound = None, 1.0
    if information > 0:
        leakage = total["leak_score"] / information
        error = math.sqrt(total["leak_var"]) / information
        bound = max(leakage, 0.0) + _ONE_SIDED_95 * error
        numbers |= {"leakage": leakage, "leakage_error": error, "leakage_bound": bound}
    message = OutputLeakage(leakage, bound, e_value, impossible, passed)
    return Finding("outputs", passed, message, FalseAlarms(ALARM), numbers)
