"""What a script says that reproduces an alarm: its docstring."""

from __future__ import annotations

from collections.abc import Sequence

from spsbench.base import Message

ABOUT = {
    "llama_cpp": """llama.cpp: a llama-server on the loopback, started here, with everything in float32.

TARGET and DRAFT are GGUF files in float32, made of the Hugging Face folders that are named above.""",
    "onnxruntime_genai": """ONNX Runtime GenAI on the CPU, in float32.

TARGET and DRAFT are folders of its builder, made of the Hugging Face folders that are named above:

    python -m onnxruntime_genai.models.builder -i HF_DIR -o TARGET -p fp32 -e cpu -c CACHE""",
    "openvino": """OpenVINO GenAI on the CPU, in float32, without its prefix cache.

TARGET and DRAFT are folders of OpenVINO's (openvino_model.xml and .bin) in float32. For the audit each was
made of the Hugging Face folder that is named above: written as a GGUF file in float16, loaded by
LLMPipeline(..., enable_save_ov_model=True), and the float32 weights put back into what that saved.""",
    "transformers": """``generate()`` of transformers with an assistant, on the CPU, in float32.

TARGET and DRAFT are the Hugging Face folders that are named above.""",
    "xllamacpp": """llama.cpp in this process, by xllamacpp's wheel, with everything in float32.

TARGET and DRAFT are GGUF files in float32, made of the Hugging Face folders that are named above.""",
    "mlx_lm": """MLX LM on the CPU, in float32, one request at a time.

TARGET and DRAFT are the Hugging Face folders that are named above.""",
    "vllm": """vLLM's build for CPUs, one request at a time, without its prefix cache.

TARGET and DRAFT are the Hugging Face folders that are named above. The audit ran with LD_PRELOAD set to
lib/libiomp5.so of the environment that vLLM is installed in, as vLLM advises.""",
}
"""What to know of the module of a driver."""


class ScriptTitle(Message):
    """What a script shows, at the output token behind ``prefix``; ``law`` is that of the plain texts."""

    engine: str
    setting: str
    context: int
    prefix: Sequence[int]
    tokens: int
    outputs: int
    p_value: str
    is_clear: bool
    law: str | None
    target: str
    draft: str | None

    def __str__(self) -> str:
        behind = f", among outputs that begin with {list(self.prefix)}" if self.prefix else ""
        verdict = "not the target's" if self.is_clear else "no clear deviation"
        law = "" if self.law is None else f"\nExpected: what its plain texts follow, {self.law}."
        drafting = "no draft" if self.draft is None else f"drafts by {self.draft}"
        return (
            f"{self.engine}, {self.setting}: does a token follow the target?\n\n"
            f"One prompt of {self.context} ids, many seeds, output token {len(self.prefix) + 1}{behind}.\n"
            f"When this was written: {self.tokens} tokens of {self.outputs} outputs, "
            f"p-value {self.p_value}: {verdict}.\n"
            f"The expected probabilities are those of transformers' float32 forward.{law}\n\n"
            f"Models: {self.target}, {drafting}."
        )


class ScriptHeader(Message):
    title: str
    about: str
    version: str
    sentence = "{title}\n\n{about}\n\nWritten by spsbench {version}; needs none of it."
