"""Keep progress bars and log messages of the Hugging Face libraries off the terminal."""

from __future__ import annotations


def quiet_libraries() -> None:
    """Disable progress bars and warnings; failures are still raised."""
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    disable_progress_bars()
