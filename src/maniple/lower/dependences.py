"""Edges between index tasks, from privileges and program order.

All is done at the level of index tasks: an edge says along which axes the points of two tasks mix, whatever the sizes of the axes. Edges
that others imply are left out, so that every edge of the result is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from maniple.mesh.mesh import Mesh
from maniple.mesh.sharding import Sharding
from maniple.taskgraph.graph import Access, Buffer, Edge, Part, Task

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
            earlier = self.before[other]
            for goal in range(len(reach)):
                rest = goal & ~mask
                reach[goal] |= earlier[rest] | (0 if rest else 1 << other)
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
        pending = dict(stored.pending)
        apart = _split_alike(first.sharding, second.sharding)
        mask = 0
        for axis in self.axes:
            one_allocation = axis in self.shared and axis not in pending
            if (one_allocation and axis not in apart) or axis in (*first.peers, *second.peers):
                mask |= self.bit[axis]
        return mask


def _split_alike(first: Sharding, second: Sharding) -> set[str]:
    """Return the axes along which two points must agree for their regions under the two layouts to overlap."""
    axes = set()
    for one, other in zip(first.dims, second.dims, strict=True):
        for a, b in zip(one, other, strict=False):
            if a != b:
                break
            axes.add(a.axis)
    return axes
