"""The evidence of every token as one string of a journal's line, and as columns of a table.

In the line and not in a journal of its own: then one write makes a sequence and its evidence durable, and
neither can be there without the other. A line has about a hundred bytes a token; packed evidence adds 8 under
a narrow nucleus and 23 at temperature 1 (embedded pair), about 27 where nothing repeats.
"""

from __future__ import annotations

import dataclasses
import sys
import zlib
from array import array
from base64 import b64decode, b64encode
from typing import Any

from spsbench.records import UNRANKED, TokenEvidence

COLUMNS = tuple(field.name for field in dataclasses.fields(TokenEvidence))
KINDS = {
    "position": "int32",
    "token_id": "int32",
    **{name: "int32" if name == "draft_rank" else "float32" for name in COLUMNS},
}
_WIDTH_BYTES = 4


def pack(evidence: TokenEvidence | None) -> str | None:
    """The columns one after another, four bytes a value in little-endian order, by zlib and base64."""
    if evidence is None:
        return None
    values = b"".join(_little(getattr(evidence, name)).tobytes() for name in COLUMNS)
    return b64encode(zlib.compress(values)).decode()


def unpack(packed: str | None, tokens: int) -> TokenEvidence | None:
    """What ``pack`` made of so many tokens; ValueError if it is damaged or of another number."""
    if packed is None:
        return None
    due = tokens * _WIDTH_BYTES * len(COLUMNS)
    values = _inflated(packed, due)
    if len(values) != due:
        raise ValueError(f"token_evidence is not of {tokens} tokens")
    width = tokens * _WIDTH_BYTES
    starts = ((i * width, name) for i, name in enumerate(COLUMNS))
    return TokenEvidence(**{name: _array(name, values[start : start + width]) for start, name in starts})


def columns(packed: str | None, token_ids: list[int]) -> dict[str, Any] | None:
    """The rows of a sequence by column; None if there is no evidence."""
    evidence = unpack(packed, len(token_ids))
    if evidence is None:
        return None
    told = {name: getattr(evidence, name) for name in COLUMNS}
    return {"position": range(len(token_ids)), "token_id": token_ids} | told


def with_unknown_ranks(table: Any) -> Any:
    """The Arrow table with null in place of ``UNRANKED``, so that nobody counts with it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ranks = table["draft_rank"]
    known = pc.if_else(pc.equal(ranks, UNRANKED), pa.scalar(None, ranks.type), ranks)
    return table.set_column(table.schema.get_field_index("draft_rank"), "draft_rank", known)


def _inflated(packed: str, due: int) -> bytes:
    """Never more than a byte above what is due: a damaged line must not fill the memory."""
    inflater = zlib.decompressobj()
    try:
        values = inflater.decompress(b64decode(packed, validate=True), due + 1)
    except zlib.error as problem:
        raise ValueError(f"token_evidence ({problem})") from problem
    if not inflater.eof and len(values) <= due:
        raise ValueError("token_evidence is cut short")
    return values


def _array(name: str, values: bytes) -> array[Any]:
    found: array[Any] = array("i" if KINDS[name] == "int32" else "f")
    found.frombytes(values)
    return _little(found)


def _little(values: array[Any]) -> array[Any]:
    """The array itself, or where the machine is big-endian a copy with its bytes swapped."""
    if sys.byteorder == "little":
        return values
    swapped = values[:]
    swapped.byteswap()
    return swapped
