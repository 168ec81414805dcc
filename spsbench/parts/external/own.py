"""An environment that the user has made for an engine: what is in it, and why it cannot be used.

Its interpreter is asked once in a process, with the variables that the engine will have: first what it is,
then whether the engine can be imported there and which device it would take.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from spsbench.base import UnavailableError, UsageError, shortened
from spsbench.parts.external.install import Environment, clean_environment

OLDEST = (3, 10)
"""The workers are written for it."""

CPU, CUDA = "cpu", "cuda"

_IS_IT_S, _IMPORT_S = 20.0, 180.0

# Old interpreters must understand the first.
_WHO = "import sys, json; sys.stdout.write(json.dumps(list(sys.version_info[:2])))"
_WHAT = """
import sys, os
sys.path.pop(0)  # the folder in which this is typed
says = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
import importlib, importlib.util, json, sysconfig
from importlib import metadata

modules, distributions, beside = (argument.split(",") for argument in sys.argv[1:])

def version(names):
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass

found = {"version": version(distributions), "site": sysconfig.get_path("purelib")}
found["python"] = ".".join(map(str, sys.version_info[:3]))
for module in modules:
    try:
        importlib.import_module(module)
    except BaseException as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == module
        found |= {"missing": module} if missing else {"error": f"{type(error).__name__}: {error}"}
        break
