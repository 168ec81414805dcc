"""The Hugging Face libraries' exceptions as typed errors with a remedy, and their messages silenced."""

from __future__ import annotations

import errno
import logging
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from spsbench.base.addresses import host_of
from spsbench.base.errors import (
    DeviceFault,
    SpsbenchError,
    UnavailableError,
    UsageError,
    causes_of,
    first_line,
)
from spsbench.models.fetch.cache import free_bytes, watcher
from spsbench.models.messages import (
    GATED,
    MAKE_ROOM,
    NEEDS_LESS,
    OFFLINE,
    SEE_DRIVER,
    TRY_LATER,
    UNREACHED,
    CacheUsed,
    megabytes,
)

ANSWERS_WITHIN_S = 10.0
"""A hub that takes longer is left alone."""

_LEFT_ALONE_FOR_S = 60.0

_reached: set[str] = set()
_left_alone: dict[str, tuple[float, str]] = {}
"""Endpoints that failed: until when nothing is asked of them, and what they did."""
_replaced: set[str] = set()
"""Those of which it was said what is used in their place."""


class WebPage(OSError):
    """The hub's address answered with a web page."""


def forget() -> None:
    _reached.clear()
    _left_alone.clear()
    _replaced.clear()


def leave_alone(what: str) -> None:
    """Ask the hub nothing for a minute, since it failed as ``what`` says."""
    from huggingface_hub import constants

    _left_alone[constants.ENDPOINT] = time.monotonic() + _LEFT_ALONE_FOR_S, what
    _replaced.discard(constants.ENDPOINT)


def say_cached(name: str) -> None:
    """Say once that the hub's cache is used, if the hub is left alone."""
    from huggingface_hub import constants

    why = _why_left_alone()
    if why is not None and constants.ENDPOINT not in _replaced:
        _replaced.add(constants.ENDPOINT)
        watcher().said(str(CacheUsed(name, why)))


def _why_left_alone() -> str | None:
    from huggingface_hub import constants

    until_s, what = _left_alone.get(constants.ENDPOINT, (0.0, ""))
    return what if time.monotonic() < until_s else None


def why_offline() -> str:
    """Why the hub is not asked, or why it gave nothing."""
    from huggingface_hub import constants

    return _why_left_alone() or (OFFLINE if constants.HF_HUB_OFFLINE else UNREACHED)


@contextmanager
def offline_unless_reached() -> Iterator[None]:
    """Work without the hub while it cannot be reached: its client would retry for half a minute a file."""
    from huggingface_hub import constants, get_session

    before = constants.HF_HUB_OFFLINE
    if not before and _why_left_alone() is None and constants.ENDPOINT not in _reached:
        try:
            get_session().head(constants.ENDPOINT, timeout=ANSWERS_WITHIN_S)
            _reached.add(constants.ENDPOINT)
        except Exception:  # whatever its HTTP library raises
            leave_alone(f"{host_of(constants.ENDPOINT)} cannot be reached")
    if _why_left_alone() is not None:
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def failure_of(error: BaseException) -> UnavailableError | None:
    """What failed of hub, connection or cache disk, as an error; None where it was something else."""
    from huggingface_hub import constants, errors

    host = host_of(constants.ENDPOINT)
    cache = Path(constants.HF_HUB_CACHE)
    for cause in causes_of(error):
        response = getattr(cause, "response", None) if isinstance(cause, errors.HfHubHTTPError) else None
        status = getattr(response, "status_code", 0)
        if status == 429:
            remedy = "Wait some minutes, or log in (`hf auth login` or HF_TOKEN) for a higher limit."
            return UnavailableError(f"{host} answered 429, too many requests", remedy=remedy)
        if status >= 500:
            return UnavailableError(f"{host} answered {status}, a server error", remedy=TRY_LATER)
        if isinstance(cause, errors.FileMetadataError):
            why = f"{host} answers without X-Repo-Commit, which the hub sends with every file"
            remedy = "Check HF_ENDPOINT and the proxy: a mirror must pass this header on."
            return UnavailableError(why, remedy=remedy)
        if isinstance(cause, WebPage):
            why = f"{host} answered with a web page, as the login page of a network does"
            remedy = "Log in to the network, or check HF_ENDPOINT and the proxy."
            return UnavailableError(why, remedy=remedy)
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            why = f"there is no room left in {cache}, which has {megabytes(free_bytes(cache))} free"
            return UnavailableError(why, remedy=MAKE_ROOM)
        denied = getattr(cause, "errno", None) in (errno.EACCES, errno.EROFS, errno.EPERM)
        if denied and isinstance(cause, OSError) and Path(str(cause.filename)).is_relative_to(cache):
            remedy = "Set HF_HOME to a folder that can be written."
            return UnavailableError(f"{cache} cannot be written ({cause.strerror})", remedy=remedy)
        if any("Timeout" in kind.__name__ for kind in type(cause).__mro__):
            why = f"{host} did not answer within {ANSWERS_WITHIN_S:.0f} s"
            return UnavailableError(why, remedy=TRY_LATER)
    return None


def require_room(needed_bytes: int, what: str, flag: str) -> None:
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    if (free := free_bytes(folder)) < needed_bytes:
        why = f"{what} need {megabytes(needed_bytes)} in {folder}, which has {megabytes(free)} free."
        raise UnavailableError(why, flag=flag, remedy=MAKE_ROOM)


