"""Scaled dot-product attention and its gradient.

Forward: p = softmax(scale * q k^T + mask) over the keys, out = p v, and lse, the log of the softmax's denominator, which is all that
the gradient needs to make p again. Sources: Vaswani et al. (arXiv:1706.03762), equation 1; Dao, "FlashAttention-2"
(arXiv:2307.08691), section 2.1 and algorithms 1 and 2. A row whose keys are all masked gives out = 0 and lse = 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from maniple.base.types import TensorType
from maniple.ir.program import Op, Value
from maniple.ops.builder import Builder
from maniple.ops.elementwise import linear_in
from maniple.ops.factors import FactorRule, rule
from maniple.ops.opdef import Attrs, OpDef
from maniple.ops.precision import accumulation_dtype, convert, widen
from maniple.ops.structure import flag_attr, number_attr


def _dot(b: Builder, x: Value, y: Value, x_dim: int, y_dim: int) -> Value:
    """Return the product of `x` and `y` over one dim each, for each batch and head."""
    return b("dot_general", x, y, lhs_contract=(x_dim,), rhs_contract=(y_dim,), lhs_batch=(0, 1), rhs_batch=(0, 1))


def _check(q: TensorType, k: TensorType, v: TensorType, mask: Sequence[TensorType], attrs: Attrs) -> None:
    number_attr(attrs, "scale")
    flag_attr(attrs, "causal")
    if q.rank != 4 or not q.is_float:
        raise ValueError(f"queries must be floats [batch, heads, length, size], got {q}")
    if k != v or k.dtype != q.dtype or k.rank != 4 or (k.shape[:2], k.shape[3]) != (q.shape[:2], q.shape[3]):
        raise ValueError("keys and values must have one type, with the queries' batch, heads and size")
    if mask and tuple(mask) != (q.with_shape((*q.shape[:3], k.shape[2])),):
        raise ValueError(f"the mask must be {q.dtype} [batch, heads, queries, keys]")


def _lse_type(q: TensorType) -> TensorType:
    return TensorType(accumulation_dtype(q.dtype), q.shape[:3])


def infer_attention(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return out `[b,h,s,e]` and lse `[b,h,s]` for q `[b,h,s,e]`, k and v `[b,h,t,e]`, and perhaps a mask `[b,h,s,t]` to add."""
    if len(operands) not in (3, 4):
        raise ValueError("expected queries, keys, values and perhaps a mask")
    q, k, v, *mask = operands
    _check(q, k, v, mask, attrs)
    return q, _lse_type(q)


def infer_attention_grad(operands: Sequence[TensorType], attrs: Attrs, _like: TensorType | None) -> tuple[TensorType, ...]:
    """Return the types of q, k and v for operands g, q, k, v, out, lse and perhaps a mask."""
    if len(operands) not in (6, 7):
        raise ValueError("expected gradient, queries, keys, values, output, log-sum-exp and perhaps a mask")
    g, q, k, v, out, lse, *mask = operands
    _check(q, k, v, mask, attrs)
    if g != q or out != q or lse != _lse_type(q):
        raise ValueError("gradient, output and log-sum-exp do not fit the queries")
    return q, k, v


def _factors(op: Op, operands: str, results: str) -> FactorRule:
    has_mask = len(op.operands) > operands.count(",") + 1
    text = operands + (", b h s t" if has_mask else "") + " -> " + results
    return rule(text, [v.type for v in op.operands], [v.type for v in op.results], whole="s t e")


def attention_factors(op: Op) -> FactorRule:
    """Return the rule: batch and heads are free; queries, keys and the size of a head are whole."""
    return _factors(op, "b h s e, b h t e, b h t e", "b h s e, b h s")


def attention_grad_factors(op: Op) -> FactorRule:
    """Return the rule: batch and heads are free; queries, keys and the size of a head are whole."""
    return _factors(op, "b h s e, b h s e, b h t e, b h t e, b h s e, b h s", "b h s e, b h t e, b h t e")


