"""Softmax, layer normalisation, and their gradients.

Source of layer normalisation: Ba et al. (arXiv:1607.06450), equations 3 and 4, over the last dims.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from maniple.base.types import TensorType
from maniple.ir.program import Op, Value
from maniple.ops.builder import Builder
from maniple.ops.elementwise import linear_in
from maniple.ops.factors import Dim, FactorRule
from maniple.ops.opdef import Attrs, OpDef
from maniple.ops.precision import accumulation_dtype, convert, scaled, widen
from maniple.ops.structure import dim_attr, number_attr


def infer_softmax(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None, *, arity: int) -> tuple[TensorType, ...]:
    """Return the operands' one type; attribute `dim` counts from the front."""
    if len(operands) != arity or len(set(operands)) != 1 or not operands[0].is_float:
        raise ValueError(f"expected {arity} float operands of one type")
    dim_attr(attrs, operands[0].rank)
    return (operands[0],)


def softmax_factors(op: Op) -> FactorRule:
    """Return one factor per dim; the normalised one is whole."""
    shape = op.results[0].type.shape
    dims = tuple((f"d{i}",) for i in range(len(shape)))
    sizes = {f"d{i}": n for i, n in enumerate(shape)}
    return FactorRule((dims,) * len(op.operands), (dims,), sizes, frozenset({f"d{op.integer('dim')}"}))


def _reduced(b: Builder, kind: str, x: Value, dim: int) -> Value:
    """Return `x` reduced over `dim` and repeated along it again."""
    rest = tuple(d for d in range(x.type.rank) if d != dim)
    return b.broadcast(b(f"reduce_{kind}", x, dims=(dim,)), x.type.shape, rest)


def decompose_softmax(b: Builder, op: Op) -> tuple[Value, ...]:
    """Return exp(x - max) / sum of it."""
    x, dim = widen(b, op.operands[0]), op.integer("dim")
    e = b("exponential", b("subtract", x, _reduced(b, "max", x, dim)))
    return (convert(b, b("divide", e, _reduced(b, "sum", e, dim)), op.results[0].type.dtype),)


def decompose_log_softmax(b: Builder, op: Op) -> tuple[Value, ...]:
    """Return x - max - log of the sum of exp(x - max)."""
    x, dim = widen(b, op.operands[0]), op.integer("dim")
    x = b("subtract", x, _reduced(b, "max", x, dim))
    rest = tuple(d for d in range(x.type.rank) if d != dim)
    total = b("log", b("reduce_sum", b("exponential", x), dims=(dim,)))
    y = b("subtract", x, b.broadcast(total, x.type.shape, rest))
    return (convert(b, y, op.results[0].type.dtype),)


def decompose_softmax_grad(b: Builder, op: Op) -> tuple[Value, ...]:
    """Return y * (g - sum of g * y)."""
    g, y = (widen(b, value) for value in op.operands)
    total = _reduced(b, "sum", b("multiply", g, y), op.integer("dim"))
    return (convert(b, b("multiply", b("subtract", g, total), y), op.results[0].type.dtype),)


def decompose_log_softmax_grad(b: Builder, op: Op) -> tuple[Value, ...]:
    """Return g - exp(y) * sum of g."""
    g, y = (widen(b, value) for value in op.operands)
    part = b("multiply", _reduced(b, "sum", g, op.integer("dim")), b("exponential", y))
    return (convert(b, b("subtract", g, part), op.results[0].type.dtype),)


def _statistics(x: TensorType, w: TensorType) -> TensorType:
    """Return the type of mean and rstd, kept in the accumulation dtype."""
    if not x.is_float or not 1 <= w.rank <= x.rank or w != x.with_shape(x.shape[x.rank - w.rank :]):
        raise ValueError(f"weight {w} is not the last dims of {x}")
    return TensorType(accumulation_dtype(x.dtype), x.shape[: x.rank - w.rank])


