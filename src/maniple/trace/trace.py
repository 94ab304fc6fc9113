"""Events and traces: what was done where, from when to when, in nanoseconds.

An engine that runs a task graph and a simulator that times the same one make the same trace, up to the times: a task's name, its device
and the number of the step say which event of one is which of the other.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from maniple.base.errors import ParseError
from maniple.base.location import Location
from maniple.ir.program import Phase
from maniple.taskgraph.graph import Task

Kind = Literal["compute", "collective", "runtime", "wait", "step"]
"""The two kinds of tasks; what the runtime does beside them; waiting for tasks; a whole step."""


@dataclass(frozen=True, slots=True)
class Work:
    """What an event is about; the same for every device and step.

    Attributes:
        name: of the task, unique in its graph, or of what the runtime does.
        op: see `Task.op`; empty if this is no task.
        phase: None if this is no task.
        num_bytes: see `Task.num_bytes`.
        flops: see `Task.flops`.
        location: the user's line.
    """

    name: str
    kind: Kind
    op: str = ""
    phase: Phase | None = None
    num_bytes: int = 0
    flops: int = 0
    location: Location | None = None

    @property
    def is_task(self) -> bool:
        """Whether it is a task of a graph."""
        return self.kind in {"compute", "collective"}


_ROW: Final = 7
"""Numbers that are kept of an event."""

MAIN: Final = "main/runtime"
"""Lane of what the thread that calls an engine does."""

DISPATCH: Final = Work("dispatch", "runtime")
"""A task is ready and its lane has nothing else to do, and yet it has not begun: in lane `cpu0/runtime` for tasks of `cpu0/compute`."""


@dataclass(frozen=True, slots=True)
class Event:
    """One stretch of time in one lane.

    Attributes:
        lane: place and what it is doing there, e.g. `cpu0/compute`.
        start_ns: on a clock of which only differences mean something.
        device: logical device, -1 if it is for none in particular.
        step: number of the training step, from 0.
        ready_ns: when everything that it waits for was there; `start_ns` if it waits for nothing.
    """

    work: Work
    lane: str
    start_ns: int
    duration_ns: int
    device: int = -1
    step: int = 0
    ready_ns: int = 0

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return self.start_ns + self.duration_ns


class Trace:
    """Events of any number of steps, seven int64 each, in the order in which they were appended.

    >>> trace = Trace()
    >>> trace.append(Work("load", "runtime"), "cpu0/runtime", 1000, 1500)
    >>> [event.duration_ns for event in trace]
    [500]

    Attributes:
        lanes: names of the lanes; an event holds the number of its own.
        works: what the events are about; likewise.
        num_steps: steps that were recorded.
    """

    __slots__ = ("_lanes", "_later", "_rows", "_step", "_works", "lanes", "num_steps", "works")

    def __init__(self) -> None:
        """Make a trace without events."""
        self.lanes: list[str] = []
        self.works: list[Work] = []
        self.num_steps = 0
        self._lanes: dict[str, int] = {}
        self._works: dict[Work, int] = {}
        self._rows = array("q")  # work, lane, start, duration, device, step, ready
        self._step: int | None = None
        self._later: list[Callable[[], None]] = []

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self._rows) // _ROW

    def __iter__(self) -> Iterator[Event]:
        """Yield the events in order."""
        columns = (self._rows[at::_ROW] for at in range(_ROW))
        for work, lane, *rest in zip(*columns, strict=True):
            yield Event(self.works[work], self.lanes[lane], *rest)

    def __eq__(self, other: object) -> bool:
        """Return whether the events are the same, in the same order."""
        return isinstance(other, Trace) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def append(
        self, work: Work, lane: str, start_ns: int, end_ns: int, *, device: int = -1, step: int | None = None, ready_ns: int | None = None
    ) -> None:
        """Append an event.

        Args:
            work: what it is about.
            lane: place and what it is doing there, e.g. `cpu0/compute`.
            start_ns: when it began.
            end_ns: when it ended.
            device: logical device, -1 if it is for none in particular.
            step: number of the training step; that of the step being recorded by default.
            ready_ns: when everything that it waits for was there; `start_ns` by default.

        Raises:
            ParseError: if the lane is not named like that.
        """
        step = (self._step or 0) if step is None else step
        ready_ns = start_ns if ready_ns is None else ready_ns
        self._rows.extend((self.add_work(work), self.add_lane(lane), start_ns, end_ns - start_ns, device, step, ready_ns))

    def extend(self, rows: Iterable[tuple[int, int, int, int, int, int]]) -> None:
        """Append events of the step being recorded, quickly.

        Args:
            rows: numbers from `add_work` and `add_lane`, then start, end, device, ready as in `append`.
        """
        step, extend = self._step or 0, self._rows.extend
        for work, lane, start, end, device, ready in rows:
            extend((work, lane, start, end - start, device, step, ready))

    def add_work(self, work: Work) -> int:
        """Return the number of `work` in `works`, where it is put if it is new."""
        number = self._works.setdefault(work, len(self.works))
        if number == len(self.works):
            self.works.append(work)
        return number

    def add_lane(self, lane: str) -> int:
        """Return the number of `lane` in `lanes`, where it is put if it is new.

        Raises:
            ParseError: if it is not named like `cpu0/compute`.
        """
        number = self._lanes.get(lane)
        if number is None:
            place, _, what = lane.partition("/")
            if not place or not what:
                raise ParseError(f"cannot read lane {lane!r}", hint="write it as PLACE/WHAT, for instance cpu0/compute")
            number = self._lanes[lane] = len(self.lanes)
            self.lanes.append(lane)
        return number

    @contextmanager
    def span(self, name: str, lane: str = MAIN, kind: Kind = "runtime") -> Iterator[None]:
        """Record as an event what runs inside, also if it raises."""
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            self.append(Work(name, kind), lane, start, time.perf_counter_ns())

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Record what runs inside as step `number`: as an event of kind `step` in the lane `main/step`, which all others lie in."""
        self._step = number
        try:
            with self.span("step", "main/step", "step"):
                yield
            self.num_steps += 1
        finally:
            later, self._later = self._later, []
            for record in later:
                record()
            self._step = None

    def later(self, record: Callable[[], None]) -> None:
        """Call `record`, which appends, when the step is over; at once outside of a step. Keeps the work of it out of the step's time."""
        if self._step is None:
            record()
        else:
            self._later.append(record)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as Chrome trace-event JSON, which https://ui.perfetto.dev and chrome://tracing show."""
        from maniple.trace.chrome import print_trace

        Path(path).write_text(print_trace(self), encoding="utf-8")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Trace:
        """Return the trace that `save` wrote.

        Raises:
            ParseError: if the file cannot be read or holds something else.
        """
        from maniple.trace.chrome import load_trace

        return load_trace(Path(path))


def span(trace: Trace | None, name: str) -> AbstractContextManager[None]:
    """Record what runs inside, in the lane of the calling thread; do nothing without a trace."""
    return nullcontext() if trace is None else trace.span(name)


def task_work(task: Task) -> Work:
    """Return what the events of a task are about."""
    return Work(task.name, task.kind, task.op, task.phase, task.num_bytes, task.flops, task.location)
