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
_SLICE_NS: Final = 50_000_000
_STATUS: Final = {
    -1: "error", -2: "invalid parameter", -3001: "invalid runtime", -3002: "not initialized", -6001: "invalid processor",
    -6004: "invalid task function", -8001: "invalid event", -12003: "invalid instance", -13002: "invalid base address",
}  # fmt: skip
_ARGUMENTS: Final = {
    "realm_get_library_version": [POINTER(c_char_p)],
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


class Runtime:
    """A running Realm runtime. A process may have one at a time; see `Lifecycle`.

    Attributes:
        pointer: Realm's own handle of it.
        processors: handles of its CPU processors, each a thread of its own.
    """

    def __init__(self, library: ctypes.CDLL, pointer: int, processors: tuple[int, ...]) -> None:
        """Take a runtime that runs.

        Args:
            library: Realm.
            pointer: Realm's handle of it.
            processors: handles of its CPU processors.
        """
        self.library, self.pointer, self.processors = library, c_void_p(pointer), processors
        for name, arguments in _ARGUMENTS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int

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


def failed(what: str, status: int) -> EngineError:
    """Return the error of a call that answered `status`."""
    return EngineError(f"{what} failed with status {status} ({_STATUS.get(status, 'see realm_c.h')})")
