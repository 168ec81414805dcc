"""What ``summary.json`` holds: every key and type, so that mypy finds one that is mistyped.

Each type says what ``stats.summary.summarise`` writes, in this order. ``None`` is JSON's null: a number that
does not exist. Seconds are ``_s``, milliseconds ``_ms``; intervals run from ``low`` to ``high`` (95%).
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from spsbench.base.axes import ArmIdentity, Axes, SeriesAxes

Verdict = Literal["ok", "alarm", "no evidence", "lossy by design", "refuted"]
Regime = Literal["bandwidth-bound", "dispatch-bound", "unknown"]
Numbers = dict[str, float | None]
LoopTime = Numbers
"""Mean milliseconds of a loop and of its phases."""

MeanSd = dict[str, float]
Spread = dict[str, float]
"""Mean and standard deviation, and of a ``Spread`` the quantiles, in seconds."""


class MetricInterval(TypedDict):
    """The ends of a 95% interval over prompts; null where there is none."""

    low: float | None
    high: float | None


class RatioInterval(MetricInterval):
    ratio: float


class Estimate(MetricInterval):
    estimate: float


class AcceptanceNames(TypedDict):
    """Acceptance under each of its names, see ``spsbench.stats.messages.LEGEND``; lists over j = 1..K."""

    r_prime: float
    mean_acceptance_length: float
    draft_acceptance_rate: float | None
    acceptance_per_position: list[float]
    conditional_acceptance: list[float | None]
    alpha_tested: float | None
    alpha_beta: float | None
    alpha_leviathan: float | None
    alpha_iid: float | None
    tokens_per_target_call: float


class Acceptance(AcceptanceNames):
    """Pooled over all loops; ``macro``: as means over prompts."""

    macro: AcceptanceNames


class CategoryRow(ArmIdentity):
    """One arm on the prompts of one category; null of what needs a ``baseline``, without one."""

    sequences: int
    prompts: int
    failed: int
    tokens: int
    ms_per_token: float | None
    baseline: str | None
    speedup: RatioInterval | None
    tokens_per_loop: float | None
    metrics: Numbers
    lossless: bool


class ArmRow(CategoryRow):
    """One arm of a run.

    ``baseline`` is the fastest ArS arm of its sampling, ``own_baseline`` the ArS of its own engine.
    ``paired_waves``, of runs with batches, is how many waves of prompts the speedup rests on, and
    ``paired_conversations``, of runs with later turns, how many conversations. What an arm's
    loops say is null where its engine saw none; ``loop_time`` are mean milliseconds of a loop and its phases.
    ``share_of_optimum``: accepted tokens over those that the best lossless rule expects of the same drafts,
    null of drawn trees. ``refuted``: where enumeration found that a claim to be lossless is wrong.
    ``nodes_per_loop``, of trees: how many tokens a loop drafted. ``prediction`` is
    after Leviathan et al. 2022 and Chen et al. 2023.
    """

    processes: int
    missing: int
    end_to_end_ms_per_token: float | None
    metric_intervals: NotRequired[dict[str, MetricInterval]]
    end_to_end_speedup: RatioInterval | None
    speedup_halves: list[float | None] | None
    share_slower: float | None
    paired_prompts: int | None
    paired_waves: NotRequired[int]
    paired_conversations: NotRequired[int]
    drifted: bool
    own_baseline: str | None
    own_speedup: RatioInterval | None
    acceptance: Acceptance | None
    acceptance_z: float | None
    share_of_optimum: RatioInterval | None
    refuted: NotRequired[str]
    drafted_per_loop: float | None
    nodes_per_loop: NotRequired[float | None]
    loop_time: Numbers | None
    verification_rule: str | None
    peak_memory_bytes: int | None
    target_mode: str | None
    draft_mode: str | None
    draft_forwards: int
    prediction: Numbers | None


class CategoryPart(TypedDict):
    """All arms on the prompts of one category; null for prompts without one."""

    category: str | None
    prompts: int
    rows: list[CategoryRow]


class TurnPart(TypedDict):
    """All arms on one turn of conversations, counted from 1; later prompts hold each arm's own answers."""

    turn: int
    prompts: int
    rows: list[CategoryRow]


