from __future__ import annotations

import json
import shutil
import struct
from collections import namedtuple
from pathlib import Path

import gguf
import numpy as np
import pytest
from support.tiny_gguf import VOCABULARY, state_of, tiny_llama, write_gguf

from spsbench.base.errors import SpsbenchError, UnavailableError, UsageError
from spsbench.config import PairConfig
from spsbench.config.models import ModelRef
from spsbench.models.checkpoint import Checkpoint
from spsbench.models.converted import read_header, read_origin
from spsbench.models.device import resolve_device
from spsbench.models.pair import find_pair, load_pair, pair_backend
from spsbench.models.source import ModelSource, find, unconverted_tokenizers


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("SPSBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _found(path: Path) -> ModelSource:
    return find(str(path), None, "--target")


def _litter(cache: Path) -> list[str]:
    return [path.name for path in (cache / "models").glob("*") if path.suffix == ".partial"]


def test_float_weights_arrive_unchanged_and_are_not_called_quantised(tmp_path: Path) -> None:
    model = tiny_llama()
    source = _found(write_gguf(tmp_path / "m.gguf", model))
    stored = Checkpoint(Path(source.location))
    for name, weights in state_of(model).items():
        assert np.array_equal(stored.read(name), weights), name
    assert source.dequantised is None
    assert source.tokenizer.size == len(VOCABULARY)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_quantised_weights_are_what_the_file_means(tmp_path: Path, kind: str) -> None:
    model, how = tiny_llama(), gguf.GGMLQuantizationType[kind]
    source = _found(write_gguf(tmp_path / "m.gguf", model, kind))
    stored = Checkpoint(Path(source.location))
    name = "model.layers.1.mlp.up_proj.weight"
    meant = gguf.dequantize(gguf.quantize(state_of(model)[name], how), how)
    assert np.array_equal(stored.read(name), meant)
    assert {tensor.kind for tensor in stored.tensors.values()} == {"F32"}
    assert source.dequantised == kind
    assert source.quantization is None


def test_the_most_common_kind_names_a_file_that_does_not_say(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", tiny_llama(), "Q8_0", named=False)
    assert read_header(file, "m.gguf", "--target").weights == "Q8_0"


def test_a_file_is_converted_once_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _found(write_gguf(tmp_path / "m.gguf", tiny_llama(), "Q8_0"))
    monkeypatch.setattr("spsbench.models.converted.convert", None)  # a second conversion would fail
    copied = shutil.copy(tmp_path / "m.gguf", tmp_path / "other.gguf")
    second = _found(Path(copied))
    assert (second.location, second.fingerprint) == (first.location, first.fingerprint)
    assert first.fingerprint.startswith("gguf:")
    origin = read_origin(Path(first.location))
    assert (origin.file, origin.weights) == ("m.gguf", "Q8_0")


def test_files_beside_it_are_not_taken_for_its_own(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("no tokenizer")
    (tmp_path / "config.json").write_text("no configuration")
    assert _found(write_gguf(tmp_path / "m.gguf", tiny_llama())).tokenizer.size == len(VOCABULARY)


def test_a_pair_of_it_loads_and_says_so(tmp_path: Path) -> None:
    path = str(write_gguf(tmp_path / "m.gguf", tiny_llama(), "Q8_0"))
    source = find_pair(PairConfig(name="p", target=ModelRef(id=path), draft=ModelRef(id=path)))
    cpu, dtypes = resolve_device("cpu"), ("auto", "auto")
    backend, _ = pair_backend("auto", source, dtypes, cpu)
    loaded = load_pair(source, dtypes, cpu, backend, threads=1)
    assert backend == "onnxruntime"
    assert loaded.info["target"]["dequantised"] == "Q8_0"
    assert json.dumps(loaded.info)


@pytest.mark.parametrize("both", [True, False])
def test_tokenizers_that_differ_are_refused_before_anything_is_converted(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, both: bool
) -> None:
    """Whether the draft is a GGUF file, too, or a folder."""
    target = str(write_gguf(tmp_path / "m.gguf", tiny_llama()))
    draft = "embedded:mini/draft"
    if both:
        monkeypatch.setattr("support.tiny_gguf.VOCABULARY", [*VOCABULARY[:-4], "é", "<s>", "</s>", "ab"])
        draft = str(write_gguf(tmp_path / "d.gguf", tiny_llama(1)))
    with pytest.raises(UsageError, match="--draft: target and draft have different tokenizers: id"):
        find_pair(PairConfig(name="p", target=ModelRef(id=target), draft=ModelRef(id=draft)))
    assert [*cache.glob("**/*")] == []


def test_two_files_of_one_tokenizer_are_a_pair(tmp_path: Path) -> None:
    """The control; the tokenizer that is read ahead is the one that the converted folder has."""
    paths = [str(write_gguf(tmp_path / f"{seed}.gguf", tiny_llama(seed))) for seed in (0, 1)]
    before = unconverted_tokenizers([(path, None, "--target") for path in paths])
    target, draft = (ModelRef(id=path) for path in paths)
    source = find_pair(PairConfig(name="p", target=target, draft=draft))
    found = [
        tokenizer.vocabulary() for tokenizer in (*before, source.target.tokenizer, source.draft.tokenizer)
    ]
    assert found == [found[0]] * 4
    assert unconverted_tokenizers([(path, None, "--target") for path in paths]) == []


def _truncated(path: Path) -> Path:
    content = write_gguf(path, tiny_llama(), "Q8_0").read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


def _torn_in_the_head(path: Path) -> Path:
    path.write_bytes(write_gguf(path, tiny_llama()).read_bytes()[:100])
    return path


def _something_else(path: Path) -> Path:
    path.write_bytes(b"PK\x03\x04 a zip")
    return path


def _unknown_architecture(path: Path) -> Path:
    return write_gguf(path, tiny_llama(), architecture="plamo")


def _without_a_weight(path: Path) -> Path:
    model = tiny_llama()
    del model.model.layers[1].mlp.up_proj
    return write_gguf(path, model)


@pytest.mark.parametrize(
    ("made", "error", "words"),
    [
        (_truncated, UnavailableError, "is damaged or incomplete"),
        (_torn_in_the_head, UnavailableError, "is damaged or incomplete"),
        (_something_else, UnavailableError, "is not a GGUF file"),
        (_unknown_architecture, UsageError, "cannot read from GGUF"),
        (_without_a_weight, UnavailableError, "1 weights are missing"),
    ],
)
def test_bad_files_are_refused_by_name_and_leave_nothing(
    tmp_path: Path, cache: Path, made: object, error: type[SpsbenchError], words: str
) -> None:
    path = made(tmp_path / "bad.gguf")  # type: ignore[operator]
    with pytest.raises(error, match=words) as caught:
        _found(path)
    assert caught.value.flag == "--target"
    assert str(path) in caught.value.message
    assert caught.value.remedy
    assert not _litter(cache)


def test_a_header_that_claims_more_than_the_file_holds_is_refused_at_its_end(tmp_path: Path) -> None:
    array, uint8 = 9, 0
    head = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"a", array, uint8, 100_000)
    (tmp_path / "m.gguf").write_bytes(head)
    with pytest.raises(UnavailableError, match="it ends before what its header claims"):
        read_header(tmp_path / "m.gguf", "m.gguf", "--target")


def test_a_missing_file_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"gone\.gguf is no file"):
        _found(tmp_path / "gone.gguf")


def test_too_little_room_is_said_before_anything_is_written(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10**6, 999_000, 1000))
    path = write_gguf(tmp_path / "m.gguf", tiny_llama())
    with pytest.raises(UnavailableError, match=r"needs .* kB in .* 1 kB free") as caught:
        _found(path)
    assert "SPSBENCH_CACHE" in str(caught.value)
    assert not any(path.is_dir() for path in (cache / "models").iterdir())


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(UnavailableError, match="cannot be written") as caught:
        _found(write_gguf(tmp_path / "m.gguf", tiny_llama()))
    assert str(cache) in str(caught.value)
