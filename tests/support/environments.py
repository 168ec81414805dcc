"""Environments as users make them: ``python -m venv``, and packages that imitate an engine's interface."""

from __future__ import annotations

import stat
import venv
from pathlib import Path

VLLM = '''
"""Counts upwards from the prompt's last token, within a vocabulary of VOCAB, and never speculates."""
import json, os, sys, types

VOCAB = 2048

class SamplingParams:
    def __init__(self, **given):
        self.__dict__.update(given)

class LLM:
    def __init__(self, model, **settings):
        if path := os.environ.get("STUB_LOG"):
            seen = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "PYTHONPATH")}
            seen |= {"python": sys.executable, "settings": settings}
            with open(path, "a") as log:
                log.write(json.dumps(seen, default=str) + "\\n")
        print("a library that writes on stdout")
        self.llm_engine, self.running = self, {}
        self.model_config = types.SimpleNamespace(get_vocab_size=lambda: VOCAB)

    def add_request(self, name, prompt, parameters):
        self.running[name] = [prompt["prompt_token_ids"][-1], parameters, []]

    def step(self):
        for name, (last, parameters, ids) in list(self.running.items()):
            ids.append((last + 1 + len(ids)) % VOCAB)
            done = len(ids) == parameters.max_tokens or ids[-1] in parameters.stop_token_ids
            if done:
                del self.running[name]
            stamps = types.SimpleNamespace(
                scheduled_ts=0.0, first_token_ts=1e-6, last_token_ts=1e-6 * (1 + len(ids))
            )
            output = types.SimpleNamespace(token_ids=list(ids))
            yield types.SimpleNamespace(request_id=name, outputs=[output], metrics=stamps, finished=done)

    def get_metrics(self):
        return []
'''

TORCH = """
import types
__version__ = "2.9.0+VARIANT"
version = types.SimpleNamespace(cuda=CUDA)
cuda = types.SimpleNamespace(
    is_available=lambda: DEVICES > 0, device_count=lambda: DEVICES, get_device_name=lambda i: f"Stub {i}"
)
"""


def make(folder: Path) -> Path:
    """An empty environment; its interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python"


def add(python: Path, module: str, content: str, version: str = "1.0", package: str | None = None) -> None:
    """Put a package of one file into an environment."""
    (site,) = python.parent.parent.glob("lib/python3*/site-packages")
    (site / module).mkdir()
    (site / module / "__init__.py").write_text(content)
    name = package or module
    about = site / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def vllm(folder: Path, *, package: str = "vllm", gpus: int = 0, content: str = VLLM) -> Path:
    """An environment with a stub of vLLM beside one of torch; its interpreter."""
    python = make(folder)
    cuda = "'12.8'" if gpus else "None"
    torch = TORCH.replace("VARIANT", "cu128" if gpus else "cpu").replace("CUDA)", f"{cuda})")
    add(python, "torch", torch.replace("DEVICES", str(gpus)), "2.9.0")
    add(python, "vllm", content, "0.33.1", package)
    return python


def program(path: Path, script: str) -> Path:
    """An executable file."""
    path.write_text(script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
