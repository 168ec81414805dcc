"""Workers of named engines: what they ask of the engine, and what they make of its answers.

The engines are fakes with the names that the workers use. That the real ones have these names and mean by
them what is assumed was tried by hand.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spsbench.base.errors import UnavailableError, UsageError
from spsbench.base.protocol import Ask, Drafting, Load, PeerError, PeerGone, Sampling, Wave, checked
from spsbench.base.records import Spec
from spsbench.parts.external.install import Environment
from spsbench.parts.external.registry import NAMED, find_peer, peer_in
from spsbench.parts.external.workers import llama_cpp, onnxruntime_genai, openvino, vllm, xllamacpp

GREEDY = Sampling(greedy=True)
DRAWN = Sampling(temperature=0.7, top_k=5, top_p=0.8)
PROMPT, STOP = [1, 10], 14


def ask(sampling: Sampling = GREEDY, longest: int = 32) -> Ask:
    return Ask(PROMPT, longest, [STOP], ["\n"], sampling, seed=3)


class Bag(SimpleNamespace):
    """Takes any attribute, and keywords by ``set_..._options``."""

    def set_search_options(self, **options: Any) -> None:
        self.search = options

    def set_speculative_options(self, **options: Any) -> None:
        self.speculative = options


# --- vLLM


class FakeLLM:
    """Counts upwards from the prompt's last token: one, three and all tokens after its steps.

    Each request has two loops, of which the first accepts one token and the second four.
    """

    def __init__(self, model: str, **settings: Any) -> None:
        self.settings, self.requests, self.loops = settings, [], 0
        self.llm_engine = self
        self.model_config = SimpleNamespace(get_vocab_size=lambda: 50)
        self.running: dict[str, list[list[int]]] = {}

    def add_request(self, name: str, prompt: dict[str, Any], parameters: Any) -> None:
        self.requests.append(vars(parameters))
        self.loops += 2
        ids = list(range(prompt["prompt_token_ids"][-1] + 1, STOP + 1))
        self.running[name] = [ids[:1], ids[:3], ids]

    def step(self) -> list[Any]:
        return [self.told(name, steps.pop(0), not steps) for name, steps in self.running.items() if steps]

    def told(self, name: str, ids: list[int], last: bool) -> Any:
        metrics = SimpleNamespace(scheduled_ts=1.0, first_token_ts=1.5, last_token_ts=2.5)
        output = SimpleNamespace(token_ids=ids)
        if "logprobs" in self.requests[-1]:
            output.logprobs = [{i: SimpleNamespace(logprob=-float(i))} for i in ids]
        return SimpleNamespace(request_id=name, outputs=[output], metrics=metrics, finished=last)

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            self.running[name].clear()

    def get_metrics(self) -> list[Any]:
        counts = {"num_drafts": self.loops, "num_draft_tokens": 4 * self.loops}
        counts["num_accepted_tokens"] = 5 * self.loops // 2
        return [SimpleNamespace(name=f"vllm:spec_decode_{name}", value=n) for name, n in counts.items()]


class FakeArgs:
    """Says which model runner an engine would have."""

    runner_v2 = False

    def __init__(self, **settings: Any) -> None:
        pass

    def create_engine_config(self) -> Any:
        return SimpleNamespace(use_v2_model_runner=self.runner_v2)


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(LLM=FakeLLM, EngineArgs=FakeArgs, SamplingParams=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "vllm", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(vllm, "version", lambda name: "0.32.0")


@pytest.mark.usefixtures("fake_vllm")
def test_vllm_is_loaded_in_the_settings_that_it_describes() -> None:
    plain = vllm.Vllm(Load("t"))
    assert plain._llm.settings["speculative_config"] is None
    assert plain.describe().rule is None
    options = {"draft_sample_method": "probabilistic"}
    loaded = vllm.Vllm(Load("t", "d", 4, context=512, options=options))
    settings = loaded._llm.settings
    assert settings["speculative_config"] == {
        "method": "draft_model",
        "model": "d",
        "num_speculative_tokens": 4,
        "draft_sample_method": "probabilistic",
    }
    assert (settings["dtype"], settings["max_model_len"]) == ("float32", 512)
    assert (settings["enable_prefix_caching"], settings["generation_config"]) == (False, "vllm")
    told = loaded.describe()
    assert (told.vocab_size, told.rule) == (50, "modified rejection")
    assert told.settings["draft_sample_method"] == "probabilistic"
    assert any("55005" in limit for limit in told.limits)


@pytest.mark.usefixtures("fake_vllm")
@pytest.mark.parametrize(
    ("options", "drafting"),
    [({"head": "my-head"}, {"model": "my-head"}), ({"speculation": "mtp"}, {"method": "mtp"})],
)
def test_vllm_drafts_with_a_trained_head_or_the_targets_modules(
    options: dict[str, str], drafting: dict[str, str]
) -> None:
    """A head's folder says itself what it is; the draft model, which an audit measures, is not loaded."""
    loaded = vllm.Vllm(Load("t", "d", 3, options=options | {"draft_sample_method": "greedy"}))
    expected = {**drafting, "num_speculative_tokens": 3, "draft_sample_method": "greedy"}
    assert loaded._llm.settings["speculative_config"] == expected
    # Else an audit holds what was accepted against the draft model.
    assert loaded.describe().rule == "rejection of the most probable token; drafts of a prediction head"


@pytest.mark.usefixtures("fake_vllm")
@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"speculators_model_type": "eagle3"}, {"method": "eagle3"}),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, {"method": "eagle3"}),
        ({"speculators_model_type": "peagle"}, {"method": "eagle3", "parallel_drafting": True}),
        ({"architectures": ["DFlashDraftModel"]}, {"method": "dflash"}),
        ({"speculators_model_type": "dspark"}, {"method": "dspark"}),
        ({"architectures": ["LlamaForCausalLM"]}, {}),
    ],
)
def test_vllm_is_told_what_a_head_is_whatever_its_folder_is_called(
    config: dict[str, object], method: dict[str, object], tmp_path: Path
) -> None:
    """By itself vLLM 0.32.0 takes a head for a draft model unless its path holds "eagle3", "dflash" ..."""
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    loaded = vllm.Vllm(Load("t", "d", 3, options={"head": str(tmp_path)}))
    told = loaded._llm.settings["speculative_config"]
    assert told == {
        "model": str(tmp_path),
        **method,
        "num_speculative_tokens": 3,
        "draft_sample_method": "greedy",
    }


