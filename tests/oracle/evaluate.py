"""Evaluates one op whole, and as the shards of every device combined."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from samples import Sample

from maniple.base.types import TensorType
from maniple.ir.program import Attr, Input, Op, Output, Program, Value
from maniple.kernels.torch import TORCH_DTYPES, compile_program
from maniple.mesh import AxisPart, Mesh, Sharding
from maniple.ops import CATALOG, Builder, FactorRule, definition
from maniple.ops.localize import localize

COMBINE: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add, "max": torch.maximum, "min": torch.minimum,
}  # fmt: skip

Layout = Mapping[str, AxisPart | tuple[AxisPart, ...]]
"""For each factor that is split, the axes that split it; blocks and unit are those within the factor."""


def make_op(sample: Sample) -> Op:
    """Return the op of `sample`."""
    builder = Builder(CATALOG, prefix="a")
    operands = [builder.fresh(operand.type) for operand in sample.operands]
    builder.emit(sample.name, operands, sample.like, **sample.attrs)
    return builder.ops[0]


def program_of(op: Op) -> Program:
    """Return the program of one op."""
    inputs = tuple(Input(value, "argument", value.name) for value in dict.fromkeys(op.operands))
    return Program(inputs, (op,), tuple(Output(value, value.name) for value in op.results))


def type_of(tensor: torch.Tensor) -> TensorType:
    """Return the type of a tensor."""
    return TensorType(next(name for name, dtype in TORCH_DTYPES.items() if dtype == tensor.dtype), tuple(tensor.shape))


Types = tuple[TensorType, ...]


@functools.cache
def compiled(name: str, attrs: tuple[tuple[str, Attr], ...], operands: Types, results: Types) -> Callable[..., Sequence[torch.Tensor]]:
    """Return the function of one op: shards of equal shapes have it in common."""
    values = [Value(f"v{at}", kind) for at, kind in enumerate((*operands, *results))]
    return compile_program(program_of(Op(name, tuple(values[: len(operands)]), tuple(values[len(operands) :]), attrs)))


def run(program: Program, values: Sequence[torch.Tensor | int]) -> list[torch.Tensor]:
    """Return the outputs of a program, checked against its types."""
    if len(program.ops) == 1:
        (op,) = program.ops
        function = compiled(op.name, op.attrs, tuple(v.type for v in op.operands), tuple(v.type for v in op.results))
    else:
        function = compile_program(program)
    results = list(function(*values))
    assert [type_of(result) for result in results] == [item.value.type for item in program.outputs]
    return results


def arguments(sample: Sample, values: Sequence[torch.Tensor]) -> list[torch.Tensor | int]:
    """Return the operands as the kernel takes them: offsets as Python ints."""
    return [int(value) if number in sample.scalars else value for number, value in enumerate(values)]


def whole(sample: Sample, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the results of the op on one device."""
    return run(program_of(make_op(sample)), arguments(sample, values))


def lay(op: Op, rule: FactorRule, axes: Mapping[str, tuple[AxisPart, ...]]) -> Op:
    """Return the op with the layouts that follow from splitting each factor in `axes`."""

    def sharding(dims: Sequence[tuple[str, ...]]) -> Sharding:
        parts = []
        for dim in dims:
            split = [factor for factor in dim if factor in axes]
            assert len(split) <= 1, "two factors of one dim"
            outer, inner = rule.outer_inner(dim, split[0]) if split else (1, 1)
            parts.append(tuple(AxisPart(p.axis, outer * p.blocks, inner * p.unit) for p in axes[split[0]]) if split else ())
        return Sharding(tuple(parts))

    def result(dims: Sequence[tuple[str, ...]]) -> Sharding:
        layout = sharding(dims)
        for factor, parts in axes.items():
            if not any(factor in dim for dim in dims):
                for part in parts:
                    layout = layout.with_pending(part.axis, rule.reduce.get(factor, "sum"))
        return layout

    operands = [Value(v.name, v.type, sharding(dims)) for v, dims in zip(op.operands, rule.operands, strict=True)]
    results = [Value(v.name, v.type, result(dims)) for v, dims in zip(op.results, rule.results, strict=True)]
    return Op(op.name, tuple(operands), tuple(results), op.attrs)


def indices(value: Value, mesh: Mesh, point: Mapping[str, int]) -> tuple[torch.Tensor, ...]:
    """Return, for each dim, the global indices that a device holds, shaped to index the tensor."""
    assert value.sharding is not None
    region = value.sharding.region(value.type.shape, mesh, point)
    lines = [torch.tensor([n for lo, hi in ranges for n in range(lo, hi)], dtype=torch.int64) for ranges in region]
    return tuple(line.reshape([-1 if d == dim else 1 for d in range(len(lines))]) for dim, line in enumerate(lines))


def run_shard(op: Op, mesh: Mesh, point: Mapping[str, int], values: Sequence[torch.Tensor | int]) -> list[torch.Tensor]:
    """Return what one device computes of a laid out op; checks that the local types are those of the table."""
    local = localize(program_of(op), mesh, point)
    (local_op,) = local.program.ops
    inferred = definition(local_op.name).infer([v.type for v in local_op.operands], dict(local_op.attrs), local_op.results[0].type)
    assert inferred == tuple(v.type for v in local_op.results), "infer does not give the local types"
    shards = [
        value[indices(v, mesh, point)].clone() if isinstance(value, torch.Tensor) else value
        for v, value in zip(op.operands, values, strict=True)
    ]
    return run(local.program, [*shards, *(offset.at(mesh, point) for offset in local.offsets)])


def run_sharded(op: Op, mesh: Mesh, values: Sequence[torch.Tensor | int], like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the results of a laid out op, combined from all devices; `like` are tensors of the same types."""
    combined = [torch.zeros_like(tensor) for tensor in like]
    seen = [torch.zeros(tensor.shape, dtype=torch.bool) for tensor in like]
    for point in mesh.points():
        for number, shard in enumerate(run_shard(op, mesh, point, values)):
            value = op.results[number]
            at, kinds = indices(value, mesh, point), {kind for _, kind in value.sharding.pending}
            assert len(kinds) <= 1
            if kinds:
                total = COMBINE[kinds.pop()](combined[number][at], shard)
                combined[number][at] = torch.where(seen[number][at], total, shard)
            else:
                held = seen[number][at]
                if held.any():
                    torch.testing.assert_close(combined[number][at][held], shard[held], rtol=0, atol=0, equal_nan=True)
                combined[number][at] = shard
            seen[number][at] = True
    assert all(mask.all() for mask in seen), "elements that no device holds"
    return combined


def assert_close(actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], tolerance: float = 1e-12) -> None:
    """Fail unless the tensors are equal, floats up to `tolerance` of the largest finite magnitude."""
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert type_of(one) == type_of(other)
        if not one.is_floating_point():
            assert torch.equal(one, other)
            continue
        finite = other[other.isfinite()].abs()
        scale = float(finite.max()) if finite.numel() else 1.0
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * max(scale, 1.0), equal_nan=True)
