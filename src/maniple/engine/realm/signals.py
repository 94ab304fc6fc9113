"""Keeps the process's signal handlers as they are while Realm starts and shuts down.

Realm puts a handler of its own on SIGUSR1, and when it shuts down it sets SIGINT to the default action, so that Ctrl-C would kill Python
from then on.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SIZE: Final = 256
"""Bytes that a `struct sigaction` fits in; its first field is the handler."""

_FIXED: Final = frozenset({signal.SIGKILL, signal.SIGSTOP})


@contextmanager
def handlers_kept(*, defaults: bool) -> Iterator[None]:
    """Put back, at the end, every handler that was replaced.

    Args:
        defaults: also where there was none, so that the default action takes place again.
    """
    libc = ctypes.CDLL(None)
    before = {}
    for kind in signal.valid_signals() - _FIXED:
        action = ctypes.create_string_buffer(_SIZE)
        if libc.sigaction(int(kind), None, action) == 0:
            before[int(kind)] = action
    try:
        yield
    finally:
        for number, action in before.items():
            handled = any(action.raw[: ctypes.sizeof(ctypes.c_void_p)])
            if handled or defaults:
                libc.sigaction(number, action, None)