missing = [module for module in beside if module and importlib.util.find_spec(module) is None]
found |= {"lacks": missing[0]} if missing else {}
platform = getattr(sys.modules.get("vllm.platforms"), "current_platform", None)
found["platform"] = getattr(platform, "device_type", None)
torch = sys.modules.get("torch")
if torch is not None and hasattr(torch, "cuda"):
    found["torch"] = torch.__version__
    found["cuda"] = getattr(torch.version, "cuda", None)
    if torch.cuda.is_available():
        found["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
says.write(json.dumps(found))
says.flush()
os._exit(0)  # an engine's threads need not end
"""


@dataclass(frozen=True, slots=True)
class Needed:
    """What an engine needs: modules to import, and the package that brings the last one by any of its names.

    Attributes:
        on_gpu: its worker takes a GPU.
        beside: modules that convert models, and that its package does not bring.
    """

    modules: tuple[str, ...]
    packages: tuple[str, ...]
    on_gpu: bool = False
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Own(Environment):
    """An environment by its interpreter, which may lie anywhere.

    Attributes:
        about: ``vllm 0.11.0, Python 3.12.3, torch 2.9.0+cu128, CUDA 12.8, NVIDIA H100``.
        device: the one that the engine takes, ``cpu`` or ``cuda:N``.
    """

    interpreter: Path
    site: Path
    about: str
    device: str

    @property
    def python(self) -> Path:
        return self.interpreter

    @property
    def release(self) -> str:
        return self.about.split(",")[0].split()[-1]

    @property
    def packages(self) -> Path:
        return self.site

    def require_own(self, flag: str) -> None:
        """Do nothing: the user typed this environment, so no owner is refused."""

    def variables(self) -> dict[str, str]:
        """Environment variables that hide every other device from the engine."""
        return _variables_of(self.device)


@cache
def find_own(text: str, needed: Needed, tried: str, device: str, flag: str) -> Own:
    """An environment by its interpreter.

    Args:
        tried: the engine's release that was tried.
        device: ``cpu``, ``cuda``, ``cuda:N``, or empty for the engine's own choice.

    Raises:
        UsageError: there is no such file, it is no Python or too old a one, or no such device is meant.
        UnavailableError: the engine cannot be imported there, or the device is not there.
    """
    python = Path(text).expanduser().absolute()
    remedy = "Give the interpreter of an environment, as in python=/path/to/venv/bin/python."
    if python.is_dir():
        inside = python / "bin" / "python"
        remedy = f"Give python={inside}." if inside.exists() else remedy
        raise UsageError(f"{text} is a folder, not an interpreter.", flag=flag, remedy=remedy)
    if not python.is_file():
        raise UsageError(f"there is no file {text}.", flag=flag, remedy=remedy)
    if not os.access(python, os.X_OK):
        raise UsageError(f"{text} is not executable.", flag=flag, remedy=remedy)
    if not re.fullmatch(r"(cpu|cuda(:[0-9]+)?)?", device):
        raise UsageError(f"device={device} is not valid.", flag=flag, remedy="Give cpu, cuda or cuda:N.")
    if device.startswith(CUDA) and not needed.on_gpu:
        why = f"the worker of {needed.packages[0]} runs it on the CPU, and device={device} is asked for."
        raise UsageError(why, flag=flag, remedy="Leave the device out.")
    version = _version(python, text, flag, remedy)
    if version < OLDEST:
        has, needs = (".".join(map(str, each)) for each in (version, OLDEST))
        why = f"{text} is Python {has}, and the worker needs {needs} or later."
        raise UsageError(why, flag=flag, remedy="Make the environment with a newer Python.")
    description = _description(python, needed, device)
    _require_importable(description, needed, tried, text, flag)
    there, built = description.get("devices") or [], description.get("platform") or CUDA
    place = device or (CUDA if there and needed.on_gpu and built == CUDA else CPU)
    if place.startswith(CUDA) and not (there and built == CUDA):
        package = f"{needed.packages[0]} {description['version']}"
        torch = f"torch {description.get('torch')}"
        if there:
            why = f"{package} in the environment of {text} is a build for {built}"
        else:
            without = "" if description.get("cuda") else ", a build without CUDA,"
            why = f"{torch}{without} in the environment of {text} sees no GPU"
        remedy = "Install a build for this GPU and its driver there, or leave device out."
        raise UnavailableError(f"{why}, and device={device} is asked for.", flag=flag, remedy=remedy)
    if place == CUDA:
        place = f"{CUDA}:0"
    facts = [f"{needed.packages[0]} {description['version']}", f"Python {description['python']}"]
    libraries = {"torch": "torch", "CUDA": "cuda"}
    facts += [f"{name} {description[key]}" for name, key in libraries.items() if description.get(key)]
    facts += [f"{place} {there[0]}" if place != CPU else CPU]
    return Own(python.parent.parent, python, Path(description["site"]), ", ".join(facts), place)


def _variables_of(device: str) -> dict[str, str]:
    kind, _, index = device.partition(":")
    if kind == CPU:
        return {"CUDA_VISIBLE_DEVICES": ""}
    if not index:
        return {}
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if seen is None:
        return {"CUDA_VISIBLE_DEVICES": index}
    names = seen.split(",")[int(index) :]
    return {"CUDA_VISIBLE_DEVICES": names[0].strip() if names else ""}


def _stdout_of(python: Path, limit_s: float, *arguments: str, **variables: str) -> str:
    """OSError and TimeoutExpired pass."""
    environment = clean_environment() | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"} | variables
    done = subprocess.run(
        [str(python), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=limit_s,
        env=environment,
    )
    return done.stdout.decode(errors="replace")


def _version(python: Path, text: str, flag: str, remedy: str) -> tuple[int, ...]:
    try:
        answer = _stdout_of(python, _IS_IT_S, "-c", _WHO)
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else f"no answer within {_IS_IT_S:g} s"
        raise UsageError(f"{text} is not a Python: {why}.", flag=flag, remedy=remedy) from error
    if not re.fullmatch(r"\[\d+, \d+\]", answer):
        why = f"it answers {shortened(answer)}" if answer else "it answers nothing"
        raise UsageError(f"{text} is not a Python: {why}.", flag=flag, remedy=remedy)
    return tuple(json.loads(answer))


def _description(python: Path, needed: Needed, device: str) -> Mapping[str, Any]:
    """What the interpreter says of the engine; an ``error`` where it does not answer."""
    lists = (",".join(names) for names in (needed.modules, needed.packages, needed.beside))
    arguments = ("-c", _WHAT, *lists)
    try:
        answer = _stdout_of(python, _IMPORT_S, *arguments, **_variables_of(device))
        description = json.loads(answer)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": f"{type(error).__name__} after {_IMPORT_S:g} s", "version": None}
    except ValueError:
        return {"error": "the interpreter ended without an answer", "version": None}
    return description if isinstance(description, dict) else {"error": "no answer", "version": None}


def _require_importable(engine: Mapping[str, Any], needed: Needed, tried: str, text: str, flag: str) -> None:
    error = engine.get("error")
    missing = engine.get("missing")
    package = needed.packages[0]
    has = "" if engine.get("version") is None else f" {engine['version']}"
    if not (error or missing) and has:
        if (lacks := engine.get("lacks")) is not None:
            why = f"the environment of {text} has no {lacks}, by which models are converted for {package}."
            remedy = f"Install it there, or type `spsbench get {package}`, which can convert them."
            raise UnavailableError(why, flag=flag, remedy=remedy)
        return
    if error:
        why = f"{package}{has} cannot be imported in the environment of {text}: {shortened(error, 200)}"
    else:
        lacks = missing if missing in needed.modules[:-1] else " or ".join(needed.packages)
        why = f"the environment of {text} has no {lacks}"
    remedy = f"Install {package} there ({tried} was tried), or name the interpreter that has it."
    raise UnavailableError(f"{why}.", flag=flag, remedy=remedy)
