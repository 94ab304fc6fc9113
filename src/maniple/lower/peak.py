"""The most memory that a step takes at one time, beside the caller's tensors: an upper bound for any timing of its tasks.

A device may be anywhere in the graph that its tasks' order allows: some set of tasks is done, and one runs. Its share of memory is what
the done tasks have allocated and not freed, and what the running body has inside. The bound is the largest share of each device, added
over the devices of a node. Shares are of kinds: along axes where a result is made once, the first device makes it. Nothing grows with
the sizes of axes.

Memory is free, for certain, with the first task that comes after all its readers on whatever devices; a task that only some timing puts
after them does not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from maniple.lower.closure import Closures
from maniple.lower.lifetimes import BodyOf, Lifetimes, Storage, node_points
from maniple.taskgraph.graph import Task, TaskGraph


@dataclass(frozen=True, slots=True)
class Live:
    """Memory that is live at the peak.

    Attributes:
        buffers: what lies in it; empty for the inside of bodies.
        num_bytes: in the whole node.
        maker: the task that makes it, or in which bodies have it inside; None for the end of the step.
    """

    buffers: tuple[str, ...]
    num_bytes: int
    maker: Task | None


@dataclass(frozen=True, slots=True)
class TaskPeak:
    """The most memory in a node while all its devices run a task.

    Attributes:
        held_bytes: what was made before and is not surely free.
        body_bytes: inside the bodies, results included.
    """

    task: Task | None
    held_bytes: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The bound.

    Attributes:
        node_bytes: most bytes that the devices of a node have allocated at one time.
        device_bytes: most bytes of one device; what is kept between steps and shared counts for each.
        kept_bytes: of that, in a node, what is kept between steps.
        at: the task that the first device runs at its peak, None at the end of the step.
        live: what is live then, the largest first.
        tasks: in program order; the last one is the end of the step.
    """

    node_bytes: int
    device_bytes: int
    kept_bytes: int
    at: Task | None
    live: tuple[Live, ...]
    tasks: tuple[TaskPeak, ...]


def find_peak(graph: TaskGraph, body_of: BodyOf, num_processors: int | None = None) -> Peak:
    """Return the bound for `graph`.

    Args:
        graph: tasks in an order in which each comes after those that it waits for.
        body_of: what the body of a compute task allocates.
        num_processors: bodies that run at one time in a node; None for one on each device.
    """
    lifetimes = Lifetimes(graph, body_of)
    counts = node_points(graph.mesh, graph.shared, lifetimes.axes)
    kinds = {kind: _Kind(lifetimes, kind) for kind in counts}
    nodes: dict[frozenset[str], dict[frozenset[str], int]] = {}
    for kind, count in counts.items():
        nodes.setdefault(kind.difference(graph.shared), {})[kind] = count
    kept = sum(allocation.num_bytes for allocation in lifetimes.allocations)
    bounds = {node: _node_bytes(members, kinds, num_processors) for node, members in nodes.items()}
    worst = max(bounds, key=lambda node: bounds[node])
    members = nodes[worst]
    leader = kinds[max(members, key=lambda kind: kinds[kind].peak)]
    return Peak(
        node_bytes=kept + bounds[worst],
        device_bytes=kept + max(kind.peak for kind in kinds.values()),
        kept_bytes=kept,
        at=graph.tasks[leader.worst] if leader.worst < len(graph.tasks) else None,
        live=_live(lifetimes, members, kinds, num_processors),
        tasks=_rows(lifetimes, members, kinds, kept, num_processors),
    )


