"""Decisions of every drafter derived anew on a run's own path: honest ones follow, planted faults do not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from unittest.mock import patch

import pytest
import torch
from support.tiny_heads import SMALL, save_head
from support.tiny_models import TOKENS, config_of, make, over_onnx
from torch import Tensor

from spsbench.base.records import Arm, Prompt, Request, SamplingParams, Spec
from spsbench.decode import algorithms, rejection
from spsbench.decode.clock import FakeClock
from spsbench.decode.rows import HostRow
from spsbench.engines.local import EagerEngine
from spsbench.law.evidence import Sums, added
from spsbench.models.pair import Pair
from spsbench.parts.verify.controls import planted
from spsbench.runner.engines import EngineFactory
from spsbench.runner.proof import read_again
from spsbench.testing import Letters

K, NEW = 4, 32
CPU = torch.device("cpu")
NUCLEUS = SamplingParams(temperature=0.7, top_p=0.9)
SAMPLINGS = (SamplingParams(temperature=0.9, top_p=0.95), SamplingParams(greedy=True))
OURS = (
    "lookup",
    "eagle",
    "medusa",
    "eagle:bits=8",
    "quantised",
    "early-exit",
    "ngram",
    "union:of=lookup+ngram",
)
INDEPENDENT = ("lookup", "eagle", "medusa", "early-exit")  # a copy has no row

THEIRS = """
import torch
from spsbench import Draft, DrafterKind
from spsbench.drafters.ngram import build

class Theirs:
    def __init__(self, inner, way):
        self.inner, self.way = inner, way
        self.begin, self.observe = inner.begin, inner.observe

    def draft(self, tokens, k, u):
        return self.way(self.inner.draft(tokens, k, u), u)

def mirrored(draft, u):
    rows = draft.probs.flip(-1).cumsum(-1)
    places = (rows < u.unsqueeze(-1)).sum(-1).clamp(max=rows.shape[-1] - 1)
    return Draft(rows.shape[-1] - 1 - places, draft.probs)

def withdrawn(draft, u):
    n = next((i for i, token in enumerate(draft.tokens.tolist()) if token % 2 == 0), len(draft.tokens))
    return Draft(draft.tokens[:n], draft.probs[:n])

def kind(name, way):
    options = {"order": 1, "adapt": True}
    return DrafterKind(name, "For a test.", lambda given, c: Theirs(build(options, c), way))

PLAIN, MIRRORED = kind("plain", lambda draft, u: draft), kind("mirrored", mirrored)
WITHDRAWN = kind("withdrawn", withdrawn)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Spec]:
    """A drafter by its name here: heads lie in folders, theirs in a file."""
    folder = tmp_path_factory.mktemp("drafters")
    for kind in ("eagle", "medusa"):
        save_head(folder / kind, pair().target, kind, scale=SMALL)
    (folder / "theirs.py").write_text(THEIRS)

    def spec(name: str) -> Spec:
        kind, _, options = name.partition(":")
        if kind in ("eagle", "medusa"):
            return Spec("heads", (*Spec.parse(f"heads:{options}").options, ("from", str(folder / kind))))
        return Spec(f"{folder / 'theirs.py'}:{kind}") if kind.isupper() else Spec.parse(name)

    return spec


@cache
def pair() -> Pair:
    """A target that is its own draft, as where heads or roundings draft."""
    target = over_onnx(make(config_of("llama", head_dim=16)))
    letters = Letters("".join(chr(0x100 + i) for i in range(TOKENS)))
    return Pair(target, target, letters, CPU, {"threads": 1}, is_one=True)  # type: ignore[arg-type]


def decided(spec: Spec, sampling: SamplingParams, sequences: int, fault: str = "") -> Sums:
    """The sums over some outputs, up to the first contradiction, of prompts that repeat themselves."""
    prompts = [tuple((7 * i * (seed + 1)) % 5 + 10 for i in range(16)) for seed in range(sequences)]
    backends = EngineFactory(pair(), 64, FakeClock(0.001), corpus=prompts)
    arm = Arm("sps", K, "eager", "tried", sampling, spec)
    engine, total = backends.build(arm), Sums()
    assert isinstance(engine, EagerEngine)
    for seed, ids in enumerate(prompts):
        with ExitStack() as stack:
            for swap in FAULTS.get(fault, ()):
                stack.enter_context(patch.object(*swap))
            if fault == "stale row of the target":
                stack.enter_context(planted("stale-cache", engine._target))
            output = engine.generate(Request(ids, NEW, (), sampling, seed=seed))
        read_again(arm, Prompt("p", "", ids, ""), output, seed, pair())
        assert output.losslessness is not None
        assert output.kept_rows is None
        total = added(total, output.losslessness)
        for role in ("target", "draft"):
            total["decisions_contradicted"] += output.losslessness.get(f"decisions_rows_{role}_beyond", 0)
        if total["decisions_contradicted"]:
            break
    return total


def stands(q: Tensor, draft: rejection.Draft, u: Tensor) -> rejection.Verdict:
    return rejection.accept_draft(q, draft, torch.cat([u[:-1] * 0.5, u[-1:]]))


FAULTS = {
    "accepts too many": [(algorithms, "accept_draft", stands)],
    "corrects from the target's row": [
        (rejection, "residual", lambda q, p: q),
        (HostRow, "along", lambda row, other: 0 * other.weights),
        (HostRow, "without", lambda row, token: row.weights),
    ],
    "stale row of the target": [],
}


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("drafter", [*OURS, "PLAIN"])
def test_every_decision_of_every_drafter_follows(
    drafter: str, sampling: SamplingParams, made: Callable[[str], Spec]
) -> None:
    found = decided(made(drafter), sampling, 3)
    assert found["decisions_contradicted"] == found.get("decisions_open", 0) == 0
    assert found["decisions"] > 3 * NEW  # tests too, not only the draws
    assert found.get("decisions_recorded", 0) == (0 if drafter in INDEPENDENT else found["decisions"])
    assert found["rescored_leak_all_information"] > 0


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("drafter", [*OURS, "PLAIN"])
def test_a_wrong_decision_under_any_drafter_is_found(
    drafter: str, fault: str, made: Callable[[str], Spec]
) -> None:
    assert decided(made(drafter), NUCLEUS, 24, fault)["decisions_contradicted"] > 0


@pytest.mark.parametrize("drafter", ["MIRRORED", "WITHDRAWN"])
def test_what_rests_on_the_word_of_a_drafter_from_a_file_is_left_open(
    drafter: str, made: Callable[[str], Spec]
) -> None:
    found = decided(made(drafter), NUCLEUS, 3)
    assert found["decisions_contradicted"] == 0 < found["decisions_open"] < found["decisions"]
