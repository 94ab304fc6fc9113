"""A trace in a few figures: what the lanes were busy with, and what the runtime took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from maniple.trace.trace import DISPATCH, Event, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSummary:
    """What a lane with tasks did, as shares of the time of all steps; the four are 1 together.

    Attributes:
        num_tasks: of all steps.
        busy_share: in tasks.
        dispatch_share: idle while a task was ready: what it takes to begin a task.
        serial_share: idle before the first task of the step, on any lane, was ready, and after the last one had ended.
        idle_share: the rest: waiting for tasks on other lanes.
    """

    lane: str
    num_tasks: int
    busy_share: float
    dispatch_share: float
    serial_share: float
    idle_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """A trace in a few figures. Seconds are per step.

    Attributes:
        num_steps: steps recorded.
        num_tasks: point tasks, of all steps.
        step_s: mean of the steps.
        runtime_share: dispatch and serial shares together, mean of the lanes with tasks: what a runtime of no cost would save.
        lanes: those with tasks.
        phase_s: in tasks, of all lanes together, by phase.
        runtime_s: what the runtime did beside tasks, by name.
        file: where the trace is; empty if only in memory.
    """

    num_steps: int = 0
    num_tasks: int = 0
    step_s: float = 0.0
    runtime_share: float = 0.0
    lanes: tuple[LaneSummary, ...] = ()
    phase_s: Mapping[str, float] = field(default_factory=dict)
    runtime_s: Mapping[str, float] = field(default_factory=dict)
    file: str = ""


def summarize(trace: Trace, file: str = "") -> TraceSummary:
    """Return the figures of `trace`; zeros if it has no events."""
    steps: dict[int, list[Event]] = {}
    for event in trace:
        steps.setdefault(event.step, []).append(event)
    if not steps:
        return TraceSummary(file=file)
    total_ns = max(sum(end - start for start, end in map(window, steps.values())), 1)
    serial_ns = sum(_serial_ns(events) for events in steps.values())
    per_step = 1e9 * len(steps)
    tasks = [event for event in trace if event.work.is_task]
    lanes = _lanes(trace, total_ns, serial_ns)
    phases, runtime = Counter[str](), Counter[str]()
    for event in tasks:
        phases[event.work.phase or "none"] += event.duration_ns
    for event in trace:
        if event.work.kind == "runtime":
            runtime[event.work.name] += event.duration_ns
    return TraceSummary(
        num_steps=len(steps),
        num_tasks=len(tasks),
        step_s=total_ns / per_step,
        runtime_share=sum(lane.dispatch_share + lane.serial_share for lane in lanes) / max(len(lanes), 1),
        lanes=lanes,
        phase_s={name: value / per_step for name, value in phases.items()},
        runtime_s={name: value / per_step for name, value in runtime.items()},
        file=file,
    )


def window(events: Sequence[Event]) -> tuple[int, int]:
    """Return when a step began and ended: as its own event says, or if it has none the first and the last of the others."""
    spans = [event for event in events if event.work.kind == "step"] or events
    return min(min(event.start_ns, event.ready_ns) for event in spans), max(event.end_ns for event in spans)


def _serial_ns(events: Sequence[Event]) -> int:
    """Return how long no task of a step was ready or running yet, or any more."""
    start, end = window(events)
    tasks = [event for event in events if event.work.is_task]
    if not tasks:
        return end - start
    return end - start - (max(event.end_ns for event in tasks) - min(event.ready_ns for event in tasks))


def _lanes(trace: Trace, total_ns: int, serial_ns: int) -> tuple[LaneSummary, ...]:
    counts, busy, waits = Counter[str](), Counter[str](), Counter[str]()
    for event in trace:
        place = event.lane.partition("/")[0]
        if event.work.is_task:
            counts[event.lane] += 1
            busy[event.lane] += event.duration_ns
        elif event.work == DISPATCH:
            waits[place] += event.duration_ns
    found = []
    for lane in sorted(counts, key=lane_order):
        shares = [value / total_ns for value in (busy[lane], waits[lane.partition("/")[0]], serial_ns)]
        found.append(LaneSummary(
            lane=lane, num_tasks=counts[lane], busy_share=shares[0], dispatch_share=shares[1], serial_share=shares[2],
            idle_share=1 - sum(shares),
        ))  # fmt: skip
    return tuple(found)


def lane_order(lane: str) -> tuple[object, ...]:
    """Return what lanes are sorted by: the main thread first, numbers as numbers.

    >>> sorted(["cpu10/compute", "cpu2/runtime", "cpu2/compute", "main/runtime"], key=lane_order)
    ['main/runtime', 'cpu2/compute', 'cpu2/runtime', 'cpu10/compute']
    """
    place, _, what = lane.partition("/")
    word = place.rstrip("0123456789")
    return place != "main", word, int(place[len(word) :] or 0), what
