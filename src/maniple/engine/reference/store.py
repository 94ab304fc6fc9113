"""The instances of all buffers while a step runs."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from maniple.base.errors import EngineError
from maniple.engine.bodies import wrong_shape
from maniple.engine.reference.redistribute import Instance, combine, gather, scatter
from maniple.mesh.mesh import Point
from maniple.mesh.sharding import Sharding
from maniple.taskgraph.graph import Access, Buffer, Part, Task, TaskGraph
from maniple.taskgraph.regions import InstanceKey, Memory, region_of


class Store:
    """Holds instances; frees those of a buffer after its last read.

    Attributes:
        memory: where the graph's instances are.
    """

    def __init__(self, graph: TaskGraph, inputs: Mapping[str, torch.Tensor]) -> None:
        """Make the instances of the graph's inputs, as views of `inputs`."""
        self.memory = Memory(graph.mesh, graph.shared)
        self._buffers = {buffer.name: buffer for buffer in graph.buffers}
        self._instances: dict[str, dict[InstanceKey, Instance]] = {name: {} for name in self._buffers}
        self._reads = dict.fromkeys(self._buffers, 0)
        for access in (access for task in graph.tasks for access in task.accesses if access.privilege == "read"):
            self._reads[access.buffer] += graph.mesh.num_devices
        for name, _ in graph.outputs:
            self._reads[name] += 1
        self._inputs, self._updated = {name for name, _ in graph.inputs}, set[str]()
        for name, source in graph.inputs:
            self._put_input(self._buffers[name], inputs[source])

    def _put_input(self, buffer: Buffer, tensor: torch.Tensor) -> None:
        whole = Instance(tensor, tuple(((0, n),) if n else () for n in buffer.type.shape))
        for point in self.memory.mesh.points():
            key = self.memory.instance(buffer, point)
            if key not in self._instances[buffer.name]:
                held = self.memory.held(buffer, key)
                self._instances[buffer.name][key] = Instance(gather(held, [whole]), held)

    def read(self, access: Access, point: Point) -> torch.Tensor:
        """Return what the device at `point` reads through `access`: pieces put together, partial results combined.

        Raises:
            EngineError: if nothing was written there.
        """
        buffer = self._buffers[access.buffer]
        found = self._collect(buffer, access.part, point)
        return found.clone() if buffer.name in self._updated else found  # no view, which the next writer would change

    def done(self, access: Access) -> None:
        """Count one read of the access's buffer as done; after the last one its memory is freed."""
        self._reads[access.buffer] -= 1
        if self._reads[access.buffer] == 0:
            self._instances[access.buffer] = {}

    def _collect(self, buffer: Buffer, part: Part, point: Point) -> torch.Tensor:
        pending = dict(buffer.sharding.pending)
        combined = [axis for axis in pending if axis in part.peers]
        kinds = {pending[axis] for axis in combined}
        if len(kinds) > 1:
            raise EngineError(f"buffer {buffer.name} is pending in two ways at once: {buffer.sharding}")
        wanted = region_of(buffer.type.shape, part.sharding, self.memory.mesh, point)
        groups: dict[InstanceKey, list[Instance]] = {}
        for key in self.memory.touched(buffer, part, point):
            instance = self._instances[buffer.name].get(key)
            if instance is None:
                raise EngineError(f"buffer {buffer.name} is read at {dict(key)} before it is written")
            groups.setdefault(tuple(item for item in key if item[0] in combined), []).append(instance)
        partials = [gather(wanted, instances) for instances in groups.values()]
        return combine(kinds.pop(), partials) if kinds else partials[0]

    def write(self, task: Task, access: Access, point: Point, tensor: torch.Tensor) -> None:
        """Store what the device at `point` writes through `access`, if it is the writer.

        Raises:
            EngineError: if the tensor does not have the shape of its region.
        """
        if not self.memory.writes(task, access, point):
            return
        buffer = self._buffers[access.buffer]
        sharding = access.part.sharding
        expected = sharding.local_shape(buffer.type.shape, self.memory.mesh, point)
        if tuple(tensor.shape) != expected:
            raise wrong_shape(task, buffer.name, tuple(tensor.shape), expected)
        region = region_of(buffer.type.shape, sharding, self.memory.mesh, point)
        key = self.memory.instance(buffer, point)
        instances = self._instances[buffer.name]
        if buffer.name in self._inputs:
            self._updated.add(buffer.name)
        instances[key] = scatter(tensor, region, self.memory.held(buffer, key), instances.get(key))

    def whole(self, name: str) -> torch.Tensor:
        """Return the global tensor that buffer `name` holds."""
        buffer = self._buffers[name]
        part = Part(Sharding.replicated(buffer.type.rank), tuple(sorted(buffer.sharding.axes)))
        return self._collect(buffer, part, dict.fromkeys(self.memory.mesh.names, 0))
