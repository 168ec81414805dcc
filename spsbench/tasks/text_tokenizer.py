"""What tasks ask of a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class TextTokenizer(Protocol):
    """Text to token ids and back; ``spsbench.models.tokenizer`` has the real one."""

    @property
    def has_chat_template(self) -> bool:
        """Whether there is one."""

    @property
    def is_instruct(self) -> bool:
        """Whether the model learned it."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids of a text; ``special`` adds what begins a prompt (BOS)."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""

    def chat(self, text: str) -> list[int]:
        """Token ids of a user's message in the chat template, up to where the answer begins."""

    def conversation(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()
    ) -> list[int]:
        """The same for messages with ``role`` and ``content``; ValueError if the template refuses them.

        ``developer`` is put as ``system`` where the template does not take it.
        """

    def unused_in(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[str]:
        """Which of tools, calls of tools and names the template does not write."""

    def template_variables(self) -> set[str]:
        """What the chat template reads and a caller may set."""

    def with_template_args(self, variables: Mapping[str, Any]) -> TextTokenizer:
        """The same with these variables of the template."""

    def takes_role(self, role: str) -> bool:
        """Whether the chat template writes what a message of this role, the first of a chat, says."""

    def begun_chat(self, text: str, answer: str) -> list[int] | None:
        """The same with the answer's beginning after it; None if the template does not allow one."""
