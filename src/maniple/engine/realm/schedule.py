"""The point tasks of a graph in an order that its edges allow, each with what it waits for."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from maniple.base.errors import EngineError
from maniple.mesh.mesh import Point
from maniple.taskgraph.graph import Edge, TaskGraph
from maniple.taskgraph.regions import Memory


@dataclass(frozen=True, slots=True)
class PointTask:
    """One task at one device.

    Attributes:
        task: number of the task in its graph.
        after: numbers, in the schedule, of those that must end before this one begins; ascending.
    """

    task: int
    device: int
    after: tuple[int, ...]


def schedule(graph: TaskGraph) -> list[PointTask]:
    """Return every point task that writes something.

    A point that writes nothing is left out; those that wait for it wait for what it would have waited for.

    Raises:
        EngineError: if the edges form a cycle.
    """
    maker = _Maker(graph)
    for number in _order(graph):
        maker.add(number)
    return maker.listed


class _Maker:
    def __init__(self, graph: TaskGraph) -> None:
        self.graph, self.memory = graph, Memory(graph.mesh, graph.shared)
        self.points = list(graph.mesh.points())
        self.incoming: dict[str, list[Edge]] = {}
        for edge in graph.edges:
            self.incoming.setdefault(edge.after, []).append(edge)
        self.listed: list[PointTask] = []
        # what to wait for instead of a point: itself, or where it is left out what it would have waited for
        self.ends: dict[str, list[frozenset[int]]] = {}
        self.left_out = False

    def add(self, number: int) -> None:
        task = self.graph.tasks[number]
        ends: list[frozenset[int]] = []
        known: dict[tuple[int, ...], frozenset[int]] = {}
        writes = [access for access in task.accesses if access.privilege == "write"]
        for device, point in enumerate(self.points):
            after = frozenset[int]().union(*(self._group_ends(edge, point, known) for edge in self.incoming.get(task.name, ())))
            if any(self.memory.writes(task, access, point) for access in writes):
                if self.left_out:
                    after -= frozenset[int]().union(*(self.listed[other].after for other in after))
                self.listed.append(PointTask(number, device, tuple(sorted(after))))
                ends.append(frozenset({len(self.listed) - 1}))
            else:
                self.left_out = True
                ends.append(after)
        self.ends[task.name] = ends

    def _group_ends(self, edge: Edge, point: Point, known: dict[tuple[int, ...], frozenset[int]]) -> frozenset[int]:
        """Return what the device at `point` waits for on account of `edge`; devices of one group share the set."""
        fixed = (id(edge), *(index for axis, index in point.items() if axis not in edge.axes))
        if fixed not in known:
            ends = self.ends[edge.before]
            group = (self.graph.mesh.device(other) for other in self.graph.mesh.group(point, edge.axes))
            known[fixed] = frozenset[int]().union(*(ends[device] for device in group))
        return known[fixed]


def _order(graph: TaskGraph) -> list[int]:
    """Return the numbers of the tasks, each after those that it waits for, in program order where there is a choice."""
    numbers = {task.name: number for number, task in enumerate(graph.tasks)}
    after: list[list[int]] = [[] for _ in graph.tasks]
    missing = [0] * len(graph.tasks)
    for edge in graph.edges:
        after[numbers[edge.before]].append(numbers[edge.after])
        missing[numbers[edge.after]] += 1
    ready = [number for number, count in enumerate(missing) if count == 0]
    order = []
    while ready:
        order.append(heapq.heappop(ready))
        for other in after[order[-1]]:
            missing[other] -= 1
            if missing[other] == 0:
                heapq.heappush(ready, other)
    if len(order) < len(graph.tasks):
        raise EngineError("edges form a cycle: some tasks never become ready")
    return order
