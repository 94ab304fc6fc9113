"""Ops that combine elements along dims: reductions and dot products."""

from __future__ import annotations

import math
from collections.abc import Sequence

from maniple.base.types import TensorType
from maniple.ir.program import Op
from maniple.mesh.sharding import Pending
from maniple.ops.elementwise import linear_in
from maniple.ops.factors import Dim, FactorRule
from maniple.ops.opdef import Attrs, OpDef
from maniple.ops.structure import ints_attr

KINDS: dict[str, Pending] = {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min"}
"""How each reduction combines partial results."""


def infer_reduce(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the type without `dims`.

    Raises:
        ValueError: if there are no such dims.
    """
    dims = ints_attr(attrs, "dims")
    if len(operands) != 1:
        raise ValueError("expected one operand")
    if len(set(dims)) != len(dims) or not all(0 <= d < operands[0].rank for d in dims):
        raise ValueError(f"{dims} are no dims of a tensor of {operands[0].rank} dims")
    return (operands[0].with_shape(tuple(n for d, n in enumerate(operands[0].shape) if d not in dims)),)


def infer_reduce_sum(operands: Sequence[TensorType], attrs: Attrs, like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the type without `dims`; bool has no sum.

    Raises:
        ValueError: if there are no such dims, or the operand is bool.
    """
    if operands and operands[0].dtype == "bool":
        raise ValueError("bool has no sum; convert it first")
    return infer_reduce(operands, attrs, like)


def _reduce_factors(op: Op) -> FactorRule:
    shape, dims = op.operands[0].type.shape, op.ints("dims")
    names: tuple[Dim, ...] = tuple((f"d{d}",) for d in range(len(shape)))
    result = tuple(name for d, name in enumerate(names) if d not in dims)
    reduced = {f"d{d}": KINDS[op.name] for d in dims}
    return FactorRule((names,), (result,), {f"d{d}": n for d, n in enumerate(shape)}, reduce=reduced)


def _operand_elements(op: Op) -> int:
    return op.operands[0].type.num_elements


def dot_free_dims(op: Op) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the dims of the two operands of a dot_general that are neither contracted nor batch."""
    lhs, rhs = (value.type.rank for value in op.operands)
    left, right = op.ints("lhs_contract") + op.ints("lhs_batch"), op.ints("rhs_contract") + op.ints("rhs_batch")
    return tuple(d for d in range(lhs) if d not in left), tuple(d for d in range(rhs) if d not in right)


def _check_dims(kind: TensorType, contract: tuple[int, ...], batch: tuple[int, ...]) -> None:
    dims = contract + batch
    if len(set(dims)) != len(dims) or not all(0 <= d < kind.rank for d in dims):
        raise ValueError(f"{contract} and {batch} are no different dims of {kind}")


def infer_dot_general(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the batch dims, then the free dims of the left, then those of the right operand.

    Raises:
        ValueError: if dtypes or the sizes of paired dims differ.
    """
    if len(operands) != 2 or operands[0].dtype != operands[1].dtype or operands[0].dtype == "bool":
        raise ValueError("expected two operands of one dtype, not bool")
    lhs, rhs = operands
    sides = [[ints_attr(attrs, f"{side}_{what}") for what in ("contract", "batch")] for side in ("lhs", "rhs")]
    _check_dims(lhs, *sides[0])
    _check_dims(rhs, *sides[1])
    for mine, theirs in zip(sides[0], sides[1], strict=True):
        if [lhs.shape[d] for d in mine] != [rhs.shape[d] for d in theirs]:
            raise ValueError(f"sizes of dims {mine} and {theirs} differ")
    free = [[n for d, n in enumerate(kind.shape) if d not in sum(dims, ())] for kind, dims in zip(operands, sides, strict=True)]
    return (lhs.with_shape((*(lhs.shape[d] for d in sides[0][1]), *free[0], *free[1])),)


def _dot_factors(op: Op) -> FactorRule:
    lhs: dict[int, Dim] = {}
    rhs: dict[int, Dim] = {}
    for what, letter in (("batch", "b"), ("contract", "k")):
        for number, (i, j) in enumerate(zip(op.ints(f"lhs_{what}"), op.ints(f"rhs_{what}"), strict=True)):
            lhs[i] = rhs[j] = (f"{letter}{number}",)
    batch = tuple(lhs[d] for d in op.ints("lhs_batch"))
    free: list[Dim] = []
    for dims, letter, side in zip(dot_free_dims(op), "mn", (lhs, rhs), strict=True):
        side.update({d: (f"{letter}{number}",) for number, d in enumerate(dims)})
        free += [side[d] for d in dims]
    operands = tuple(tuple(side[d] for d in range(len(side))) for side in (lhs, rhs))
    sizes = {dim[0]: n for value, named in zip(op.operands, operands, strict=True) for dim, n in zip(named, value.type.shape, strict=True)}
    return FactorRule(operands, ((*batch, *free),), sizes)


def _dot_flops(op: Op) -> int:
    contracted = math.prod(op.operands[0].type.shape[d] for d in op.ints("lhs_contract"))
    return 2 * op.results[0].type.num_elements * contracted


REDUCE: tuple[OpDef, ...] = (
    OpDef("reduce_sum", infer_reduce_sum, _reduce_factors, linear_in({0}), _operand_elements),
    OpDef("reduce_max", infer_reduce, _reduce_factors, flops=_operand_elements),
    OpDef("reduce_min", infer_reduce, _reduce_factors, flops=_operand_elements),
    OpDef("dot_general", infer_dot_general, _dot_factors, linear_in({0}, {1}), _dot_flops, is_contraction=True),
)
"""Ops that combine elements along dims. An empty reduction gives the identity: 0, the least or the greatest value of the dtype."""
