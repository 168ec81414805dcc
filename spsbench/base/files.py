"""Files of a folder that may be somebody else's: whole or not there, never a link; and the folder's lock."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import io
import json
import math
import os
import re
import secrets
import stat
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from spsbench.base.errors import SpsbenchError, UnavailableError, UsageError

_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


_UNFINISHED = re.compile(r"\..+\.tmp")


def is_unfinished(name: str) -> bool:
    """Return whether a file's name is that of a new version that has not yet replaced the old one."""
    return _UNFINISHED.fullmatch(name) is not None


@contextlib.contextmanager
def folder_of(path: Path, below: Path | None = None) -> Iterator[int]:
    """Yield the descriptor of a file's folder; those below ``below`` are made and are never links."""
    below = path.parent if below is None else below
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = os.open(below, flags)
    try:
        for part in path.parent.relative_to(below).parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=descriptor)
            try:
                inner = os.open(part, flags | os.O_NOFOLLOW, dir_fd=descriptor)
            except OSError as problem:
                raise (_irregular(path.parent) if problem.errno in _NO_FILE else problem) from None
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def ordinary(path: str | Path, flags: int, below: Path | None = None) -> int:
    """Open a file of a run directory; an ``opener`` for ``open``. It never waits and never follows a link."""
    path = Path(path)
    with folder_of(path, below) as folder:
        safe = flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            descriptor = os.open(path.name, safe, 0o666, dir_fd=folder)
        except OSError as problem:
            raise (_irregular(path) if problem.errno in _NO_FILE else problem) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _irregular(path)
        if flags & (os.O_WRONLY | os.O_RDWR) and status.st_nlink > 1:
            why = f"{path} has a second name, by which another file would be written."
            raise UsageError(why, remedy="Replace it by a copy of itself.")
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


_NO_FILE = (errno.ELOOP, errno.ENXIO, errno.ENOTDIR, errno.EISDIR)


def _irregular(path: Path) -> UsageError:
    return UsageError(
        f"{path} is a link or no ordinary file, and is neither read nor written.",
        remedy="Remove it, or put what it stands for in its place.",
    )


MOST_BYTES = 128 << 20
"""Of a file of somebody else's that is read whole; the largest in use, tokenizers, have 35 MB."""


