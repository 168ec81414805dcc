"""Compiled decoder layers: the logits of transformers' own, or the layers as they were."""

from __future__ import annotations

import copy
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor
from support.commandline import ALONE, call
from support.tiny_models import config_of, make, make_seq2seq, save
from torch import Tensor
from torch.fx import GraphModule
from transformers.cache_utils import DynamicCache

from benchmarks.architectures import whole_model
from benchmarks.tiny_types import tiny_config
from spsbench.base.errors import UsageError
from spsbench.models import attention, compiled
from spsbench.models.causal_lm import require_exact_rollback
from spsbench.models.compiled import MOST_ROWS, CompiledForward, compile_layers
from spsbench.models.compiler import Compiled, require_compiler
from spsbench.models.layer_graph import RUNNING
from spsbench.models.packed import pack_layers
from spsbench.models.torch_lm import TorchLM

PROMPT = torch.arange(3, 12)
WHOLE = ("llama", "afmoe", "qwen3", "gemma3_text", "qwen3_moe", "mistral", "gpt_oss", "deepseek_v3")
HYBRID = "qwen3_5_text"


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> list[GraphModule]:
    """Have graphs run operator by operator in place of Inductor's kernels; what would have been compiled."""
    graphs: list[GraphModule] = []

    def keep(graph: GraphModule, inputs: list[Tensor], options: dict[str, Any]) -> GraphModule:
        graphs.append(graph)
        return graph

    monkeypatch.setattr(torch._inductor, "compile", keep)
    return graphs


def tiny(kind: str, dtype: torch.dtype = torch.bfloat16) -> TorchLM:
    torch.manual_seed(0)
    model = whole_model(tiny_config(kind)).to(dtype).eval()
    pack_layers(model)
    return TorchLM(model)


