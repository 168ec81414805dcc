"""The Hugging Face libraries' exceptions as typed errors with a remedy, and their messages silenced."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from spsbench.errors import DeviceFault, SpsbenchError, UnavailableError, UsageError

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
    """The typed error for a failure to find or read a model: of this machine, then of the hub."""
    from huggingface_hub import errors as hub

    from spsbench.models.faults import NEEDS_LESS, SEE_DRIVER, is_out_of_memory, of_a_device

    text, causes = str(error), list(_causes(error))
    all_text = " ".join(map(str, causes)).lower()

    def caused_by(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    def says(*signs: str) -> bool:
        return any(sign in all_text for sign in signs)

    found: tuple[tuple[bool, type[SpsbenchError], str, str], ...] = (
        (is_out_of_memory(error), SpsbenchError, f"not enough memory to load {name}.", NEEDS_LESS),
        (
            (reported := of_a_device(error)) is not None,
            DeviceFault,
            f"the device failed while {name} was loaded: {reported}.",
            SEE_DRIVER,
        ),
        (
            "trust_remote_code" in text,
            UsageError,
            f"{name} ships custom model code, which spsbench does not run.",
            "Choose a model whose architecture is part of transformers.",
        ),
        (
            "does not recognize this architecture" in text,
            UsageError,
            f"{name} has an architecture that the installed transformers does not support.",
            "Upgrade transformers, or choose another model.",
        ),
        (
            isinstance(error, ImportError) or "pip install" in text,
            UnavailableError,
            f"{name} needs a package that is not installed: {' '.join(text.split())}",
            "Install it, or choose a checkpoint without it.",
        ),
        (
            caused_by(hub.GatedRepoError),
            UnavailableError,
            f"{name} is gated.",
            "Accept its licence on the hub, then log in with `hf auth login` or set HF_TOKEN.",
        ),
        (
            caused_by(hub.RevisionNotFoundError),
            UnavailableError,
            f"{name} has no such revision.",
            "Check --revision and --draft-revision.",
        ),
        (
            caused_by(hub.OfflineModeIsEnabled, hub.LocalEntryNotFoundError, ConnectionError, TimeoutError)
            or says(
                "couldn't connect", "cannot find an appropriate cached", "offline mode", "name resolution"
            ),
            UnavailableError,
            f"{name} is not on this machine and the hub cannot be reached.",
            "Give a local folder, set HF_HOME to a filled cache, or use --pair mini.",
        ),
        (
            caused_by(hub.RepositoryNotFoundError)
            or says("is not a local folder", "is not a valid model identifier", "404 client error"),
            UnavailableError,
            f"no model {name} was found on the hub, or it is private.",
            "Check its name; for a private one log in with `hf auth login`.",
        ),
        (
            says("backend tokenizer from one of"),
            UnavailableError,
            f"{name} has no tokenizer.json, and no other file that a tokenizer can be made from.",
            "Save the tokenizer into the same folder.",
        ),
        (
            True,
            UnavailableError,
            f"{name} cannot be read: {next(iter(text.splitlines()), type(error).__name__)}",
            "Download or save the model again.",
        ),
    )
    _, kind, message, remedy = next(row for row in found if row[0])
    return kind(message, flag=flag, remedy=remedy)


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
