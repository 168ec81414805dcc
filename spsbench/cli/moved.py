"""Options that an earlier version wrote otherwise: the error for the old spelling names the new one."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence

from spsbench.base.errors import UsageError

MOVED: Mapping[str, str] = {
    "--bad-words": "--process bad_words={value}",
    "--beams": "--sampling beam:width={value}",
    "--concentration": "--source dirichlet:concentration={value}",
    "--convention": "--process convention={value}",
    "--dependence": "--source ngram:dependence={value}",
    "--draft-beams": "--sampling beam:draft_width={value}",
    "--draft-config": "--draft {value}",
    "--draft-placement": "--tensor-parallel N:draft={value}",
    "--draft-quantise": "--draft-dtype auto+{value}",
    "--draft-revision": "--draft MODEL@{value}",
    "--draft-temperature": "--source temperature:draft_temperature={value}",
    "--frequency-penalty": "--process frequency_penalty={value}",
    "--grammar": "--process grammar={value}",
    "--length-penalty": "--sampling beam:penalty={value}",
    "--logit-bias": "--process logit_bias={value}",
    "--memory": "--choose mean:memory={value}",
    "--min-new-tokens": "--process min_new_tokens={value}",
    "--min-p": "--process min_p={value}",
    "--objective": "--choose {value}",
    "--presence-penalty": "--process presence_penalty={value}",
    "--prompts": "TASK",
    "--quantise": "--dtype auto+{value}",
    "--quantize": "--dtype auto+{value}",
    "--repetition-penalty": "--process repetition_penalty={value}",
    "--revision": "--target MODEL@{value}",
    "--samples-dtype": "--dtype auto:samples={value}",
    "--target-config": "--target {value}",
    "--typical-p": "--process typical_p={value}",
}
"""The old flag, and what is typed in its place: ``{value}`` is what followed the old one.

The new one is an option with its value, or an argument (TASK) that the old value is given as. A text that
ends with a period is a sentence on what became of an option that is gone.
"""


def refuse_moved(arguments: Sequence[str], known: Collection[str]) -> None:
    """Refuse an old spelling among what was typed, where the command has the new one and not the old.

    ``known`` holds the command's flags, and what its arguments are called.
    """
    typed = [*arguments[: arguments.index("--")]] if "--" in arguments else [*arguments]
    for place, argument in enumerate(typed):
        flag, equals, value = argument.partition("=")
        if flag not in MOVED or flag in known:
            continue
        new = MOVED[flag]
        if new.endswith("."):
            raise UsageError(f"there is no such option any more: {new}", flag=flag, remedy="Leave it out.")
        option, space, rest = new.partition(" ")
        if option not in known:
            continue
        after = typed[place + 1] if place + 1 < len(typed) else ""
        value = value if equals else "VALUE" if after.startswith("--") or not after else after
        spelled = shlex.quote((rest if space else "{value}").format(value=value))
        words = f"{option} {spelled}" if option.startswith("--") else f"{spelled} as {option}"
        raise UsageError("it is written otherwise now.", flag=flag, remedy=f"Give {words}.")
