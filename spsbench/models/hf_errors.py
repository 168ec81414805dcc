"""The Hugging Face libraries' exceptions as typed errors with a remedy, and their messages silenced."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from spsbench.errors import SpsbenchError, UnavailableError, UsageError

_OFFLINE = ("couldn't connect", "cannot find an appropriate cached", "offline mode", "name resolution")
_ABSENT = ("is not a local folder", "is not a valid model identifier", "404 client error")


_ANSWERS_WITHIN_S = 10.0
_reached: set[str] = set()


@contextmanager
def offline_unless_reached() -> Iterator[None]:
    """Work without the hub while it cannot be reached: its client would ask for each file six times, for half
    a minute. A hub that answered once is not asked again."""
    from huggingface_hub import constants, get_session

    before = constants.HF_HUB_OFFLINE
    if not before and constants.ENDPOINT not in _reached:
        try:
            get_session().head(constants.ENDPOINT, timeout=_ANSWERS_WITHIN_S)
            _reached.add(constants.ENDPOINT)
        except Exception:  # whatever its HTTP library raises
            constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextmanager
def typed_errors(name: str, flag: str) -> Iterator[None]:
    """Re-raise an exception of the block as ``typed_error`` makes it; errors of spsbench pass through."""
    elsewhere = ":" not in name and not Path(name).expanduser().exists()
    try:
        with offline_unless_reached() if elsewhere else nullcontext():
            yield
    except SpsbenchError:
        raise
    except Exception as error:
        raise typed_error(error, name, flag) from error


def typed_error(error: Exception, name: str, flag: str) -> SpsbenchError:
    """The typed error for a failure to find or read a model."""
    first_line = next(iter(str(error).splitlines()), type(error).__name__)
    return (
        _of_this_machine(error, name, flag)
        or _of_the_hub(error, name, flag)
        or UnavailableError(
            f"{name} cannot be read: {first_line}", flag=flag, remedy="Download or save the model again."
        )
    )


def _of_this_machine(error: Exception, name: str, flag: str) -> SpsbenchError | None:
    """Local causes: too little memory, a missing package, custom code, an unknown architecture."""
    import torch

    text = str(error)
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return SpsbenchError(
            f"not enough memory to load {name}.",
            flag=flag,
            remedy="Choose a smaller model, --dtype bfloat16 or another --device.",
        )
    if "trust_remote_code" in text:
        return UsageError(
            f"{name} ships custom model code, which spsbench does not run.",
            flag=flag,
            remedy="Choose a model whose architecture is part of transformers.",
        )
    if "does not recognize this architecture" in text:
        return UsageError(
            f"{name} has an architecture that the installed transformers does not support.",
            flag=flag,
            remedy="Upgrade transformers, or choose another model.",
        )
    if isinstance(error, ImportError) or "pip install" in text:
        return UnavailableError(
            f"{name} needs a package that is not installed: {' '.join(text.split())}",
            flag=flag,
            remedy="Install it, or choose a checkpoint without it.",
        )
    return None


def _of_the_hub(error: Exception, name: str, flag: str) -> SpsbenchError | None:
    """Causes at the hub: gated, unknown, no such revision, unreachable."""
    from huggingface_hub import errors

    causes = list(_causes(error))
    text = " ".join(str(cause) for cause in causes).lower()
    if any(isinstance(cause, errors.GatedRepoError) for cause in causes):
        return UnavailableError(
            f"{name} is gated.",
            flag=flag,
            remedy="Accept its licence on the hub, then log in with `hf auth login` or set HF_TOKEN.",
        )
    if any(isinstance(cause, errors.RevisionNotFoundError) for cause in causes):
        return UnavailableError(
            f"{name} has no such revision.", flag=flag, remedy="Check --revision and --draft-revision."
        )
    offline = (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError, ConnectionError, TimeoutError)
    if any(isinstance(cause, offline) for cause in causes) or any(word in text for word in _OFFLINE):
        return UnavailableError(
            f"{name} is not on this machine and the hub cannot be reached.",
            flag=flag,
            remedy="Give a local folder, set HF_HOME to a filled cache, or use --pair mini.",
        )
    absent = any(isinstance(cause, errors.RepositoryNotFoundError) for cause in causes)
    if absent or any(word in text for word in _ABSENT):
        return UnavailableError(
            f"no model {name} was found on the hub, or it is private.",
            flag=flag,
            remedy="Check its name; for a private one log in with `hf auth login`.",
        )
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def quiet_libraries() -> None:
    """Disable progress bars and warnings; failures are still raised."""
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]
    from transformers.utils import logging as their_logging

    their_logging.set_verbosity_error()
    their_logging.disable_progress_bar()
    disable_progress_bars()
    # Where torchao is installed transformers imports it, and it says what it does not use on this machine.
    for name in ("torchao", "torch.utils._pytree", "accelerate", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
