"""What a model's own files may ask for before anything is built: sizes are bounded by arithmetic."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from spsbench.errors import UnavailableError

_MOST_BYTES = 128 << 20
"""Of config.json and tokenizer files; the largest in use have 35 MB."""

_MOST_LAYERS, _WIDEST = 2_000, 1 << 24
_WIDTHS = ("size", "dim", "d_model", "d_ff", "heads", "experts", "n_embd", "n_inner", "n_head")
_MOST_GROWTH = 4_096
"""Characters that a tokenizer's rules may make of one, and tokens that it may add to a text."""


def require_bounded_file(path: Path, name: str, flag: str) -> None:
    """Refuse a file of settings that is larger than any in use."""
    if path.stat().st_size > _MOST_BYTES:
        raise _too_much(name, flag, f"{path.name} has {path.stat().st_size:,} bytes", _MOST_BYTES)


def require_bounded_config(content: Any, name: str, flag: str) -> None:
    """Refuse a configuration of more layers or wider ones than can be meant, at any depth."""
    for key, value in _numbers(content):
        counts_layers = "layer" in key or key in ("depth", "num_blocks")
        most = _MOST_LAYERS if counts_layers else _WIDEST if key.endswith(_WIDTHS) else value
        if value > most:
            raise _too_much(name, flag, f"its {key} is {value:,}", most)


def _numbers(content: Any) -> Iterator[tuple[str, int]]:
    if isinstance(content, Mapping):
        for key, value in content.items():
            if isinstance(value, (int, float)) and value == value:
                yield str(key), int(min(value, 1e30))
            else:
                yield from _numbers(value)
    elif isinstance(content, list):
        for value in content:
            yield from _numbers(value)


def require_bounded_tokenizer(file: Path, name: str, flag: str) -> None:
    """Refuse a tokenizer.json whose rules make a long text of a short one."""
    try:
        content = json.loads(file.read_bytes())
        parts = {part: content.get(part) for part in ("normalizer", "pre_tokenizer", "decoder")}
        grown = {part: _growth(rules) for part, rules in parts.items()}
        grown["post_processor"] = _added(content.get("post_processor"))
        padding = content.get("padding") or {}
        fixed = padding.get("strategy")
        grown["padding"] = max(
            int(fixed.get("Fixed", 0)) if isinstance(fixed, Mapping) else 0,
            int(padding.get("pad_to_multiple_of") or 0),
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        return  # damaged: what reads it says how
    for part, factor in grown.items():
        if factor > _MOST_GROWTH:
            raise _too_much(
                name, flag, f"the {part} of its {file.name} makes {factor:,} of one", _MOST_GROWTH
            )


def _growth(rules: Any) -> int:
    """How many characters one may become, at most."""
    if isinstance(rules, list):
        product = 1
        for rule in rules:
            product *= min(_growth(rule), 10 * _MOST_GROWTH)
            if product > _MOST_GROWTH:
                break
        return product
    if not isinstance(rules, Mapping):
        return 1
    if rules.get("type") == "Replace":
        pattern, added = rules.get("pattern") or {}, len(str(rules.get("content", "")))
        literal = pattern.get("String") if isinstance(pattern, Mapping) else None
        # A regular expression may match between any two characters.
        return -(-added // len(literal)) or 1 if literal else 1 + added
    if rules.get("type") == "Prepend":
        return 1 + len(str(rules.get("prepend", "")))
    return _growth([value for value in rules.values() if isinstance(value, (list, Mapping))])


def _added(rules: Any) -> int:
    """How many tokens are added to a text, at most."""
    if isinstance(rules, list):
        return sum(map(_added, rules))
    if not isinstance(rules, Mapping):
        return 0
    known = rules.get("special_tokens")
    sizes = (
        {key: len(each.get("ids", ())) for key, each in known.items()} if isinstance(known, Mapping) else {}
    )
    written = [
        piece.get("SpecialToken") or {} for key in ("single", "pair") for piece in rules.get(key) or ()
    ]
    return sum(sizes.get(piece.get("id"), 1) for piece in written) + _added(rules.get("processors"))


def _too_much(name: str, flag: str, what: str, most: int) -> UnavailableError:
    return UnavailableError(
        f"{name} is no model that can be meant: {what}, and at most {most:,} is read.",
        flag=flag,
        remedy="Check where it comes from.",
    )