class Solved(TypedDict):
    """McNemar's test on problems that any sample solved; the counts are of problems."""

    both: int
    only_ars: int
    only_sps: int
    neither: int
    p_value: float | None
    reason: str | None


class PairedScores(MetricInterval):
    """The scores of two arms on the same prompts; ``difference`` is SpS - ArS.

    The tests are null where there is nothing to test, and ``reason`` says why.
    """

    prompts: int
    baseline_mean: float | None
    arm_mean: float | None
    difference: float | None
    margin: float
    margin_rule: str
    normalised_difference: float | None
    tost_p_value: float | None
    minimum_detectable_difference: float | None
    prompts_needed: int | None
    standard_deviation: float | None
    verdict: Literal["equivalent", "different", "inconclusive"] | None
    reason: str | None


class ParityComparison(PairedScores):
    """One SpS arm against ArS of its sampling; ``solved`` for code alone."""

    arm: str
    baseline: str
    sampling: str
    solved: Solved | None


class Advantage(MetricInterval):
    """How much better the target scores than the draft alone; ``reason`` says why there is no interval."""

    prompts: int
    target_mean: float | None
    draft_mean: float | None
    ratio: float | None
    reason: str | None


class TargetOverDraft(Advantage):
    """The same with the sampling it was measured under."""

    sampling: str


class Parity(TypedDict):
    """Whether SpS and ArS score alike on ``metric``."""

    metric: str
    comparisons: list[ParityComparison]
    target_over_draft: list[TargetOverDraft]


class Leakage(TypedDict):
    """Share of the draft in the mixture with the target that fits the output best."""

    estimate: float
    low: float
    high: float
    bound: float
    standard_error: float


class LogScore(TypedDict):
    """The log-score test; ``variance`` says which variance it rests on."""

    z: float
    p_value: float
    variance: str


class TransformTest(TypedDict):
    """The chi-square test of the integral transform, with the count of each cell."""

    chi_square: float
    p_value: float
    cells: list[float]


class Judgement(TypedDict):
    verdict: Verdict
    reasons: list[str]


class Evidence(Judgement):
    """One kind of evidence of an arm, see ``spsbench.stats.losslessness.evidence_of``."""

    sequences: int
    share: float
    prompts: int
    tokens: int
    positions: int
    drafted_positions: int
    impossible: int
    edge: int
    greedy: bool
    leakage: Leakage | None
    log_score: LogScore | None
    transform: TransformTest | None
    log10_e_value: float
    log10_e_values: dict[str, float]


class RowsApart(TypedDict):
    """How far the rows that an arm's loops had lie from an independent forward, see ``spsbench.law.apart``.

    ``apart``: mean distance. ``beyond``: rows farther away than rounding explains; null in 16 bits, where
    ``rounding`` is what the independent forward itself differs by when it reads ``measured`` positions in
    blocks; null where it did not. ``again``: rows of texts that were read a second time, in the loops' own
    blocks; ``unexplained`` is what that leaves of ``apart``. ``experts`` and ``index``: shares of rows for
    which two readings chose otherwise; null where nothing is chosen or compared.
    """

    rows: int
    apart: float
    beyond: int | None
    measured: int
    rounding: float | None
    again: int
    unexplained: float
    experts: float | None
    index: float | None


class Decisions(Judgement):
    """What came of deriving an arm's decisions again, see ``spsbench.stats.losslessness.decisions_of``.

    ``target`` and ``draft``: the rows that the loops had. Without ``target``, as in runs from before these
    were kept, decisions were derived from the independent forward's rows.
    """

    sequences: int
    share: float
    decisions: int
    rounding: int
    contradicted: int
    closest: float
    dtype: str
    exact: bool
    recorded: NotRequired[int]
    open: NotRequired[int]
    target: NotRequired[RowsApart]
    draft: NotRequired[RowsApart]


class Divergence(TypedDict):
    """The earliest token, from 0, at which two sequences differ.

    The later keys are of two runs that are compared, where their model was asked again. ``gap``: between the
    two largest logits there, null with ``gap_unknown`` where no model could be loaded.
    """

    position: int
    example_id: str
    sample_index: int
    a_token: NotRequired[int | None]
    b_token: NotRequired[int | None]
    a_text: NotRequired[str | None]
    b_text: NotRequired[str | None]
    gap: NotRequired[float | None]
    gap_unknown: NotRequired[str]
    dtype: NotRequired[str]