def infer_layer_norm(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return y, and mean and rstd of the leading dims, for x, weight and bias; the weight's dims are normalised."""
    if len(operands) != 3 or operands[1] != operands[2]:
        raise ValueError("expected values, weight and bias, the last two of one type")
    number_attr(attrs, "eps")
    x, w, _ = operands
    statistics = _statistics(x, w)
    return x, statistics, statistics


def infer_layer_norm_grad(operands: Sequence[TensorType], _attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the types of dx, dw and db for g, x, mean, rstd and weight."""
    if len(operands) != 5:
        raise ValueError("expected gradient, values, mean, rstd and weight")
    g, x, mean, rstd, w = operands
    if g != x or {mean, rstd} != {_statistics(x, w)}:
        raise ValueError("gradient, mean and rstd do not fit the values")
    return x, w, w


def _layer_norm_dims(x: TensorType, w: TensorType) -> tuple[tuple[Dim, ...], tuple[Dim, ...], dict[str, int]]:
    """Return the leading dims, the normalised dims, and the sizes of their factors."""
    dims = tuple((f"d{i}",) for i in range(x.rank))
    return dims[: x.rank - w.rank], dims[x.rank - w.rank :], {f"d{i}": n for i, n in enumerate(x.shape)}


def layer_norm_factors(op: Op) -> FactorRule:
    """Return the rule: leading dims are free, normalised dims whole."""
    lead, last, sizes = _layer_norm_dims(op.operands[0].type, op.operands[1].type)
    return FactorRule(((*lead, *last), last, last), ((*lead, *last), lead, lead), sizes, frozenset(d[0] for d in last))


def layer_norm_grad_factors(op: Op) -> FactorRule:
    """Return the rule: leading dims are free and leave dw and db pending, normalised dims whole."""
    lead, last, sizes = _layer_norm_dims(op.operands[1].type, op.operands[4].type)
    x = (*lead, *last)
    return FactorRule((x, x, lead, lead, last), (x, last, last), sizes, frozenset(d[0] for d in last))


def _layer_norm_parts(x: Value, w: Value) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return the leading dims, the normalised dims, and the number of elements of the latter."""
    lead = tuple(range(x.type.rank - w.type.rank))
    return lead, tuple(range(len(lead), x.type.rank)), w.type.num_elements


def inverse_deviation(b: Builder, variance: Value, op: Op) -> Value:
    """Return 1 / sqrt(variance + eps) with the op's `eps`."""
    eps = number_attr(dict(op.attrs), "eps")
    return b("rsqrt", b("add", variance, b.constant(eps, variance.type.dtype)))


def decompose_layer_norm(b: Builder, op: Op) -> tuple[Value, ...]:
    """Return y, mean and rstd; the variance is taken around the mean, in a second pass."""
    x, w, bias = (widen(b, value) for value in op.operands)
    lead, last, count = _layer_norm_parts(x, w)
    share = 1 / max(count, 1)
    mean = scaled(b, b("reduce_sum", x, dims=last), share)
    centred = b("subtract", x, b.broadcast(mean, x.type.shape, lead))
    variance = scaled(b, b("reduce_sum", b("multiply", centred, centred), dims=last), share)
    rstd = inverse_deviation(b, variance, op)
    y = b("multiply", centred, b.broadcast(rstd, x.type.shape, lead))
    y = b("multiply", y, b.broadcast(w, x.type.shape, last))
    y = b("add", y, b.broadcast(bias, x.type.shape, last))
    return convert(b, y, op.results[0].type.dtype), mean, rstd


def decompose_layer_norm_grad(b: Builder, op: Op) -> tuple[Value, ...]:
    """Return dx, dw and db.

    With n = (x - mean) * rstd and h = g * w: dx = rstd * (h - mean(h) - n * mean(h * n)), dw = sum(g * n), db = sum(g).
    """
    g, x, mean, rstd, w = (widen(b, value) for value in op.operands)
    lead, last, count = _layer_norm_parts(x, w)
    shape, share = x.type.shape, 1 / max(count, 1)
    rstd = b.broadcast(rstd, shape, lead)
    normal = b("multiply", b("subtract", x, b.broadcast(mean, shape, lead)), rstd)
    h = b("multiply", g, b.broadcast(w, shape, last))
    mean_h = scaled(b, b("reduce_sum", h, dims=last), share)
    mean_hn = scaled(b, b("reduce_sum", b("multiply", h, normal), dims=last), share)
    dx = b("subtract", h, b.broadcast(mean_h, shape, lead))
    dx = b("subtract", dx, b("multiply", b.broadcast(mean_hn, shape, lead), normal))
    dx = b("multiply", dx, rstd)
    dw = b("reduce_sum", b("multiply", g, normal), dims=lead)
    db = b("reduce_sum", g, dims=lead)
    dtype = op.results[0].type.dtype
    return convert(b, dx, dtype), convert(b, dw, dtype), convert(b, db, dtype)


def _softmax_row(name: str, arity: int, flops: int, decompose: Callable[[Builder, Op], tuple[Value, ...]]) -> OpDef:
    return OpDef(
        name,
        partial(infer_softmax, arity=arity),
        softmax_factors,
        linear_in({0}) if arity == 2 else linear_in(),
        lambda op: flops * op.results[0].type.num_elements,
        decompose,
    )


NORMALIZE: tuple[OpDef, ...] = (
    _softmax_row("softmax", 1, 5, decompose_softmax),
    _softmax_row("log_softmax", 1, 5, decompose_log_softmax),
    _softmax_row("softmax_grad", 2, 4, decompose_softmax_grad),
    _softmax_row("log_softmax_grad", 2, 4, decompose_log_softmax_grad),
    OpDef(
        "layer_norm", infer_layer_norm, layer_norm_factors, linear_in(),
        lambda op: 8 * op.results[0].type.num_elements, decompose_layer_norm,
    ),
    OpDef(
        "layer_norm_grad", infer_layer_norm_grad, layer_norm_grad_factors, linear_in({0}),
        lambda op: 14 * op.results[0].type.num_elements, decompose_layer_norm_grad,
    ),
)  # fmt: skip
