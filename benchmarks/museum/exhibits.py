"""What is shown: releases with a defect that somebody reported, and releases without it beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spsbench.base.protocol import LOOKUP
from spsbench.base.records import SamplingParams

OURS = "spsbench"
"""Engine of a release whose defect is planted: spsbench's own, in a process of its own."""
PLANTED = "drafts"
"""Option of such a release: the fault, or the right way to draft that looks like it."""

HEAD = "head"
"""Option of a transformers release: the folder of a DFlash head, which drafts; trained by whoever asks."""
TRAINED = "trained here"


@dataclass(frozen=True, slots=True)
class Release:
    """An engine in one version.

    Attributes:
        engine: as ``--engine`` has it, with a release or as ``spsbench get`` installs it; ``OURS``.
        shown: as tables have it.
        k: lookahead; 0 draws without a draft.
        options: of its worker.
        worker: a file of the museum that runs in the engine's environment in place of its worker.
    """

    engine: str
    shown: str
    k: int = 4
    options: Mapping[str, Any] = field(default_factory=dict)
    worker: str | None = None


@dataclass(frozen=True, slots=True)
class RandomPair:
    """A target of random weights, and as the draft the same with noise: synthetic.

    Attributes:
        kind: a model type of ``benchmarks.architectures``.
        noise: of the draft, as a share of its weights' spread.
        tokens: of a text at most.
    """

    kind: str
    noise: float
    tokens: int

    @property
    def described(self) -> str:
        return f"random {self.kind}, draft with noise of {self.noise:g}"


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A defect.

    Attributes:
        name: on the command line.
        reports: addresses of the threads that describe it, the first of them the report.
        defect: one sentence.
        sampling: with which it shows.
        flawed: a release that has it.
        control: one without it, or the same without a draft or an option where there is none.
        contexts: so many chosen ones are continued by short requests; 0: prompts are, by whole texts.
        pair: the models, where the mini pair does not show it.
    """

    name: str
    reports: Sequence[str]
    defect: str
    sampling: SamplingParams
    flawed: Release
    control: Release
    contexts: int = 0
    pair: RandomPair | None = None


def _transformers(version: str, **options: Any) -> Release:
    return Release(f"transformers@{version}", f"transformers {version}", options=options)


def _lookup(version: str) -> Release:
    """A release of OpenVINO GenAI that drafts by prompt lookup."""
    shown, options = f"OpenVINO GenAI {version}", {"speculation": LOOKUP}
    return Release(f"openvino@{version}", shown, options=options)


def _vllm(shown: str, **options: Any) -> Release:
    return Release("vllm", shown, options={"draft_sample_method": "probabilistic", **options})


def _llama_cpp(shown: str, n_min: int) -> Release:
    """The first build of llama.cpp that draws drafts, which end where its draft is unsure."""
    options = {"draft_sampling": "probabilistic", "draft_p_min": 0.6, "draft_n_min": n_min}
    return Release("llama-cpp@11368.0.0", shown, options=options)


def _other_tokenizer(shown: str, **options: Any) -> Release:
    """The newest release that was run, with a draft whose tokenizer has tokens of its own."""
    return Release("transformers", shown, options=options, worker="other_tokenizer.py")


def _recurrent(shown: str, drafts: str) -> Release:
    """llama.cpp by its wheel."""
    return Release("xllamacpp", shown, options={"draft_sampling": drafts})


def _planted(shown: str, **options: Any) -> Release:
    return Release(OURS, shown, options=options)


def _thread(repository: str, kind: str, number: int) -> str:
    return f"https://github.com/{repository}/{kind}/{number}"


EXHIBITS: Sequence[Exhibit] = (
    Exhibit(
        "transformers-32867",
        (
            _thread("huggingface/transformers", "issues", 32867),
            _thread("huggingface/transformers", "pull", 33534),
        ),
        "The assistant drafts its most probable token, and the test takes it for a draw from the softmax.",
        SamplingParams(temperature=1.0),
        _transformers("4.44.2"),
        _transformers("4.45.0"),
    ),
    Exhibit(
        "transformers-47932",
        (
            _thread("huggingface/transformers", "issues", 47932),
            _thread("huggingface/transformers", "pull", 48007),
        ),
        "A DFlash head's tokens are drawn after top-k has cut, and the test is given the logits before.",
        SamplingParams(temperature=2.0, top_k=50),
        _transformers("5.15.0", head=TRAINED),
        _transformers("5.15.1", head=TRAINED),
    ),
    Exhibit(
        "openvino-4190",
        (
            _thread("openvinotoolkit/openvino.genai", "issues", 4190),
            _thread("openvinotoolkit/openvino.genai", "pull", 4490),
        ),
        "After a rejection the draw of the next row is put in the rejected place; there is no residual.",
        SamplingParams(temperature=1.0),
        Release("openvino", "OpenVINO GenAI"),
        Release("openvino", "the same without a draft", k=0),
    ),
    Exhibit(
        "openvino-2331",
        (_thread("openvinotoolkit/openvino.genai", "pull", 2331),),
        "What prompt lookup copies is accepted whatever the target's probabilities are.",
        SamplingParams(temperature=1.0),
        _lookup("2025.2.0.0"),
        _lookup("2025.3.0.0"),
    ),
    Exhibit(
        "vllm-cpu-55005",
        (_thread("vllm-project/vllm", "issues", 55005), _thread("vllm-project/vllm", "pull", 42638)),
        "Drafted tokens are verified with uninitialised temperature, top-k and top-p.",
        SamplingParams(temperature=1.0),
        _vllm("vLLM (CPU)"),
        _vllm("the same, mended", mended=True),
    ),
    Exhibit(
        "llama-cpp-short-drafts",
        (_thread("ggml-org/llama.cpp", "pull", 27694),),
        "A drawn draft that stayed short is dropped. No thread reports it; this one brought drawn drafts.",
        SamplingParams(temperature=1.5),
        _llama_cpp("llama.cpp 11368", n_min=2),
        _llama_cpp("the same, draft_n_min=0", n_min=0),
        contexts=4,
    ),
    Exhibit(
        "transformers-other-tokenizer",
        (_thread("huggingface/transformers", "pull", 35029),),
        "The pruned rows of a draft with another tokenizer are read in another order than they were written. "
        "No thread reports it; this one brought such drafts.",
        SamplingParams(temperature=1.0),
        _other_tokenizer("transformers"),
        _other_tokenizer("the same, mended", mended=True),
    ),
    Exhibit(
        "llama-cpp-recurrent",
        (_thread("ggml-org/llama.cpp", "pull", 27694), _thread("ggml-org/llama.cpp", "pull", 19493)),
        "On a recurrent target the number that rejected a drawn token is used again after the state was put "
        "back. No thread reports it; these brought drawn drafts and states that are put back.",
        SamplingParams(temperature=1.0),
        _recurrent("llama.cpp", "probabilistic"),
        _recurrent("the same, most probable drafts", "greedy"),
        pair=RandomPair("lfm2", 0.5, 16),
    ),
    Exhibit(
        "mlx-lm-window",
        (
            _thread("ml-explore/mlx-lm", "issues", 1423),
            _thread("ml-explore/mlx-lm", "pull", 1427),
            _thread("ml-explore/mlx-lm", "issues", 1914),
        ),
        "Past a sliding window rejected tokens stay in the target's cache.",
        SamplingParams(temperature=1.0),
        Release("mlx-lm", "MLX LM"),
        Release("mlx-lm", "the same without a draft", k=0),
        pair=RandomPair("olmo3", 0.5, 32),
    ),
    Exhibit(
        "argmax-by-uniform",
        (_thread("vllm-project/vllm", "pull", 54448),),
        "Planted: a greedy draft is judged by a uniform row, which did not draw it. No thread reports it; "
        "this one brought a drafter that vLLM 0.33.0 judges so with probabilistic drafts (read, not run).",
        SamplingParams(temperature=1.0),
        _planted("spsbench", drafts="argmax-by-uniform"),
        _planted("a draft that is drawn"),
    ),
    Exhibit(
        "argmax-by-softmax",
        (_thread("alibaba/rtp-llm", "pull", 1311), _thread("xLLM-AI/xllm", "pull", 2175)),
        "Planted: a greedy draft is judged by its softmax row, which did not draw it.",
        SamplingParams(temperature=1.0),
        _planted("spsbench", drafts="argmax-by-softmax"),
        _planted("the same, told as a point mass", drafts="most probable, told as a point mass"),
    ),
)
