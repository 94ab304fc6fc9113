"""When point tasks begin and end, and what of that goes into a trace."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from maniple.engine.realm.schedule import PointTask
from maniple.taskgraph.graph import TaskGraph
from maniple.trace import Trace, task_work
from maniple.trace.trace import DISPATCH


class Timing:
    """Stands in for the calls of a plan while a step is traced.

    Attributes:
        calls: one for each point task: the call given, timed.
    """

    def __init__(self, calls: Sequence[Callable[[], None]]) -> None:
        """Wrap each call."""
        self._starts, self._ends = [0] * len(calls), [0] * len(calls)
        self.calls = [self._timed(number, call) for number, call in enumerate(calls)]

    def _timed(self, number: int, call: Callable[[], None]) -> Callable[[], None]:
        starts, ends, now = self._starts, self._ends, time.perf_counter_ns

        def run() -> None:
            starts[number] = now()
            call()
            ends[number] = now()

        return run

    def record(self, trace: Trace, graph: TaskGraph, points: Sequence[PointTask], num_processors: int, start_ns: int) -> None:
        """Append the events of the step just run, in which every call ran; see `Trace.later`.

        A task is in the lane of its processor, `cpu0/compute`. It is ready when the last task that it waits for has ended. From when it is
        ready and its processor has nothing else to do until it begins, there is a `dispatch` in `cpu0/runtime`: Realm's work, and
        waiting for Python's interpreter.

        Args:
            trace: what to append to.
            graph: what ran.
            points: point task of each call.
            num_processors: devices take turns on so many.
            start_ns: when the step was issued; tasks that wait for nothing were ready then.
        """
        starts, ends = self._starts.copy(), self._ends.copy()

        def append() -> None:
            works = [trace.add_work(task_work(task)) for task in graph.tasks]
            computes, runtimes = ([trace.add_lane(f"cpu{n}/{what}") for n in range(num_processors)] for what in ("compute", "runtime"))
            dispatch = trace.add_work(DISPATCH)
            rows = []
            free = [start_ns] * num_processors
            for number in sorted(range(len(points)), key=starts.__getitem__):
                point, begun = points[number], starts[number]
                processor = point.device % num_processors
                ready = max((ends[other] for other in point.after), default=start_ns)
                idle = max(ready, free[processor])
                if begun > idle:
                    rows.append((dispatch, runtimes[processor], idle, begun, point.device, idle))
                rows.append((works[point.task], computes[processor], begun, ends[number], point.device, ready))
                free[processor] = ends[number]
            trace.extend(rows)

        trace.later(append)
