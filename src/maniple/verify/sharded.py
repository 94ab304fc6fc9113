"""Checks, op by op, that a sharded program computes what the program computes.

Along each mesh axis an op must be computed whole from whole operands, or split along one factor of its rule, or pass partial results
through operands in which it is linear. The check compares the sets of indices that devices hold, and shares no code with `shard/`. On a
long axis it looks at the first, a middle and the last devices: short and empty shards are last.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from maniple.base.errors import VerifyError
from maniple.ir.program import Op, Program, Value
from maniple.mesh import AxisPart, Mesh, Sharding
from maniple.mesh.sharding import intervals
from maniple.ops import FactorRule, definition
from maniple.ops.collectives import COMMUNICATING, LOCAL

Held = tuple[bytes, ...]
"""For each device looked at, the indices of one factor that it holds."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One operand or result along one axis: its value, the factors of its dims, and how it lies."""

    value: Value
    dims: tuple[tuple[str, ...], ...]
    layout: tuple[int, AxisPart] | str | None


def verify_sharded(program: Program, mesh: Mesh) -> None:
    """Check every op of a sharded program along every axis.

    Raises:
        VerifyError: naming the op, the tensor, the axis and the user's line of the first op that is wrong.
    """
    checker = _Checker(mesh)
    layouts: dict[str, Sharding] = {item.name: _sharding(item.value) for item in program.inputs}
    for op in program.ops:
        if op.name in COMMUNICATING | LOCAL:
            _check_change(op)
            continue
        rule = definition(op.name).factors(op)
        for axis, ways in mesh.axes:
            if ways > 1:
                checker.check_axis(op, rule, axis)
    for item in program.outputs:
        sharding = _sharding(item.value)
        if sharding.pending:
            raise VerifyError(f"output {item.name} (%{item.value.name}) leaves the step as a partial result {sharding}")
        if item.name in layouts and layouts[item.name] != sharding:
            raise VerifyError(f"state {item.name} comes in as {layouts[item.name]} and leaves as {sharding}")


def _sharding(value: Value) -> Sharding:
    if value.sharding is None or len(value.sharding.dims) != value.type.rank:
        raise VerifyError(f"%{value.name}: {value.type} has no layout of its rank, got {value.sharding}")
    for n, parts in zip(value.type.shape, value.sharding.dims, strict=True):
        if parts and (len({(part.blocks, part.unit) for part in parts}) > 1 or n % (parts[0].blocks * parts[0].unit)):
            raise VerifyError(f"%{value.name}: {value.type} has a dim of {n} that is not cut into the same whole units by {value.sharding}")
    return value.sharding


def _check_change(op: Op) -> None:
    """Check that a layout change does along its axis what its name says and nothing along the others."""
    axis = str(op.attr("axis"))
    before, after = _sharding(op.operands[0]), _sharding(op.results[0])
    here, there = before.along(axis), after.along(axis)
    shapes = {
        "all_reduce": isinstance(here, str) and there is None,
        "reduce_scatter": isinstance(here, str) and isinstance(there, tuple),
        "all_gather": isinstance(here, tuple) and there is None,
        "all_to_all": isinstance(here, tuple) and isinstance(there, tuple),
        "shard_slice": here is None and isinstance(there, tuple),
        "to_pending": here is None and there == "sum",
    }
    if not shapes[op.name] or before.without(axis) != after.without(axis):
        raise VerifyError(f"{op.name} cannot lead from {before} to {after}: {op!r}", where=op.location)


