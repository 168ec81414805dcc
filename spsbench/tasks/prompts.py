"""A file of the user's prompts, in common layouts: used as they are, and only EOS ends an output.

Each record is read by the one field of these that it has:

    prompt          a text that is continued as it stands
    messages        role and content, through the chat template
    turns           what a user says, turn by turn (Spec-Bench, MT-Bench, SPEED-Bench)
    conversations   from and value (ShareGPT)
    body            a request of OpenAI's Batch API: its messages, prompt or input; custom_id is the id

What is said may be a list of parts, of which those of text are joined by line ends. Beside ``messages`` may
stand ``tools``, in a message ``tool_calls``, ``tool_call_id`` and ``name``: they go through the template, and
what it does not write is counted. Of ``body`` nothing else is used, and what is not is named. A record of
``conversations`` that cannot be read is left out and counted: published files hold some, and nobody can mend
them. Any other record is refused by its place.

Of ``messages`` the last of the user's is asked, and what stands before it is its context; on request every
turn is its own sequence, as it always is of ``conversations``. What was answered before a turn comes from
the file, so that all arms have the same prompts; where the file has no answer, the turns after it are left
out and counted. With own answers, what is asked of an arm is its first turn and, behind its own answers, all
later ones (``conversation``).
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.base.files import open_file, opened
from spsbench.base.records import Example, Prompt, SamplingParams
from spsbench.config.files import file_name
from spsbench.tasks.conversation import Conversation, Message
from spsbench.tasks.messages import LAST_ANSWER, FileRead
from spsbench.tasks.metrics.builtin import ROUGE
from spsbench.tasks.metrics.kind import scores
from spsbench.tasks.sources import (
    DataRow,
    bad_data,
    distinct,
    item_rows,
    line_rows,
    misfit,
    read_rows,
    required_column,
    required_label,
    well_formed,
)
from spsbench.tasks.task import Frame, Task, TaskData, sha256_of, task_data
from spsbench.tasks.text_tokenizer import TextTokenizer

ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".parquet", ".txt")

LAYOUTS = ("prompt", "messages", "turns", "conversations", "body")
PROMPT, MESSAGES, TURNS, CONVERSATIONS, BODY = LAYOUTS
TURN = "turn"
LATER = "later"
DEVELOPER = "developer"

_SPEAKERS = {"system": "system", "human": "user", "user": "user"} | dict.fromkeys(
    ("gpt", "chatgpt", "assistant"), "assistant"
)
_TOOL = "tool"
_ROLES = ("system", DEVELOPER, "user", "assistant", _TOOL)
TOOLS, _CALLS, _CALL_ID, _NAME = "tools", "tool_calls", "tool_call_id", "name"
_OF_REQUEST = (
    "system",
    "instructions",
    "documents",
    "functions",
    "function_call",
    "tool_choice",
    "response_format",
    "chat_template",
    "chat_template_kwargs",
    "max_tokens",
    "max_completion_tokens",
    "max_new_tokens",
    "stop",
    "seed",
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
)
"""What a record may say of its own request, by the names of servers and data sets; a run asks all alike."""

_OF_MESSAGE = ("role", "content", _CALLS, _CALL_ID, _NAME)

_TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of parts that hold text, of OpenAI's two APIs."""

_BATCH_ID = "custom_id"
_BATCH_URLS = ("/chat/completions", "/completions", "/responses")

# What the published SPEED-Bench has instead of texts that it may not pass on.
_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"

DATA_FIELDS = {
    "humaneval": ("task_id", "prompt", "entry_point", "test"),
    "xsum": ("document", "summary"),
    "cnndm": ("article", "highlights"),
}
"""The fields by which a file is the data of a task."""


def is_prompts_file(name: str) -> bool:
    """Return whether a TASK is the path of a prompts file, by its ending."""
    return name.endswith(ENDINGS)


