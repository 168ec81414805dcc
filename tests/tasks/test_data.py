"""Which examples a limit takes, and what identifies a split."""

from __future__ import annotations

from pathlib import Path

from spsbench.base.paths import mini_dir
from spsbench.base.records import Example
from spsbench.tasks.task import chosen, fingerprint, is_mini

EXAMPLES = [Example(f"id{i}", {"document": f"text {i}"}, f"summary {i}") for i in range(200)]


def test_a_larger_limit_extends_a_smaller_one() -> None:
    everything = chosen(EXAMPLES, None, seed=3)
    assert chosen(EXAMPLES, 10, seed=3) == everything[:10]
    assert chosen(EXAMPLES, 50, seed=3) == everything[:50]
    assert sorted(e.example_id for e in everything) == sorted(e.example_id for e in EXAMPLES)


def test_the_choice_depends_on_the_seed_but_not_on_the_files_order() -> None:
    assert chosen(EXAMPLES, 20, seed=0) == chosen(EXAMPLES[::-1], 20, seed=0)
    assert chosen(EXAMPLES, 20, seed=0) != chosen(EXAMPLES, 20, seed=1)


def test_a_small_choice_is_spread_over_the_file() -> None:
    places = [EXAMPLES.index(e) for e in chosen(EXAMPLES, 40, seed=0)]
    assert all(sum(low <= p < low + 50 for p in places) >= 3 for low in range(0, 200, 50))


def test_fingerprint_tells_ids_from_content() -> None:
    changed = [*EXAMPLES[1:], Example("id0", {"document": "other"}, "summary 0")]
    first, same, other = fingerprint(EXAMPLES), fingerprint(EXAMPLES[::-1]), fingerprint(changed)
    assert first == same
    assert first["ids_sha256"] == other["ids_sha256"]
    assert first["content_sha256"] != other["content_sha256"]


def test_a_path_into_the_packages_data_is_known_as_synthetic(tmp_path: Path) -> None:
    assert is_mini(mini_dir() / "data" / "xsum.jsonl")
    assert not is_mini(tmp_path / "xsum.jsonl")
