"""Is another engine's output distributed as this target says?

Every text is read by one uncached forward. The judgement is that of a run's own re-score, with one
difference: a file is there from the start, so that tests for a fixed sample may speak too, each with
one false alarm in 10,000.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from spsbench.analysis.losslessness import ALARM, NO_EVIDENCE, OK, evidence_of
from spsbench.decode.evidence import Sums, added
from spsbench.engines.witness import read_again, testimony
from spsbench.models.causal_lm import CausalLM
from spsbench.verify.foreign import Foreign, described

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 1e-4
_Z = 3.719  # one-sided at LEVEL
_EXACT = (torch.float32, torch.float64)


class Audit:
    """Reads text after text; of each only sums are kept.

    Args:
        target: whose distribution is claimed.
        draft: whose leakage is asked for, if any.
        dtype: the precision of whoever wrote the texts; the target's if not given.
        seed: of the randomised transform.

    Attributes:
        texts, tokens, retokenised: counts.
        samplings: how often each was asked for.
        first_impossible: where a token of probability 0 stands first; None if nowhere.
    """

    def __init__(
        self, target: CausalLM, draft: CausalLM | None, dtype: torch.dtype | None = None, seed: int = 0
    ) -> None:
        self.texts = self.tokens = self.retokenised = 0
        self.samplings: Counter[str] = Counter()
        self.first_impossible: dict[str, int | float] | None = None
        self._target, self._draft, self._dtype, self._seed = target, draft, dtype, seed
        self._sums: dict[str, Sums] = {}
        self._tokens_of: Counter[str] = Counter()

    def read(self, text: Foreign) -> None:
        """Score one text, within the models' windows, and add it to the sums of its prompt."""
        reading = read_again(
            self._target, self._draft, text.prompt, text.completion, text.sampling, self._dtype
        )
        key = hashlib.sha256(repr(text.prompt).encode()).hexdigest()
        self._sums[key] = added(self._sums.get(key, {}), testimony(reading, self._seed + text.line))
        self._tokens_of[key] += len(text.completion)
        self.texts += 1
        self.tokens += len(text.completion)
        self.retokenised += text.retokenised
        self.samplings[described(text.sampling)] += 1
        wrong = reading.impossible.nonzero()
        if len(wrong) and self.first_impossible is None:
            self.first_impossible = _place(text, int(wrong[0]), reading.logits)

    def judged(self) -> dict[str, Any]:
        """The facts of ``evidence_of`` over all texts, with ``verdict`` and ``reasons`` that count the tests
        for a fixed sample too, and this object's own counts."""
        facts = evidence_of(self._table(), exact=self._is_exact()) or {"reasons": ["no text"]}
        facts.setdefault("verdict", NO_EVIDENCE)
        alarms = [] if facts["verdict"] == NO_EVIDENCE else _fixed_sample_alarms(facts)
        if alarms:
            facts["reasons"] = alarms + (facts["reasons"] if facts["verdict"] == ALARM else [])
            facts["verdict"] = ALARM
        elif facts["verdict"] == OK and facts["greedy"]:
            facts["reasons"] = ["greedy: each token is the target's best, or tied with it but for rounding"]
        names = ("texts", "tokens", "retokenised", "first_impossible")
        return facts | {name: getattr(self, name) for name in names} | {"samplings": dict(self.samplings)}

    def _table(self) -> pd.DataFrame:
        import pandas as pd

        columns = {"example_id": list(self._sums), "losslessness": list(self._sums.values())}
        return pd.DataFrame(columns).assign(
            new_tokens=list(self._tokens_of.values()), finish_reason="length", error=None
        )

    def _is_exact(self) -> bool:
        """Whether rounding on both sides is so fine that one impossible token proves a fault."""
        return all(dtype in _EXACT for dtype in (self._target.model.dtype, self._dtype or torch.float32))


def _place(text: Foreign, index: int, logits: torch.Tensor) -> dict[str, int | float]:
    """Where the token stands, and how far its logit lies below the best."""
    row, token = logits[index].float(), text.completion[index]
    return {"line": text.line, "index": index, "token_id": token, "gap": float(row.max() - row[token])}


def _fixed_sample_alarms(facts: dict[str, Any]) -> list[str]:
    alarms = []
    score, cells, leak = facts["log_score"], facts["transform"], facts["leakage"]
    if score is not None and score["p_value"] < LEVEL:
        alarms.append(f"log-score: z {score['z']:+.1f}")
    if cells is not None and cells["p_value"] < LEVEL:
        alarms.append(f"integral transform: p {cells['p_value']:.1g}")
    if leak is not None and leak["estimate"] > _Z * leak["standard_error"]:
        above = leak["estimate"] / leak["standard_error"]
        alarms.append(f"leakage {leak['estimate']:.1%}, {above:.1f} standard errors above 0")
    return alarms
