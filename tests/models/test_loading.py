"""From a name to loaded weights: what works, and a typed error for each failure."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import huggingface_hub
import huggingface_hub.constants
import pytest
import torch
import transformers
from huggingface_hub import errors
from safetensors.torch import load_file, save_file
from support.tiny_models import config_of, make, make_tokenizer, pair_of, save

from spsbench.base.errors import SpsbenchError, UnavailableError, UsageError
from spsbench.config.models import ONNXRUNTIME, TORCH
from spsbench.models import memory as weights
from spsbench.models.hf_errors import typed_error
from spsbench.models.pair import Pair, load_pair
from spsbench.models.source import find
from spsbench.models.tokenizer import check_same

CPU = torch.device("cpu")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def load(target: Path | str, dtype: str = "auto", backend: str = TORCH) -> Pair:
    return load_pair(pair_of(target), (dtype, dtype), CPU, backend, threads=1)


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_sharded_safetensors(llama: Any, tmp_path: Path) -> None:
    folder = save(llama, tmp_path / "sharded", max_shard_size="20KB")
    assert len(list(folder.glob("model-0*.safetensors"))) > 2
    loaded = load(folder).target.model.state_dict()
    assert all(torch.equal(weight, loaded[name]) for name, weight in llama.state_dict().items())


@pytest.mark.parametrize(
    ("dtype", "expected"), [("auto", "bfloat16"), ("float32", "float32"), ("float16", "float16")]
)
def test_dtype_is_the_checkpoints_by_default(dtype: str, expected: str, tmp_path: Path) -> None:
    folder = save(make(config_of("llama")).to(torch.bfloat16), tmp_path / "half")
    pair = load(folder, dtype)
    assert pair.info["target"]["dtype"] == pair.info["draft"]["dtype"] == expected


def test_a_tied_head_is_not_missing(tmp_path: Path) -> None:
    folder = save(make(config_of("llama", tie_word_embeddings=True)), tmp_path / "tied")
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    load(folder)


def test_missing_weights_are_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    kept = {k: v for k, v in load_file(file).items() if not k.startswith("model.layers.1.")}
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(
        UnavailableError, match=r"incomplete: 9 of its weights are missing \(model\.layers\.1"
    ):
        load(folder)


def test_weights_of_another_shape_are_refused(folder: Path) -> None:
    edit(folder, intermediate_size=64)
    with pytest.raises(UnavailableError, match="cannot be read"):
        load(folder)


def test_truncated_safetensors(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(UnavailableError, match=r"cannot be read: .*incomplete") as caught:
        load(folder)
    assert caught.value.exit_code == 3
    assert caught.value.flag == "--target"


def test_no_weights_at_all(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnavailableError, match=r"cannot be read: .*no file named"):
        load(folder)


def test_no_tokenizer(llama: Any, tmp_path: Path) -> None:
    llama.save_pretrained(tmp_path)
    with pytest.raises(UnavailableError, match="has no tokenizer"):
        find(str(tmp_path), None, "--draft")


def test_a_tokenizer_without_its_json(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UnavailableError, match=r"has no tokenizer.json, and no other file"):
        find(str(folder), None, "--target")


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "a/b/c"])
def test_no_such_folder(name: str) -> None:
    with pytest.raises(UnavailableError, match="is not a model folder") as caught:
        find(name, None, "--target")
    assert caught.value.exit_code == 3


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"no config\.json"):
        find(str(tmp_path), None, "--target")


def test_damaged_configuration(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(UnavailableError, match="cannot be read"):
        find(str(folder), None, "--target")


def test_unknown_architecture(folder: Path) -> None:
    edit(folder, model_type="of-tomorrow")
    with pytest.raises(UsageError, match="does not support"):
        find(str(folder), None, "--target")


def test_code_of_a_repository_is_not_run(folder: Path) -> None:
    edit(folder, model_type="own", auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"})
    (folder / "own.py").write_text("raise SystemExit('executed')")
    with pytest.raises(UsageError, match="custom model code, which spsbench does not run"):
        find(str(folder), None, "--target")


def test_a_quantised_checkpoint_is_loaded_as_its_configuration_says(folder: Path) -> None:
    """The backend is not installed here: without a GPU only this part of the path can be tested."""
    edit(folder, quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 8})
    source = pair_of(folder)
    assert source.target.quantization == "gptq"
    with pytest.raises(UnavailableError, match=r"quantised by gptq, which cannot run here: .*optimum"):
        load_pair(source, ("auto", "auto"), CPU, TORCH)


def test_a_package_that_a_device_needs_is_named() -> None:
    error = ValueError("`device_map` requires `accelerate`. You can install it with `pip install accelerate`")
    typed = typed_error(error, "m", "--draft")
    assert (type(typed), "accelerate" in typed.message) == (UnavailableError, True)


def test_revision_reaches_the_library_and_the_record(
    llama: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub model from a local copy of the hub's cache, without a network."""
    put(llama, tmp_path, monkeypatch, "org/tiny", "v2")
    source = pair_of("org/tiny", revision="v2")
    expected = {"name": "org/tiny", "revision": "v2", "fingerprint": COMMIT}
    assert source.identity()["target"] == source.identity()["draft"] == expected
    assert source.target.commit == COMMIT
    size = sum(weight.numel() * 4 for weight in llama.state_dict().values())
    assert weights.weight_bytes(source.target, "auto", "--target") == size
    pair = load_pair(source, ("auto", "auto"), CPU, TORCH)
    assert expected.items() <= pair.info["target"].items()
    with pytest.raises(UnavailableError, match="not on this machine and HF_HUB_OFFLINE is set"):
        find("org/tiny", "v3", "--target")