def layout_of(name: str | None) -> FileRead | None:
    """How a file given as TASK is read; no more of it than its first record is looked at.

    None for what is not the path of a file of prompts or data. A file that cannot be read, or whose first
    record is not an object, counts as prompts: the reader of prompts says what is wrong with it.
    """
    if name is None or not name.endswith((*ENDINGS, ".csv")) or not Path(name).is_file():
        return None
    path = Path(name)
    try:
        record = None if path.suffix == ".txt" else _first_record(path)
    except (OSError, ValueError, RecursionError):
        record = None
    if not isinstance(record, (dict, list)):
        return FileRead(name, None, ())
    fields = set(map(str, record))
    known = LAYOUTS if _BATCH_ID in fields else LAYOUTS[:-1]  # a body may be an article's, too
    prompts = tuple(name for name in known if name in fields)
    for task, needed in DATA_FIELDS.items():
        # HumanEval's rows have a prompt, too; beside the fields of other data a prompt is what is meant.
        if fields.issuperset(needed) and not set(prompts).difference(needed):
            return FileRead(name, task, needed)
    if prompts and path.suffix == ".csv":
        remedy = f"Give {', '.join(ENDINGS)}."
        raise UsageError(f"{path} holds prompts as CSV, which is not read.", flag="TASK", remedy=remedy)
    if prompts:
        return FileRead(name, None, prompts)
    expected = "; ".join(f"data of {task}: {', '.join(needed)}" for task, needed in DATA_FIELDS.items())
    found = ", ".join(sorted(fields)) or "none"
    raise UsageError(
        f"{path} holds neither prompts nor a task's data (its fields: {found}).",
        flag="TASK",
        remedy=f"Expected one of {', '.join(LAYOUTS)} for prompts; {expected}.",
    )


def _first_record(path: Path) -> Any:
    """The first record, or the names of its fields alone."""
    if path.suffix == ".parquet":
        from pyarrow import parquet

        with open_file(path) as table:
            return parquet.read_schema(table).names
    with opened(path) as file:
        if path.suffix == ".json":  # a list, of which only the beginning may be there
            start = file.read(1 << 20).decode(errors="ignore").lstrip("\ufeff \t\r\n")
            return json.JSONDecoder().raw_decode(start[1:].lstrip())[0] if start.startswith("[") else None
        line = next((line for line in file if line.strip()), b"").decode("utf-8-sig")
    return next(csv.reader([line]), None) if path.suffix == ".csv" else json.loads(line)


@dataclass(frozen=True, slots=True)
class PromptsFile:
    """What a file holds: one example per sequence, in the file's order. Its ``fields`` hold a ``prompt``
    (continued as it stands), a ``turn`` (a user's only message) or ``messages``, and where the file has them
    ``category`` and ``references``, of which the best counts. ``left_out`` counts records by why they are
    not used, ``ignored`` those that have a field which is not used, by field."""

    examples: list[Example]
    later_turns: int
    left_out: dict[str, int]
    ignored: dict[str, int]
    unasked_turns: int = 0

    def of_first_turns(self) -> PromptsFile:
        """The same without what is asked after a model's own answer, which is counted as not asked."""
        later = sum(len(example.fields.get(LATER, ())) for example in self.examples)
        bare = [
            replace(example, fields={name: value for name, value in example.fields.items() if name != LATER})
            for example in self.examples
        ]
        return replace(self, examples=bare, unasked_turns=later)

    def has(self, field: str) -> bool:
        """Whether an example has this field."""
        return any(field in example.fields for example in self.examples)


@dataclass(frozen=True, slots=True)
class _Record:
    """One record of the file: what is asked turn by turn, how many turns were left out, and whether it is one
    of ``conversations``."""

    name: str
    sequences: list[dict[str, Any]]
    later_turns: int
    is_conversation: bool


_MOST_REASONS = 12
"""For which conversations are left out, each named: a file may have a speaker of its own in each."""


class _Unusable(Exception):
    """A conversation that is left out; the message says of what kind it is."""


_NO_TURN = "without a turn"


