"""Keep the Hugging Face libraries' own bars and chatter out of the terminal."""

from __future__ import annotations


def quiet_libraries() -> None:
    """No progress bars, no advice on stderr; errors still come as exceptions."""
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    disable_progress_bars()
