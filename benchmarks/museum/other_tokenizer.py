"""transformers' ``generate()`` with an assistant whose tokenizer is another: a worker of the museum.

The draft gets tokens that the target does not have. Then transformers prunes the rows of its head to the
tokens that both have, in the order of ``get_vocab()``, and reads them back in that of their ids. Option
``mended`` sorts the first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spsbench.base import Described, Load
from spsbench.parts.external.serving import serve
from spsbench.parts.external.workers.transformers import Transformers

OWN_TOKENS = 8


class OtherTokenizer(Transformers):
    """As the worker of transformers, where the draft has tokens of its own."""

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        folders = load.target, load.draft
        self._tokenizers = [self._library.AutoTokenizer.from_pretrained(folder) for folder in folders]
        assistant = self._tokenizers[1]
        assistant.add_tokens([f"<own-{number}>" for number in range(OWN_TOKENS)])
        self._draft.resize_token_embeddings(len(assistant))
        if load.options.get("mended"):
            _mend()

    def describe(self) -> Described:
        described = super().describe()
        mended = ", mended" if self._load.options.get("mended") else ""
        return replace(described, version=described.version + mended)

    def _who_drafts(self) -> dict[str, Any]:
        target, assistant = self._tokenizers
        return super()._who_drafts() | {"tokenizer": target, "assistant_tokenizer": assistant}


def _mend() -> None:
    """Have the tokens of both in the order of the draft's ids."""
    from transformers.generation.candidate_generator import AssistantToTargetTranslator

    released = AssistantToTargetTranslator._get_assistant_to_target_input_ids

    def ordered(self: Any) -> tuple[Any, dict[int, int]]:
        there, back = released(self)
        return there, dict(sorted(back.items(), key=lambda both: both[1]))

    AssistantToTargetTranslator._get_assistant_to_target_input_ids = ordered


if __name__ == "__main__":
    serve(OtherTokenizer)