class TokenIdentity(TypedDict):
    """Which outputs of two arms are the same; ``identical`` is a share of ``sequences``."""

    sequences: int
    identical: float
    first_divergence: Divergence | None


class BeamIdentity(TypedDict):
    """Of how many sequences a search found the hypotheses of exact beam search, with their scores.

    ``rounding`` differ where the searches chose by less than rounding; ``contradicted`` differ beyond it.
    ``allowance`` is the most that rounding was granted, in nats. Unless ``precise`` (float32 or finer) it is
    so wide that identity is weak evidence.
    """

    sequences: int
    identical: int
    rounding: int
    contradicted: int
    allowance: float
    precise: bool


class BeamScores(TypedDict):
    """The best output's log-probability against an uncached forward, in nats."""

    sequences: int
    largest_difference: float
    contradicted: int


class BeamFacts(TypedDict):
    """What is known of an arm of beam search; ``identity`` is with exact beam search."""

    identity: BeamIdentity | None
    scores: BeamScores | None


class ArmProof(Axes):
    """What sequences that were drawn for the proof alone say of an engine's way of drafting."""

    sequences: int
    failed: int
    rescored: Evidence | None
    decisions: Decisions | None


class Proof(TypedDict, total=False):
    """What run.json has of the proof: nothing where there was nothing to draw, ``error`` where it failed."""

    sampling: dict[str, Any]
    arms: list[ArmProof]
    seconds: float
    error: str


class ArmLosslessness(ArmIdentity, Judgement):
    """The judgement on one arm; ``bound`` is of its leakage, ``identity`` with greedy ArS.

    A beam search has ``beams``, and none of the evidence on samples. ``unread``: sequences that could not be
    read again; not in runs from before these were counted.
    """

    lossless: bool
    acceptance_z: float | None
    identity: TokenIdentity | None
    bound: float | None
    self_consistency: Evidence | None
    rescored: Evidence | None
    decisions: Decisions | None
    proof: ArmProof | None
    beams: BeamFacts | None
    unread: NotRequired[int]


class Losslessness(TypedDict):
    """The judgement on all arms; ``bound`` is the largest of the SpS arms."""

    verdict: Verdict
    bound: float | None
    arms: list[ArmLosslessness]


class ArmPrediction(ArmIdentity, MetricInterval):
    """Predicted and measured speedup of one arm; a residual is measured - predicted.

    ``tokens_per_loop_measured`` counts a loop's tokens before an output's end cuts them, as alpha does;
    ``tokens_per_loop_kept`` and the replayed one count what is kept.
    """

    alpha: float | None
    c: float | None
    c_source: str
    measured: float | None
    predicted: float | None
    residual: float | None
    chen: float | None
    chen_residual: float | None
    tokens_per_loop_predicted: float | None
    tokens_per_loop_replayed: Estimate | None
    tokens_per_loop_kept: float | None
    tokens_per_loop_measured: float
    operations_factor: float | None


class CurvePoint(TypedDict):
    k: int
    speedup: float


class LoopLine(TypedDict):
    """The line of a loop's time against K, see ``spsbench.stats.predict.costs.LoopCost``."""

    intercept_ms: float
    slope_ms: float
    r_squared: float | None
    ks: list[int]
    ars_ms: float | None
    drafting_ms_per_token: float | None
    draft_alone_ms_per_token: float | None


class SeriesPrediction(SeriesAxes):
    """The best K of arms that differ in K alone."""

    alpha: float | None
    c: float | None
    best_k: int | None
    best_speedup: float | None
    minimum_gain: float | None
    curve: list[CurvePoint] | None
    loop: LoopLine | None


class Prediction(TypedDict):
    arms: list[ArmPrediction]
    samplings: list[SeriesPrediction]


class Factor(TypedDict):
    """One factor of a speedup; ``running`` is the product of K+1 and all factors up to it."""

    name: str
    factor: float
    evidence: dict[str, float]
    running: float
    title: str
    remedy: str