def read_prompts_file(path: Path, *, every_turn: bool = False, own_answers: bool = False) -> PromptsFile:
    """Return the examples of a file.

    Args:
        every_turn: of ``messages`` each turn is an example of its own, as it is of ``conversations``.
        own_answers: a conversation is one example, of its first turn, whose field ``later`` has the other
            turns: each is asked after the model's own answer, and those in the file are not used.
    """
    left_out, ignored = Counter[str](), Counter[str]()
    first: dict[str, str] = {}
    kept: list[tuple[_Record, DataRow]] = []
    names: set[str] = set()
    try:
        for number, row in enumerate(_rows(path), start=1):
            row, unused = _request(row)
            ignored.update([*unused, *_unread_fields(row)])
            try:
                record = _record(row, str(number), every_turn, own_answers)
                if record.name in names and record.is_conversation:
                    raise _Unusable("whose id stands before")
            except _Unusable as problem:
                why = str(problem)
                why = why if why in left_out or len(left_out) < _MOST_REASONS else "odd in other ways"
                left_out[why] += 1
                first.setdefault(why, row.place)
                continue
            names.add(record.name)
            kept.append((record, row))
        records = distinct(kept, lambda record: record.name)
        examples = distinct((example, row) for record, row in kept for example in _examples(record))
        if not examples:
            raise _nothing_in(path, left_out, first)
    except UnavailableError as error:
        raise UnavailableError(error.message, flag="TASK", remedy=error.remedy) from error
    later = sum(record.later_turns for record in records)
    return PromptsFile(examples, later, dict(left_out), dict(ignored))


def _nothing_in(path: Path, left_out: Mapping[str, int], first: Mapping[str, str]) -> UnavailableError:
    reasons = "; ".join(f"{count} {why} (first: {first[why]})" for why, count in left_out.items())
    what = f"; conversations that were left out: {reasons}" if reasons else ""
    return bad_data(f"{path} holds no prompt{what}.", "Give a file with at least one.")


def _rows(path: Path) -> list[DataRow]:
    if not path.is_file():
        why = "is a folder" if path.is_dir() else "does not exist"
        raise bad_data(f"{path} {why}.", "Give the path of a prompts file.")
    if path.suffix == ".txt":
        rows = list(line_rows(path, PROMPT))
    elif path.suffix == ".json":
        rows = list(item_rows(path))
    else:
        return read_rows(path, split="test")
    if not rows:
        raise bad_data(f"{path} holds no prompt.", "Give a file with at least one.")
    return rows


def _request(row: DataRow) -> tuple[DataRow, list[str]]:
    """A line of OpenAI's Batch API as a row of messages or of a prompt, and which fields of its body are not
    used; any other row as it is."""
    body = row.fields.get(BODY)
    if body is None or any(row.fields.get(name) is not None for name in LAYOUTS[:-1]):
        return row, []
    if not isinstance(body, dict):
        raise misfit(f"{row.place}: body", body, "an object")
    url = row.fields.get("url")
    if url is not None and not str(url).endswith(_BATCH_URLS):
        raise bad_data(
            f"{row.place}: url is {url!r:.60}, which writes no text.",
            f"Keep those of {', '.join(_BATCH_URLS)}.",
        )
    found = [name for name in (MESSAGES, PROMPT, "input") if body.get(name) is not None]
    if len(found) != 1:
        has = " and ".join(found) or f"none of {MESSAGES}, {PROMPT}, input"
        raise bad_data(f"{row.place}: body has {has}.", "Give it one of them.")
    asked, used = body[found[0]], {*found}
    if found == [PROMPT] and isinstance(asked, list) and len(asked) == 1:
        asked = asked[0]
    if found == ["input"]:
        asked = asked if isinstance(asked, list) else [{"role": "user", "content": asked}]
        if (instructions := body.get("instructions")) is not None:
            used.add("instructions")
            asked = [{"role": "system", "content": instructions}, *asked]
    beside = {name: value for name, value in row.fields.items() if name not in (BODY, TOOLS)}
    taken = {PROMPT if found == [PROMPT] else MESSAGES: asked}
    if MESSAGES in taken and body.get(TOOLS) is not None:
        used.add(TOOLS)
        taken[TOOLS] = body[TOOLS]
    if row.fields.get(_BATCH_ID) is not None:
        taken["id"] = row.fields[_BATCH_ID]
    unused = [f"body.{name}" for name, value in body.items() if name not in used and value is not None]
    return DataRow(row.place, beside | taken), unused


