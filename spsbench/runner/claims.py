"""A claim is tested before it is measured: rules, drafters and policies that are not ours are enumerated.

A rule from a file may call itself lossless and forget the residual; a run of it looks faster, and evidence
grows slowly. On small tables every outcome of a loop is enumerated, in seconds, before a weight is loaded.
What is found is kept by the content of the files and the version of spsbench.
"""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import spsbench
from spsbench.drafters.registry import DRAFTERS, POLICIES, RULES, drafter_kind, policy_kind, rule_kind
from spsbench.engines.arms import is_peer
from spsbench.errors import SpsbenchError, UsageError
from spsbench.files import write_json
from spsbench.models.fetch.cache import cache_dir
from spsbench.plugins import Registry
from spsbench.records import Arm, Spec

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
    """Of each speculative arm that uses a kind which is not ours, and claims to be lossless, what is found.

    Raises:
        UsageError: a rule, drafter or policy from a file raised something; the file and the line are named.
    """
    found: dict[tuple[Spec, Spec, Spec], Claim] = {}
    answers = {}
    for arm in arms:
        if arm.method != "sps" or is_peer(arm) or arm.sampling.beam is not None:
            continue
        way = arm.drafter, arm.rule, arm.policy
        if not _foreign(*way) or not rule_kind(arm.rule.name).lossless:
            continue
        if way not in found:
            found[way] = _known(*way) or _enumerated(*way)
            _keep(found[way], *way)
        answers[arm.name] = found[way]
    return answers


def _foreign(drafter: Spec, rule: Spec, policy: Spec) -> list[Spec]:
    """Those that do not come with spsbench."""
    kinds: tuple[tuple[Registry[Any], object, Spec], ...] = (
        (DRAFTERS, drafter_kind(drafter.name), drafter),
        (RULES, rule_kind(rule.name), rule),
        (POLICIES, policy_kind(policy.name), policy),
    )
    return [spec for registry, kind, spec in kinds if registry.get(spec.name) is not kind]


def _enumerated(drafter: Spec, rule: Spec, policy: Spec) -> Claim:
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
        raise _in_their_file(error, _foreign(drafter, rule, policy)) from error
    return Claim()


def _in_their_file(error: Exception, specs: Sequence[Spec]) -> Exception:
    """The error as one of the user's file, with its line; itself where it came from elsewhere."""
    files = {str(Path(spec.name.rpartition(":")[0])): spec for spec in specs}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        spec = next((each for file, each in files.items() if Path(frame.filename) == Path(file)), None)
        if spec is not None:
            why = f"{frame.filename}, line {frame.lineno}: {type(error).__name__}: {error}"
            return UsageError(f"{spec} failed on a small table: {why}.", remedy="Correct the file.")
    names = ", ".join(map(str, specs))
    why = f"{names} failed on a small table: {type(error).__name__}: {error}."
    return UsageError(why, remedy="Correct it, or ask its author.")


def _record(drafter: Spec, rule: Spec, policy: Spec) -> Path | None:
    """Where what was found is kept; None where a kind is in no file whose content is known."""
    digest = hashlib.sha256(f"{spsbench.__version__} {drafter} {rule} {policy}".encode())
    for spec in _foreign(drafter, rule, policy):
        file = Path(spec.name.rpartition(":")[0])
        if not file.is_file():
            return None
        digest.update(file.read_bytes())
    return cache_dir() / "claims" / f"{digest.hexdigest()[:24]}.json"


def _known(drafter: Spec, rule: Spec, policy: Spec) -> Claim | None:
    record = _record(drafter, rule, policy)
    with suppress(OSError, ValueError, TypeError):
        if record is not None:
            kept = json.loads(record.read_text(encoding="utf-8"))
            return Claim(str(kept["refuted"]), str(kept["untested"]))
    return None


def _keep(claim: Claim, drafter: Spec, rule: Spec, policy: Spec) -> None:
    record = _record(drafter, rule, policy)
    if record is not None:
        with suppress(OSError):  # a cache that cannot be written is asked again next time
            record.parent.mkdir(parents=True, exist_ok=True)
            write_json(record, claim._asdict())