class BreakEven(TypedDict):
    """Where an arm would be as fast as ArS, see ``spsbench.stats.predict.factors.break_even``."""

    measured_alpha: float
    alpha: float | None
    measured_c: float | None
    c: float | None
    k: int | None
    k_found: bool


class ArmFactors(ArmIdentity):
    """Why an arm's speedup is not K+1; ``binding`` names its smallest factor."""

    lossless: bool
    baseline: str | None
    speedup: float
    factors: list[Factor]
    binding: str
    break_even: BreakEven
    sentence: str


class Residual(TypedDict):
    """One factor of measured over predicted speedup, see ``spsbench.stats.predict.factors``."""

    name: str
    title: str
    factor: float


class ArmCeiling(ArmIdentity):
    """How near one arm comes to the floor that memory bandwidth sets."""

    bytes_per_token: float | None
    ms_per_token: float
    floor_ms_per_token: float | None
    share: float | None
    best_speedup: float | None
    ars_floor_ms_per_token: float | None
    beats_ars_ceiling: bool | None


class ModelBytes(TypedDict):
    """Bytes that each model reads; of the draft's weights null where their size is not known."""

    target: float
    draft: float | None


class Ceiling(TypedDict):
    """What memory bandwidth alone allows.

    ``cache_shared``: the last-level cache is the one that a hypervisor reports; other guests may use it too.
    ``forward_bytes`` are of the weights, ``kv_bytes_per_token`` of the cache, 0 where not known.
    """

    regime: Regime
    bandwidth_bytes_per_s: float | None
    cache_bytes: float | None
    cache_shared: NotRequired[bool | None]
    forward_bytes: ModelBytes
    kv_bytes_per_token: dict[str, float]
    weak_baseline: bool | None
    arms: list[ArmCeiling]


class ArmTails(ArmIdentity):
    """How long sequences of an arm take, see ``spsbench.stats.latency.tails``.

    Of seconds ``mean`` and ``sd``, and but for the paper's clock ``p50``, ``p90`` and ``p99``.
    """

    sequence_s: dict[str, float] | None
    until_n_s: dict[str, float] | None
    sequences_with_n: int
    paper_clock_s: dict[str, float] | None
    p99_rests_on_few: bool
    share_slower: float | None


class Tails(TypedDict):
    """Quantiles of latency; ``n_tokens`` is the N of ``until_n_s``."""

    n_tokens: int
    fixed_length: bool
    arms: list[ArmTails]


class PositionBin(TypedDict):
    """Acceptance of the loops that begin at output positions from ``start`` to before ``end``."""

    start: int
    end: int | None
    loops: int
    alpha_tested: float | None
    alpha_beta: float | None
    mean_acceptance_length: float


class ArmPositions(ArmIdentity):
    bins: list[PositionBin]


class AdaptiveGain(TypedDict):
    """What an arm that adapts K reached: its time per token under that of the fastest fixed K, measured."""

    arm: str
    policy: str
    fixed_k: int
    ms_per_token: float
    gain: RatioInterval


class Hindsight(SeriesAxes):
    """What the right K in every loop would have gained, see ``spsbench.stats.predict.costs``."""

    best_k: int
    fixed_ms_per_token: float
    oracle_ms_per_token: float
    gain_bound: float
    max_k: int
    censored: float
    adaptive: list[AdaptiveGain]


Outcome = Literal["pays", "does not pay", "unclear"]


class AgainstBest(ArmIdentity):
    """How much faster the fastest arm is than this one, paired; ``slower`` if it is beyond doubt."""

    gain: RatioInterval | None
    slower: bool


class ChosenElsewhere(RatioInterval):
    """The speedup on each half of ``prompts`` of the arm that was the fastest on the other half."""

    prompts: int