@pytest.mark.usefixtures("fake_vllm")
def test_vllm_verifies_blocks_where_its_model_runner_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner that a CPU gets takes the option for ``standard``, and then for drafts by argmax, too."""
    load = Load("t", "d", 4, options={"rejection_sample_method": "block"})
    with pytest.raises(ValueError, match="block is of its model runner V2"):
        vllm.Vllm(load)
    assert vllm.Vllm(replace(load, draft=None, k=0)).describe().rule is None
    monkeypatch.setattr(FakeArgs, "runner_v2", True)
    block = vllm.Vllm(load)
    assert block._llm.settings["speculative_config"]["rejection_sample_method"] == "block"
    assert block.describe().rule == "block verification"


@pytest.mark.usefixtures("fake_vllm")
def test_vllm_is_asked_for_the_sampling_and_its_counters_are_subtracted() -> None:
    loaded = vllm.Vllm(Load("t", "d", 4))
    loaded.generate(ask())
    answer = checked(loaded.generate(ask(DRAWN)), ask(), 50)
    greedy, drawn = loaded._llm.requests
    assert greedy["temperature"] == 0.0
    assert {name: drawn[name] for name in ("temperature", "top_k", "top_p", "seed")} == {
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.8,
        "seed": 3,
    }
    assert drawn["stop_token_ids"] == [STOP]
    assert (answer.output_ids, answer.finish) == ([11, 12, 13, 14], "stop")
    assert (answer.loops, answer.drafted, answer.accepted) == (2, 8, 5)
    assert answer.accepted_per_loop == [1, 4]  # of the last one three after the end of the text
    assert (answer.prefill_ms, answer.decode_ms, answer.decoded) == (500.0, 1000.0, 3)


@pytest.mark.usefixtures("fake_vllm")
def test_loops_of_vllm_that_were_not_counted_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = vllm.Vllm(Load("t", "d", 4))
    monkeypatch.setattr(loaded._llm, "get_metrics", list)
    assert loaded.generate(ask()).accepted_per_loop is None
    assert vllm.Vllm(Load("t")).generate(ask()).accepted_per_loop is None


@pytest.mark.usefixtures("fake_vllm")
def test_vllm_goes_on_with_others_when_one_is_aborted() -> None:
    loaded = vllm.Vllm(Load("t", "d", 4, in_flight=2))
    wave = Wave([ask(), ask(), ask()], [0, 0, 2], [None, 2, None], 2)
    found = loaded.together(wave)
    assert [answer and answer.output_ids for answer in found.answers] == [
        [11, 12, 13, 14],
        None,
        [11, 12, 13, 14],
    ]
    assert not any(loaded._llm.running.values())


@pytest.mark.usefixtures("fake_vllm")
def test_vllm_is_not_asked_for_what_breaks_it() -> None:
    loaded = vllm.Vllm(Load("t", "d", 4))
    with pytest.raises(ValueError, match="top-k without top-p fails with a draft"):
        loaded.generate(ask(Sampling(top_k=5)))
    assert loaded._llm.requests == []
    assert vllm.Vllm(Load("t")).generate(ask(Sampling(top_k=5))).output_ids[0] == 11


@pytest.mark.usefixtures("fake_vllm")
def test_vllm_gives_log_probabilities_and_refuses_with_a_draft_what_it_refuses() -> None:
    loaded, alone = vllm.Vllm(Load("t", "d", 4)), vllm.Vllm(Load("t"))
    assert loaded.generate(replace(ask(), logprobs=True)).logprobs == [-11.0, -12.0, -13.0, -14.0]
    assert loaded._llm.requests[-1]["logprobs"] == 0
    assert loaded.generate(ask()).logprobs is None
    steps = Sampling(min_p=0.1, logit_bias={"7": -1.5}, min_new_tokens=2)
    assert {"min_p", "logit_bias"} == {*alone.describe().processors} - {*loaded.describe().processors}
    alone.generate(ask(steps))
    wanted = {"min_p": 0.1, "logit_bias": {7: -1.5}, "min_tokens": 2}
    assert wanted.items() <= alone._llm.requests[-1].items()
    with pytest.raises(PeerError, match="cannot: it has no min_p, logit_bias"):
        loaded.generate(ask(steps))


def test_what_is_mended_in_vllm_expands_rows_in_their_own_type(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    kernels, sampler = SimpleNamespace(), SimpleNamespace()
    monkeypatch.setitem(sys.modules, "vllm.utils.cpu_triton_utils", kernels)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "vllm.v1.sample.rejection_sampler", sampler)  # type: ignore[arg-type]
    vllm.mend()
    ends = torch.tensor([2, 3], dtype=torch.int32)
    output = torch.full((3,), -9.0)
    kernels._expand_kernel_impl(output, torch.tensor([0.8, 0.0]), ends, 0, 1)
    assert torch.equal(output, torch.tensor([0.8, 0.8, 1.0]))
    assert sampler.expand_batch_to_tokens(torch.tensor([7, 5]), ends, 3).tolist() == [7, 7, 5]


# --- ONNX Runtime GenAI


class FakeGenerator:
    """Counts upwards from the prompt's last token."""

    def __init__(self, model: Any, parameters: Bag) -> None:
        model.asked.append(parameters)

    def append_tokens(self, prompt: Any) -> None:
        self._last = int(prompt[-1])

    def is_done(self) -> bool:
        return False

    def generate_next_token(self) -> None:
        self._last += 1

    def get_next_tokens(self) -> list[int]:
        return [self._last]

    def get_speculative_stats(self) -> dict[str, int]:
        return dict(_SPECULATIVE_STATS)


