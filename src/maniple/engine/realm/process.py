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
from maniple.engine.realm.binding import FIRST_TASK, Runtime
from maniple.engine.realm.library import load_realm, load_spawn_list
from maniple.engine.realm.signals import handlers_kept

_EXIT_S: Final = 10.0
"""Seconds that leaving the interpreter waits for a step of another thread."""


class Process:
    """Owns the runtime, one user at a time."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._lock = threading.RLock()
        self._libraries: tuple[CDLL, CDLL] | None = None
        self._runtime: Runtime | None = None
        self._lost = False

    @contextmanager
    def runtime(self, num_processors: int) -> Iterator[tuple[Runtime, CDLL]]:
        """Hold the runtime, with at least `num_processors` processors, and the spawn list helper, whose task is `FIRST_TASK`.

        Realm cannot add processors: for more than there are it is shut down and started again.

        Raises:
            EngineError: if Realm cannot be had, with the reason.
        """
        if self._lost:
            what = "this process was forked from one in which Realm runs, and Realm does not live on in the child"
            raise EngineError(what, hint="run steps in the parent only, or start the process by 'spawn'")
        with self._lock:
            if self._runtime is None or len(self._runtime.processors) < num_processors:
                self.close()
                self._start(num_processors)
            assert self._runtime is not None
            assert self._libraries is not None
            yield self._runtime, self._libraries[1]

    def _start(self, num_processors: int) -> None:
        if self._libraries is None:
            self._libraries = load_realm(), load_spawn_list()
            keep_freed_memory()
            atexit.register(self._exit)
            os.register_at_fork(after_in_child=self._forked)
        realm, helper = self._libraries
        with handlers_kept(defaults=False):
            self._runtime = Runtime(realm, num_processors)
        self._runtime.register(FIRST_TASK, cast(helper.maniple_run, c_void_p).value or 0)

    def close(self) -> None:
        """Shut the runtime down, if there is one; the next use starts it again."""
        with self._lock:
            runtime, self._runtime = self._runtime, None
            if runtime is not None:
                with handlers_kept(defaults=True):
                    runtime.close()

    def _exit(self) -> None:
        if not self._lost and self._lock.acquire(timeout=_EXIT_S):
            try:
                self.close()
            finally:
                self._lock.release()

    def _forked(self) -> None:
        self._lost = self._lost or self._runtime is not None
        self._lock = threading.RLock()  # another thread of the parent may have held the old one


PROCESS: Final = Process()
"""Realm allows one runtime in a process, whatever asks for it."""
