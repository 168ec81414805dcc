"""A claim is tested before it is measured: rules, drafters and policies that are not ours are enumerated.

A rule from a file may call itself lossless and forget the residual; a run of it looks faster, and evidence
grows slowly. On small tables every outcome of a loop is enumerated, in seconds, before a weight is loaded.
What is found is kept by the content of the files and the version of spsbench.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import spsbench
from spsbench.base.errors import SpsbenchError, UsageError
from spsbench.base.records import Arm, Spec
from spsbench.drafters.registry import POLICIES, RULES, is_ours, policy_kind, rule_kind
from spsbench.engines.arms import is_peer
from spsbench.models.fetch.cache import keep_answer, kept_answer

KIND = "claims"
"""The folder of the answers in the cache."""

VOCABULARY, LOOKAHEADS = 3, (1, 2)
"""V and K of the tables."""


class Claim(NamedTuple):
    """What the enumeration says of a way of drafting and accepting.

    Attributes:
        refuted: where a probability is not the target's, one sentence; empty if none is.
        untested: why nothing could be enumerated; empty if it was.
    """

    refuted: str = ""
    untested: str = ""


def claims(arms: Sequence[Arm]) -> dict[str, Claim]:
    """Return what is found of each arm that uses a foreign kind and claims to be lossless.

    Raises:
        UsageError: a rule, drafter or policy from a file raised something; the file and the line are named.
    """
    claim_of: dict[tuple[Spec, Spec, Spec], Claim] = {}
    answers = {}
    for arm in arms:
        if arm.method != "sps" or is_peer(arm) or arm.sampling.beam is not None:
            continue
        way = arm.drafter, arm.rule, arm.policy
        if not _foreign_kinds(arm.drafter, arm.rule, arm.policy) or not rule_kind(arm.rule.name).lossless:
            continue
        if way not in claim_of:
            claim_of[way] = _known_claim(arm.drafter, arm.rule, arm.policy)
        answers[arm.name] = claim_of[way]
    return answers


def _foreign_kinds(drafter: Spec, rule: Spec, policy: Spec) -> list[Spec]:
    ours = (
        (is_ours(drafter), drafter),
        (RULES.get(rule.name) is rule_kind(rule.name), rule),
        (POLICIES.get(policy.name) is policy_kind(policy.name), policy),
    )
    return [spec for own, spec in ours if not own]


def _claim_by_enumeration(drafter: Spec, rule: Spec, policy: Spec) -> Claim:
    from spsbench.drafters.checked import DrafterFault
    from spsbench.law.enumeration import NotAFunction
    from spsbench.testing import assert_lossless

    try:
        assert_lossless(
            str(drafter), rule=str(rule), policy=str(policy), vocab_size=VOCABULARY, ks=LOOKAHEADS
        )
    except NotAFunction as found:
        return Claim(untested=str(found))
    except AssertionError as found:
        return Claim(refuted=str(found).rstrip("."))
    except SpsbenchError as found:
        return Claim(untested=found.message)
    except DrafterFault as found:  # which fails its sequences, and no other arm
        return Claim(untested=str(found))
    except Exception as error:
        raise _error_with_its_file(error, _foreign_kinds(drafter, rule, policy)) from error
    return Claim()


def _error_with_its_file(error: Exception, specs: Sequence[Spec]) -> Exception:
    """Names the user's file and its line; names neither where the error came from elsewhere."""
    files = {_file_of(spec).resolve(): spec for spec in specs}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if spec := files.get(Path(frame.filename).resolve()):
            why = f"{frame.filename}, line {frame.lineno}: {type(error).__name__}: {error}"
            return UsageError(f"{spec} failed on a small table: {why}.", remedy="Correct the file.")
    names = ", ".join(map(str, specs))
    why = f"{names} failed on a small table: {type(error).__name__}: {error}."
    return UsageError(why, remedy="Correct it, or ask its author.")


def _file_of(spec: Spec) -> Path:
    """Of ``path/to/file.py:attribute``; for another name a path where nothing is."""
    return Path(spec.name.rpartition(":")[0] or spec.name)


def _known_claim(drafter: Spec, rule: Spec, policy: Spec) -> Claim:
    """An earlier finding, else a new one; only kinds in files, whose content is known, are kept."""
    digest = hashlib.sha256(f"{spsbench.__version__} {drafter} {rule} {policy}".encode())
    files = [_file_of(spec) for spec in _foreign_kinds(drafter, rule, policy)]
    if not all(file.is_file() for file in files):
        return _claim_by_enumeration(drafter, rule, policy)
    for file in files:
        digest.update(file.read_bytes())
    key = digest.hexdigest()[:24]
    if isinstance((kept := kept_answer(KIND, key) or {}).get("refuted"), str) and "untested" in kept:
        return Claim(kept["refuted"], str(kept["untested"]))
    claim = _claim_by_enumeration(drafter, rule, policy)
    keep_answer(KIND, key, claim._asdict())
    return claim
