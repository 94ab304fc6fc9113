"""Propagation: every op gets a layout, and layout changes are inserted where operands lie otherwise.

One walk in program order. Along each axis an op takes the solver's option if there is one, else follows its operands (`follow.py`). A
layout change is made once, right before its first use, and shared by later uses, but for parameters under `zero=3`: those are gathered
anew for each use, so that the gathered copy lives no longer than the use. Contract: reassociating.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from maniple.base.errors import ShardingError
from maniple.base.location import Location
from maniple.ir.program import Input, Op, Output, Program, Value, sorted_attrs
from maniple.mesh import AxisPart, Mesh, Sharding
from maniple.ops import CATALOG, Builder, FactorRule, definition
from maniple.shard.cost import CostModel
from maniple.shard.follow import Operand, follow, free_axes
from maniple.shard.layouts import Layouts
from maniple.shard.options import Along, Option, Split, making, replicated
from maniple.shard.reshard import reshard

Versions = dict[Sharding, Value]


def propagate(program: Program, mesh: Mesh, layouts: Layouts, cost: CostModel) -> Program:
    """Return the sharded program: a sharding on each value, layout changes as ops.

    Raises:
        ShardingError: if a pinned layout cannot be reached.
    """
    return _Propagation(program, mesh, layouts, cost).run()


class _Propagation:
    """The walk. Keys are values of the unsharded program, `versions` maps each to the sharded values that hold it."""

    def __init__(self, program: Program, mesh: Mesh, layouts: Layouts, cost: CostModel) -> None:
        self.program, self.mesh, self.layouts, self.cost = program, mesh, layouts, cost
        self.versions: dict[Value, Versions] = {}
        self.home: dict[Value, Sharding] = {}
        self.weak: set[Value] = set()
        self.free: dict[Value, frozenset[str]] = {}
        self.maker: dict[Value, Op] = {}
        self.ops: list[Op] = []
        self.reasons: dict[Value, tuple[str, Location | None]] = {}
        self.names: dict[str, int] = {}
        self.pinned: dict[Value, list[tuple[int, AxisPart]]] = {}
        for name, value in program.gradients:
            if name in layouts.gradients:
                self.pinned.setdefault(value, []).append(layouts.gradients[name])

    def run(self) -> Program:
        inputs = []
        for item in self.program.inputs:
            sharding = self.layouts.inputs.get(item.name, Sharding.replicated(item.value.type.rank))
            value = self.name_value(item.value, sharding)
            self.settle(item.value, value)
            if item.name in self.layouts.gathered:
                self.weak.add(item.value)
            inputs.append(Input(value, item.kind, item.name))
        for op in self.program.ops:
            self.place(op)
        outputs = tuple(self.output(item) for item in self.program.outputs)
        gradients = tuple((name, self.versions[v][self.home[v]]) for name, v in self.program.gradients)
        return Program(tuple(inputs), tuple(self.ops), outputs, gradients)

    # -- one op ---------------------------------------------------------------------------------------------------------------

    def place(self, op: Op) -> None:
        """Choose layouts for `op`, bring the operands into place and emit it."""
        if op.phase == "update":
            for value in op.operands:
                self.split_gradient(value, op)
        chosen = {axis: self.choose(op, axis) for axis in self.mesh.names if self.mesh.size(axis) > 1}
        if any(option.expands for option in chosen.values()):
            self.expand(self.as_decided(op))
            return
        operands, results = self.compatible(op, chosen)
        new = tuple(self.need(v, s, op) for v, s in zip(op.operands, operands, strict=True))
        self.emit(op, new, results, chosen)
        self.note(op)
        for value in op.results:
            self.pin(value, op)

    def choose(self, op: Op, axis: str) -> Option:
        """Return the option of `op` along `axis`."""
        decided = self.layouts.options.get(axis, {}).get(op)
        if decided is not None:
            return decided
        at_hand = [self.at_hand(value, axis, op) for value in op.operands]
        if all(have.layouts == {None} for have in at_hand):
            return replicated(op)
        return follow(op, at_hand, self.mesh.size(axis), self.cost)

    def at_hand(self, value: Value, axis: str, op: Op) -> Operand:
        """Return in which layouts along `axis` the value exists."""
        found = frozenset(along(sharding, axis) for sharding in self.versions[value])
        home = self.home[value].without(axis)
        num_bytes = value.type.with_shape(home.local_shape(value.type.shape, self.mesh)).num_bytes
        weak = value in self.weak and axis == self.layouts.gather_axis and op.phase != "update"
        is_free = axis in self.free.get(value, ())
        if is_free:
            found = frozenset({along(self.home[value], axis)})
        return Operand(found, num_bytes, weak, is_free)

    def as_decided(self, op: Op) -> Op:
        """Return `op` on operands brought into the layouts that solvers decided; other axes lie as they do."""
        decided = {axis: options[op] for axis, options in self.layouts.options.items() if op in options}
        operands = []
        for i, value in enumerate(op.operands):
            target = self.home[value]
            for axis, option in decided.items():
                if along(target, axis) != option.operands[i]:
                    target = lay(target.without(axis), axis, option.operands[i])
            moved = value if target == self.home[value] else Value(value.name, value.type)
            if moved is not value:
                self.versions[moved], self.home[moved] = {target: self.need(value, target, op)}, target
            operands.append(moved)
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
            self.versions[result], self.home[result] = self.versions[value], self.home[value]
            self.pin(result, op)

    def compatible(self, op: Op, chosen: dict[str, Option]) -> tuple[list[Sharding], list[Sharding]]:
        """Join the axes' options to shardings; where two axes cannot share a dim, the later one computes the op whole."""
        rule = definition(op.name).factors(op)
        for axis in self.layouts.order:
            if axis not in chosen:
                continue
            before = [a for a in self.layouts.order[: self.layouts.order.index(axis)] if a in chosen]
            if not self.fits(op, rule, [*before, axis], chosen):
                chosen[axis] = replicated(op)
        axes = [axis for axis in self.layouts.order if axis in chosen]
        operands = [self.join(v, [(a, chosen[a].operands[i]) for a in axes]) for i, v in enumerate(op.operands)]
        results = [self.join(v, [(a, chosen[a].results[i]) for a in axes]) for i, v in enumerate(op.results)]
        return operands, results

    def fits(self, op: Op, rule: FactorRule, axes: Sequence[str], chosen: Mapping[str, Option]) -> bool:
        """Return whether the options along `axes` can hold at once: axes that split one dim must cut it into the same blocks and units.

        In a dim of several factors they must also divide the factor evenly, so that every boundary falls between its elements.
        """
        layouts = {axis: (*chosen[axis].operands, *chosen[axis].results) for axis in axes}
        sides = zip((*op.operands, *op.results), (*rule.operands, *rule.results), strict=True)
        for i, (value, dims) in enumerate(sides):
            splits: dict[int, list[tuple[str, Split]]] = {}
            for axis in axes:
                layout = layouts[axis][i]
                if isinstance(layout, Split):
                    splits.setdefault(layout.dim, []).append((axis, layout))
            for at, shared in splits.items():
                if len({(split.blocks, split.unit) for _, split in shared}) > 1:
                    return False
                ways = math.prod(self.mesh.size(axis) for axis, _ in shared)
                size = rule.sizes.get(chosen[shared[0][0]].name, 0)
                if len(shared) > 1 and len(dims[at]) > 1 and (size % ways or value.type.shape[at] % ways):
                    return False
        return True

    def join(self, value: Value, layouts: Sequence[tuple[str, Along]]) -> Sharding:
        """Return the sharding that has these layouts along these axes."""
        sharding = Sharding.replicated(value.type.rank)
        for axis, layout in layouts:
            sharding = lay(sharding, axis, layout)
        return sharding

    def emit(self, op: Op, operands: tuple[Value, ...], results: Sequence[Sharding], chosen: Mapping[str, Option]) -> None:
        """Append the sharded op and settle its results."""
        new = tuple(self.name_value(v, s) for v, s in zip(op.results, results, strict=True))
        self.ops.append(replace(op, operands=operands, results=new))
        for old, value in zip(op.results, new, strict=True):
            self.settle(old, value)
            self.maker[old] = op
            if value.sharding is not None and value.sharding.pending:
                sizes = definition(op.name).factors(op).sizes
                made = [
                    f"{kind} over {chosen[a].name} ({sizes[chosen[a].name]})" for a, kind in value.sharding.pending if chosen[a].divides
                ]
                inherited = [self.reasons[v] for v in operands if v in self.reasons]
                why = f"{', '.join(made)} in {op.name}"
                self.reasons[value] = (why, op.location) if made or not inherited else inherited[0]

    def settle(self, old: Value, value: Value) -> None:
        """Record `value` as the first version of `old`."""
        assert value.sharding is not None
        self.versions[old] = {value.sharding: value}
        self.home[old] = value.sharding

    def note(self, op: Op) -> None:
        """Record what follows from `op` for later uses of its results."""
        found = free_axes(op, self.mesh.names, lambda v, axis: along(self.home[v], axis) is None, self.free)
        self.free.update(dict.fromkeys(op.results, found))
        axis = self.layouts.gather_axis
        if axis and op.phase != "update" and any(v in self.weak for v in op.operands):
            self.weak.update(
                v
                for v in op.results
                if isinstance(along(self.home[v], axis), Split) and all(o in self.weak or not o.type.rank for o in op.operands)
            )

    def pin(self, value: Value, op: Op) -> None:
        """Bring a value that the strategy pins into its layout at once, and forget the others."""
        target = self.layouts.pins.get(value.name)
        if target is not None:
            self.move(value, target, op)
        if self.layouts.splits_gradients_at_once and op.phase != "update":
            self.split_gradient(value, op)

    def split_gradient(self, value: Value, op: Op) -> None:
        """Split a gradient as its parameter's optimizer state is split, and forget other layouts of it."""
        for dim, part in self.pinned.pop(value, ()):
            self.move(value, self.home[value].without(part.axis).split(dim, part), op)

    def move(self, value: Value, target: Sharding, op: Op) -> None:
        """Make `target` the one layout of `value`."""
        new = self.need(value, target, op)
        self.versions[value], self.home[value] = {target: new}, target

    def output(self, item: Output) -> Output:
        """Return the output, laid out as the state it replaces; other results whole."""
        target = self.layouts.inputs.get(item.name, Sharding.replicated(item.value.type.rank))
        return Output(self.need(item.value, target, None), item.name)

    # -- layout changes -------------------------------------------------------------------------------------------------------

    def need(self, value: Value, target: Sharding, user: Op | None) -> Value:
        """Return the version of `value` laid out as `target`, making it if there is none."""
        versions = self.versions[value]
        if target in versions:
            return versions[target]
        if self.can_remake(value, target):
            made = self.remake(value, target)
            if made is not None:
                return made
        paths = {source: reshard(source, target, value.type, self.mesh, self.cost) for source in versions}
        source = min(paths, key=lambda s: paths[s][1])
        current = versions[source]
        keep = value not in self.weak or (user is not None and user.phase == "update")
        for change in paths[source][0]:
            if change.after in versions:
                current = versions[change.after]
                continue
            why, location = self.why(value, current, target, user)
            current = self.change(current, change.kind, change.axis, change.after, why, location, user)
            if keep:
                versions[change.after] = current
        return current

    def change(self, current: Value, kind: str, axis: str, after: Sharding, why: str, location: Location | None, user: Op | None) -> Value:
        """Append one layout change."""
        new = self.name_value(current, after)
        phase = user.phase if user is not None else "update"
        attrs = sorted_attrs({"axis": axis, "why": why})
        self.ops.append(Op(kind, (current,), (new,), attrs, phase=phase, location=location))
        if after.pending and current in self.reasons:
            self.reasons[new] = self.reasons[current]
        return new

    def why(self, value: Value, current: Value, target: Sharding, user: Op | None) -> tuple[str, Location | None]:
        """Return why a layout changes, and the user's line that makes it so."""
        if current in self.reasons:
            return self.reasons[current]
        if user is None:
            made_by = self.maker.get(value)
            return f"leaves the step as {target}", made_by.location if made_by else None
        return f"{user.name} takes {target}, not {current.sharding}", user.location

    def can_remake(self, value: Value, target: Sharding) -> bool:
        """Return whether `value` may be made again as `target` from operands that are at hand."""
        free = self.free.get(value, frozenset())
        home = self.home[value]
        return bool(free) and not target.pending and all(a in free or along(home, a) == along(target, a) for a in self.mesh.names)

    def remake(self, value: Value, target: Sharding) -> Value | None:
        """Make `value` again in layout `target` instead of moving it; None if its op cannot be split that way."""
        op = self.maker[value]
        rule: FactorRule = definition(op.name).factors(op)
        chosen: dict[str, Option] = {}
        for axis in self.mesh.names:
            layout = along(target, axis)
            if layout is None:
                chosen[axis] = replicated(op)
                continue
            assert isinstance(layout, Split)
            option = next(making(op, rule, 0, layout, self.mesh.size(axis)), None)
            if option is None or option.expands:
                return None
            chosen[axis] = option
        operands, results = self.compatible(op, dict(chosen))
        if results[0] != target or any(s.pending for s in operands):
            return None
        new_operands = tuple(self.need(v, s, op) for v, s in zip(op.operands, operands, strict=True))
        new = self.name_value(value, target)
        self.ops.append(replace(op, operands=new_operands, results=(new,)))
        self.versions[value][target] = new
        return new

    def name_value(self, value: Value, sharding: Sharding) -> Value:
        """Return a new value like `value` with this layout; the first keeps the name, later ones are numbered."""
        if len(sharding.dims) != value.type.rank:
            raise ShardingError(f"layout {sharding} does not fit %{value.name}: {value.type}")
        stem = value.name.partition("~")[0]
        count = self.names.get(stem, 0)
        self.names[stem] = count + 1
        return Value(f"{stem}~{count}" if count else stem, value.type, sharding)


def lay(sharding: Sharding, axis: str, layout: Along) -> Sharding:
    """Return `sharding` with `axis`, over which it is replicated, laid out as `layout`."""
    if isinstance(layout, Split):
        return sharding.split(layout.dim, AxisPart(axis, layout.blocks, layout.unit))
    return sharding if layout is None else sharding.with_pending(axis, layout)


def along(sharding: Sharding, axis: str) -> Along:
    """Return the layout along one axis."""
    found = sharding.along(axis)
    if isinstance(found, tuple):
        dim, part = found
        return Split(dim, part.blocks, part.unit)
    return found
