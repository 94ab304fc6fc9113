"""What engines have in common: bodies by local shape, and errors that name the task and the user's line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic

from maniple.base.errors import EngineError
from maniple.engine.protocol import Body, CompileBody, Destinations, Tensor
from maniple.ir.program import Program
from maniple.mesh.mesh import Mesh, Point
from maniple.ops.localize import localize
from maniple.taskgraph.graph import Access, Task, TaskGraph


@dataclass(frozen=True, slots=True)
class PointBody(Generic[Tensor]):
    """A body with the offsets of one device."""

    body: Body[Tensor]
    offsets: tuple[int, ...]


class Bodies(Generic[Tensor]):
    """The bodies of a graph's segments, compiled when first asked for; devices whose shapes agree share one."""

    def __init__(self, graph: TaskGraph, compile_body: CompileBody[Tensor]) -> None:
        """Compile nothing yet."""
        self._graph, self._compile = graph, compile_body
        self._by_shape: dict[tuple[int, tuple[tuple[int, ...], ...], Destinations], Body[Tensor]] = {}
        self._at_point: dict[tuple[int, int, Destinations], PointBody[Tensor]] = {}

    def __len__(self) -> int:
        """Return the number of bodies compiled."""
        return len(self._by_shape)

    def at(self, task: Task, point: Point, destinations: Destinations = ()) -> PointBody[Tensor]:
        """Return the body of a compute task that the device at `point` runs.

        Args:
            task: the task.
            point: the device.
            destinations: outputs that the body is given memory for; see `CompileBody`.
        """
        mesh = self._graph.mesh
        key = (task.segment, mesh.device(point), destinations)
        if key not in self._at_point:
            fragment = self._graph.segments[task.segment]
            shapes = (task.segment, local_shapes(fragment, mesh, point), destinations)
            local = localize(fragment, mesh, point)
            if shapes not in self._by_shape:
                self._by_shape[shapes] = self._compile(local, destinations) if destinations else self._compile(local)
            self._at_point[key] = PointBody(self._by_shape[shapes], tuple(offset.at(mesh, point) for offset in local.offsets))
        return self._at_point[key]


def local_shapes(fragment: Program, mesh: Mesh, point: Point) -> tuple[tuple[int, ...], ...]:
    """Return the shape that the device at `point` has of each value: what decides which body it runs."""
    return tuple(value.sharding.local_shape(value.type.shape, mesh, point) if value.sharding else () for value in fragment.values())


def body_failed(task: Task, error: Exception) -> EngineError:
    """Return what to raise from an exception of a body."""
    what = f"task {task.name} (segment {task.segment}, {task.op}) failed: {type(error).__name__}: {error}"
    return EngineError(what, where=task.location)


def wrong_shape(task: Task, buffer: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> EngineError:
    """Return what to raise when a body makes a tensor of another shape than its region."""
    what = f"{task.name} made a tensor of shape {list(shape)} for buffer {buffer}; expected {list(expected)}"
    return EngineError(what, where=task.location)


def reads_and_writes(task: Task) -> tuple[list[Access], list[Access]]:
    """Return the accesses of a task: what its body takes, and what it makes.

    Raises:
        EngineError: if it has other privileges than these two.
    """
    reads = [access for access in task.accesses if access.privilege == "read"]
    writes = [access for access in task.accesses if access.privilege == "write"]
    if len(reads) + len(writes) < len(task.accesses):
        raise EngineError(f"task {task.name} has privileges that no engine runs", where=task.location)
    return reads, writes


def check_devices(graph: TaskGraph, engine: str, most: int) -> None:
    """Check that one process can hold the devices of a graph.

    Raises:
        EngineError: if they are more than `most`.
    """
    if graph.mesh.num_devices > most:
        what = f"{graph.mesh} is {graph.mesh.num_devices} devices, and the {engine} engine keeps them all in one process"
        raise EngineError(what, hint=f"at most {most} devices; maniple explain plans for any number")


def check_inputs(graph: TaskGraph, inputs: Mapping[str, Any]) -> None:
    """Check that there is a tensor of the right shape for every input.

    Raises:
        EngineError: naming the input.
    """
    shapes = {buffer.name: buffer.type.shape for buffer in graph.buffers}
    for buffer, name in graph.inputs:
        if name not in inputs:
            raise EngineError(f"input {name!r} is missing")
        if tuple(inputs[name].shape) != shapes[buffer]:
            raise EngineError(f"input {name!r} has shape {list(inputs[name].shape)}; expected {list(shapes[buffer])}")