class SpeedVerdict(ArmIdentity):
    """Whether speculation pays under a sampling and batch size, and with which arm: the fastest lossless one.

    ``candidates`` counts the arms it was chosen from, ``prompts`` those that it and ArS finished; ``others``
    are the rest of the candidates. ``elsewhere`` is null where one arm was measured, or too few prompts for
    halves. ``lost_share`` is CPU contention in the time of one of the two at most, where the interval
    holds it; ``leaning`` what the outcome would be without that, where it is unclear. ``binding`` names the
    largest loss, null where a loop's phases were not seen. ``tail_s`` are the ``p90`` and ``p99`` of a
    sequence's seconds.
    """

    outcome: Outcome
    candidates: int
    prompts: int
    speedup: RatioInterval
    end_to_end: RatioInterval | None
    others: list[AgainstBest]
    elsewhere: ChosenElsewhere | None
    binding: str | None
    break_even: BreakEven | None
    tail_s: dict[str, dict[str, float]]
    lost_share: NotRequired[float]
    leaning: NotRequired[Outcome]


class ArmEnergy(ArmIdentity):
    """The energy of one arm's ``sequences`` in which it is known; ``ratio`` is over the baseline's."""

    sequences: int
    joules_per_token: Estimate
    baseline: str | None
    ratio: RatioInterval | None


class Energy(TypedDict):
    """What counted joules, or the ``reason`` why nothing did; its counter moves every ``update_s``."""

    source: str | None
    update_s: float | None
    reason: str | None
    mean_sequence_s: float | None
    arms: list[ArmEnergy]


class Contention(TypedDict):
    """What CPU contention took of the timings that count; ``reasons`` to widen intervals for it, none if it
    is ``trusted``: then little enough to be let be. ``lost_by_arm`` is the share of each arm's own time."""

    waited_share: float | None
    stolen_share: float | None
    trusted: bool
    reasons: list[str]
    lost_by_arm: NotRequired[dict[str, float]]
    remeasured: NotRequired[Remeasured]


RemeasuringEnd = Literal["clean", "budget", "hopeless"]


class Remeasured(TypedDict):
    """What was timed ``again``, beside the ``timings`` of the plan, for ``seconds`` of ``budget_s``.

    ``replaced`` are those of the plan that do not count, since others disturbed them. ``disturbed`` rounds
    are left of which no timing was clean; ``ended`` says why no more was tried: none was left, the time was
    used up, or none of the last ones came out clean. ``differing`` names sequences that wrote other tokens.
    """

    timings: int
    again: int
    replaced: int
    disturbed: int
    seconds: float
    budget_s: float
    ended: RemeasuringEnd
    differing: list[str]


class Conditions(TypedDict, total=False):
    """What a sequence is measured under besides the run's identity, as in run.json; ``threads`` may be
    ``auto`` while it is not decided."""

    threads: int | str
    backend: str
    cpu: str | None
    cores: int
    gpus: list[str | None]  # that compute
    gpu_uuid: str | None  # this and what follows where a GPU computes
    gpu_mig: bool | None
    gpu_ecc: bool | None
    gpu_power_limit_w: float | None
    gpu_driver: str | None
    cuda: str | None
    cudnn: str | None
    tf32: bool
    matmul_precision: str
    python: str
    spsbench: str
    commit: str | None
    torch: str | None
    transformers: str | None
    tokenizers: str | None
    numpy: str | None
    onnxruntime: str | None
    torchao: str | None  # where it quantised weights
    device_map: str  # where the target was spread over devices
    layer_kernels: dict[str, str]  # what computes layers that have several kernels, by package
    engines: dict[str, str]  # name and version of external engines, where there are any
    workers_per_machine: int  # processes of the run that measured on one machine at once, where several did


class ConditionPart(TypedDict):
    """What was measured under one of several conditions; ``differ`` are the settings that set it apart."""

    settings: Conditions
    differ: Conditions
    rows: list[ArmRow]
    contention: Contention


class StoppedArm(RatioInterval):
    """The interval of an SpS arm's 95% confidence sequence at the end; ``half_width`` is relative."""

    arm: str
    baseline: str
    prompts: int
    half_width: float | None


class Stopping(TypedDict):
    """How a run with ``until`` ended: its ``ci=X%`` and its time, null for what it did not say.

    ``reason`` is null while it has not ended. ``prompts`` were measured with all their sequences, of
    ``pool``. ``anytime``: it was ever asked to stop by the width of its intervals, so its speedups have
    those of a confidence sequence. ``measured_s`` is the time of all its sequences.
    """

    until: str | None
    precision: float | None
    budget_s: float | None
    reason: Literal["precision", "budget", "prompts"] | None
    prompts: int
    pool: int
    measured_s: float
    anytime: bool
    arms: list[StoppedArm]


