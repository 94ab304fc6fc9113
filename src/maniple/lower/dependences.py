"""Edges between index tasks, from privileges and program order.

All is done at the level of index tasks: an edge says along which axes the points of two tasks mix, whatever the sizes of the axes. Edges
that others imply are left out, so that every edge of the result is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from maniple.mesh.mesh import Mesh
from maniple.mesh.sharding import Sharding
from maniple.taskgraph.graph import Access, Buffer, Edge, Part, Task, TaskGraph

Mask = int
"""A set of mesh axes, one bit each."""


def find_edges(tasks: Sequence[Task], buffers: Sequence[Buffer], mesh: Mesh, shared: tuple[str, ...]) -> tuple[Edge, ...]:
    """Return the edges that order every pair of points with conflicting accesses as their tasks stand in `tasks`.

    Args:
        tasks: in program order.
        buffers: all that the tasks access.
        mesh: axes of size 1 are left out of edges.
        shared: axes along which devices share memory.
    """
    finder = _Finder(mesh, shared, {buffer.name: buffer for buffer in buffers})
    return tuple(edge for number, task in enumerate(tasks) for edge in finder.edges(number, task))


def extend(reach: list[int], earlier: Sequence[int], other: int, mask: Mask) -> None:
    """Add to `reach`, what reaches a task, all that does so through an edge from task `other` which mixes `mask`.

    Args:
        reach: for each set of axes the tasks (a bit each) from which a path mixes at least these.
        earlier: the same for `other`.
        other: number of a task.
        mask: axes.
    """
    for goal in range(len(reach)):
        rest = goal & ~mask
        reach[goal] |= earlier[rest] | (0 if rest else 1 << other)


def paths(graph: TaskGraph, bits: Mapping[str, Mask]) -> list[list[int]]:
    """Return for each task and each set of axes the tasks (a bit each) from which a path mixes at least these.

    Args:
        graph: tasks in an order in which each comes after those that it waits for.
        bits: the bit of each axis in a mask; edges may mix others as well.
    """
    numbers = {task.name: number for number, task in enumerate(graph.tasks)}
    found = [[0] * (1 << len(bits)) for _ in graph.tasks]
    for edge in sorted(graph.edges, key=lambda edge: numbers[edge.after]):
        mask = sum(bits.get(axis, 0) for axis in edge.axes)
        extend(found[numbers[edge.after]], found[numbers[edge.before]], numbers[edge.before], mask)
    return found


class _Finder:
    def __init__(self, mesh: Mesh, shared: tuple[str, ...], buffers: dict[str, Buffer]) -> None:
        self.axes = tuple(name for name, size in mesh.axes if size > 1)
        self.bit = {axis: 1 << i for i, axis in enumerate(self.axes)}
        self.shared, self.buffers = shared, buffers
        self.names: list[str] = []
        self.history: dict[str, list[tuple[int, Access]]] = {}
        # before[t][m]: the tasks (a bit each) from which a path to t mixes at least the axes in m
        self.before: list[list[int]] = []

    def edges(self, number: int, task: Task) -> Iterator[Edge]:
        """Yield the edges to `task`, which comes after all tasks seen so far."""
        wanted = set(self.conflicts(task))
        reach = [0] * (1 << len(self.axes))
        for other, mask in sorted(wanted, key=lambda item: (-item[0], -item[1].bit_count(), item[1])):
            if reach[mask] >> other & 1:
                continue
            extend(reach, self.before[other], other, mask)
            axes = tuple(axis for axis in self.axes if self.bit[axis] & mask)
            yield Edge(self.names[other], task.name, axes)
        self.names.append(task.name)
        self.before.append(reach)
        for access in task.accesses:
            self.record(number, access)

    def conflicts(self, task: Task) -> Iterator[tuple[int, Mask]]:
        for access in task.accesses:
            for other, earlier in self.history.get(access.buffer, ()):
                if earlier.privilege == access.privilege in ("read", "reduce"):
                    continue
                yield other, self.mixed(self.buffers[access.buffer].sharding, earlier.part, access.part)

    def record(self, number: int, access: Access) -> None:
        """Remember an access. Nothing is forgotten: a write of a part hides earlier accesses of that part only."""
        self.history.setdefault(access.buffer, []).append((number, access))

    def mixed(self, stored: Sharding, first: Part, second: Part) -> Mask:
        """Return the axes along which different points may touch the same elements of the same instance."""
        return sum(self.bit[axis] for axis in mixed_axes(stored, first, second, self.axes, self.shared))


def mixed_axes(stored: Sharding, first: Part, second: Part, axes: Iterable[str], shared: Sequence[str]) -> list[str]:
    """Return those of `axes` along which different points may touch the same elements of one instance of a buffer.

    Args:
        stored: how the buffer is stored.
        first: what the one point touches.
        second: what the other one touches.
        axes: those in question.
        shared: axes along which devices share memory.
    """
    pending = dict(stored.pending)
    apart = _split_alike(first.sharding, second.sharding)
    peers = (*first.peers, *second.peers)
    return [axis for axis in axes if axis in peers or (axis in shared and axis not in pending and axis not in apart)]


def _split_alike(first: Sharding, second: Sharding) -> set[str]:
    """Return the axes along which two points must agree for their regions under the two layouts to overlap."""
    axes = set()
    for one, other in zip(first.dims, second.dims, strict=True):
        for a, b in zip(one, other, strict=False):
            if a != b:
                break
            axes.add(a.axis)
    return axes
