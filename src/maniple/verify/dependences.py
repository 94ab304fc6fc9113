"""Checks the edges of a task graph against what its tasks access.

Shares nothing with the lowering that made the edges: every point of every task, the instances and the ranges of indices that it
touches, and the order that the edges enforce are worked out anew, on the devices of the mesh one by one. On a mesh of many devices each
axis is taken to be short, which shows the same conflicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from maniple.base.errors import VerifyError
from maniple.mesh.mesh import Mesh, Point
from maniple.mesh.sharding import Sharding
from maniple.taskgraph.graph import Access, Buffer, Privilege, Task, TaskGraph
from maniple.taskgraph.regions import InstanceKey, Memory, Region, common_elements, region_of, region_shape
from maniple.taskgraph.text import print_access

MAX_POINTS = 12
"""Devices up to which the mesh is taken as it is."""


@dataclass(frozen=True, slots=True)
class _Use:
    """One point's access to one instance."""

    task: int
    point: int
    access: Access
    region: Region


def check_dependences(graph: TaskGraph) -> None:
    """Check that edges order all pairs of points with conflicting accesses, and that what is read was written.

    Two accesses conflict if they touch common elements of one instance and are not both reads or both reductions. The task that stands
    earlier in `graph.tasks` must come first.

    Raises:
        VerifyError: naming the tasks, the buffer and the user's line; also if edges form a cycle or name what does not exist.
    """
    _Checker(graph).check()


def capped(mesh: Mesh) -> Mesh:
    """Return `mesh`, its axes cut to 3 or 2 if it has many devices."""
    if mesh.num_devices <= MAX_POINTS:
        return mesh
    most = 3 if sum(size > 1 for _, size in mesh.axes) <= 2 else 2
    return Mesh(tuple((name, min(size, most)) for name, size in mesh.axes))


