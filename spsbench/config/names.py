"""What models and files of one's own are called in tables, reports and run directories."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spsbench.config.models import ModelRef, PairConfig
from spsbench.paths import EMBEDDED

PACKAGE = "package:"
LONGEST = 60
"""Characters of a model's name; of a longer one the middle is left out."""

_COMMIT = re.compile(r"[0-9a-f]{12,64}")
_SHORT_COMMIT = 7
_SLUG = 48  # characters of a part of a directory's name


def pair_name(target: ModelRef, draft: ModelRef | None) -> str:
    """E.g. ``my-llama-8b with my-llama-1b``."""
    if draft is None:
        return model_name(target)
    if draft == target:
        return f"{model_name(target)} with itself"
    return " with ".join(_apart([_Model.of(target), _Model.of(draft)]))


def model_name(model: ModelRef) -> str:
    """A model alone, see ``pair_name``."""
    return _shortened(_Model.of(model).name(1))


def with_draft(pair: PairConfig, draft: ModelRef) -> PairConfig:
    """The pair with another draft in place of its own, and named after both models."""
    if draft == pair.draft:
        return pair
    return pair.model_copy(update={"draft": draft, "name": pair_name(pair.target, draft)})


def file_name(path: Path) -> str:
    """A file with the folder that was typed before it, which tells files of one name apart."""
    return "/".join(part for part in path.parts[-2:] if part not in (".", "..", "/", "~"))


def slug(text: str) -> str:
    """The text in letters, digits and ``._+-`` of ASCII, for a directory's name; "" if nothing is left.

    Letters lose their accents, anything else becomes a hyphen, and a long text its middle.
    """
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    kept = re.sub(r"[^A-Za-z0-9._+-]+", "-", plain).strip("-.")
    return _shortened(kept, _SLUG, "--")


@dataclass(frozen=True, slots=True)
class _Model:
    """A name as parts, outermost first, of which the last few are shown."""

    parts: tuple[str, ...]
    revision: str

    @classmethod
    def of(cls, model: ModelRef) -> _Model:
        revision = "" if model.revision is None else f"@{_commit(model.revision)}"
        if model.id.startswith((EMBEDDED, PACKAGE)) or not _is_local(model.id):
            return cls((model.id.removeprefix(EMBEDDED).removeprefix(PACKAGE),), revision)
        parts = Path(os.path.normpath(Path.cwd() / Path(model.id).expanduser())).parts
        if len(parts) > 2 and parts[-2] == "snapshots" and parts[-3].startswith("models--"):
            hub_id = parts[-3].removeprefix("models--").replace("--", "/")
            return cls((hub_id,), revision or f"@{_commit(parts[-1])}")
        return cls(parts[1:] or (model.id,), revision)

    def name(self, count: int) -> str:
        """The last ``count`` parts with the revision."""
        return " ".join("/".join(self.parts[-count:]).split()) + self.revision


def _is_local(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or Path(name).exists()


def _commit(revision: str) -> str:
    return revision[:_SHORT_COMMIT] if _COMMIT.fullmatch(revision) else revision


def _apart(models: Sequence[_Model]) -> list[str]:
    """The shortest names that differ."""
    longest = max(len(model.parts) for model in models)
    for count in range(1, longest + 1):
        names = [model.name(count) for model in models]
        if len(set(names)) == len(names):
            break
    shortened = [_shortened(name) for name in names]
    return shortened if len(set(shortened)) == len(names) else names


def _shortened(text: str, most: int = LONGEST, gap: str = "...") -> str:
    if len(text) <= most:
        return text
    head = (most - len(gap)) // 2
    return text[:head] + gap + text[head + len(gap) - most :]
