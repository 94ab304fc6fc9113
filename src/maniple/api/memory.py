"""The memory of a plan: an upper bound from its task graph and the kernels of a framework, without running either."""

from __future__ import annotations

from typing import Any, Final

from maniple.api.compile import Plan
from maniple.api.frontends import kernels
from maniple.commands import LiveRow, MemoryReport, MemoryRow
from maniple.lower.peak import Live, Peak, find_peak
from maniple.ops.localize import Destination, localize
from maniple.taskgraph import Task, TaskGraph
from maniple.taskgraph.storage import BodyMemory

_KINDS: Final = {"forward": "activations", "backward": "gradients", "update": "update"}
"""What the tasks of a phase make."""


def peak(graph: TaskGraph, num_processors: int | None, framework: str) -> Peak:
    """Return the most memory that `graph` takes.

    Args:
        graph: lowered for an engine.
        num_processors: bodies that the engine runs at one time in a node.
        framework: whose kernels run the segments.
    """
    body_memory, point = kernels(framework).body_memory, dict.fromkeys(graph.mesh.names, 0)
    found: dict[tuple[int, tuple[Destination, ...]], BodyMemory] = {}

    def body_of(task: Task, destinations: tuple[Destination, ...]) -> BodyMemory:
        key = (task.segment, destinations)
        if key not in found:
            found[key] = body_memory(localize(graph.segments[task.segment], graph.mesh, point), destinations)
        return found[key]

    return find_peak(graph, body_of, num_processors)


def memory_report(plan: Plan, engine: Any, name: str, framework: str) -> MemoryReport:
    """Return the memory that `plan` takes on an engine.

    Args:
        plan: compiled for it.
        engine: the engine.
        name: of the engine.
        framework: whose kernels run the segments.
    """
    bound = peak(plan.graph, engine.num_processors, framework)
    types, places = {buffer.name: str(buffer.type) for buffer in plan.graph.buffers}, _places(plan.graph)
    live = tuple(_live_row(item, types, places) for item in bound.live)
    kinds: dict[str, int] = {}
    for row in live:
        kinds[row.kind] = kinds.get(row.kind, 0) + row.bytes
    state: dict[str, int] = {}
    for item in plan.program.inputs:
        state[item.kind] = state.get(item.kind, 0) + item.value.type.num_bytes
    return MemoryReport(
        engine=name,
        node_bytes=bound.node_bytes,
        device_bytes=bound.device_bytes,
        kept_bytes=bound.kept_bytes,
        num_processors=engine.num_processors,
        task=_name(bound.at),
        state_bytes=state,
        kinds=dict(sorted(kinds.items(), key=lambda item: -item[1])),
        live=live,
        tasks=tuple(
            MemoryRow(
                task=_name(row.task), phase=row.task.phase if row.task else "", held_bytes=row.held_bytes, body_bytes=row.body_bytes
            )
            for row in bound.tasks
        ),
    )  # fmt: skip


def _name(task: Task | None) -> str:
    return task.name if task else "end"


def _places(graph: TaskGraph) -> dict[str, str]:
    """Return for each buffer the user's line that makes it; equal segments have the lines of the first one."""
    found: dict[str, str] = {}
    for task in graph.tasks:
        written = [access.buffer for access in task.accesses if access.privilege == "write"]
        if task.kind == "compute":
            fragment = graph.segments[task.segment]
            makers = fragment.producers()
            lines = [makers[output.value].location for output in fragment.outputs]
        else:
            lines = [task.location]
        found.update((name, f"{line.file}:{line.line}") for name, line in zip(written, lines, strict=True) if line)
    return found


def _live_row(item: Live, types: dict[str, str], places: dict[str, str]) -> LiveRow:
    more = f" +{len(item.buffers) - 1}" if len(item.buffers) > 1 else ""
    return LiveRow(
        name=f"%{item.buffers[0]}{more}" if item.buffers else "inside bodies",
        type=types[item.buffers[0]] if item.buffers else "",
        kind=_KINDS[item.maker.phase] if item.buffers and item.maker else "bodies",
        bytes=item.num_bytes,
        task=_name(item.maker),
        where=places.get(item.buffers[0], "") if item.buffers else "",
    )
