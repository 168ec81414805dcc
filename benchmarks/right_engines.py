"""How often an audit accuses an engine that is right: whole audits of the built-in engine, with all probes.

    python -m benchmarks.right_engines [--kind embedded] [--dtype float32] [--audits 100] [--first 0]

Each audit has a seed, a sampling and an order of prompts of its own, speculates with K = 4, draws its texts
with an e-value after each, then the short requests, with a seed and without one, and the greedy ones that
come again (A, B, A). An alarm is that of the law or a failed finding beside it. The engine is in this
process, by a worker's own code. --fault plants one of ``spsbench verify`` in it, as the control. The embedded
pair and the random models of ``benchmarks.architectures`` are synthetic.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.architectures import saved
from benchmarks.audit_power import SETTINGS, K
from spsbench.base import FLOAT32, Load, Peer, SamplingParams
from spsbench.config import TORCH, ModelRef, PairConfig, resolve
from spsbench.models import DTYPES, CausalLM, find_pair, load
from spsbench.parts.audit.engine_audit import Effort, EngineAudit, SettingResult
from spsbench.parts.external.engine import ids_that_end
from spsbench.parts.verify.served import Served
from spsbench.runner import model_folder, plan
from spsbench.stats import ALARM

EMBEDDED = "embedded"
COOL = tuple(SamplingParams(temperature=t) for t in (0.15, 0.2, 0.3))
"""Random weights are nearly uniform at 1, where no state shows."""

_PROMPTS = 40


@dataclass(frozen=True)
class World:
    """An engine and what its audits are held against.

    Attributes:
        peer: the engine, which draws by K = 4.
        models: target and draft in float32.
    """

    peer: Peer
    models: tuple[CausalLM, CausalLM]
    prompts: Sequence[tuple[int, ...]]
    stop_ids: Sequence[int]
    samplings: Sequence[SamplingParams]
    dtype: str = FLOAT32


class _Here(Served):
    """The worker's engine as a peer of this process."""

    def close(self) -> None:
        pass


def world(kind: str, dtype: str, fault: str | None, scratch: Path) -> World:
    """Return the embedded pair, or a random pair of a type of ``benchmarks.architectures``."""
    if kind == EMBEDDED:
        planned = plan(resolve({"limit": _PROMPTS, "data": "mini"}))
        source = planned.source
        folders = model_folder(source.target), model_folder(source.draft)
        prompts = [prompt.ids[-64:] for prompt in planned.prompts]
        ends = ids_that_end(planned.stop, source.tokenizer, source.vocab_size)
        samplings: Sequence[SamplingParams] = SETTINGS
    else:
        target, draft, _ = saved(kind, scratch)
        folders = target, draft
        source = find_pair(
            PairConfig(name=kind, target=ModelRef(id=str(target)), draft=ModelRef(id=str(draft))),
            rolls_back=False,
        )
        dice = torch.Generator().manual_seed(0)
        drawn = torch.randint(3, source.vocab_size - 1, (_PROMPTS, 24), generator=dice).tolist()
        prompts, ends, samplings = [tuple(ids) for ids in drawn], [], COOL
    given = (FLOAT32, torch.device("cpu"), source.vocab_size)
    reads = [load(part, *given, "--target", TORCH) for part in (source.target, source.draft)]
    engine = _Here(Load(str(folders[0]), str(folders[1]), K, threads=1, dtype=dtype), fault)
    return World(engine, (reads[0], reads[1]), prompts, ends, samplings, dtype)


def audited(asked: World, seed: int, effort: Effort) -> SettingResult:
    """Audit the engine once."""
    count = len(asked.prompts)
    prompts = [asked.prompts[(seed + n) % count] for n in range(count)]
    sampling = asked.samplings[seed % len(asked.samplings)]
    rule = asked.peer.describe().rule
    given = (asked.peer, asked.models, prompts, sampling, asked.stop_ids, effort)
    audit = EngineAudit(*given, seed=seed, k=K, rule=rule, dtype=DTYPES[asked.dtype])
    return audit.run(lambda _: None)


def lines(given: argparse.Namespace, scratch: Path) -> Iterator[str]:
    """Yield how many audits so far accused the engine, and of what."""
    asked = world(given.kind, given.dtype, given.fault, scratch)
    effort = Effort(1e-9, given.texts, 600.0, given.tokens, probes=given.probes)
    alarms = judged = tokens = 0
    highest = -99.0
    began = time.process_time()
    for number in range(given.audits):
        result = audited(asked, given.first + number, effort)
        assert result.evidence is not None
        assert not result.failures, result.failures
        failed = [each.found for each in result.free if not each.passed]
        accused = result.evidence["verdict"] == ALARM or bool(failed)
        alarms, tokens = alarms + accused, tokens + result.tokens
        judged += any(each.test == "again" and "later" in each.numbers for each in result.free)
        highest = max(highest, result.evidence["log10_e_value"] or -99.0)
        if accused or number + 1 == given.audits or (number + 1) % 20 == 0:
            why = [*map(str, result.evidence["reasons"]), *failed]
            spent = time.process_time() - began
            yield (
                f"{given.kind} {given.dtype}: {alarms} of {number + 1} audits with an alarm; "
                f"A, B, A judged in {judged}; {tokens} tokens; highest e-value 10^{highest:.1f}; "
                f"{spent:.0f} CPU-seconds {' '.join(why) if accused else ''}"
            ).rstrip()


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kind", default=EMBEDDED, help="or a model type, such as qwen3_next")
    parser.add_argument("--dtype", default=FLOAT32, help="of the engine; texts are read in float32")
    parser.add_argument("--fault", help="planted, as a control")
    parser.add_argument("--audits", type=int, default=100)
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--probes", type=int, default=12, help="short requests; half as many greedy ones")
    parser.add_argument("--first", type=int, default=0, help="seed of the first audit")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        for line in lines(given, Path(scratch)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
