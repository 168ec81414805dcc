"""What the driver and a worker say to each other; the standard library alone, for any interpreter."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

ARS, SPS = "ars", "sps"


@dataclass(frozen=True)
class Settings:
    """The first line a worker reads: what it is to load.

    Attributes:
        target, draft: paths in the form that the engine reads; no draft: autoregressive.
        k: lookahead; without effect where there is no draft.
        threads: of the engine's own pool.
        cores: CPUs to stay on; empty: wherever the system puts it.
        context: the longest sequence, prompt and output, in tokens.
        options: what this engine alone needs.
    """

    target: str
    draft: str | None
    k: int
    threads: int
    cores: tuple[int, ...]
    context: int
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def speculative(self) -> bool:
        """Whether a draft proposes."""
        return self.draft is not None


@dataclass(frozen=True)
class Loaded:
    """A worker's first answer.

    Attributes:
        version: of the engine, as itself says.
    """

    version: str


@dataclass(frozen=True)
class Request:
    """One greedy sequence.

    Attributes:
        prompt_ids: token ids of the prompt.
        max_new_tokens: the length limit.
        stop_ids: tokens that end the output: EOS, and every token that holds one of ``stop``.
        stop: single characters that end the output, for engines that take strings only.
    """

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    stop_ids: tuple[int, ...]
    stop: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """What came of a request.

    Attributes:
        output_ids: emitted token ids, with the one that ended the output.
        prefill_ms: until decoding began.
        decode_ms: of decoding alone.
        decoded: tokens that ``decode_ms`` paid for. An engine whose prefill gives the first token has one
            fewer than it emitted.
        loops: target calls in ``decode_ms``; None where the engine does not tell.
        hidden_stop: the token that ended the output was decoded and is not among ``output_ids``.
    """

    output_ids: tuple[int, ...]
    prefill_ms: float
    decode_ms: float
    decoded: int
    loops: int | None = None
    hidden_stop: bool = False


@dataclass(frozen=True)
class Failure:
    """An answer in place of any other: what went wrong, in a line."""

    error: str


Message = Settings | Loaded | Request | Answer | Failure


def written(message: Message) -> str:
    """The line that ``read`` takes."""
    return json.dumps({type(message).__name__: asdict(message)}) + "\n"


def read(line: str) -> Message:
    """The message of a line.

    Raises:
        ValueError: the line is none.
    """
    kinds: dict[str, Callable[..., Message]] = {
        kind.__name__: kind for kind in (Settings, Loaded, Request, Answer, Failure)
    }
    found = json.loads(line)
    if not isinstance(found, dict) or len(found) != 1 or not kinds.keys() >= found.keys():
        raise ValueError(f"no message: {line[:200]!r}")
    ((name, fields),) = found.items()
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    return kinds[name](**plain)