class EngineOfArm(TypedDict):
    """What answered for an arm, as ``engines.external.protocol.Described`` has it; null if it is silent.

    ``unseen`` are clauses on what it did not report of its times, and how that was read.
    """

    arm: str
    name: str
    version: str | None
    rule: str | None
    settings: dict[str, Any]
    limits: list[str]
    unseen: list[str]


class Engines(TypedDict):
    """The engines of a run with some of others among them; ``unequal`` are sentences on their settings."""

    arms: list[EngineOfArm]
    unequal: list[str]


class SurfaceCell(TypedDict):
    """One arm of a surface; k 0 is ArS at its batch size, which has no speedup.

    ``tokens_per_s`` is of the whole batch while it is full, ``latency_ms_per_token`` what a sequence waits;
    ``as_alone`` of the ``compared`` outputs are, token for token, those of batch size 1 (null: not measured).
    """

    arm: str
    batch: int
    k: int
    tokens_per_s: float
    latency_ms_per_token: float
    compared: int
    as_alone: int | None
    tokens_per_loop: float | None
    speedup: RatioInterval | None


class PaysUpTo(MetricInterval):
    """The batch size at which the speedup of a K falls below 1 for good; ``beyond``: past the largest one.

    0: at none that was measured. An end that is null lies beyond the largest batch, or is unknown.
    """

    k: int
    batch: float | None
    beyond: bool


class Surface(TypedDict):
    sampling: str
    engine: str
    drafter: str | None
    rule: str | None
    policy: str | None
    cells: list[SurfaceCell]
    pays_up_to: list[PaysUpTo]


class GpuSeen(TypedDict):
    """The GPU that computed, by name and number, and how it was as sequences ended.

    ``sm_clock_mhz`` is the least, the most and the median; null where no sequence knows it. ``throttled``
    counts, of ``sequences`` that know anything, those whose clocks each reason held down, ``shared`` those
    beside which other processes were on the board (null: unknown).
    """

    device: str
    sequences: int
    sm_clock_mhz: tuple[float, float, float] | None
    throttled: dict[str, int]
    shared: int | None


class Labels(TypedDict):
    """What was run; ``data`` is its provenance, as in run.json, ``model`` the target, ``fixed_length`` the
    tokens of each output where EOS is ignored, ``engine`` what a run on CUDA that named none was given,
    ``law`` how the distributions that are sampled differ from those that the task has by these names,
    ``rollback`` how running states are rolled back, by role (``models.recurrent``).

    ``metric_signatures`` are sacrebleu's and other metrics' own words on how exactly they were computed.
    """

    task: str | None
    task_label: str | None
    synthetic: bool
    pair: str | None
    data: dict[str, Any] | None
    headline_metric: str | None
    metric_signatures: NotRequired[dict[str, str]]
    model: NotRequired[str]
    tags: NotRequired[dict[str, str]]
    law: NotRequired[str]
    extract: NotRequired[str]
    fixed_length: NotRequired[int]
    engine: NotRequired[str]
    stopping: NotRequired[Stopping]
    engines: NotRequired[Engines]
    energy: NotRequired[Energy]
    gpu: NotRequired[GpuSeen]
    rollback: NotRequired[dict[str, str]]


class Diagnostics(TypedDict):
    """The parts that explain the rows; each null where it has nothing to say."""

    prediction: Prediction | None
    why: list[ArmFactors] | None
    ceiling: Ceiling | None
    tails: Tails | None
    positions: list[ArmPositions] | None
    hindsight: list[Hindsight] | None
    verdict: list[SpeedVerdict] | None