def open_file(path: Path, most_bytes: float = math.inf) -> BinaryIO:
    """Open a file that a user names, or one of a folder that may be somebody else's, to read its bytes.

    It never waits, as for a pipe that nobody writes to. Links are followed: the hub's cache consists of them.

    Raises:
        OSError: it is no ordinary file, or has more bytes.
    """

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as problem:
        raise _unusual(path) if problem.errno == errno.ENXIO else problem from None  # a socket
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _unusual(path)
        if status.st_size > most_bytes:
            reason = f"it has {status.st_size:,} bytes, and at most {int(most_bytes):,} are read"
            raise OSError(errno.EFBIG, reason, str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def require_ordinary(path: Path, most_bytes: float = math.inf) -> None:
    """Raise the OSError that ``open_file`` would raise, before a library opens the file by its path."""
    open_file(path, most_bytes).close()


def read_file(path: Path, most_bytes: float = MOST_BYTES) -> bytes:
    """Return the bytes of a file, see ``open_file``."""
    with open_file(path, most_bytes) as file:
        return file.read()


def _unusual(path: Path) -> OSError:
    return OSError(errno.EINVAL, "it is no ordinary file", str(path))


DEEPEST = 100
"""Levels of lists and objects in a file of settings or of records; what goes through them recurses."""
_MOST_VALUES = 1_000_000
_LARGEST = 1 << 63
"""Of numbers in the files of a run: no count, size or seed is larger."""


def parse_json(text: bytes | str) -> Any:
    """Return what a JSON text says: finite numbers that a table can hold, in at most ``DEEPEST`` levels.

    Raises:
        ValueError: it is not JSON, or beyond these bounds; the place is named as in ``arms[2].params.top_p``.
    """
    commas, brackets = (b",", (b"[", b"{")) if isinstance(text, bytes) else (",", ("[", "{"))
    if text.count(commas) + sum(map(text.count, brackets)) > _MOST_VALUES:  # type: ignore[arg-type]
        raise ValueError(f"it has more than {_MOST_VALUES:,} values")
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError(f"it has more than {DEEPEST} levels") from None
    require_bounded(content)
    return content


def require_bounded(content: Any, place: str = "") -> None:
    """Raise the ValueError of ``parse_json`` for what was read from JSON or YAML."""
    waiting = [(content, place, 0)]
    while waiting:
        value, place, level = waiting.pop()
        if isinstance(value, (dict, list)):
            if level == DEEPEST:
                raise ValueError(f"{shortened(place, 60)} has more than {DEEPEST} levels")
            inner: Any = value.items() if isinstance(value, dict) else enumerate(value)
            dot = "." if place else ""
            for key, each in inner:
                name = f"{place}[{key}]" if isinstance(value, list) else f"{place}{dot}{key}"
                waiting.append((each, name, level + 1))
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{place or 'it'} is {value}, no finite number")
        elif type(value) is int and abs(value) >= _LARGEST:
            raise ValueError(f"{place or 'it'} is a number of {len(str(abs(value)))} digits")


LONGEST_LINE_BYTES = 64 << 20
"""Of a file that others wrote: some benchmarks write all that they know as one line."""
_UNPACKED_BYTES = 64 << 20
_UNPACKED_TIMES = 100


class _Bounded(io.RawIOBase):
    """Refuses lines that are too long, and what unpacks to far more than any text does."""

    def __init__(self, file: BinaryIO, most_bytes: float, packed: BinaryIO | None = None) -> None:
        self._file, self._left, self._line, self._packed = file, most_bytes, 0, packed

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        if self._packed is not None:
            self._packed.close()
        super().close()

    def readinto(self, into: Any) -> int:
        part = self._file.read(len(into))
        into[: len(part)] = part
        self._left -= len(part)
        if self._left < 0:
            raise OSError(errno.EFBIG, f"it unpacks to more than {_UNPACKED_TIMES} times its size")
        ends = [place + 1 for place in (part.find(b"\n"), part.rfind(b"\n")) if place >= 0]
        if self._line + (ends[0] if ends else len(part)) > LONGEST_LINE_BYTES:
            raise OSError(errno.EFBIG, f"it has a line of more than {LONGEST_LINE_BYTES >> 20} MB")
        self._line = len(part) - ends[-1] if ends else self._line + len(part)
        return len(part)


def opened(path: Path) -> BinaryIO:
    """Open a file of lines that a user names, unpacked if it ends in .gz; OSError where a bound is passed."""
    import gzip  # not at the top: every command imports this file

    file = open_file(path)
    if path.suffix != ".gz":
        return io.BufferedReader(_Bounded(file, math.inf))
    most = max(_UNPACKED_BYTES, _UNPACKED_TIMES * os.fstat(file.fileno()).st_size)
    unpacked = gzip.GzipFile(fileobj=file)
    return io.BufferedReader(_Bounded(unpacked, most, packed=file))  # type: ignore[arg-type]


@contextlib.contextmanager
def lines_of(path: Path, flag: str) -> Iterator[io.TextIOWrapper]:
    """Open a file of text that a user names, unpacked if it ends in .gz; ``flag`` is for the errors.

    A byte order mark is not part of the text.
    """
    try:
        with opened(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig") as lines:
            yield lines
    except UnicodeDecodeError as error:
        why = f"{path} is not UTF-8 ({error.reason})."
        raise UnavailableError(why, flag=flag, remedy="Convert the file to UTF-8.") from error
    except (OSError, EOFError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise UnavailableError(f"{path} cannot be read ({reason}).", flag=flag) from error


@contextlib.contextmanager
def replacing(path: Path, below: Path | None = None) -> Iterator[BinaryIO]:
    """Yield a file to write to; at the end of the block it replaces ``path`` durably and at once."""
    new = f".{path.name}.{secrets.token_hex(8)}.tmp"
    try:
        with folder_of(path, below) as folder:
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISREG(os.lstat(path.name, dir_fd=folder).st_mode):
                    raise _irregular(path)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            try:
                with os.fdopen(os.open(new, flags, 0o666, dir_fd=folder), "wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(new, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(new, dir_fd=folder)
                raise
            os.fsync(folder)
    except OSError as problem:
        raise disk_error(path, problem) from problem


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, atomically."""
    with replacing(path) as new:
        # A path that is not UTF-8, from an old folder, is named by its bytes.
        new.write(text.encode(errors="backslashreplace"))


def write_json(path: Path, content: Any) -> None:
    """Write JSON that people can read, atomically; see ``plain`` for what may be in it."""
    write_text(path, json.dumps(plain(content), indent=2, allow_nan=False) + "\n")


_MOST_JSON_BYTES = 32 << 20


def read_json(path: Path, flag: str) -> dict[str, Any]:
    """Return the object in a JSON file of a run directory."""
    try:
        with open(path, "rb", opener=ordinary) as file:
            if os.fstat(file.fileno()).st_size > _MOST_JSON_BYTES:
                raise ValueError(f"it has more than {_MOST_JSON_BYTES >> 20} MiB")
            content = parse_json(file.read())
    except OSError as problem:
        why = f"{path} cannot be read ({problem.strerror})."
        raise UsageError(why, flag=flag, remedy="Name the directory of a run.") from problem
    except ValueError as problem:
        remedy = "Restore the file or start a new run."
        raise UsageError(f"{path} is damaged ({problem}).", flag=flag, remedy=remedy) from problem
    if not isinstance(content, dict):
        raise UsageError(f"{path} is damaged (no object).", flag=flag, remedy="Name the directory of a run.")
    return content


def plain(value: Any) -> Any:
    """Return ``value`` in JSON's types: dataclasses, tuples, paths and numpy become plain, NaN null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(inner) for inner in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def disk_error(path: Path, problem: OSError) -> SpsbenchError:
    """Return the error for a file that could not be written while a command ran."""
    folder = next((folder for folder in path.parents if (folder / "run.json").is_file()), None)
    again = "repeat the command" if folder is None else f"continue with `spsbench run --resume {folder}`"
    first = "Make the folder writable" if problem.errno in _FORBIDDEN else "Make room"
    return SpsbenchError(
        f"{path} could not be written ({problem.strerror or problem}).",
        remedy=f"{first}, then {again}; nothing finished is lost.",
    )


def make_folder(folder: Path, flag: str) -> None:
    """Make a folder and its missing parents."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise unwritable(folder, problem, flag) from problem


def require_makeable(folder: Path, flag: str) -> None:
    """Refuse a folder that cannot be made or written to; nothing is made."""
    try:
        above = next(path for path in (folder, *folder.parents) if path.exists())
        if not above.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(above, os.W_OK | os.X_OK):
            reason = errno.EROFS if os.statvfs(above).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(reason, os.strerror(reason))
    except OSError as problem:
        raise unwritable(folder, problem, flag) from problem


LOCK_NAME = ".spsbench.lock"


def acquire_lock(directory: Path, flag: str) -> int:
    """Lock a run directory for this process until the returned descriptor is closed or the process ends.

    The kernel holds the lock, so a killed process leaves none behind.
    """
    path = directory / LOCK_NAME
    try:
        descriptor = ordinary(path, os.O_RDWR | os.O_CREAT)
    except OSError as problem:
        raise unwritable(directory, problem, flag) from problem
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for left in directory.iterdir():
            if is_unfinished(left.name):  # the lock's holder was killed
                left.unlink()
    except BlockingIOError:
        os.close(descriptor)
        remedy = "Wait for it or name another directory."
        raise UsageError(f"another process is writing to {directory}.", flag=flag, remedy=remedy) from None
    except OSError as problem:
        os.close(descriptor)
        raise unwritable(directory, problem, flag) from problem
    return descriptor


def unwritable(directory: Path, problem: OSError, flag: str) -> UsageError:
    """Return the error for a directory that a run cannot write to."""
    return UsageError(
        f"{directory} cannot be written to ({problem.strerror or problem}).",
        flag=flag,
        remedy="Name a directory that can be.",
    )


_SLUG = 48  # characters of a part of a directory's name


def slug(text: str) -> str:
    """Return the text in ASCII letters, digits and ``._+-``, for a directory's name; "" if nothing is left.

    Letters lose their accents, anything else becomes a hyphen, and a long text its middle.
    """
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    kept = re.sub(r"[^A-Za-z0-9._+-]+", "-", plain).strip("-.")
    return shortened(kept, _SLUG, "--")


def shortened(text: str, most: int, gap: str = "...") -> str:
    """Return a name of at most so many characters, with a gap in place of its middle."""
    if len(text) <= most:
        return text
    head = (most - len(gap)) // 2
    return text[:head] + gap + text[head + len(gap) - most :]
