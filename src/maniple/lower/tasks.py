"""Makes the task graph of a sharded program."""

from __future__ import annotations

from dataclasses import replace

from maniple.ir.program import Input, Op, Output, Program, Value
from maniple.ir.text import print_program
from maniple.lower.cost import collective_bytes, op_flops
from maniple.lower.dependences import find_edges
from maniple.lower.memory import Home, Realisation, check_readable, realise
from maniple.lower.segments import Item, Segment, split
from maniple.lower.updates import update_in_place
from maniple.mesh.mesh import Mesh
from maniple.mesh.sharding import Sharding
from maniple.taskgraph.graph import Access, Buffer, Part, Task, TaskGraph


def lower(program: Program, mesh: Mesh, shared: tuple[str, ...] = ()) -> TaskGraph:
    """Return the task graph of a sharded program.

    Its size does not depend on the sizes of the mesh axes.

    Args:
        program: global types, a sharding on every value, collectives as ops.
        mesh: the devices.
        shared: axes along which devices share memory; along the others each has its own.

    Raises:
        LoweringError: if the program has ops that no task can run.
    """
    realisation = realise(program, shared)
    maker = _Maker(mesh, tuple(axis for axis in mesh.names if axis in shared), realisation)
    for item in program.inputs:
        maker.buffer(item.value)
    items = split(program, realisation)
    update_in_place(program, realisation, items, mesh, maker.shared)
    needed = _needed(program, items, realisation)
    for entry in items:
        if isinstance(entry, Segment):
            maker.segment(entry, needed)
        else:
            maker.collective(entry)
    buffers = tuple(maker.buffers)
    return TaskGraph(
        mesh=mesh,
        shared=maker.shared,
        buffers=buffers,
        tasks=tuple(maker.tasks),
        edges=find_edges(maker.tasks, buffers, mesh, maker.shared),
        segments=tuple(maker.segments),
        inputs=tuple((item.value.name, item.name) for item in program.inputs),
        outputs=tuple((realisation.homes[item.value].value.name, item.name) for item in program.outputs),
    )


def _needed(program: Program, items: list[Item], realisation: Realisation) -> set[Value]:
    """Return the values that are read outside of the segment that makes them."""
    homes = realisation.homes
    needed = {homes[item.value].value for item in program.outputs}
    for item in items:
        made = {value for op in item.ops for value in op.results} if isinstance(item, Segment) else set()
        ops = item.ops if isinstance(item, Segment) else (item,)
        needed |= {homes[value].value for op in ops for value in op.operands if value not in made}
    return needed


class _Maker:
    def __init__(self, mesh: Mesh, shared: tuple[str, ...], realisation: Realisation) -> None:
        self.mesh, self.shared, self.realisation = mesh, shared, realisation
        self.buffers: list[Buffer] = []
        self.tasks: list[Task] = []
        self.segments: list[Program] = []
        self.flops: list[list[int]] = []
        self.numbers: dict[str, int] = {}

    def home(self, value: Value) -> Home:
        return self.realisation.homes[value]

    def buffer(self, value: Value) -> None:
        """Add the buffer that `value` is stored in, unless it is written over an input."""
        home = self.home(value)
        if home.value is value:
            self.buffers.append(Buffer(value.name, value.type, home.sharding))

    def once(self, written: list[Sharding]) -> tuple[str, ...]:
        """Return the shared axes along which a written part is the same at every point."""
        return tuple(axis for axis in self.shared if any(axis not in sharding.axes for sharding in written))

    def collective(self, op: Op) -> None:
        (operand,), (result,) = op.operands, op.results
        self.buffer(result)
        stored = self.written(result)
        read = Access(self.home(operand).value.name, Part(stored, self.realisation.peers[op]), "read")
        task = Task(
            name=f"{op.name}.{len(self.tasks)}",
            kind="collective",
            op=op.name,
            accesses=(read, Access(self.home(result).value.name, Part(stored), "write")),
            once=self.once([stored]),
            num_bytes=self.received(op),
            phase=op.phase,
            location=op.location,
        )
        self.tasks.append(task)

    def written(self, value: Value) -> Sharding:
        """Return the layout in which the points of a collective write its result."""
        return self.realisation.written.get(value, self.home(value).sharding)

    def received(self, op: Op) -> int:
        """Return the bytes that the first point of a collective receives, or reads of other devices' shared memory."""
        axis = str(op.attr("axis"))
        if op.name == "all_reduce" and axis in self.shared:
            result = op.results[0]
            return Value(result.name, result.type, self.written(result)).local_bytes(self.mesh) * (self.mesh.size(axis) - 1)
        return collective_bytes(op, self.mesh)

    def segment(self, segment: Segment, needed: set[Value]) -> None:
        reads = _reads(segment)
        writes = [value for op in segment.ops for value in op.results if value in needed or self.home(value).value is not value]
        if not writes:
            return
        for value, op in reads.items():
            check_readable(value, self.home(value), self.shared, op)
        number = self.number(_fragment(segment.ops, list(reads), writes))
        for value in writes:
            self.buffer(value)
        flops = self.flops[number]
        heaviest = segment.ops[max(range(len(flops)), key=lambda i: (flops[i], -i))]
        accesses = [Access(self.home(value).value.name, Part(value.layout), "read") for value in reads]
        accesses += [Access(self.home(value).value.name, Part(value.layout), "write") for value in writes]
        task = Task(
            name=f"{heaviest.name}.{len(self.tasks)}",
            kind="compute",
            op=heaviest.name,
            accesses=tuple(accesses),
            segment=number,
            once=self.once([value.layout for value in writes]),
            flops=sum(flops),
            num_bytes=sum(value.local_bytes(self.mesh) for value in (*reads, *writes)),
            phase=segment.phase,
            location=heaviest.location,
        )
        self.tasks.append(task)

    def number(self, fragment: Program) -> int:
        """Return the number of `fragment` among the segments; equal ones have one number."""
        key = print_program(replace(fragment, ops=tuple(replace(op, location=None) for op in fragment.ops)))
        if key not in self.numbers:
            self.numbers[key] = len(self.segments)
            self.segments.append(fragment)
            self.flops.append(op_flops(fragment, self.mesh))
        return self.numbers[key]


def _reads(segment: Segment) -> dict[Value, Op]:
    """Return the values that a segment reads and does not make, each with the first op that reads it."""
    made: set[Value] = set()
    reads: dict[Value, Op] = {}
    for op in segment.ops:
        for value in op.operands:
            if value not in made:
                reads.setdefault(value, op)
        made.update(op.results)
    return reads


def _fragment(ops: tuple[Op, ...], reads: list[Value], writes: list[Value]) -> Program:
    """Return the ops as a program whose names depend on its structure only."""
    values = {value: Value(f"a{i}", value.type, value.layout) for i, value in enumerate(reads)}
    made = [value for op in ops for value in op.results]
    values.update((value, Value(str(i), value.type, value.layout)) for i, value in enumerate(made))
    return Program(
        inputs=tuple(Input(values[value], "argument", values[value].name) for value in reads),
        ops=tuple(replace(op, operands=tuple(values[v] for v in op.operands), results=tuple(values[v] for v in op.results)) for op in ops),
        outputs=tuple(Output(values[value], values[value].name) for value in writes),
    )
