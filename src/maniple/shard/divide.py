"""Work that every device along a shared axis would repeat, divided among them.

Where devices share memory a value replicated over an axis is stored once, so that a device that makes a part of it serves all. An op that
no operand or result splits along such an axis is split by one of its factors; operands are then parts of what lies there, and what others
want whole is there when all have made theirs: slices and gathers cost nothing but the wait. An op goes on with the split of its operands
where it can. Outside of the update, where every result that another device needs costs a wait, only an op with much work begins a split.

Contract: no sum is cut, so that only what a kernel does with a smaller operand can change the last bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from maniple.ir.program import Op, Program, Value, sorted_attrs
from maniple.mesh.mesh import Mesh
from maniple.mesh.sharding import Sharding
from maniple.ops import definition
from maniple.ops.collectives import COMMUNICATING, LOCAL
from maniple.shard.options import Along, Option, Split, along, following, lay, split_factor

MIN_FLOPS: Final = 1 << 17
"""Work worth a wait for other devices: some tens of microseconds on a core."""


def divide(program: Program, mesh: Mesh, shared: Iterable[str]) -> Program:
    """Return the sharded `program` with repeated work divided along the axes in `shared`.

    Inputs, outputs and all collectives stay as they are laid out.
    """
    divider = _Divider(program, mesh, tuple(axis for axis in shared if mesh.size(axis) > 1))
    for op in program.ops:
        divider.add(op)
    return divider.finish()


class _Divider:
    def __init__(self, program: Program, mesh: Mesh, axes: tuple[str, ...]) -> None:
        self.program, self.mesh, self.axes = program, mesh, axes
        self.ops: list[Op] = []
        self.names = {value.name for value in program.values()}
        # of each value of `program` its versions by layout, the one that was made first
        self.versions: dict[Value, dict[Sharding, Value]] = {item.value: {item.value.layout: item.value} for item in program.inputs}

    def add(self, op: Op) -> None:
        layouts = None if op.name in COMMUNICATING | LOCAL or op.regions else self.layouts(op)
        if layouts is None:
            operands = tuple(self.need(value, value.layout, op) for value in op.operands)
            self.ops.append(replace(op, operands=operands))
            self.versions.update((value, {value.layout: value}) for value in op.results)
            return
        wanted, made = layouts
        operands = tuple(self.need(value, layout, op) for value, layout in zip(op.operands, wanted, strict=True))
        results = tuple(Value(self.name(v), v.type, layout) for v, layout in zip(op.results, made, strict=True))
        self.ops.append(replace(op, operands=operands, results=results))
        self.versions.update((old, {new.layout: new}) for old, new in zip(op.results, results, strict=True))

    def layouts(self, op: Op) -> tuple[list[Sharding], list[Sharding]] | None:
        """Return how operands and results are laid out once `op` is divided along all axes that it can be; None if along none."""
        operands, results = [v.layout for v in op.operands], [v.layout for v in op.results]
        if not all(v.type.rank for v in op.results) or any(layout.pending for layout in (*operands, *results)):
            return None
        found = False
        for axis in self.axes:
            if any(axis in layout.axes for layout in (*operands, *results)):
                continue
            option = next((o for o in self.options(op, axis) if self.fits(op, axis, o, operands, results)), None)
            if option is not None:
                found = True
                operands = [lay(s, axis, split) for s, split in zip(operands, option.operands, strict=True)]
                results = [lay(s, axis, split) for s, split in zip(results, option.results, strict=True)]
        return (operands, results) if found else None

    def options(self, op: Op, axis: str) -> Iterator[Option]:
        """Yield ways to divide `op`, the best first: as an operand is divided already, then along the longest dim of its result."""
        rule, ways = definition(op.name).factors(op), self.mesh.size(axis)
        order = sorted(range(len(op.operands)), key=lambda i: -op.operands[i].type.num_elements)
        for number in order:
            first = next(iter(self.versions[op.operands[number]]))
            split = along(first, axis)
            if isinstance(split, Split):
                yield from following(op, rule, number, split, ways)
        if op.phase != "update" and (definition(op.name).flops(op) < MIN_FLOPS or definition(op.name).is_cheap):
            return
        shape = op.results[0].type.shape
        for dim in sorted(range(len(shape)), key=lambda d: -shape[d]):
            for factor in rule.results[0][dim][:1]:
                option = split_factor(op, rule, factor, ways)
                if option is not None and rule.sizes[factor] >= ways:
                    yield option

    def fits(self, op: Op, axis: str, option: Option, operands: list[Sharding], results: list[Sharding]) -> bool:
        """Return whether all results are divided, no sum is cut, and all dims can be split so."""
        if option.expands or not all(isinstance(split, Split) for split in option.results):
            return False
        layouts = zip((*operands, *results), (*option.operands, *option.results), strict=True)
        return all(_can_split(layout, split) for layout, split in layouts) and self.cuts_alike(op, axis, option.name, (*operands, *results))

    def cuts_alike(self, op: Op, axis: str, factor: str, layouts: Iterable[Sharding]) -> bool:
        """Return whether `axis`, one more, cuts `factor` at the same places in all dims that hold it.

        In a dim that holds more than the factor, a second axis finds a length that it would cut elsewhere, unless all parts are equal.
        """
        rule = definition(op.name).factors(op)
        sides = zip(layouts, (*rule.operands, *rule.results), strict=True)
        held = [(dim, parts) for layout, dims in sides for dim, parts in zip(dims, layout.dims, strict=True) if factor in dim]
        before = {part.axis for _, parts in held for part in parts}
        if not before or all(dim == (factor,) for dim, _ in held):
            return True
        return rule.sizes[factor] % math.prod(map(self.mesh.size, (*before, axis))) == 0

    def need(self, value: Value, layout: Sharding, user: Op | None) -> Value:
        """Return the version of `value` laid out so, making it if there is none."""
        versions = self.versions[value]
        if layout not in versions:
            first = next(iter(versions))
            if layout == value.layout:  # from the parts
                for axis in reversed([axis for axis in self.axes if axis in first.axes and axis not in layout.axes]):
                    self.change("all_gather", value, first, first.without(axis), axis, user)
                    first = first.without(axis)
            else:
                self.need(value, value.layout, user)
                have = value.layout
                for axis in (axis for axis in self.axes if axis in layout.axes and axis not in value.layout.axes):
                    split = along(layout, axis)
                    self.change("shard_slice", value, have, lay(have, axis, split), axis, user)
                    have = lay(have, axis, split)
        return versions[layout]

    def change(self, kind: str, value: Value, before: Sharding, after: Sharding, axis: str, user: Op | None) -> None:
        versions = self.versions[value]
        if after not in versions:
            versions[after] = Value(self.name(value), value.type, after)
            attrs = sorted_attrs({"axis": axis, "why": "work divided over shared memory"})
            phase, where = (user.phase, user.location) if user is not None else ("update", None)
            self.ops.append(Op(kind, (versions[before],), (versions[after],), attrs, phase=phase, location=where))

    def name(self, value: Value) -> str:
        """Return a new name with the stem of `value`'s."""
        stem, number = value.name.partition("~")[0], 1
        while f"{stem}~{number}" in self.names:
            number += 1
        self.names.add(f"{stem}~{number}")
        return f"{stem}~{number}"

    def finish(self) -> Program:
        outputs = tuple(replace(item, value=self.need(item.value, item.value.layout, None)) for item in self.program.outputs)
        gradients = tuple((name, next(iter(self.versions[value].values()))) for name, value in self.program.gradients)
        return replace(self.program, ops=tuple(self.ops), outputs=outputs, gradients=gradients)


def _can_split(layout: Sharding, split: Along) -> bool:
    """Return whether one more axis can split a value that is laid out so."""
    if not isinstance(split, Split):
        return split is None
    parts = layout.dims[split.dim]
    return not parts or (parts[0].blocks, parts[0].unit) == (split.blocks, split.unit) == (1, 1)
