"""Counts the bytes of PyTorch's CPU tensors, those inside of kernels included, on all threads of this process: the truth about memory.

`counting()` puts an allocator of ours (allocations.cpp, built when first asked for) before PyTorch's. Tensors that exist by then are not
counted, nor is their end.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import torch

from maniple.engine.realm.library import cache_folder

_SOURCE: Final = Path(__file__).with_name("allocations.cpp")
_FLAGS: Final = ("-std=c++20", "-O1", "-shared", "-fPIC")


class Allocations:
    """Bytes counted since `counting` was first called."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Begin to count."""
        self._library = library
        for name in ("counting_live", "counting_peak"):
            getattr(library, name).restype = ctypes.c_int64
        library.counting_start()

    @property
    def live_bytes(self) -> int:
        """Bytes of the tensors that live."""
        return int(self._library.counting_live())

    @property
    def peak_bytes(self) -> int:
        """Most bytes that lived at one time since `reset`."""
        return int(self._library.counting_peak())

    def reset(self) -> None:
        """Forget the peak."""
        self._library.counting_reset()


def compiler() -> str | None:
    """Return the C++ compiler that builds the allocator; None if there is none."""
    return shutil.which(os.environ.get("CXX") or "c++")


@functools.cache
def counting() -> Allocations:
    """Return what counts, in this process from now on.

    Raises:
        RuntimeError: if there is no C++ compiler.
        subprocess.CalledProcessError: if it refuses the file.
    """
    found = compiler()
    if found is None:
        raise RuntimeError("there is no C++ compiler to build the counting allocator with")
    folder = Path(torch.__file__).parent
    key = hashlib.sha256(_SOURCE.read_bytes() + repr((found, _FLAGS, torch.__version__)).encode()).hexdigest()[:16]
    target = cache_folder() / f"allocations-{key}.so"
    if not target.exists():
        made = target.with_suffix(f".{os.getpid()}")
        paths = ["-o", str(made), str(_SOURCE), f"-I{folder / 'include'}", f"-L{folder / 'lib'}", "-lc10"]
        subprocess.run([found, *_FLAGS, *paths], check=True, capture_output=True)
        made.replace(target)
    return Allocations(ctypes.CDLL(str(target)))