class FakeMtpGenerator(FakeGenerator):
    """The same, of a target and its module; the sequence begins with the prompt."""

    def __init__(self, model: Any, module: Any, parameters: Bag) -> None:
        super().__init__(model, parameters)
        model.module = module

    def append_tokens(self, prompt: Any) -> None:
        super().append_tokens(prompt)
        self._sequence = list(prompt)

    def generate_next_token(self) -> None:
        super().generate_next_token()
        self._sequence.append(self._last)

    def get_sequence(self) -> list[int]:
        return self._sequence

    def get_stats(self) -> dict[str, int]:
        return {name: number for name, number in _SPECULATIVE_STATS.items() if "fallback" not in name}


_SPECULATIVE_STATS = {
    "rounds": 2,
    "draft_tokens_proposed": 8,
    "draft_tokens_accepted": 2,
    "standard_fallback_steps": 3,
}


class FakeTurns:
    """Several requests, each a token further with each run; ``fails`` ends with its first token, one short of
    ``STOP`` with its own end, whose token it keeps back."""

    def __init__(self, model: Any) -> None:
        self.model, self.running = model, list[Any]()

    def create_event_buffer(self, most: int) -> int:
        return most

    def create_request(self) -> Any:
        request = SimpleNamespace(begin_turn=lambda prompt, turn: self._begin(request, prompt, turn))
        return request

    def _begin(self, request: Any, prompt: Any, turn: Any) -> int:
        request.last, request.left = int(prompt[-1]), turn.max_generated_tokens
        self.model.asked.append(turn)
        self.running.append(request)
        return 0

    def run(self, most: int) -> list[Any]:
        events = []
        for request in list(self.running):
            request.last, request.left = request.last + 1, request.left - 1
            kept, failed = request.last == STOP, request.last == FAILS
            finished = kept or not request.left
            flags = (8 if failed else 0) | (2 if finished else 0) | (0 if kept or failed else 1)
            facts = {"token": request.last, "error_code": "REQUEST_UNSERVICEABLE"}
            events.append(SimpleNamespace(request=request, flags=flags, finish_reason="EOS" * kept, **facts))
            if finished or failed:
                self.running.remove(request)
        return events


FAILS = 30


class Turn(Bag):
    """Keeps what it is given by ``set_...``."""

    def __init__(self, request: Any) -> None:
        super().__init__()

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("set_"):
            raise AttributeError(name)
        return lambda *value: setattr(self, name.removeprefix("set_"), value[0] if len(value) == 1 else value)


