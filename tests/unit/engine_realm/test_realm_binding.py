"""The typed layer over Realm's C API: events, tasks, instances and copies."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator

import pytest
import torch

from maniple.base.errors import EngineError
from maniple.engine.realm.binding import FIRST_TASK, Runtime
from maniple.engine.realm.instances import Instance
from maniple.engine.realm.process import PROCESS

TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64)


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with PROCESS.runtime(2) as (found, _):
        yield found


def test_tasks_wait_for_events_and_get_their_data(runtime: Runtime) -> None:
    ran: list[bytes] = []
    function = TASK(lambda data, size, *_: ran.append(ctypes.string_at(data, size)))
    number = FIRST_TASK + 1 + id(runtime) % 1000
    runtime.register(number, ctypes.cast(function, ctypes.c_void_p).value or 0)
    gate = runtime.user_event()
    first = [runtime.spawn(processor, number, b"first", after=gate) for processor in runtime.processors]
    last = runtime.spawn(runtime.processors[0], number, b"last", after=runtime.merge(first))
    assert not runtime.has_triggered(last)
    assert ran == []
    runtime.trigger(gate)
    runtime.wait(last)
    assert ran == [b"first"] * len(runtime.processors) + [b"last"]


def test_waiting_is_woken(runtime: Runtime) -> None:
    event = runtime.user_event()
    threading.Timer(0.12, runtime.trigger, (event,)).start()
    runtime.wait(event)
    assert runtime.has_triggered(event)


def test_a_call_that_fails_names_the_function(runtime: Runtime) -> None:
    with pytest.raises(EngineError, match="realm_processor_spawn failed with status -6001"):
        runtime.spawn(0, FIRST_TASK)


def test_version(runtime: Runtime) -> None:
    assert runtime.version.count(".") >= 2


def instance(runtime: Runtime, tensor: torch.Tensor, start: tuple[int, ...] = ()) -> Instance:
    return Instance.over(runtime, tensor.data_ptr(), tensor.element_size(), tensor.shape, start)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8, torch.bool])
def test_a_rectangle_is_copied_and_nothing_else(runtime: Runtime, dtype: torch.dtype) -> None:
    whole = (
        (torch.arange(8 * 5 * 3).reshape(8, 5, 3) % 2).to(dtype) if dtype == torch.bool else torch.arange(120).reshape(8, 5, 3).to(dtype)
    )
    part = torch.zeros(4, 5, 3, dtype=dtype)
    source, target = instance(runtime, whole), instance(runtime, part, (2, 0, 0))  # rows 2 to 5 of the same index space
    gate = runtime.user_event()
    done = source.copy_to(target, (3, 1, 0), (2, 3, 3), after=gate)
    assert not part.any()
    runtime.trigger(gate)
    runtime.wait(done)
    want = torch.zeros_like(part)
    want[1:3, 1:4] = whole[3:5, 1:4]
    assert torch.equal(part, want)
    source.destroy()
    target.destroy()


def test_what_cannot_be_copied_is_refused(runtime: Runtime) -> None:
    buffer = torch.zeros(64)
    with pytest.raises(EngineError, match="aligned"):
        instance(runtime, buffer[1:])
    source, target = instance(runtime, buffer), instance(runtime, torch.zeros(8), (4,))
    for start, size in ((3, 2), (11, 2)):
        with pytest.raises(EngineError, match=r"\[8\] at \[4\]"):
            source.copy_to(target, (start,), (size,))
