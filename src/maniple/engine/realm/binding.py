"""Realm's C API with types: a runtime, its processors, tasks and events. A call that fails raises."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint, c_void_p
from typing import Any, Final

from maniple.base.errors import EngineError

Handle = ctypes.c_uint64
"""What Realm calls ids: of processors, events, memories, instances. 0 is none."""

FIRST_TASK: Final = 4
"""The first task id that Realm does not use itself."""

_LATENCY_CORE: Final = 2
_NO_RUNTIME: Final = -3002
_SLICE_NS: Final = 50_000_000
_STATUS: Final = {
    -1: "error", -2: "invalid parameter", -3001: "invalid runtime", -3002: "not initialized", -6001: "invalid processor",
    -6004: "invalid task function", -8001: "invalid event", -12003: "invalid instance", -13002: "invalid base address",
}  # fmt: skip
_ARGUMENTS: Final = {
    "realm_get_library_version": [POINTER(c_char_p)],
    "realm_runtime_create": [POINTER(c_void_p)],
    "realm_runtime_get_runtime": [POINTER(c_void_p)],
    "realm_runtime_init": [c_void_p, POINTER(c_int), POINTER(POINTER(c_char_p))],
    "realm_runtime_signal_shutdown": [c_void_p, Handle, c_int],
    "realm_runtime_wait_for_shutdown": [c_void_p],
    "realm_runtime_destroy": [c_void_p],
    "realm_processor_query_create": [c_void_p, POINTER(c_void_p)],
    "realm_processor_query_restrict_to_kind": [c_void_p, c_int],
    "realm_processor_query_iter": [c_void_p, c_void_p, c_void_p, c_size_t],
    "realm_processor_query_destroy": [c_void_p],
    "realm_processor_register_task_by_kind": [c_void_p, c_int, c_int, c_uint, c_void_p, c_void_p, c_size_t, POINTER(Handle)],
    "realm_processor_spawn": [c_void_p, Handle, c_uint, c_void_p, c_size_t, c_void_p, Handle, c_int, POINTER(Handle)],
    "realm_event_wait": [c_void_p, Handle, c_int64, POINTER(c_int)],
    "realm_event_has_triggered": [c_void_p, Handle, POINTER(c_int), POINTER(c_int)],
    "realm_event_merge": [c_void_p, POINTER(Handle), c_size_t, POINTER(Handle), c_int],
    "realm_user_event_create": [c_void_p, POINTER(Handle)],
    "realm_user_event_trigger": [c_void_p, Handle, Handle, c_int],
    "realm_external_resource_suggested_memory": [c_void_p, c_void_p, POINTER(Handle)],
    "realm_region_instance_create": [c_void_p, c_void_p, c_void_p, Handle, POINTER(Handle), POINTER(Handle)],
    "realm_region_instance_copy": [c_void_p, c_void_p, c_void_p, Handle, c_int, POINTER(Handle)],
    "realm_region_instance_destroy": [c_void_p, Handle, Handle],
}
_Visit = ctypes.CFUNCTYPE(c_int, Handle, c_void_p)


class Runtime:
    """A running Realm runtime. A process may have one at a time.

    Attributes:
        pointer: Realm's own handle of it.
        processors: handles of its CPU processors, each a thread of its own.
    """

    def __init__(self, library: ctypes.CDLL, num_processors: int) -> None:
        """Start a runtime.

        Args:
            library: Realm.
            num_processors: may be more than there are cores.

        Raises:
            EngineError: if the process has a Realm runtime already, such as Legate's, or Realm does not start.
        """
        self.library = library
        for name, arguments in _ARGUMENTS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
        self.pointer = c_void_p()
        if library.realm_runtime_get_runtime(byref(self.pointer)) != _NO_RUNTIME:
            raise EngineError("this process has a Realm runtime already: Legate's or Legion's", hint="run Maniple in a process of its own")
        self.call("realm_runtime_create", byref(self.pointer))
        self._init(num_processors)
        try:
            self.processors = self._find_processors(num_processors)
        except BaseException:
            self.close()
            raise

    def _init(self, num_processors: int) -> None:
        # csize 0: memory is torch's. Kernel threads: Python needs them. Levels: that there is no GPU, and that cores are not reserved,
        # is no news; errors of other parts are printed.
        words = ["maniple", "-ll:cpu", str(num_processors), "-ll:util", "0", "-ll:csize", "0", "-ll:gpu", "0", "-ll:force_kthreads"]
        words += ["-level", "gpu=6,threads=6"]
        number = c_int(len(words))
        array = (c_char_p * (len(words) + 1))(*(word.encode() for word in words), None)
        self.call("realm_runtime_init", self.pointer, byref(number), byref(ctypes.cast(array, POINTER(c_char_p))))

    def _find_processors(self, num_processors: int) -> tuple[int, ...]:
        query, found = c_void_p(), list[int]()

        def visit(processor: int, _: int | None) -> int:
            found.append(processor)
            return 0

        self.call("realm_processor_query_create", self.pointer, byref(query))
        self.call("realm_processor_query_restrict_to_kind", query, _LATENCY_CORE)
        self.call("realm_processor_query_iter", query, _Visit(visit), None, num_processors)
        self.call("realm_processor_query_destroy", query)
        if len(found) != num_processors:
            raise EngineError(f"Realm made {len(found)} processors; expected {num_processors}")
        return tuple(found)

    @property
    def version(self) -> str:
        """Realm's version."""
        found = c_char_p()
        self.call("realm_get_library_version", byref(found))
        return (found.value or b"").decode()

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the C API.

        Raises:
            EngineError: naming the function and Realm's status, unless that is success.
        """
        status = getattr(self.library, name)(*arguments)
        if status:
            raise failed(name, status)

    def address(self, name: str) -> int:
        """Return the address of a function of the C API."""
        return ctypes.cast(getattr(self.library, name), c_void_p).value or 0

    def register(self, task: int, function: int) -> None:
        """Make the C function at address `function` known to all processors as `task`."""
        event = Handle()
        # flag 0: registering globally aborts the process
        arguments = (_LATENCY_CORE, 0, task, function, None, 0, byref(event))
        self.call("realm_processor_register_task_by_kind", self.pointer, *arguments)
        self.wait(event.value)

    def spawn(self, processor: int, task: int, data: bytes = b"", after: int = 0, priority: int = 0) -> int:
        """Launch a task; return the event of its end."""
        event = Handle()
        self.call("realm_processor_spawn", self.pointer, processor, task, data, len(data), None, after, priority, byref(event))
        return event.value

    def merge(self, events: Sequence[int]) -> int:
        """Return the event that triggers when all of `events` have."""
        event = Handle()
        self.call("realm_event_merge", self.pointer, (Handle * len(events))(*events), len(events), byref(event), 0)
        return event.value

    def user_event(self) -> int:
        """Return a new event, for `trigger`."""
        event = Handle()
        self.call("realm_user_event_create", self.pointer, byref(event))
        return event.value

    def trigger(self, event: int, after: int = 0) -> None:
        """Trigger a user event, once `after` has triggered."""
        self.call("realm_user_event_trigger", self.pointer, event, after, 0)

    def has_triggered(self, event: int) -> bool:
        """Return whether an event has triggered.

        Raises:
            EngineError: if it never will, because something that it waits for failed.
        """
        triggered, poisoned = c_int(), c_int()
        self.call("realm_event_has_triggered", self.pointer, event, byref(triggered), byref(poisoned))
        if poisoned.value:
            raise EngineError("Realm gave up on a task, because something that it waits for failed")
        return bool(triggered.value)

    def wait(self, event: int) -> None:
        """Wait for an event, in slices, so that Python's signal handlers run.

        Raises:
            EngineError: if it never triggers.
        """
        poisoned = c_int()
        while not self.has_triggered(event):
            self.call("realm_event_wait", self.pointer, event, _SLICE_NS, byref(poisoned))

    def close(self) -> None:
        """Shut down. No task may be left."""
        self.call("realm_runtime_signal_shutdown", self.pointer, 0, 0)
        self.call("realm_runtime_wait_for_shutdown", self.pointer)
        self.call("realm_runtime_destroy", self.pointer)


def failed(what: str, status: int) -> EngineError:
    """Return the error of a call that answered `status`."""
    return EngineError(f"{what} failed with status {status} ({_STATUS.get(status, 'see realm_c.h')})")
