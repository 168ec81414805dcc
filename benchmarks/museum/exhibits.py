"""What is shown: releases with a defect that somebody reported, and releases without it beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spsbench.engines.external.protocol import LOOKUP
from spsbench.records import SamplingParams

TRANSFORMERS = "transformers"
HEAD = "head"
"""Option of a transformers release: the folder of a DFlash head, which drafts; trained by whoever asks."""
TRAINED = "trained here"


@dataclass(frozen=True, slots=True)
class Release:
    """An engine in one version.

    Attributes:
        engine: ``transformers``, or the name of an engine that ``spsbench get`` installs.
        shown: as tables have it.
        k: lookahead; 0 draws without a draft.
        pins: packages of its environment, in pip's format; none for engines as ``spsbench get`` has them.
        options: of its worker.
    """

    engine: str
    shown: str
    k: int = 4
    pins: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A defect.

    Attributes:
        name: on the command line.
        reports: addresses of the threads that describe it, the first of them the report.
        defect: one sentence.
        sampling: with which it shows.
        flawed: a release that has it.
        control: one without it, or the same without a draft where there is none.
    """

    name: str
    reports: Sequence[str]
    defect: str
    sampling: SamplingParams
    flawed: Release
    control: Release


_TORCH = ("torch==2.13.0", "numpy==2.4.6")


def _transformers(version: str, *more: str, **options: Any) -> Release:
    """A release of transformers, with the packages that its results depend on."""
    pins = (f"transformers=={version}", *_TORCH, *more)
    return Release(TRANSFORMERS, f"transformers {version}", pins=pins, options=options)


def _lookup(version: str) -> Release:
    """A release of OpenVINO GenAI that drafts by prompt lookup."""
    pins = (f"openvino-genai=={version}",)
    return Release("openvino", f"OpenVINO GenAI {version}", pins=pins, options={"speculation": LOOKUP})


def _vllm(shown: str, **options: Any) -> Release:
    return Release("vllm", shown, options={"draft_sample_method": "probabilistic", **options})


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
)