@contextmanager
def typed_errors(name: str, flag: str) -> Iterator[None]:
    """Raise the block's exceptions again as ``typed_error`` makes them; errors of spsbench pass through."""
    elsewhere = ":" not in name and not Path(name).expanduser().exists()
    try:
        with offline_unless_reached() if elsewhere else nullcontext():
            yield
    except SpsbenchError:
        raise
    except Exception as error:
        raise typed_error(error, name, flag) from error


def typed_error(error: Exception, name: str, flag: str) -> SpsbenchError:
    """Return the typed error for a failure to find or read a model: this machine's first, then the hub's."""
    typed = _of_machine(error, name, flag) or _of_format(error, name, flag) or _of_hub(error, name, flag)
    if typed is not None:
        return typed
    if "backend tokenizer from one of" in _text_of(error):
        why = f"{name} has no tokenizer.json, and no other file that a tokenizer can be made from."
        return UnavailableError(why, flag=flag, remedy="Save the tokenizer into the same folder.")
    why = f"{name} cannot be read: {first_line(error)}"
    return UnavailableError(why, flag=flag, remedy="Download or save the model again.")


def _text_of(error: Exception) -> str:
    """With that of its causes, in lower case."""
    return " ".join(map(str, causes_of(error))).lower()


def _of_machine(error: Exception, name: str, flag: str) -> SpsbenchError | None:
    from spsbench.models.faults import is_out_of_memory, of_a_device

    if is_out_of_memory(error):
        return SpsbenchError(f"not enough memory to load {name}.", flag=flag, remedy=NEEDS_LESS)
    if (reported := of_a_device(error)) is not None:
        why = f"the device failed while {name} was loaded: {reported}."
        return DeviceFault(why, flag=flag, remedy=SEE_DRIVER)
    return None


def _of_format(error: Exception, name: str, flag: str) -> SpsbenchError | None:
    """Of a checkpoint that this installation cannot compute."""
    text = str(error)
    if "trust_remote_code" in text:
        why = f"{name} ships custom model code, which spsbench does not run."
        remedy = "Choose a model whose architecture is part of transformers."
        return UsageError(why, flag=flag, remedy=remedy)
    if "does not recognize this architecture" in text:
        why = f"{name} has an architecture that the installed transformers does not support."
        return UsageError(why, flag=flag, remedy="Upgrade transformers, or choose another model.")
    if isinstance(error, ImportError) or "pip install" in text:
        why = f"{name} needs a package that is not installed: {' '.join(text.split())}"
        return UnavailableError(why, flag=flag, remedy="Install it, or choose a checkpoint without it.")
    return None


_OFFLINE_SIGNS = ("couldn't connect", "cannot find an appropriate cached", "offline mode", "name resolution")
_UNKNOWN_SIGNS = ("is not a local folder", "is not a valid model identifier", "404 client error")


def _of_hub(error: Exception, name: str, flag: str) -> SpsbenchError | None:
    from huggingface_hub import errors

    causes, text = list(causes_of(error)), _text_of(error)

    def caused_by(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    if (failed := failure_of(error)) is not None:
        why = f"{name} cannot be fetched: {failed.message}."
        return UnavailableError(why, flag=flag, remedy=failed.remedy)
    if caused_by(errors.GatedRepoError):
        return UnavailableError(f"{name} is gated.", flag=flag, remedy=GATED)
    if caused_by(errors.HFValidationError):
        why = f"{name} is neither a folder nor a name of the hub."
        remedy = "Check the path, or write org/name, with a revision as org/name@REVISION."
        return UsageError(why, flag=flag, remedy=remedy)
    if caused_by(errors.RevisionNotFoundError):
        remedy = "Check the revision, which follows the @."
        return UnavailableError(f"{name} has no such revision.", flag=flag, remedy=remedy)
    offline = (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError, ConnectionError, TimeoutError)
    if caused_by(*offline) or any(sign in text for sign in _OFFLINE_SIGNS):
        why = f"{name} is not on this machine and {why_offline()}."
        remedy = "Give a local folder, set HF_HOME to a filled cache, or use --pair mini."
        return UnavailableError(why, flag=flag, remedy=remedy)
    if caused_by(errors.RepositoryNotFoundError) or any(sign in text for sign in _UNKNOWN_SIGNS):
        why = f"no model {name} was found on the hub, or it is private."
        remedy = "Check its name; for a private one log in with `hf auth login`."
        return UnavailableError(why, flag=flag, remedy=remedy)
    if {getattr(getattr(cause, "response", None), "status_code", None) for cause in causes} & {401, 403}:
        why = f"the hub refuses access to {name}."
        return UnavailableError(why, flag=flag, remedy="Check HF_TOKEN, or log in with `hf auth login`.")
    return None


def quiet_libraries() -> None:
    """Disable progress bars and warnings; failures are still raised."""
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]
    from transformers.utils import logging as their_logging

    their_logging.set_verbosity_error()
    their_logging.disable_progress_bar()
    disable_progress_bars()
    # transformers imports torchao if installed, which prints what it cannot use on this machine.
    for name in ("torchao", "torch.utils._pytree", "accelerate", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="Not enough free disk space")  # an error with a remedy says so