class Summary(Labels, Diagnostics):
    """The content of ``summary.json``. ``conditions`` is empty for a run under one; of several, nothing that
    is a time stands outside of them. ``by_category`` is empty unless prompts are of several, ``by_turn`` is
    there where later turns were asked, ``surfaces`` are of runs with several batch sizes. ``doubted_times``
    says which times contradict an arm's loops, and which prompts have none; not there if that is nothing."""

    schema_version: int
    rows: list[ArmRow]
    by_category: list[CategoryPart]
    by_turn: NotRequired[list[TurnPart]]
    parity: Parity | None
    losslessness: Losslessness | None
    contention: Contention
    doubted_times: NotRequired[list[str]]
    surfaces: NotRequired[list[Surface]]
    token_sha256: str | None
    complete: bool
    warnings: list[str]
    conditions: list[ConditionPart]


class LocatedFacts(TypedDict):
    """Where an engine's texts part from the target, see ``spsbench.parts.audit.localise``."""

    places: dict[str, list[dict[str, Any]]]
    laws: list[dict[str, Any]]
    explanation: str | None


class RoundingFacts(TypedDict):
    """Texts of quantised weights against plain ones, see ``spsbench.parts.audit.rounding``.

    ``stray_most`` and ``stray_mean`` are logits by which greedy plain texts are below the best token,
    ``outside_share`` the share of their tokens that have probability 0, ``expected`` the nats a token that
    activations in 8 bits take, ``variation`` the total variation of the engine's rows and the re-scored ones.
    """

    pairs: int
    log10_e_value: float
    stray_most: float | None
    stray_mean: float | None
    outside_share: float
    expected: float
    differences: list[dict[str, Any]]
    variation: float | None


class RareShares(TypedDict):
    """The least shares of faults that an audit's texts would have shown, ``level`` of the time.

    Of requests that are right up to a random token and then draw from another request's row, from a row that
    lacks the last token, or any possible token. None where no share would do. See
    ``spsbench.parts.audit.rare``.
    """

    level: float
    another_request: float | None
    stale_row: float | None
    random_token: float | None


class FirstForward(TypedDict):
    """How an engine's first forward differs from ours; see ``spsbench.parts.audit.first_forward``.

    ``differ`` of ``prompts`` differ. Where the engine returns log-probabilities ``nats`` is the largest
    difference, at ``token``; else ``token`` is the engine's most probable one and ``expected`` ours.
    """

    prompts: int
    differ: int
    token: int
    nats: float | None
    expected: int | None


class EngineAuditRow(TypedDict):
    """One setting of an external engine, audited; see ``spsbench.parts.audit.engine_audit.Row``.

    ``leakage`` is over all texts. ``bound`` is what the last look rules out. ``against`` is the law that the
    texts were held against where that is not the one asked for, and ``convention`` the other reading of the
    sampling's parameters that plain texts follow. ``place`` is where an alarm's e-value comes from, ``law``
    what is wrong there where one bet stands out. ``rare`` is null after an alarm, and where nothing is drawn.
    ``first_forward`` is null unless it explains an alarm. ``free`` are the findings of
    ``spsbench.parts.audit.free_evidence``, as dicts.
    """

    setting: str
    k: int | None
    is_plain: bool
    in_flight: int
    prefix_cache: bool
    weights: str
    sampling: str
    decision: str
    decided_after: int
    texts: int
    retokenised: int
    tokens: int
    impossible: int
    leakage: Leakage | None
    bound: float | None
    log10_e_value: float | None
    reasons: list[str]
    place: str | None
    law: str | None
    against: str | None
    convention: str | None
    located: LocatedFacts | None
    rounding: RoundingFacts | None
    failures: list[str]
    gone: str | None
    cannot: str | None
    seconds: float
    engine: dict[str, Any]
    texts_file: str
    rare: RareShares | None
    first_forward: FirstForward | None
    free: list[dict[str, Any]]


class ReproFacts(TypedDict):
    """A deviation at one token of an engine's outputs, over many seeds; see ``spsbench.parts.audit.repro``.

    ``context`` is the prompt, ``prefix`` what the counted outputs begin with, ``observed`` the counts of the
    token after them and ``expected`` its probabilities, ``rest`` that of all other tokens. ``clear`` says
    whether ``p_value``, of tests over new seeds, is below 0.001.
    """

    setting: str
    script: str
    context: list[int]
    prefix: list[int]
    outputs: int
    observed: dict[str, int]
    expected: dict[str, float]
    rest: float
    p_value: float
    clear: bool
