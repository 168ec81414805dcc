"""How an option is declared: a row, also on the field of a run's settings that it sets; without typer."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import Field


class Panel:
    """Titles of the panels of a command's help, which shows options without one first."""

    WHAT = "What to measure"
    SAMPLING = "Sampling"
    DRAFTING = "Drafting and acceptance"
    MACHINE = "Machine and models"
    OUTPUT = "Output"


class OptionRow(NamedTuple):
    """How an option is typed, what it does, its panel in the help, and the kind of names that complete it.

    The spec is written as in a usage text: ``--seed N``, ``--no-score``, ``--set KEY=VALUE...`` (may be
    repeated), ``[TASK]``, ``SHARD...``.
    """

    spec: str
    text: str
    panel: str | None = None
    names: str | None = None
    required: bool = False

    @property
    def flag(self) -> str:
        """``--seed``, or what stands for an argument: ``TASK``, as errors name it."""
        return self.spec.partition(" ")[0].strip("[.]")

    @property
    def name(self) -> str:
        """The option's in Python: ``seed``, ``no_score``, ``task``."""
        return self.flag.removeprefix("--").replace("-", "_").lower()

    @property
    def is_switch(self) -> bool:
        """It has no value, and is there or not."""
        return self.spec.startswith("--") and " " not in self.spec

    @property
    def may_be_left_out(self) -> bool:
        """An argument in brackets, or an option that is not required."""
        return not self.required and self.spec.startswith(("--", "["))

    @property
    def left_out(self) -> bool | None:
        """Its value where it was not typed."""
        return False if self.is_switch else None


ROW = "row"


def setting(
    spec: str,
    text: str,
    form: str,
    panel: str | None = None,
    *,
    names: str | None = None,
    default: Any = None,
    **limits: Any,
) -> Any:
    """A field of a run's settings that an option sets.

    The field's title is what the option calls it: ``k`` of ``ks``, ``score`` of ``--no-score``.

    Args:
        form: what may be written, as the remedy of an error says it.
        default: ``...`` for none.
        limits: of the value, for pydantic's ``Field``.
    """
    row = OptionRow(spec, text, panel, names)
    title = row.name.removeprefix("no_") if row.is_switch else row.name
    extra: Any = {ROW: row}
    return Field(default, title=title, description=form, json_schema_extra=extra, **limits)
