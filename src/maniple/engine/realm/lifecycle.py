"""Starts the process's Realm runtime and shuts it down, each in one call of the helper in lifecycle.c that no signal handler interrupts."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_int32, c_uint32, c_uint64, c_void_p
from typing import Final

from maniple.base.errors import EngineError
from maniple.engine.realm.binding import FIRST_TASK, Handle, Runtime, failed

_CALLS: Final = (
    "realm_runtime_get_runtime", "realm_runtime_create", "realm_runtime_init", "realm_processor_register_task_by_kind", "realm_event_wait",
    "realm_processor_query_create", "realm_processor_query_restrict_to_kind", "realm_processor_query_iter", "realm_processor_query_destroy",
    "realm_runtime_signal_shutdown", "realm_runtime_wait_for_shutdown", "realm_runtime_destroy",
)  # fmt: skip


_TOO_FEW: Final = 1


class _State(Structure):
    _fields_ = [
        ("calls", c_void_p * len(_CALLS)), ("function", c_void_p), ("runtime", c_void_p), ("num_starts", c_uint64),
        ("num_processors", c_int32), ("num_wanted", c_int32), ("task", c_uint32), ("call", c_int32), ("processors", POINTER(Handle)),
    ]  # fmt: skip


class Lifecycle:
    """Realm in this process: up or down.

    Attributes:
        library: Realm.
    """

    def __init__(self, library: ctypes.CDLL, helper: ctypes.CDLL, task: int) -> None:
        """Start nothing yet.

        Args:
            library: Realm.
            helper: the library of lifecycle.c.
            task: address of the C function that every runtime gets as task `FIRST_TASK`.
        """
        self.library = library
        self._start, self._stop = helper.maniple_start, helper.maniple_stop
        self._start.argtypes, self._start.restype = [c_void_p, c_int, POINTER(c_char_p)], c_int
        self._stop.argtypes, self._stop.restype = [c_void_p], c_int
        calls = (c_void_p * len(_CALLS))(*(ctypes.cast(getattr(library, name), c_void_p) for name in _CALLS))
        self._state = _State(calls, task, None, 0, 0, 0, FIRST_TASK, 0, None)
        self._known: tuple[int, Runtime] | None = None

    @property
    def is_up(self) -> bool:
        """Whether Realm runs."""
        return bool(self._state.num_processors)

    def runtime(self, num_processors: int) -> Runtime:
        """Return the runtime, with at least `num_processors` processors.

        Realm cannot add processors: for more than there are it is shut down and started again.

        Raises:
            EngineError: if Realm does not start, with the reason.
        """
        if self._state.num_processors < num_processors:
            self.stop()
            self._start_with(num_processors)
        if self._known is None or self._known[0] != self._state.num_starts:
            processors = tuple(self._state.processors[: self._state.num_processors])
            self._known = self._state.num_starts, Runtime(self.library, self._state.runtime, processors)
        return self._known[1]

    def stop(self) -> None:
        """Shut Realm down, if it is up. No task may be left.

        Raises:
            EngineError: if it does not shut down.
        """
        self._check(self._stop(byref(self._state)))

    def _start_with(self, num_processors: int) -> None:
        # csize 0: memory is torch's. Kernel threads: Python needs them. Levels: that there is no GPU, and that cores are not reserved,
        # is no news; errors of other parts are printed.
        words = ["maniple", "-ll:cpu", str(num_processors), "-ll:util", "0", "-ll:csize", "0", "-ll:gpu", "0", "-ll:force_kthreads"]
        words += ["-level", "gpu=6,threads=6"]
        array = (c_char_p * (len(words) + 1))(*(word.encode() for word in words), None)
        self._processors = (Handle * num_processors)()
        self._state.processors, self._state.num_wanted = self._processors, num_processors
        status = self._start(byref(self._state), len(words), array)
        if not self.is_up and _CALLS[self._state.call] == "realm_runtime_get_runtime":
            raise EngineError("this process has a Realm runtime already: Legate's or Legion's", hint="run Maniple in a process of its own")
        self._check(status)

    def _check(self, status: int) -> None:
        if status == _TOO_FEW:
            raise EngineError(f"Realm did not make {self._state.num_wanted} processors")
        if status:
            raise failed(_CALLS[self._state.call], status)
