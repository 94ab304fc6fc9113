"""Proves, op by op, that a sharded program computes what the program computes.

Along each mesh axis an op must be computed whole from whole operands, or split along one factor of its rule, or pass partial results
through operands in which it is linear. The check works on the sets of indices that shards hold and shares no code with `shard/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from maniple.base.errors import VerifyError
from maniple.ir.program import Op, Program, Value
from maniple.mesh import AxisPart, Mesh, Sharding
from maniple.mesh.sharding import intervals
from maniple.ops import FactorRule, definition
from maniple.ops.collectives import COMMUNICATING, LOCAL

Coordinates = tuple[tuple[int, ...], ...]


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
    layouts: dict[str, Sharding] = {item.name: _sharding(item.value) for item in program.inputs}
    for op in program.ops:
        if op.name in COMMUNICATING | LOCAL:
            _check_change(op)
            continue
        rule = definition(op.name).factors(op)
        for axis, ways in mesh.axes:
            if ways > 1:
                _check_axis(op, rule, axis, ways)
    for item in program.outputs:
        sharding = _sharding(item.value)
        if sharding.pending:
            raise VerifyError(f"output {item.name} (%{item.value.name}) leaves the step as a partial result {sharding}")
        if item.name in layouts and layouts[item.name] != sharding:
            raise VerifyError(f"state {item.name} comes in as {layouts[item.name]} and leaves as {sharding}")


def _sharding(value: Value) -> Sharding:
    if value.sharding is None or len(value.sharding.dims) != value.type.rank:
        raise VerifyError(f"%{value.name}: {value.type} has no layout of its rank, got {value.sharding}")
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


def _check_axis(op: Op, rule: FactorRule, axis: str, ways: int) -> None:
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
        found = _try_factor(rule, factor, ways, operands, results)
        if found is None:
            return
        contradictions.append(found)
    closest, reason, _ = max(contradictions, key=lambda item: item[2]) if contradictions else (split[0], "is split", 0)
    raise _wrong(op, axis, closest, reason)


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


def _try_factor(rule: FactorRule, factor: str, ways: int, operands: list[_Side], results: list[_Side]) -> tuple[_Side, str, int] | None:
    """Return None if the op is right with `factor` split, else the side that contradicts, why, and how many sides agreed."""
    agreed = 0
    if factor in rule.whole:
        return operands[0] if operands else results[0], f"splits factor {factor}, which the op needs whole", agreed
    found: set[Coordinates] = set()
    seen = False
    for side in (*operands, *results):
        at = next((i for i, dim in enumerate(side.dims) if factor in dim), None)
        is_result = any(side is other for other in results)
        if at is None:
            want = rule.reduce.get(factor, "sum") if is_result and seen else None
            if side.layout != want:
                return side, f"should be {want or 'whole'} when factor {factor} is split", agreed
        else:
            seen = seen or not is_result
            if not isinstance(side.layout, tuple) or side.layout[0] != at:
                return side, f"should be split along factor {factor}", agreed
            held = _coordinates(rule, side, at, factor, ways)
            if held is None:
                return side, f"has shards that cut through factor {factor}", agreed
            found.add(held)
        agreed += 1
    if len(found) != 1:
        return (operands or results)[0], f"splits factor {factor} at other places than its fellows", agreed
    return None


def _coordinates(rule: FactorRule, side: _Side, at: int, factor: str, ways: int) -> Coordinates | None:
    """Return which indices of `factor` some shards hold, None if a shard does not hold whole indices of it."""
    assert isinstance(side.layout, tuple)
    outer, inner = rule.outer_inner(side.dims[at], factor)
    part = side.layout[1]
    return _held(side.value.type.shape[at], part.blocks, part.unit, ways, outer, inner, rule.sizes[factor])


@lru_cache(maxsize=4096)
def _held(n: int, blocks: int, unit: int, ways: int, outer: int, inner: int, size: int) -> Coordinates | None:
    mesh = Mesh((("x", ways),))
    rows = []
    for shard in _some_shards(ways):
        ranges = intervals(n, (AxisPart("x", blocks, unit),), mesh, {"x": shard})
        indices = np.concatenate([np.arange(lo, hi) for lo, hi in ranges])
        coordinates = np.unique(indices // inner % size)
        if len(indices) != outer * len(coordinates) * inner:
            return None
        rows.append(tuple(int(c) for c in (*coordinates[:1], *coordinates[-1:], len(coordinates))))
    return tuple(rows)


def _some_shards(ways: int) -> Iterator[int]:
    """Yield the first, a middle and the last shards: short and empty ones are last."""
    yield from sorted({0, ways // 2, max(ways - 2, 0), ways - 1})