class _Checker:
    """Checks ops along axes; remembers which indices shards hold."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._known: dict[tuple[int, tuple[AxisPart, ...], int, int, int], Held | None] = {}

    def check_axis(self, op: Op, rule: FactorRule, axis: str) -> None:
        """Raise unless `op` is right along `axis`."""
        operands = [_Side(v, dims, _sharding(v).along(axis)) for v, dims in zip(op.operands, rule.operands, strict=True)]
        results = [_Side(v, dims, _sharding(v).along(axis)) for v, dims in zip(op.results, rule.results, strict=True)]
        pending = [i for i, side in enumerate(operands) if isinstance(side.layout, str)]
        if pending:
            _check_pending(op, axis, operands, results, pending)
            return
        split = [side for side in (*operands, *results) if isinstance(side.layout, tuple)]
        if not split:
            for side in results:
                if side.layout is not None:
                    raise _wrong(op, axis, side, "is a partial result, though nothing was reduced over the axis")
            return
        contradictions = []
        for factor in rule.factors:
            found = self.try_factor(rule, factor, operands, results)
            if found is None:
                return
            contradictions.append(found)
        closest, reason, _ = max(contradictions, key=lambda item: item[2]) if contradictions else (split[0], "is split", 0)
        raise _wrong(op, axis, closest, reason)

    def try_factor(self, rule: FactorRule, factor: str, operands: list[_Side], results: list[_Side]) -> tuple[_Side, str, int] | None:
        """Return None if the op is right with `factor` split, else the side that contradicts, why, and how many sides agreed."""
        sides = (*operands, *results)
        if factor in rule.whole:
            return sides[0], f"splits factor {factor}, which the op needs whole", 0
        held: set[Held] = set()
        reduced = any(factor in dim for side in operands for dim in side.dims)
        for agreed, side in enumerate(sides):
            at = next((i for i, dim in enumerate(side.dims) if factor in dim), None)
            if at is None:
                want = rule.reduce.get(factor, "sum") if reduced and agreed >= len(operands) else None
                if side.layout != want:
                    return side, f"should be {want or 'whole'} when factor {factor} is split", agreed
                continue
            if not isinstance(side.layout, tuple) or side.layout[0] != at:
                return side, f"should be split along factor {factor}", agreed
            indices = self.held(rule, side, at, factor)
            if indices is None:
                return side, f"has shards that cut through factor {factor}", agreed
            held.add(indices)
        return None if len(held) == 1 else (sides[0], f"splits factor {factor} at other places than its fellows", len(sides))

    def held(self, rule: FactorRule, side: _Side, at: int, factor: str) -> Held | None:
        """Return which indices of `factor` each device looked at holds, None if one does not hold whole indices of it.

        All axes that split the dim count, not only the one that is being checked.
        """
        outer, inner = rule.outer_inner(side.dims[at], factor)
        parts, n, size = _sharding(side.value).dims[at], side.value.type.shape[at], rule.sizes[factor]
        key = (n, parts, outer, inner, size)
        if key not in self._known:
            axes = [part.axis for part in parts]
            points = itertools.product(*(_some(self.mesh.size(axis)) for axis in axes))
            rows = [self.indices(n, parts, dict(zip(axes, point, strict=True)), outer, inner, size) for point in points]
            self._known[key] = None if None in rows else tuple(row for row in rows if row is not None)
        return self._known[key]

    def indices(self, n: int, parts: tuple[AxisPart, ...], point: dict[str, int], outer: int, inner: int, size: int) -> bytes | None:
        """Return the indices of one factor that the device at `point` holds, None if it holds some of them in part."""
        ranges = intervals(n, parts, self.mesh, point)
        positions = np.concatenate([np.arange(lo, hi) for lo, hi in ranges])
        found = np.unique(positions // inner % size)
        return found.tobytes() if len(positions) == outer * len(found) * inner else None


def _some(ways: int) -> list[int]:
    """Return the first, a middle and the last indices of an axis."""
    return sorted({0, ways // 2, max(ways - 2, 0), ways - 1})


def _wrong(op: Op, axis: str, side: _Side, reason: str) -> VerifyError:
    return VerifyError(f"along {axis}, %{side.value.name} of {op.name} {reason}: {op!r}", where=op.location)


def _check_pending(op: Op, axis: str, operands: list[_Side], results: list[_Side], pending: list[int]) -> None:
    """Check that partial results pass only where the op is linear in them, and come out partial."""
    row = definition(op.name)
    kinds = {operands[i].layout for i in pending}
    allowed = any(set(pending) == numbers for numbers in row.linear(op)) and (kinds == {"sum"} or row.moves_data)
    if not allowed or len(kinds) > 1:
        raise _wrong(op, axis, operands[pending[0]], "is a partial result, in which the op is not linear")
    for side in operands:
        if isinstance(side.layout, tuple):
            raise _wrong(op, axis, side, "is split while another operand is a partial result")
    for side in results:
        if side.layout not in kinds:
            raise _wrong(op, axis, side, "must be a partial result like the operand")