def onnx_model(folder: Path) -> str:
    folder.mkdir()
    decoder = {"filename": "model.onnx", "session_options": {"log_id": "x"}}
    config = {"model": {"decoder": decoder, "vocab_size": 50, "eos_token_id": STOP}}
    (folder / "genai_config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "TokenizersBackend"}))
    (folder / "model.onnx").write_text(folder.name)
    return str(folder)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Models of ONNX Runtime GenAI, and a module that reads what was composed of them."""

    class FakeModel:
        def __init__(self, folder: str) -> None:
            self.asked: list[Bag] = []
            self.config = json.loads((Path(folder) / "genai_config.json").read_text())
            roles = [role for role in ("decoder", "draft") if role in self.config["model"]]
            names = [self.config["model"][role]["filename"] for role in roles]
            self.read = [(Path(folder) / name).read_text() for name in names]
            self.tokenizer = json.loads((Path(folder) / "tokenizer_config.json").read_text())

    fake = SimpleNamespace(
        Model=FakeModel,
        GeneratorParams=lambda model: Bag(),
        Generator=FakeGenerator,
        MtpGenerator=FakeMtpGenerator,
        Engine=FakeTurns,
        TurnOptions=Turn,
        EngineEventFlags=SimpleNamespace(TOKEN=1, TURN_FINISHED=2, FAILED=8),
        FinishReason=SimpleNamespace(EOS="EOS"),
    )
    monkeypatch.setitem(sys.modules, "onnxruntime_genai", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(onnxruntime_genai, "version", lambda name: "0.18.0")
    return onnx_model(tmp_path / "one"), onnx_model(tmp_path / "other")


def test_onnxruntime_genai_reads_both_models_through_one_configuration(pair: tuple[str, str]) -> None:
    model = onnxruntime_genai.OnnxRuntimeGenAI(Load(*pair, 4, threads=2))._model
    assert model.read == ["one", "other"]
    assert model.config["speculative"] == {"max_draft_tokens": 4}
    options = {"log_id": "x", "intra_op_num_threads": 2, "inter_op_num_threads": 1}
    assert model.config["model"]["draft"]["session_options"] == options
    assert model.tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"
    alone = onnxruntime_genai.OnnxRuntimeGenAI(Load(pair[0]))._model
    assert alone.read == ["one"]
    assert "speculative" not in alone.config


@pytest.mark.parametrize(
    ("more", "size", "chained"), [({}, 2, False), ({"ngram_size": 3, "ngram_chained_lookup": True}, 3, True)]
)
def test_onnxruntime_genai_looks_n_grams_up_without_the_draft(
    pair: tuple[str, str], more: dict[str, Any], size: int, chained: bool
) -> None:
    loaded = onnxruntime_genai.OnnxRuntimeGenAI(Load(*pair, 4, options={"speculation": "lookup", **more}))
    assert loaded._model.read == ["one"]
    asked = {"max_draft_tokens": 4, "ngram_size": size, "ngram_chained_lookup": chained}
    assert loaded._model.config["speculative"] == asked
    assert loaded.describe().rule == "sample-and-compare, prompt lookup"
    answer = checked(loaded.generate(ask()), ask(), 50)
    assert (answer.loops, answer.drafted, answer.accepted) == (5, 8, 2)  # 3 steps found no n-gram
    options = {"speculation": "lookup"}
    alone = onnxruntime_genai.OnnxRuntimeGenAI(Load(pair[0], options=options))._model
    assert "speculative" not in alone.config


@pytest.mark.parametrize(
    ("options", "drafting"), [("", None), (":min_adaptive_k=0", None), (":min_adaptive_k=2", 16)]
)
def test_onnxruntime_genai_drafts_beyond_k_where_it_adapts(
    options: str, drafting: int | None, pair: tuple[str, str], tmp_path: Path
) -> None:
    kind = peer_in(Environment(tmp_path), Spec.parse(f"onnxruntime-genai{options}"))
    assert kind.drafting == Drafting(n_max=drafting)


@pytest.fixture
def with_module(pair: tuple[str, str]) -> str:
    """A target as the builder writes it beside its module, with the graph that the conversion adds."""
    folder = Path(pair[0])
    config = json.loads((folder / "genai_config.json").read_text())
    sizes = {"head_size": 8, "num_hidden_layers": 1, "num_key_value_heads": 1}
    names = {"inputs": {"hidden_states": "h"}, "outputs": {"hidden_states": "g"}}
    module = sizes | names | {"enabled": True, "filename": "mtp.onnx", "main_hidden_states": "h"}
    config["model"]["mtp"] = module | {"shared_initializers": [{"name": "embedding"}]}
    config["model"]["decoder"] |= {"shared_initializers": [{"name": "embedding"}], "num_hidden_layers": 4}
    (folder / "genai_config.json").write_text(json.dumps(config))
    (folder / "mtp.onnx").write_text("module")
    (folder / onnxruntime_genai.HALF_LOGITS).write_text("half")
    return pair[0]


def test_onnxruntime_genai_drafts_by_the_targets_module(with_module: str) -> None:
    loaded = onnxruntime_genai.OnnxRuntimeGenAI(Load(with_module, "none", 3, threads=2, options=_BY_MODULE))
    answer = checked(loaded.generate(ask(DRAWN)), ask(), 50)
    target, module = loaded._model, loaded._model.module
    assert (target.read, module.read) == (["half"], ["module"])
    assert target.config["model"]["mtp"]["filename"] == "target/mtp.onnx"
    assert "shared_initializers" not in json.dumps([target.config, module.config])
    decoder = module.config["model"]["decoder"]
    assert (decoder["num_hidden_layers"], decoder["inputs"]) == (1, {"hidden_states": "h"})
    assert decoder["session_options"]["intra_op_num_threads"] == 2
    assert {"enabled", "main_hidden_states"}.isdisjoint(decoder)
    assert "mtp" not in module.config["model"]
    assert target.asked[0].speculative == {"max_draft_tokens": 3}
    assert (answer.output_ids, answer.finish) == ([11, 12, 13, 14], "stop")
    # The first token comes from the prefill.
    assert (answer.loops, answer.drafted, answer.accepted, answer.decoded) == (2, 8, 2, 3)


def test_onnxruntime_genai_has_no_grammar_with_a_module(with_module: str) -> None:
    loaded = onnxruntime_genai.OnnxRuntimeGenAI(Load(with_module, "none", 3, options=_BY_MODULE))
    assert loaded.describe().processors == ["repetition_penalty", "min_new_tokens"]
    with pytest.raises(PeerError, match="it has no grammar"):
        loaded.generate(ask(Sampling(grammar="{}")))


def test_onnxruntime_genai_without_a_draft_has_the_modules_target(with_module: str) -> None:
    rounded = onnxruntime_genai.OnnxRuntimeGenAI(Load(with_module, options=_BY_MODULE))
    assert rounded._model.read == ["half"]
    assert "float16" in rounded.describe().limits[-1]
    plain = onnxruntime_genai.OnnxRuntimeGenAI(Load(with_module))
    assert plain._model.read == ["one"]
    assert "mtp" not in plain._model.config["model"]
    assert "shared_initializers" not in plain._model.config["model"]["decoder"]
    assert "float16" not in "".join(plain.describe().limits)
    answer = plain.generate(ask())
    assert answer.output_ids == [11, 12, 13, 14]


def test_onnxruntime_genai_refuses_a_module_that_is_not_there(
    pair: tuple[str, str], with_module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="found no prediction module in the target"):
        onnxruntime_genai.OnnxRuntimeGenAI(Load(pair[1], "none", 3, options=_BY_MODULE))
    monkeypatch.delattr(sys.modules["onnxruntime_genai"], "MtpGenerator")
    with pytest.raises(ValueError, match="has no MtpGenerator"):
        onnxruntime_genai.OnnxRuntimeGenAI(Load(with_module, "none", 3, options=_BY_MODULE))


_BY_MODULE = {"speculation": "mtp"}


def test_onnxruntime_genai_links_to_models_whose_folders_are_relative(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = map(Path, pair)
    monkeypatch.chdir(one.parent)
    model = onnxruntime_genai.OnnxRuntimeGenAI(Load(one.name, other.name, 4))._model
    assert model.read == ["one", "other"]


def test_onnxruntime_genai_in_flight_loses_what_fails_alone_and_gives_its_end(pair: tuple[str, str]) -> None:
    loaded = onnxruntime_genai.OnnxRuntimeGenAI(Load(pair[0], in_flight=3))
    asks = [replace(ask(longest=5), prompt_ids=[first]) for first in (10, 20, FAILS - 2)]
    found = loaded.together(Wave(asks, [0] * 3, [None] * 3, 3))
    answers = [answer and (answer.output_ids, answer.finish) for answer in found.answers]
    assert answers == [([11, 12, 13, STOP], "stop"), ([21, 22, 23, 24, 25], "length"), None]
    assert found.errors == {"2": "RuntimeError: its engine failed: REQUEST_UNSERVICEABLE"}


def test_onnxruntime_genai_in_flight_is_asked_for_processors(pair: tuple[str, str]) -> None:
    loaded = onnxruntime_genai.OnnxRuntimeGenAI(Load(pair[0], in_flight=2))
    drawn = replace(DRAWN, repetition_penalty=1.5, min_new_tokens=2, grammar="{}")
    loaded.together(Wave([ask(drawn, longest=3)], [0], [None], 2))
    wanted = {"repetition_penalty": 1.5, "min_generated_tokens": 2, "guidance": ("json_schema", "{}")}
    wanted |= {"temperature": 0.7, "top_k": 5, "top_p": 0.8, "do_sample": True}
    assert vars(loaded._model.asked[0]) == wanted | {"max_generated_tokens": 3}
    assert {"repetition_penalty", "min_new_tokens", "grammar"} == {*loaded.describe().processors}


def test_onnxruntime_genai_is_asked_for_the_sampling(pair: tuple[str, str]) -> None:
    loaded = onnxruntime_genai.OnnxRuntimeGenAI(Load(*pair, 4))
    loaded.generate(ask())
    answer = checked(loaded.generate(ask(DRAWN)), ask(), 50)
    greedy, drawn = loaded._model.asked
    assert greedy.search["do_sample"] is False
    expected = {"do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 0.8, "random_seed": 3}
    assert {name: drawn.search[name] for name in expected} == expected
    assert drawn.speculative == {"max_draft_tokens": 4}
    adaptive = onnxruntime_genai.OnnxRuntimeGenAI(Load(*pair, 4, options={"min_adaptive_k": 2}))
    adaptive.generate(ask())
    assert adaptive._model.asked[-1].speculative == {"max_draft_tokens": 4, "min_adaptive_k": 2}
    assert (answer.output_ids, answer.finish) == ([11, 12, 13, 14], "stop")
    assert (answer.loops, answer.drafted, answer.accepted, answer.decoded) == (2, 8, 2, 4)
    loaded.generate(ask(Sampling(min_new_tokens=2, repetition_penalty=1.2)))
    processed = loaded._model.asked[-1].search
    assert (processed["min_length"], processed["repetition_penalty"]) == (4, 1.2)
    with pytest.raises(PeerError, match="bars the model's own end tokens alone"):
        loaded.generate(Ask(PROMPT, 3, [STOP, 7], sampling=Sampling(min_new_tokens=2)))
    alone = onnxruntime_genai.OnnxRuntimeGenAI(Load(pair[0])).generate(ask())
    assert (alone.loops, alone.drafted, alone.accepted, alone.decoded) == (3, None, None, 3)


# --- OpenVINO GenAI


class FakePipeline:
    """Hands out a token behind the stop, as the last loop may hold one."""

    def __init__(self, target: str, device: str, **given: Any) -> None:
        self.given, self.asked = given, []

    def generate(self, prompt: Any, config: Bag) -> Any:
        self.asked.append(config)
        calls = SimpleNamespace(m_durations=[1, 2, 3])
        main = SimpleNamespace(raw_metrics=calls)
        return SimpleNamespace(
            tokens=[[11, 12, 13, 14, 15]],
            perf_metrics=SimpleNamespace(get_ttft=lambda: SimpleNamespace(mean=0.001)),
            extended_perf_metrics=None
            if "prompt_lookup" in self.given
            else SimpleNamespace(main_model_metrics=main),
        )


@pytest.fixture
def fake_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    genai = SimpleNamespace(
        SchedulerConfig=Bag,
        GenerationConfig=Bag,
        LLMPipeline=FakePipeline,
        draft_model=lambda path, device, **given: (path, given),
    )
    monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(Tensor=list))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "openvino_genai", genai)  # type: ignore[arg-type]


@pytest.mark.usefixtures("fake_openvino")
def test_openvino_is_asked_for_float32_and_for_the_sampling() -> None:
    loaded = openvino.OpenVino(Load("t", "d", 4, threads=1))
    given = loaded._pipeline.given
    assert given["scheduler_config"].enable_prefix_caching is False
    properties = {name: value for name, value in given.items() if name.isupper()}
    assert properties == {
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
        "INFERENCE_NUM_THREADS": 1,
    }
    assert given["draft_model"] == ("d", properties)
    loaded.generate(ask())
    answer = checked(loaded.generate(ask(DRAWN)), ask(), 50)
    greedy, drawn = loaded._pipeline.asked
    assert greedy.do_sample is False
    told = (drawn.do_sample, drawn.temperature, drawn.top_k, drawn.top_p, drawn.rng_seed)
    assert told == (True, 0.7, 5, 0.8, 3)
    assert (drawn.stop_token_ids, drawn.num_assistant_tokens) == ({STOP}, 4)
    assert (answer.output_ids, answer.finish) == ([11, 12, 13, 14], "stop")
    assert (answer.loops, answer.drafted, answer.accepted) == (2, None, None)
    loaded.generate(ask(Sampling()))
    assert loaded._pipeline.asked[-1].top_k == 2**31 - 1


@pytest.mark.usefixtures("fake_openvino")
def test_openvino_draws_a_seed_where_none_is_given_and_takes_processors() -> None:
    loaded = openvino.OpenVino(Load("t"))
    steps = Sampling(min_p=0.1, presence_penalty=0.3, min_new_tokens=2)
    for _ in range(3):
        loaded.generate(replace(ask(steps), seed=None))
    asked = loaded._pipeline.asked
    assert len({each.rng_seed for each in asked}) == 3
    assert (asked[-1].min_p, asked[-1].presence_penalty, asked[-1].min_new_tokens) == (0.1, 0.3, 2)


@pytest.mark.usefixtures("fake_openvino")
def test_openvino_looks_up_instead_of_loading_a_draft() -> None:
    options = {"speculation": "lookup"}
    loaded, plain = openvino.OpenVino(Load("t", "d", 4, options=options)), openvino.OpenVino(Load("t"))
    assert (loaded._pipeline.given["prompt_lookup"], "draft_model" in loaded._pipeline.given) == (True, False)
    assert "prompt_lookup" not in plain._pipeline.given
    assert not openvino.OpenVino(Load("t", options=options))._pipeline.given["prompt_lookup"]
    assert loaded.generate(ask()).loops is None
    (asked,) = loaded._pipeline.asked
    assert (asked.num_assistant_tokens, asked.max_ngram_size) == (4, 2)


@pytest.mark.parametrize("engine", ["openvino", "transformers"])
def test_a_draft_that_ends_behind_an_improbable_token_ends_by_no_row(engine: str, tmp_path: Path) -> None:
    """Contexts are not chosen by a law of rows that the engine cannot follow."""
    kind = peer_in(Environment(tmp_path), Spec.parse(f"{engine}:assistant_confidence_threshold=0.4"))
    assert kind.drafting == Drafting()


@pytest.mark.usefixtures("fake_openvino")
def test_openvino_takes_its_own_threshold_in_place_of_k() -> None:
    loaded = openvino.OpenVino(Load("t", "d", 4, options={"assistant_confidence_threshold": 0.4}))
    loaded.generate(ask())
    (asked,) = loaded._pipeline.asked
    assert asked.assistant_confidence_threshold == 0.4
    assert not hasattr(asked, "num_assistant_tokens")


def test_other_precisions_are_refused() -> None:
    for kind in (openvino.OpenVino, onnxruntime_genai.OnnxRuntimeGenAI):
        with pytest.raises(ValueError, match="dtype float16 is not supported"):
            kind(Load("t", dtype="float16"))


# --- llama.cpp, through its process


@pytest.fixture
def llama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Environment, Path]:
    """An environment whose server is the fake one, and what that writes."""
    environment, log = Environment(tmp_path / "llama"), tmp_path / "asked.jsonl"
    environment.server.parent.mkdir(parents=True)
    script = Path(__file__).resolve().parents[2] / "support/fake_llama_server.py"
    environment.server.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    environment.server.chmod(0o755)
    monkeypatch.setenv("FAKE_LLAMA_LOG", str(log))
    return environment, log


@pytest.mark.parametrize("place", [".", "bin", "bin/llama-server"])
@pytest.mark.parametrize("spoil", ["mode", "owner"])
def test_what_others_may_write_is_not_run(
    llama: tuple[Environment, Path], place: str, spoil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = llama[0].folder / place
    if spoil == "mode":
        path.chmod(0o777)
    else:
        whole = Path.lstat
        stranger = (*path.lstat()[:4], os.getuid() + 1, *path.lstat()[5:])
        monkeypatch.setattr(
            Path, "lstat", lambda self: os.stat_result(stranger) if self == path else whole(self)
        )
    with pytest.raises(UsageError, match=f"{path} belongs to another user, or others may write to it"):
        peer_in(llama[0], Spec("llama-cpp"))


def test_llama_cpp_says_its_whole_chain_of_samplers(llama: tuple[Environment, Path], tmp_path: Path) -> None:
    environment, log = llama
    kind = peer_in(environment, Spec.parse("llama-cpp:draft_sampling=probabilistic"))
    peer = kind.open(Load("t.gguf", "d.gguf", 4, threads=1, context=256), tmp_path / "log", True)
    try:
        told = peer.describe()
        assert (told.version, told.vocab_size) == ("0.6.0, build 7", 50)
        assert told.rule == "modified rejection"
        answers = [checked(peer.generate(each), each, 50) for each in (ask(), ask(DRAWN), ask(longest=4))]
    finally:
        peer.close()
    flags, greedy, drawn, _ = map(json.loads, log.read_text().splitlines())
    assert flags[flags.index("--spec-draft-sampling") + 1] == "probabilistic"
    assert {flags[flags.index(flag) + 1] for flag in ("-ctk", "-ctv", "-ctkd", "-ctvd")} == {"f32"}
    assert greedy["samplers"] == ["top_k"]
    assert drawn["samplers"] == ["temperature", "top_k", "top_p"]
    assert (drawn["temperature"], drawn["top_k"], drawn["top_p"], drawn["seed"]) == (0.7, 5, 0.8, 3)
    assert drawn["cache_prompt"] is False
    assert [answer.output_ids for answer in answers] == [[11, 12, 13, 14]] * 3
    assert [answer.loops for answer in answers] == [2, 2, None]
    assert {(answer.drafted, answer.accepted) for answer in answers} == {(8, 6)}


def test_llama_cpp_alone_has_no_rule_and_ends_with_its_server(
    llama: tuple[Environment, Path], tmp_path: Path
) -> None:
    environment, log = llama
    peer = peer_in(environment, Spec("llama-cpp")).open(Load("t.gguf"), tmp_path / "log", False)
    try:
        assert peer.describe().rule is None
        answer = peer.generate(ask())
    finally:
        peer.close()
    assert (answer.loops, answer.drafted) == (3, None)
    assert "-md" not in json.loads(log.read_text().splitlines()[0])


def test_llama_cpp_looks_up_instead_of_loading_a_draft(
    llama: tuple[Environment, Path], tmp_path: Path
) -> None:
    environment, log = llama
    kind = peer_in(environment, Spec.parse("llama-cpp:speculation=lookup"))
    for k, draft in ((4, "d.gguf"), (0, None)):
        peer = kind.open(Load("t.gguf", draft, k), tmp_path / "log", False)
        try:
            assert peer.describe().rule == ("sample-and-compare, prompt lookup" if k else None)
            assert peer.generate(ask()).loops == (None if k else 3)
        finally:
            peer.close()
    drafting, _, plain, _ = map(json.loads, log.read_text().splitlines())
    assert "-md" not in drafting
    assert drafting[drafting.index("--spec-type") + 1] == "ngram-simple"
    assert drafting[drafting.index("--spec-ngram-simple-size-m") + 1] == "4"
    assert "--spec-type" not in plain


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ("", {"p-min": "0", "n-min": "4"}),
        (":draft_p_min=0.6", {"p-min": "0.6", "n-min": "0"}),
        (":draft_p_min=0.6:draft_n_min=2", {"p-min": "0.6", "n-min": "2"}),
        (":draft_n_min=0", {"p-min": "0", "n-min": "0"}),
    ],
)
def test_llama_cpp_drafts_as_its_user_says(options: str, wanted: dict[str, str], tmp_path: Path) -> None:
    """From ten tokens, whatever is asked for; that drafts of fewer than K are dropped unless something is
    said decides nothing, as all have K."""
    kind = peer_in(Environment(tmp_path), Spec.parse(f"llama-cpp{options}"))
    peer: Any = kind.open(Load("t", "d", 4), tmp_path / "log", False)
    assert kind.drafting == Drafting(float(wanted["p-min"]), int(wanted["n-min"]) if options else 0, 10)
    told = llama_cpp.flags(peer._load)
    assert {name: told[told.index(f"--spec-draft-{name}") + 1] for name in wanted} == wanted
    assert "--spec-synth-len" not in told


def test_llama_cpp_makes_its_acceptance_up_where_that_is_asked_for(tmp_path: Path) -> None:
    kind = peer_in(Environment(tmp_path), Spec.parse("llama-cpp:synth_len=2.5"))
    for draft in ("d", None):
        peer: Any = kind.open(Load("t", draft, 4 if draft else 0), tmp_path / "log", False)
        told = llama_cpp.flags(peer._load)
        assert (
            told[told.index("--spec-synth-len") + 1 :][:1] == ["2.5"]
            if draft
            else "--spec-synth-len" not in told
        )


def test_loops_of_llama_cpp_are_not_told_where_drafts_end_early(
    llama: tuple[Environment, Path], tmp_path: Path
) -> None:
    kind = peer_in(llama[0], Spec.parse("llama-cpp:draft_p_min=0.5"))
    peer = kind.open(Load("t.gguf", "d.gguf", 4), tmp_path / "log", False)
    try:
        answer = peer.generate(ask())
    finally:
        peer.close()
    assert (answer.loops, answer.drafted, answer.accepted) == (None, 8, 6)


def test_a_server_that_ends_is_said(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    environment.server.parent.mkdir()
    environment.server.write_text("#!/bin/sh\nexit 9\n")
    environment.server.chmod(0o755)
    peer = peer_in(environment, Spec("llama-cpp")).open(Load("t.gguf"), tmp_path / "log", False)
    with pytest.raises(PeerGone, match="ended with 9"):
        peer.describe()


# --- llama.cpp in this process


class FakeFields(SimpleNamespace):
    """Parameters of a library: every field that is read is there."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, FakeFields())
        return getattr(self, name)


class FakeLlamaServer:
    """Counts upwards from the prompt's last token; two loops a request accept three of four tokens each."""

    listening_address = "http://127.0.0.1:9"

    def __init__(self, given: Any) -> None:
        self.given, self.asked, self.loops = given, list[dict[str, Any]](), 0

    def handle_completions(self, content: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(content)
        if len(content["prompt"]) > 100:
            return {"error": {"code": 400, "message": "the request exceeds the context"}}
        self.loops += 2
        timings: dict[str, Any] = {"prompt_ms": 1.0, "predicted_ms": 2.0, "predicted_n": 4}
        if vars(self.given).get("speculative"):
            timings |= {"draft_n": 8, "draft_n_accepted": 6}
        answer = {"tokens": [11, 12, 13, 14], "stop_type": "word", "timings": timings}
        return {"choices": []} | ({"__verbose": answer} if content.get("verbose") else {})

    def handle_metrics(self) -> str:
        return f"llamacpp:spec_decode_num_drafts_total {self.loops}\n"


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("DRAFT_SIMPLE", "NGRAM_SIMPLE", "NGRAM_MAP_K", "NGRAM_MAP_K4V", "NGRAM_MOD", "NGRAM_CACHE")
    kinds = {f"COMMON_SPECULATIVE_TYPE_{name}": name for name in names}
    library = SimpleNamespace(
        Server=FakeLlamaServer,
        CommonParams=FakeFields,
        ggml_type=SimpleNamespace(GGML_TYPE_F32="f32"),
        llama_flash_attn_type=SimpleNamespace(LLAMA_FLASH_ATTN_TYPE_DISABLED="off"),
        common_speculative_type=SimpleNamespace(**kinds),
    )
    monkeypatch.setitem(sys.modules, "xllamacpp", library)  # type: ignore[arg-type]
    monkeypatch.setattr(xllamacpp, "version", lambda _: "2026.10.11549")
    models = json.dumps({"data": [{"meta": {"n_vocab": 50}}]})
    monkeypatch.setattr(xllamacpp.XLlamaCpp, "_request", lambda *_: models)


def xllama(options: dict[str, Any], k: int = 4, draft: str | None = "d.gguf") -> Any:
    load = Load("t.gguf", draft, k, threads=1, context=256, in_flight=2, options=options)
    return xllamacpp.XLlamaCpp(load)


@pytest.mark.usefixtures("in_process")
def test_xllamacpp_asks_for_what_the_flags_of_llama_cpp_say() -> None:
    loaded = xllama({"draft_sampling": "probabilistic", "draft_p_min": 0.6, "synth_len": 2.5})
    given = loaded._in_process.given
    draft = given.speculative.draft
    assert given.speculative.types == ["DRAFT_SIMPLE"]
    assert (draft.mparams.path, draft.probabilistic, draft.n_max, draft.n_min) == ("d.gguf", True, 4, 0)
    assert (draft.p_min, given.speculative.synth_len) == (0.6, 2.5)
    caches = (given.cache_type_k, given.cache_type_v, draft.cache_type_k, draft.cache_type_v)
    assert caches == ("f32",) * 4
    assert (given.flash_attn_type, given.cache_ram_mib, given.n_ctx, given.n_parallel) == ("off", 0, 512, 2)
    pools = (given.cpuparams, given.cpuparams_batch, draft.cpuparams, draft.cpuparams_batch)
    assert [pool.n_threads for pool in pools] == [1] * 4
    plain = xllama({}, 0, None)._in_process.given
    assert "speculative" not in vars(plain)


@pytest.mark.usefixtures("in_process")
def test_xllamacpp_answers_as_llama_cpp_does() -> None:
    loaded = xllama({})
    told = loaded.describe()
    assert (told.engine, told.version, told.vocab_size) == ("xllamacpp", "2026.10.11549", 50)
    assert told.rule == "sample-and-compare"
    answers = [checked(loaded.generate(each), each, 50) for each in (ask(), ask(DRAWN))]
    greedy, drawn = loaded._in_process.asked
    assert greedy == llama_cpp.body(ask()) | {"cache_prompt": False, "verbose": True}
    assert drawn["samplers"] == ["temperature", "top_k", "top_p"]
    assert [answer.output_ids for answer in answers] == [[11, 12, 13, 14]] * 2
    assert {(answer.loops, answer.drafted, answer.accepted) for answer in answers} == {(2, 8, 6)}
    with pytest.raises(PeerError, match="the request exceeds the context"):
        loaded.generate(replace(ask(), prompt_ids=[1] * 101))


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("kind", xllamacpp.NGRAMS)
def test_xllamacpp_has_llama_cpps_kinds_of_lookup(kind: str) -> None:
    """The table of ``mod`` outlives requests, which is said."""
    loaded = xllama({"speculation": "lookup", "ngram": kind})
    asked = loaded._in_process.given.speculative
    assert asked.types == [f"NGRAM_{kind.upper().replace('-', '_')}"]
    assert "mparams" not in vars(asked.draft)
    tables = (asked.ngram_simple, asked.ngram_map_k, asked.ngram_map_k4v)
    assert {(table.size_n, table.size_m) for table in tables} == {(2, 4)}
    assert (asked.ngram_mod.n_match, asked.ngram_mod.n_max, asked.draft.n_max) == (2, 4, 4)
    told = loaded.describe()
    assert told.rule == "sample-and-compare, prompt lookup"
    assert any("outlive their request" in limit for limit in told.limits) is (kind == "mod")
    assert loaded.generate(ask()).loops is None


def test_the_registry_knows_the_kinds_of_the_worker() -> None:
    assert NAMED["xllamacpp"].options["ngram"].choices == xllamacpp.NGRAMS


# --- the registry


def test_an_engine_that_is_not_installed_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPSBENCH_CACHE", str(tmp_path))
    with pytest.raises(UnavailableError) as caught:
        find_peer("openvino")
    assert str(caught.value) == (
        "--engine: openvino is not installed. Type `spsbench get openvino`, or name the environment that has "
        "it: openvino:python=PATH."
    )
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("opnvino", "Did you mean openvino"),
        ("openvino:threads=2", "openvino has no option threads"),
        ("llama-cpp:draft_sampling=both", "Choose from greedy, probabilistic"),
        ("openvino:speculation=eagle", "Choose from draft, lookup"),
        ("vllm:mended=3", "Give true or false"),
        ("llama-cpp:p_min=0.6", "It has draft_sampling, speculation, draft_p_min, draft_n_min, synth_len"),
        ("llama-cpp:draft_p_min=1.5", "draft_p_min=1.5 is not valid. Give a number from 0 to 1"),
        ("llama-cpp:draft_n_min=-1", "Give 0 or more"),
        ("llama-cpp:draft_n_min=many", "Give a whole number"),
        ("llama-cpp:draft_p_min=0.5:speculation=lookup", "draft_p_min is of speculation=draft"),
        ("xllamacpp:ngram=mod", "ngram is of speculation=lookup"),
        ("xllamacpp:speculation=lookup:ngram=suffix", "Choose from simple, map-k, map-k4v, mod, cache"),
        ("openvino:max_ngram_size=3", "max_ngram_size is of speculation=lookup"),
        (
            "llama-cpp@11349.0.0:draft_sampling=probabilistic",
            "llama-cpp 11349.0.0 has no option draft_sampling: 11368.0.0 is the first known to have it. "
            "It has speculation, draft_p_min, draft_n_min, synth_len",
        ),
        ("transformers@5.13.1:assistant_ensemble_weight=0.3", "5.14.0 is the first known to have it"),
        ("transformers:assistant_ensemble_weight=1", "Give a number between 0 and 1"),
        ("transformers:assistant_ensemble_weight=0", "Give a number between 0 and 1"),
        ("transformers:num_assistant_tokens_schedule=never", "Choose from constant, heuristic"),
        ("transformers:head=h:assistant_confidence_threshold=0.4", "has no effect beside head"),
        ("transformers:num_assistant_tokens_schedule=heuristic:head=h", "has no effect beside head"),
        ("vllm:rejection_sample_method=all", "Choose from standard, block"),
        ("vllm:speculation=lookup", "Choose from draft, mtp"),
        ("vllm:speculation=mtp:head=h", "head is of speculation=draft"),
        ("transformers:speculation=mtp:head=h", "head is of speculation=draft"),
        ("transformers@5.13.1:speculation=mtp", "5.14.0 is the first known to have it"),
        ("onnxruntime-genai@0.15.2:min_adaptive_k=2", "0.16.0 is the first known to have it"),
        ("onnxruntime-genai:min_adaptive_k=17", "Give a number from 0 to 16"),
        ("onnxruntime-genai:speculation=lookup:ngram_size=17", "Give a number from 2 to 16"),
        ("onnxruntime-genai:ngram_size=3", "ngram_size is of speculation=lookup"),
        ("onnxruntime-genai@0.17.0:speculation=lookup", "0.18.0 is the first known to have it"),
        ("onnxruntime-genai@0.17.1:speculation=mtp", "0.18.0 is the first known to have it"),
        ("onnxruntime-genai:speculation=mtp:ngram_size=3", "ngram_size is of speculation=lookup"),
        ("onnxruntime-genai:speculation=mtp:min_adaptive_k=2", "min_adaptive_k is of speculation=draft"),
    ],
)
def test_a_wrong_name_or_option_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        find_peer(text)


def test_vllm_gets_the_library_that_it_asks_for_and_none_of_our_packages(tmp_path: Path) -> None:
    library = tmp_path / "lib/libiomp5.so"
    library.parent.mkdir()
    library.touch()
    peer: Any = peer_in(Environment(tmp_path), Spec.parse("vllm:eager=true")).open(
        Load("t", threads=3), tmp_path / "log", False
    )
    variables = peer._command.environment
    assert (variables["PYTHONPATH"], variables["OMP_NUM_THREADS"]) == ("", "3")
    assert variables["LD_PRELOAD"] == str(library)
    assert peer._load.options == {"draft_sample_method": "greedy", "mended": False, "eager": True}