def _unread_fields(row: DataRow) -> Iterator[str]:
    """Those that say what a model is given."""
    messages = row.fields.get(MESSAGES)
    if messages is None and row.fields.get(TOOLS):
        yield TOOLS
    yield from (name for name in _OF_REQUEST if row.fields.get(name) not in (None, [], {}, ""))
    if isinstance(messages, list):
        roles = [each.get("role") for each in messages if isinstance(each, dict)]
        if "user" in roles[:-1] and roles[-1] == "assistant":
            yield LAST_ANSWER
        told = {
            key
            for each in messages
            if isinstance(each, dict)
            for key in each
            if each[key] not in (None, [], "")
        }
        yield from (f"messages[].{key}" for key in sorted(map(str, told.difference(_OF_MESSAGE))))


def _record(row: DataRow, number: str, every_turn: bool, own_answers: bool) -> _Record:
    is_conversation = [name for name in LAYOUTS if row.fields.get(name) is not None] == [CONVERSATIONS]
    try:
        return _strictly(row, number, every_turn, own_answers, is_conversation=is_conversation)
    except UnavailableError as problem:
        if not is_conversation:
            raise
        raise _Unusable("with an id, a category or a reference that is not text") from problem


def _strictly(
    row: DataRow, number: str, every_turn: bool, own_answers: bool, *, is_conversation: bool
) -> _Record:
    asked, later_turns = _turns_of(row) if own_answers else _sequences(row)
    references = _references(row, len(asked) + later_turns)
    category = {} if row.fields.get("category") is None else {"category": required_label(row, "category")}
    fields = [
        {**own, **category, **({"references": texts} if texts else {})}
        for own, texts in zip(asked, references, strict=False)
    ]
    if own_answers:
        first, *later = fields
        fields = [first | ({LATER: later} if later else {})]
    elif not every_turn and row.fields.get(MESSAGES) is not None:
        fields = fields[-1:]
    ids = [name for name in ("id", "question_id") if row.fields.get(name) is not None]
    name = required_label(row, *ids) if ids else number
    return _Record(name, fields, later_turns, is_conversation)


def _turns_of(row: DataRow) -> tuple[list[dict[str, Any]], int]:
    """(the fields of each turn, of a later one its own messages alone; 0): no turn is left out."""
    (found, *_), _ = _sequences(row)
    if PROMPT in found:
        return [found], 0
    if TURN in found:
        return [found, *({MESSAGES: [_user(text)]} for text in _user_turns(row)[1:])], 0
    said = _messages_of(
        row, next(name for name in (MESSAGES, CONVERSATIONS) if row.fields.get(name) is not None)
    )
    asked = [place for place, message in enumerate(said) if message["role"] == "user"]
    turns = [
        [one for one in said[last + 1 : at + 1] if one["role"] not in ("assistant", _TOOL)]
        for last, at in pairwise(asked)
    ]
    return [found, *({MESSAGES: turn} for turn in turns)], 0


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _sequences(row: DataRow) -> tuple[list[dict[str, Any]], int]:
    """(the fields of each sequence, turns left out)."""
    found = [name for name in LAYOUTS if row.fields.get(name) is not None]
    if not found and CONVERSATIONS in row.fields:
        raise _Unusable(_NO_TURN)
    if len(found) > 1:
        raise bad_data(f"{row.place} has both {' and '.join(found)}.", "Keep one of them.")
    if not found:
        known = ", ".join(row.fields) or "none"
        raise bad_data(
            f"{row.place} has none of {', '.join(LAYOUTS)} (its fields: {known}).", "Add one of them."
        )
    if found == [PROMPT]:
        return [{PROMPT: _whole(required_column(row, PROMPT), row)}], 0
    if found == [TURNS]:
        texts = _user_turns(row)
        return [{TURN: texts[0]}], len(texts) - 1
    cut, later_turns = _by_turn(_messages_of(row, *found))
    tools = {TOOLS: called} if found == [MESSAGES] and (called := _offered_tools(row)) else {}
    return [{MESSAGES: messages, **tools} for messages in cut], later_turns


