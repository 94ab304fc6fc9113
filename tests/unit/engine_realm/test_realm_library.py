"""Finding and building libraries: what is missing is said, what is built is kept."""

from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path

import pytest

from maniple.base.errors import EngineError
from maniple.engine.realm import library


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "maniple"


def compiler(folder: Path, text: str) -> Path:
    path = folder / "mycc"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_what_is_built_is_kept(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv("CC", str(compiler(tmp_path, f'echo called >> {calls}; exec {shutil.which("cc")} "$@"')))
    first = library.build("spawn_list.c", "1")
    assert first.parent == cache
    assert library.build("spawn_list.c", "1") == first
    assert calls.read_text().count("called") == 1
    assert library.build("spawn_list.c", "2") != first, "another version of Realm"
    monkeypatch.delenv("CC")
    assert library.build("spawn_list.c", "1") != first, "another compiler"
    assert sorted(cache.iterdir()) == sorted(cache.glob("*.so")), "nothing is left over"


def test_a_compiler_that_fails_is_quoted(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(compiler(tmp_path, "echo no licence >&2; exit 1")))
    with pytest.raises(EngineError, match="no licence"):
        library.build("spawn_list.c", "1")
    assert list(cache.iterdir()) == []


def test_no_compiler(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(EngineError, match="C compiler") as caught:
        library.build("spawn_list.c", "1")
    assert "gcc" in caught.value.hint
    assert not cache.exists()


def test_a_cache_that_is_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert library.cache_folder().parent == tmp_path
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with pytest.raises(EngineError, match="nowhere"):
        library.cache_folder()


def test_no_legate(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    with pytest.raises(EngineError, match="legate") as caught:
        library.realm_path()
    assert caught.value.hint == "pip install 'maniple[realm]'"
    monkeypatch.setattr(importlib.metadata, "files", lambda _: [])
    with pytest.raises(EngineError, match="librealm"):
        library.realm_path()


def test_a_library_that_does_not_load_gives_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "librealm-legate.so").write_text("no library")
    monkeypatch.setattr(library, "realm_path", lambda: tmp_path / "librealm-legate.so")
    with pytest.raises(EngineError, match=r"cannot load librealm-legate\.so"):
        library.load_realm()
