"""Every layout in which a value exists so far, and how to bring it into another.

A layout change is made once, right before its first use, and shared by later uses, but for parameters under `zero=3`: those are gathered
anew for each use, so that the gathered copy lives no longer than the use. What costs less to make again than to move (a mask, a
broadcast) is made again on its shards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from maniple.base.errors import ShardingError
from maniple.base.location import Location
from maniple.ir.program import Op, Value, sorted_attrs
from maniple.mesh import Mesh, Sharding
from maniple.ops import definition
from maniple.shard.cost import CostModel
from maniple.shard.follow import free_axes
from maniple.shard.join import compatible
from maniple.shard.layouts import Layouts
from maniple.shard.options import Option, Split, along, making, replicated
from maniple.shard.reshard import Change, reshard

Why = tuple[str, Location | None]
"""The cause of a layout change, and the user's line behind it."""


class Versions:
    """The sharded program under construction. Keys are values of the unsharded program.

    Attributes:
        ops: the sharded ops so far.
        of: for each value its layouts, each with the sharded value that has it.
        home: the layout in which a value was made, or to which it was moved for good.
        weak: values that are parameters to be gathered for each use, or views of such.
        free: axes along which a value can be made again in any split.
    """

    def __init__(self, mesh: Mesh, layouts: Layouts, cost: CostModel) -> None:
        """Begin with nothing."""
        self.mesh, self.layouts, self.cost = mesh, layouts, cost
        self.ops: list[Op] = []
        self.of: dict[Value, dict[Sharding, Value]] = {}
        self.home: dict[Value, Sharding] = {}
        self.weak: set[Value] = set()
        self.free: dict[Value, frozenset[str]] = {}
        self._maker: dict[Value, Op] = {}
        self._whys: dict[Value, Why] = {}
        self._names: dict[str, int] = {}

    def add(self, old: Value, sharding: Sharding) -> Value:
        """Return a new sharded value that holds `old`, its only version."""
        new = self._name(old, sharding)
        self.of[old], self.home[old] = {sharding: new}, sharding
        return new

    def emit(self, op: Op, operands: tuple[Value, ...], results: list[Sharding], chosen: Mapping[str, Option]) -> None:
        """Append `op` on sharded operands and add its results."""
        new = tuple(self.add(v, s) for v, s in zip(op.results, results, strict=True))
        self.ops.append(replace(op, operands=operands, results=new))
        self._maker.update(dict.fromkeys(op.results, op))
        self.free.update(dict.fromkeys(op.results, free_axes(op, self.mesh.names, lambda v, a: along(self.home[v], a) is None, self.free)))
        for value in new:
            if value.layout.pending:
                self._whys[value] = self._why_pending(op, operands, value, chosen)

    def _why_pending(self, op: Op, operands: tuple[Value, ...], value: Value, chosen: Mapping[str, Option]) -> Why:
        sizes = definition(op.name).factors(op).sizes
        made = [f"{kind} over {chosen[a].name} ({sizes[chosen[a].name]})" for a, kind in value.layout.pending if chosen[a].divides]
        inherited = [self._whys[v] for v in operands if v in self._whys]
        return (f"{', '.join(made)} in {op.name}", op.location) if made or not inherited else inherited[0]

    def move(self, value: Value, target: Sharding, op: Op) -> None:
        """Make `target` the one layout of `value`."""
        self.of[value], self.home[value] = {target: self.need(value, target, op)}, target

    def moved_copy(self, value: Value, target: Sharding, op: Op) -> Value:
        """Return a stand-in for `value` whose one layout is `target`; `value` keeps its own."""
        copy = Value(value.name, value.type)
        self.of[copy], self.home[copy] = {target: self.need(value, target, op)}, target
        return copy

    def alias(self, new: Value, old: Value) -> None:
        """Let `new` be another name of `old`."""
        self.of[new], self.home[new] = self.of[old], self.home[old]

    def need(self, value: Value, target: Sharding, user: Op | None) -> Value:
        """Return the version of `value` laid out as `target`, making it if there is none.

        Args:
            value: of the unsharded program.
            target: the layout.
            user: the op that needs it, None for the end of the step.
        """
        versions = self.of[value]
        if target in versions:
            return versions[target]
        remade = self._remake(value, target) if self._can_remake(value, target) else None
        if remade is not None:
            return remade
        paths = {source: reshard(source, target, value.type, self.mesh, self.cost) for source in versions}
        source = min(paths, key=lambda s: paths[s][1])
        current = versions[source]
        keep = value not in self.weak or (user is not None and user.phase == "update")
        for change in paths[source][0]:
            if change.after in versions:
                current = versions[change.after]
                continue
            current = self._change(current, change, self._why(value, current, target, user), user)
            if keep:
                versions[change.after] = current
        return current

    def _change(self, current: Value, change: Change, why: Why, user: Op | None) -> Value:
        """Append one layout change."""
        new = self._name(current, change.after)
        phase = user.phase if user is not None else "update"
        attrs = sorted_attrs({"axis": change.axis, "why": why[0]})
        self.ops.append(Op(change.kind, (current,), (new,), attrs, phase=phase, location=why[1]))
        if change.after.pending and current in self._whys:
            self._whys[new] = self._whys[current]
        return new

    def _why(self, value: Value, current: Value, target: Sharding, user: Op | None) -> Why:
        if current in self._whys:
            return self._whys[current]
        if user is None:
            made_by = self._maker.get(value)
            return f"leaves the step as {target}", made_by.location if made_by else None
        return f"{user.name} takes {target}, not {current.layout}", user.location

    def _can_remake(self, value: Value, target: Sharding) -> bool:
        """Return whether `value` may be made again as `target` from operands that are at hand."""
        free = self.free.get(value, frozenset())
        home = self.home[value]
        return bool(free) and not target.pending and all(a in free or along(home, a) == along(target, a) for a in self.mesh.names)

    def _remake(self, value: Value, target: Sharding) -> Value | None:
        """Make `value` again as `target`; None if its op cannot be split that way."""
        op = self._maker[value]
        rule = definition(op.name).factors(op)
        chosen: dict[str, Option] = {}
        for axis in self.mesh.names:
            layout = along(target, axis)
            option: Option | None = replicated(op)
            if isinstance(layout, Split):
                option = next(making(op, rule, 0, layout, self.mesh.size(axis)), None)
            if option is None or option.expands:
                return None
            chosen[axis] = option
        _, operands, results = compatible(op, chosen, self.layouts.order, self.mesh)
        if results[0] != target or any(s.pending for s in operands):
            return None
        new_operands = tuple(self.need(v, s, op) for v, s in zip(op.operands, operands, strict=True))
        new = self._name(value, target)
        self.ops.append(replace(op, operands=new_operands, results=(new,)))
        self.of[value][target] = new
        return new

    def _name(self, value: Value, sharding: Sharding) -> Value:
        """Return a new value like `value` with this layout; the first keeps the name, later ones are numbered."""
        if len(sharding.dims) != value.type.rank:
            raise ShardingError(f"layout {sharding} does not fit %{value.name}: {value.type}")
        stem = value.name.partition("~")[0]
        count = self._names.get(stem, 0)
        self._names[stem] = count + 1
        return Value(f"{stem}~{count}" if count else stem, value.type, sharding)