def _offered_tools(row: DataRow) -> list[dict[str, Any]]:
    """Some data sets keep them as text."""
    value = row.fields.get(TOOLS)
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except ValueError:
            raise bad_data(f"{row.place}: tools is text and not valid JSON.", "Correct the row.") from None
    if not value:
        return []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise misfit(f"{row.place}: tools", value, "a list of objects")
    return value


def _examples(record: _Record) -> Iterator[Example]:
    several = len(record.sequences) > 1
    for turn, fields in enumerate(record.sequences, start=1):
        name = f"{record.name}/{turn}" if several else record.name
        yield Example(name, fields, next(iter(fields.get("references", ())), ""))


def _user_turns(row: DataRow) -> list[str]:
    turns = _listed(row, TURNS)
    for text in turns:
        if not isinstance(text, str) or not text.strip():
            raise misfit(f"{row.place}: turns", text, "text")
    if not turns:
        raise bad_data(f"{row.place}: turns is empty.", "Fill it in or remove the row.")
    return [_whole(text, row) for text in turns]


def _messages_of(row: DataRow, layout: str) -> list[Message]:
    if layout == CONVERSATIONS:
        return _sharegpt_messages(row)
    parts = enumerate(_listed(row, layout), start=1)
    messages = [_message(row, number, part) for number, part in parts]
    if "user" not in (message["role"] for message in messages):
        raise bad_data(f"{row.place}: messages has none of the role user.", "Add what is asked.")
    return messages


def _sharegpt_messages(row: DataRow) -> list[Message]:
    turns = row.fields[CONVERSATIONS]
    messages = list[Message]()
    if not isinstance(turns, list) or not turns:
        raise _Unusable(_NO_TURN)
    for turn in turns:
        who, text = (turn.get("from"), turn.get("value")) if isinstance(turn, dict) else (None, None)
        if not isinstance(who, str) or who not in _SPEAKERS:
            raise _Unusable("with a turn of nobody" if who is None else f"with a turn of {who!r:.40}")
        role = _SPEAKERS[who]
        if not isinstance(text, str):
            raise _Unusable("with a turn that holds no text")
        if role == "user" and not text.strip():
            raise _Unusable("with an empty turn of the user")
        try:
            messages.append({"role": role, "content": _whole(text, row)})
        except UnavailableError as problem:
            raise _Unusable("with half of a surrogate pair, or a placeholder") from problem
    if next((said["role"] for said in messages if said["role"] != "system"), None) != "user":
        raise _Unusable("that no user begins")
    return messages


def _listed(row: DataRow, name: str) -> list[Any]:
    value = row.fields[name]
    if not isinstance(value, list):
        raise misfit(f"{row.place}: {name}", value, "a list")
    return value


def _message(row: DataRow, number: int, part: Any) -> Message:
    place = f"{row.place}: message {number}"
    calls = _tool_calls(part, place) if isinstance(part, dict) else []
    if not isinstance(part, dict) or "role" not in part or ("content" not in part and not calls):
        raise bad_data(f"{place} lacks 'role' or 'content'.", "Give every message both.")
    role = part["role"]
    if role not in _ROLES:
        raise bad_data(f"{place} has the role {role!r:.40}.", f"Known: {', '.join(_ROLES)}.")
    text = "" if calls and part.get("content") is None else _said(part["content"], place)
    if role == "user" and not text.strip():
        raise bad_data(f"{place} is empty.", "Fill it in or remove the row.")
    named = {}
    for key in (_NAME, _CALL_ID):
        if (value := part.get(key)) is not None:
            if not isinstance(value, str):
                raise misfit(f"{place}: {key}", value, "text")
            named[key] = well_formed(value, row)
    return {"role": role, "content": _whole(text, row), **({_CALLS: calls} if calls else {}), **named}


