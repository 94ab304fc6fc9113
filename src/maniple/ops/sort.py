"""Ops that put elements in order along a dim, or go along it: sorting, the largest few, running reductions, searches."""

from __future__ import annotations

import math
from collections.abc import Sequence

from maniple.base.types import TensorType
from maniple.ir.program import Op
from maniple.ops.elementwise import elementwise_factors, linear_in
from maniple.ops.factors import FactorRule
from maniple.ops.opdef import Attrs, OpDef
from maniple.ops.reduce import infer_reduce_sum
from maniple.ops.structure import dim_attr, flag_attr, int_attr


def _one(operands: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, int]:
    """Return the one operand and attribute `dim`."""
    if len(operands) != 1:
        raise ValueError(f"expected one operand, got {len(operands)}")
    return operands[0], dim_attr(attrs, operands[0].rank)


def infer_sort(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the sorted values, and where along `dim` each stood (i64). Equal elements keep their order; NaN is the greatest.

    Raises:
        ValueError: if there is no such dim.
    """
    x, _ = _one(operands, attrs)
    flag_attr(attrs, "descending")
    return x, TensorType("i64", x.shape)


def infer_top_k(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the `k` largest (or smallest) values along `dim`, the most extreme one first, and where each stood (i64).

    Raises:
        ValueError: if the dim has fewer.
    """
    x, dim = _one(operands, attrs)
    k = int_attr(attrs, "k")
    flag_attr(attrs, "largest")
    if not 0 <= k <= x.shape[dim]:
        raise ValueError(f"there are no {k} elements in a dim of {x.shape[dim]}")
    y = x.with_shape((*x.shape[:dim], k, *x.shape[dim + 1 :]))
    return y, TensorType("i64", y.shape)


def infer_running(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the operand's type.

    Raises:
        ValueError: if there is no such dim, or the operand is bool.
    """
    x, _ = _one(operands, attrs)
    if x.dtype == "bool":
        raise ValueError("expected an operand that is not bool")
    return (x,)


def infer_running_extreme(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the operand's type and, for where the last such element stood, i64.

    Raises:
        ValueError: if there is no such dim.
    """
    x, _ = _one(operands, attrs)
    return x, TensorType("i64", x.shape)


def infer_searchsorted(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return how many of the sorted `[batch..., v]` lie before each value of `[batch..., n]` (i64); with `right`, equal ones count.

    Raises:
        ValueError: if dtypes or leading dims differ.
    """
    flag_attr(attrs, "right")
    if len(operands) != 2 or operands[0].dtype != operands[1].dtype:
        raise ValueError("expected two operands of one dtype")
    bounds, values = operands
    if not bounds.rank or not values.rank or bounds.shape[:-1] != values.shape[:-1]:
        raise ValueError(f"{bounds} and {values} must agree in all dims but the last")
    return (TensorType("i64", values.shape),)


def along_dim_factors(op: Op) -> FactorRule:
    """Return the rule in which every dim is free but `dim`, which is whole."""
    rule = elementwise_factors(op)
    return FactorRule(rule.operands, rule.results, rule.sizes, frozenset({f"d{op.integer('dim')}"}))


def top_k_factors(op: Op) -> FactorRule:
    """Return the rule in which every dim is free but `dim`, which is whole."""
    dim, x = op.integer("dim"), op.operands[0].type
    sides = [tuple((name if d == dim else f"d{d}",) for d in range(x.rank)) for name in ("all", "few")]
    sizes = {f"d{d}": n for d, n in enumerate(x.shape) if d != dim} | {"all": x.shape[dim], "few": op.integer("k")}
    return FactorRule((sides[0],), (sides[1],) * 2, sizes, frozenset({"all", "few"}))


def searchsorted_factors(op: Op) -> FactorRule:
    """Return the rule `b v, b n -> b n`: a split of v leaves a pending sum of the shards' counts."""
    bounds, values = (value.type for value in op.operands)
    lead = tuple((f"b{d}",) for d in range(bounds.rank - 1))
    sizes = {f"b{d}": n for d, n in enumerate(bounds.shape[:-1])} | {"v": bounds.shape[-1], "n": values.shape[-1]}
    return FactorRule(((*lead, ("v",)), (*lead, ("n",))), ((*lead, ("n",)),), sizes)


def reduce_prod_factors(op: Op) -> FactorRule:
    """Return the rule in which `dims` are whole: partial products are no pending sum."""
    dims = op.ints("dims")
    names = tuple((f"d{d}",) for d in range(op.operands[0].type.rank))
    result = tuple(name for d, name in enumerate(names) if d not in dims)
    sizes = {f"d{d}": n for d, n in enumerate(op.operands[0].type.shape)}
    return FactorRule((names,), (result,), sizes, frozenset(f"d{d}" for d in dims))


def _sort_flops(op: Op) -> int:
    x = op.operands[0].type
    return x.num_elements * max(1, math.ceil(math.log2(max(x.shape[op.integer("dim")], 2))))


def _search_flops(op: Op) -> int:
    bounds, values = (value.type for value in op.operands)
    return values.num_elements * max(1, math.ceil(math.log2(max(bounds.shape[-1], 2))))


def _operand_elements(op: Op) -> int:
    return op.operands[0].type.num_elements


SORT: tuple[OpDef, ...] = (
    OpDef("sort", infer_sort, along_dim_factors, flops=_sort_flops),
    OpDef("top_k", infer_top_k, top_k_factors, flops=_operand_elements),
    OpDef("cumsum", infer_running, along_dim_factors, linear_in({0})),
    OpDef("cumprod", infer_running, along_dim_factors),
    OpDef("logcumsumexp", infer_running, along_dim_factors),
    OpDef("cummax", infer_running_extreme, along_dim_factors),
    OpDef("cummin", infer_running_extreme, along_dim_factors),
    OpDef("searchsorted", infer_searchsorted, searchsorted_factors, flops=_search_flops),
    OpDef("reduce_prod", infer_reduce_sum, reduce_prod_factors, flops=_operand_elements),
)
