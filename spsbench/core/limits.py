"""Options that are numbers within limits."""

from __future__ import annotations

from spsbench.errors import UsageError
from spsbench.plugins import Options


def share(options: Options, name: str, rule: str) -> float:
    """A rule's option that is above 0 and at most 1.

    Args:
        options: all of the rule's options.
        name: the option's.
        rule: the rule's name, for the sentence.

    Raises:
        UsageError: it is not.
    """
    value = float(options[name])
    if 0.0 < value <= 1.0:
        return value
    raise UsageError(
        f"{rule}:{name}={options[name]} is not valid.",
        flag="--rule",
        remedy=f"Give {name} above 0 and at most 1.",
    )
