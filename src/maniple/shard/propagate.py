"""Propagation: every op gets a layout, and layout changes are inserted where operands lie otherwise.

One walk in program order. Along each axis an op takes the solver's option if there is one, else follows its operands (`follow.py`).
Composites that cannot be split as chosen give way to their decompositions. Contract: reassociating.
"""

from __future__ import annotations

from dataclasses import replace

from maniple.ir.program import Input, Op, Output, Program, Value
from maniple.mesh import AxisPart, Mesh, Sharding
from maniple.ops import CATALOG, Builder, definition
from maniple.shard.cost import CostModel
from maniple.shard.follow import Operand, follow
from maniple.shard.join import compatible
from maniple.shard.layouts import Layouts
from maniple.shard.options import Option, Split, along, lay, replicated
from maniple.shard.versions import Versions


def propagate(program: Program, mesh: Mesh, layouts: Layouts, cost: CostModel) -> Program:
    """Return the sharded program: a sharding on each value, layout changes as ops.

    Raises:
        ShardingError: if a pinned layout cannot be reached.
    """
    return _Propagation(program, mesh, layouts, cost).run()


class _Propagation:
    """The walk.

    Attributes:
        gradient_splits: how ZeRO splits each gradient that was not split yet.
    """

    def __init__(self, program: Program, mesh: Mesh, layouts: Layouts, cost: CostModel) -> None:
        self.program, self.mesh, self.layouts, self.cost = program, mesh, layouts, cost
        self.axes = [axis for axis in mesh.names if mesh.size(axis) > 1]
        self.versions = Versions(mesh, layouts, cost)
        self.gradient_splits: dict[Value, list[tuple[int, AxisPart]]] = {}
        for name, value in program.gradients:
            if name in layouts.gradients:
                self.gradient_splits.setdefault(value, []).append(layouts.gradients[name])

    def run(self) -> Program:
        versions, inputs = self.versions, []
        for item in self.program.inputs:
            sharding = self.layouts.inputs.get(item.name, item.value.layout)
            inputs.append(Input(versions.add(item.value, sharding), item.kind, item.name))
            if item.name in self.layouts.gathered:
                versions.weak.add(item.value)
        for op in self.program.ops:
            self.place(op)
        outputs = tuple(self.output(item) for item in self.program.outputs)
        gradients = tuple((name, versions.of[v][versions.home[v]]) for name, v in self.program.gradients)
        return Program(tuple(inputs), tuple(versions.ops), outputs, gradients)

    def place(self, op: Op) -> None:
        """Choose layouts for `op`, bring the operands into place and emit it."""
        if op.phase == "update":
            for value in op.operands:
                self.split_gradient(value, op)
        chosen = {axis: self.choose(op, axis) for axis in self.axes}
        if any(option.expands for option in chosen.values()):
            self.expand(self.as_decided(op))
            return
        kept, operands, results = compatible(op, chosen, self.layouts.order, self.mesh)
        new = tuple(self.versions.need(v, s, op) for v, s in zip(op.operands, operands, strict=True))
        self.versions.emit(op, new, results, kept)
        self.note_weak(op)
        for value in op.results:
            self.pin(value, op)

    def choose(self, op: Op, axis: str) -> Option:
        """Return the option of `op` along `axis`."""
        decided = self.layouts.options.get(axis, {}).get(op)
        if decided is not None:
            return decided
        at_hand = [self.at_hand(value, axis, op) for value in op.operands]
        if all(have.layouts == (None,) for have in at_hand):
            return replicated(op)
        return follow(op, at_hand, self.mesh.size(axis), self.cost)

    def at_hand(self, value: Value, axis: str, op: Op) -> Operand:
        """Return in which layouts along `axis` the value exists."""
        home = self.versions.home[value]
        shape = home.without(axis).local_shape(value.type.shape, self.mesh)
        is_weak = value in self.versions.weak and axis == self.layouts.gather_axis and op.phase != "update"
        is_free = axis in self.versions.free.get(value, ())
        found = (home,) if is_free else self.versions.of[value]
        return Operand(tuple(dict.fromkeys(along(s, axis) for s in found)), value.type.with_shape(shape).num_bytes, is_weak, is_free)

    def as_decided(self, op: Op) -> Op:
        """Return `op` on operands brought into the layouts that solvers decided; other axes lie as they do."""
        decided = {axis: options[op] for axis, options in self.layouts.options.items() if op in options}
        operands = []
        for i, value in enumerate(op.operands):
            home = target = self.versions.home[value]
            for axis, option in decided.items():
                if along(target, axis) != option.operands[i]:
                    target = lay(target.without(axis), axis, option.operands[i])
            operands.append(value if target == home else self.versions.moved_copy(value, target, op))
        return replace(op, operands=tuple(operands))

    def expand(self, op: Op) -> None:
        """Place the op's decomposition instead of the op."""
        decompose = definition(op.name).decompose
        assert decompose is not None
        builder = Builder(CATALOG, prefix=f"{op.results[0].name}.")
        builder.phase, builder.location = op.phase, op.location
        made = decompose(builder, op)
        for part in builder.ops:
            self.place(part)
        for result, value in zip(op.results, made, strict=True):
            self.versions.alias(result, value)
            self.pin(result, op)

    def note_weak(self, op: Op) -> None:
        """Record that views of a parameter to be gathered are to be gathered as well."""
        axis, weak = self.layouts.gather_axis, self.versions.weak
        tensors = [v for v in op.operands if v.type.rank]
        if axis and op.phase != "update" and tensors and all(v in weak for v in tensors):
            weak.update(v for v in op.results if isinstance(along(self.versions.home[v], axis), Split))

    def pin(self, value: Value, op: Op) -> None:
        """Bring a value into the layout that the user pinned, and a gradient into that of `zero=2`."""
        target = self.layouts.pins.get(value.name)
        if target is not None:
            self.versions.move(value, target, op)
        if self.layouts.splits_gradients_at_once and op.phase != "update":
            self.split_gradient(value, op)

    def split_gradient(self, value: Value, op: Op) -> None:
        """Split a gradient as its parameter's optimizer state is split, and forget other layouts of it.

        In a dim that other axes split already, into blocks and units of their own, it is split into those.
        """
        for dim, part in self.gradient_splits.pop(value, ()):
            home = self.versions.home[value].without(part.axis)
            others = home.dims[dim]
            self.versions.move(value, home.split(dim, replace(others[0], axis=part.axis) if others else part), op)

    def output(self, item: Output) -> Output:
        """Return the output, laid out as the state it replaces; other results whole."""
        target = self.layouts.inputs.get(item.name, Sharding.replicated(item.value.type.rank))
        return Output(self.versions.need(item.value, target, None), item.name)
