"""Batch normalisation with the statistics of the whole batch, and its gradient.

Source: Ioffe and Szegedy (arXiv:1502.03167), algorithm 1 and section 3. The batch is whole, so that devices which hold a part of it must
take the decomposition, whose sums then run over all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from maniple.base.types import TensorType
from maniple.ir.program import Op, Value
from maniple.ops.builder import Builder
from maniple.ops.elementwise import linear_in
from maniple.ops.factors import Dim, FactorRule
from maniple.ops.normalize import inverse_deviation
from maniple.ops.opdef import Attrs, OpDef
from maniple.ops.precision import accumulation_dtype, convert, scaled, widen
from maniple.ops.structure import number_attr


def _statistics(x: TensorType, w: TensorType) -> TensorType:
    if not x.is_float or x.rank < 2 or w != x.with_shape(x.shape[1:2]):
        raise ValueError(f"weight {w} is not the second dim of {x}")
    return TensorType(accumulation_dtype(x.dtype), w.shape)


def infer_batch_norm(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return y, mean, rstd and the biased variance of each channel for x `[b, c, ...]`, weight `[c]` and bias `[c]`."""
    if len(operands) != 3 or operands[1] != operands[2]:
        raise ValueError("expected values, weight and bias, the last two of one type")
    number_attr(attrs, "eps")
    statistics = _statistics(operands[0], operands[1])
    return operands[0], statistics, statistics, statistics


def infer_batch_norm_grad(operands: Sequence[TensorType], _attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the types of dx, dw and db for g, x, mean, rstd and weight."""
    if len(operands) != 5:
        raise ValueError("expected gradient, values, mean, rstd and weight")
    g, x, mean, rstd, w = operands
    if g != x or {mean, rstd} != {_statistics(x, w)}:
        raise ValueError("gradient, mean and rstd do not fit the values")
    return x, w, w


def batch_norm_factors(op: Op) -> FactorRule:
    """Return the rule `b c s, c, ... -> ...`: channels are free, batch and space whole."""
    x = max((value.type for value in op.operands), key=lambda kind: kind.rank)
    names = ("b", "c", *(f"s{i}" for i in range(x.rank - 2)))
    full: tuple[Dim, ...] = tuple((name,) for name in names)
    channels: tuple[Dim, ...] = (("c",),)

    def dims(values: tuple[Value, ...]) -> tuple[tuple[Dim, ...], ...]:
        return tuple(full if value.type.rank > 1 else channels for value in values)

    whole = frozenset(names) - {"c"}
    return FactorRule(dims(op.operands), dims(op.results), dict(zip(names, x.shape, strict=True)), whole)


def _per_channel(x: Value) -> tuple[tuple[int, ...], int]:
    """Return the dims that a channel's statistics run over, and their number of elements, at least 1."""
    dims = (0, *range(2, x.type.rank))
    return dims, max(x.type.num_elements // max(x.type.shape[1], 1), 1)


def decompose_batch_norm(b: Builder, op: Op) -> tuple[Value, ...]:
    """Return y, mean, rstd and variance; the variance is taken around the mean, in a second pass."""
    x, w, bias = (widen(b, value) for value in op.operands)
    shape, (dims, count) = x.type.shape, _per_channel(x)
    mean = scaled(b, b("reduce_sum", x, dims=dims), 1 / count)
    centred = b("subtract", x, b.broadcast(mean, shape, (1,)))
    variance = scaled(b, b("reduce_sum", b("multiply", centred, centred), dims=dims), 1 / count)
    rstd = inverse_deviation(b, variance, op)
    y = b("multiply", centred, b.broadcast(b("multiply", rstd, w), shape, (1,)))
    y = b("add", y, b.broadcast(bias, shape, (1,)))
    return convert(b, y, op.results[0].type.dtype), mean, rstd, variance


def decompose_batch_norm_grad(b: Builder, op: Op) -> tuple[Value, ...]:
    """Return dx, dw and db.

    With n = (x - mean) * rstd over N elements: db = sum(g), dw = sum(g * n), dx = w * rstd / N * (N * g - db - n * dw).
    """
    g, x, mean, rstd, w = (widen(b, value) for value in op.operands)
    shape, (dims, count) = x.type.shape, _per_channel(x)
    centred = b("subtract", x, b.broadcast(mean, shape, (1,)))
    normal = b("multiply", centred, b.broadcast(rstd, shape, (1,)))
    db = b("reduce_sum", g, dims=dims)
    dw = b("reduce_sum", b("multiply", g, normal), dims=dims)
    # times N / N, so that the sums over devices are those of dw and db themselves, and not of their N-th parts as well
    dx = b("subtract", scaled(b, g, count), b.broadcast(db, shape, (1,)))
    dx = b("subtract", dx, b("multiply", b.broadcast(dw, shape, (1,)), normal))
    dx = b("multiply", dx, b.broadcast(scaled(b, b("multiply", rstd, w), 1 / count), shape, (1,)))
    dtype = op.results[0].type.dtype
    return convert(b, dx, dtype), convert(b, dw, dtype), convert(b, db, dtype)


BATCH_NORM: tuple[OpDef, ...] = (
    OpDef(
        "batch_norm", infer_batch_norm, batch_norm_factors, linear_in(),
        lambda op: 8 * op.results[0].type.num_elements, decompose_batch_norm,
    ),
    OpDef(
        "batch_norm_grad", infer_batch_norm_grad, batch_norm_factors, linear_in({0}),
        lambda op: 14 * op.results[0].type.num_elements, decompose_batch_norm_grad,
    ),
)  # fmt: skip
