"""Runs the point tasks of a graph one after another, in any order that the edges allow."""

from __future__ import annotations

import heapq
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import torch

from maniple.base.errors import EngineError, ManipleError
from maniple.engine.bodies import Bodies, body_failed, check_devices, check_inputs, reads_and_writes
from maniple.engine.protocol import CompileBody
from maniple.engine.reference.store import Store
from maniple.engine.tensors import detached
from maniple.mesh.mesh import Mesh, Point
from maniple.taskgraph.graph import Task, TaskGraph
from maniple.trace import Trace, span, task_work

NUM_PLANS: Final = 8
"""Graphs that an engine keeps bodies for: batch shapes that take turns, training and evaluation."""

MAX_DEVICES: Final = 4096
"""More would take hours for one step."""


class ReferenceEngine:
    """All devices in one process, sequential: the semantics of task graphs. State is never updated in place.

    Args:
        compile_body: makes the body of a local program.
        rng: picks the next point task among those that may run; None takes them in program order.
    """

    state_changed = False

    def __init__(self, compile_body: CompileBody[torch.Tensor], rng: random.Random | None = None) -> None:
        """Make an engine that has compiled nothing yet."""
        self._compile, self._rng = compile_body, rng
        self.num_processors = 1
        self._plans: OrderedDict[int, _Plan] = OrderedDict()

    def shared_axes(self, mesh: Mesh) -> tuple[str, ...]:  # noqa: ARG002  # part of the protocol
        """Return the axes along which devices share memory: none; see `Engine.shared_axes`."""
        return ()

    @property
    def num_bodies(self) -> int:
        """Number of bodies compiled for the graph that ran last."""
        return len(next(reversed(self._plans.values())).bodies) if self._plans else 0

    def run(self, graph: TaskGraph, inputs: Mapping[str, torch.Tensor], trace: Trace | None = None) -> dict[str, torch.Tensor]:
        """Run the step once; see `Engine.run`.

        Bodies are compiled when first met and kept for the `NUM_PLANS` graphs that ran last.

        Raises:
            EngineError: naming the task and the user's line, if an input is missing or has another shape, or a body fails; if there are
                more than `MAX_DEVICES` devices.
        """
        check_devices(graph, "reference", MAX_DEVICES)
        check_inputs(graph, inputs)
        plan = self._plan(graph)
        with torch.no_grad():
            with span(trace, "place inputs"):
                store = Store(graph, inputs)
            run = _run_point if trace is None else _traced(trace)
            for number, device in plan.order(self._rng):
                run(plan, store, graph.tasks[number], device)
            with span(trace, "take outputs"):
                outputs = {name: store.whole(buffer) for buffer, name in graph.outputs}
                return detached(outputs, inputs.values())

    def _plan(self, graph: TaskGraph) -> _Plan:
        """Return what is kept of `graph`; a plan holds its graph, so that no other has its identity."""
        plan = self._plans.pop(id(graph), None) or _Plan(graph, self._compile)
        self._plans[id(graph)] = plan
        if len(self._plans) > NUM_PLANS:
            self._plans.popitem(last=False)
        return plan


def _traced(trace: Trace) -> Callable[[_Plan, Store, Task, int], bool]:
    """Return `_run_point`, recording in the lane of each device."""

    def run(plan: _Plan, store: Store, task: Task, device: int) -> bool:
        start = time.perf_counter_ns()
        done = _run_point(plan, store, task, device)
        if done:
            trace.append(task_work(task), f"device{device}/compute", start, time.perf_counter_ns(), device=device)
        return done

    return run


def _run_point(plan: _Plan, store: Store, task: Task, device: int) -> bool:
    """Run a task at a device; return whether there was something to do, which is whether it writes anything."""
    reads, writes = reads_and_writes(task)
    point = plan.points[device]
    is_writer = any(store.memory.writes(task, access, point) for access in writes)
    if is_writer:
        operands = [store.read(access, point) for access in reads]
        results = _results(plan, task, point, operands)
        for access, result in zip(writes, results, strict=True):
            store.write(task, access, point, result)
    for access in reads:
        store.done(access)
    return is_writer


def _results(plan: _Plan, task: Task, point: Point, operands: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    if task.kind == "collective":
        return (operands[0],)
    found = plan.bodies.at(task, point)
    try:
        return found.body(*operands, *found.offsets)
    except ManipleError:
        raise
    except Exception as error:
        raise body_failed(task, error) from error


@dataclass(slots=True)
class _Plan:
    """What is kept of a graph between runs."""

    graph: TaskGraph
    compile: CompileBody[torch.Tensor]
    points: list[Point] = field(init=False)
    bodies: Bodies[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.points = list(self.graph.mesh.points())
        self.bodies = Bodies(self.graph, self.compile)

    def order(self, rng: random.Random | None) -> Iterator[tuple[int, int]]:
        """Yield every (task, device) once, each after those that its edges name.

        Raises:
            EngineError: if the edges form a cycle.
        """
        count = len(self.points)
        numbers = {task.name: number for number, task in enumerate(self.graph.tasks)}
        after: list[list[int]] = [[] for _ in range(count * len(numbers))]
        missing = [0] * len(after)
        for edge in self.graph.edges:
            before, later = numbers[edge.before] * count, numbers[edge.after] * count
            for device, point in enumerate(self.points):
                for other in self.graph.mesh.group(point, edge.axes):
                    after[before + self.graph.mesh.device(other)].append(later + device)
                    missing[later + device] += 1
        ready = [node for node, number in enumerate(missing) if number == 0]
        done = 0
        while ready:
            node = heapq.heappop(ready) if rng is None else ready.pop(rng.randrange(len(ready)))
            done += 1
            yield divmod(node, count)
            for other_node in after[node]:
                missing[other_node] -= 1
                if missing[other_node] == 0:
                    heapq.heappush(ready, other_node) if rng is None else ready.append(other_node)
        if done < len(after):
            raise EngineError("edges form a cycle: some tasks never become ready")