class _Checker:
    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self.mesh = capped(graph.mesh)
        self.memory = Memory(self.mesh, graph.shared)
        self.points: list[Point] = list(self.mesh.points())
        self.buffers: Mapping[str, Buffer] = {buffer.name: buffer for buffer in graph.buffers}
        self.numbers = {task.name: number for number, task in enumerate(graph.tasks)}
        self.regions: dict[tuple[tuple[int, ...], Sharding], list[Region]] = {}
        self.commons: dict[tuple[int, int], int] = {}
        self.holdings: dict[tuple[str, InstanceKey], Region] = {}
        self.inputs = {buffer for buffer, _ in graph.inputs}

    def check(self) -> None:
        self.check_names()
        before = self.reachable()
        by_buffer: dict[str, list[tuple[int, Access]]] = {name: [] for name in self.buffers}
        for number, task in enumerate(self.graph.tasks):
            for access in task.accesses:
                by_buffer[access.buffer].append((number, access))
        for name, accesses in by_buffer.items():
            self.check_buffer(self.buffers[name], accesses, before)

    def check_names(self) -> None:
        for task in self.graph.tasks:
            for access in task.accesses:
                if access.buffer not in self.buffers:
                    raise VerifyError(f"task {task.name} accesses buffer {access.buffer!r}, which does not exist", where=task.location)
        for edge in self.graph.edges:
            for name in (edge.before, edge.after):
                if name not in self.numbers:
                    raise VerifyError(f"an edge names task {name!r}, which does not exist")

    def reachable(self) -> list[int]:
        """Return for each point task, numbered task by task, those that must have run before it, one bit each."""
        count = len(self.points)
        incoming: list[list[tuple[int, tuple[str, ...]]]] = [[] for _ in self.graph.tasks]
        for edge in self.graph.edges:
            incoming[self.numbers[edge.after]].append((self.numbers[edge.before], edge.axes))
        groups: dict[tuple[str, ...], list[list[int]]] = {}
        before = [0] * (count * len(self.graph.tasks))
        for task in self.order(incoming):
            for other, axes in incoming[task]:
                if axes not in groups:
                    groups[axes] = [[self.mesh.device(q) for q in self.mesh.group(p, axes)] for p in self.points]
                for point, peers in enumerate(groups[axes]):
                    for peer in peers:
                        node = other * count + peer
                        before[task * count + point] |= before[node] | 1 << node
        return before

    def order(self, incoming: list[list[tuple[int, tuple[str, ...]]]]) -> Iterator[int]:
        """Yield the tasks in an order that the edges allow."""
        outgoing: list[list[int]] = [[] for _ in incoming]
        missing = [len(edges) for edges in incoming]
        for task, edges in enumerate(incoming):
            for other, _ in edges:
                outgoing[other].append(task)
        ready = [task for task, number in enumerate(missing) if number == 0]
        done = 0
        while ready:
            task = ready.pop()
            done += 1
            yield task
            for other in outgoing[task]:
                missing[other] -= 1
                if missing[other] == 0:
                    ready.append(other)
        if done < len(incoming):
            stuck = next(self.graph.tasks[task] for task, number in enumerate(missing) if number)
            raise VerifyError(f"edges form a cycle; task {stuck.name} waits on it", where=stuck.location)

    def check_buffer(self, buffer: Buffer, accesses: list[tuple[int, Access]], before: list[int]) -> None:
        seen: dict[InstanceKey, dict[Privilege, list[_Use]]] = {}
        for number, access in accesses:
            mine = access.privilege
            for key, use in self.uses(buffer, number, access):
                earlier = seen.setdefault(key, {})
                got = 0
                for privilege, others in earlier.items():
                    if privilege == mine in ("read", "reduce"):
                        continue
                    for other in others:
                        common = self.common(other.region, use.region)
                        got += common if privilege != "read" else 0
                        if common:
                            self.check_pair(buffer, other, use, before)
                if mine in ("read", "read_write") and buffer.name not in self.inputs:
                    self.check_written(buffer, key, use, got)
                earlier.setdefault(mine, []).append(use)

    def uses(self, buffer: Buffer, number: int, access: Access) -> Iterator[tuple[InstanceKey, _Use]]:
        task = self.graph.tasks[number]
        regions = self.regions_of(buffer.type.shape, access.part.sharding)
        for at, point in enumerate(self.points):
            if access.privilege == "read" or self.memory.writes(task, access, point):
                for key in self.memory.touched(buffer, access.part, point):
                    yield key, _Use(number, at, access, regions[at])

    def regions_of(self, shape: tuple[int, ...], sharding: Sharding) -> list[Region]:
        key = (shape, sharding)
        if key not in self.regions:
            self.regions[key] = [region_of(shape, sharding, self.mesh, point) for point in self.points]
        return self.regions[key]

    def check_pair(self, buffer: Buffer, first: _Use, second: _Use, before: list[int]) -> None:
        count = len(self.points)
        if (first.task, first.point) == (second.task, second.point):
            return
        node = first.task * count + first.point
        if before[second.task * count + second.point] >> node & 1:
            return
        one, other = self.graph.tasks[first.task], self.graph.tasks[second.task]
        where = other.location or one.location
        raise VerifyError(
            f"nothing orders task {other.name} at {self.points[second.point]} after task {one.name} at {self.points[first.point]}, "
            f"and both touch buffer {buffer.name} ({_said(one)}): {print_access(second.access)} after {print_access(first.access)}",
            where=where,
            hint=f"an edge {one.name} -> {other.name}",
        )

    def check_written(self, buffer: Buffer, key: InstanceKey, use: _Use, got: int) -> None:
        """Check that all that `use` reads of an instance was written before; `got` elements of it were."""
        if got < self.common(use.region, self.held(buffer, key)) or not self.covered(buffer, use):
            task = self.graph.tasks[use.task]
            raise VerifyError(
                f"task {task.name} at {self.points[use.point]} reads elements of buffer {buffer.name} that no task wrote before: "
                f"{print_access(use.access)}, region of shape {list(region_shape(use.region))}",
                where=task.location,
            )

    def common(self, first: Region, second: Region) -> int:
        """Return the number of common elements; regions live as long as this object, so that their ids name them."""
        known = (id(first), id(second))
        if known not in self.commons:
            self.commons[known] = common_elements(first, second)
        return self.commons[known]

    def held(self, buffer: Buffer, key: InstanceKey) -> Region:
        known = (buffer.name, key)
        if known not in self.holdings:
            self.holdings[known] = self.memory.held(buffer, key)
        return self.holdings[known]

    def covered(self, buffer: Buffer, use: _Use) -> bool:
        """Return whether the instances that a reader touches hold all that it wants, for each partial result."""
        pending = dict(buffer.sharding.pending)
        got: dict[InstanceKey, int] = {}
        for key in self.memory.touched(buffer, use.access.part, self.points[use.point]):
            partial = tuple(item for item in key if item[0] in pending)
            got[partial] = got.get(partial, 0) + self.common(use.region, self.held(buffer, key))
        wanted = self.common(use.region, use.region)
        return all(number >= wanted for number in got.values())


def _said(task: Task) -> str:
    return f"{task.op} at {task.location}" if task.location else task.op
