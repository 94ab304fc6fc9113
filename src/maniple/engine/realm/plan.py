"""A graph prepared for Realm: slots filled, points ready, the spawn list made; then any number of steps."""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections.abc import Mapping

import torch

from maniple.engine.bodies import Bodies, reads_and_writes
from maniple.engine.protocol import CompileBody, Interrupted, uninterrupted
from maniple.engine.realm.binding import Runtime
from maniple.engine.realm.placement import Allocation, Placement
from maniple.engine.realm.points import PointRun, ReadCount, Slots, State, Take, destinations, slots_of, taker
from maniple.engine.realm.schedule import PointTask, schedule
from maniple.engine.realm.spawn_list import Spawn, SpawnList
from maniple.engine.realm.timing import Timing
from maniple.engine.tensors import DTYPES, detached
from maniple.taskgraph.graph import TaskGraph
from maniple.trace import Trace, Work, span
from maniple.trace.trace import MAIN


class Plan:
    """What is kept of a graph between steps.

    Attributes:
        graph: the graph.
        bodies: compiled for it.
    """

    def __init__(self, graph: TaskGraph, compile_body: CompileBody[torch.Tensor]) -> None:
        """Prepare everything that does not depend on the step.

        Raises:
            EngineError: if the graph cannot run, such as one whose edges form a cycle.
        """
        self.graph, self.bodies = graph, Bodies(graph, compile_body)
        self._placement = Placement(graph)
        self._points = schedule(graph)
        self._values: Slots = []
        self._state = State()
        self._runs = [self._point(point) for point in self._points]
        self._calls = self._plain_calls = [run.run for run in self._runs]
        whole = {name: self._placement.whole(buffer) for buffer, name in graph.outputs}
        there = set(graph.inputs)  # outputs that are inputs: updated where they lie, or left as they are
        self._there = [name for buffer, name in graph.outputs if (buffer, name) in there]
        self._outputs: dict[str, Take] = {name: taker(read) for name, read in whole.items() if name not in self._there}
        self._values.extend([None] * self._placement.num_slots)
        self._free_early({slot for read in whole.values() for slot in slots_of(read)})
        self._held = [torch.empty(0)] * len(self._placement.allocations)
        self._uses = [0] * len(self._held)
        for number in range(len(self._held)):
            self._allocate(number)
        self._clean = True
        self._list: SpawnList | None = None
        self._timing: Timing | None = None
        self._failures: list[tuple[int, BaseException]] = []
        self._thread = threading.local()

    def _point(self, point: PointTask) -> PointRun:
        task, placement = self.graph.tasks[point.task], self._placement
        taken, made = reads_and_writes(task)
        reads = [placement.read(access, point.device) for access in taken]
        writes = [placement.write(task, access, point.device) for access in made]
        where = placement.points[point.device]
        body = self.bodies.at(task, where, destinations(reads, writes)) if task.kind == "compute" else None
        return PointRun(task, self._values, placement.names, reads, writes, body, placement.updated, self._state)

    def _free_early(self, kept: set[int]) -> None:
        """Let the last point that reads a body's result drop it, but for results in `kept`."""
        readers: dict[int, int] = {}
        for run in self._runs:
            for slot in run.slots:
                readers[slot] = readers.get(slot, 0) + 1
        counters = {slot: ReadCount(number) for slot, number in readers.items() if slot in self._placement.temporary - kept}
        for run in self._runs:
            found = [slot for slot in run.slots if slot in counters]
            run.frees = tuple(slot for slot in found if readers[slot] == 1)
            run.shares = tuple((slot, counters[slot]) for slot in found if readers[slot] > 1)
        self._counters = list(counters.values())

    def _allocate(self, number: int) -> None:
        allocation: Allocation = self._placement.allocations[number]
        tensor = torch.empty(allocation.shape, dtype=DTYPES[allocation.dtype])
        self._held[number] = tensor
        for slot, index in allocation.views.items():
            self._values[slot] = tensor[index]
        self._uses[number] = _uses(tensor)

    def run(
        self,
        runtime: Runtime,
        helper: ctypes.CDLL,
        num_processors: int,
        inputs: Mapping[str, torch.Tensor],
        rng: random.Random | None,
        trace: Trace | None = None,
    ) -> dict[str, torch.Tensor]:
        """Run a step; see `Engine.run`.

        Args:
            runtime: has at least `num_processors` processors.
            helper: the library of spawn_list.c.
            num_processors: how many of them to use.
            inputs: whole tensors by name, of the right shapes.
            rng: gives every point task a random priority.
            trace: what to record in.
        """
        if self._list is None or self._list.runtime is not runtime:
            spawns = [Spawn(point.device, point.after) for point in self._points]
            self._list = SpawnList(runtime, helper, num_processors, spawns, self._call)
        self._list.settle()  # what is left of a step that was interrupted twice
        if rng is not None:
            self._list.prioritize([rng.randrange(1000) for _ in self._points])
        with span(trace, "place inputs"):
            self._begin(inputs)
        timing = self._choose_calls(trace)
        start_ns = time.perf_counter_ns()
        try:
            interrupted = self._run_all(self._list)
        except BaseException:
            if self._list.settled:
                self._clear()
            raise
        if trace is not None and timing is not None and not interrupted:
            trace.append(Work("issue", "runtime"), MAIN, start_ns, self._list.issued_ns)
            trace.append(Work("wait", "wait"), MAIN, self._list.issued_ns, time.perf_counter_ns())
            timing.record(trace, self.graph, self._points, num_processors, start_ns)
        with torch.no_grad(), span(trace, "take outputs"):
            outputs, again = uninterrupted(lambda: self._take_outputs(inputs))
        with span(trace, "free"):
            _, once_more = uninterrupted(self._clear)
        self._state.changing = False
        if interrupted or again or once_more:
            raise Interrupted(outputs)
        return outputs

    def _run_all(self, spawns: SpawnList) -> bool:
        """Run every point task; return whether Ctrl-C arrived once state was being written to, from when on no task is left out."""
        try:
            succeeded = spawns.run(may_stop=lambda: not self._state.changing)
        except KeyboardInterrupt:
            if not spawns.ended:
                raise
            return True
        if not succeeded:
            raise min(self._failures, key=lambda failure: failure[0])[1]
        return False

    def state_was_changing(self) -> bool:
        """Return whether a step that failed had begun to write to the caller's state, and forget it."""
        changing, self._state.changing = self._state.changing, False
        return changing

    def _choose_calls(self, trace: Trace | None) -> Timing | None:
        """Let the processors take the time of each point task, or not."""
        if trace is None:
            self._calls = self._plain_calls
            return None
        self._timing = self._timing or Timing(self._plain_calls)
        self._calls = self._timing.calls
        return self._timing

    def _begin(self, inputs: Mapping[str, torch.Tensor]) -> None:
        if not self._clean:  # the last step did not come to its end
            self._clear()
        self._clean = False
        for number, allocation in enumerate(self._placement.allocations):
            if allocation.returned and _uses(self._held[number]) > self._uses[number]:  # the caller kept it
                self._allocate(number)
        for name, slot in self._placement.inputs.items():
            self._values[slot] = inputs[name]

    def _take_outputs(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the outputs; those are copied that share memory with what is not the caller's, with one another or within themselves."""
        ours = (tensor for tensor, about in zip(self._held, self._placement.allocations, strict=True) if not about.returned)
        outputs = {name: take(self._values).detach() for name, take in self._outputs.items()}
        return {name: inputs[name] for name in self._there} | detached(outputs, (*inputs.values(), *ours))

    def _clear(self) -> None:
        """Let go of what belongs to one step, and begin the counts of reads anew."""
        for count in self._counters:
            count.reset()
        for slot in (*self._placement.temporary, *self._placement.inputs.values()):
            self._values[slot] = None
        self._failures.clear()
        if self._list is not None:
            self._list.ended = False
        self._clean = True

    def _call(self, number: int) -> bool:
        """Run a point task on a processor's thread."""
        try:
            try:
                self._thread.ready  # noqa: B018  # there from the thread's second task on
            except AttributeError:
                _prepare_thread()
                self._thread.ready = True
            self._calls[number]()
        except BaseException as error:  # noqa: BLE001  # nothing else would see it; `run` raises it
            self._failures.append((number, error))
            return False
        return True


def _prepare_thread() -> None:
    """Make a processor's thread ready for bodies: one core's worth of work, no gradients.

    Python makes a state for a foreign thread at each call from it and drops that afterwards; taking the state once more keeps it.
    """
    ctypes.pythonapi.PyGILState_Ensure()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)


def _uses(tensor: torch.Tensor) -> int:
    """Return how many tensors and the like share the memory of `tensor`."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))  # noqa: SLF001  # nothing public tells
