from __future__ import annotations

import os
from pathlib import Path

import pytest

from spsbench.models.fetch.http import DEFAULT_INDEX, pip_settings


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which nobody has set up pip."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("sys.prefix", str(tmp_path / "venv"))
    return tmp_path


def _environ(home: Path, **more: str) -> dict[str, str]:
    nowhere = str(home / "nowhere")
    return {"XDG_CONFIG_DIRS": nowhere, "PIP_CONFIG_FILE": str(home / "own.conf"), **more}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_public_index_if_nothing_is_set_up() -> None:
    assert pip_settings({"PIP_CONFIG_FILE": os.devnull}).indexes == (DEFAULT_INDEX,)


def test_files_and_variables_in_pips_order(home: Path) -> None:
    _write(
        home / ".config/pip/pip.conf", "[global]\nindex-url = http://user/\ncert = user.pem\nproxy = u:1\n"
    )
    _write(home / "venv/pip.conf", "[global]\nindex_url = http://venv/\n[download]\nproxy = v:1\n")
    _write(home / "own.conf", "[global]\nextra-index-url =\n    http://a/\n    http://b/%20/\n")
    settings = pip_settings(_environ(home, PIP_CERT="variable.pem", PIP_TRUSTED_HOST="a b", PIP_TIMEOUT="7"))
    assert settings.indexes == ("http://venv/", "http://a/", "http://b/%20/")
    assert (settings.cert, settings.proxy) == ("variable.pem", "v:1")
    assert (settings.trusted_hosts, settings.timeout_s) == (("a", "b"), 7.0)


def test_no_index_leaves_the_links(home: Path) -> None:
    settings = pip_settings(_environ(home, PIP_NO_INDEX="1", PIP_FIND_LINKS="/a /b"))
    assert (settings.indexes, settings.find_links) == ((), ("/a", "/b"))


def test_a_broken_file_is_passed_over(home: Path) -> None:
    _write(home / "own.conf", "index-url without a section")
    assert pip_settings(_environ(home, PIP_TIMEOUT="soon")).timeout_s == 15.0