def put(model: Any, cache: Path, monkeypatch: pytest.MonkeyPatch, name: str, revision: str) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    root = cache / f"models--{name.replace('/', '--')}"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / revision).write_text(COMMIT)
    save(model, root / "snapshots" / COMMIT)


def test_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UnavailableError, match="not on this machine and HF_HUB_OFFLINE is set") as caught:
        find("org/absent", None, "--target")
    assert "HF_HOME" in str(caught.value)


# All that these errors read of the hub's response.
ANSWER: Any = SimpleNamespace(headers={}, request=None)


@pytest.mark.parametrize(
    ("cause", "message", "remedy"),
    [
        (errors.GatedRepoError("403", response=ANSWER), "org/m is gated", "hf auth login"),
        (errors.RepositoryNotFoundError("401", response=ANSWER), "no model org/m was found", "name"),
        (errors.RevisionNotFoundError("404", response=ANSWER), "no such revision", "follows the @"),
        (errors.OfflineModeIsEnabled("x"), "cannot be reached", "HF_HOME"),
        (ConnectionError("x"), "cannot be reached", "HF_HOME"),
    ],
)
def test_errors_of_the_hub(
    cause: Exception, message: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        assert kwargs["revision"] == "v1"
        raise OSError("the library wraps it") from cause

    monkeypatch.setattr(transformers.PretrainedConfig, "get_config_dict", fail)
    with pytest.raises(UnavailableError, match=message) as caught:
        find("org/m", "v1", "--target")
    assert remedy in str(caught.value.remedy)


@pytest.mark.parametrize("name", ["org/name@", "@rev", "absent/"])
def test_what_no_hub_could_have_is_said_without_a_look(name: str) -> None:
    with pytest.raises(UsageError, match="is neither a folder nor a name of the hub") as caught:
        find(name, None, "--target")
    assert "org/name@REVISION" in str(caught.value.remedy)


def test_a_configuration_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")
    with pytest.raises(UnavailableError, match=r"config\.json has no weights") as caught:
        find(str(path), None, "--target")
    assert "take a configuration" in str(caught.value.remedy)


def test_a_path_with_the_number_of_an_http_error_is_not_taken_for_one() -> None:
    error = OSError("/tmp/401/404/gated-not found/model.safetensors is damaged")
    assert str(typed_error(error, "m", "--target")).startswith("--target: m cannot be read: /tmp/401")


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_out_of_memory_is_a_failure_while_running(error: Exception) -> None:
    typed = typed_error(error, "m", "--target")
    assert (type(typed), typed.exit_code) == (SpsbenchError, 1)


def test_a_pair_that_does_not_fit_is_refused_with_both_sizes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = pair_of(folder, shutil.copytree(folder, tmp_path / "copy"))
    size = weights.weight_bytes(source.target, "auto", "--target")
    assert size == 2 * (weights.weight_bytes(source.target, "bfloat16", "--target") or 0)
    monkeypatch.setattr(weights, "available_bytes", lambda device: 2 * (size or 0))
    load_pair(source, ("auto", "auto"), CPU, TORCH)
    monkeypatch.setattr(weights, "available_bytes", lambda device: 2 * (size or 0) - 1)
    load_pair(source, ("bfloat16", "bfloat16"), CPU, TORCH)
    with pytest.raises(UsageError, match=r"need \S+ GiB, but cpu has \S+ GiB free"):
        load_pair(source, ("auto", "auto"), CPU, TORCH)


@pytest.mark.parametrize("backend", [ONNXRUNTIME, TORCH])
def test_a_target_that_is_its_own_draft_is_in_memory_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    source = pair_of(folder)
    size = weights.weight_bytes(source.target, "float32", "--target") or 0
    held = 2 if backend == ONNXRUNTIME else 1  # while it is loaded
    monkeypatch.setattr(weights, "available_bytes", lambda device: held * size)
    pair = load_pair(source, ("float32", "float32"), CPU, backend, 1)
    tokens = torch.tensor([1, 2, 3])
    with torch.inference_mode():
        pair.target.rollback(0)
        pair.draft.rollback(0)
        first = pair.target.score(tokens, 1).clone()
        assert (pair.target.length, pair.draft.length) == (3, 0)
        assert torch.equal(pair.draft.score(tokens, 1), first)


def test_the_size_of_shards_counts_only_files_of_the_index(llama: Any, tmp_path: Path) -> None:
    folder = save(llama, tmp_path / "sharded", max_shard_size="20KB")
    one = save(llama, tmp_path / "one")
    (folder / "consolidated.safetensors").write_bytes((one / "model.safetensors").read_bytes())
    sizes = [weights.weight_bytes(find(str(path), None, ""), "auto", "") for path in (folder, one)]
    assert sizes[0] == sizes[1]


def test_a_draft_whose_logits_do_not_cover_the_tokenizer(folder: Path, tmp_path: Path) -> None:
    small = save(make(config_of("llama", vocab_size=250, bos_token_id=0, eos_token_id=1)), tmp_path / "small")
    with pytest.raises(UsageError, match=r"has 258 tokens, but the models share only 250 logits"):
        pair_of(folder, small)


def test_different_tokenizers_are_refused(llama: Any, folder: Path, tmp_path: Path) -> None:
    model = make(config_of("llama", vocab_size=272))
    other = save(model, tmp_path / "other", make_tokenizer(extra=2))
    with pytest.raises(UsageError, match="id 258 is None for the target and '<extra_0>' for the draft"):
        pair_of(folder, other)


def test_a_token_that_the_draft_may_lack_is_not_named_as_the_difference() -> None:
    ours, theirs = ({"a": 0, "<think>": 1, "b": 2}, {"a": 0, "c": 2})
    target, draft = (
        cast("Any", SimpleNamespace(vocabulary=partial(dict, own), border=None)) for own in (ours, theirs)
    )
    with pytest.raises(UsageError, match="id 2 is 'b' for the target and 'c' for the draft"):
        check_same(target, draft)


def test_a_draft_may_lack_tokens_that_were_added_to_its_target(llama: Any, tmp_path: Path) -> None:
    """As Qwen2.5 lacks those of Qwen3, where its embedding has a row for each."""
    wide = make(config_of("llama", vocab_size=272))
    target = save(wide, tmp_path / "target", make_tokenizer(extra=2))
    pair = load_pair(pair_of(target, save(wide, tmp_path / "draft")), ("auto", "auto"), CPU, TORCH, threads=1)
    assert pair.tokenizer.vocabulary()["<extra_1>"] == 259
    with torch.inference_mode():
        assert pair.draft.score(torch.tensor([1, 259]), 1).shape == (1, 272)
    with pytest.raises(UsageError, match=r"has 260 tokens, but the models share only 258 logits"):
        pair_of(target, save(llama, tmp_path / "narrow"))