def attention_flops(op: Op) -> int:
    """Return 4 b h s t e: two products; a causal mask, which lets kernels skip half, is not discounted."""
    b, h, s, e = op.operands[0].type.shape
    return 4 * b * h * s * e * op.operands[1].type.shape[2]


def attention_grad_flops(op: Op) -> int:
    """Return 10 b h s t e: five products, the scores made again among them."""
    b, h, s, e = op.operands[1].type.shape
    return 10 * b * h * s * e * op.operands[2].type.shape[2]


def _scores(b: Builder, op: Op, q: Value, k: Value, mask: Value | None) -> Value:
    """Return the masked, scaled scores `[b,h,s,t]`."""
    dots = _dot(b, q, k, 3, 3)
    scale = number_attr(dict(op.attrs), "scale")
    scores = b("multiply", dots, b.constant(scale, dots.type.dtype))
    if mask is not None:
        scores = b("add", scores, widen(b, mask))
    if op.attr("causal"):
        square = TensorType("i64", scores.type.shape[2:])
        seen = b("compare_ge", b("iota", like=square, dim=0), b("iota", like=square, dim=1))
        seen = b.broadcast(seen, scores.type.shape, (2, 3))
        scores = b("select", seen, scores, b.constant(-math.inf, scores.type.dtype))
    return scores


def _finite_or(b: Builder, x: Value, other: float) -> Value:
    return b("select", b("is_finite", x), x, b.constant(other, x.type.dtype))


def decompose_attention(b: Builder, op: Op) -> tuple[Value, ...]:
    """Return out and lse; with keys sharded, the shards' maxima, denominators and outputs are merged."""
    q, k, v = (widen(b, value) for value in op.operands[:3])
    scores = _scores(b, op, q, k, op.operands[3] if len(op.operands) == 4 else None)
    top = _finite_or(b, b("reduce_max", scores, dims=(3,)), 0.0)
    p = b("exponential", b("subtract", scores, b.broadcast(top, scores.type.shape, (0, 1, 2))))
    total = b("reduce_sum", p, dims=(3,))
    one = b.constant(1.0, total.type.dtype)
    total = b("select", b("compare_eq", total, b.constant(0.0, total.type.dtype)), one, total)
    out = _dot(b, p, v, 3, 2)
    out = b("divide", out, b.broadcast(total, out.type.shape, (0, 1, 2)))
    return convert(b, out, op.results[0].type.dtype), b("add", top, b("log", total))


def decompose_attention_grad(b: Builder, op: Op) -> tuple[Value, ...]:
    """Return the gradients of q, k and v, with p made again from lse."""
    g, q, k, v, out = (widen(b, value) for value in op.operands[:5])
    lse, mask = op.operands[5], op.operands[6] if len(op.operands) == 7 else None
    scores = _scores(b, op, q, k, mask)
    shape = scores.type.shape
    p = b("exponential", b("subtract", scores, b.broadcast(lse, shape, (0, 1, 2))))
    gv = _dot(b, p, g, 2, 2)
    gp = _dot(b, g, v, 3, 3)
    mean = b("reduce_sum", b("multiply", g, out), dims=(3,))
    gs = b("multiply", b("subtract", gp, b.broadcast(mean, shape, (0, 1, 2))), p)
    scale = number_attr(dict(op.attrs), "scale")
    gs = b("multiply", gs, b.constant(scale, gs.type.dtype))
    gq = _dot(b, gs, k, 3, 2)
    gk = _dot(b, gs, q, 2, 2)
    dtype = op.results[0].type.dtype
    return convert(b, gq, dtype), convert(b, gk, dtype), convert(b, gv, dtype)


ATTENTION: tuple[OpDef, ...] = (
    OpDef("attention", infer_attention, attention_factors, flops=attention_flops, decompose=decompose_attention),
    OpDef(
        "attention_grad", infer_attention_grad, attention_grad_factors, linear_in({0}), attention_grad_flops,
        decompose_attention_grad,
    ),
)  # fmt: skip