class _Kind:
    """Devices that come first along some axes.

    Attributes:
        resting: most bytes while the device runs nothing.
        held: for each task the most bytes that live beside its body.
        inside: for each task the bytes inside its body, less what is free when it begins; 0 where such a device does not run it.
        worst: the task with the largest sum.
        peak: that sum.
    """

    def __init__(self, lifetimes: Lifetimes, first: frozenset[str]) -> None:
        tasks = lifetimes.graph.tasks
        self.first, self._storages = first, lifetimes.storages
        weights = [0] * (len(tasks) + 1)
        freed = [0] * (len(tasks) + 1)
        for storage in self.storages():
            weights[storage.maker] += storage.num_bytes
            if storage.dies is not None:
                weights[storage.dies] -= storage.num_bytes
                freed[storage.dies] += storage.num_bytes if storage.before else 0
        runs = [any(once <= first for once in lifetimes.makers(task)) for task in tasks]
        outputs = lifetimes.outputs_bytes() if first.issuperset(lifetimes.axes) else 0
        self.inside = [inside if run else 0 for inside, run in zip(lifetimes.inside, runs, strict=True)] + [outputs]
        self._closures = Closures(weights, _edges(lifetimes))
        self.resting, _ = self._closures.heaviest()
        ancestors = [*(reach[0] for reach in lifetimes.reach), (1 << len(tasks)) - 1]
        self.done: list[frozenset[int]] = []
        self.held: list[int] = []
        for number in range(len(tasks) + 1):
            inside = (other for other in range(len(tasks)) if ancestors[number] >> other & 1)
            outside = (other for other in range(number, len(tasks) + 1) if other == number or ancestors[other] >> number & 1)
            held, done = self._closures.heaviest(inside, outside)
            self.held.append(held - freed[number])
            self.done.append(done)
        self.worst = max(range(len(tasks) + 1), key=lambda number: self.held[number] + self.inside[number])
        self.peak = max(self.held[self.worst] + self.inside[self.worst], self.resting)

    def storages(self) -> list[Storage]:
        """Return what devices of this kind make."""
        return [storage for storage in self._storages if storage.once <= self.first]

    def live(self, number: int) -> list[Storage]:
        """Return what lives, at the most, while task `number` runs."""
        done = self.done[number]
        return [
            storage
            for storage in self.storages()
            if storage.maker in done and storage.dies not in done and not (storage.dies == number and storage.before)
        ]


def _edges(lifetimes: Lifetimes) -> list[tuple[int, int]]:
    """Return the order of tasks on one device, with the end of the step as one more task."""
    numbers = {task.name: number for number, task in enumerate(lifetimes.graph.tasks)}
    edges = {(numbers[edge.before], numbers[edge.after]) for edge in lifetimes.graph.edges}
    return [*sorted(edges), *((number, len(numbers)) for number in range(len(numbers)))]


def _node_bytes(members: Mapping[frozenset[str], int], kinds: Mapping[frozenset[str], _Kind], num_processors: int | None) -> int:
    """Return the most bytes of the devices of a node, of which some run a body and the others rest."""
    total, gains = 0, list[tuple[int, int]]()
    for member, count in members.items():
        kind = kinds[member]
        total += count * kind.resting
        gains.append((kind.peak - kind.resting, count))
    return total + _largest(gains, num_processors)


def _largest(gains: list[tuple[int, int]], num_processors: int | None) -> int:
    """Return the sum of the largest of `gains`, each of which may be taken some number of times."""
    total, left = 0, sum(count for _, count in gains) if num_processors is None else num_processors
    for gain, count in sorted(gains, reverse=True):
        taken = min(count, left)
        total, left = total + gain * taken, left - taken
    return total


def _rows(
    lifetimes: Lifetimes,
    members: Mapping[frozenset[str], int],
    kinds: Mapping[frozenset[str], _Kind],
    kept: int,
    num_processors: int | None,
) -> tuple[TaskPeak, ...]:
    rows = []
    for number, task in enumerate((*lifetimes.graph.tasks, None)):
        held = sum(count * kinds[member].held[number] for member, count in members.items())
        inside = _largest([(kinds[member].inside[number], count) for member, count in members.items()], num_processors)
        rows.append(TaskPeak(task, kept + held, inside))
    return tuple(rows)


def _live(
    lifetimes: Lifetimes, members: Mapping[frozenset[str], int], kinds: Mapping[frozenset[str], _Kind], num_processors: int | None
) -> tuple[Live, ...]:
    """Return what is live where each device has its largest share."""
    tasks = lifetimes.graph.tasks
    sizes: dict[int, int] = {}
    makers = {access.buffer: task for task in reversed(tasks) for access in task.accesses if access.privilege == "write"}
    found = [Live((allocation.buffer,), allocation.num_bytes, makers[allocation.buffer]) for allocation in lifetimes.allocations]
    bodies: dict[int, list[tuple[int, int]]] = {}
    for member, count in members.items():
        kind = kinds[member]
        for storage in kind.live(kind.worst):
            number = lifetimes.storages.index(storage)
            sizes[number] = sizes.get(number, 0) + storage.num_bytes * count
        bodies.setdefault(kind.worst, []).append((kind.inside[kind.worst], count))
    for number, num_bytes in sizes.items():
        storage = lifetimes.storages[number]
        found.append(Live(tuple(storage.buffers), num_bytes, tasks[storage.maker]))
    for worst, gains in bodies.items():
        found.append(Live((), _largest(gains, num_processors), tasks[worst] if worst < len(tasks) else None))
    return tuple(sorted((item for item in found if item.num_bytes), key=lambda item: -item.num_bytes))