def _tool_calls(part: Mapping[str, Any], place: str) -> list[dict[str, Any]]:
    """Arguments that are JSON text as templates want them."""
    value = part.get(_CALLS)
    if value is None:
        return []
    wrong = misfit(f"{place}: {_CALLS}", value, "a list of calls, each with function.name")
    if not isinstance(value, list):
        raise wrong
    calls = list[dict[str, Any]]()
    for each in value:
        function = each.get("function") if isinstance(each, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise wrong
        given = function.get("arguments")
        if isinstance(given, str):
            try:
                parsed = json.loads(given)
            except ValueError:
                parsed = given
            given = parsed if isinstance(parsed, dict) else given
        calls.append({**each, "function": {**function, "arguments": {} if given is None else given}})
    return calls


def _said(content: Any, place: str) -> str:
    """A message's content; parts of text in one, a line each, as servers do."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise misfit(f"{place}: content", content, "text")
    texts = []
    for number, part in enumerate(content, start=1):
        kind = part.get("type", "text") if isinstance(part, dict) else "text"
        text = part.get("text") if isinstance(part, dict) else part
        if kind not in _TEXT_PARTS:
            raise bad_data(
                f"{place}: part {number} of content is of the type {kind!r:.40}; only text is read.",
                "Remove the part or the row.",
            )
        if not isinstance(text, str):
            raise misfit(f"{place}: part {number} of content", text, "text")
        texts.append(text)
    return "\n".join(texts)


def _by_turn(messages: list[Message]) -> tuple[list[list[Message]], int]:
    """(what each of the answers continues, user turns left out for want of an answer before them)."""
    asked = [
        place
        for place, message in enumerate(messages)
        if message["role"] == "user" or (message["role"] == _TOOL and place + 1 == len(messages))
    ]
    cut: list[list[Message]] = []
    for number, place in enumerate(asked, start=1):
        cut.append(messages[: place + 1])
        if place + 1 < len(messages) and messages[place + 1]["role"] != "assistant":
            return cut, len(asked) - number
    return cut, 0


def _references(row: DataRow, turns: int) -> list[list[str]]:
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
            raise misfit(f"{row.place}: reference", text, "text")
    if turns == 1 or not isinstance(value, list):
        return [*none[:-1], texts]
    if len(texts) not in (0, turns):
        raise bad_data(
            f"{row.place}: reference has {len(texts)} for {turns} turns.", "Give each turn one, or null."
        )
    return [[] if text is None else [text] for text in texts] or none


def _whole(text: str, row: DataRow) -> str:
    if _PLACEHOLDER in text:
        raise bad_data(
            f"{row.place} holds SPEED-Bench's placeholder in place of a text.",
            "Prepare the file with SPEED-Bench's own script, which fetches the texts.",
        )
    return well_formed(text, row)


class PromptsTask(Task):
    """A prompts file as a task."""

    default_sampling, stop, max_new_tokens = "nucleus", (), 256

    def __init__(self, content: PromptsFile, path: Path) -> None:
        self.content, self.path, self.name = content, path, path.name
        nucleus = SamplingParams(temperature=0.8, top_p=0.95)
        self.samplings = {"nucleus": nucleus, "greedy": SamplingParams(greedy=True)}
        self.metrics = ROUGE if content.has("references") else ()
        self.headline = "rouge2" if self.metrics else None
        self.has_turns = content.has(TURN) or content.has(MESSAGES)

    @property
    def reading(self) -> dict[str, Any]:
        """See ``Task.reading``."""
        content = self.content
        unasked = {"unasked_turns": content.unasked_turns} if content.unasked_turns else {}
        return {
            "later_turns": content.later_turns,
            **unasked,
            "left_out": content.left_out,
            "ignored": content.ignored,
        }

    def read_by(self, tokenizer: TextTokenizer) -> dict[str, Any]:
        """See ``Task.read_by``: how many messages are of role ``developer``, if it becomes ``system``, and of
        how many prompts the template does not write tools, calls or names."""
        messages = (
            message for example in self.content.examples for message in example.fields.get(MESSAGES, ())
        )
        count = sum(message["role"] == DEVELOPER for message in messages)
        as_system = count and not tokenizer.takes_role(DEVELOPER)
        told = {"developer_as_system" if as_system else "developer": count} if count else {}
        unwritten = Counter[str]()
        for example in self.content.examples:
            asked, tools = example.fields.get(MESSAGES, ()), example.fields.get(TOOLS, ())
            if tools or any(key in message for message in asked for key in (_CALLS, _NAME, _CALL_ID)):
                unwritten.update(tokenizer.unused_in(asked, tools) if tokenizer.has_chat_template else ())
        return told | ({"unwritten": dict(unwritten)} if unwritten else {})

    def uses_template(self, tokenizer: TextTokenizer) -> bool:
        """See ``Task.uses_template``. Messages need one, learned or not; a ``prompt`` goes through none."""
        if self.content.has(MESSAGES):
            return tokenizer.has_chat_template
        return tokenizer.is_instruct and self.content.has(TURN)

    def _load(self, data: str, limit: int | None, seed: int) -> TaskData:
        """The file is all there is: ``official`` and ``mini`` both mean it."""
        if data not in ("official", "mini"):
            why = f"{data} is given together with the prompts file {self.path}."
            raise UsageError(why, flag="--data", remedy="Leave one of the two out.")
        examples = self.content.examples
        shared = sha256_of(f"{example.example_id}\0{example.fields}" for example in examples)
        origin = {"source": str(self.path), "revision": None, "split": None, **self.reading}
        return task_data(examples, limit, seed, origin, (file_name(self.path), False), shared)

    def _prompt(self, example: Example, data: TaskData, frame: Frame) -> Prompt:
        """Never truncated."""
        fields = example.fields
        if MESSAGES in fields:
            shown = "\n\n".join(f"{said['role']}: {said['content']}" for said in fields[MESSAGES])
            ids = tuple(_templated(example, frame))
            made = frame.fitting(Prompt(example.example_id, shown, ids, example.reference, chat=True))
        elif PROMPT in fields:
            made = replace(frame, chat=False).whole(example, fields[PROMPT])
        else:
            made = frame.whole(example, fields[TURN])
        others = tuple(fields.get("references", ())[1:])
        return replace(made, category=fields.get("category"), other_references=others)

    def conversation(self, example: Example, first: Prompt) -> Conversation | None:
        """See ``Task.conversation``."""
        fields = example.fields
        if not (later := fields.get(LATER)):
            return None
        asked = fields.get(MESSAGES) or [_user(fields[TURN])]
        turns = [turn[MESSAGES] for turn in later]
        references = [turn.get("references", ()) for turn in later]
        return Conversation(asked, turns, references, fields.get(TOOLS, ()))

    def is_scored(self, prompt: Prompt) -> bool:
        return any(map(self._reads, filter(None, (prompt.reference, *prompt.other_references))))

    def references(self, example: Example) -> Sequence[str]:
        """See ``Task.references``."""
        found: Sequence[str] = example.fields.get("references", ())
        return found

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[dict[str, float]]:
        """See ``Task.score``. Of several references the best counts, for each metric."""
        return [
            self._best(prompt, text) if self.is_scored(prompt) else {}
            for prompt, text in zip(prompts, texts, strict=True)
        ]

    def _best(self, prompt: Prompt, text: str) -> dict[str, float]:
        references = [*filter(self._reads, (prompt.reference, *prompt.other_references))]
        count = len(references)
        found = scores(self.metrics, [prompt.text] * count, [text] * count, references)
        return {kind.name: max(one[kind.name] for one in found) for kind in self.metrics}


def _templated(example: Example, frame: Frame) -> Sequence[int]:
    if not frame.chat:
        raise UsageError(
            f"the prompt {example.example_id} is a list of messages, and there is no chat template for "
            "them: the tokenizer has none, or --chat-template none was given.",
            flag="TASK",
            remedy="Choose a model with a chat template, or write the text as `prompt`.",
        )
    try:
        return frame.tokenizer.conversation(example.fields[MESSAGES], example.fields.get(TOOLS, ()))
    except ValueError as error:
        raise UsageError(
            f"the chat template refuses the messages of {example.example_id} ({error}).",
            flag="TASK",
            remedy="Write them as the model's template wants them, e.g. without a system message.",
        ) from error
