"""From a sharded fragment to what one device computes: local shapes, local attributes, and where its shards begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from maniple.base.errors import LoweringError
from maniple.base.types import TensorType
from maniple.ir.program import Input, Op, Output, Program, Value, sorted_attrs
from maniple.mesh.mesh import Mesh
from maniple.mesh.sharding import AxisPart, Sharding, intervals
from maniple.ops.catalog import definition
from maniple.ops.factors import FactorRule


@dataclass(frozen=True, slots=True)
class Offset:
    """Where the shard of a device begins in a dim of `n` split by `parts`, counted from where `base` begins."""

    n: int
    parts: tuple[AxisPart, ...]
    base: tuple[AxisPart, ...] = ()

    def at(self, mesh: Mesh, point: Mapping[str, int]) -> int:
        """Return the offset, in elements, for the device at `point`."""
        start = intervals(self.n, self.parts, mesh, point)[0][0]
        return start - intervals(self.n, self.base, mesh, point)[0][0]


@dataclass(frozen=True, slots=True)
class LocalProgram:
    """What one device runs.

    Attributes:
        program: ops over local shapes; its inputs are the fragment's inputs, then one rank-0 i64 for each offset.
        offsets: how the device finds those.
    """

    program: Program
    offsets: tuple[Offset, ...]


@dataclass(frozen=True, slots=True)
class Destination:
    """An output of a local program that is written into memory given.

    Attributes:
        output: its number.
        inputs: numbers of the inputs that lie in the same memory.
    """

    output: int
    inputs: tuple[int, ...] = ()


class _Localizer:
    def __init__(self, mesh: Mesh, point: Mapping[str, int]) -> None:
        self.mesh, self.point = mesh, point
        self.offsets: dict[Offset, Value] = {}

    def local_type(self, value: Value) -> TensorType:
        if value.sharding is None:
            return value.type
        return value.type.with_shape(value.sharding.local_shape(value.type.shape, self.mesh, self.point))

    def offset(self, n: int, parts: tuple[AxisPart, ...], base: tuple[AxisPart, ...] = ()) -> Value:
        key = Offset(n, parts, base)
        return self.offsets.setdefault(key, Value(f"offset{len(self.offsets)}", TensorType("i64")))

    def op(self, op: Op, values: dict[Value, Value]) -> Op:
        row = definition(op.name)
        operands = tuple(values[v] for v in op.operands)
        results = tuple(Value(v.name, self.local_type(v)) for v in op.results)
        values.update(zip(op.results, results, strict=True))
        if op.name == "shard_slice":
            return self.shard_slice(op, operands, results)
        if op.name == "to_pending":
            axis = str(op.attr("axis"))
            index = self.offset(self.mesh.size(axis), (AxisPart(axis),))
            return replace(op, name="keep_at_zero", operands=(*operands, index), results=results, attrs=())
        attrs = row.localize(op, [v.type for v in operands], [v.type for v in results])
        extra = self.extra_offsets(op, row.factors(op), row.offsets(op))
        return replace(op, operands=(*operands, *extra), results=results, attrs=sorted_attrs(attrs))

    def shard_slice(self, op: Op, operands: tuple[Value, ...], results: tuple[Value, ...]) -> Op:
        source, target = (v.sharding or Sharding.replicated(v.type.rank) for v in (op.operands[0], op.results[0]))
        found = target.along(str(op.attr("axis")))
        if not isinstance(found, tuple):
            raise LoweringError(f"shard_slice splits no dim: {op!r}", where=op.location)
        dim, part = found
        n = op.operands[0].type.shape[dim]
        base = source.dims[dim]
        start = self.offset(n, target.dims[dim], base)
        attrs = sorted_attrs({"dim": dim, "blocks": part.blocks})
        return replace(op, name="local_slice", operands=(*operands, start), results=results, attrs=attrs)

    def extra_offsets(self, op: Op, rule: FactorRule, factors: tuple[str, ...]) -> tuple[Value, ...]:
        places = [self.find(op, rule, factor) for factor in factors]
        if not any(parts for _, parts in places):
            return ()
        return tuple(self.offset(n, parts) for n, parts in places)

    def find(self, op: Op, rule: FactorRule, factor: str) -> tuple[int, tuple[AxisPart, ...]]:
        """Return the size of the dim that is `factor`, and the parts that split it."""
        sides = zip((*op.operands, *op.results), (*rule.operands, *rule.results), strict=True)
        n, parts = rule.sizes[factor], tuple[AxisPart, ...]()
        for value, dims in sides:
            for at, dim in enumerate(dims):
                if factor in dim and value.sharding and value.sharding.dims[at]:
                    if dim != (factor,) or value.sharding.dims[at][0].blocks != 1:
                        raise LoweringError(f"{op.name} cannot tell where its shard begins: {op!r}", where=op.location)
                    n, parts = value.type.shape[at], value.sharding.dims[at]
        return n, parts


def localize(fragment: Program, mesh: Mesh, point: Mapping[str, int]) -> LocalProgram:
    """Return what the device at `point` runs of a sharded fragment without communication.

    Raises:
        LoweringError: if an op would have to know where a strided shard begins.
    """
    localizer = _Localizer(mesh, point)
    values = {item.value: Value(item.value.name, localizer.local_type(item.value)) for item in fragment.inputs}
    inputs = [Input(values[item.value], item.kind, item.name) for item in fragment.inputs]
    ops = tuple(localizer.op(op, values) for op in fragment.ops)
    inputs += [Input(value, "argument", value.name) for value in localizer.offsets.values()]
    outputs = tuple(Output(values[item.value], item.name) for item in fragment.outputs)
    return LocalProgram(Program(tuple(inputs), ops, outputs), tuple(localizer.offsets))