@torch.inference_mode()
def logits(lm: TorchLM) -> Tensor:
    """[n, V] of a prompt, of blocks that go on behind rollbacks, and of tokens."""
    lm.begin(PROMPT.tolist())
    rows = [lm.score(PROMPT[-1:], 1).clone()]
    for count in (1, 5, 2, MOST_ROWS, 1):
        rows.append(lm.score(torch.arange(5, 5 + count), count).clone())
        lm.rollback(lm.length - count // 2)
    lm.rollback(0)
    return torch.cat(rows)


def compiled_layers(lm: TorchLM) -> list[Any]:
    return [part for part in lm.model.modules() if isinstance(vars(part).get("forward"), CompiledForward)]


@pytest.mark.parametrize(
    ("kind", "dtype"), [(kind, torch.bfloat16) for kind in (*WHOLE, HYBRID)] + [("llama", torch.float32)]
)
def test_a_graph_computes_what_the_layer_does(
    kind: str, dtype: torch.dtype, operators: list[GraphModule]
) -> None:
    lm = tiny(kind, dtype)
    before = logits(lm)
    compile_layers(lm)
    assert lm.compiled is not None
    assert lm.compiled.layers == len(compiled_layers(lm)) > 0
    assert (lm.compiled.layers == lm.layers) is (kind in WHOLE)
    assert torch.equal(logits(lm), before)
    require_exact_rollback(lm, kind)
    assert len(operators) <= 3 * lm.layers


def test_layers_with_one_graph_are_compiled_once(operators: list[GraphModule]) -> None:
    lm = tiny("llama")
    compile_layers(lm)
    assert len(operators) == 2, "for one row and for several"
    assert lm.compiled == Compiled(lm.layers, lm.layers)


@pytest.mark.parametrize(
    ("kinds", "length"), [("a" * 30, 6), ("a" * 28, 4), ("a" * 7, 3), ("aaab" * 6, 4), ("abcdefg", 6)]
)
def test_few_programs_are_compiled_and_called(kinds: str, length: int) -> None:
    assert compiled._layers_of_program(kinds) == length


def test_a_hook_hears_what_each_layer_gives(operators: list[GraphModule]) -> None:
    states = (0, 1, 2)
    lm = tiny("llama").with_features("--drafter", states)

    @torch.inference_mode()
    def heard() -> Tensor:
        lm.begin(PROMPT.tolist())
        lm.score(PROMPT[:5], 5), lm.score(PROMPT[-1:], 1)
        rows = lm.features(0, lm.length, states).clone()
        lm.rollback(0)
        return rows

    before = heard()
    compile_layers(lm)
    assert len(compiled_layers(lm)) == 2
    assert torch.equal(heard(), before)


@pytest.mark.parametrize("what", ["states", "positions"])
def test_a_layer_that_is_given_something_else_takes_its_rows_back(
    what: str, operators: list[GraphModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(layer: Any, args: tuple[Tensor], given: dict[str, Any]) -> Any:
        if what == "states":
            return (args[0] * -1,), given
        return args, given | {"position_embeddings": given["position_embeddings"][::-1]}

    lm = tiny("llama")
    first, last = lm.model.model.layers
    compile_layers(lm)
    runs = heard_outputs(monkeypatch)
    last.register_forward_pre_hook(changed, with_kwargs=True)
    after = logits(lm)
    assert any(len(run.outputs) == 2 for run in runs)
    for layer in (first, last):
        del vars(layer)["forward"]
    assert torch.equal(after, logits(lm))


def heard_outputs(monkeypatch: pytest.MonkeyPatch) -> list[compiled.StretchOutputs]:
    """Return where what programs compute will be kept."""
    runs: list[compiled.StretchOutputs] = []
    usual = compiled.Program.run

    def run(program: compiled.Program, states: Tensor, given: Any) -> compiled.StretchOutputs | None:
        result = usual(program, states, given)
        if result is not None:
            runs.append(result)
        return result

    monkeypatch.setattr(compiled.Program, "run", run)
    return runs


@pytest.mark.parametrize("kind", ["mistral", "gemma3_text", "gpt_oss"])
def test_tokens_behind_a_window_are_compiled_too(
    kind: str, operators: list[GraphModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(kind)
    config.sliding_window = 40  # beyond what is traced
    torch.manual_seed(0)
    lm = TorchLM(whole_model(config).to(torch.bfloat16).eval())
    pack_layers(lm.model)
    runs: list[compiled.StretchOutputs] = []

    @torch.inference_mode()
    def behind() -> Tensor:
        lm.begin([3, 4] * 25)
        runs.clear()
        rows = [lm.score(torch.tensor([5]), 1).clone() for _ in range(3)]
        lm.rollback(0)
        return torch.cat(rows)

    before = behind()
    compile_layers(lm)
    assert lm.compiled == Compiled(lm.layers, lm.layers)
    runs = heard_outputs(monkeypatch)
    assert torch.equal(behind(), before)
    assert sum(len(run.outputs) for run in runs) == 3 * lm.layers


def test_a_layer_that_counts_tokens_has_no_graph(
    operators: list[GraphModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    def counting(query: Tensor, key: Tensor, *others: Any) -> Tensor:
        return usual(query, key, *others) * (0 if key.shape[2] > 1000 else 1)

    usual = attention._grouped
    monkeypatch.setattr(attention, "_grouped", counting)
    lm = tiny("llama")
    compile_layers(lm)
    assert lm.compiled == Compiled(0, lm.layers, "it computes otherwise after more tokens")


def test_layers_with_other_constants_are_other_programs(operators: list[GraphModule]) -> None:
    lm = tiny("llama")
    for place, layer in enumerate(lm.model.model.layers):
        usual = layer.mlp.forward
        layer.mlp.forward = lambda states, usual=usual, place=place: usual(states) * torch.tensor(1.0 + place)
    before = logits(lm)
    compile_layers(lm)
    assert lm.compiled == Compiled(lm.layers, lm.layers)
    assert torch.equal(logits(lm), before)


@pytest.mark.parametrize("kind", ["bloom", "gpt_neo", "mamba"])
def test_layers_without_a_graph_stay_as_they_were(kind: str, operators: list[GraphModule]) -> None:
    lm = tiny(kind)
    before = logits(lm)
    compile_layers(lm)
    assert lm.compiled is not None
    assert not lm.compiled.layers
    assert lm.compiled.reason
    assert not compiled_layers(lm)
    assert lm.backend == "torch"
    assert torch.equal(logits(lm), before)


def test_a_compiled_model_with_other_logits_is_taken_back(
    operators: list[GraphModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(graph: GraphModule, *others: Any) -> Callable[..., list[Tensor]]:
        return lambda *inputs: [states + 1.5 for states in graph(*inputs)]

    monkeypatch.setattr(torch._inductor, "compile", wrong)
    lm = tiny("llama")
    before = logits(lm)
    compile_layers(lm)
    assert lm.compiled == Compiled(0, lm.layers, "its compiled logits differ")
    assert torch.equal(logits(lm), before)
    assert lm.backend == "torch"


@torch.no_grad()
def test_what_was_not_traced_goes_through_the_layer(
    operators: list[GraphModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = tiny("llama")
    compile_layers(lm)
    run: list[int] = []

    def heard(program: compiled.Program, states: Tensor, given: Any) -> Tensor | None:
        run.append(states.shape[1])
        return usual(program, states, given)

    usual = compiled.Program.run
    monkeypatch.setattr(compiled.Program, "run", heard)
    ids = torch.arange(3, 3 + MOST_ROWS + 1)[None]
    lm.model(ids), lm.model(ids[:, :4].expand(2, -1))
    with torch.enable_grad():
        lm.model(ids[:, :4])
    assert not run, "a prompt, a batch, a training"
    cache = DynamicCache()
    lm.model(ids[:, :4], past_key_values=cache)
    assert run
    assert cache.get_seq_length() == 4, "another cache has its rows"
    assert not vars(RUNNING), "and is kept by nothing else"


def test_a_mask_of_another_kind_goes_through_the_layers(
    operators: list[GraphModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = tiny("llama")

    @torch.inference_mode()
    def tree() -> Tensor:
        lm.begin(PROMPT.tolist())
        ids, start = torch.arange(5, 9), lm.length
        seen = torch.ones(4, start + 4, dtype=torch.bool).tril(start)
        mask = torch.where(seen, 0.0, -torch.inf).to(lm.dtype)[None, None]
        rows = lm.score_tree(ids, torch.arange(start, start + 4), mask)
        lm.rollback(0)
        return rows

    before = tree()
    compile_layers(lm)
    outputs = heard_outputs(monkeypatch)
    assert torch.equal(tree(), before)
    assert not outputs, "what was compiled reads a mask of truth values"
    logits(lm)
    assert outputs


def test_a_program_is_given_what_it_was_traced_with_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny("llama", torch.float32)
    body = lm.model.model
    weight = body.layers[0].mlp.down_proj.weight
    body.layers[0].mlp.down_proj.weight = torch.nn.Parameter(weight.detach().T.contiguous().T)
    usual = body.rotary_emb.forward
    runs: list[int] = []

    def views(*given: Any, **named: Any) -> Any:
        wide = (torch.cat([each, each], -1) for each in usual(*given, **named))
        return tuple(each[..., : each.shape[-1] // 2] for each in wide)

    def strict(graph: GraphModule, inputs: list[Tensor], options: Any) -> Callable[..., Any]:
        def run(*given: Tensor) -> Any:
            runs.append(len(given))
            for tensor, traced in zip(given, inputs, strict=True):
                sizes = zip(tensor.stride(), traced.stride(), tensor.shape, strict=True)
                assert all(
                    one == other or size == 1 or not isinstance(other, int) for one, other, size in sizes
                )
            return graph(*given)

        return run

    monkeypatch.setattr(torch._inductor, "compile", strict)
    monkeypatch.setitem(vars(body.rotary_emb), "forward", views)
    before = logits(lm)
    compile_layers(lm)
    assert lm.compiled == Compiled(lm.layers, lm.layers)
    runs.clear()
    assert torch.equal(logits(lm), before)
    assert runs


def test_a_copy_is_plain(operators: list[GraphModule]) -> None:
    lm = tiny("llama")
    before = logits(lm)
    compile_layers(lm)
    other = TorchLM(copy.deepcopy(lm.model))
    assert not compiled_layers(other)
    torch.testing.assert_close(logits(other), before, rtol=0, atol=float(before.abs().max()) / 32)
    with torch.no_grad():
        for layer in other.model.model.layers:
            layer.post_attention_layernorm.weight.zero_()
    assert not torch.allclose(logits(other), before, atol=float(before.abs().max()) / 32)
    assert torch.equal(logits(lm), before)


def test_a_shorter_twin_keeps_its_compiled_layers(operators: list[GraphModule]) -> None:
    lm = tiny("llama")
    before = logits(lm.truncated(1, "--drafter"))
    compile_layers(lm)
    shorter = lm.truncated(1, "--drafter")
    assert torch.equal(logits(shorter), before)
    assert lm.twin().backend == "inductor"


def test_a_layer_whose_attention_reads_more_than_its_cache_has_no_graph(
    operators: list[GraphModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = tiny("llama")
    attention = lm.model.model.layers[0].self_attn
    usual = attention.forward

    def shifted(*args: Any, **given: Any) -> Any:
        output, weights = usual(*args, **given)
        return output * given["past_key_values"].get_seq_length(), weights

    monkeypatch.setitem(vars(attention), "forward", shifted)
    compile_layers(lm)
    assert lm.compiled == Compiled(lm.layers - 1, lm.layers, "it reads get_seq_length of its cache")


def test_a_failing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> Any:
        raise RuntimeError("g++: fatal error")

    monkeypatch.setattr(torch._inductor, "compile", fails)
    with pytest.raises(
        UsageError, match=r"inductor fails to compile a layer: RuntimeError: g\+\+: fatal"
    ) as error:
        compile_layers(tiny("llama"))
    assert error.value.flag == "--backend"


def test_a_compiler_is_asked_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UsageError, match=r"needs a C\+\+ compiler, and no-such-compiler is not found"):
        require_compiler(torch.device("cpu"))
    with pytest.raises(UsageError, match=r"compiles for a CPU here, and the device is cuda"):
        require_compiler(torch.device("cuda"))


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "sh")  # which is there, and is not called


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--pair", "mini", "--dtype", "int8"), "are quantised"),
        (("--pair", "mini-t5"), "is an encoder-decoder"),
        (("--pair", "mini", "--device-map", "auto"), "and inductor computes on one CPU"),
    ],
)
def test_what_it_does_not_compile_is_refused_before_weights(more: tuple[str, ...], said: str) -> None:
    result = call("run", "xsum", "--backend", "inductor", *more)
    assert result.code == 2
    assert said in " ".join(result.err.split())
    assert "Loading" not in result.err


@pytest.mark.usefixtures("compiler")
def test_a_random_encoder_decoder_is_refused(tmp_path: Path) -> None:
    make_seq2seq("t5").config.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    sizes = ("--context", "8", "--seconds", "1")
    result = call("bench", "--target", config, "--draft", config, "--backend", "inductor", *sizes)
    assert result.code == 2
    assert "t5 is an encoder-decoder, and inductor compiles decoders" in " ".join(result.err.split())


@pytest.mark.usefixtures("compiler", "operators")
def test_a_run_says_what_is_compiled(tmp_path: Path) -> None:
    model = save(make(config_of("qwen3.5")).to(torch.bfloat16), tmp_path / "hybrid")
    (prompts := tmp_path / "p.txt").write_text("a b c\n")
    out = tmp_path / "run"
    pair = ("--target", model, "--draft", model, "--backend", "inductor", "--out", out)
    result = call("run", prompts, *pair, "--max-new-tokens", "8", "--k", "2", *ALONE[:-1])
    assert result.code == 0, result.err
    found = json.loads((out / "run.json").read_text(encoding="utf-8"))
    target = found["models"]["target"]
    assert target["backend"] == found["conditions"][0]["backend"] == "inductor"
    count, of = target["compiled"]["layers"], target["compiled"]["of"]
    assert 0 < count < of
    said = f"{count} of {of} layers of the target are compiled: it keeps other states than keys and values,"
    assert said in " ".join(result.err.split()) or said in " ".join(result.out.split())


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "qwen3_moe", "gpt_oss", "deepseek_v3", HYBRID])
def test_inductor_computes_what_operators_do(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    lm = tiny(kind)
    before = logits(lm)
    compile_layers(lm)
    assert lm.compiled is not None
    assert lm.compiled.layers == (1 if kind == HYBRID else lm.layers)
    torch.testing.assert_close(logits(lm), before, rtol=0, atol=float(before.abs().max()) / 32)


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_products_of_an_unknown_inductor_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.lowering import lowerings

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.delitem(lowerings, torch.ops.spsbench.product.default, raising=False)
    monkeypatch.setitem(sys.modules, "torch._inductor.mkldnn_ir", None)
    lm = tiny("llama")
    before = logits(lm)
    compile_layers(lm)
    assert lm.compiled == Compiled(lm.layers, lm.layers)
    torch.testing.assert_close(logits(lm), before, rtol=0, atol=float(before.abs().max()) / 32)
    lowerings.pop(torch.ops.spsbench.product.default, None)
