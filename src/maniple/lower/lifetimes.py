"""What a step allocates on each device, and from which task to which it lives: at the level of index tasks, whatever the sizes of axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from maniple.lower.dependences import Mask, mixed_axes, paths
from maniple.mesh.mesh import Mesh
from maniple.ops.localize import Destination
from maniple.taskgraph.graph import Access, Buffer, Part, Task, TaskGraph
from maniple.taskgraph.regions import Memory, region_shape
from maniple.taskgraph.storage import BodyMemory, in_pieces

BodyOf = Callable[[Task, tuple[Destination, ...]], BodyMemory]
"""(compute task, results that are written into memory given) -> what its body allocates on the first device."""


@dataclass(slots=True)
class Storage:
    """Memory that a body allocates and results lie in.

    Attributes:
        maker: number of the task.
        num_bytes: on each device that makes it.
        once: axes along which only the first device makes it.
        buffers: what lies in it.
        dies: number of the task with which it is freed, None at the end of the step.
        before: whether it is free when that task begins, not only when it has ended.
    """

    maker: int
    num_bytes: int
    once: frozenset[str]
    buffers: list[str] = field(default_factory=list)
    dies: int | None = None
    before: bool = False


@dataclass(frozen=True, slots=True)
class Allocation:
    """A buffer that is allocated as a whole and kept between steps.

    Attributes:
        num_bytes: of all its instances in one node.
    """

    buffer: str
    num_bytes: int


class Lifetimes:
    """What is allocated while a graph runs.

    Attributes:
        graph: the graph.
        axes: those with more than one index.
        allocations: kept between steps.
        storages: of one step.
        inside: for each task the most bytes that a device has allocated at one time while it runs it, beside what lived before.
        reach: see `paths`.
    """

    def __init__(self, graph: TaskGraph, body_of: BodyOf) -> None:
        """Find what is allocated.

        Args:
            graph: tasks in an order in which each comes after those that it waits for.
            body_of: what the body of a compute task allocates.
        """
        self.graph, self._body_of = graph, body_of
        self.axes = tuple(name for name, size in graph.mesh.axes if size > 1)
        self._bits = {axis: 1 << number for number, axis in enumerate(self.axes)}
        self.reach = paths(graph, self._bits)
        self._buffers = {buffer.name: buffer for buffer in graph.buffers}
        self._inputs = {name for name, _ in graph.inputs}
        self._pieces = in_pieces(graph)
        self._written = {a.buffer: a.part for task in graph.tasks for a in task.accesses if a.privilege == "write"}
        self._updated = self._inputs & set(self._written)
        self._holds: dict[str, dict[int, Mask]] = {}  # the storages that a buffer lies in, and how far away its readers' devices may be
        self.storages: list[Storage] = []
        self.allocations = [self._allocation(self._buffers[name]) for name in self._written if self._is_allocated(name)]
        self.inside = [self._task(number, task) for number, task in enumerate(graph.tasks)]
        for number, storage in enumerate(self.storages):
            self._end(number, storage)

    def makers(self, task: Task) -> list[frozenset[str]]:
        """Return for each write of a task the axes along which only the first device makes it."""
        once = frozenset(task.once).intersection(self.axes)
        return [once - a.part.sharding.axes for a in task.accesses if a.privilege == "write"]

    def outputs_bytes(self) -> int:
        """Return at least as many bytes as are put together or copied at the end of the step, so that outputs share no memory."""
        names = [name for name, _ in self.graph.outputs if name not in self._updated]
        sizes = [self._buffers[name].type.num_bytes for name in names if names.count(name) > 1 or self._is_copied(name)]
        return sum(sizes) + max(sizes, default=0)

    def _is_copied(self, name: str) -> bool:
        if self._buffers[name].sharding.pending or name in self._inputs:
            return True
        held = [self.storages[number] for number in self._holds.get(name, ())]
        others = {other for other, _ in self.graph.outputs} - {name}
        shared = any(others.intersection(storage.buffers) or storage.num_bytes < self._local_bytes(name) for storage in held)
        return not self._is_allocated(name) and (not held or shared)

    def _is_allocated(self, name: str) -> bool:
        return name not in self._pieces and name not in self._inputs

    def _allocation(self, buffer: Buffer) -> Allocation:
        memory, shared = Memory(self.graph.mesh, self.graph.shared), self.graph.shared
        held = memory.held(buffer, memory.instance(buffer, dict.fromkeys(self.graph.mesh.names, 0)))
        instances = math.prod(self.graph.mesh.size(axis) for axis in memory.separate_axes(buffer.sharding) if axis in shared)
        return Allocation(buffer.name, buffer.type.with_shape(region_shape(held)).num_bytes * instances)

    def _task(self, number: int, task: Task) -> int:
        """Note what a task's results lie in; return the bytes inside."""
        reads = [access for access in task.accesses if access.privilege == "read"]
        writes = [access for access in task.accesses if access.privilege == "write"]
        given = self._destinations(reads, writes)
        taken = [self._taken_bytes(access) for access in reads]
        if task.kind == "collective":
            body = BodyMemory(0) if given else BodyMemory(0, (frozenset({0}),), (0,))  # its operand is its result
            taken = [taken[0] if not given else taken[0] - self._combined_bytes(reads[0])]
        else:
            body = self._body_of(task, given)
        onces, copied, storages = self.makers(task), 0, dict[int, int]()
        for at, access in enumerate(writes):
            if access.buffer not in self._pieces:
                continue
            held = self._holds.setdefault(access.buffer, {})
            for place in body.places[at]:
                if place >= 0 and not taken[place]:
                    copied += self._view(held, access, reads[place], number, onces[at])
                    continue
                if place not in storages:
                    num_bytes = taken[place] if place >= 0 else body.new_bytes[~place]
                    storages[place] = self._new(number, num_bytes, onces[at])
                storage = self.storages[storages[place]]
                storage.once &= onces[at]
                held[storages[place]] = 0
        for name, held in ((access.buffer, self._holds.get(access.buffer, {})) for access in writes):
            for found in held:
                self.storages[found].buffers.append(name)
        return body.peak_bytes + sum(taken) + copied

    def _destinations(self, reads: Sequence[Access], writes: Sequence[Access]) -> tuple[Destination, ...]:
        """Return the results that a task writes where they belong; others that belong into an allocation or input are copied there."""
        found = []
        for at, access in enumerate(writes):
            if access.buffer not in self._pieces and not self._has_blocks(access.part):
                own = (n for n, read in enumerate(reads) if read.buffer == access.buffer and not self._taken_bytes(read))
                found.append(Destination(at, tuple(own) if access.buffer in self._inputs else ()))
        return tuple(found)

    def _view(self, held: dict[int, Mask], access: Access, read: Access, number: int, once: frozenset[str]) -> int:
        """Note that a result lies where an operand does; return the bytes of the copy, if it has to be one because that changes."""
        if read.buffer in self._updated:
            num_bytes = self._part_bytes(self._buffers[access.buffer], access.part)
            held[self._new(number, num_bytes, once)] = 0
            return num_bytes
        far = self._mixed(read.buffer, read.part)
        for storage, mask in self._holds.get(read.buffer, {}).items():
            held[storage] = held.get(storage, 0) | mask | far
        return 0

    def _new(self, maker: int, num_bytes: int, once: frozenset[str]) -> int:
        self.storages.append(Storage(maker, num_bytes, once))
        return len(self.storages) - 1

    def _mixed(self, name: str, part: Part) -> Mask:
        """Return the axes along which a device that reads a part of a buffer may differ from the one that wrote it."""
        if name not in self._written:
            return 0
        axes = mixed_axes(self._buffers[name].sharding, self._written[name], part, self.axes, self.graph.shared)
        return sum(self._bits[axis] for axis in axes)

    def _taken_bytes(self, access: Access) -> int:
        """Return the bytes of the new tensor that a device puts together for an operand; 0 if it is a view of what lies there."""
        gathered = access.buffer not in self._pieces and self._has_blocks(access.part)
        whole = self._part_bytes(self._buffers[access.buffer], access.part)
        return self._combined_bytes(access) + (whole if gathered else 0)

    def _combined_bytes(self, access: Access) -> int:
        """Return the bytes of an operand that is put together from what several devices hold; else 0."""
        if all(self.graph.mesh.size(axis) == 1 for axis in access.part.peers):
            return 0
        return self._part_bytes(self._buffers[access.buffer], access.part)

    def _has_blocks(self, part: Part) -> bool:
        """Return whether a part may be no rectangle of a whole tensor."""
        return any(item.blocks > 1 for parts in part.sharding.dims for item in parts if self.graph.mesh.size(item.axis) > 1)

    def _part_bytes(self, buffer: Buffer, part: Part) -> int:
        return buffer.type.with_shape(part.sharding.local_shape(buffer.type.shape, self.graph.mesh)).num_bytes

    def _local_bytes(self, name: str) -> int:
        return self._part_bytes(self._buffers[name], self._written[name])

    def _readers(self, number: int) -> Iterator[tuple[int, Mask]]:
        """Yield the tasks that read what lies in a storage, with the axes along which their devices may differ from the maker's."""
        for at, task in enumerate(self.graph.tasks):
            for access in task.accesses:
                held = self._holds.get(access.buffer, {})
                if access.privilege == "read" and number in held:
                    yield at, held[number] | self._mixed(access.buffer, access.part)

    def _end(self, number: int, storage: Storage) -> None:
        """Find the first task by which all readers have surely ended."""
        readers = set(self._readers(number))
        if not readers or any(name in storage.buffers for name, _ in self.graph.outputs):
            return
        for at in range(max(reader for reader, _ in readers), len(self.graph.tasks)):
            left = {(reader, mask) for reader, mask in readers if not self.reach[at][mask] >> reader & 1}
            if not left or left == {(at, 0)}:
                storage.dies, storage.before = at, not left
                return


def node_points(mesh: Mesh, shared: tuple[str, ...], axes: tuple[str, ...]) -> Mapping[frozenset[str], int]:
    """Return the kinds of devices of one node: along which of `axes` they come first, and how many there are of each.

    >>> sorted(("".join(sorted(kind)), n) for kind, n in node_points(Mesh.parse("a=3 b=2"), ("a",), ("a", "b")).items())
    [('', 2), ('a', 1), ('ab', 1), ('b', 2)]
    """
    found = {frozenset[str](): 1}
    for axis in axes:
        others = mesh.size(axis) - 1 if axis in shared else 1
        found = {
            kind: count * factor
            for known, count in found.items()
            for kind, factor in ((known | {axis}, 1), (known, others))
        }  # fmt: skip
    return found
