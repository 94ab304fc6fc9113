"""The one Realm runtime that a process can have: started when first used, shut down at exit, lost in forked children."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CDLL, c_void_p, cast
from typing import Final

from maniple.base.errors import EngineError
from maniple.engine.realm.allocator import keep_freed_memory
from maniple.engine.realm.binding import Runtime
from maniple.engine.realm.library import load_helper, load_realm
from maniple.engine.realm.lifecycle import Lifecycle

_EXIT_S: Final = 10.0
"""Seconds that leaving the interpreter waits for a step of another thread."""


class Process:
    """Owns the runtime, one user at a time."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._lock = threading.RLock()
        self._loaded: tuple[Lifecycle, CDLL] | None = None
        self._lost = False

    @contextmanager
    def runtime(self, num_processors: int) -> Iterator[tuple[Runtime, CDLL]]:
        """Hold the runtime, with at least `num_processors` processors, and the spawn list helper, whose task is `FIRST_TASK`.

        Whatever a signal handler raises meanwhile, such as KeyboardInterrupt, the next use finds Realm up or starts it.

        Raises:
            EngineError: if Realm cannot be had, with the reason.
        """
        if self._lost:
            what = "this process was forked from one in which Realm runs, and Realm does not live on in the child"
            raise EngineError(what, hint="run steps in the parent only, or start the process by 'spawn'")
        with self._lock:
            lifecycle, helper = self._loaded or self._load()
            yield lifecycle.runtime(num_processors), helper

    def _load(self) -> tuple[Lifecycle, CDLL]:
        realm, helper = load_realm(), load_helper("spawn_list.c")
        lifecycle = Lifecycle(realm, load_helper("lifecycle.c"), cast(helper.maniple_run, c_void_p).value or 0)
        keep_freed_memory()
        atexit.register(self._exit)
        os.register_at_fork(after_in_child=self._forked)
        self._loaded = lifecycle, helper  # last: what is interrupted before is done again
        return self._loaded

    def close(self) -> None:
        """Shut the runtime down, if there is one; the next use starts it again."""
        with self._lock:
            if self._loaded:
                self._loaded[0].stop()

    def _exit(self) -> None:
        if not self._lost and self._lock.acquire(timeout=_EXIT_S):
            try:
                self.close()
            finally:
                self._lock.release()

    def _forked(self) -> None:
        self._lost = self._lost or (self._loaded is not None and self._loaded[0].is_up)
        self._lock = threading.RLock()  # another thread of the parent may have held the old one


PROCESS: Final = Process()
"""Realm allows one runtime in a process, whatever asks for it."""
