"""Writes a script that shows a deviation without spsbench, for the engine's issue tracker.

It holds the driver of the engine's worker with what that uses of the protocol, and ``repro_parts``.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from pprint import pformat
from typing import Any

import spsbench
from spsbench.errors import UsageError
from spsbench.peers import protocol, serving, workers
from spsbench.peers.registry import NAMED, OPENAI, WORKER
from spsbench.records import Spec
from spsbench.verify import repro_parts

# Of each driver's module: what to know of it, what its models are, and options that only a user knows.
_NOTES: dict[str, tuple[str, str, dict[str, str]]] = {
    "llama_cpp": (
        """llama.cpp: a llama-server on the loopback, started here, with everything in float32.

TARGET and DRAFT are GGUF files in float32, made of the Hugging Face folders that are named above.""",
        "GGUF",
        {"server": "llama-server"},
    ),
    "onnxruntime_genai": (
        """ONNX Runtime GenAI on the CPU, in float32.

TARGET and DRAFT are folders of its builder, made of the Hugging Face folders that are named above:

    python -m onnxruntime_genai.models.builder -i HF_DIR -o TARGET -p fp32 -e cpu -c CACHE""",
        "ONNX_DIR",
        {},
    ),
    "openvino": (
        """OpenVINO GenAI on the CPU, in float32, without its prefix cache.

TARGET and DRAFT are folders of OpenVINO's (openvino_model.xml and .bin) in float32. For the audit each was
made of the Hugging Face folder that is named above: written as a GGUF file in float16, loaded by
LLMPipeline(..., enable_save_ov_model=True), and the float32 weights put back into what that saved.""",
        "OPENVINO_DIR",
        {},
    ),
    "vllm": (
        """vLLM's build for CPUs, one request at a time, without its prefix cache.

TARGET and DRAFT are the Hugging Face folders that are named above. The audit ran with LD_PRELOAD set to
lib/libiomp5.so of the environment that vLLM is installed in, as vLLM advises.""",
        "HF_DIR",
        {},
    ),
}


def require_script(engine: str, flag: str) -> None:
    """Refuse an engine that no script can be written for."""
    if engine.startswith(OPENAI):
        raise UsageError(
            "no script is written for servers.", flag=flag, remedy="Name the engine itself, or a worker."
        )


def options_of(engine: str, threads: int | None = None) -> dict[str, Any]:
    """What the script has to know of an engine beside its setting."""
    if engine.startswith(WORKER):
        command = {"command": shlex.join(shlex.split(engine.removeprefix(WORKER)))}
        return {"models": "HF_DIR", "options": command, "flags": ["command"], "environment": {}}
    spec = Spec.parse(engine)
    named = NAMED[spec.name]
    _, models, flags = _NOTES[named.module]
    options: dict[str, Any] = {**named.settled(spec, "--engine"), **flags}
    environment = {**named.environment}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    return {"models": models, "options": options, "flags": list(flags), "environment": environment}


def script(engine: str, title: str, case: Mapping[str, Any]) -> str:
    """The whole script: the driver of the engine's worker, what it uses of the protocol, the statistics."""
    files = [Path(protocol.__file__)]
    driver, about = "JsonLines", str(repro_parts.JsonLines.__doc__)
    if not engine.startswith(WORKER):
        module = NAMED[Spec.parse(engine).name].module
        files += [Path(serving.__file__), Path(workers.__file__).with_name(f"{module}.py")]
        classes = (node for node in ast.parse(files[-1].read_text()).body if isinstance(node, ast.ClassDef))
        driver, about = next(classes).name, _NOTES[module][0]
    imports, body = _bundled([*files, Path(repro_parts.__file__)], {"main", driver})
    facts = pformat(dict(case), width=100, compact=True, sort_dicts=False)
    told = f"{title}\n\n{about}\n\nWritten by spsbench {spsbench.__version__}; needs none of it."
    return (
        f'"""{told}\n"""\n\nfrom __future__ import annotations\n\n{imports}\n\n'
        f"CASE: dict[str, Any] = {facts}\n\n{body}\n\n\n"
        f'if __name__ == "__main__":\n    main({driver})\n'
    )


def _bundled(files: Iterable[Path], wanted: set[str]) -> tuple[str, str]:
    """The imports and the definitions of some files that the wanted names need."""
    parts: list[tuple[ast.stmt, str, set[str]]] = []
    imported: dict[str, tuple[str, str]] = {}
    for text in (file.read_text(encoding="utf-8") for file in files):
        for node in ast.parse(text).body:
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0]: ("", alias.name) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported |= {alias.name: (str(node.module), alias.name) for alias in node.names}
            elif not isinstance(node, ast.Expr | ast.If):
                parts.append((node, _text(node, text.splitlines()), _defined(node)))
    needed = {"CASE"}
    while more := wanted - needed:
        needed |= more
        reached = [node for node, _, names in parts if names & more]
        wanted = {each.id for node in reached for each in ast.walk(node) if isinstance(each, ast.Name)}
    kept = [part for part in parts if part[2] & (needed - {"CASE"})]
    outside = needed.difference(*(names for _, _, names in parts)) & imported.keys()
    modules: dict[str, list[str]] = {}
    for module, name in sorted(imported[name] for name in outside | {"Any"}):
        modules.setdefault(module, []).append(name)
    lines = [f"import {name}" for name in modules.pop("", [])]
    lines += [f"from {module} import {', '.join(names)}" for module, names in modules.items()]
    body = "\n".join(text for _, text, _ in kept)
    return "\n".join(lines), body.replace("\n" * 4, "\n" * 3)


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    names = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    return {each.id for each in names if isinstance(each.ctx, ast.Store)}


def _text(node: ast.stmt, lines: Sequence[str]) -> str:
    """The source of a statement; a class loses ``describe``, which a script does not ask for."""
    numbers = list(range(node.lineno, (node.end_lineno or 0) + 1))
    if not isinstance(node, ast.ClassDef | ast.FunctionDef):
        return "\n".join(lines[number - 1] for number in numbers)
    numbers = [*(each.lineno for each in node.decorator_list), *numbers]
    for each in [each for each in node.body if getattr(each, "name", "") == "describe"]:
        node.body.remove(each)
        numbers = [number for number in numbers if not each.lineno - 1 <= number <= (each.end_lineno or 0)]
    return "\n\n" + "\n".join(lines[number - 1] for number in numbers) + "\n"
