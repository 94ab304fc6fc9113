"""Finds Realm inside the installed legate wheel, and builds the small libraries that go with it.

What is built is kept in the user's cache folder, under a name that says what it was built from and by which compiler.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path
from typing import Final

from maniple.base.errors import EngineError

_DISTRIBUTION: Final = "legate"
_PREFIX: Final = "librealm-legate.so"
_COMPILERS: Final = ("cc", "gcc", "clang")
_FLAGS: Final = ("-shared", "-fPIC", "-O2", "-std=c11")


def realm_path() -> Path:
    """Return where the Realm library lies.

    Raises:
        EngineError: if legate is not installed, or is installed without it.
    """
    try:
        files = importlib.metadata.files(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise EngineError("engine 'realm' needs legate, which carries the Realm runtime", hint="pip install 'maniple[realm]'") from error
    for file in files:
        path = Path(str(file.locate()))
        if file.name.startswith(_PREFIX) and path.exists():
            return path
    raise EngineError(f"the installed legate has no {_PREFIX}", hint="pip install --force-reinstall 'maniple[realm]'")


def load_realm() -> ctypes.CDLL:
    """Return the Realm library, loaded.

    Realm links against the CUDA driver. Where there is none, a stand-in that reports no device is built and loaded first.

    Raises:
        EngineError: if a library is missing, or does not build or load.
    """
    path = realm_path()
    if not _has_driver():
        stub = build("libcuda_stub.c", _version(), soname="libcuda.so.1")
        _load(stub, ctypes.RTLD_GLOBAL)  # what links against the same soname later finds this one
    return _load(path, ctypes.RTLD_LOCAL)


def load_helper(source: str) -> ctypes.CDLL:
    """Return the library of a C file of this package, built if need be.

    Raises:
        EngineError: if it does not build or load.
    """
    return _load(build(source, _version()), ctypes.RTLD_LOCAL)


def build(source: str, version: str, soname: str = "") -> Path:
    """Return the shared library of a C file of this package, compiled unless the cache has it.

    Args:
        source: name of the file.
        version: Realm's; part of what the cache looks for.
        soname: name that the library gives itself.

    Raises:
        EngineError: if there is no compiler, or it refuses the file.
    """
    text = resources.files(__package__).joinpath(source).read_bytes()
    compiler = _compiler()
    about = compiler.stat()
    key = hashlib.sha256(text)
    key.update(repr((version, soname, str(compiler), about.st_size, about.st_mtime_ns, _FLAGS)).encode())
    target = cache_folder() / f"{Path(source).stem}-{key.hexdigest()[:16]}.so"
    if not target.exists():
        _compile(compiler, text, target, soname)
    return target


def cache_folder() -> Path:
    """Return the folder for what is built, made if need be: the user's cache, or one under the temporary folder if that is not writable."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    for folder in (base / "maniple", Path(tempfile.gettempdir()) / f"maniple-{os.getuid()}"):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK | os.X_OK) and folder.stat().st_uid == os.getuid():
            return folder
    raise EngineError(f"nowhere to keep compiled libraries: {base} is not writable", hint="set XDG_CACHE_HOME to a folder of yours")


def _compile(compiler: Path, text: bytes, target: Path, soname: str) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        source, made = Path(folder) / "source.c", Path(folder) / "made.so"
        source.write_bytes(text)
        named = [f"-Wl,-soname,{soname}"] if soname else []
        done = subprocess.run(  # noqa: S603  # our own source and flags
            [str(compiler), *_FLAGS, *named, "-o", str(made), str(source)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise EngineError(
                f"engine 'realm' needs a C compiler when it is first used, and {compiler} does not compile {target.stem}:\n"
                f"{done.stderr.strip()}",
                hint="install gcc or clang, or set CC; engine 'reference' needs none",
            )
        made.replace(target)  # at once, so that another process finds all of it or nothing


def _compiler() -> Path:
    names = [name for name in (os.environ.get("CC", ""), *_COMPILERS) if name]
    for name in names:
        found = shutil.which(name)
        if found:
            return Path(found).resolve()
    raise EngineError(
        "engine 'realm' needs a C compiler when it is first used, and there is none",
        hint="install gcc or clang, or set CC; engine 'reference' needs none",
    )


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _load(path: Path, mode: int) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path), mode=mode)
    except OSError as error:
        hint = "pip install --force-reinstall 'maniple[realm]'; or engine 'reference'"
        raise EngineError(f"cannot load {path.name}: {error}", hint=hint) from error


def _version() -> str:
    return importlib.metadata.version(_DISTRIBUTION)
