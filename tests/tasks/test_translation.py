"""Translation: pairs of lines from every layout, T5's prompt, BLEU; all texts are made up."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spsbench.base.errors import SpsbenchError, UnavailableError, UsageError
from spsbench.base.paths import data_dir
from spsbench.base.records import SamplingParams
from spsbench.tasks.catalogue import load_task
from spsbench.tasks.text_tokenizer import TextTokenizer

TASK = load_task("wmt14-ende")
PAIRS = [("The cat sleeps.", "Die Katze schläft."), ("It rains.", "Es regnet."), ("Go, now!", "Geh, jetzt!")]


def loaded(data: str) -> list[tuple[str, str]]:
    examples = TASK.load(data, None, 0).examples
    return sorted((example.fields["source"], example.reference) for example in examples)


def test_the_task_is_leviathans() -> None:
    assert TASK.samplings == {"greedy": SamplingParams(greedy=True), "temperature1": SamplingParams()}
    assert (TASK.headline, TASK.default_sampling, TASK.max_new_tokens) == ("bleu", "greedy", 128)


def test_a_prompt_has_t5s_prefix(write: Callable[..., Path], tokenizer: TextTokenizer) -> None:
    data = TASK.load(str(write([{"source": "A {cat}.", "target": "x"}])), None, 0)
    prompt = TASK.prompt(data.examples[0], data, tokenizer, 1000, 8)
    assert prompt.text == "translate English to German: A {cat}."
    assert list(prompt.ids) == tokenizer.encode(prompt.text, special=True)


def test_every_layout_gives_the_same_pairs(write: Callable[..., Path], tmp_path: Path) -> None:
    nested = [{"translation": {"de": de, "en": en}} for en, de in PAIRS]
    files = [
        write([{"source": en, "target": de} for en, de in PAIRS], "flat.jsonl"),
        write([{"en": en, "de": de} for en, de in PAIRS], "languages.jsonl"),
        write(nested, "nested.jsonl"),
        tmp_path / "nested.parquet",
        tmp_path / "pairs.csv",
    ]
    pq.write_table(pa.Table.from_pylist(nested), files[3])
    with files[4].open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("source", "target"), *PAIRS])
    for path in files:
        assert loaded(str(path)) == sorted(PAIRS), path
    assert loaded(aligned(tmp_path, *zip(*PAIRS, strict=True))) == sorted(PAIRS)


def aligned(folder: Path, sources: tuple[str, ...], targets: tuple[str, ...]) -> str:
    """Two files of lines, as ``--data`` names them."""
    paths = folder / "test.en", folder / "test.de"
    for path, lines in zip(paths, (sources, targets), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return ",".join(map(str, paths))


def test_lines_end_at_line_feeds_alone_and_may_repeat(tmp_path: Path) -> None:
    named = aligned(tmp_path, ("One\u2028line.", "Yes.", "Yes.\r"), ("Eins.", "Ja.", "Ja."))
    data = TASK.load(named, None, 0)
    assert sorted((e.example_id, e.fields["source"]) for e in data.examples) == [
        ("1", "One\u2028line."),
        ("2", "Yes."),
        ("3", "Yes."),
    ]
    assert (data.label, data.synthetic) == ("wmt14-ende (test.en, test.de)", False)


@pytest.mark.parametrize(
    ("sources", "targets", "error", "told"),
    [
        (("a", "b"), ("A",), UnavailableError, "test.en has 2, "),
        (("a", " "), ("A", "B"), UnavailableError, "line 2 of "),
        (("a", "b"), ("A", ""), UnavailableError, "column 'target' is empty"),
        ((), ("A",), UnavailableError, "test.en holds no line"),
    ],
)
def test_lines_that_do_not_pair_are_refused(
    tmp_path: Path, sources: tuple[str, ...], targets: tuple[str, ...], error: type[SpsbenchError], told: str
) -> None:
    with pytest.raises(error, match=told):
        loaded(aligned(tmp_path, sources, targets))


def test_files_that_are_no_pair_are_refused(tmp_path: Path) -> None:
    source, _ = aligned(tmp_path, ("a",), ("A",)).split(",")
    with pytest.raises(UsageError, match=r"names 3 files, and the task reads 2 columns \(source, target\)"):
        loaded(f"{source},{source},{source}")
    with pytest.raises(UnavailableError, match=r"nothing\.de does not exist"):
        loaded(f"{source},{tmp_path / 'nothing.de'}")
    (tmp_path / "latin.de").write_bytes("schläft".encode("latin-1"))
    with pytest.raises(UnavailableError, match=r"latin\.de is not UTF-8"):
        loaded(f"{source},{tmp_path / 'latin.de'}")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("source,target\na,\n", "line 2 of .*column 'target' is empty"),
        ("source,target\na\n", "line 2 of .* has more or fewer values"),
        ("source,target\na,b,c\n", "line 2 of .* has more or fewer values"),
        ("english,target\na,b\n", "has no column 'source' or 'translation.en' or 'en'"),
        ('source,target\n"a,b\n', "line 2 of .* is not CSV"),
        ("source,target\n", "holds no row"),
    ],
)
def test_a_fault_of_a_table_is_named_with_its_line(tmp_path: Path, content: str, told: str) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(content)
    with pytest.raises(UnavailableError, match=told):
        loaded(str(path))


def test_an_output_keeps_counts_and_no_score_of_its_own(write: Callable[..., Path]) -> None:
    data = TASK.load(str(write([{"source": "a", "target": "a b c d e"}])), None, 0)
    prompt = TASK.prompt(data.examples[0], data, _Words(), 1000, 8)
    (scores,) = TASK.score([prompt], [" a b c d f"])
    assert (scores["bleu:sys_len"], scores["bleu:ref_len"]) == (5, 5)
    assert [scores[f"bleu:match{n}"] for n in (1, 2, 3, 4)] == [4, 3, 2, 1]
    assert "bleu" not in scores


class _Words:
    def encode(self, text: str, *, special: bool) -> list[int]:
        return [len(word) for word in text.split()]


def test_the_synthetic_task_reads_the_columns_of_its_file(
    write: Callable[..., Path], tokenizer: TextTokenizer
) -> None:
    task = load_task(str(data_dir("tasks") / "wmt-mini.yaml"))
    rows = [{"id": f"w{i}", "source": f"The cat {i}.", "target": f"kat-{i} la."} for i in range(3)]
    data = task.load(str(write(rows, "wmt.jsonl")), None, 0)
    assert sorted(example.example_id for example in data.examples) == ["w0", "w1", "w2"]
    prompt = task.prompt(data.examples[0], data, tokenizer, 1000, 8)
    assert prompt.text.startswith("translate English to Velmar: The cat ")


def test_synthetic_data_is_all_that_such_a_task_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    line = json.dumps({"id": "w", "source": "The cat.", "target": "kat la."})
    (tmp_path / "data/wmt.jsonl").write_text(line + "\n")
    monkeypatch.setattr("spsbench.tasks.task.mini_dir", lambda folder="mini": tmp_path)
    monkeypatch.setattr("spsbench.tasks.task.mini_dirs", lambda: {"mini-t5": tmp_path})
    for source in ("mini", "official", str(tmp_path / "data/wmt.jsonl")):
        data = load_task("wmt-mini").load(source, None, 0)
        assert (data.label, data.synthetic) == ("wmt-mini (synthetic)", True)
    monkeypatch.setattr("spsbench.tasks.task.mini_dir", lambda folder="mini": tmp_path / folder)
    with pytest.raises(UnavailableError, match=r"synthetic data of wmt-mini are missing \(.*mini_t5"):
        load_task("wmt-mini").load("mini", None, 0)
    with pytest.raises(UsageError, match="wmt14-ende has no synthetic data"):
        TASK.load("mini", None, 0)
