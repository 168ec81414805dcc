"""Prediction modules of the target's own checkpoint, and Gemma's assistants over its cache, as drafters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from torch import Tensor

from spsbench.base.errors import UnavailableError, UsageError, as_typed
from spsbench.base.plugins import Options
from spsbench.decode.rejection import Draft
from spsbench.drafters.heads import EagleDrafter, HeadTreeDrafter
from spsbench.drafters.registry import TREE, Context
from spsbench.drafters.shape import shape_of
from spsbench.drafters.trained import chain_drafter, rows_again
from spsbench.models.assistant import AssistantModel, load_assistant, read_assistant, require_target
from spsbench.models.causal_lm import text_config
from spsbench.models.checkpoint import Checkpoint
from spsbench.models.hf_errors import typed_errors
from spsbench.models.kinds import AS_WRITTEN, CONFIG
from spsbench.models.module_folders import recycle_of
from spsbench.models.mtp import MtpChain, MtpLayout, MtpModel, MtpModule, NoModules, find_modules
from spsbench.models.plausible import require_ordinary_files
from spsbench.models.published import read_config_file
from spsbench.models.source import ModelSource, files_of, fingerprint
from spsbench.models.speculators import FINGERPRINT, LAYER
from spsbench.models.torch_lm import TorchLM

_FLAG = "--drafter"


def content(options: Options) -> str | None:
    """Return a hash of a folder with modules of their own; those of the target are among its files."""
    folder = _folder_apart(options)
    return None if folder is None else fingerprint(str(folder))


def _folder_apart(options: Options) -> Path | None:
    """None for the target's own modules."""
    name = str(options["from"])
    if not name:
        return None
    folder = Path(name).expanduser()
    if not folder.is_dir():
        remedy = "Name a folder, or none for the target's own modules."
        raise UnavailableError(f"there is no folder {name}.", flag=_FLAG, remedy=remedy)
    require_ordinary_files(folder, name, _FLAG)
    return folder


def suits(options: Options, target: ModelSource) -> None:
    """Refuse a target whose files hold no module; what is not downloaded is looked at when it is loaded."""
    own = _folder_apart(options)
    if own is not None:
        _require_made_for(own, target)
    folder = own or files_of(target.location, target.commit)
    if folder is None:
        return
    with typed_errors(str(folder), _FLAG):
        stored = Checkpoint(folder)
    if own or stored.tensors:
        _layout(stored, target.config, target.name if own is None else str(own))


def _require_made_for(folder: Path, target: ModelSource) -> None:
    """Refuse modules whose folder says that they are of another target, before a weight is read."""
    told = read_config_file(folder / CONFIG, _FLAG) or {}
    layer, text = told.get(LAYER), text_config(target.config)
    for field in ("hidden_size", "vocab_size"):
        made = layer.get(field) if isinstance(layer, dict) else None
        _require_same(folder, field, made, getattr(text, field))


def _require_embedding(folder: Path, target: TorchLM) -> None:
    """Refuse modules of another target by its embedding, where their folder has kept its hash."""
    if made := (read_config_file(folder / CONFIG, _FLAG) or {}).get(FINGERPRINT):
        _require_same(folder, "the embedding", made, target.embedding_fingerprint())


def _require_same(folder: Path, what: str, made: object, theirs: object) -> None:
    if made is not None and made != theirs:
        why = f"{folder} was made for a target with {what} {as_typed(made)}; this target has {theirs}."
        raise UsageError(why, flag=_FLAG, remedy="Choose that target, or the modules of this one.")


def _layout(stored: Checkpoint, config: object, name: str) -> MtpLayout:
    try:
        return find_modules(stored, config)
    except NoModules as reason:
        why = f"{name} cannot draft by its own modules: {reason}."
        remedy = "Choose another drafter, or the checkpoint that has them."
        raise UsageError(why, flag=_FLAG, remedy=remedy) from reason


def build(options: Options, context: Context) -> EagleDrafter | HeadTreeDrafter:
    target, hidden = context.target, context.hidden
    own = _folder_apart(options)
    if hidden is None or not isinstance(target, TorchLM) or (folder := own or target.files) is None:
        why = "mtp reads modules from the files of a target over torch."
        raise UsageError(why, flag=_FLAG, remedy="Give --backend torch, and a target that is loaded whole.")
    if own is not None:
        _require_embedding(own, target)
    modules = _modules(target, folder)
    recycle = str(options["recycle"])
    if recycle == AS_WRITTEN:
        recycle = recycle_of(str(target.config.model_type))
    shape = shape_of(str(options[TREE]), "--tree")
    if len(modules) > 1:
        if shape is not None:
            why = f"{target.config.model_type} has {len(modules)} modules, one for each place of a chain."
            raise UsageError(why, flag="--tree", remedy="Leave --tree out.")
        several = MtpModel(modules, recycle, target, hidden)
        return EagleDrafter(several, context.sampling, context.device)
    return chain_drafter(MtpChain(modules[0], recycle, target), target, options, context)


def _modules(target: TorchLM, folder: Path) -> list[MtpModule]:
    """Load a target's modules; once for all that draft with them."""
    key = ("mtp", str(folder.resolve()))
    if key not in target.attached:
        name = str(folder)
        with typed_errors(name, _FLAG):
            stored = Checkpoint(folder)
        layout = _layout(stored, target.config, name)
        try:
            target.attached[key] = [
                MtpModule(stored, names, number, layout.hidden_first, target)
                for number, names in enumerate(layout.modules)
            ]
        except NoModules as reason:
            why = f"{name} cannot draft by its own modules: {reason}."
            raise UsageError(why, flag=_FLAG, remedy="Choose another drafter.") from reason
    modules: list[MtpModule] = target.attached[key]
    return modules


again = partial(rows_again, build)


class AssistantDrafter(EagleDrafter):
    """Samples K tokens from an assistant, one after the other, all at one position; none after one token."""

    model: AssistantModel

    def draft(self, tokens: Sequence[int], k: int, u: Tensor) -> Draft:
        # What it predicted in the last loop is of tokens that the target has read since.
        self.model.rollback(len(tokens) - 1)
        return super().draft(tokens, k, u)


def _folder(options: Options) -> Path:
    name = str(options["from"])
    if not name:
        raise UsageError(
            "assistant has no folder.", flag=_FLAG, remedy="Give --drafter assistant:from=FOLDER."
        )
    return Path(name).expanduser()


def assistant_content(options: Options) -> str:
    folder = _folder(options)
    read_assistant(folder, _FLAG)
    return fingerprint(str(folder))


def assistant_suits(options: Options, target: ModelSource) -> None:
    folder = _folder(options)
    require_target(folder, read_assistant(folder, _FLAG), target.config, _FLAG)


def build_assistant(options: Options, context: Context) -> AssistantDrafter:
    target, hidden = context.target, context.hidden
    if hidden is None or not isinstance(target, TorchLM):
        why = "an assistant reads the cache of a target over torch."
        raise UsageError(why, flag=_FLAG, remedy="Give --backend torch, and a target that is loaded whole.")
    loaded = load_assistant(_folder(options), target, _FLAG)
    model = AssistantModel(loaded, target, hidden, str(options["position"]))
    return AssistantDrafter(model, context.sampling, context.device)


assistant_again = partial(rows_again, build_assistant)
