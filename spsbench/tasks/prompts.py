"""A file of the user's prompts, in common layouts.

Each record is read by the one field of these that it has:

    prompt          a text that is continued as it stands
    messages        role and content, through the chat template
    turns           what a user says, turn by turn (Spec-Bench, MT-Bench, SPEED-Bench)
    conversations   from and value (ShareGPT)

Of ``messages`` the last of the user's is asked, and what stands before it is its context; on request every
turn is its own sequence, as it always is of ``conversations``. What was answered before a turn comes from
the file: with an answer of the arm's own each arm would have another prompt, and there would be nothing to
pair. Where the file has no answer, the turns after it are left out and counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spsbench.errors import UnavailableError
from spsbench.records import Example
from spsbench.tasks.sources import Row, bad_data, read_rows, read_text, required_column, unique, well_formed

ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".parquet", ".txt")

Message = dict[str, str]

PROMPT, MESSAGES, TURNS, CONVERSATIONS = LAYOUTS = ("prompt", "messages", "turns", "conversations")
TURN = "turn"

_SPEAKERS = {"system": "system", "human": "user", "user": "user"} | dict.fromkeys(
    ("gpt", "chatgpt", "assistant"), "assistant"
)
_ROLES = ("system", "user", "assistant")

# What the published SPEED-Bench has instead of texts that it may not pass on.
_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"


@dataclass(frozen=True, slots=True)
class PromptsFile:
    """What a file holds.

    Attributes:
        examples: one per sequence, in the file's order. Its ``fields`` hold a ``prompt`` (continued as it
            stands), a ``turn`` (a user's only message) or ``messages``, and where the file has them
            ``category`` and ``references``, of which the best counts.
    """

    examples: list[Example]
    later_turns: int
    unasked: int

    def has(self, field: str) -> bool:
        """Whether an example has this field."""
        return any(field in example.fields for example in self.examples)


@dataclass(frozen=True, slots=True)
class _Record:
    """One record of the file: what is asked turn by turn, and how many turns were left out."""

    row: Row
    name: str
    asked: list[dict[str, Any]]
    later_turns: int


def is_prompts_file(name: str) -> bool:
    """Whether a TASK is the path of a prompts file, by its ending."""
    return name.endswith(ENDINGS)


def read_prompts_file(path: Path, *, every_turn: bool = False) -> PromptsFile:
    """The examples of a file."""
    try:
        records = [_record(row, str(number), every_turn) for number, row in enumerate(_rows(path), start=1)]
        asked = [record for record in records if record.asked]
        unique((record.name, record.row) for record in records)
        named = [(example, record.row) for record in asked for example in _examples(record)]
        unique((example.example_id, row) for example, row in named)
        if not named:
            raise bad_data(f"{path} holds no prompt.", "Give a file with at least one.")
    except UnavailableError as error:
        raise UnavailableError(error.message, flag="TASK", remedy=error.remedy) from error
    later = sum(record.later_turns for record in records)
    return PromptsFile([example for example, _ in named], later, len(records) - len(asked))


def _rows(path: Path) -> list[Row]:
    if not path.is_file():
        raise bad_data(f"{path} does not exist.", "Give the path of a prompts file.")
    if path.suffix == ".txt":
        rows = list(_lines(path))
    elif path.suffix == ".json":
        rows = list(_items(path))
    else:
        return read_rows(path, split="test")
    if not rows:
        raise bad_data(f"{path} holds no prompt.", "Give a file with at least one.")
    return rows


def _lines(path: Path) -> Iterator[Row]:
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        text = line.removesuffix("\r")
        if text.strip():
            yield Row(f"line {number} of {path}", {PROMPT: text})


def _items(path: Path) -> Iterator[Row]:
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise bad_data(
            f"{path} is not JSON ({error}).", "Correct it, or call a file of JSON lines .jsonl."
        ) from error
    if not isinstance(content, list):
        raise bad_data(f"{path} is not a JSON list.", "Write a list of objects.")
    for number, item in enumerate(content, start=1):
        if not isinstance(item, dict):
            raise bad_data(f"item {number} of {path} is not an object.", "Write a list of objects.")
        yield Row(f"item {number} of {path}", item)


def _record(row: Row, number: str, every_turn: bool) -> _Record:
    asked, later_turns = _asked(row)
    category = {} if row.fields.get("category") is None else {"category": required_column(row, "category")}
    references = _references(row, len(asked) + later_turns)
    fields = [
        {**own, **category, **({"references": texts} if texts else {})}
        for own, texts in zip(asked, references, strict=False)
    ]
    if not every_turn and row.fields.get(MESSAGES) is not None:
        fields = fields[-1:]
    return _Record(row, _name(row, number), fields, later_turns)


def _asked(row: Row) -> tuple[list[dict[str, Any]], int]:
    """(the fields of each sequence, turns left out)."""
    layout = _layout(row)
    if layout == PROMPT:
        return [{PROMPT: _whole(required_column(row, PROMPT), row)}], 0
    if layout == TURNS:
        texts = _user_turns(row)
        return [{TURN: texts[0]}], len(texts) - 1
    cut, later_turns = _by_turn(_messages(row) if layout == MESSAGES else _conversation(row))
    return [{MESSAGES: messages} for messages in cut], later_turns


def _layout(row: Row) -> str:
    found = [name for name in LAYOUTS if row.fields.get(name) is not None]
    if len(found) == 1:
        return found[0]
    if found:
        raise bad_data(f"{row.place} has both {' and '.join(found)}.", "Keep one of them.")
    known = ", ".join(row.fields) or "none"
    raise bad_data(f"{row.place} has none of {', '.join(LAYOUTS)} (its fields: {known}).", "Add one of them.")


def _name(row: Row, number: str) -> str:
    """The record's own id, else its number in the file."""
    names = [name for name in ("id", "question_id") if row.fields.get(name) is not None]
    return required_column(row, *names) if names else number


def _examples(record: _Record) -> Iterator[Example]:
    several = len(record.asked) > 1
    for turn, fields in enumerate(record.asked, start=1):
        name = f"{record.name}/{turn}" if several else record.name
        yield Example(name, fields, next(iter(fields.get("references", ())), ""))


def _user_turns(row: Row) -> list[str]:
    turns = _listed(row, TURNS)
    for text in turns:
        if not isinstance(text, str) or not text.strip():
            raise bad_data(f"{row.place}: turns holds {text!r:.60} instead of text.", "Correct the row.")
    if not turns:
        raise bad_data(f"{row.place}: turns is empty.", "Fill it in or remove the row.")
    return [_whole(text, row) for text in turns]


def _messages(row: Row) -> list[Message]:
    messages = [
        _message(row, number, part, "role", "content", dict(zip(_ROLES, _ROLES, strict=True)))
        for number, part in enumerate(_listed(row, MESSAGES), start=1)
    ]
    if not any(message["role"] == "user" for message in messages):
        raise bad_data(f"{row.place}: messages has none of the role user.", "Add what is asked.")
    return messages


def _conversation(row: Row) -> list[Message]:
    """ShareGPT's messages; none if no user begins them, as in the published file now and then."""
    parts = enumerate(_listed(row, CONVERSATIONS), start=1)
    messages = [_message(row, number, part, "from", "value", _SPEAKERS) for number, part in parts]
    said = [message["role"] for message in messages if message["role"] != "system"]
    return messages if said[:1] == ["user"] else []


def _listed(row: Row, name: str) -> list[Any]:
    value = row.fields[name]
    if not isinstance(value, list):
        raise bad_data(f"{row.place}: {name} holds {value!r:.60} instead of a list.", "Correct the row.")
    return value


def _message(row: Row, number: int, part: Any, role: str, content: str, roles: dict[str, str]) -> Message:
    place = f"{row.place}: message {number}"
    if not isinstance(part, dict) or role not in part or content not in part:
        raise bad_data(f"{place} lacks {role!r} or {content!r}.", "Give every message both.")
    who, text = part[role], part[content]
    if who not in roles:
        raise bad_data(f"{place} has the {role} {who!r:.40}.", f"Known: {', '.join(roles)}.")
    if not isinstance(text, str):
        raise bad_data(f"{place} holds {text!r:.60} instead of text.", "Correct the row.")
    if roles[who] == "user" and not text.strip():
        raise bad_data(f"{place} is empty.", "Fill it in or remove the row.")
    return {"role": roles[who], "content": _whole(text, row)}


def _by_turn(messages: list[Message]) -> tuple[list[list[Message]], int]:
    """(what each of the answers continues, user turns left out for want of an answer before them)."""
    asked = [place for place, message in enumerate(messages) if message["role"] == "user"]
    cut: list[list[Message]] = []
    for number, place in enumerate(asked, start=1):
        cut.append(messages[: place + 1])
        if place + 1 < len(messages) and messages[place + 1]["role"] != "assistant":
            return cut, len(asked) - number
    return cut, 0


def _references(row: Row, turns: int) -> list[list[str]]:
    """The references to each turn.

    One text belongs to the last turn. A list has one entry a turn (null for none); of a single turn it
    holds all references, of which the best counts.
    """
    value = row.fields.get("reference")
    none: list[list[str]] = [[] for _ in range(turns)]
    if value is None or not turns:
        return none
    texts = value if isinstance(value, list) else [value]
    for text in texts:
        if not (isinstance(text, str) and text.strip()) and not (text is None and turns > 1):
            raise bad_data(f"{row.place}: reference holds {text!r:.60} instead of text.", "Correct the row.")
    if turns == 1 or not isinstance(value, list):
        return [*none[:-1], texts]
    if len(texts) not in (0, turns):
        raise bad_data(
            f"{row.place}: reference has {len(texts)} for {turns} turns.", "Give each turn one, or null."
        )
    return [[] if text is None else [text] for text in texts] or none


def _whole(text: str, row: Row) -> str:
    if _PLACEHOLDER in text:
        raise bad_data(
            f"{row.place} holds SPEED-Bench's placeholder in place of a text.",
            "Prepare the file with SPEED-Bench's own script, which fetches the texts.",
        )
    return well_formed(text, row)
